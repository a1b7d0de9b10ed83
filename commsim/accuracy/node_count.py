"""A recorded job on another number of nodes: which groups grow with it, and what the ranks of added nodes do.

Groups whose ranks are the same of every node (those of data parallelism) get or lose nodes; groups inside a node stay,
one for each node. A rank of an added node does what that rank of a recorded one did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commsim.collectives.semantics import CHAINED, REDUCING, RING_PASSES
from commsim.dumps.finding import format_ranks
from commsim.dumps.job import DumpedJob
from commsim.dumps.waits import CallWait
from commsim.errors import ScenarioError

if TYPE_CHECKING:
    from commsim.chakra.trace import Node

SCALED = REDUCING | RING_PASSES | CHAINED | {"barrier"}
"""Calls whose size does not depend on how many ranks there are."""

MOST_NODES = 65_536
MOST_OPERATIONS = 500_000
"""Of all ranks of the larger job."""

NOTE = (
    "nodes: groups that span all nodes grow with them, those inside one stay; held as recorded: bytes per rank of data "
    "parallel calls (of all_gather and reduce_scatter the whole array) and what each rank computes, so the batch grows"
)


@dataclass(frozen=True, eq=False)
class NodeCount:
    """So many nodes of ``per_node`` ranks in place of ``before``. ``groups``: the ranks of all groups there; ``home``:
    of a recorded group inside a node that node."""

    per_node: int
    before: int
    after: int
    groups: Mapping[str, tuple[int, ...]]
    home: Mapping[str, int]

    def rows(self, recorded: Mapping[int, Sequence[Node]]) -> dict[int, Sequence[Node]]:
        """What every rank does; ScenarioError where that is too much."""
        sources = {k * self.per_node + i: k % self.before * self.per_node + i
                   for k in range(self.after) for i in range(self.per_node)}  # fmt: skip
        total = sum(len(recorded.get(source, ())) for source in sources.values())
        if total > MOST_OPERATIONS:
            text = f"found {self.after:,}, where all ranks do {total:,} things, expected at most {MOST_OPERATIONS:,}"
            raise ScenarioError(f"--with nodes: {text}")
        return {rank: self._moved(recorded.get(source, ()), rank // self.per_node) for rank, source in sources.items()}

    def _moved(self, row: Sequence[Node], node: int) -> Sequence[Node]:
        """A row on a node: groups inside a recorded node are those of this one."""
        if node < self.before or not any(n.group in self.home for n in row):
            return row
        return [replace(n, group=_copy(n.group, node)) if n.group in self.home else n for n in row]


def _copy(group: str, node: int) -> str:
    return f"{group} of node {node}"


def node_count(job: DumpedJob, waits: Sequence[CallWait], per_node: int, after: int) -> NodeCount:
    """The job on so many nodes; ScenarioError where its groups do not say what it would be."""
    before, rest = divmod(len(job.ranks), per_node)
    if rest:
        raise _refusal(f"found {len(job.ranks)} ranks, expected whole nodes of {per_node} as the machine has")
    _check_hosts(job, per_node)
    recorded = {wait.match.group.name: wait.match.group.ranks or () for wait in waits}
    groups, home = dict(recorded), {}
    if after != before:
        if before == 1:
            raise _refusal("the job was on one node, so its groups do not say which of them would span several")
        if sum(dump.messages for dump in job.dumps):
            raise _refusal("found sends and receives: who would send to whom on other nodes is not in a dump")
        operations = {name: {w.match.any.operation for w in waits if w.match.group.name == name} for name in recorded}
        groups = {}
        for name, ranks in recorded.items():
            nodes = sorted({rank // per_node for rank in ranks})
            if len(nodes) == 1:
                home[name] = nodes[0]
            else:
                groups[name] = _spanning(name, ranks, per_node, before, after, operations[name])
        for name, node in home.items():
            for k in range(node, after, before):
                shift = (k - node) * per_node
                groups[name if k == node else _copy(name, k)] = tuple(rank + shift for rank in recorded[name])
    return NodeCount(per_node, before, after, groups, home)


def _spanning(
    name: str, ranks: Sequence[int], per_node: int, before: int, after: int, operations: set[str]
) -> tuple[int, ...]:
    """The ranks of a group that spans nodes, on more or fewer of them."""
    local = sorted({rank % per_node for rank in ranks})
    if len(ranks) != len(local) * before:
        text = f"group {name} ({format_ranks(ranks)}) does not have the same ranks of each of the {before} nodes"
        raise _refusal(f"{text}, so how it would grow is not known")
    if other := sorted(operations - SCALED):
        raise _refusal(f"group {name} spans nodes and calls {other[0]}, whose size depends on how many ranks there are")
    return tuple(node * per_node + i for node in range(after) for i in local)


def _check_hosts(job: DumpedJob, per_node: int) -> None:
    """That the dump's hosts, where they are named, are the nodes of the machine."""
    if not all(job.hosts.get(rank) for rank in job.ranks):
        return
    of_node: dict[int, set[str]] = {}
    for rank in job.ranks:
        of_node.setdefault(rank // per_node, set()).add(job.hosts[rank])
    if any(len(hosts) > 1 for hosts in of_node.values()) or len(set.union(*of_node.values())) < len(of_node):
        hosts = len(set(job.hosts.values()))
        text = f"found {len(job.ranks)} ranks on {hosts} host{'s' * (hosts != 1)}"
        raise _refusal(f"{text}, expected {per_node} consecutive ranks on each, as the machine has them")


def _refusal(text: str) -> ScenarioError:
    return ScenarioError(f"--with nodes: {text}")
