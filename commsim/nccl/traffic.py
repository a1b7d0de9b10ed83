"""What calls put on the links of the machine.

The bytes of a call lie on links as its channels go: over rings and trees between nodes by the NICs and ways of
`commsim.nccl.streams`, inside a node over the links between neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from commsim.collectives.semantics import CHAINED
from commsim.engine.sharing import CallTraffic, LinkLoad
from commsim.nccl.communicator import Comm
from commsim.nccl.machine import nic_efficiency
from commsim.nccl.node_ways import Edges
from commsim.nccl.nodes import Kind, Nodes
from commsim.nccl.peers import peer_edges
from commsim.nccl.pools import spread_from
from commsim.nccl.predict import Prediction, Predictor
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.streams import stream_ways
from commsim.nccl.system import Graph
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64, LinkKind


def call_of(model: Predictor, collective: str, nbytes: int, start_s: float = 0.0) -> tuple[CallTraffic, Prediction]:
    """A call of the model's communicator as it lies on the links, and its prediction alone."""
    got = model.predict(collective, nbytes)
    return CallTraffic(start_s, got.time_s, load_of(model, collective, got)), got


def load_of(model: Predictor, collective: str, got: Prediction, groups: Int64 | None = None) -> LinkLoad:
    """What a call of the model's communicator puts on links, as NCCL runs it by the prediction.

    ``groups`` (groups, nodes): what such calls of so many communicators put there together, each with its nodes in
    NCCL's order, which are of the same kinds as the model's.
    """
    nodes = model.nodes
    t, comm = nodes.comm.topology, nodes.comm if groups is None else nodes.comm.elsewhere(groups)
    hop, inside = _bytes_of_hops(model, collective, got.nbytes, got.algorithm)
    parts: list[_Part] = []
    if nodes.count > 1:
        edges, graphs, carried = _edges(nodes, collective, got.algorithm, got.nbytes, hop)
        if edges is None:
            parts += _on_ports(comm, nodes.count, float(carried.max(initial=0.0)))
        else:
            first = nodes.count * np.arange(comm.copies)[:, None]
            src, dst = (first + edges.src).ravel(), (first + edges.dst).ravel()
            carried = np.tile(carried, comm.copies)
            ways = stream_ways(comm, graphs, src, dst)
            channels = ways.of.shape[1]
            each = carried[ways.edge] * ways.weight / channels, ways.weight * (carried[ways.edge] > 0)
            link, (nbytes, lines) = ways.along(*each)
            parts.append(_Part(link, nbytes, lines))
    parts += _on_neighbours(nodes, comm, inside, got)
    wire = PROTOCOLS[got.protocol].wire_factor if got.protocol in PROTOCOLS else 1.0
    link, nbytes, lines = _summed(parts, t.link_bandwidth.size)
    return _lying(model, link, nbytes * wire, lines, all_to_all=collective == "all_to_all")


class _Part(NamedTuple):
    """Bytes and connections on links, of which one may stand several times."""

    link: Int64
    nbytes: Float64
    lines: Float64


