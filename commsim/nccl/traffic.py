"""What calls put on the links of the machine, and how long they take beside each other.

The bytes of a call lie on links as its channels go: over rings and trees between nodes by the NICs and ways of
`commsim.nccl.streams`, inside a node over the links between neighbours. Each call goes on at the pace of its tightest
link, which all channels keep; a link that has not enough for all is shared evenly by the connections that cross it
(max-min fair: Bertsekas & Gallager, Data Networks, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commsim.collectives.semantics import CHAINED
from commsim.nccl.machine import nic_efficiency
from commsim.nccl.node_ways import Edges
from commsim.nccl.nodes import Nodes
from commsim.nccl.peers import peer_edges
from commsim.nccl.predict import Prediction, Predictor
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.streams import spread, stream_ways
from commsim.nccl.system import Graph
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64, LinkKind

_MOST_ROUNDS, _SETTLED = 100, 1e-9
"""Rounds in which calls find their paces beside each other, and the relative change of a pace that counts as none."""


@dataclass(frozen=True, eq=False)
class CallTraffic:
    """One call of a job: when it begins, how long it takes alone, what it puts on links, by how many connections.

    ``nbytes`` and ``lines`` are (links,) of the topology; ``capacity`` is what the links carry of such bytes a second.
    """

    start_s: float
    alone_s: float
    nbytes: Float64
    lines: Float64
    capacity: Float64
    late_s: float = 0.0  # of its slowest rank, before which nothing is sent; it counts as time of the call


@dataclass(frozen=True)
class Together:
    """Of each call the seconds from its start to its end beside the others, and the link that kept it longest (-1)."""

    seconds: tuple[float, ...]
    link: tuple[int, ...]


def call_of(model: Predictor, collective: str, nbytes: int, start_s: float = 0.0) -> tuple[CallTraffic, Prediction]:
    """A call of the model's communicator as it lies on the links, and its prediction alone."""
    got = model.predict(collective, nbytes)
    nodes, t = model.nodes, model.nodes.comm.topology
    hop, inside = _bytes_of_hops(model, collective, nbytes, got.algorithm)
    put, lines = np.zeros(t.link_bandwidth.size), np.zeros(t.link_bandwidth.size)
    if nodes.count > 1:
        edges, graphs, carried = _edges(nodes, collective, got.algorithm, nbytes, hop)
        if edges is None:
            _on_ports(nodes, put, lines, float(carried.max(initial=0.0)))
        else:
            ways = stream_ways(nodes.comm, graphs, edges.src, edges.dst)
            channels = ways.of.shape[1]
            put += ways.load(carried[ways.edge] * ways.weight / channels, put.size)
            lines += ways.load(ways.weight * (carried[ways.edge] > 0), put.size)
    _on_neighbours(nodes, put, lines, inside, max(1, got.channels))
    wire = PROTOCOLS[got.protocol].wire_factor if got.protocol in PROTOCOLS else 1.0
    return CallTraffic(start_s, got.time_s, spread(t, put) * wire, spread(t, lines), _capacity(model)), got


def flow_of(
    topology: Topology, src: int, dst: int, nbytes: int | None, rate: float | None, start_s: float
) -> CallTraffic:  # fmt: skip
    """Traffic between two ranks, of so many bytes or for ever at a rate, as a call of one connection."""
    way = topology.route(src, dst)
    put, lines = np.zeros(topology.link_bandwidth.size), np.zeros(topology.link_bandwidth.size)
    alone = np.inf if nbytes is None else nbytes / float(topology.link_bandwidth[way].min())
    put[way] = rate if nbytes is None else nbytes
    lines[way] = 1.0
    return CallTraffic(start_s, alone, put, lines, topology.link_bandwidth)


