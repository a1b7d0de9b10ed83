"""What the channels of a communicator get of the NICs and of the fabric, on the ways that they really take.

An edge is a pair of its nodes of which the first sends to the second. A channel leaves by the NIC at which the search
of the sender's node ends it, and enters by that of the receiver's. What channels send over one NIC to one node is a
stream. All streams of a communicator are taken to flow at once, as those of a ring and of trees do, so that a link
gives each its share; a channel is as quick as the narrowest link of its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commsim.nccl.communicator import Communicator
from commsim.nccl.machine import MESHES
from commsim.nccl.system import Graph
from commsim.topology.detour import rerouted
from commsim.topology.fabric_routes import UNREACHABLE
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64, LinkKind

_PAIRED = 2
"""`Graph.cross_nic` of rings that leave a node by another NIC than they enter it, in pairs of channels."""


@dataclass(frozen=True, eq=False)
class Streams:
    """Of each edge and channel of a graph the share of a NIC's nominal bytes/s, (edges, channels), and what limits it.

    The share is that of the sender's NICs. `link` is the narrowest link of the way, a number of the topology.
    """

    share: Float64
    link: Int64

    def of(self, channels: int) -> tuple[Float64, Int64]:
        """Of each edge the least share of the first channels, and its link, (edges,)."""
        some = self.share[:, : max(1, channels)]
        least = some.argmin(axis=1)
        rows = np.arange(len(some))
        return some[rows, least], self.link[rows, least]


def streams(comm: Communicator, graphs: Sequence[Graph], src: Int64, dst: Int64, *, trees: bool = False) -> Streams:
    """The streams of edges from nodes `src` to nodes `dst`, numbered as in the communicator, by the graph of each kind.

    Of `trees`, whose edges meet at NICs, it is what the fabric leaves of the NICs, whatever these carry. Where a graph
    does not say its NICs, channels take those that work in turn. TopologyError where no way is left.
    """
    t, channels = comm.topology, min(graph.channels for graph in graphs)
    enter, leave = _nics(comm, graphs, channels)
    out, into = leave[src], enter[dst]  # (edges, channels)
    edges = np.repeat(np.arange(src.size), channels)
    ends = np.stack([edges, out.ravel(), into.ravel()], axis=1)
    pair, index, weight = _streams_of(ends, max(int(out.max(initial=0)), int(into.max(initial=0))) + 1)
    links = _ways(t, comm.nodes[src[pair[:, 0]]], pair[:, 1], comm.nodes[dst[pair[:, 0]]], pair[:, 2])
    used, at = links >= 0, np.asarray(np.maximum(links, 0), np.int64)
    load = np.bincount(links[used], np.broadcast_to(weight[:, None], links.shape)[used], t.link_bandwidth.size).astype(
        np.float64
    )
    # A link gives each stream less by what it carries over what the stream's own NIC carries.
    nominal = np.array([g.nic_bandwidth for g in t.groups])[t.node_group[comm.nodes[src[pair[:, 0]]]]]
    if trees:
        own = np.maximum(load[links[:, 0]], load[links[:, -1]])
        used[:, [0, -1]] = False
    else:
        own = _channels_of_a_nic(leave)[src[pair[:, 0]], pair[:, 1]]
    share = np.where(used, t.link_bandwidth[at] / np.maximum(load[at], own[:, None]) * (own / nominal)[:, None], np.inf)
    fabric = used & (t.link_kind[at] == LinkKind.FABRIC)
    if fabric.any():
        way = _fabric_share(t, load, at, np.asarray(own / nominal))
        share = np.where(fabric, np.minimum(way, t.link_bandwidth[at] / nominal[:, None]), share)
    share = np.minimum(share, 1.0)
    narrowest = share.argmin(axis=1)
    rows = np.arange(len(share))
    shape = (src.size, channels)
    return Streams(
        share[rows, narrowest][index].reshape(shape), links[rows, narrowest][index].reshape(shape).astype(np.int64)
    )


def _fabric_share(t: Topology, load: Float64, at: Int64, own: Float64) -> Float64:
    """What links between switches leave of a stream's NIC beside other streams, (streams, links).

    Where paths are chosen by a hash, or given, streams that meet on a link share it. Else the links between a switch
    and the level above share evenly what goes that way, and a link that is slowed slows what passes it. A mesh has its
    cut (`Machine.cut`); here only what is slowed counts.
    """
    left = np.ones(load.size) if t.link_share is None else t.link_share
    if t.routing in ("ecmp", "static"):
        return np.asarray(t.link_bandwidth[at] / np.maximum(load[at], 1e-9) * own[:, None])
    if t.kind in MESHES:
        return np.asarray(left[at])
    links = np.flatnonzero((t.link_kind == LinkKind.FABRIC) & t.works)
    level = np.where(t.link_dst[links] > t.link_src[links], t.link_src[links], t.link_dst[links])
    up = t.link_dst[links] > t.link_src[links]
    pools, pool = np.unique(level.astype(np.int64) * 2 + up, return_inverse=True)
    described = np.bincount(pool, t.link_bandwidth[links] / left[links], pools.size)
    carried = np.bincount(pool, load[links], pools.size)
    rate = np.full(load.size, np.inf)
    rate[links] = (described / np.maximum(carried, 1e-9))[pool] * left[links]
    return np.asarray(rate[at] * own[:, None])


def _nics(comm: Communicator, graphs: Sequence[Graph], channels: int) -> tuple[Int64, Int64]:
    """NICs by which each channel enters and leaves each node, both (nodes, channels).

    Rings that leave by another NIC than they enter change places on every other node, so that they keep their rails
    (src/graph/connect.cc, ncclTopoPostset); an odd number of channels cannot.
    """
    table = np.zeros((len(graphs), channels, 2), np.int64)
    for k, (graph, kind) in enumerate(zip(graphs, comm.kinds, strict=True)):
        nics = graph.nics[:channels]
        if not nics:
            usable = np.flatnonzero(kind.usable_nics[0])
            nics = tuple((int(n), int(n)) for n in usable[np.arange(channels) % usable.size])
        table[k] = nics
    of = table[comm.kind]
    if graphs[0].pattern == "RING" and channels % 2 == 0:
        crossed = np.array([graph.cross_nic == _PAIRED for graph in graphs])[comm.kind]
        crossed[::2] = False
        of[crossed] = of[crossed][:, np.arange(channels) ^ 1]
    return of[..., 0], of[..., 1]


def _streams_of(ends: Int64, nics: int) -> tuple[Int64, Int64, Float64]:
    """The distinct rows (edge, NIC out, NIC into) of those of all channels, the row of each, channels of each."""
    key = (ends[:, 0] * nics + ends[:, 1]) * nics + ends[:, 2]
    _, first, index, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    return ends[first], index.reshape(-1), count.astype(np.float64)


def _channels_of_a_nic(leave: Int64) -> Float64:
    """Channels that leave each node by each of its NICs, (nodes, NICs)."""
    out = np.zeros((len(leave), int(leave.max(initial=0)) + 1))
    np.add.at(out, (np.arange(len(leave))[:, None], leave), 1)
    return out


def _ways(t: Topology, node: Int64, nic: Int64, to_node: Int64, to_nic: Int64) -> Int64:
    """The links of the way of each stream from NIC to NIC, (streams, most links), padded with -1."""
    fabric = t.fabric
    middle = fabric.between(node, nic, to_node, to_nic)
    up = t.usable_nics[node, nic] & t.usable_nics[to_node, to_nic]
    if _joins_rails(t):  # its spines are left out of a machine that has one leaf of each rail
        middle = np.where((middle == UNREACHABLE) & up[:, None], -1, middle)
    bad = ~(t.passable(middle) & up)
    if bad.any():
        nic, to_nic, middle = rerouted(t, node, to_node, nic, to_nic, middle, bad)
    ports = fabric.port_up[node, nic][:, None], fabric.port_down[to_node, to_nic][:, None]
    return np.concatenate([ports[0], middle, ports[1]], axis=1).astype(np.int64)


def _joins_rails(t: Topology) -> bool:
    """Whether the leaves of the rails would be joined by spines if there were more of them."""
    shape = getattr(t.fabric, "shape", None)
    return t.kind == "rail_fat_tree" and shape is not None and shape.planes == 1 and not shape.spines
