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
from commsim.accuracy.node_count import MOST_NODES, node_count
from commsim.accuracy.node_count import NOTE as NODES_NOTE
from commsim.collectives.semantics import DIVIDED, NCCL_TESTS, ROOTED
from commsim.dumps.finding import format_ranks
from commsim.dumps.findings import covered_s
from commsim.dumps.job import DumpedJob
from commsim.dumps.waits import CallWait
from commsim.errors import ScenarioError, UnitError
from commsim.units import format_time, nccl_bytes

if TYPE_CHECKING:
    from commsim.chakra.trace import Node
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

SHORT = {
    "nics": "topology.nics_per_node",
    "nic_rate": "topology.nic_bandwidth",
    "version": "library.version",
    "oversubscription": "topology.oversubscription",
    "topology.nodes": "nodes",
}
"""What stands for keys of a scenario, and for one that is more than a key."""

OF_CALLS = {"bucket": "50MB", "nodes": "4"}
"""What changes the calls themselves, each with an example."""


@dataclass(frozen=True, eq=False)
class _Program:
    """What each rank does, one thing after another, and the ranks of each group."""

    nodes: Mapping[int, Sequence[Node]]
    groups: Mapping[str, tuple[int, ...]]
    n_ranks: int


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
    overrides = tuple(text for text in written if text.partition("=")[0] not in OF_CALLS)
    before = _seconds(job, _recorded(job, waits, {}), machine, ())
    changed, notes = _changed(job, waits, machine, written)
    after = _seconds(job, changed, machine, overrides)
    return Replayed(covered_s(waits), before, after, written, (NOTE, *notes))


def _changed(
    job: DumpedJob, waits: Sequence[CallWait], machine: str, changes: Sequence[str]
) -> tuple[_Program, list[str]]:
    """What the ranks do where calls change, and what is assumed."""
    sizes: Mapping[int, Sequence[int]] = {}
    notes = []
    if (bucket := _value(changes, "bucket", nccl_bytes)) is not None:
        buckets = bucketed(waits, bucket)
        sizes = buckets.sizes
        notes.append(buckets.note)
    if (nodes := _value(changes, "nodes", _count)) is None:
        return _recorded(job, waits, sizes), notes
    scaled = node_count(job, waits, _per_node(job, machine), nodes)
    n_ranks = {name: len(scaled.groups.get(name, ranks)) for name, ranks in _groups(waits).items()}
    rows = scaled.rows(_nodes(waits, sizes, n_ranks))
    return _Program(rows, scaled.groups, scaled.after * scaled.per_node), [*notes, NODES_NOTE]


def _groups(waits: Sequence[CallWait]) -> dict[str, tuple[int, ...]]:
    return {wait.match.group.name: wait.match.group.ranks or () for wait in waits}


def _recorded(job: DumpedJob, waits: Sequence[CallWait], sizes: Mapping[int, Sequence[int]]) -> _Program:
    """The ranks and groups as they were."""
    groups = _groups(waits)
    n_ranks = {name: len(ranks) for name, ranks in groups.items()}
    return _Program(_nodes(waits, sizes, n_ranks), groups, len(job.ranks))


def _count(text: str) -> int:
    """A number of nodes."""
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MOST_NODES):
        raise UnitError(f"found {text[:40]!r}, expected a whole number from 1 to {MOST_NODES:,}")
    return int(text)


def _written(text: str) -> str:
    """A change with the whole path of its key."""
    key, equals, value = (part.strip() for part in text.partition("="))
    key = SHORT.get(key, key)
    if key in OF_CALLS and not value:
        raise ScenarioError(f"--with {key}: found {text!r}, expected {key}={OF_CALLS[key]}")
    return f"{key}{equals}{value}"


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
    waits: Sequence[CallWait], sizes: Mapping[int, Sequence[int]], n_ranks: Mapping[str, int]
) -> dict[int, list[Node]]:
    """By rank: what it did between its calls as compute, and its calls, one after another.

    ``sizes``: those that are called in place of a call, by its place among the waits. ``n_ranks``: of each group.
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
                row.append(_call(wait, nbytes, n_ranks[wait.match.group.name], row))
        nodes[rank] = row
    return nodes


def _after(row: Sequence[Node]) -> tuple[int, ...]:
    return (row[-1].id,) if row else ()


def _call(wait: CallWait, nbytes: int, n_ranks: int, row: Sequence[Node]) -> Node:
    """A call of so many bytes, as nccl-tests counts, among so many ranks."""
    from commsim.chakra.reading import BARRIER_BYTES
    from commsim.chakra.trace import Node

    operation, number, after = wait.match.any.operation, len(row), _after(row)
    if n_ranks < 2:
        return Node(number, operation, "compute", after, seconds=0.0)
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
    from commsim.scenario.training_run import comm_times

    places = tuple(range(program.n_ranks))
    setting, topology = _built(job, machine, len(places), overrides)
    if topology.world_size < len(places) != len(job.ranks):
        nodes = len(places) * topology.nodes // topology.world_size
        setting, topology = _built(job, machine, len(places), (*overrides, f"topology.nodes={nodes}"))
    if topology.world_size < len(places):
        raise ScenarioError(f"found {len(places)} ranks in the dump, the machine has {topology.world_size}")
    comm = comm_times(setting, topology)
    traces = [Trace(program.nodes.get(rank, ())) for rank in places]
    who = Groups(traces, (0,) * len(places), program.groups, (len(places),))
    operations = build(traces, who, comm, places, lambda node: node.seconds or 0.0)
    run = simulate(operations, SharedLinks(operations, comm, places))
    return TraceItem(name="dump", places=places, run=run).seconds


def _built(job: DumpedJob, machine: str, n_ranks: int, overrides: tuple[str, ...]) -> tuple[Scenario, Topology]:
    """The machine that a job of so many ranks is on."""
    from commsim.scenario.cost_question import AskedCall, built, setting_of

    library = {"name": GLOO} if job.libraries == {GLOO} else None
    setting = setting_of(machine, n_ranks, AskedCall("all_reduce", library=library, overrides=overrides))
    return setting, built(setting.topology, setting.base_dir, joined=False)


def _per_node(job: DumpedJob, machine: str) -> int:
    """Ranks of a node of the machine, where all have as many."""
    _, topology = _built(job, machine, len(job.ranks), ())
    per_node, rest = divmod(topology.world_size, topology.nodes)
    if rest or any(topology.node_of(rank) != rank // per_node for rank in range(topology.world_size)):
        raise ScenarioError("--with nodes: found nodes of different sizes, expected a machine of equal ones")
    return per_node
