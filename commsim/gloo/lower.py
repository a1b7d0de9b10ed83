"""A gloo schedule bound to processes, cores and links: the Program that the engine runs.

A process has an I/O thread (copies to and from sockets) and a worker (calls, notices, reductions); each is a link that
serves one thing at a time at the rate of one core. The cores of a computer are one more link that all its threads pass
first, as fast as all cores together. Work of t seconds is t times the copy rate in bytes, so one unit serves all.

A message is: the sender's worker (`message`), pieces through the sender's I/O thread, the topology's links and the
receiver's I/O thread, then after `wake` the receiver's worker (`message`, and the reduction of what came). A sender has
done when its socket has taken the last byte, and may begin its next call while SOCKET_BYTES are still under way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.engine.program import Program
from commsim.gloo.parameters import GlooParameters
from commsim.topology.graph import Topology

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

PIECE_BYTES = 256 << 10
"""What sender, links and receiver hand on at a time; the default socket buffers of Linux hold a few of these."""

SMALL_PIECE_BYTES = 16 << 10
"""The same where jobs meet: a link takes frames in the order in which they come, so that jobs that send at once go on
side by side, and the one with more under way gets more of the link. Near a frame of 9,000 B; smaller ones cost time."""

MAX_PIECES = 32
"""Of `PIECE_BYTES`; a longer message has longer pieces."""

SOCKET_BYTES = 512 << 10
"""What a socket takes ahead of the network; Linux lets it grow while it sends. Measured: the median of how much was
still under way when rank 1 of the star came back from passing on a broadcast of 1 to 4 MiB, 0.3 to 1.5 MiB
(validation/runs/testbed/broadcast_ends.csv)."""

BYTES_PER_OP = 220
"""Peak resident bytes of a prediction above the idle process, for each op, measured from 0.3 to 2.4 million ops (141 to
185) and rounded up."""


def ops_of_call(world_size: int, rows: int, largest_bytes: int, piece_bytes: int = PIECE_BYTES) -> int:
    """Ops of one call at most: two a rank, two a message and three a piece."""
    return 2 * world_size + rows * (2 + 3 * min(_most_pieces(piece_bytes), -(-largest_bytes // piece_bytes)))


def _most_pieces(piece_bytes: int) -> int:
    """Pieces that a message has at most."""
    return MAX_PIECES * PIECE_BYTES // piece_bytes


@dataclass(frozen=True)
class Copies:
    """Bytes that torch copies in a rank's memory around gloo: before its first message and after its last."""

    before: int = 0
    after: int = 0
    at_root: bool = False