def _bytes_of_hops(model: Predictor, collective: str, nbytes: int, algorithm: str) -> tuple[float, float]:
    """Bytes of a call that each rank sends to the next node, and to its neighbour in the node."""
    n, each = model.system.ranks, nbytes / model.system.ranks
    if algorithm == "send_recv":
        local = int(model.nodes.comm.counts.max()) - 1
        return float(nbytes), each * local if collective == "all_to_all" else each
    if algorithm in ("tree", "nvls_tree", "nvls") or algorithm.startswith("collnet"):
        return nbytes / 2, float(nbytes)
    if collective in CHAINED:
        return float(nbytes), float(nbytes)
    ring = (2 if collective == "all_reduce" else 1) * (n - 1) * each
    return ring, ring


def _edges(
    nodes: Nodes, collective: str, algorithm: str, nbytes: int, hop: float
) -> tuple[Edges | None, list[Graph], Float64]:
    """The edges that a call goes over (None: too many), the graphs whose NICs it takes, the bytes of each edge."""
    if algorithm == "send_recv" and collective != "send_recv":
        return peer_edges(nodes, collective, nbytes)
    rings, trees = ([getattr(kind.system, name) for kind in nodes.kinds] for name in ("ring", "tree"))
    over_trees = "tree" in algorithm
    edges = nodes.ways.trees if over_trees else nodes.ways.ring
    return edges, trees if over_trees else rings, np.full(edges.src.size, hop)


def _on_ports(nodes: Nodes, put: Float64, lines: Float64, carried: float) -> None:
    """Lays what each node sends and receives evenly on its NICs that work."""
    t, comm = nodes.comm.topology, nodes.comm
    usable = t.usable_nics[comm.nodes]
    share = carried / usable.sum(axis=1, keepdims=True)
    for ports in (t.fabric.port_up, t.fabric.port_down):
        at = ports[comm.nodes][usable]
        put[at] += np.broadcast_to(share, usable.shape)[usable]
        lines[at] += nodes.count - 1


def _on_neighbours(nodes: Nodes, put: Float64, lines: Float64, nbytes: float, channels: int) -> None:
    """Lays what each rank sends to its neighbour on the links between them; around the ring of a node that is alone."""
    comm = nodes.comm
    for k, kind in enumerate(nodes.kinds):
        n = kind.topology.ranks_per_node
        if n < 2:
            continue
        here = np.arange(n)
        template = kind.topology.node_routes.gpu_gpu[here, np.roll(here, -1)].ravel()
        # Where the ring goes on to another node, one hop of a node's is between nodes, of each channel another.
        share = 1.0 if nodes.count == 1 else (n - 1) / n
        first = comm.topology.node_first_link[comm.nodes[comm.kind == k]]
        at = (first[:, None] + template[template >= 0][None, :]).ravel()
        np.add.at(put, at, nbytes * share)
        np.add.at(lines, at, channels)


def _capacity(model: Predictor) -> Float64:
    """Payload bytes/s of the links of the machine."""
    t, kind = model.nodes.comm.topology, model.nodes.kinds[0]
    efficiency = kind.parameters.efficiency
    network = (t.link_kind == LinkKind.NETWORK) | (t.link_kind == LinkKind.FABRIC)
    factor = np.select(
        [network, t.link_kind == LinkKind.NVLINK],
        [nic_efficiency(model.machine, kind.parameters), efficiency.nvlink_switch],
        efficiency.pcie,
    )
    return np.asarray(t.link_bandwidth * factor)


def beside(calls: Sequence[CallTraffic]) -> Together:
    """What each of several calls takes beside the others, from its start to its end."""
    shared = _shared(calls)
    work, at = np.ones(len(calls)), 0.0
    begun = np.array([c.start_s for c in calls])
    start, alone = begun + np.array([c.late_s for c in calls]), np.array([c.alone_s for c in calls])
    end, worst, link = np.zeros(len(calls)), np.ones(len(calls)), np.full(len(calls), -1, np.int64)
    ends = np.isfinite(alone)  # what flows at a rate does so until all others have ended
    while (work[ends] > 0).any():
        here = np.flatnonzero((work > 0) & (start <= at))
        later = start[(work > 0) & (start > at)]
        if not here.size:
            at = float(later.min())
            continue
        pace, tight = _pace([calls[int(i)] for i in here], shared)
        slower = pace < worst[here]
        worst[here], link[here] = np.minimum(worst[here], pace), np.where(slower, tight, link[here])
        left = work[here] * alone[here] / pace
        span = min(float(left.min()), float(later.min(initial=np.inf)) - at)
        done = left <= span * (1 + 1e-12)
        work[here] = np.where(done, 0.0, work[here] - np.where(ends[here], span * pace / alone[here], 0.0))
        at += span
        end[here[done]] = at
    return Together(tuple((end - begun).tolist()), tuple(link.tolist()))


