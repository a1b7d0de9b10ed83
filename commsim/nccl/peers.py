"""Sends and receives among the nodes of a communicator: who sends to whom, and what their ways leave of the time.

A send leaves its node by one of the NICs and stays on its rail; all NICs of a node that work carry as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.collectives.semantics import ROOTED
from commsim.nccl.machine import MESHES, nic_efficiency
from commsim.nccl.nodes import Edges, Nodes
from commsim.nccl.system import Graph
from commsim.topology.kinds import Float64, LinkKind

_MOST_PAIRS = 1 << 16
"""Pairs of nodes up to which an all_to_all goes over the ways of each; beyond, it lies on their ports alone."""


def peer_edges(nodes: Nodes, collective: str, nbytes: int) -> tuple[Edges | None, list[Graph], Float64]:
    """The pairs of nodes between which ranks send (None: too many), by which NICs, and the bytes of each pair."""
    counts, n = nodes.comm.counts, nodes.comm.ranks
    own = [Graph(max(1, kind.machine.nics), 0.0, 0.0, "RING", "", "") for kind in nodes.kinds]
    if collective in ROOTED:
        others = np.arange(1, nodes.count)
        ends = np.zeros(others.size, np.int64), others
        edges = Edges(*(ends if collective == "scatter" else ends[::-1]), None)
        return edges, own, np.asarray(nbytes / n * counts[others], np.float64)
    if nodes.count * (nodes.count - 1) > _MOST_PAIRS:
        return None, own, np.asarray(nbytes / n * counts * (n - counts), np.float64)
    src, dst = np.nonzero(~np.eye(nodes.count, dtype=bool))
    return Edges(src, dst, None), own, np.asarray(nbytes / n * counts[src] * counts[dst], np.float64)


@dataclass(frozen=True)
class Way:
    """The link between switches that sends keep busiest: seconds by byte of a call; its name where it is slowed."""

    seconds_per_byte: float = 0.0
    name: str = ""


def busiest_way(nodes: Nodes, collective: str) -> Way:
    """Of all links between switches the one that a call of sends keeps busiest; without seconds where it is not known.

    A mesh of routers has its cut instead (`Machine.cut`).
    """
    from commsim.nccl.streams import spread, stream_ways

    t = nodes.comm.topology
    fabric = np.flatnonzero((t.link_kind == LinkKind.FABRIC) & t.works)
    edges, graphs, carried = peer_edges(nodes, collective, 1)
    if edges is None or not fabric.size or t.kind in MESHES:
        return Way()
    ways = stream_ways(nodes.comm, graphs, edges.src, edges.dst)
    load = spread(t, ways.load(carried[ways.edge] * ways.weight / ways.of.shape[1], t.link_bandwidth.size))
    fabric = fabric[load[fabric] > 0]
    if not fabric.size:
        return Way()
    seconds = load[fabric] / t.link_bandwidth[fabric]
    link = int(fabric[seconds.argmax()])
    kind = nodes.kinds[0]
    share = nic_efficiency(kind.machine, kind.parameters, all_to_all=collective == "all_to_all")
    slowed = t.link_share is not None and t.link_share[link] < 1.0
    return Way(float(seconds.max()) / share, t.link_name(link) if slowed else "")
