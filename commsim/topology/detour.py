"""Ways round what has failed, and the names of what cuts a machine in two."""

from __future__ import annotations

from itertools import product

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.columns import TopologyColumns
from commsim.topology.fabric_routes import Flowlet
from commsim.topology.kinds import Bool, Int32, Int64

_MOST_ATTEMPTS = 64


def rerouted(
    topology: TopologyColumns,
    node: Int64,
    to_node: Int64,
    rail: Int64,
    to_rail: Int64,
    links: Int32,
    bad: Bool,
    flowlet: Flowlet = 0,
) -> tuple[Int64, Int64, Int32]:
    """The same pairs of nodes with the bad ones led over other NICs, equal paths or any surviving links.

    TopologyError names the cut where there is no way.
    """
    rail, to_rail, links = rail.copy(), to_rail.copy(), links.copy()
    fabric, up = topology.fabric, topology.usable_nics
    most = up.shape[1]
    left, flowlet = np.flatnonzero(bad), np.broadcast_to(flowlet, node.shape)
    first, to_first = rail.copy(), to_rail.copy()
    for turn, attempt in product(range(most), range(min(fabric.choices, _MOST_ATTEMPTS))):
        a, b = (first[left] + turn) % most, (to_first[left] + turn) % most
        usable = up[node[left], a] & up[to_node[left], b]
        k, a, b = left[usable], a[usable], b[usable]
        if not k.size:
            continue
        paths = fabric.between(node[k], a, to_node[k], b, attempt, flowlet[k])
        good = topology.passable(paths)
        links[k[good]] = -1
        links[k[good], : paths.shape[1]] = paths[good]
        rail[k[good]], to_rail[k[good]] = a[good], b[good]
        left = np.setdiff1d(left, k[good])
        if not left.size:
            return rail, to_rail, links
    return _by_search(topology, node, to_node, rail, to_rail, links, left)


def _by_search(
    topology: TopologyColumns, node: Int64, to_node: Int64, rail: Int64, to_rail: Int64, links: Int32, left: Int64
) -> tuple[Int64, Int64, Int32]:
    """The fewest hops over surviving links between any two working NICs, same index first."""
    ways: dict[tuple[int, int, int], tuple[int, int, list[int]]] = {}
    for k in left.tolist():
        pair = int(node[k]), int(to_node[k]), int(rail[k])
        if pair not in ways:
            ways[pair] = _way(topology, *pair)
    width = max([links.shape[1], *(len(w[2]) for w in ways.values())])
    links = np.pad(links, ((0, 0), (0, width - links.shape[1])), constant_values=-1)
    for k in left.tolist():
        rail_k, to_rail_k, path = ways[int(node[k]), int(to_node[k]), int(rail[k])]
        rail[k], to_rail[k] = rail_k, to_rail_k
        links[k] = -1
        links[k, : len(path)] = path
    return rail, to_rail, links


def _way(topology: TopologyColumns, node: int, to_node: int, rail: int) -> tuple[int, int, list[int]]:
    leaf, up = topology.fabric.leaf, topology.usable_nics
    rails = np.roll(np.arange(up.shape[1]), -rail).tolist()
    pairs = product((n for n in rails if up[node, n]), (n for n in rails if up[to_node, n]))
    for a, b in sorted(pairs, key=lambda p: p[0] != p[1]):
        path = topology.switch_search.path(int(leaf[node, a]), int(leaf[to_node, b]))
        if path is not None:
            return a, b, path
    raise TopologyError(f"{topology.name}: no way from node{node} to node{to_node}; {cut_of(topology, node)}")


def cut_of(topology: TopologyColumns, node: int) -> str:
    """What cuts a node off, in words: its failed NICs, and the failed links around the part it can reach."""
    fabric, failed = topology.fabric, ~topology.works
    if not failed.any():
        return "the planes or rails of their NICs are not joined"
    first = int(topology.node_first_vertex[-1])
    reached = {int(topology.link_src[p]) for p in fabric.port_up[node] if p >= 0}
    for n in np.flatnonzero(topology.usable_nics[node]).tolist():
        reached |= {first + s for s in topology.switch_search.tree(int(fabric.leaf[node, n]))}
    inside = np.zeros(len(topology.vertex_name), dtype=bool)
    inside[list(reached)] = True
    inside[topology.vertex_node == node] = True
    at = np.flatnonzero(failed & inside[topology.link_src] & ~inside[topology.link_dst])
    ports = [p for p in fabric.port_up[node].tolist() if p >= 0 and failed[p]]
    names = topology.vertex_name
    cut = [
        f"{names[topology.link_src[i]]} - {names[topology.link_dst[i]]}" for i in dict.fromkeys([*ports, *at.tolist()])
    ]
    if not cut:
        return "its NICs are in no plane or rail that the other can use"
    more = f" and {len(cut) - 8} more" if len(cut) > 8 else ""
    return f"the cut is made of failed links: {', '.join(cut[:8])}{more}"
