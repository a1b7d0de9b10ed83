"""The network of some ranks of a topology: the links that work between their GPUs, through NICs and switches."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from commsim.bounds import wires
from commsim.errors import TopologyError
from commsim.synthesis.network import FlowNetwork, Vertices, Wires, joined
from commsim.synthesis.rates import exact
from commsim.topology.graph import Topology
from commsim.topology.kinds import Bool, Int64, LinkKind, VertexKind

_NVLS_SM = 90
"""NVSwitches of Hopper and later add and multicast (NCCL src/transport/nvls.cc: sm 90 on)."""


def machine_network(
    topology: Topology,
    ranks: Sequence[int] | None = None,
    *,
    in_network: bool = False,
    hosts_add: bool = False,
    at_wires: bool = False,
) -> FlowNetwork:
    """The network of these ranks, or of all, in their order.

    Of one node it has the links that routes between its ranks take (an NVSwitch node's PCIe is none of them); of
    several every link of their nodes and of the fabric. GPUs of the nodes that are none of the ranks pass bytes on.
    ``in_network``: NVSwitches that can, and switches of a fabric that does, copy and add; ``hosts_add``: so do hosts,
    as those of parameter servers. ``at_wires``: PCIe and what joins sockets as their wires carry, not as NCCL rates
    them. TopologyError names ranks that cannot reach each other.
    """
    t = topology
    own = np.arange(t.world_size) if ranks is None else np.asarray(ranks, np.int64)
    if own.size == 0 or own.min() < 0 or own.max() >= t.world_size or np.unique(own).size < own.size:
        raise TopologyError(f"{t.name}: expected different ranks within 0..{t.world_size - 1}, found {_few(own)}")
    nodes = np.unique(t.rank_node[own]).astype(np.int64)
    links = np.flatnonzero(_usable(t, nodes))
    ends = np.stack([t.link_src[links], t.link_dst[links]], axis=1).astype(np.int64)
    vertices, place = np.unique(np.concatenate([t.rank_vertex[own], ends.ravel()]), return_inverse=True)
    place = place.reshape(-1)
    bandwidth = wires(t, links) if at_wires else t.link_bandwidth[links]
    values, which = np.unique(bandwidth, return_inverse=True)
    distinct: list[Fraction] = [exact(float(value)) for value in values]
    kind = t.vertex_kind[vertices]
    acts = _acting(t, vertices, nodes) if in_network else np.zeros(vertices.size, bool)
    acts |= (kind == VertexKind.HOST) & hosts_add
    names = t.vertex_name
    joints = Vertices(
        tuple(names[v] for v in vertices.tolist()), kind, t.vertex_node[vertices].astype(np.int64), acts, acts
    )
    rates = [distinct[k] for k in which.reshape(-1).tolist()]
    direct = t.link_kind[links] == LinkKind.C2C
    wired = Wires(place[own.size :].reshape(-1, 2), rates, t.link_latency[links], links, direct)
    return joined(t.name, joints, wired, place[: own.size])


def adds_somewhere(topology: Topology) -> bool:
    """Whether any switch of a machine adds and copies."""
    nvls = [group.has_nvswitch and group.gpu.sm >= _NVLS_SM for group in topology.groups]
    return any(nvls) or (topology.in_network_reduction and topology.nodes > 1)


def _usable(t: Topology, nodes: Int64) -> Bool:
    """Links that may carry something between the ranks of some nodes, (L,)."""
    of = t.vertex_node[np.stack([t.link_src, t.link_dst])]
    inside = np.isin(of, nodes)
    if nodes.size == 1:
        return np.asarray(t.gpu_links & inside.all(axis=0) & t.works)
    within = (inside | (of < 0)).all(axis=0)
    return np.asarray(within & (t.gpu_links | (t.link_kind != LinkKind.NVLINK)) & t.works)


def _acting(t: Topology, vertices: Int64, nodes: Int64) -> Bool:
    """Which of some vertices copy and add what passes them."""
    kind, node = t.vertex_kind[vertices], t.vertex_node[vertices]
    able = np.array([t.groups[int(t.node_group[k])].gpu.sm >= _NVLS_SM for k in nodes.tolist()], bool)
    in_node = (kind == VertexKind.NVSWITCH) & np.isin(node, nodes[able])
    return np.asarray(in_node | ((kind == VertexKind.SWITCH) & t.in_network_reduction))


def _few(ranks: Int64) -> str:
    return ", ".join(map(str, ranks[:6].tolist())) + (" ..." if ranks.size > 6 else "")
