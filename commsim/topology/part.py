"""Parts of a machine as machines of their own: some nodes like one of its nodes, joined by one switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commsim.topology.fabric import fabric_of
from commsim.topology.graph import NodeGroup, Topology
from commsim.topology.kinds import Int64, VertexKind
from commsim.topology.links import LinkColumns, Ports
from commsim.topology.node_routes import NodeRoutes
from commsim.topology.spec import FabricSpec
from commsim.topology.tree import tree


def alike(topology: Topology, node: int, gpus: Sequence[int], nodes: int) -> Topology:
    """A machine of so many nodes, each like one node of another with its faults, whose ranks hold some of its GPUs.

    `gpus` are places of GPUs in the node, in the order of the new ranks. Links inside the node have the bandwidth and
    the state that they have there. NICs that cannot be used are failed; the others have the rate of the node's group,
    and meet in one switch that never blocks. Link i of the node is link i of each of the new nodes.
    """
    t, old = topology, topology.groups[int(topology.node_group[node])]
    group = _with_gpus(old, gpus)
    vertices, links = (slice(*first[[node, node + 1]].tolist()) for first in (t.node_first_vertex, t.node_first_link))
    start = vertices.stop - vertices.start
    inside = LinkColumns(
        np.concatenate([t.link_src[links] - vertices.start + k * start for k in range(nodes)]),
        np.concatenate([t.link_dst[links] - vertices.start + k * start for k in range(nodes)]),
        np.tile(t.link_bandwidth[links], nodes),
        np.tile(t.link_latency[links], nodes),
        np.tile(t.link_kind[links], nodes),
    )
    kinds, names = t.vertex_kind[vertices], [n.split(".", 1)[1] for n in t.vertex_name[vertices]]
    failed = [~t.works[links] for _ in range(nodes)]
    columns, routes, switches = [inside], None, list[str]()
    if nodes > 1:
        nics = np.flatnonzero(kinds == VertexKind.NIC)
        at = nics[None, :] + start * np.arange(nodes)[:, None]
        rate = np.full(at.shape, old.nic_bandwidth)
        fabric = fabric_of(FabricSpec(kind="single_switch"), nodes, nics.size, t.name)
        built = tree(fabric, Ports(at, rate, np.zeros(at.shape)), nodes * start, inside.src.size)
        columns.append(built.links)
        routes, switches = built.routes, built.switches
        dead = np.repeat(~t.usable_nics[node, : nics.size], 2)  # up and down
        failed += [dead] * nodes
        failed.append(np.zeros(built.links.src.size - nodes * dead.size, dtype=bool))
    joined = LinkColumns.joined(columns)
    lost = np.concatenate(failed)
    ranks = (t.rank_vertex[t.node_first_rank[node] + np.asarray(gpus)] - vertices.start).astype(np.int32)
    of_nodes = np.repeat(np.arange(nodes), start)
    return replace(
        t,
        groups=(group,),
        node_group=np.zeros(nodes, np.int32),
        oversubscription=1.0,
        nodes_per_leaf=nodes,
        vertex_name=(*(f"node{k}.{n}" for k in range(nodes) for n in names), *switches),
        vertex_kind=np.concatenate([np.tile(kinds, nodes), np.full(len(switches), VertexKind.SWITCH, np.uint8)]),
        vertex_node=np.concatenate([of_nodes, np.full(len(switches), -1)]).astype(np.int32),
        link_src=joined.src.astype(np.int32),
        link_dst=joined.dst.astype(np.int32),
        link_bandwidth=joined.bandwidth,
        link_latency=joined.latency,
        link_kind=joined.kind,
        rank_vertex=np.concatenate([ranks + k * start for k in range(nodes)]).astype(np.int32),
        fabric_routes=routes,
        link_failed=lost if lost.any() else None,
        link_share=None,
        at_start=None,
        node_gdr=None if t.node_gdr is None else np.full(nodes, t.node_gdr[node]),
    )


def _with_gpus(group: NodeGroup, gpus: Sequence[int]) -> NodeGroup:
    """The group of nodes of which these GPUs hold ranks."""
    at, r = np.asarray(gpus, np.int64), group.node_routes
    routes = NodeRoutes(
        links=r.links,
        gpu_gpu=r.gpu_gpu[np.ix_(at, at)],
        gpu_nic=r.gpu_nic[at],
        nic_gpu=r.nic_gpu[:, at],
        gpu_gpu_type=r.gpu_gpu_type[np.ix_(at, at)],
        gpu_nic_type=r.gpu_nic_type[at],
        nearest_nic=r.nearest_nic[at],
    )
    return replace(group, ranks_per_node=at.size, node_routes=routes)


def states(topology: Topology) -> Int64:
    """A number for the state of each node, (nodes,): equal where nodes are of one group, with the same rates, latencies
    and failures inside, and the same NICs that can be used in the same way."""
    t, out = topology, topology.node_group.astype(np.int64)
    if t.nodes == 1:
        return out
    gdr = np.ones(t.nodes, bool) if t.node_gdr is None else t.node_gdr
    usable, next_state = t.usable_nics, len(t.groups)
    for i in range(len(t.groups)):
        members = np.flatnonzero(t.node_group == i)
        links = t.node_first_link[members][:, None] + np.arange(t.groups[i].links)[None, :]
        rates = np.where(t.works[links], t.link_bandwidth[links], 0.0)
        late = t.link_latency[links]
        unlike = (rates != rates[0]).any(axis=1) | (late != late[0]).any(axis=1)
        unlike |= (usable[members] != usable[members[0]]).any(axis=1) | (gdr[members] != gdr[members[0]])
        seen: dict[bytes, int] = {}
        for k in np.flatnonzero(unlike).tolist():
            key = rates[k].tobytes() + late[k].tobytes() + usable[members[k]].tobytes() + gdr[members[k]].tobytes()
            out[members[k]] = seen.setdefault(key, next_state + len(seen))
        next_state += len(seen)
    return out
