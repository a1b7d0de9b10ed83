"""Routes that the user gives: names of switches and NICs resolved to links, each step checked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.fabric_routes import FabricRoutes, StaticRoutes
from commsim.topology.links import BuiltFabric, LinkColumns
from commsim.topology.spec import RouteSpec


def with_static_routes(
    built: BuiltFabric,
    routes: Sequence[RouteSpec],
    names: Sequence[str],
    links: LinkColumns,
    first_switch: int,
    where: str,
) -> FabricRoutes:
    """The routes of a fabric, with the user's before them; `names` are of all vertices, `links` all links."""
    base = built.routes
    vertex = {n: v for v, n in enumerate(names)}
    ends_of_links = zip(built.links.src.tolist(), built.links.dst.tolist(), strict=True)
    link = {pair: i for i, pair in enumerate(ends_of_links, len(links.src) - len(built.links.src))}
    switches = len(built.switches)
    nodes, nics = np.nonzero(base.port_up >= 0)
    nic_at = links.src[base.port_up[nodes, nics]]
    nic_number = dict(zip(nic_at.tolist(), (switches + nodes * base.leaf.shape[1] + nics).tolist(), strict=True))
    nic_leaf = dict(zip(nic_at.tolist(), (first_switch + base.leaf[nodes, nics]).tolist(), strict=True))
    ends = switches + base.leaf.size
    paths_of: dict[int, list[int]] = {}
    for i, route in enumerate(routes):
        place = f"{where}: fabric.routes.{i}"
        for name in (*route.ends, *route.via):
            if vertex.get(name, -1) < first_switch and vertex.get(name, -1) not in nic_number:
                raise TopologyError(f"{place}: {name} is neither a switch nor a NIC; found switches {_few(built)}")
        ways = [[*route.ends[:1], *route.via, *route.ends[1:]]]
        ways += [] if route.one_way else [ways[0][::-1]]
        for way in ways:
            steps = [vertex[n] for n in way]
            key = [nic_number.get(steps[k], steps[k] - first_switch) for k in (0, -1)]
            between = [nic_leaf.get(v, v) if k in {0, len(steps) - 1} else v for k, v in enumerate(steps)]
            paths_of[key[0] * ends + key[1]] = _links(between, link, names, place)
    keys = np.array(sorted(paths_of), dtype=np.int64)
    paths = np.full((len(keys), max(map(len, paths_of.values()))), -1, dtype=np.int32)
    for row, k in enumerate(keys.tolist()):
        paths[row, : len(paths_of[k])] = paths_of[k]
    ports = (base.port_up, base.port_down, base.leaf, base.nodes_per_leaf)
    return StaticRoutes(*ports, base, switches, keys, paths)


def _links(steps: list[int], link: dict[tuple[int, int], int], names: Sequence[str], place: str) -> list[int]:
    steps = [v for k, v in enumerate(steps) if k == 0 or v != steps[k - 1]]  # a NIC's own leaf may be named or not
    if len(set(steps)) < len(steps):
        raise TopologyError(f"{place}: the route passes {names[max(steps, key=steps.count)]} twice")
    out = []
    for a, b in pairwise(steps):
        if (a, b) not in link:
            raise TopologyError(f"{place}: {names[a]} and {names[b]} are not linked")
        out.append(link[a, b])
    return out


def _few(built: BuiltFabric) -> str:
    return ", ".join(built.switches[:6]) + (" ..." if len(built.switches) > 6 else "")
