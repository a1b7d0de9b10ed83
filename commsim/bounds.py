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
from commsim.topology.graph import LinkKind, Topology, VertexKind

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

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
        latency_s=latency_s(topology, collective, own, root),
        bandwidth_s=bandwidth_s,
        bisection_s=crossing_bytes(collective, topology, nbytes) / limits.bisection if whole else 0.0,
        bandwidth_at=where,
    )


def nic_seconds(
    collective: str, nbytes: int, topology: Topology, ranks: npt.NDArray[np.integer], root: int = 0
) -> tuple[Float64, Float64]:
    """Seconds that the NICs of each node must send and receive at least for a collective of some ranks, (nodes,) each.

    As of `lower_bound_s` where switches add and copy; 0 of nodes that hold none or all of the ranks.
    """
    on_node = np.bincount(topology.rank_node[ranks], minlength=topology.nodes)
    nodes = np.flatnonzero(on_node)
    out, into = np.zeros(topology.nodes), np.zeros(topology.nodes)
    if nodes.size > 1:
        limits, of_root = network_limits(topology), int(np.searchsorted(nodes, topology.rank_node[ranks[root]]))
        need = _needs(on_node[nodes].astype(np.float64), nbytes)[collective]
        send, receive = _of_parts(need, of_root)
        out[nodes], into[nodes] = send / limits.node_out[nodes], receive / limits.node_in[nodes]
    return out, into


def _of_parts(need: _Need, root: int) -> tuple[Float64, Float64]:
    """Bytes that each part sends and receives at least, the root's among them."""
    send, receive = need.send.copy(), need.receive.copy()
    send[root], receive[root] = need.root_send[root], need.root_receive[root]
    return send, receive


def _slowest(need: _Need, root: int, out: Float64, into: Float64, *, in_network: bool) -> float:
    send, receive = _of_parts(need, root)
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
    t = topology
    if t.link_share is None and t.link_failed is None:  # the nodes of a group are alike: one of each stands for all
        _, nodes, group = np.unique(t.node_group, return_index=True, return_inverse=True)
    else:
        nodes = group = np.arange(t.nodes)
    part = _links_of(t, nodes)
    usable, node_of = _usable(t, part), t.vertex_node.astype(np.int64)
    capacity = wires(t, part)
    of_gpu = np.where(usable, capacity, 0.0)
    rank_of = np.full(len(t.vertex_name), -1)
    rank_of[t.rank_vertex] = np.arange(t.world_size)
    place = t.node_first_rank[nodes][group]
    like = (
        place[t.rank_node] + np.arange(t.world_size) - t.node_first_rank[t.rank_node]
    )  # the rank that stands for each
    rank_out, rank_in = (_sum_by(rank_of[ends[part]], of_gpu, t.world_size)[like] for ends in (t.link_src, t.link_dst))
    node_out, node_in = (_node_capacity(t, part, capacity, node_of, outward)[nodes][group] for outward in (True, False))
    return NetworkLimits(rank_out, rank_in, node_out, node_in, bisection=_wired(t).bisection_bandwidth())


def _links_of(t: Topology, nodes: Int64) -> Int64:
    """The links inside some nodes, and those of their NICs to the fabric."""
    if nodes.size == t.nodes:
        return np.arange(len(t.link_src))
    inside = [np.arange(*t.node_first_link[[node, node + 1]].tolist()) for node in nodes.tolist()]
    if t.fabric_routes is None:
        return np.concatenate(inside)
    ports = np.stack([t.fabric.port_up[nodes], t.fabric.port_down[nodes]]).ravel()
    return np.concatenate([*inside, ports[ports >= 0]]).astype(np.int64)


def wires(t: Topology, part: Int64) -> Float64:
    """Bytes/s of some links, those of the host at what their wires carry; of processes without a GPU none is PCIe."""
    bandwidth, kinds = t.link_bandwidth[part], t.link_kind[part]
    if any(group.gpu.generation == "cpu" for group in t.groups):
        return bandwidth
    arm = any(group.cpu.arch == "arm64" for group in t.groups)
    for kind, wire in _WIRE.items():
        bandwidth[kinds == kind] *= _WIRE_OF_ARM if arm and kind == LinkKind.HOST else wire
    return bandwidth


def _wired(t: Topology) -> Topology:
    """The topology with the links of the host at what their wires carry."""
    return replace(t, link_bandwidth=wires(t, np.arange(len(t.link_src))))


def _sum_by(group: npt.NDArray[np.integer], value: Float64, groups: int) -> Float64:
    chosen = group >= 0
    return np.asarray(np.bincount(group[chosen], value[chosen], groups), np.float64)


def _usable(t: Topology, part: Int64) -> npt.NDArray[np.bool_]:
    """Which of some links count: those of routes within a node, and what may lead to a NIC of several nodes.

    A GPU of an NVSwitch node has a PCIe port as well, which no route to another GPU of its node takes.
    """
    usable = t.gpu_links[part]
    if t.nodes > 1:
        usable |= t.link_kind[part] != LinkKind.NVLINK
    return usable if t.link_failed is None else usable & ~t.link_failed[part]


