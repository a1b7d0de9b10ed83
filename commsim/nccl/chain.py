"""Broadcast and reduce: a pipelined chain of ranks, the ring that NCCL cuts open at the root (src/device/broadcast.h).

A chunk of 512 KiB (Simple) or a warp's line (LL, LL128) follows another down the chain. In back-to-back runs the calls
follow each other too, so that the fill is paid once and no GPU waits for a hop: what it takes in is there when a call
begins. A GPU alone in its node shows the hop of its NIC in every call. A call that somebody waits for pays all.

Channels that visit the GPUs in different orders hold each other back: a GPU begins a call when all its channels have
ended the one before, so one that is early in one order and late in another waits, and all behind it in the early one
wait for it. Between nodes each call then takes half of the chain (validation/evidence.md, "Broadcast and reduce").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

import numpy as np
import numpy.typing as npt

from commsim.nccl.channels import Call
from commsim.nccl.communicator import Comm
from commsim.nccl.lower import Float64, shares
from commsim.nccl.machine import known, nic_rates
from commsim.nccl.messages import message_turn, network_hop
from commsim.nccl.nodes import Kind, Nodes
from commsim.nccl.protocols import MIN_SLICE_BYTES, STEPS, WARP

_CALLS = 24
"""Calls in a row after the half of which the time from one to the next is taken as that of all."""


@dataclass(frozen=True)
class _Flow:
    """One channel of a chain in seconds: to the next rank inside and between nodes, and of its bytes."""

    hop: float  # of each call in a row: that of the NIC, without bytes, where a node has one GPU
    inside: float  # until the first piece of data is one rank further in the node
    across: float  # the same to the next node
    handed: float  # until a thread block has handed a piece on
    piece: float  # of the first piece over the slowest hop, as it is part of the way there
    transfer: float  # of all bytes there
    held: float  # of those that a connection's slots hold
    limit: str
    messages: int = 1  # of all bytes: what lies in a slot is late together


def shown_time(nodes: Nodes, call: Call, in_a_row: float | None, *, one_process: bool) -> tuple[float, float, str]:
    """`chain_time` as a program sees it of so many calls in a row (None: it waits for each), the first of which fills.

    Of a process per GPU half of the chain shows, the mean over ranks (nccl-tests -a 1); a process that drives a node
    waits for its last rank.
    """
    if in_a_row is None:
        return chain_time(nodes, call, fill=True)
    kernel, busy, limit = chain_time(nodes, call, fill=False)
    if in_a_row < inf:
        count = nodes.system.nodes
        shown = (count + 1) / (2 * count) if one_process else 0.5
        kernel += shown * (chain_time(nodes, call, fill=True)[0] - kernel) / in_a_row
    return kernel, busy, limit


def chain_time(nodes: Nodes, call: Call, *, fill: bool) -> tuple[float, float, str]:
    """Seconds of one channel of a chain, the bandwidth part of them, and what limits its rate.

    With `fill` the last rank's wait for the first chunk counts; without it the time is that from one call to the next
    in a row of many.
    """
    flow, chains, way = _laid(nodes, call)
    if fill:
        return float(way[:, -1].max()) + flow.transfer - flow.piece, flow.transfer, flow.limit
    return max(flow.transfer + flow.hop, _period(chains, way, flow)), flow.transfer, flow.limit


def _laid(nodes: Nodes, call: Call) -> tuple[_Flow, npt.NDArray[np.int64], Float64]:
    """The flow of the slowest hop, ranks of each chain, and when a first piece comes to each of them."""
    hops = nodes.hops(call.split.channels)
    inside, between = ([_flow(kind, call) for kind in kinds] for kinds in (nodes.kinds, hops.kinds))
    # All bytes go over every hop, at the pace of the slowest.
    flow = max(between if nodes.count > 1 else inside, key=lambda one: one.transfer)
    flow = replace(flow, handed=max(one.handed for one in inside))
    in_node, to_next = np.array([one.inside for one in inside]), np.array([one.across for one in between])
    return flow, *_ways(nodes, call, in_node[nodes.comm.kind], to_next[hops.of])


@dataclass(frozen=True, eq=False)
class ChainSteps:
    """A chain piece by piece: ranks of each order, when a first piece comes to each of them, both (orders, ranks); its
    pieces, the slots between two ranks, and the seconds of all bytes over the slowest hop."""

    chains: npt.NDArray[np.int64]
    way: Float64
    pieces: int
    slots: int
    transfer_s: float


def chain_steps(nodes: Nodes, call: Call) -> ChainSteps:
    """The pieces of one channel of a chain, as `chain_time` has them."""
    flow, chains, way = _laid(nodes, call)
    size = flow.transfer / flow.messages
    return ChainSteps(chains, way, flow.messages, max(2, round(flow.held / size)) if size else 2, flow.transfer)


def _flow(kind: Kind, call: Call) -> _Flow:
    system, machine, parameters = kind.system, kind.machine, kind.parameters
    protocol, nbytes = call.protocol, call.split.channel_bytes
    share = shares(system, machine, parameters, call)
    hop = parameters.hop_inside(parameters.ring_hop, machine.intra_kind, protocol.name)
    unit = max(MIN_SLICE_BYTES, protocol.step_bytes) if protocol.is_simple else protocol.pass_bytes(WARP)
    piece = min(unit, nbytes)
    messages = max(1, -(-nbytes // protocol.step_bytes))
    block = parameters.block_rate.of(protocol.name)
    if protocol.name == "LL":
        block = parameters.ll_rate(call.split.threads)
    slowest, limit = (block, "thread block") if block < share.intra else (share.intra, share.intra_limit)
    handed = first = piece / slowest
    inside, across, alone = hop + handed, 0.0, 0.0
    if system.nodes > 1:
        message = min(protocol.step_bytes, max(1, nbytes))
        late = network_hop(parameters.network, parameters.network.ring_hop, protocol, message)
        turn = message / message_turn(machine, parameters, call).seconds(message)
        inter = min(share.inter, block, turn)
        # The proxy sends a slot when it is full; slots of several channels pass a NIC one by one.
        line = min(turn, *(one / protocol.wire_factor for _, one, _ in nic_rates(machine, parameters)))
        late += handed if protocol.is_simple else (message - piece) / line
        across = late + piece / line
        alone = late if system.ranks_per_node == 1 else 0.0
        if inter <= slowest:
            slowest, limit = inter, limit if inter == block else share.inter_limit
            first = min(piece / line, nbytes / slowest)
    slots = call.buffer_bytes if protocol.is_simple else STEPS * protocol.step_bytes
    return _Flow(alone, inside, across, handed, first, nbytes / slowest, min(nbytes, slots) / slowest, limit, messages)


def _ways(
    nodes: Nodes, call: Call, inside: Float64, across: Float64
) -> tuple[npt.NDArray[np.int64], Float64]:  # fmt: skip
    """Ranks of the chain of each order that the call's channels have, and when a first piece comes to each of them.

    `inside` and `across` are the seconds of its hops within each node, and from each to the next, (nodes,).
    """
    laid = tuple(
        kind.system.ring.orders if known(kind.system.ring, n := kind.system.ranks_per_node) else (tuple(range(n)),)
        for kind in nodes.kinds
    )
    channels = range(call.split.channels)
    used = tuple(dict.fromkeys(tuple(orders[c % len(orders)] for orders in laid) for c in channels))
    chains, node, crosses = _chains(nodes.comm, used, call.collective == "reduce")
    before = np.roll(node, 1, axis=1)
    step = np.where(crosses, across[before], inside[node])
    step[:, 0] = 0.0
    return chains, np.cumsum(step, axis=1)


def _period(chains: npt.NDArray[np.int64], way: npt.NDArray[np.float64], flow: _Flow) -> float:
    """Seconds from one call to the next where channels visit the GPUs in different orders; 0 where they do not.

    A rank's first piece comes a hop after that of the rank before, once both have begun the call; its last one when the
    others have come, a hop after that of the rank before. It has handed that one on a little later, and, of more bytes
    than the slots between them hold, when the rank behind it has taken the others. It begins the next call when all its
    channels have ended this one.
    """
    if len(chains) < 2:
        return 0.0
    begun = np.zeros(chains.shape[1])
    ended = [0.0]
    for _ in range(_CALLS):
        first = np.maximum.accumulate(begun[chains] - way, axis=1) + way
        last = first + flow.transfer - flow.piece
        if flow.held < flow.transfer:
            full = first[:, 1:] + flow.transfer - flow.held - flow.piece
            np.maximum(last[:, :-1], full, out=last[:, :-1])
        last = np.maximum.accumulate(last - way, axis=1) + way
        last[:, :-1] += flow.handed
        np.maximum.at(begun, chains, last)
        ended.append(float(begun.max()))
    return (ended[_CALLS] - ended[_CALLS // 2]) / (_CALLS - _CALLS // 2)


@lru_cache(maxsize=8)
def _chains(
    comm: Comm, orders: tuple[tuple[tuple[int, ...], ...], ...], to_root: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Ranks of the chain of each order, the place of their nodes, and whether a rank is reached from another node.

    All (orders, ranks). `orders` are those of each kind of node. Rank 0 is the root: first of a broadcast, last of a
    reduce.
    """
    rings = np.empty((len(orders), comm.ranks), np.int64)
    place, kind = np.arange(comm.ranks) - comm.first_rank[comm.node_of], comm.kind[comm.node_of]
    for ring, of_kinds in zip(rings, orders, strict=True):
        for k, order in enumerate(of_kinds):
            here = kind == k
            ring[here] = comm.first_rank[comm.node_of[here]] + np.asarray(order)[place[here]]
    start = np.argmax(rings == 0, axis=1) + to_root
    chains = np.take_along_axis(rings, (start[:, None] + np.arange(rings.shape[1])) % rings.shape[1], axis=1)
    node = comm.node_of[chains]
    return chains, node, np.diff(node, axis=1, prepend=node[:, :1]) != 0
