"""Bandwidth between the two halves of a machine."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from commsim.topology.graph import LinkKind, PathType, VertexKind

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

_ENUMERATED_GPUS = 8  # 35 halvings of 8 GPUs; beyond, only the halving into first and second half is tried


def fabric_bisection(topology: Topology) -> float:
    """Maximum flow (bytes/s) from the first half of the nodes to the second; closed form for leaf and spine.

    NICs of both halves on one leaf talk through it and need no uplink; what is left over goes through the
    spines, bounded by the uplinks of the leaves on either side. A NIC gives no more than its PCIe links.
    """
    fabric = topology.fabric_routes
    assert fabric is not None  # several nodes always have a fabric
    nic = np.minimum(topology.link_bandwidth[fabric.port_up], nic_pcie_bandwidth(topology)[None, :])
    first = np.arange(topology.nodes) < topology.nodes // 2
    leaves = int(fabric.leaf.max()) + 1
    a = np.bincount(fabric.leaf[first].ravel(), weights=nic[first].ravel(), minlength=leaves)
    b = np.bincount(fabric.leaf[~first].ravel(), weights=nic[~first].ravel(), minlength=leaves)
    inside = np.minimum(a, b)
    if not fabric.up.shape[1]:
        return float(inside.sum())
    uplink = topology.link_bandwidth[fabric.up].sum(axis=1)
    spine = min(np.minimum(uplink, a - inside).sum(), np.minimum(uplink, b - inside).sum())
    return float(inside.sum() + spine)


def nic_pcie_bandwidth(topology: Topology) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Bytes/s that a node's own links carry to each of its NICs, (nics,)."""
    inside = topology.node_routes.links
    src, bandwidth = topology.link_src[:inside], topology.link_bandwidth[:inside]
    first_node = topology.vertex_node == 0
    nics = np.flatnonzero(first_node & (topology.vertex_kind == VertexKind.NIC))
    return np.array([bandwidth[src == v].sum() for v in nics])


def node_bisection(topology: Topology) -> float:
    """The worst halving of one node's GPUs: NVLink alone where it joins them all, else every link."""
    gpus = topology.ranks_per_node
    half = gpus // 2
    types = topology.node_routes.gpu_gpu_type
    if types.max() <= PathType.NVB:
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
