"""From NCCL's choice to what one channel does: loops, slices, hops and rates.

Channels of a call are alike, so one stands for all: it gets its share of every link. A ring channel becomes a
`RingPlan` (regular enough for a closed form or a wavefront, and convertible to an explicit Schedule); a tree becomes
the explicit Schedule of one pair of trees. The terms and their sources:

* A channel runs loops of N chunks, cut into slices, and a last smaller loop (src/device/all_reduce.h, prims_simple.h).
* A slice costs the protocol's latency at every hop. A thread block or a link moves it at its rate.
* What the last step of a loop of Simple brings a block puts to its place, and sends nothing meanwhile.
* LL and LL128 put flags inside the data, so that a receiver works while a chunk arrives. All warps of a block finish
  together what they hold at once.
* Simple pauses at every slice: its block waits for its peers' counters, meets at a barrier and fences its stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, inf

import numpy as np
import numpy.typing as npt

from commsim.nccl.channels import Call
from commsim.nccl.machine import Machine, inside_name, nic_rates, node_rate
from commsim.nccl.messages import MESSAGES, Crossing, Turn, message_wait, ring_turn
from commsim.nccl.nodes import Kind, Nodes
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import MIN_SLICE_BYTES, RING_CHUNK_STEPS, RING_SLICE_STEPS, WARP, Protocol, step_bytes
from commsim.nccl.system import System

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
OfRank = Float64 | float

_BESIDE = ("PIX", "PXB", "P2C")
"""Paths from a GPU to a NIC that touch no other GPU and no other half of the host."""

MAX_SLICES = 8
"""Finest cut of an LL or LL128 chunk that is simulated: a step takes at most 1/8 of its chunk longer than its hop."""


@dataclass(frozen=True)
class Loop:
    """`count` equal rounds of a ring: every rank's chunk is `slices` slices of `slice_bytes`."""

    count: int
    slices: int
    slice_bytes: int


@dataclass(frozen=True)
class Shares:
    """What one channel gets of the machine: payload bytes/s inside and between nodes, and what limits them."""

    intra: float
    inter: float
    intra_limit: str
    inter_limit: str


@dataclass(frozen=True, eq=False)
class RingPlan:
    """One ring channel of a collective: `steps` sends per rank and loop; `rate` and `hop_s` of each hop, (ranks,).

    What may differ from rank to rank is one figure for all, or one for each, (ranks,).
    """

    collective: str
    ranks: int
    steps: int
    loops: tuple[Loop, ...]
    rate: Float64
    hop_s: Float64
    pass_bytes: int  # of a whole thread block
    first_pass_s: OfRank
    limit: str
    slice_s: OfRank = 0.0  # for which the thread block is held by a slice beside its bytes
    chunk_s: OfRank = 0.0  # the same by a chunk, whatever its slices
    side_by_side: int = 0  # LL, LL128: bytes that the warps of a block handle at once, so that they are ready together
    pass_share: OfRank = 1.0  # of the time of such a pass, until when it is all written
    whole_passes: bool = False  # LL: a block takes as long for a last pass of a chunk as for a full one
    crossing: Crossing | None = None
    block_rate: OfRank = inf  # at which a thread block copies, whatever the links carry
    drain_s: OfRank = 0.0  # until what a rank's block reads last, in a full pass, is back
    keep_rate: OfRank = inf  # at which each rank puts what a loop brings last to its place
    staging_rate: float = inf  # at which a rank puts what it begins a loop with where its neighbour reads it

    def keep_of(self, loop: Loop) -> Float64:
        """Seconds in which each rank puts a slice of the last step to its place and sends nothing, (ranks,)."""
        return np.broadcast_to(loop.slice_bytes / np.asarray(self.keep_rate), self.ranks)

    def staging_of(self, loop: Loop) -> float:
        """Seconds that a slice of a loop's first step takes more than others."""
        return loop.slice_bytes / self.staging_rate

    def hop_of(self, loop: Loop) -> Float64:
        """Seconds of a slice of a loop over each hop beside its service, (ranks,).

        A full pass of a block has more stores to fence. A slice of LL or LL128 inside a node waits for those that the
        block's warps handle beside it, between nodes for its whole chunk. One of Simple waits until it is written.
        """
        # A pause follows its chunk: it holds the block, but no slice on its way.
        hop = np.maximum(0.0, self.hop_s - self.chunk_s / loop.slices)
        hop = hop + self.first_pass_s * min(1.0, loop.slice_bytes / self.pass_bytes)
        chunk = loop.slices * loop.slice_bytes
        together = self.pass_share * max(0, min(self.side_by_side, chunk) - loop.slice_bytes) / self.rate
        if self.crossing is None:
            return np.asarray(hop + together)
        messages = self.crossing.messages_of(loop.slices)
        late = self.crossing.wait.seconds(loop.slices * loop.slice_bytes / messages)
        fill = (loop.slices / messages - 1) * self.service_of(loop)
        if not self.crossing.whole:
            fill = np.broadcast_to(loop.slice_bytes / np.asarray(self.block_rate), self.ranks)
        return np.asarray(hop + np.where(self.crossing.at, late + fill, together))

    def bytes_of(self, loop: Loop) -> Float64:
        """Seconds for which a slice holds each hop by its bytes, of several passes of LL by whole ones, (ranks,)."""
        link, chunk = loop.slice_bytes / self.rate, loop.slices * loop.slice_bytes
        if not self.whole_passes or chunk <= self.side_by_side:
            return link
        passes = ceil(chunk / self.side_by_side) / loop.slices
        return np.maximum(link, passes * self.side_by_side / self.block_rate)

    def service_of(self, loop: Loop) -> Float64:
        """Seconds for which a slice holds each hop, by its bytes and hand-over or by its message, (ranks,)."""
        full = min(1.0, loop.slice_bytes / self.pass_bytes)
        service = self.bytes_of(loop) + self.slice_s + self.drain_s * full + self.chunk_s / loop.slices
        if self.crossing is None:
            return service
        messages = self.crossing.messages_of(loop.slices)
        least = self.crossing.turn_s(loop.slices * loop.slice_bytes / messages) * messages / loop.slices
        return np.where(self.crossing.at, np.maximum(service, least), service)


