"""Sends and receives among the nodes of a communicator: who sends to whom, and what their ways leave of the time.

A send leaves its node by one of the NICs and stays on its rail; all NICs of a node that work carry as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import cycle, islice
from math import lcm
from typing import NamedTuple

import numpy as np

from commsim.collectives.semantics import ROOTED
from commsim.nccl.communicator import Comm
from commsim.nccl.machine import FABRIC, nic_efficiency
from commsim.nccl.node_ways import Edges
from commsim.nccl.nodes import Nodes, narrower
from commsim.nccl.p2p import Ends, busiest_rail, off_packs, p2p_time, with_chunk
from commsim.nccl.parameters import Parameters
from commsim.nccl.pools import MESHES, PINNED, spread
from commsim.nccl.system import Graph
from commsim.nccl.version import Version
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, LinkKind

_MOST_PAIRS = 1 << 16
"""Pairs of nodes up to which an all_to_all goes over the ways of each; beyond, it lies on their ports alone."""

_MOST_TURNS = 4
"""Rounds over the NICs of the node that has most; beyond, nodes of fewer NICs load some of theirs once more."""


def peer_edges(nodes: Nodes, collective: str, nbytes: int) -> tuple[Edges | None, list[Graph], Float64]:
    """The pairs of nodes between which ranks send (None: too many), by which NICs, and the bytes of each pair."""
    counts, n = nodes.comm.counts, nodes.comm.ranks
    own = _all_nics(nodes)
    if collective in ROOTED:
        others = np.arange(1, nodes.count)
        ends = np.zeros(others.size, np.int64), others
        edges = Edges(*(ends if collective == "scatter" else ends[::-1]), None)
        return edges, own, np.asarray(nbytes / n * counts[others], np.float64)
    if nodes.count * (nodes.count - 1) > _MOST_PAIRS:
        return None, own, np.asarray(nbytes / n * counts * (n - counts), np.float64)
    src, dst = np.nonzero(~np.eye(nodes.count, dtype=bool))
    return Edges(src, dst, None), own, np.asarray(nbytes / n * counts[src] * counts[dst], np.float64)


def _all_nics(nodes: Nodes, *, mended: bool = False) -> list[Graph]:
    """Of each kind of node a graph of as many channels as it takes to load all its NICs alike, the same for all kinds.

    That is a multiple of the NICs of each kind, unless it is more than `_MOST_TURNS` times the most of them. `mended`:
    as if those that have failed worked.
    """
    t, comm, taken = nodes.comm.topology, nodes.comm, list(nodes.ways.own_nics)
    counts = [max(1, k.machine.nics if nics is None else len(nics)) for k, nics in zip(nodes.kinds, taken, strict=True)]
    for k in range(len(taken) if mended else 0):
        node = int(comm.nodes[comm.kind == k][0])
        if taken[k] is None:
            counts[k] += int(t.nics_of_nodes[node] - t.usable_nics[node].sum())
            taken[k] = tuple(range(int(t.nics_of_nodes[node])))
    most, every = max(counts), lcm(*counts)
    channels = every if every <= _MOST_TURNS * most else most
    return [
        Graph(channels, 0.0, 0.0, "RING", "", "", nics=tuple((n, n) for n in islice(cycle(nics or ()), channels)))
        for nics in taken
    ]


@dataclass(frozen=True)
class Way:
    """The link between switches that sends keep busiest: seconds by byte of a call; its name where it is slowed.

    ``unknown``: some are slowed, and it is not looked at what goes over them.
    """

    seconds_per_byte: float = 0.0
    name: str = ""
    unknown: bool = False


def busiest_way(nodes: Nodes, collective: str) -> Way:
    """Of all links between switches the one that a call of sends keeps busiest.

    A mesh of routers has its cut instead (`Machine.cut`).
    """
    t = nodes.comm.topology
    left = np.ones(t.link_bandwidth.size) if t.link_share is None else t.link_share
    fabric = np.flatnonzero((t.link_kind == LinkKind.FABRIC) & t.works)
    edges, graphs, carried = peer_edges(nodes, collective, 1)
    if edges is None or t.kind in MESHES:
        return Way(unknown=bool((left[fabric] < 1.0).any()))
    load = _put(nodes.comm, graphs, edges, carried)
    if t.routing in PINNED and t.link_failed is not None:
        # What goes round a failure may by luck leave a crowded link, on which no hash can be relied: the worse counts.
        load = np.maximum(
            load, _put(replace(nodes.comm, topology=_mended(t)), _all_nics(nodes, mended=True), edges, carried)
        )
    fabric = fabric[load[fabric] > 0]
    if not fabric.size:
        return Way()
    seconds = load[fabric] / t.link_bandwidth[fabric]
    link, kind = int(fabric[seconds.argmax()]), nodes.kinds[0]
    share = nic_efficiency(kind.machine, kind.parameters, all_to_all=collective == "all_to_all")
    # What has failed leaves more to the others: the busiest of them is named then too.
    lost = t.link_failed is not None and bool(t.link_failed[t.link_kind == LinkKind.FABRIC].any())
    return Way(float(seconds.max()) / share, t.link_name(link) if lost or left[link] < 1.0 else "")


def _put(comm: Comm, graphs: list[Graph], edges: Edges, carried: Float64) -> Float64:
    """What lies on each link of the topology where edges carry so much over the NICs of such graphs, (links,)."""
    from commsim.nccl.streams import stream_ways

    ways, t = stream_ways(comm, graphs, edges.src, edges.dst), comm.topology
    return spread(t, ways.load(carried[ways.edge] * ways.weight / ways.of.shape[1], t.link_bandwidth.size))


def _mended(t: Topology) -> Topology:
    """The machine where nothing has failed; what is slower stays so."""
    return replace(t, link_failed=None)


class Sent(NamedTuple):
    """Seconds of a kernel of sends, the bandwidth part of them, what limits it, channels per peer; the slow link."""

    seconds: float
    busy: float
    limit: str
    channels: int
    place: str = ""

    def over(self, way: Way, nbytes: int) -> Sent:
        """The same where a way between switches may need longer than what limits it."""
        if (least := way.seconds_per_byte * nbytes) <= self.busy:
            return self
        return Sent(self.seconds - self.busy + least, least, FABRIC, self.channels, way.name)


class PeerTimer:
    """Times calls of sends and receives over the nodes of one communicator; `warn` is told what they leave out."""

    def __init__(self, version: Version, env: dict[str, str], warn: Callable[[str], None]) -> None:
        self._version, self._env, self._warn = version, env, warn
        self._ways: dict[str, Way] = {}
        self._rail: float | None = None

    def time(self, nodes: Nodes, collective: str, nbytes: int, *, exact: bool) -> Sent:
        """One call of so many bytes; `nodes` are always those of the communicator, perhaps with other parameters."""
        off = off_packs(collective, nbytes, nodes.system.ranks) if exact else 0.0
        if off:
            self._warn(f"{collective}: sizes of which a peer has no multiple of 16 B are moved byte by byte, slowly")
        rail = self._busiest_rail(nodes) if collective == "scatter" else 1.0
        way = self._way(nodes, collective)
        return max(
            Sent(*p2p_time(nodes.system, ends, chunked, collective, nbytes, self._version, rail, off)).over(way, nbytes)
            for ends, parameters in _senders(nodes.of_sends.at_farthest(1, peers=True), collective)
            for chunked in (with_chunk(parameters, self._env),)
        )

    def _busiest_rail(self, nodes: Nodes) -> float:
        if self._rail is None:
            root = nodes.kinds[int(nodes.comm.kind[0])]
            self._rail = busiest_rail(root.topology, self._version, self._env)
        return self._rail

    def _way(self, nodes: Nodes, collective: str) -> Way:
        """The busiest way between switches where faults, or the nodes that take part, may leave less than usual."""
        if nodes.comm.plain or nodes.count < 2 or collective == "send_recv":
            return Way()
        if collective not in self._ways:
            self._ways[collective] = way = busiest_way(nodes, collective)
            if way.unknown:
                self._warn(
                    f"{collective}: which sends a slow link between switches holds up is not looked at over a "
                    f"{nodes.comm.topology.kind} of {nodes.count} nodes; its times do not have it"
                )
        return self._ways[collective]


def _senders(nodes: Nodes, collective: str) -> Iterator[tuple[Ends, Parameters]]:
    """Who may be last to end: the root's node, the nodes of each kind, or those at the weakest hop of a chain."""
    if collective == "send_recv" and nodes.count > 1:
        hops, weakest = nodes.hops(nodes.system.coll_channels).kinds, nodes.weakest
        yield Ends(reduce(narrower, (kind.machine for kind in hops)), 1, weakest, 1), hops[0].parameters
        return
    for k, kind in enumerate(nodes.kinds):
        own = kind.topology.ranks_per_node
        if collective in ROOTED:
            others = own if (nodes.comm.kind[1:] == k).any() else 0
            ends = Ends(nodes.node(0), int(nodes.comm.counts[0]), nodes.weakest_of(k), others)
            yield ends, kind.parameters
        else:
            machine = nodes.weakest_of(k)
            yield Ends(machine, own, machine, own), kind.parameters
