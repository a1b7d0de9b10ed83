"""Bandwidth between the two halves of a machine."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from commsim.topology.kinds import Float64, Int64, LinkKind, PathType, VertexKind
from commsim.topology.tree import Shape, TreeRoutes

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

_ENUMERATED_GPUS = 8  # 35 halvings of 8 GPUs; beyond, only the halving into first and second half is tried


def fabric_bisection(topology: Topology) -> float:
    """Maximum flow (bytes/s) from the NICs of the first half of the nodes to those of the second.

    Closed form for trees without faults: NICs of both halves on one leaf talk through it and need no uplink; what is
    left over goes through the spines, bounded by the uplinks of the leaves on either side; and so on through the
    cores. Else by augmenting paths. A NIC gives no more than its PCIe links; planes and rails that are not joined
    add up.
    """
    fabric = topology.fabric_routes
    assert fabric is not None  # several nodes always have a fabric
    first = np.arange(topology.nodes) < topology.nodes // 2
    here = fabric.port_up >= 0
    nic = np.where(here, np.minimum(topology.link_bandwidth[fabric.port_up], nic_pcie_bandwidth(topology)), 0.0)
    if topology.link_failed is not None:
        nic[~topology.usable_nics] = 0.0
    switches = len(topology.vertex_name) - int(topology.node_first_vertex[-1])
    leaf = np.where(here, fabric.leaf, 0)
    a, b = (
        np.bincount(leaf[half].ravel(), weights=nic[half].ravel(), minlength=switches).astype(np.float64)
        for half in (first, ~first)
    )
    if isinstance(fabric, TreeRoutes) and topology.link_failed is None and not fabric.uneven(topology.link_bandwidth):
        return _tree_flow(topology, fabric, a, b)
    return _switch_flow(topology, a, b)


def nic_pcie_bandwidth(topology: Topology) -> Float64:
    """Bytes/s that a node's own links carry to each of its NICs, (nodes, most NICs)."""
    out = np.zeros((topology.nodes, topology.most_nics))
    for i, group in enumerate(topology.groups):
        members = np.flatnonzero(topology.node_group == i)
        node = int(members[0])
        inside = slice(*topology.node_first_link[[node, node + 1]])
        vertices = slice(*topology.node_first_vertex[[node, node + 1]])
        src, bandwidth = topology.link_src[inside], topology.link_bandwidth[inside]
        if topology.link_failed is not None:
            bandwidth = np.where(topology.link_failed[inside], 0.0, bandwidth)
        nics = vertices.start + np.flatnonzero(topology.vertex_kind[vertices] == VertexKind.NIC)
        out[members, : group.nics_per_node] = [bandwidth[src == v].sum() for v in nics]
    return out


def _tree_flow(topology: Topology, fabric: TreeRoutes, a: Float64, b: Float64) -> float:
    """From sources `a` to sinks `b` at the leaves, level by level."""
    s, bandwidth = fabric.shape, topology.link_bandwidth
    a, b = a[: s.leaves], b[: s.leaves]
    inside = np.minimum(a, b)
    flow = float(inside.sum())
    if not s.spines:
        return flow
    leaf = np.arange(s.leaves)
    uplink = bandwidth[fabric.up].sum(axis=1)
    plane, pod = leaf % s.lanes % s.planes, leaf // s.lanes // s.groups_per_pod
    a, b = (_sum_at(plane, pod, np.minimum(uplink, x - inside), s) for x in (a, b))
    inside_pods = np.minimum(a, b)
    flow += float(inside_pods.sum())
    if s.pods == 1:
        return flow
    core = bandwidth[fabric.core_up].sum(axis=(2, 3))
    a, b = (np.minimum(core, x - inside_pods).sum(axis=0) for x in (a, b))
    return flow + float(np.minimum(a, b).sum())


def _sum_at(plane: Int64, pod: Int64, values: Float64, s: Shape) -> Float64:
    out = np.zeros((s.pods, s.planes))
    np.add.at(out, (pod, plane), values)
    return out