def _node_capacity(t: Topology, part: Int64, bandwidth: Float64, node: Int64, outward: bool) -> Float64:
    """Bytes/s between nodes and the fabric by some links, (nodes,); a NIC gives no more than the links of its node."""
    at_port, feeding = _at_nics(t, part, bandwidth, node, outward)
    return _sum_by(node, np.minimum(at_port, feeding), t.nodes)


def has_starved_nic(t: Topology) -> bool:
    """Whether a NIC's port carries more than the link of its host: such a NIC may have a second way that is not listed.

    DGX Spark has two, of which NCCL used one at first and both later (validation/measured, dgxspark_gb10_n2x1): then
    what is listed is no bound.
    """
    part = np.arange(len(t.link_src))
    at_port, feeding = _at_nics(t, part, wires(t, part), t.vertex_node.astype(np.int64), outward=True)
    return bool(((feeding > 0) & (at_port > feeding)).any())


def _at_nics(t: Topology, part: Int64, bandwidth: Float64, node: Int64, outward: bool) -> tuple[Float64, Float64]:
    """Bytes/s of the ports of every vertex to the fabric, and of the links of its node that feed it, (vertices,)."""
    ends = (t.link_src[part], t.link_dst[part])
    near, far = ends if outward else ends[::-1]
    up, vertices = np.ones(part.size, bool) if t.link_failed is None else ~t.link_failed[part], len(t.vertex_name)
    crosses = np.flatnonzero((node[near] != node[far]) & up)
    crosses = crosses[node[near[crosses]] >= 0]
    at_port = np.bincount(near[crosses], bandwidth[crosses], vertices)
    # For an outward port, traffic arrives over links whose far end (here: their head) is the NIC.
    feeds = np.flatnonzero((at_port > 0)[far] & up)
    feeds = feeds[node[near[feeds]] == node[far[feeds]]]
    feeding = np.bincount(far[feeds], bandwidth[feeds], vertices)
    return np.asarray(at_port, np.float64), np.asarray(feeding, np.float64)


def latency_s(topology: Topology, collective: str, ranks: npt.NDArray[np.integer], root: int = 0) -> float:
    """Shortest way by latency from one of some ranks to the farthest (send_recv: to its neighbour), over any links."""
    start = root if collective in ROOTED else 0
    reached = _way_s(topology, int(ranks[start]), collective in TO_ROOT)[ranks]
    return float(reached[(start + 1) % ranks.size] if collective == "send_recv" else reached.max())


@lru_cache(maxsize=8)
def _way_s(t: Topology, start: int, to_start: bool) -> Float64:
    """Seconds of latencies on the quickest way from a rank to every other, or from these to it, (world_size,)."""
    ends = (t.link_dst, t.link_src) if to_start else (t.link_src, t.link_dst)
    distance = np.full(len(t.vertex_name), math.inf)
    distance[t.rank_vertex[start]] = 0.0
    if t.nodes == 1 or t.link_share is not None or t.link_failed is not None:
        latency = t.link_latency if t.link_failed is None else np.where(t.link_failed, math.inf, t.link_latency)
        return _quickest(distance, *ends, latency)[t.rank_vertex]
    # No way between healthy nodes is quicker through a third. So it leaves the node, passes the fabric, and enters.
    node = int(t.rank_node[start])
    for links in (slice(*t.node_first_link[[node, node + 1]].tolist()), slice(int(t.node_first_link[-1]), None)):
        distance = _quickest(distance, ends[0][links], ends[1][links], t.link_latency[links])
    out = distance[t.rank_vertex]
    for i in range(len(t.groups)):
        members = np.flatnonzero(t.node_group == i)
        nics, inside = _from_nics(t, int(members[0]), *ends)
        at_nics = distance[t.node_first_vertex[members][:, None] + nics]
        ranks = t.node_first_rank[members][:, None] + np.arange(inside.shape[1])
        through = np.min([at_nics[:, [k]] + inside[k] for k in range(nics.size)], axis=0)
        out[ranks] = np.minimum(out[ranks], through)
    return out


def _from_nics(
    t: Topology, node: int, tail: npt.NDArray[np.integer], head: npt.NDArray[np.integer]
) -> tuple[Int64, Float64]:
    """The NICs of a node, as places among its vertices, and the seconds from each to its ranks, (NICs, ranks)."""
    vertices, links = (slice(*first[[node, node + 1]].tolist()) for first in (t.node_first_vertex, t.node_first_link))
    nics = np.flatnonzero(t.vertex_kind[vertices] == VertexKind.NIC)
    own = t.rank_vertex[slice(*t.node_first_rank[[node, node + 1]].tolist())] - vertices.start
    ends = tail[links] - vertices.start, head[links] - vertices.start
    out = np.full((nics.size, vertices.stop - vertices.start), math.inf)
    out[np.arange(nics.size), nics] = 0.0
    return nics, np.array([_quickest(one, *ends, t.link_latency[links]) for one in out])[:, own]


def _quickest(
    distance: Float64, tail: npt.NDArray[np.integer], head: npt.NDArray[np.integer], latency: Float64
) -> Float64:
    """The distances where links lead on from what is reached (Bellman-Ford: a round for each link of a way)."""
    nearer = np.isfinite(distance)
    while nearer.any():
        links = np.flatnonzero(nearer[tail])
        shorter = distance.copy()
        np.minimum.at(shorter, head[links], distance[tail[links]] + latency[links])
        nearer, distance = shorter < distance, shorter
    return distance
