"""The calls of a dump again, on the machine as it is and with other settings: what would the job take?

What each rank did between its calls is taken as it was; the calls take what the model gives, waiting comes out anew. It
goes through the replay of Chakra traces (`commsim.chakra`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commsim.accuracy.buckets import bucketed
from commsim.accuracy.expected import GLOO
from commsim.collectives.semantics import DIVIDED, NCCL_TESTS, ROOTED
from commsim.dumps.finding import format_ranks
from commsim.dumps.findings import covered_s
from commsim.dumps.job import DumpedJob
from commsim.dumps.waits import CallWait
from commsim.errors import ScenarioError, UnitError
from commsim.units import format_time, nccl_bytes

if TYPE_CHECKING:
    from commsim.chakra.trace import Node

SHORT = {
    "nics": "topology.nics_per_node",
    "nic_rate": "topology.nic_bandwidth",
    "version": "library.version",
    "oversubscription": "topology.oversubscription",
}
"""Short names of keys of a scenario."""

OF_CALLS = {"bucket": "50MB"}
"""What changes the calls themselves, each with an example."""


@dataclass(frozen=True, eq=False)
class _Program:
    """What each rank does, one thing after another, and the ranks of each group."""

    nodes: Mapping[int, Sequence[Node]]
    groups: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Replayed:
    """What the calls took and would take, in seconds: as measured, replayed on the machine, replayed with changes."""

    measured_s: float
    machine_s: float
    changed_s: float
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    """What is assumed."""

    @property
    def answer(self) -> str:
        """One sentence."""
        share = 100 * (self.changed_s / self.machine_s - 1) if self.machine_s else 0.0
        words = f"{abs(share):.1f} % {'longer' if share > 0 else 'less'}" if abs(share) >= 0.05 else "within 0.05 %"
        if self.changed_s == self.machine_s:
            words = "exactly the same: on this machine that changes nothing for these calls"
        took, measured, changed = map(format_time, (self.machine_s, self.measured_s, self.changed_s))
        return (
            f"Replayed on the machine all calls, the first too, and what is between take {took} (measured {measured}); "
            f"with {', '.join(self.changes)} {changed}, {words}."
        )


NOTE = "what ran beside a call is not in a dump: a change has its full effect here, in the job at most that"


def replay(job: DumpedJob, waits: Sequence[CallWait], machine: str, changes: Sequence[str]) -> Replayed:
    """The job on a machine, and with ``key=value`` changes of its scenario, ``nodes=N`` or ``bucket=SIZE``;
    ScenarioError where that cannot be told."""
    _check(job, waits)
    written = tuple(_written(text) for text in changes)
    groups = {wait.match.group.name: wait.match.group.ranks or () for wait in waits}
    as_it_was = _Program(_nodes(waits, {}, groups), groups)
    overrides = tuple(text for text in written if text.partition("=")[0] not in OF_CALLS)
    changed, notes = as_it_was, [NOTE]
    bucket = _value(written, "bucket", nccl_bytes)
    if bucket is not None:
        buckets = bucketed(waits, bucket)
        changed = _Program(_nodes(waits, buckets.sizes, groups), groups)
        notes.append(buckets.note)
    seconds = [_seconds(job, program, machine, texts) for program, texts in ((as_it_was, ()), (changed, overrides))]
    return Replayed(covered_s(waits), seconds[0], seconds[1], written, tuple(notes))


def _written(text: str) -> str:
    """A change with the whole path of its key."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if key in OF_CALLS and not value:
        raise ScenarioError(f"--with {key}: found {text!r}, expected {key}={OF_CALLS[key]}")
    return f"{SHORT.get(key, key)}{equals}{value}"


def _value(changes: Sequence[str], key: str, read: Callable[[str], int]) -> int | None:
    """The last value that was given for a key; None where none was."""
    given = [value for name, _, value in (text.partition("=") for text in changes) if name == key]
    try:
        return read(given[-1]) if given else None
    except UnitError as error:
        raise ScenarioError(f"--with {key}: {error}") from None


