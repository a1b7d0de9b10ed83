"""Faults of a topology: what cannot work whatever is run on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from commsim.topology.graph import LinkKind, PathType, Topology, VertexKind
from commsim.topology.kinds import Int32


def check(topology: Topology) -> list[str]:
    """Faults of a topology, one sentence each; empty when it is sound.

    What `load_topology` builds has none unless the description itself is odd (a NIC slower than nothing, a
    link that nothing uses is no fault); arrays put together by hand are what this is for.
    """
    t, faults = topology, []
    vertices, links = len(t.vertex_name), len(t.link_src)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "link_dst": t.link_dst,
        "link_bandwidth": t.link_bandwidth,
        "link_latency": t.link_latency,
        "link_failed": t.works,
    }
    faults += [f"{n} has {len(c)} rows, link_src {links}" for n, c in columns.items() if len(c) != links]
    ranks = int(t.node_first_rank[-1])
    if len(t.vertex_kind) != vertices or len(t.vertex_node) != vertices or len(t.rank_vertex) != ranks:
        faults.append("the vertex columns and rank_vertex do not have one row per vertex and rank")
    ends = np.concatenate([t.link_src, t.link_dst])
    if links and (ends.min() < 0 or ends.max() >= vertices):
        faults.append(f"a link ends at a vertex outside 0..{vertices - 1}")
    if faults:
        return faults
    bad_bandwidth = ~(np.isfinite(t.link_bandwidth) & (t.link_bandwidth > 0))
    bad_latency = ~(np.isfinite(t.link_latency) & (t.link_latency >= 0))
    faults += [f"{_name(t, i)} has bandwidth {t.link_bandwidth[i]:g}" for i in np.flatnonzero(bad_bandwidth)]
    faults += [f"{_name(t, i)} has latency {t.link_latency[i]:g}" for i in np.flatnonzero(bad_latency)]
    for rank in np.flatnonzero(t.vertex_kind[t.rank_vertex] != VertexKind.GPU).tolist():
        faults.append(f"rank {rank} is not on a GPU but on {t.vertex_name[t.rank_vertex[rank]]}")
    return faults + _nic_faults(t) + _island_faults(t)


def _name(t: Topology, link: np.signedinteger[Any]) -> str:
    return f"the link {t.link_name(int(link))}"


def _nic_faults(t: Topology) -> list[str]:
    pcie = np.zeros(len(t.vertex_name), dtype=bool)
    pcie[t.link_src[np.isin(t.link_kind, [LinkKind.PCIE, LinkKind.C2C])]] = True
    nics = np.flatnonzero(t.vertex_kind == VertexKind.NIC).tolist()
    faults = [f"{t.vertex_name[v]} has no PCIe path" for v in nics if not pcie[v]]
    port = np.zeros(len(t.vertex_name), dtype=bool)
    port[t.link_src[t.link_kind == LinkKind.NETWORK]] = True
    if t.nodes > 1:
        faults += [f"{t.vertex_name[v]} is not cabled to a switch" for v in nics if not port[v]]
    if t.link_failed is None and any((g.node_routes.gpu_nic_type >= PathType.NET).any() for g in t.groups):
        faults.append("a GPU has no path to a NIC of its node")
    return faults


def _island_faults(t: Topology) -> list[str]:
    island = islands(len(t.vertex_name), t.link_src[t.works], t.link_dst[t.works])[t.rank_vertex]
    cut = np.flatnonzero(island != island[0])
    return [f"rank {cut[0]} (and {len(cut) - 1} more) cannot be reached from rank 0"] if len(cut) else []


def islands(vertices: int, src: Int32, dst: Int32) -> Int32:
    """The number of the island that each vertex is on, (vertices,), where links join vertices, (links,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(src), dtype=np.int8), (src, dst)), shape=(vertices, vertices))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int32)