_ELEMENTWISE = {"reduce_scatter": 0.24, "all_gather": 0.43}
"""Share of a block's rate where buffers are not aligned alike to the 16 bytes that a thread of Simple moves at once: it
then moves single elements of 4 bytes (src/device/common_kernel.h, reduceCopy; measured on 12 V100 of a DGX-2)."""


def shares(system: System, machine: Machine, parameters: Parameters, call: Call, part: float = 0.0) -> Shares:
    """The rates of one channel: its thread block's, or its part of the links that all channels in use share.

    `part` of the chunks are moved element by element (`misaligned`).
    """
    protocol, used = call.protocol, call.split.channels
    block = parameters.block_rate.of(protocol.name)
    slow = block * _ELEMENTWISE.get(call.collective, 1.0) if part else block

    def through(link: float, kind: str) -> tuple[float, str]:
        rate = 1 / ((1 - part) / min(block, link) + part / min(slow, link))
        return rate, kind if link < slow else "thread block"

    intra, intra_limit = through(inf, "thread block")
    if system.ranks_per_node > 1:
        wires = _ring_share(system, machine, used) * parameters.efficiency.inside(machine.intra_kind, protocol)
        link = wires / protocol.wire_factor
        intra, intra_limit = through(link, inside_name(machine))
    inter, inter_limit = through(inf, "thread block")
    if system.nodes > 1:
        rates = nic_rates(machine, parameters)
        link, kind = min((min(one, together / used), kind) for kind, one, together in rates)
        inter, inter_limit = through(link / protocol.wire_factor, kind)
    return Shares(intra, inter, intra_limit, inter_limit)


