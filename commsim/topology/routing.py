"""Routes between any two ranks: node tables and fabric paths put together, as NumPy arithmetic on thousands of pairs.

Between nodes a message leaves through a NIC of its node and enters through the NIC of the same index: the one
nearest to the source GPU, or, where rails are kept, nearest to the destination GPU, so that the rail is changed
inside the source node. Where that way has failed, the next NIC that works at both ends is taken, with the next of
the equal paths between their switches; then any two NICs; then any path of surviving links (`detour`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.errors import TopologyError
from commsim.topology.columns import TopologyColumns
from commsim.topology.fabric_routes import Flowlet
from commsim.topology.kinds import Bool, Int32, Int64, RouteTable

if TYPE_CHECKING:
    from commsim.topology.node_routes import NodeRoutes


def route_table(
    topology: TopologyColumns,
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    nic: npt.ArrayLike | None = None,
    flowlet: npt.ArrayLike = 0,
) -> RouteTable:
    """The deduplicated routes of the pairs (src[k], dst[k]); see `Topology.routes`."""
    a, b = np.broadcast_arrays(np.asarray(src, dtype=np.int64).ravel(), np.asarray(dst, dtype=np.int64).ravel())
    world = topology.world_size
    if a.size and (min(a.min(), b.min()) < 0 or max(a.max(), b.max()) >= world):
        raise TopologyError(f"{topology.name}: found a rank outside 0..{world - 1}")
    rail = _rails(topology, a, b, nic)
    same_node = topology.rank_node[a] == topology.rank_node[b]
    key = (a * world + b) * (topology.most_nics + 1) + np.where(same_node, 0, rail)
    drawn = np.broadcast_to(np.asarray(flowlet, np.int64), a.shape)
    if drawn.any():
        key = np.unique(np.stack([key, np.where(same_node, 0, drawn)]), axis=1, return_inverse=True)[1].reshape(-1)
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    links = _links(topology, a[first], b[first], rail[first], same_node[first], drawn[first])
    used = links >= 0
    ptr = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int64)
    return RouteTable(ptr, links[used], index.reshape(-1).astype(np.int32))


def _local(topology: TopologyColumns, rank: Int64) -> Int64:
    return np.asarray(rank - topology.node_first_rank[topology.rank_node[rank]])


def _looked_up(
    topology: TopologyColumns, node: Int64, table: Callable[[NodeRoutes], Int32], *index: Int64
) -> npt.NDArray[np.int32]:
    """Rows ``table(routes of the node)[index]``, padded with -1 where tables of different nodes differ in width."""
    tables = [table(g.node_routes) for g in topology.groups]
    if len(tables) == 1:
        return np.asarray(tables[0][index])
    group = topology.node_group[node]
    width = () if tables[0].ndim == len(index) else (max(t.shape[-1] for t in tables),)
    out = np.full((len(node), *width), -1, dtype=np.int32)
    for i, rows in enumerate(tables):
        k = np.flatnonzero(group == i)
        values = rows[tuple(x[k] for x in index)]
        if width:
            out[k, : rows.shape[-1]] = values
        else:
            out[k] = values
    return out


def _rails(topology: TopologyColumns, src: Int64, dst: Int64, nic: npt.ArrayLike | None) -> Int64:
    """The NIC index at which each pair leaves its node."""
    at = dst if topology.keeps_rails else src
    node = topology.rank_node[at].astype(np.int64)
    nearest = _looked_up(topology, node, lambda r: r.nearest_nic, _local(topology, at)).astype(np.int64)
    if topology.keeps_rails and not topology.uniform:
        nearest %= np.maximum(topology.nics_of_nodes[topology.rank_node[src]], 1)
    if nic is None:
        return nearest
    asked = np.broadcast_to(np.asarray(nic, dtype=np.int64), src.shape)
    nics = topology.nics_of_nodes[topology.rank_node[src]]
    wrong = (asked < -1) | (asked >= nics)
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        raise TopologyError(f"{topology.name}: NIC {asked[k]} is not one of the {nics[k]} NICs of a node")
    return np.where(asked < 0, nearest, asked)


def _links(
    topology: TopologyColumns, src: Int64, dst: Int64, rail: Int64, same_node: Bool, flowlet: Int64
) -> Int32:  # fmt: skip
    """Link ids (pairs, most hops), -1 where a pair has no link in that column."""
    node, to_node = (topology.rank_node[r].astype(np.int64) for r in (src, dst))
    local, to_local = _local(topology, src), _local(topology, dst)

    def placed(template: Int32, at: Int64) -> Int32:
        return np.where(template >= 0, template + topology.node_first_link[at][:, None], -1).astype(np.int32)

    def inside(k: npt.NDArray[np.int64]) -> Int32:
        return placed(_looked_up(topology, node[k], lambda r: r.gpu_gpu, local[k], to_local[k]), node[k])

    if topology.fabric_routes is None or same_node.all():
        return inside(np.arange(len(src)))
    i, k = np.flatnonzero(same_node), np.flatnonzero(~same_node)
    rail, to_rail, middle = fabric_links(topology, node[k], to_node[k], rail[k], flowlet[k])
    fabric = topology.fabric_routes
    parts = [
        placed(_looked_up(topology, node[k], lambda r: r.gpu_nic, local[k], rail), node[k]),
        fabric.port_up[node[k], rail][:, None],
        middle,
        fabric.port_down[to_node[k], to_rail][:, None],
        placed(_looked_up(topology, to_node[k], lambda r: r.nic_gpu, to_rail, to_local[k]), to_node[k]),
    ]
    between = np.concatenate(parts, axis=1)
    near = inside(i)
    out = np.full((len(src), max(between.shape[1], near.shape[1])), -1, dtype=np.int32)
    out[i, : near.shape[1]] = near
    out[k, : between.shape[1]] = between
    return out


def fabric_links(
    topology: TopologyColumns, node: Int64, to_node: Int64, rail: Int64, flowlet: Flowlet = 0
) -> tuple[Int64, Int64, Int32]:
    """(NIC at the source, NIC at the destination, links between their switches) of pairs of nodes."""
    to_rail = rail if topology.uniform else rail % topology.nics_of_nodes[to_node]
    links = topology.fabric.between(node, rail, to_node, to_rail, 0, flowlet)
    up = topology.usable_nics
    bad = ~(topology.passable(links) & up[node, rail] & up[to_node, to_rail])
    if not bad.any():
        return rail, to_rail, links
    from commsim.topology.detour import rerouted

    return rerouted(topology, node, to_node, rail, to_rail, links, bad, flowlet)
