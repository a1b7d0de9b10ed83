"""All ranks' traces as one program: operations, each done by one rank or together, and what each waits for.

Collectives are matched per process group in the order of the members' traces, messages per sender, receiver and tag in
the order of both; what does not match is a fault before anything is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commsim.chakra.groups import Groups, Members, shortened
from commsim.chakra.trace import MOST_FAULTS, Kind, Node, Trace
from commsim.collectives.semantics import GATHERING
from commsim.errors import Fault, ScenarioError
from commsim.training.communicators import CommTime

Message = tuple[int, int, int]
"""(sender, receiver, tag)"""

MOST_OPERATIONS = 4_000_000

Key = tuple[str, Members, str]
"""A line of transfers that follow one another: what, between whom, and the group's name."""


@dataclass(slots=True)
class TraceOperation:
    """What one rank does, or several together. ``waits``: dependencies not yet met; ``line``: index of what it
    occupies, -1 for nothing; ``source``: of a recv the send that it waits for."""

    kind: Kind
    name: str
    seconds: float
    nbytes: int
    members: list[tuple[int, int]]  # (rank, position in its trace)
    line: int = -1
    waits: int = 0
    source: int = -1
    after: list[int] = field(default_factory=list)  # of a send: the recv that gets it


@dataclass(frozen=True, eq=False)
class TraceProgram:
    """``operation[rank][position]``: index into ``operations``. Per line ``keys`` says what it is, None for what a rank
    computes on, and ``order`` lists the calls of a process group, which run in it."""

    traces: Sequence[Trace | None]
    operations: list[TraceOperation]
    operation: list[list[int]]
    keys: list[Key | None]
    order: list[list[int]]


def build(
    traces: Sequence[Trace | None],
    groups: Groups,
    comm: CommTime,
    places: Sequence[int],
    compute: Callable[[Node], float],
) -> TraceProgram:
    """The program of traces; None: a rank whose part is always ready. ``places``: the ranks of the machine that they
    run on; ``compute``: seconds of what a node computes. ScenarioError for what does not match."""
    total = sum(len(trace.nodes) for trace in traces if trace)
    if total > MOST_OPERATIONS:
        raise ScenarioError(f"found {total:,} nodes on {len(traces)} ranks, expected at most {MOST_OPERATIONS:,}")
    return _ProgramBuilder(traces, groups, comm, np.asarray(places, np.int64), compute).program()