def _switch_flow(topology: Topology, a: Float64, b: Float64) -> float:
    """Maximum flow over the surviving links between switches; capacities in whole units for scipy."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    first = int(topology.node_first_vertex[-1])
    wires = topology.link_kind == LinkKind.FABRIC
    if topology.link_failed is not None:
        wires = wires & ~topology.link_failed
    switches = len(a)
    src = np.concatenate([topology.link_src[wires] - first, np.full(switches, switches), np.arange(switches)])
    dst = np.concatenate([topology.link_dst[wires] - first, np.arange(switches), np.full(switches, switches + 1)])
    capacity = np.concatenate([topology.link_bandwidth[wires], a, b])
    unit = _unit(capacity)
    whole = np.rint(capacity / unit).astype(np.int32)
    graph = coo_array((whole, (src, dst)), shape=(switches + 2, switches + 2)).tocsr()
    return float(maximum_flow(graph, switches, switches + 1).flow_value * unit)


def _unit(capacity: Float64) -> float:
    """Bytes/s per unit: one that divides all capacities where there is such, and keeps their sum within 31 bits."""
    whole = np.rint(capacity).astype(np.int64)
    common = int(np.gcd.reduce(whole[whole > 0], initial=0)) if (whole == capacity).all() else 1
    return max(float(max(common, 1)), float(capacity.sum()) / 2**30)


def node_bisection(topology: Topology) -> float:
    """The worst halving of one node's GPUs: NVLink alone where it joins them all, else every link."""
    gpus = topology.ranks_per_node
    half = gpus // 2
    types = topology.node_routes.gpu_gpu_type
    if types.max() <= PathType.NVB and topology.link_failed is None:
        direct = _direct(topology)
        through = _switch_ports(topology)
        return min(_nvlink_cut(direct, through, set(side)) for side in _halvings(gpus, half))
    return min(_flow(topology, set(side)) for side in _halvings(gpus, half))


def _halvings(gpus: int, half: int) -> list[tuple[int, ...]]:
    if gpus > _ENUMERATED_GPUS:
        return [tuple(range(half))]
    sides = combinations(range(gpus), half)
    return [side for side in sides if 2 * half != gpus or 0 in side]


def _nvlink_cut(direct: np.ndarray[tuple[int, int], np.dtype[np.float64]], ports: list[float], side: set[int]) -> float:
    other = [g for g in range(len(ports)) if g not in side]
    crossing = float(direct[np.ix_(sorted(side), other)].sum())
    return crossing + min(sum(ports[g] for g in side), sum(ports[g] for g in other))


def _direct(topology: Topology) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Bytes/s of the NVLinks that run directly between GPUs of node 0, (gpus, gpus)."""
    local = {int(v): i for i, v in enumerate(topology.rank_vertex[: topology.ranks_per_node])}
    out = np.zeros((len(local), len(local)))
    for i in np.flatnonzero(topology.link_kind[: topology.node_routes.links] == LinkKind.NVLINK):
        ends = int(topology.link_src[i]), int(topology.link_dst[i])
        if ends[0] in local and ends[1] in local:
            out[local[ends[0]], local[ends[1]]] += topology.link_bandwidth[i]
    return out


def _switch_ports(topology: Topology) -> list[float]:
    """Bytes/s from each GPU of node 0 to NVSwitches."""
    inside = topology.node_routes.links
    to_switch = topology.vertex_kind[topology.link_dst[:inside]] == VertexKind.NVSWITCH
    src, bandwidth = topology.link_src[:inside], topology.link_bandwidth[:inside]
    return [float(bandwidth[to_switch & (src == v)].sum()) for v in topology.rank_vertex[: topology.ranks_per_node]]


def _flow(topology: Topology, side: set[int]) -> float:
    """Maximum flow from the GPUs of `side` to the others of node 0, over all links of the node."""
    import networkx as nx

    graph = topology.to_networkx([0])
    for _, _, data in graph.edges(data=True):
        data["capacity"] = data["bandwidth"]
    for i, v in enumerate(topology.rank_vertex[: topology.ranks_per_node]):
        name = topology.vertex_name[v]
        edge = ("source", name) if i in side else (name, "sink")
        graph.add_edge(*edge, capacity=math.inf)
    return float(nx.maximum_flow_value(graph, "source", "sink"))
