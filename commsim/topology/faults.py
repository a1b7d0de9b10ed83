"""Degraded and failed links, NICs, nodes and switches of a topology.

A failed link keeps its number and is marked; routes lead round it. A fault inside a node gives that node route tables
of its own: GPUs that lose NVLink go over PCIe, GPUs that lose their NIC use the next nearest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import combinations
from typing import Any

import numpy as np

from commsim.errors import Fault, TopologyError
from commsim.topology.check import islands
from commsim.topology.detour import cut_of
from commsim.topology.graph import NodeGroup, Topology
from commsim.topology.kinds import Bool, Int64, LinkKind, NodeGraph, VertexKind, Wire
from commsim.topology.node_routes import node_routes
from commsim.topology.spec import FaultSpec


def degraded(topology: Topology, faults: Sequence[FaultSpec], *, joined: bool = True) -> Topology:
    """The topology with these faults, and as it was when the job began where some set in later (`at_start`).

    Several faults of one link multiply. TopologyError names a place that is not there, or, where all nodes must be
    `joined`, the cut when ranks can no longer reach each other.
    """
    if not faults:
        return topology
    first = [fault for fault in faults if fault.start == 0.0]
    if len(first) < len(faults):
        now = degraded(topology, [fault.model_copy(update={"start": 0.0}) for fault in faults], joined=joined)
        return replace(now, at_start=degraded(topology, first, joined=joined))
    links = topology.link_bandwidth.size
    rate, late, failed = np.ones(links), np.ones(links), ~topology.works
    gdr = np.ones(topology.nodes, bool) if topology.node_gdr is None else topology.node_gdr.copy()
    for i, fault in enumerate(faults):
        at = _links_at(topology, fault, f"{topology.name}: faults.{i}")
        if fault.no_gdr:
            gdr[fault.node] = False
        if fault.failed:
            failed[at] = True
        rate[at] *= 1.0 if fault.bandwidth_factor is None else fault.bandwidth_factor
        late[at] *= 1.0 if fault.latency_factor is None else fault.latency_factor
    before = np.ones(links) if topology.link_share is None else topology.link_share
    out = replace(
        topology,
        link_bandwidth=topology.link_bandwidth * rate,
        link_latency=topology.link_latency * late,
        link_failed=failed,
        link_share=before * rate,
        node_gdr=None if gdr.all() else gdr,
    )
    if not failed.any():
        return replace(out, link_failed=None)
    out = _with_new_node_routes(out)
    if joined:
        check_joined(out, np.arange(out.nodes))
    return out


def without_nvlink(topology: Topology) -> Topology:
    """The topology as it is for ranks that may not use NVLink: its links have failed, GPUs go over PCIe."""
    failed = (topology.link_kind == LinkKind.NVLINK) | ~topology.works
    return _with_new_node_routes(replace(topology, link_failed=failed))


def with_slow_gpus(topology: Topology, factors: Mapping[int, float]) -> Topology:
    """The topology where the links at some ranks' GPUs take so many times as long for a byte, which no library knows
    when its job starts (`at_start`)."""
    if not factors:
        return topology
    share = np.ones(topology.link_bandwidth.size)
    for rank, factor in factors.items():
        vertex = topology.rank_vertex[rank]
        share[(topology.link_src == vertex) | (topology.link_dst == vertex)] /= factor
    before = 1.0 if topology.link_share is None else topology.link_share
    began = topology if topology.at_start is None else topology.at_start
    rates = topology.link_bandwidth * share
    return replace(topology, link_bandwidth=rates, link_share=before * share, at_start=began)


# -- places ---------------------------------


_MOST_TOLD = 24
"""Absent places that are named at once: a screen of them, as each takes a search through all names."""


def check_places(topology: Topology, faults: Sequence[FaultSpec]) -> None:
    """A TopologyError that names every place of a fault that is not there, up to `_MOST_TOLD` of them."""
    absent: list[Fault] = []
    for i, fault in enumerate(faults):
        try:
            _links_at(topology, fault, f"faults.{i}")
        except TopologyError as error:
            path, _, message = str(error).partition(": ")
            absent.append(Fault(topology.name, 0, 0, path, message))
        if len(absent) == _MOST_TOLD:
            break
    if absent:
        raise TopologyError(absent)


def _links_at(t: Topology, fault: FaultSpec, where: str) -> Int64:
    """Link ids, both directions, that a fault is at."""
    if fault.link is not None:
        a, b = (_vertex(t, name, f"{where}.link") for name in fault.link)
        links = np.flatnonzero(((t.link_src == a) & (t.link_dst == b)) | ((t.link_src == b) & (t.link_dst == a)))
        if not links.size:
            near = sorted({t.vertex_name[v] for v in t.link_dst[t.link_src == a]})
            raise TopologyError(
                f"{where}.link: {fault.link[0]} and {fault.link[1]} are not linked; "
                f"{fault.link[0]} is linked to {', '.join(near[:8])}{' ...' if len(near) > 8 else ''}"
            )
        return links
    if fault.switch is not None:
        v = _vertex(t, fault.switch, f"{where}.switch")
        if t.vertex_kind[v] != VertexKind.SWITCH:
            raise TopologyError(f"{where}.switch: {fault.switch} is no switch of the fabric")
        return np.flatnonzero((t.link_src == v) | (t.link_dst == v))
    return _ports_at(t, fault, where)


def _ports_at(t: Topology, fault: FaultSpec, where: str) -> Int64:
    """Link ids of the ports of a NIC, or of all NICs of a node."""
    node = fault.node if fault.nic is None else fault.nic[0]
    assert node is not None  # one of the two is stated
    if not node < t.nodes:
        place = "node" if fault.nic is None else "nic.0"
        raise TopologyError(f"{where}.{place}: node {node} is not one of the {t.nodes} nodes")
    nics = int(t.nics_of_nodes[node])
    if fault.nic is not None and not fault.nic[1] < nics:
        raise TopologyError(f"{where}.nic.1: NIC {fault.nic[1]} is not one of the {nics} NICs of node {node}")
    if t.fabric_routes is None:
        raise TopologyError(f"{where}: one node alone has no network port that could fail")
    chosen = slice(nics) if fault.nic is None else slice(fault.nic[1], fault.nic[1] + 1)
    ports = [t.fabric_routes.port_up[node, chosen], t.fabric_routes.port_down[node, chosen]]
    return np.concatenate(ports).astype(np.int64)


def _vertex(t: Topology, name: str, where: str) -> int:
    if name not in t.vertex_name:
        close = get_close_matches(name, t.vertex_name, n=3, cutoff=0.6) if len(t.vertex_name) < 50_000 else []
        switches = [t.vertex_name[v] for v in np.flatnonzero(t.vertex_node < 0).tolist()]
        known, plural = (switches, "switches") if switches else (t.vertex_name, "devices")
        hint = f"did you mean {' or '.join(close)}?" if close else f"the {plural} are {', '.join(known[:8])} ..."
        raise TopologyError(f"{where}: {name} is neither a device nor a switch; {hint}")
    return t.vertex_name.index(name)


# -- what follows ---------------------------------


def _with_new_node_routes(t: Topology) -> Topology:
    """Nodes with a failed link inside, or a failed port, become groups of their own."""
    at = t.vertex_node[np.stack([t.link_src[~t.works], t.link_dst[~t.works]])].max(axis=0)
    hit = np.unique(at[at >= 0]).tolist()
    groups, node_group = list(t.groups), t.node_group.copy()
    alike: dict[tuple[Any, ...], int] = {}
    for node in hit:
        old = int(t.node_group[node])
        inside = ~t.works[t.node_first_link[node] : t.node_first_link[node + 1]]
        ports = _dead_ports(t, node)
        key = (old, inside.tobytes(), ports.tobytes())
        if key not in alike:
            alike[key] = len(groups)
            groups.append(_group_without(t, node, groups[old], inside, ports))
        node_group[node] = alike[key]
    kept, number = np.unique(node_group, return_inverse=True)
    return replace(t, groups=tuple(groups[i] for i in kept.tolist()), node_group=number.reshape(-1).astype(np.int32))


def _dead_ports(t: Topology, node: int) -> Bool:
    """NICs of a node that cannot be used, (NICs,)."""
    nics = int(t.nics_of_nodes[node])
    if t.fabric_routes is None:
        return np.zeros(nics, dtype=bool)
    up, down = t.fabric_routes.port_up[node, :nics], t.fabric_routes.port_down[node, :nics]
    return ~(t.works[up] & t.works[down])


def _group_without(t: Topology, node: int, group: NodeGroup, failed: Bool, dead: Bool) -> NodeGroup:
    """The group of one node without its failed links and NICs; the links keep their numbers."""
    first_vertex, first_link = int(t.node_first_vertex[node]), int(t.node_first_link[node])
    names = [n.split(".", 1)[1] for n in t.vertex_name[first_vertex : first_vertex + group.vertices]]
    kinds = t.vertex_kind[first_vertex : first_vertex + group.vertices]
    graph = NodeGraph()
    for name, kind in zip(names, kinds, strict=True):
        graph.add_vertex(name, VertexKind(int(kind)))
    number: dict[tuple[str, str], int] = {}
    for i in range(group.links):
        a, b = (names[int(c[first_link + i]) - first_vertex] for c in (t.link_src, t.link_dst))
        number[a, b] = i
        if not failed[i]:
            kind = LinkKind(int(t.link_kind[first_link + i]))
            graph.join(a, b, Wire(kind, float(t.link_bandwidth[first_link + i])))
    nics = [n for n, k in zip(names, kinds, strict=True) if k == VertexKind.NIC]
    graph.remove([n for n, gone in zip(nics, dead, strict=True) if gone or not graph.wires[n]])
    ranks = t.rank_vertex[t.node_first_rank[node] : t.node_first_rank[node + 1]] - first_vertex
    where = f"{t.name}: node{node} with its failed links"
    gpus = [names[int(v)] for v in ranks]
    return replace(group, node_routes=node_routes(graph, gpus, nics, where, over_nvlink=t.keeps_rails, link_id=number))


def check_joined(t: Topology, nodes: Int64) -> None:
    """TopologyError naming the cut unless every two of these nodes share an island of NICs and switches."""
    if t.link_failed is None or nodes.size < 2:
        return
    first_switch, wires = int(t.node_first_vertex[-1]), (t.link_kind == LinkKind.FABRIC) & t.works
    ends = (t.link_src[wires] - first_switch, t.link_dst[wires] - first_switch)
    island = islands(len(t.vertex_name) - first_switch, *ends)
    sets = {k: frozenset(island[t.fabric.leaf[k, t.usable_nics[k]]].tolist()) for k in nodes.tolist()}
    first = {s: k for k, s in reversed(sets.items())}
    for s, k in sorted(first.items(), key=lambda item: item[1]):
        if not s:
            raise TopologyError(f"{t.name}: node{k} is cut off; {cut_of(t, k)}")
    for (s, k), (other, m) in combinations(sorted(first.items(), key=lambda item: item[1]), 2):
        if not s & other:
            small = min((k, m), key=lambda n: sum(sets[n] == x for x in sets.values()))
            raise TopologyError(f"{t.name}: no way from node{k} to node{m}; {cut_of(t, small)}")