@dataclass
class _ProgramBuilder:
    traces: Sequence[Trace | None]
    groups: Groups
    comm: CommTime
    places: npt.NDArray[np.int64]
    compute: Callable[[Node], float]

    def __post_init__(self) -> None:
        self.operations: list[TraceOperation] = []
        self.operation = [[-1] * len(trace.nodes) if trace else [] for trace in self.traces]
        self.keys: list[Key | None] = []
        self.order: list[list[int]] = []  # the calls of each process group
        self._lines: dict[object, int] = {}
        self._sends: dict[Message, list[int]] = {}
        self._recvs: dict[Message, list[int]] = {}
        self._came: dict[tuple[Key, int], int] = {}  # how many of a line's collectives a rank has come to
        self.faults: list[Fault] = []

    def program(self) -> TraceProgram:
        for rank, trace in enumerate(self.traces):
            if trace is None:
                continue
            for position in trace.order:
                node = trace.nodes[position]
                try:
                    self._place(rank, position, node)
                except ValueError as error:
                    self.faults.append(trace.fault(node, str(error)))
                if len(self.faults) >= MOST_FAULTS:
                    raise ScenarioError(self.faults)
        self._match_messages()
        self._match_collectives()
        if self.faults:
            raise ScenarioError(self.faults[:MOST_FAULTS])
        for rank, trace in enumerate(self.traces):
            for position, node in enumerate(trace.nodes if trace else ()):
                self.operations[self.operation[rank][position]].waits += len(node.deps)
        return TraceProgram(self.traces, self.operations, self.operation, self.keys, self.order)

    # -- one node ---------------------------------

    def _place(self, rank: int, position: int, node: Node) -> None:
        if node.kind == "collective":
            self._collective(rank, position, node)
        elif node.kind in ("send", "recv"):
            self._message(rank, position, node)
        else:
            seconds = self.compute(node)
            line = -1 if node.kind == "none" else self._line((rank, node.kind))
            self._add(rank, position, TraceOperation(node.kind, node.kind, seconds, node.nbytes, [], line))

    def _add(self, rank: int, position: int, operation: TraceOperation) -> int:
        index = len(self.operations)
        self.operations.append(operation)
        operation.members.append((rank, position))
        self.operation[rank][position] = index
        return index

    def _line(self, of: object, key: Key | None = None) -> int:
        if of not in self._lines:
            self._lines[of] = len(self.keys)
            self.keys.append(key)
            self.order.append([])
        return self._lines[of]

    def _collective(self, rank: int, position: int, node: Node) -> None:
        members = self.groups.members(rank, node)
        key: Key = ("collective", members, node.group)
        line = self._line(key, key)
        count = self._came.get((key, rank), 0)
        self._came[key, rank] = count + 1
        # A trace has the size of one rank's part where ours is that of the whole array.
        nbytes = node.nbytes * (len(members) if node.collective in GATHERING else 1)
        if count == len(self.order[line]):
            seconds = self.comm(node.collective, nbytes, self.places[list(members)])
            operation = TraceOperation("collective", node.collective, seconds, nbytes, [], line)
            self.order[line].append(self._add(rank, position, operation))
            return
        index = self.order[line][count]
        first = self.operations[index]
        if (first.name, first.nbytes) != (node.collective, nbytes):
            raise ValueError(
                f"call {count + 1} on {_group(key)} is {node.collective} of {nbytes} bytes on rank {rank} and "
                f"{first.name} of {first.nbytes} bytes on rank {first.members[0][0]}"
            )
        first.members.append((rank, position))
        self.operation[rank][position] = index

    def _message(self, rank: int, position: int, node: Node) -> None:
        world = len(self.traces)
        if not 0 <= node.peer < world:
            raise ValueError(f"found the peer {node.peer}, expected one of the {world} ranks 0..{world - 1}")
        peer = (node.peer + self.groups.moved[rank]) % world
        if peer == rank:
            raise ValueError(f"found a {node.kind} between rank {rank} and itself, expected another rank")
        pair = (rank, peer) if node.kind == "send" else (peer, rank)
        message: Message = (*pair, node.tag)
        seconds = self.comm("send_recv", node.nbytes, self.places[list(pair)])
        if node.kind == "send":
            key: Key = ("send", pair, "")
            operation = TraceOperation("send", "send", seconds, node.nbytes, [], self._line(key, key))
            self._sends.setdefault(message, []).append(self._add(rank, position, operation))
        else:
            unknown = self.traces[peer] is None  # then the message leaves when it is waited for
            operation = TraceOperation("recv", "recv", seconds if unknown else 0.0, node.nbytes, [])
            self._recvs.setdefault(message, []).append(self._add(rank, position, operation))

    # -- what belongs together ---------------------------------

    def _match_messages(self) -> None:
        for message in sorted({*self._sends, *self._recvs}):
            src, dst, tag = message
            if self.traces[src] is None or self.traces[dst] is None:
                continue
            sends, recvs = self._sends.get(message, []), self._recvs.get(message, [])
            if len(sends) != len(recvs):
                text = f"rank {src} sends {len(sends)} messages to rank {dst} (tag {tag}), which receives {len(recvs)}"
                self._fault((sends or recvs)[-1], text)
            for send, recv in zip(sends, recvs, strict=False):
                a, b = self.operations[send], self.operations[recv]
                if a.nbytes != b.nbytes:
                    self._fault(recv, f"receives {b.nbytes} bytes, but rank {src} sends {a.nbytes}")
                a.after.append(recv)
                b.source, b.waits = send, b.waits + 1

    def _match_collectives(self) -> None:
        for key, order in zip(self.keys, self.order, strict=True):
            if key is None or key[0] != "collective":
                continue
            for rank in key[1]:
                came = self._came.get((key, rank), 0)
                if self.traces[rank] is not None and came < len(order):
                    text = f"is call {came + 1} on {_group(key)}; rank {rank} makes {came} such calls"
                    self._fault(order[came], text)

    def _fault(self, index: int, message: str) -> None:
        rank, position = self.operations[index].members[0]
        trace = self.traces[rank]
        assert trace is not None
        self.faults.append(trace.fault(trace.nodes[position], message))


def _group(key: Key) -> str:
    _, members, group = key
    name = f"process group {group!r}" if group else "a group"
    return f"{name} of {len(members)} ranks ({shortened(members)})"
