"""The trace of one rank: operations, what each waits for, and an order in which they can run.

What it is not: it knows no other rank. Who takes part in a collective is `commsim.chakra.groups`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Literal

from commsim.errors import Fault, ScenarioError

Kind = Literal["compute", "cpu", "memory", "collective", "send", "recv", "none"]
"""What a node occupies: the GPU, the host, the GPU's memory, the network, or nothing."""

MOST_FAULTS = 20
"""Of one file; more say nothing new."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a rank.

    ``seconds`` None: from ``flops`` and ``nbytes``. ``nbytes`` of a transfer: its ``comm_size``, of a collective the
    bytes of one rank's input. ``group``: the name of a process group, ``dims`` flags of the axes it spans; neither
    means all ranks. ``offset``: the byte of the file at which its message starts.
    """

    id: int
    name: str
    kind: Kind
    deps: tuple[int, ...] = ()
    seconds: float | None = None
    flops: float = 0.0
    nbytes: int = 0
    collective: str = ""
    peer: int = -1
    tag: int = 0
    group: str = ""
    group_size: int = 0  # as the file states it, 0 where it does not
    dims: tuple[bool, ...] = ()
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Trace:
    """The nodes of one rank in the order of its file; ``groups``: process groups that the file itself lists.

    Raises ScenarioError for ids used twice, unknown dependencies and cycles.
    """

    nodes: Sequence[Node]
    path: Path = Path()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = [*self._id_faults()]
        if not faults and len(self.order) < len(self.nodes):
            faults.append(self._cycle_fault())
        if faults:
            raise ScenarioError(faults[:MOST_FAULTS])

    @cached_property
    def place(self) -> dict[int, int]:
        """Position of every id."""
        return {node.id: i for i, node in enumerate(self.nodes)}

    @cached_property
    def followers(self) -> list[list[int]]:
        """Positions that wait for each position."""
        followers: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for dep in node.deps:
                followers[self.place[dep]].append(i)
        return followers

    @cached_property
    def order(self) -> list[int]:
        """Positions such that every node comes after all it waits for, otherwise as in the file; without those that
        stand in a cycle or wait for one."""
        waiting = [len(node.deps) for node in self.nodes]
        ready = [i for i, count in enumerate(waiting) if not count]
        heapify(ready)
        order = []
        while ready:
            i = heappop(ready)
            order.append(i)
            for after in self.followers[i]:
                waiting[after] -= 1
                if not waiting[after]:
                    heappush(ready, after)
        return order

    def fault(self, node: Node, message: str) -> Fault:
        """A fault at a node: the file, the byte, the node."""
        return Fault(str(self.path), 0, 0, f"byte {node.offset}, node {node.id} {node.name[:40]!r}", message)

    def _id_faults(self) -> list[Fault]:
        faults: list[Fault] = []
        for i, node in enumerate(self.nodes):
            if len(faults) >= MOST_FAULTS:
                break
            if self.place[node.id] != i:
                faults.append(self.fault(node, "found its id again further on, expected every id once"))
            missing = [dep for dep in node.deps if dep not in self.place]
            if missing:
                faults.append(self.fault(node, f"found a dependency on node {missing[0]}, which is not in the file"))
        return faults

    def _cycle_fault(self) -> Fault:
        """Names the nodes of one cycle: from a node left over, back along dependencies that are left over too."""
        done = set(self.order)
        at = next(i for i in range(len(self.nodes)) if i not in done)
        seen: dict[int, int] = {}
        while at not in seen:
            seen[at] = len(seen)
            at = next(self.place[dep] for dep in self.nodes[at].deps if self.place[dep] not in done)
        cycle = [i for i, when in seen.items() if when >= seen[at]]
        shown = " <- ".join(str(self.nodes[i].id) for i in [*cycle[:8], *(() if len(cycle) > 8 else (at,))])
        more = f" <- ... ({len(cycle)} nodes)" if len(cycle) > 8 else ""
        return self.fault(self.nodes[at], f"found a cycle, in which nodes wait for each other: {shown}{more}")