def _check(job: DumpedJob, waits: Sequence[CallWait]) -> None:
    ranks = {rank for group in job.groups.values() for rank in group.ranks or ()}
    lacking = ""
    if not waits or any(not wait.start_s or wait.transfer_s is None for wait in waits):
        lacking = "this kind of dump does not hold the start and the end of each call"
    elif any(wait.match.any.operation in NCCL_TESTS and not wait.match.any.nbytes for wait in waits):
        lacking = "this dump does not hold the sizes of its calls"
    elif GLOO in job.libraries and len(job.libraries) > 1:
        lacking = "some calls are gloo's and others are not"
    elif missing := ranks - set(job.ranks):
        lacking = f"there is no file of {format_ranks(missing)}"
    elif ranks != set(range(len(ranks))):
        lacking = f"found {format_ranks(ranks)}, expected ranks from 0 on"
    if lacking:
        raise ScenarioError(f"--with: {lacking}, and without it the job cannot be replayed")


def _nodes(
    waits: Sequence[CallWait], sizes: Mapping[int, Sequence[int]], groups: Mapping[str, tuple[int, ...]]
) -> dict[int, list[Node]]:
    """By rank: what it did between its calls as compute, and its calls, one after another.

    ``sizes``: those that are called in place of a call, by its place among the waits.
    """
    from commsim.chakra.trace import Node

    mine: dict[int, list[int]] = defaultdict(list)
    for i, wait in enumerate(waits):
        for rank in wait.start_s:
            mine[rank].append(i)
    begun = min(start for wait in waits for start in wait.start_s.values())
    nodes = {}
    for rank, calls in mine.items():
        row: list[Node] = []
        left = begun
        for i in sorted(calls, key=lambda i: waits[i].start_s[rank]):
            wait = waits[i]
            gap = max(wait.start_s[rank] - left, 0.0)
            left = wait.start_s[rank] + wait.waiting_s[rank] + (wait.transfer_s or 0.0)
            row.append(Node(len(row), "between calls", "compute", _after(row), seconds=gap))
            for nbytes in sizes.get(i, (wait.match.any.nbytes,)):
                row.append(_call(wait, nbytes, len(groups[wait.match.group.name]), row))
        nodes[rank] = row
    return nodes


def _after(row: Sequence[Node]) -> tuple[int, ...]:
    return (row[-1].id,) if row else ()


def _call(wait: CallWait, nbytes: int, n_ranks: int, row: Sequence[Node]) -> Node:
    """A call of so many bytes, as nccl-tests counts, among so many ranks."""
    from commsim.chakra.reading import BARRIER_BYTES
    from commsim.chakra.trace import Node

    operation, number, after = wait.match.any.operation, len(row), _after(row)
    known = operation in NCCL_TESTS and operation not in ROOTED & DIVIDED
    if not known and operation != "barrier":
        return Node(number, operation, "compute", after, seconds=wait.transfer_s or 0.0)
    share = n_ranks if operation == "all_gather" else 1
    own = BARRIER_BYTES if operation == "barrier" else max(nbytes // share, 1)
    collective = operation if known else "all_reduce"
    return Node(
        number, operation, "collective", after, nbytes=own, collective=collective, group=wait.match.group.name
    )  # fmt: skip


def _seconds(job: DumpedJob, program: _Program, machine: str, overrides: tuple[str, ...]) -> float:
    from commsim.chakra.flows import SharedLinks
    from commsim.chakra.groups import Groups
    from commsim.chakra.program import build
    from commsim.chakra.simulate import simulate
    from commsim.chakra.trace import Trace
    from commsim.scenario.chakra_result import TraceItem
    from commsim.scenario.cost_question import AskedCall, built, setting_of
    from commsim.scenario.training_run import comm_times

    places = tuple(range(len(job.ranks)))
    library = {"name": GLOO} if job.libraries == {GLOO} else None
    setting = setting_of(machine, len(places), AskedCall("all_reduce", library=library, overrides=overrides))
    topology = built(setting.topology, setting.base_dir, joined=False)
    if topology.world_size < len(places):
        raise ScenarioError(f"found {len(places)} ranks in the dump, the machine has {topology.world_size}")
    comm = comm_times(setting, topology)
    traces = [Trace(program.nodes.get(rank, ())) for rank in places]
    who = Groups(traces, (0,) * len(places), program.groups, (len(places),))
    operations = build(traces, who, comm, places, lambda node: node.seconds or 0.0)
    run = simulate(operations, SharedLinks(operations, comm, places))
    return TraceItem(name="dump", places=places, run=run).seconds