def misaligned(call: Call, ranks: int) -> float:
    """Part of the chunks of Simple that count as moved element by element, between 0 and 1.

    The part of rank k begins after k parts, which need not be on 16 bytes. An all_gather goes at the pace of those that
    are not. nccl-tests rounds parts to whole packs of 4 elements (old builds do not), so that only sizes of real calls
    (`Call.exact`) count.
    """
    if not (call.exact and call.protocol.is_simple and call.collective in _ELEMENTWISE) or call.nbytes % ranks:
        return 0.0
    pack = call.protocol.thread_bytes
    on_packs = gcd(call.nbytes // ranks, pack) / pack
    return float(on_packs < 1) if call.collective == "all_gather" else 1 - on_packs


def _ring_share(system: System, machine: Machine, channels: int) -> float:
    """Nominal bytes/s of the links inside a node that one of so many channels of a ring gets."""
    if machine.ring_ways is not None:
        return machine.ring_ways.rate(channels)
    # A GPU hands on the channels that do not leave the node from it: where each has a NIC, from all of them in turn.
    beside = system.nodes > 1 and system.ring.inter_type in _BESIDE and machine.nics >= system.ranks_per_node
    passing = channels - channels // system.ranks_per_node if beside else channels
    return machine.intra_bandwidth / passing


def tree_share(system: System, machine: Machine, parameters: Parameters, call: Call, pieces: int) -> float:
    """Bytes/s on the wires of a mesh that one channel of trees gets at each hop, of so many pieces.

    All channels at the same hop meet on a link as often as the orders say, all hops of all channels more often: as the
    links are then busy with what the NICs and the blocks let through, so often does a piece find them. Of a few pieces
    no more hops of a chain are busy at once than there are pieces. Where the orders are not known, chains are taken to
    load all links alike.
    """
    channels, hops = call.split.channels, 2 * (system.ranks_per_node - 1)  # up and down
    if machine.tree_ways is not None:
        one, every = machine.tree_ways.hop_rate(channels), machine.tree_ways.rate(channels)
    else:
        one = machine.intra_bandwidth / channels
        every = one * system.ranks_per_node / hops
    efficiency = parameters.efficiency.inside(machine.intra_kind, call.protocol)
    one, every = one * efficiency, min(one, every * hops / min(hops, pieces)) * efficiency
    busy = min(1.0, _tree_flow(system, machine, parameters, call) / every)
    return 1 / ((1 - busy) / one + busy / every)


def _tree_flow(system: System, machine: Machine, parameters: Parameters, call: Call) -> float:
    """Bytes/s on the wires that a channel of trees has at most, by its block and by the NICs of its node."""
    block = parameters.block_rate.of(call.protocol.name) * call.protocol.wire_factor
    if system.nodes == 1:
        return block
    # Between two nodes all goes over once; of more, a node within both trees sends up one and down the other.
    times = 1 if system.nodes == 2 else 2
    return min(block, node_rate(machine, parameters)[0] / (times * call.split.channels))


def ring_loops(nbytes: int, ranks: int, protocol: Protocol, threads: int, buffer_bytes: int) -> tuple[Loop, ...]:
    """The loops that `nbytes` of one channel take over a ring of `ranks`."""
    if nbytes == 0 or ranks < 2:
        return ()
    step = step_bytes(protocol, buffer_bytes)
    chunk = step * RING_CHUNK_STEPS if protocol.is_simple else step
    count, rest = divmod(nbytes, ranks * chunk)
    loops = []
    if count:
        loops.append(_loop(count, chunk, protocol, threads))
    if rest:
        loops.append(_loop(1, ceil(rest / ranks / 16) * 16, protocol, threads))
    return tuple(loops)


def _loop(count: int, chunk: int, protocol: Protocol, threads: int) -> Loop:
    if protocol.is_simple:
        slice_bytes = max(ceil(chunk / (RING_CHUNK_STEPS // RING_SLICE_STEPS)), MIN_SLICE_BYTES)
    else:
        slice_bytes = max(protocol.pass_bytes(WARP), ceil(chunk / MAX_SLICES))
    slices = max(1, ceil(chunk / slice_bytes))
    return Loop(count, slices, ceil(chunk / slices))


def lower_ring(nodes: Nodes, call: Call) -> RingPlan:
    """The plan of the fullest channel of a ring all_reduce, all_gather or reduce_scatter."""
    comm, protocol, n = nodes.comm, call.protocol, nodes.system.ranks
    part = misaligned(call, n)
    node, last = comm.node_of, comm.last
    across = last & (nodes.count > 1)
    between = nodes.hops(call.split.channels)
    kinds = (*nodes.kinds, *between.kinds)
    # Which of them each rank sends by.
    of = np.where(across, len(nodes.kinds) + between.of[node], comm.kind[node])
    every = [shares(kind.system, kind.machine, kind.parameters, call, part) for kind in kinds]

    def each(inside: Callable[[Kind], float], outside: Callable[[Kind], float] | None = None) -> Float64:
        """A figure of each rank's hop."""
        few = [inside(kind) for kind in nodes.kinds] + [(outside or inside)(kind) for kind in between.kinds]
        return np.array(few, np.float64)[of]

    rates = [s.intra for s in every[: len(nodes.kinds)]] + [s.inter for s in every[len(nodes.kinds) :]]
    name, simple = protocol.name, protocol.is_simple
    pause = each(lambda kind: kind.parameters.pause.of(name))
    block = each(lambda kind: kind.parameters.block_rate.of(name))
    plan = RingPlan(
        collective=call.collective,
        ranks=n,
        steps=2 * (n - 1) if call.collective == "all_reduce" else n - 1,
        loops=ring_loops(call.split.channel_bytes, n, protocol, call.split.threads, call.buffer_bytes),
        rate=np.array(rates)[of],
        hop_s=each(
            lambda kind: kind.parameters.hop_inside(kind.parameters.ring_hop, kind.machine.intra_kind, name),
            lambda kind: kind.parameters.network.ring_hop.of(name),
        ),
        pass_bytes=protocol.pass_bytes(protocol.max_threads),
        first_pass_s=each(lambda kind: kind.parameters.first_pass if simple else 0.0),
        limit=_limit(nodes, every, of),
        slice_s=pause if simple else 0.0,
        chunk_s=0.0 if simple else pause,
        side_by_side=0 if simple else protocol.pass_bytes(call.split.threads),
        pass_share=each(lambda kind: kind.parameters.pass_share),
        whole_passes=name == "LL",
        crossing=_crossing(between.kinds, call, np.where(across, between.of[node], -1)) if nodes.count > 1 else None,
        block_rate=block,
        drain_s=each(lambda kind: kind.parameters.drain if simple and _reads(kind.system) else 0.0, lambda kind: 0.0),
        # What a network brings lies in a buffer, whatever the protocol. Inside a node its copy was measured with
        # Simple; between nodes the NICs set the pace, and it does not show.
        keep_rate=np.where(np.roll(across, 1), block, _keep_rate(nodes, call)),
        staging_rate=min(_staging_rate(kind.system, kind.parameters, call) for kind in nodes.kinds),
    )
    return replace(plan, limit=MESSAGES) if _by_messages(plan) else plan


def _limit(nodes: Nodes, every: Sequence[Shares], of: npt.NDArray[np.integer]) -> str:
    """What limits the slowest hop; the network where one between nodes is as slow as any in a node."""
    used = [(int(i) >= len(nodes.kinds), every[int(i)]) for i in np.unique(of)]
    inside = min((s for between, s in used if not between), key=lambda s: s.intra, default=None)
    outside = min((s for between, s in used if between), key=lambda s: s.inter, default=None)
    if outside is not None and (inside is None or outside.inter <= inside.intra):
        return outside.inter_limit
    assert inside is not None  # a ring has hops
    return inside.intra_limit


def _crossing(between: Sequence[Kind], call: Call, of: Int64) -> Crossing:
    """What the hops of a ring between nodes have as such; `of` says which of them each rank sends over, -1: none."""
    turns = tuple(ring_turn(kind.system, kind.machine, kind.parameters, call) for kind in between)
    wait = message_wait(between[0].parameters.network, call.protocol)
    return Crossing(of >= 0, turns, of, not call.protocol.is_simple, wait)


def _by_messages(plan: RingPlan) -> bool:
    """Whether most bytes wait for the turns of the messages between nodes, longer than they take over any hop."""
    if plan.crossing is None or not plan.loops:
        return False
    loop = max(plan.loops, key=lambda one: one.count * one.slices * one.slice_bytes)
    free = replace(plan, crossing=replace(plan.crossing, turns=(Turn(0.0, 0.0, 0.0),) * len(plan.crossing.turns)))
    return bool(plan.service_of(loop).max() > free.service_of(loop).max())


def _reads(system: System) -> bool:
    """Whether GPUs read from each other: those of sm 80 over NVLink (src/graph/paths.cc, ncclTopoCheckP2p)."""
    return system.sm == 80 and system.intra_type == "NVL"


def _keep_rate(nodes: Nodes, call: Call) -> float:
    """Bytes/s at which a rank puts what a loop brings last to its place where it comes from its own node."""
    inside = nodes.kinds[0].parameters.keep_rate
    return inside if inside and call.protocol.is_simple and nodes.count == 1 else inf


def _staging_rate(system: System, parameters: Parameters, call: Call) -> float:
    """Bytes/s of what a rank begins a loop of Simple with; infinite where it goes to its neighbour at once.

    Where GPUs read from each other a rank first writes into a buffer of its own; an all_gather that is not in place
    writes to its result beside it. Between nodes the NICs set the pace, and it does not show.
    """
    rate = parameters.staging_rate
    if rate is None or not _reads(system) or system.nodes > 1 or not call.protocol.is_simple:
        return inf
    return rate / (2 if call.collective == "all_gather" else 1)