def meetings(calls: Sequence[CallTraffic], seconds: Sequence[float], topology: Topology) -> list[tuple[int, int]]:
    """Of each call the links that it shares with others while both run, and the busiest of them (-1: none).

    `seconds` are those of `beside`, from each start; what flows at a rate runs until all have ended.
    """
    used = np.array([c.nbytes > 0 for c in calls])
    start = np.array([c.start_s for c in calls])
    end = np.where([np.isfinite(c.alone_s) for c in calls], start + np.resize(seconds, len(calls)), np.inf)
    busy = sum((_rate(c) / c.capacity for c in calls), np.zeros(topology.link_bandwidth.size))
    out = []
    for i, own in enumerate(used):
        beside_it = (start < end[i]) & (end > start[i])
        links = np.flatnonzero(own & (used[beside_it].sum(axis=0) > 1))
        out.append((links.size, int(links[np.argmax(busy[links])]) if links.size else -1))
    return out


def _rate(call: CallTraffic) -> Float64:
    """Bytes/s that a call puts on each link at its pace alone; of what has no end its bytes are those of a second."""
    return call.nbytes / (call.alone_s if np.isfinite(call.alone_s) else 1.0)


def _shared(calls: Sequence[CallTraffic]) -> Int64:
    """The links that all calls together would fill, of which more than one takes part."""
    count, need = np.zeros(calls[0].nbytes.size, np.int64), np.zeros(calls[0].nbytes.size)
    for call in calls:
        count += call.nbytes > 0
        need += _rate(call) / call.capacity
    return np.flatnonzero((count > 1) & (need > 1.0))


def _pace(calls: Sequence[CallTraffic], links: Int64) -> tuple[Float64, Int64]:
    """How fast each call goes on, of its pace alone, and the link that keeps it (-1: none).

    A connection gets on each link what the others leave, evenly; a call goes at the pace of its slowest link. Each in
    turn takes what it can beside what the others use, until nothing moves.
    """
    pace, tight = np.ones(len(calls)), np.full(len(calls), -1, np.int64)
    if not links.size or len(calls) < 2:
        return pace, tight
    lines = np.array([c.lines[links] for c in calls])
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(lines > 0, np.array([_rate(c)[links] for c in calls]) / lines, 0.0)
    room = np.min([c.capacity[links] for c in calls], axis=0)
    for _ in range(_MOST_ROUNDS):
        before = pace.copy()
        for i, own in enumerate(each):
            wants = each * pace[:, None]
            wants[i] = own
            with np.errstate(divide="ignore", invalid="ignore"):
                got = np.where(own > 0, np.minimum(1.0, _levels(lines, wants, room) / own), 1.0)
            place = int(got.argmin())
            pace[i], tight[i] = got[place], links[place] if got[place] < 1.0 else -1
        if (abs(pace - before) <= _SETTLED * before).all():
            break
    return pace, tight


def _levels(lines: Float64, each: Float64, room: Float64) -> Float64:
    """The bytes/s that no connection may exceed on each link, so that all of them fill its room, (links,)."""
    order = np.argsort(each, axis=0)
    wants, count = np.take_along_axis(each, order, axis=0), np.take_along_axis(lines, order, axis=0)
    below = np.cumsum(wants * count, axis=0) - wants * count  # what those that want less take
    beyond = count.sum(axis=0)[None, :] - (np.cumsum(count, axis=0) - count)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(beyond > 0, (room[None, :] - below) / beyond, np.inf)
    fits = level < wants
    first = np.where(fits.any(axis=0), fits.argmax(axis=0), -1)
    return np.where(first >= 0, level[np.maximum(first, 0), np.arange(room.size)], np.inf)
