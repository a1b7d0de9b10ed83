"""Bandwidth between the two halves of a machine: what the GPUs of one can send to those of the other at once.

Where no closed form holds it is a maximum flow: how many bytes/s vertices can send to others over all links at once.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.topology.columns import TopologyColumns
from commsim.topology.kinds import Bool, Float64, Int64, LinkKind, PathType, VertexKind

if TYPE_CHECKING:
    from commsim.topology.tree import TreeRoutes, TreeShape

Ends = npt.NDArray[np.integer]

_MOST_UNITS = np.iinfo(np.int32).max // 2 + 1  # scipy counts in int32
_NOTHING = 1e-12  # of the flow: what rounding leaves
_SMALL = 256  # vertices of links; below, scipy takes longer to import than the flow to find
_ENUMERATED_GPUS = 8  # 35 halvings of 8 GPUs; beyond, only the halving into first and second half is tried


def fabric_bisection(topology: TopologyColumns) -> float:
    """Maximum flow (bytes/s) from the GPUs of the first half of the nodes to those of the second.

    Where the GPUs of each node can fill all its NICs at once, what the NICs carry decides: a NIC no more than its PCIe
    links; planes and rails that are not joined add up. That has a closed form for trees: NICs of both halves on one
    leaf talk through it and need no uplink; what is left over goes through the spines, bounded by the uplinks of the
    leaves on either side; and so on through the cores. Elsewhere, and with faults, it is found by augmenting paths.
    """
    from commsim.topology.tree import TreeRoutes

    fabric = topology.fabric
    if topology.link_failed is not None:
        return halves_flow(topology)
    here = fabric.port_up >= 0
    nic = np.where(here, np.minimum(topology.link_bandwidth[fabric.port_up], nic_pcie_bandwidth(topology)), 0.0)
    if not fills_nics(topology, nic):
        return halves_flow(topology)
    first = np.arange(topology.nodes) < topology.nodes // 2
    switches = len(topology.vertex_name) - int(topology.node_first_vertex[-1])
    leaf = np.where(here, fabric.leaf, 0)
    a, b = (
        np.bincount(leaf[half].ravel(), weights=nic[half].ravel(), minlength=switches).astype(np.float64)
        for half in (first, ~first)
    )
    if isinstance(fabric, TreeRoutes) and not fabric.uneven(topology.link_bandwidth):
        return _tree_flow(topology, fabric, a, b)
    return _switch_flow(topology, a, b)


def nic_pcie_bandwidth(topology: TopologyColumns) -> Float64:
    """Bytes/s that a node's own links carry to each of its NICs, (nodes, most NICs)."""
    out = np.zeros((topology.nodes, topology.most_nics))
    for i, group in enumerate(topology.groups):
        members = np.flatnonzero(topology.node_group == i)
        node = int(members[0])
        inside = slice(*topology.node_first_link[[node, node + 1]])
        vertices = slice(*topology.node_first_vertex[[node, node + 1]])
        src, bandwidth = topology.link_src[inside], topology.link_bandwidth[inside]
        nics = vertices.start + np.flatnonzero(topology.vertex_kind[vertices] == VertexKind.NIC)
        out[members, : group.nics_per_node] = [bandwidth[src == v].sum() for v in nics]
    return out


def _tree_flow(topology: TopologyColumns, fabric: TreeRoutes, a: Float64, b: Float64) -> float:
    """From sources `a` to sinks `b` at the leaves, level by level."""
    s, bandwidth = fabric.shape, topology.link_bandwidth
    a, b = a[: s.leaves], b[: s.leaves]
    inside = np.minimum(a, b)
    flow = float(inside.sum())
    if not s.spines:
        return flow
    uplink = bandwidth[fabric.up].sum(axis=1)
    a, b = (_sum_at_spines(np.minimum(uplink, x - inside), s) for x in (a, b))
    inside_pods = np.minimum(a, b)
    flow += float(inside_pods.sum())
    if s.pods == 1:
        return flow
    core = bandwidth[fabric.core_up].sum(axis=(2, 3))
    a, b = (np.minimum(core, x - inside_pods).sum(axis=0) for x in (a, b))
    return flow + float(np.minimum(a, b).sum())


def _sum_at_spines(values: Float64, s: TreeShape) -> Float64:
    """Sums of the values of leaves by pod and plane."""
    out = np.zeros((s.pods, s.planes))
    np.add.at(out, s.place(np.arange(s.leaves)), values)
    return out


