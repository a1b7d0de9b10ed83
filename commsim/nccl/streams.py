"""What the channels of a communicator get of the NICs and of the fabric, on the ways that they really take.

An edge is a pair of its nodes of which the first sends to the second. A channel leaves by the NIC at which the search
of the sender's node ends it, and enters by that of the receiver's. What channels send over one NIC to one node is a
stream. All streams of a communicator are taken to flow at once, as those of a ring and of trees do, so that a link
gives each its share; a channel is as quick as the narrowest link of its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commsim.nccl.communicator import Comm
from commsim.nccl.pools import MESHES, PINNED, pools
from commsim.nccl.system import Graph
from commsim.topology.fabric_routes import UNREACHABLE, Flowlet
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64, LinkKind

__all__ = ["PINNED", "StreamWays", "Streams", "stream_ways", "streams"]

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


@dataclass(frozen=True, eq=False)
class StreamWays:
    """The streams of some edges: of each its edge, its channels, its links (streams, most links; -1: none).

    `of` (edges, channels) says which stream a channel of an edge belongs to; `own` how many channels leave the sender
    by the stream's NIC, or where those are more, how many share one of the NICs of either end in the mean; `nics`
    (streams, 2) are those of its ends.
    """

    edge: Int64
    weight: Float64
    links: Int64
    of: Int64
    own: Float64
    nics: Int64

    def along(self, *each: Float64) -> tuple[Int64, list[Float64]]:
        """The links of all streams, one after the other, and of figures of the streams columns beside them."""
        used = self.links >= 0
        return self.links[used], [np.broadcast_to(one[:, None], self.links.shape)[used] for one in each]

    def load(self, each: Float64, links: int) -> Float64:
        """What lies on each link of the topology where a stream carries so much, (links,)."""
        link, (nbytes,) = self.along(each)
        return np.bincount(link, nbytes, links).astype(np.float64)


def stream_ways(comm: Comm, graphs: Sequence[Graph], src: Int64, dst: Int64) -> StreamWays:
    """The ways of the channels of edges from nodes `src` to nodes `dst`, by the graph of each kind of node.

    Nodes are numbered as in the communicator. Where a graph does not say its NICs, channels take those that work in
    turn. TopologyError where no way is left.
    """
    channels = min(graph.channels for graph in graphs)
    enter, leave = _nics(comm, graphs, channels)
    out, into = leave[src], enter[dst]  # (edges, channels)
    edges = np.repeat(np.arange(src.size), channels)
    ends = np.stack([edges, out.ravel(), into.ravel()], axis=1)
    pair, index, weight = _streams_of(ends, max(int(out.max(initial=0)), int(into.max(initial=0))) + 1)
    edge, nic, to_nic = pair.T
    links = _ways(comm.topology, comm.nodes[src[edge]], nic, comm.nodes[dst[edge]], to_nic)
    even = channels / np.minimum(_distinct(leave)[src], _distinct(enter)[dst])
    own = np.maximum(_channels_of_a_nic(leave)[src[edge], nic], even[edge])
    return StreamWays(edge, weight, links, index.reshape(src.size, channels), own, pair[:, 1:])


def streams(
    comm: Comm, graphs: Sequence[Graph], src: Int64, dst: Int64, meeting: Int64 | None = None
) -> Streams:  # fmt: skip
    """The streams of edges, as `stream_ways` has them, all flowing at once.

    Of trees `meeting` (edges,) says how many edges meet at the busier end of each, on the same NICs: the share is then
    what the fabric leaves of the NICs, whatever these carry.
    """
    ways = stream_ways(comm, graphs, src, dst)
    several = None if meeting is None else meeting[ways.edge]
    nodes = comm.nodes[src[ways.edge]], comm.nodes[dst[ways.edge]]
    if not comm.topology.draws_flowlets:
        share, link = _shares(comm.topology, ways, nodes[0], several)
        return Streams(share[ways.of], link[ways.of])
    from commsim.nccl.flowlets import mean_share, window_of

    window, at_once = window_of(ways.weight, comm.topology.flowlet_bytes), _at_once(comm.topology, ways, nodes[0])

    def drawn(turn: int) -> tuple[Float64, Int64]:
        return _drawn(comm.topology, ways, nodes, several, np.arange(turn * at_once, (turn + 1) * at_once))

    return Streams(*mean_share(drawn, ways.of, window, ways.links.size, at_once))


def _at_once(t: Topology, ways: StreamWays, node: Int64) -> int:
    """Flowlets of a stream that are on their way at one time: of what its NIC has under way on an idle line."""
    from commsim.nccl.flowlets import most_at_once

    seconds = np.where(ways.links >= 0, t.link_latency[np.maximum(ways.links, 0)], 0.0).sum(axis=1)
    nominal = np.array([g.nic_bandwidth for g in t.groups])[t.node_group[node]]
    return most_at_once(float((nominal * seconds).min(initial=np.inf)), t.flowlet_bytes, ways.links.size)


def _drawn(
    t: Topology, ways: StreamWays, nodes: tuple[Int64, Int64], meeting: Int64 | None, numbers: Int64
) -> tuple[Float64, Int64]:
    """`_shares` where each stream has flowlets of these numbers under way at once, each an equal part of it.

    Every leaf draws for itself: its switch knows nothing of what the same place under another leaf has drawn.
    """
    many, count = numbers.size, ways.weight.size
    node, to_node = (np.tile(each, many) for each in nodes)
    nic, to_nic = np.tile(ways.nics, (many, 1)).T
    flowlet = np.repeat(numbers, count) * (int(t.fabric.leaf.max()) + 1) + t.fabric.leaf[node, nic]
    parts = replace(
        ways,
        weight=np.tile(ways.weight, many) / many,
        own=np.tile(ways.own, many),
        links=_ways(t, node, nic, to_node, to_nic, flowlet),
    )
    share, link = _shares(t, parts, node, None if meeting is None else np.tile(meeting, many))
    each = share.reshape(many, count)
    worst = each.argmin(axis=0)
    return many / (1.0 / each).sum(axis=0), link.reshape(many, count)[worst, np.arange(count)]


def _shares(t: Topology, ways: StreamWays, node: Int64, meeting: Int64 | None) -> tuple[Float64, Int64]:
    """Of each stream, sent by a `node`, the share of its NIC that its way leaves it, and the narrowest link."""
    used, at, own = ways.links >= 0, np.asarray(np.maximum(ways.links, 0), np.int64), ways.own
    load = ways.load(ways.weight, t.link_bandwidth.size)
    # A link gives each stream less by what it carries over what the stream's own NIC carries.
    nominal = np.array([g.nic_bandwidth for g in t.groups])[t.node_group[node]]
    if meeting is not None:
        own = own * meeting
        used[:, [0, -1]] = False
    most = np.maximum(load[at], own[:, None]) * nominal[:, None]
    share = np.where(used, t.link_bandwidth[at] * own[:, None] / most, np.inf)
    fabric = used & (t.link_kind[at] == LinkKind.FABRIC)
    if fabric.any():
        share = np.where(fabric, _fabric_share(t, load, at, own, nominal), share)
    share = np.minimum(share, 1.0)
    narrowest = share.argmin(axis=1)
    rows = np.arange(len(share))
    return share[rows, narrowest], at[rows, narrowest]


def _fabric_share(t: Topology, load: Float64, at: Int64, own: Float64, nominal: Float64) -> Float64:
    """What links between switches leave of a stream's NIC beside other streams, (streams, links).

    Where paths are chosen by a hash (of the stream, or of its flowlet), or given, streams that meet on a link share it.
    Else the links between a switch and the level above share evenly what goes that way, and a link that is slowed slows
    what passes it. A mesh has its cut (`Machine.cut`); here only what is slowed counts.
    """
    left = np.ones(load.size) if t.link_share is None else t.link_share
    if t.routing in PINNED or t.draws_flowlets:
        return np.asarray(t.link_bandwidth[at] * own[:, None] / (np.maximum(load[at], 1e-9) * nominal[:, None]))
    if t.kind in MESHES:
        return np.asarray(left[at])
    links, pool, described = pools(t)
    carried = np.bincount(pool, load[links], described.size)
    rate = np.full(load.size, np.inf)
    rate[links] = (described / np.maximum(carried, 1e-9))[pool] * left[links]
    return np.asarray(rate[at] * own[:, None] / nominal[:, None])


def _nics(comm: Comm, graphs: Sequence[Graph], channels: int) -> tuple[Int64, Int64]:
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
        crossed[np.arange(crossed.size) % (crossed.size // comm.copies) % 2 == 0] = False
        of[crossed] = of[crossed][:, np.arange(channels) ^ 1]
    return of[..., 0], of[..., 1]


def _streams_of(ends: Int64, nics: int) -> tuple[Int64, Int64, Float64]:
    """The distinct rows (edge, NIC out, NIC into) of those of all channels, the row of each, channels of each."""
    key = (ends[:, 0] * nics + ends[:, 1]) * nics + ends[:, 2]
    _, first, index, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    return ends[first], index.reshape(-1), count.astype(np.float64)


def _distinct(nics: Int64) -> Int64:
    """How many NICs the channels of each node take, (nodes,)."""
    return 1 + np.asarray((np.diff(np.sort(nics, axis=1), axis=1) > 0).sum(axis=1), np.int64)


def _channels_of_a_nic(leave: Int64) -> Float64:
    """Channels that leave each node by each of its NICs, (nodes, NICs)."""
    out = np.zeros((len(leave), int(leave.max(initial=0)) + 1))
    np.add.at(out, (np.arange(len(leave))[:, None], leave), 1)
    return out


def _ways(t: Topology, node: Int64, nic: Int64, to_node: Int64, to_nic: Int64, flowlet: Flowlet = 0) -> Int64:
    """The links of the way of each stream from NIC to NIC, (streams, most links), padded with -1."""
    fabric = t.fabric
    middle = fabric.between(node, nic, to_node, to_nic, 0, flowlet)
    up = t.usable_nics[node, nic] & t.usable_nics[to_node, to_nic]
    if _joins_rails(t):  # its spines are left out of a machine that has one leaf of each rail
        middle = np.where((middle == UNREACHABLE) & up[:, None], -1, middle)
    bad = ~(t.passable(middle) & up)
    if bad.any():
        from commsim.topology.detour import rerouted

        nic, to_nic, middle = rerouted(t, node, to_node, nic, to_nic, middle, bad, flowlet)
    ports = fabric.port_up[node, nic][:, None], fabric.port_down[to_node, to_nic][:, None]
    return np.concatenate([ports[0], middle, ports[1]], axis=1).astype(np.int64)


def _joins_rails(t: Topology) -> bool:
    """Whether the leaves of the rails would be joined by spines if there were more of them."""
    shape = getattr(t.fabric, "shape", None)
    return t.kind == "rail_fat_tree" and shape is not None and shape.planes == 1 and not shape.spines
