"""Lower bounds: what no schedule on a topology can beat.

They follow from what parts of the machine must at least send and receive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from commsim.collectives.semantics import DIVIDED, RING_PASSES, ROOTED, TO_ROOT
from commsim.errors import ScheduleError
from commsim.topology.graph import LinkKind, Topology

Float64 = npt.NDArray[np.float64]

_WIRE = {LinkKind.PCIE: 16 * 128 / 130 / 12, LinkKind.HOST: 6.75}
"""Bytes that the wires of a link carry per byte that a topology states of it, where that is NCCL's rating of what GPUs
reach (src/graph/topo.h). PCIe: 16 lanes of 8 GT/s less the 130-bit framing for 12 GB/s, later generations alike.
Between sockets at most: QPI and UPI carry 4.5 to 6.5 times what NCCL counts; xGMI is rated nearer to its wires."""

_WIRE_OF_ARM = 75.0
"""The same between Arm hosts, of which NCCL counts 6 GB/s whatever they are (ARM_BW): two Graces at most 450 GB/s one
way (NVIDIA Grace CPU Superchip data sheet, NVLink-C2C 900 GB/s both ways)."""


@dataclass(frozen=True)
class LowerBound:
    """Seconds below which a collective cannot end, by cause; ``seconds`` is the largest.

    ``latency_s``: the way to the farthest rank. ``bandwidth_s``: what a GPU's ports or a node's NICs must carry;
    ``bandwidth_at`` says which of the two. ``bisection_s``: what must cross between the halves of the machine.
    """

    latency_s: float
    bandwidth_s: float
    bisection_s: float
    bandwidth_at: str

    @property
    def seconds(self) -> float:
        """The largest of the three."""
        return max(self.latency_s, self.bandwidth_s, self.bisection_s)


@dataclass(frozen=True, eq=False)
class NetworkLimits:
    """What a topology can carry: bytes/s out of and into every GPU, (world_size,), and every node, (nodes,)."""

    rank_out: Float64
    rank_in: Float64
    node_out: Float64
    node_in: Float64
    bisection: float


@dataclass(frozen=True, eq=False)
class _Need:
    """Bytes that parts of a machine must move at least; ``root`` is the part that holds the root.

    ``send`` and ``receive`` (parts,): of every part but the root's; ``root_send`` and ``root_receive`` (parts,): of a
    part if it is the root's; ``total``: sent by all parts together when no switch reduces or multicasts.
    """

    send: Float64
    receive: Float64
    root_send: Float64
    root_receive: Float64
    total: float


def _needs(ranks: Float64, S: float) -> dict[str, _Need]:
    """What parts of so many ranks must move for each collective of S bytes (the nccl-tests size)."""
    every, none = np.full(ranks.size, S), np.zeros(ranks.size)
    own = S * (ranks / ranks.sum())
    away = S * ranks * (1 - ranks / ranks.sum())  # of an all_to_all, where each rank sends S to all
    passed, divided = (ranks.size - 1) * S, S - float(own.max())
    return {
        # Patarasuk & Yuan 2009, lemma 1: without reduction in switches (n-1) S must arrive for the sums, and as much
        # again to spread them. Chan et al. 2007, section 3. With it every part still sends and receives S once.
        "all_reduce": _Need(every, every, every, every, 2 * passed),
        "all_gather": _Need(own, S - own, own, S - own, passed),
        "reduce_scatter": _Need(S - own, own, S - own, own, passed),
        "broadcast": _Need(none, every, every, none, passed),
        "reduce": _Need(every, none, none, every, passed),
        "gather": _Need(own, none, none, S - own, divided),
        "scatter": _Need(none, own, S - own, none, divided),
        "all_to_all": _Need(away, away, away, away, float(away.sum())),
        "send_recv": _Need(
            every, every, every, every, ranks.size * S
        ),  # of a node only its last rank sends to the next
        "barrier": _Need(none, none, none, none, 0),
    }


def lower_bound_s(
    collective: str,
    nbytes: int,
    topology: Topology,
    *,
    in_network: bool = False,
    root: int = 0,
    ranks: Sequence[int] | None = None,
) -> LowerBound:
    """The time that no schedule of the collective can beat on the topology's links.

    ``nbytes`` is the nccl-tests size. Bandwidth: Chan et al., "Collective communication: theory, practice, and
    experience", 2007, section 3, and for all_reduce Patarasuk & Yuan 2009: each of n parts with ports of B bytes/s
    each way takes 2(n-1)/n S/B, where the parts are GPUs, or nodes with all their NICs. ``in_network`` allows
    switches to reduce and to multicast (NVLS, SHARP): then S/B. Latency: the sum of latencies on the quickest way
    from one rank to its farthest peer; the usual log2(N) alpha holds only if a rank sends one message at a time,
    which neither links nor GPUs are bound to. For all_to_all_v, whose ``nbytes`` all ranks send together, the counts
    are taken to be equal; a barrier has a latency only. ``ranks``: those that take part, in their order, which ``root``
    counts; what crosses between halves of the machine is left out of a part of them.

    ScheduleError for an unknown collective.
    """
    own = np.arange(topology.world_size) if ranks is None else np.asarray(ranks, np.int64)
    n, whole = own.size, own.size == topology.world_size
    if collective == "all_to_all_v":
        collective, nbytes = "all_to_all", nbytes // n
    needs = _needs(np.ones(n), nbytes)
    if collective not in needs:
        raise ScheduleError(f"unknown collective {collective!r}, expected one of {', '.join(sorted(needs))}")
    if n == 1:
        return LowerBound(0.0, 0.0, 0.0, "GPU ports")
    limits = network_limits(topology)
    slowest = partial(_slowest, in_network=in_network)
    places = [("GPU ports", slowest(needs[collective], root, limits.rank_out[own], limits.rank_in[own]))]
    on_node = np.bincount(topology.rank_node[own], minlength=topology.nodes)
    nodes = np.flatnonzero(on_node)
    if nodes.size > 1:
        need = _needs(on_node[nodes].astype(np.float64), nbytes)[collective]
        of_root = int(np.searchsorted(nodes, topology.rank_node[own[root]]))
        places.append(("node NICs", slowest(need, of_root, limits.node_out[nodes], limits.node_in[nodes])))
    where, bandwidth_s = max(places, key=lambda place: place[1])
    return LowerBound(
        latency_s=_latency_s(topology, collective, root, own),
        bandwidth_s=bandwidth_s,
        bisection_s=crossing_bytes(collective, topology, nbytes) / limits.bisection if whole else 0.0,
        bandwidth_at=where,
    )


def _slowest(need: _Need, root: int, out: Float64, into: Float64, *, in_network: bool) -> float:
    send, receive = need.send.copy(), need.receive.copy()
    send[root], receive[root] = need.root_send[root], need.root_receive[root]
    each = max(float((send / out).max()), float((receive / into).max()))
    return each if in_network else max(each, need.total / float(min(out.sum(), into.sum())))


def crossing_bytes(collective: str, topology: Topology, nbytes: int) -> float:
    """Bytes that must cross between the halves of `Topology.bisection_bandwidth` in the busier direction."""
    n = topology.world_size
    if collective == "barrier":
        return 0.0
    first = int(topology.node_first_rank[topology.nodes // 2]) if topology.nodes > 1 else n // 2
    small = min(first, n - first)
    if collective in RING_PASSES:
        return nbytes * (n - small) / n
    if collective in ROOTED & DIVIDED:
        return nbytes * small / n  # the root may be in either half
    if collective == "all_to_all":
        return nbytes * small * (n - small) / n
    return float(nbytes)


# A memory of a pure function, by identity of the topology: one run asks for tens of sizes on one topology.
@lru_cache(maxsize=4)
def network_limits(topology: Topology) -> NetworkLimits:
    """What every GPU and node can send and receive at most, over the links that routes between ranks can use."""
    topology = _wires(topology)
    usable = _usable(topology)
    rank_of = np.full(len(topology.vertex_name), -1)
    rank_of[topology.rank_vertex] = np.arange(topology.world_size)
    capacity = np.where(usable, topology.link_bandwidth, 0.0)
    node_out, node_in = (_node_capacity(topology, outward) for outward in (True, False))
    return NetworkLimits(
        rank_out=_sum_by(rank_of[topology.link_src], capacity, topology.world_size),
        rank_in=_sum_by(rank_of[topology.link_dst], capacity, topology.world_size),
        node_out=node_out,
        node_in=node_in,
        bisection=topology.bisection_bandwidth(),
    )


def _wires(topology: Topology) -> Topology:
    """The topology with links of the host at what their wires carry; those of processes without a GPU are no PCIe."""
    if any(group.gpu.generation == "cpu" for group in topology.groups):
        return topology
    factor = np.ones(topology.link_kind.size)
    for kind, wire in _WIRE.items():
        factor[topology.link_kind == kind] = wire
    if any(group.cpu.arch == "arm64" for group in topology.groups):
        factor[topology.link_kind == LinkKind.HOST] = _WIRE_OF_ARM
    return replace(topology, link_bandwidth=topology.link_bandwidth * factor)


def _sum_by(group: npt.NDArray[np.integer], value: Float64, groups: int) -> Float64:
    chosen = group >= 0
    return np.asarray(np.bincount(group[chosen], value[chosen], groups), np.float64)


def _usable(topology: Topology) -> npt.NDArray[np.bool_]:
    """Links that count: those of routes within a node, and what may lead to a NIC when there are several nodes.

    A GPU of an NVSwitch node has a PCIe port as well, which no route to another GPU of its node takes.
    """
    usable = topology.gpu_links.copy()
    if topology.nodes > 1:
        usable |= topology.link_kind != LinkKind.NVLINK
    return usable if topology.link_failed is None else usable & ~topology.link_failed


def _node_capacity(topology: Topology, outward: bool) -> Float64:
    """Bytes/s between every node and the fabric; a NIC gives no more than the links of its node to it."""
    near, far = (topology.link_src, topology.link_dst) if outward else (topology.link_dst, topology.link_src)
    node, vertices = topology.vertex_node, len(topology.vertex_name)
    up = np.ones(near.size, bool) if topology.link_failed is None else ~topology.link_failed
    crosses = np.flatnonzero((node[near] != node[far]) & up)
    crosses = crosses[node[near[crosses]] >= 0]
    at_port = np.bincount(near[crosses], topology.link_bandwidth[crosses], vertices)
    # For an outward port, traffic arrives over links whose far end (here: their head) is the NIC.
    feeds = np.flatnonzero((at_port > 0)[far] & up)
    feeds = feeds[node[near[feeds]] == node[far[feeds]]]
    feeding = np.bincount(far[feeds], topology.link_bandwidth[feeds], vertices)
    return _sum_by(node.astype(np.int64), np.minimum(at_port, feeding), topology.nodes)


def _latency_s(topology: Topology, collective: str, root: int, ranks: npt.NDArray[np.integer]) -> float:
    """Shortest way by latency from one rank to the farthest (send_recv: to its neighbour), over any links."""
    to_root = collective in TO_ROOT
    tail, head = (topology.link_dst, topology.link_src) if to_root else (topology.link_src, topology.link_dst)
    start = root if collective in ROOTED else 0
    distance = np.full(len(topology.vertex_name), math.inf)
    distance[topology.rank_vertex[ranks[start]]] = 0.0
    latency = topology.link_latency
    if topology.link_failed is not None:
        latency = np.where(topology.link_failed, math.inf, latency)
    nearer = np.isfinite(distance)
    while nearer.any():  # Bellman-Ford: as many rounds as the longest quickest way has links
        links = np.flatnonzero(nearer[tail])
        shorter = distance.copy()
        np.minimum.at(shorter, head[links], distance[tail[links]] + latency[links])
        nearer, distance = shorter < distance, shorter
    reached = distance[topology.rank_vertex[ranks]]
    return float(reached[(start + 1) % ranks.size] if collective == "send_recv" else reached.max())