def torch_copies(collective: str, nbytes: int, world_size: int) -> Copies:
    """What ProcessGroupGloo and gloo copy beside the messages (sources: `commsim.gloo.schedules`).

    reduce_scatter clones its input and copies its block out; all_gather primes a flat buffer with the own block and
    copies all of it to the outputs; gather does so at the root; all_to_all copies the own block.
    """
    block = nbytes // world_size
    return {
        "reduce_scatter": Copies(nbytes, block),
        "all_gather": Copies(block, nbytes),
        "gather": Copies(block, nbytes, at_root=True),
        "all_to_all_v": Copies(block // world_size),
        "all_to_all": Copies(block),
        "scatter": Copies(block, at_root=True),
    }.get(collective, Copies())


@dataclass(frozen=True, eq=False)
class ProcessLinks:
    """Numbers of the links behind the topology's: I/O thread and worker of each rank, cores of each rank's computer."""

    thread: Int64
    worker: Int64
    cores: Int64  # -1 where cores are not scarce
    bandwidth: Float64
    latency: Float64

    def of(self, link: int) -> str:
        """What a link stands for: ``socket copy``, ``worker`` or ``cores``; empty for one of the topology's."""
        first, n = int(self.thread[0]), self.thread.size
        if link < first:
            return ""
        return "socket copy" if link < first + n else "worker" if link < first + 2 * n else "cores"


def links_of(topology: Topology, parameters: GlooParameters, one_host: bool) -> ProcessLinks:
    """The links of processes and cores on a topology; `one_host`: all nodes are one computer."""
    first, n = topology.link_bandwidth.size, topology.world_size
    rank = np.arange(n)
    computer = np.zeros(n, np.int64) if one_host else rank // topology.ranks_per_node
    cores = topology.cpu.cores
    rate = parameters.copy_rate
    ethernet = topology.nodes > 1
    wire = topology.link_bandwidth * (parameters.goodput if ethernet else 1.0)
    own = np.full(2 * n, rate)
    shared = np.full(int(computer.max()) + 1 if cores else 0, rate * max(cores, 1))
    bandwidth = np.concatenate([wire, own, shared])
    latency = np.concatenate([topology.link_latency, np.zeros(own.size + shared.size)])
    scarce = first + 2 * n + computer if cores else np.full(n, -1)
    return ProcessLinks(first + rank, first + n + rank, scarce, bandwidth, latency)


@dataclass(frozen=True, eq=False)
class Standing:
    """On which of the topology's ranks those of a schedule stand, and how long each of these stops before every call.

    ``ranks`` (n,): left out, all in their order; ``late_s`` (world_size,): left out, nobody stops.
    """

    ranks: Int64 | None = None
    late_s: Float64 | None = None


class _Ops:
    """Ops of a Program while they are collected; an op is (bytes, route, delay)."""

    def __init__(self) -> None:
        self.nbytes: list[Int64] = []
        self.route: list[Int64] = []
        self.delay: list[Float64] = []
        self.edges: list[Int64] = []
        self.count = 0

    def add(self, nbytes: npt.ArrayLike, route: npt.ArrayLike, delay: npt.ArrayLike = 0.0) -> Int64:
        """Ops of one kind; their numbers, in the order given."""
        size, way = np.broadcast_arrays(np.asarray(nbytes, np.int64), np.asarray(route, np.int64))
        ids = np.arange(size.size) + self.count
        self.nbytes.append(size.reshape(-1))
        self.route.append(way.reshape(-1))
        self.delay.append(np.broadcast_to(np.asarray(delay, float), size.size))
        self.count += size.size
        return ids

    def order(self, before: Int64, after: Int64) -> None:
        """Each op of `after` waits for that of `before`."""
        self.edges.append(np.stack([before, after], axis=-1))


def lower(
    schedule: Schedule,
    topology: Topology,
    parameters: GlooParameters,
    links: ProcessLinks,
    copies: Copies,
    calls: int = 1,
    standing: Standing | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Program:
    """`calls` calls of a schedule one after the other; a rank begins the next when its own part of one has ended.

    A rank that stops before a call does so in its calling thread; its I/O thread goes on.
    """
    ranks, late_s = (None, None) if standing is None else (standing.ranks, standing.late_s)
    place = np.arange(topology.world_size) if ranks is None else ranks
    ptr, route_link, wire = _routes(schedule, topology, links, place)
    late = np.zeros(place.size) if late_s is None else late_s[place]
    ops = _Ops()
    end: Int64 | None = None
    for _ in range(calls):
        end = _call(ops, schedule, parameters, wire, copies, late, end, piece_bytes)
    return _program(ops, ptr, route_link, links)


def _routes(
    schedule: Schedule, topology: Topology, links: ProcessLinks, place: Int64
) -> tuple[Int64, npt.NDArray[np.int32], Int64]:
    """Routes in CSR form, and the number of that of each row: behind a rank's worker (its number) and I/O thread."""
    # Cores come first: behind a slower link they would be held for as long as it takes.
    ways = [
        [int(link) for link in (cores, own) if link >= 0]
        for kind in (links.worker, links.thread)
        for cores, own in zip(links.cores[place], kind[place], strict=True)
    ]
    pairs, pair = np.unique(schedule.src.astype(np.int64) * place.size + schedule.dst, return_inverse=True)
    first = len(ways)
    for src, dst in (divmod(int(ends), place.size) for ends in pairs):
        ways.append(topology.route(int(place[src]), int(place[dst])).tolist() if src != dst else [])
    ptr = np.concatenate([[0], np.cumsum([len(way) for way in ways])]).astype(np.int64)
    return ptr, np.array([link for way in ways for link in way], np.int32), first + pair


def _call(
    ops: _Ops,
    s: Schedule,
    p: GlooParameters,
    wire: Int64,
    copies: Copies,
    late: Float64,
    before: Int64 | None,
    piece_bytes: int,
) -> Int64:
    """The ops of one call; the last op of each rank."""
    rate = p.copy_rate
    rank = np.arange(s.world_size)
    copying = (rank == s.root) if copies.at_root else np.ones(s.world_size, bool)
    work = p.call * rate / 2 + copying * copies.before * (rate / p.memory_rate)
    start = ops.add(np.round(work), rank, late)
    if before is not None:
        ops.order(before, start)
    payload, src, dst = s.payload_bytes(), s.src.astype(np.int64), s.dst.astype(np.int64)
    moves = (payload > 0) & (src != dst)
    cost = np.where(moves, p.message * rate, 0.0)
    send = ops.add(np.round(cost), src)
    ops.order(start[src], send)
    ops.order(start[dst], send)  # data goes out when the receiver has said that it waits for it
    reduces = (s.op == Op.REDUCE) | (s.dst_buffer == Buffer.SCRATCH)
    added = np.where(reduces & moves, payload * (rate / p.reduce_rate), 0.0)
    sent, arrived = _pieces(ops, s, send, np.where(moves, payload, 0), wire, piece_bytes)
    received = ops.add(np.round(cost + added), dst, np.where(moves, p.wake, 0.0))
    ops.order(arrived, received)
    ptr, following = s.dependencies()
    ops.order(np.repeat(received, np.diff(ptr)), send[following])
    work = p.call * rate / 2 + copying * copies.after * (rate / p.memory_rate)
    end = ops.add(np.round(work), rank)
    ops.order(start, end)
    ops.order(received, end[dst])
    ops.order(sent, end[src])
    return end


def _pieces(ops: _Ops, s: Schedule, send: Int64, payload: Int64, wire: Int64, piece_bytes: int) -> tuple[Int64, Int64]:
    """The data of every row, piece after piece.

    The op with which the last byte of a row is in the sender's socket (all but SOCKET_BYTES have crossed the network),
    and the one with which it has been received.
    """
    count = np.minimum(-(-payload // piece_bytes), _most_pieces(piece_bytes))
    held = np.minimum(SOCKET_BYTES * count // np.maximum(payload, 1), count)  # whole pieces that wait in the socket
    sent, arrived = send.copy(), send.copy()
    left, before = payload.copy(), send.copy()
    for k in range(int(count.max(initial=0))):
        rows = np.flatnonzero(count > k)
        size = -(-left[rows] // (count[rows] - k))
        left[rows] -= size
        out = ops.add(size, s.world_size + s.src[rows])
        across = ops.add(size, wire[rows])
        into = ops.add(size, s.world_size + s.dst[rows])
        ops.order(before[rows], out)
        ops.order(out, across)
        ops.order(across, into)
        ops.order(arrived[rows], into)
        before[rows], arrived[rows] = out, into
        last = count[rows] - held[rows] - 1 == k
        sent[rows[last]] = across[last]
    return np.where(held < count, sent, before), arrived


def _program(ops: _Ops, ptr: Int64, link: npt.NDArray[np.int32], links: ProcessLinks) -> Program:
    edges = np.concatenate(ops.edges)
    order = np.argsort(edges[:, 0], kind="stable")
    succ = edges[order, 1]
    count = np.bincount(edges[:, 0], minlength=ops.count)
    return Program(
        nbytes=np.concatenate(ops.nbytes),
        route=np.concatenate(ops.route).astype(np.int32),
        delay_s=np.concatenate(ops.delay),
        succ_ptr=np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
        succ_idx=succ.astype(np.int32),
        route_ptr=ptr,
        route_link=link,
        link_bandwidth=links.bandwidth,
        link_latency=links.latency,
    )