def _summed(parts: Sequence[_Part], links: int) -> _Part:
    """All parts, each link once and in rising order; few of a large machine's `links` are among them."""
    every = _Part(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    used, place = np.zeros(links, bool), np.empty(links, np.int64)
    used[every.link] = True
    link = np.flatnonzero(used)
    place[link] = np.arange(link.size)
    at = place[every.link]
    return _Part(link, *(np.bincount(at, c, link.size).astype(np.float64) for c in (every.nbytes, every.lines)))


def lying(model: Predictor, put: Float64, lines: Float64) -> LinkLoad:
    """Bytes and connections, both (links,), on the links of the machine, where equal ways share them evenly."""
    link = np.flatnonzero((put > 0) | (lines > 0))
    return _lying(model, link, put[link], lines[link], all_to_all=False)


def _lying(model: Predictor, link: Int64, put: Float64, lines: Float64, *, all_to_all: bool) -> LinkLoad:
    """As `lying`, on some links, each once and in rising order."""
    link, put, lines = spread_from(model.nodes.comm.topology, link, put, lines)
    return LinkLoad(link, put, lines, _capacity(model, link, all_to_all=all_to_all))


def flow_of(
    topology: Topology, src: int, dst: int, nbytes: int | None, rate: float | None, start_s: float
) -> CallTraffic:  # fmt: skip
    """Traffic between two ranks, of so many bytes or for ever at a rate, as a call of one connection."""
    way = topology.route(src, dst).astype(np.int64)
    room = topology.link_bandwidth[way]
    put = float(rate or 0.0) if nbytes is None else float(nbytes)
    alone = np.inf if nbytes is None else nbytes / float(room.min())
    return CallTraffic(start_s, alone, LinkLoad(way, np.full(way.size, put), np.ones(way.size), room))


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


def _on_ports(comm: Comm, count: int, carried: float) -> list[_Part]:
    """What each node sends to the others of so many, and receives, evenly on its NICs that work."""
    t = comm.topology
    usable = t.usable_nics[comm.nodes]
    share = np.broadcast_to(carried / usable.sum(axis=1, keepdims=True), usable.shape)[usable]
    ports = (up[comm.nodes][usable].astype(np.int64) for up in (t.fabric.port_up, t.fabric.port_down))
    return [_Part(at, share, np.full(at.size, count - 1.0)) for at in ports]


def _on_neighbours(nodes: Nodes, comm: Comm, nbytes: float, got: Prediction) -> list[_Part]:
    """What each rank sends to its neighbour in the node, on the links between them."""
    parts = [_Part(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))]
    for k, kind in enumerate(nodes.kinds):
        if kind.topology.ranks_per_node < 2:
            continue
        link, share = _hops_inside(kind, got.algorithm, alone=nodes.count == 1)
        first = comm.topology.node_first_link[comm.nodes[comm.kind == k]].astype(np.int64)
        at = (first[:, None] + link).ravel()
        channels = max(1, got.channels)
        parts.append(_Part(at, np.tile(nbytes * share, first.size), np.tile(channels * share, first.size)))
    return parts


def _hops_inside(kind: Kind, algorithm: str, *, alone: bool) -> tuple[Int64, Float64]:
    """The links of a node on which ranks send to their neighbours, of what each sends the share that lies there.

    On a mesh of GPUs channels go the ways that the search laid; else each rank sends to the next, and where the ring
    goes on to another node, one hop of a node's is between nodes, of each channel another. Sends go to all others.
    """
    n, routes = kind.topology.ranks_per_node, kind.topology.node_routes.gpu_gpu
    ways = kind.machine.tree_ways if "tree" in algorithm else kind.machine.ring_ways
    if algorithm == "send_recv":
        links, each = routes[~np.eye(n, dtype=bool)].ravel(), 1.0 / (n - 1)
    elif ways is not None:
        links, each = np.array([link for way in ways.hops for hop in way for link in hop]), 1.0 / len(ways.hops)
    else:
        here = np.arange(n)
        links, each = routes[here, np.roll(here, -1)].ravel(), 1.0 if alone else (n - 1) / n
    link, times = np.unique(links[links >= 0], return_counts=True)
    return link.astype(np.int64), np.asarray(times * each, np.float64)


def _capacity(model: Predictor, link: Int64, *, all_to_all: bool) -> Float64:
    """Payload bytes/s of some links of the machine."""
    t, kind = model.nodes.comm.topology, model.nodes.kinds[0]
    efficiency = kind.parameters.efficiency
    kinds = t.link_kind[link]
    factor = np.select(
        [(kinds == LinkKind.NETWORK) | (kinds == LinkKind.FABRIC), kinds == LinkKind.NVLINK],
        [nic_efficiency(model.machine, kind.parameters, all_to_all=all_to_all), efficiency.nvlink_switch],
        efficiency.pcie,
    )
    return np.asarray(t.link_bandwidth[link] * factor)