def _switch_flow(topology: TopologyColumns, a: Float64, b: Float64) -> float:
    """From sources `a` to sinks `b` at the switches, over the links between them."""
    first = int(topology.node_first_vertex[-1])
    wires = topology.link_kind == LinkKind.FABRIC
    ends = (topology.link_src[wires] - first, topology.link_dst[wires] - first)
    return maximum_flow(*ends, topology.link_bandwidth[wires], a, b)


def node_bisection(topology: TopologyColumns) -> float:
    """The worst halving of one node's GPUs, beyond 8 that into first and second half.

    Over NVLink alone where it joins them all, else over every link.
    """
    gpus = topology.ranks_per_node
    nvlink = topology.node_routes.gpu_gpu_type.max() <= PathType.NVB
    return min(_flow(topology, set(side), nvlink) for side in _halvings(gpus, gpus // 2))


def _halvings(gpus: int, half: int) -> list[tuple[int, ...]]:
    if gpus > _ENUMERATED_GPUS:
        return [tuple(range(half))]
    sides = combinations(range(gpus), half)
    return [side for side in sides if 2 * half != gpus or 0 in side]


def _flow(topology: TopologyColumns, side: set[int], nvlink: bool) -> float:
    """Maximum flow from the GPUs of `side` to the others of node 0, over its NVLinks or over all its links."""
    src, dst, capacity = inside(topology, 0, LinkKind.NVLINK if nvlink else None)
    mine, other = np.zeros((2, topology.node_first_vertex[1]), bool)
    for i, v in enumerate(topology.rank_vertex[: topology.ranks_per_node]):
        (mine if i in side else other)[v] = True
    return flow_between(src, dst, capacity, mine, other)


# -- flows ---------------------------------


def maximum_flow(src: Ends, dst: Ends, capacity: Float64, give: Float64, take: Float64) -> float:
    """Bytes/s that go at most from vertices that `give` to those that `take` as many, (vertices,), over directed links.

    In large graphs exact where a number of bytes/s divides all capacities; else they are rounded to a billionth of
    what is given.
    """
    most = min(float(give.sum()), float(take.sum()))
    if most <= 0:
        return 0.0
    met = (give > 0) | (take > 0)  # the others are no part of the graph, often most
    met[src] = met[dst] = True
    place, give, take = np.cumsum(met) - 1, give[met], take[met]
    src, dst, count = place[src], place[dst], give.size
    givers, takers = np.flatnonzero(give), np.flatnonzero(take)
    src = np.concatenate([src, np.full(givers.size, count), takers])
    dst = np.concatenate([dst, givers, np.full(takers.size, count + 1)])
    values = np.concatenate([capacity, give[givers], take[takers]])
    return (_augment if count < _SMALL else _in_units)(src, dst, values, count, most)


def _augment(src: Ends, dst: Ends, capacity: Float64, source: int, most: float) -> float:
    """Along shortest paths with room, as long as there are any (Edmonds and Karp 1972); the sink is the last vertex."""
    sink = source + 1
    room: list[dict[int, float]] = [{} for _ in range(sink + 1)]
    for a, b, c in zip(src.tolist(), dst.tolist(), capacity.tolist(), strict=True):
        room[a][b] = room[a].get(b, 0.0) + c
        room[b].setdefault(a, 0.0)
    flow = 0.0
    while True:
        before = {source: source}
        for v in (queue := [source]):  # grows while it is read
            new = [w for w, free in room[v].items() if free > most * _NOTHING and w not in before]
            before |= dict.fromkeys(new, v)
            queue += new
        if sink not in before:
            return flow
        path = [sink]
        while path[-1] != source:
            path.append(before[path[-1]])
        more = min(room[v][w] for w, v in pairwise(path))
        for w, v in pairwise(path):
            room[v][w] -= more
            room[w][v] += more
        flow += more


def _in_units(src: Ends, dst: Ends, capacity: Float64, source: int, most: float) -> float:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow as whole_flow

    graph = coo_array((capacity, (src, dst)), shape=(source + 2, source + 2)).tocsr()  # adds up links of the same ends
    limited = np.minimum(graph.data, most)
    unit = _unit(limited, most)
    graph.data = np.rint(limited / unit).astype(np.int32)
    return float(whole_flow(graph, source, source + 1).flow_value) * unit


def _unit(capacity: Float64, most: float) -> float:
    """Bytes/s per unit: one that divides all capacities where there is such, and keeps the flow within 30 bits."""
    least = most / _MOST_UNITS
    whole = np.rint(capacity).astype(np.int64)
    if (whole != capacity).any():
        return least
    return max(float(np.gcd.reduce(whole[whole > 0], initial=0)), least)


def flow_between(src: Ends, dst: Ends, capacity: Float64, givers: Bool, takers: Bool) -> float:
    """Bytes/s that go at most from some vertices to others, (vertices,), each as much as its own links carry."""
    give = np.where(givers, np.bincount(src, capacity, givers.size), 0.0)
    take = np.where(takers, np.bincount(dst, capacity, takers.size), 0.0)
    return maximum_flow(src, dst, capacity, give, take)


def fills_nics(topology: TopologyColumns, nic: Float64) -> bool:
    """Whether the GPUs of every node can send through, and receive from, all its NICs at once at `nic` bytes/s each.

    Without faults; `nic` is (nodes, most NICs).
    """
    for i, group in enumerate(topology.groups):
        members = np.flatnonzero(topology.node_group == i)
        wanted = nic[members, : group.nics_per_node].max(axis=0)
        src, dst, capacity = inside(topology, int(members[0]))
        base = int(topology.node_first_vertex[members[0]])
        kind = topology.vertex_kind[base : base + group.vertices]
        at_nics = np.zeros(group.vertices)
        at_nics[kind == VertexKind.NIC] = wanted
        gpus = kind == VertexKind.GPU
        sent = np.where(gpus, np.bincount(src - base, capacity, group.vertices), 0.0)
        received = np.where(gpus, np.bincount(dst - base, capacity, group.vertices), 0.0)
        out = maximum_flow(src - base, dst - base, capacity, sent, at_nics)
        into = maximum_flow(src - base, dst - base, capacity, at_nics, received)
        if not np.isclose(min(out, into), wanted.sum(), rtol=1e-6):
            return False
    return True


def inside(topology: TopologyColumns, node: int, kind: LinkKind | None = None) -> tuple[Int64, Int64, Float64]:
    """Ends and bytes/s of the links within a node that work, of one kind or of all."""
    links = np.arange(*topology.node_first_link[[node, node + 1]])
    links = links[topology.works[links]]
    if kind is not None:
        links = links[topology.link_kind[links] == kind]
    src, dst = (ends[links].astype(np.int64) for ends in (topology.link_src, topology.link_dst))
    return src, dst, topology.link_bandwidth[links]


def halves_flow(topology: TopologyColumns) -> float:
    """Bytes/s from the GPUs of the first half of the nodes to those of the second, over every link that works.

    Nodes of one half that are alike, with NICs on the same switches, share what they can do, so k of them are one node
    with k times the bandwidth: a flow spread evenly over them is one of theirs.
    """
    kept, count = _alike(topology)
    times = np.zeros(topology.nodes)
    times[kept] = count
    many = np.ones(topology.link_src.size)
    ends = topology.vertex_node[np.stack([topology.link_src, topology.link_dst])].max(axis=0)  # -1 in the fabric
    many[ends >= 0] = times[ends[ends >= 0]]
    used = np.flatnonzero(topology.works & (many > 0))
    src, dst = topology.link_src[used].astype(np.int64), topology.link_dst[used].astype(np.int64)
    capacity = topology.link_bandwidth[used] * many[used]
    gpus, first = topology.vertex_kind == VertexKind.GPU, topology.vertex_node < topology.nodes // 2
    return flow_between(src, dst, capacity, gpus & first, gpus & ~first)


def _alike(topology: TopologyColumns) -> tuple[Int64, Int64]:
    """One node of each sort, and how many there are of it."""
    fabric, works = topology.fabric, topology.works
    here = fabric.port_up >= 0
    rate = [
        np.where(here & works[port], topology.link_bandwidth[port], 0.0) for port in (fabric.port_up, fabric.port_down)
    ]
    number = np.arange(topology.nodes)
    own = topology.vertex_node[topology.link_src[~works]]
    hurt = np.isin(number, own[own == topology.vertex_node[topology.link_dst[~works]]])
    sort = np.column_stack(
        [
            number >= topology.nodes // 2,
            topology.node_group,
            np.where(here, fabric.leaf, -1),
            *rate,
            np.where(hurt, number, -1),  # a node with a fault of its own is like no other
        ]
    )
    _, kept, count = np.unique(sort, axis=0, return_index=True, return_counts=True)
    return kept, count
