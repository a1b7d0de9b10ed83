"""Bandwidth between the two halves of a machine: what the GPUs of one can send to those of the other at once."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from commsim.topology.columns import TopologyColumns
from commsim.topology.flow import fills_nics, flow_between, halves_flow, inside, maximum_flow
from commsim.topology.kinds import Float64, LinkKind, PathType, VertexKind

if TYPE_CHECKING:
    from commsim.topology.tree import TreeRoutes, TreeShape

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
