"""A machine as a network of flows: what joins the ranks of a collective, with whole numbers for capacities.

Vertices are ranks, which may keep, copy and add what they take in, and all else, which passes bytes on: GPUs without a
rank, PCIe switches, hosts, NICs, switches. Some switches also copy (multicast) and add (reduce).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from commsim.errors import TopologyError
from commsim.synthesis.rates import Rate, exact, in_units
from commsim.topology.kinds import Bool, Float64, Int64, UInt8, VertexKind

Link = tuple[str, str, Rate, float]
"""From a vertex to another, bytes/s, seconds of latency."""

_TOLD = 6
"""Ranks that a message names."""


@dataclass(frozen=True, eq=False)
class FlowNetwork:
    """V vertices and E directed edges; edge e carries ``capacity[e]`` units of ``unit`` bytes/s.

    ``ranks`` (n,): the vertex of each rank, in the order of the group. ``kind`` (V,) are `VertexKind`, ``node`` (V,)
    is -1 for what belongs to none. ``copies``, ``adds`` (V,): vertices without a rank that multicast and reduce.
    ``links``: what links of the topology each edge stands for, several where they are parallel; empty where the network
    is of no topology. ``direct``: edges of chip-to-chip links (C2C). No two edges have the same ends.
    """

    name: str
    vertex: tuple[str, ...]
    kind: UInt8
    node: Int64
    ranks: Int64
    copies: Bool
    adds: Bool
    tail: Int64
    head: Int64
    capacity: Int64
    unit: Fraction
    latency: Float64
    links: tuple[tuple[int, ...], ...] = ()
    direct: frozenset[int] = frozenset()

    @property
    def n(self) -> int:
        """Number of ranks."""
        return int(self.ranks.size)

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.vertex)

    @property
    def edges(self) -> int:
        """Number of directed edges."""
        return int(self.tail.size)

    def rate(self, edge: int) -> Fraction:
        """Bytes/s of an edge."""
        return int(self.capacity[edge]) * self.unit

    @cached_property
    def rank_of(self) -> Int64:
        """The rank at each vertex, -1 where there is none, (V,)."""
        out = np.full(self.vertices, -1, np.int64)
        out[self.ranks] = np.arange(self.n)
        return out

    @cached_property
    def taken_in(self) -> Int64:
        """Units into each vertex, (V,)."""
        return self._sums(self.head)

    @cached_property
    def given_out(self) -> Int64:
        """Units out of each vertex, (V,)."""
        return self._sums(self.tail)

    @cached_property
    def onward(self) -> list[list[tuple[int, float]]]:
        """(vertex, seconds) that each vertex leads to."""
        out: list[list[tuple[int, float]]] = [[] for _ in range(self.vertices)]
        for a, b, late in zip(self.tail.tolist(), self.head.tolist(), self.latency.tolist(), strict=True):
            out[a].append((b, late))
        return out

    def _sums(self, ends: Int64) -> Int64:
        total = np.zeros(self.vertices, np.int64)
        np.add.at(total, ends, self.capacity)
        return total

    def reversed(self) -> FlowNetwork:
        """The network with every edge turned round: what reduces on the one gathers on the other."""
        return replace(self, tail=self.head, head=self.tail, copies=self.adds, adds=self.copies)


def network_of(
    links: Iterable[Link],
    ranks: Sequence[str],
    *,
    name: str = "network",
    copies: Collection[str] = (),
    adds: Collection[str] = (),
    node: dict[str, int] | None = None,
) -> FlowNetwork:
    """The network of some links: every end that is no rank is a switch. TopologyError says what makes no sense."""
    given = list(links)
    for a, b, rate, latency in given:
        if not (0 < rate < float("inf")):
            raise TopologyError(f"{name}: the link {a} -> {b} carries {rate} bytes/s, expected more than none")
        if a == b or not latency >= 0:
            raise TopologyError(
                f"{name}: the link {a} -> {b} joins a vertex to itself or has no latency of 0 s or more"
            )
    vertex = tuple(dict.fromkeys([*ranks, *(end for a, b, *_ in given for end in (a, b))]))
    if len(set(ranks)) < len(ranks):
        raise TopologyError(f"{name}: a rank is named twice among {', '.join(ranks[:_TOLD])}")
    at = {v: i for i, v in enumerate(vertex)}
    kind = np.full(len(vertex), VertexKind.SWITCH, np.uint8)
    kind[: len(ranks)] = VertexKind.GPU
    vertices = Vertices(
        vertex,
        kind,
        node=np.array([(node or {}).get(v, -1) for v in vertex], np.int64),
        copies=np.array([v in copies for v in vertex], bool),
        adds=np.array([v in adds for v in vertex], bool),
    )
    wires = Wires(
        ends=np.array([(at[a], at[b]) for a, b, *_ in given], np.int64).reshape(-1, 2),
        rates=[exact(rate) for _, _, rate, _ in given],
        latency=np.array([latency for *_, latency in given], np.float64),
    )
    return joined(name, vertices, wires, np.arange(len(ranks)))


@dataclass(frozen=True, eq=False)
class Vertices:
    """What can be joined: names, `VertexKind`, node (-1: none), whether it multicasts and reduces, each (V,)."""

    name: tuple[str, ...]
    kind: UInt8
    node: Int64
    copies: Bool
    adds: Bool


@dataclass(frozen=True, eq=False)
class Wires:
    """What joins them: ``ends`` (L, 2), bytes/s and seconds of each, and its number in a topology if there is one.

    ``direct`` (L,): whether it is a chip-to-chip link.
    """

    ends: Int64
    rates: Sequence[Fraction]
    latency: Float64
    links: Int64 | None = None
    direct: Bool | None = None


def joined(name: str, vertices: Vertices, wires: Wires, ranks: Int64) -> FlowNetwork:
    """The network of these wires, parallel ones put together and dead ends left out; ``ranks`` (n,) are vertices.

    TopologyError names ranks that cannot reach each other.
    """
    ends, links = wires.ends, wires.links
    if ranks.size == 0:
        raise TopologyError(f"{name}: expected at least one rank")
    alive = _no_dead_ends(ends, len(vertices.name), ranks)
    kept = np.flatnonzero(alive[ends].all(axis=1))
    number = np.cumsum(alive) - 1
    at = np.flatnonzero(alive)
    key, place = np.unique(number[ends[kept, 0]] * at.size + number[ends[kept, 1]], return_inverse=True)
    of_link, unit = in_units([wires.rates[link] for link in kept.tolist()])
    capacity, late = np.zeros(key.size, np.int64), np.zeros(key.size)
    np.add.at(capacity, place, of_link)
    np.maximum.at(late, place, wires.latency[kept])
    members: list[list[int]] = [[] for _ in range(0 if links is None else key.size)]
    if links is not None:
        for link, edge in zip(links[kept].tolist(), place.tolist(), strict=True):
            members[edge].append(link)
    direct = frozenset() if wires.direct is None else frozenset(place[wires.direct[kept]].tolist())
    network = FlowNetwork(
        name=name,
        vertex=tuple(vertices.name[v] for v in at.tolist()),
        kind=vertices.kind[at],
        node=vertices.node[at],
        ranks=number[ranks],
        copies=vertices.copies[at],
        adds=vertices.adds[at],
        tail=key // max(at.size, 1),
        head=key % max(at.size, 1),
        capacity=capacity,
        unit=unit,
        latency=late,
        links=tuple(map(tuple, members)),
        direct=direct,
    )
    _require_joined(network)
    return network


def _no_dead_ends(ends: Int64, vertices: int, ranks: Int64) -> Bool:
    """Vertices but those that nothing can come from or go to, or only from and to one and the same neighbour, (V,)."""
    alive, rank = np.ones(vertices, bool), np.zeros(vertices, bool)
    rank[ranks] = True
    both = np.concatenate([ends, ends[:, ::-1]])
    near = np.unique(both[:, 0] * vertices + both[:, 1])
    a, b = near // max(vertices, 1), near % max(vertices, 1)
    while True:
        working = alive[ends].all(axis=1)
        out, into = (np.bincount(ends[working, i], minlength=vertices) for i in (0, 1))
        neighbours = np.bincount(a[alive[a] & alive[b]], minlength=vertices)
        dead = alive & ~rank & ((out == 0) | (into == 0) | (neighbours < 2))
        if not dead.any():
            return alive
        alive &= ~dead


def _require_joined(network: FlowNetwork) -> None:
    first = f"rank 0 ({network.vertex[int(network.ranks[0])]})"
    for turned, way, end in ((False, "from", "to"), (True, "to", "from")):
        reached = _reached(network, turned)[network.ranks]
        if not reached.all():
            lost = np.flatnonzero(~reached).tolist()
            names = [network.vertex[int(network.ranks[r])] for r in lost[:_TOLD]]
            more = f" and {len(lost) - _TOLD} more" if len(lost) > _TOLD else ""
            raise TopologyError(
                f"{network.name}: no way {way} {first} {end} rank{'s' * (len(lost) > 1)} "
                f"{', '.join(map(str, lost[:_TOLD]))} ({', '.join(names)}){more}: no collective can join them"
            )


def _reached(network: FlowNetwork, turned: bool) -> Bool:
    """Vertices that the first rank reaches, or, turned round, that reach it, (V,)."""
    src, dst = (network.head, network.tail) if turned else (network.tail, network.head)
    reached = np.zeros(network.vertices, bool)
    reached[network.ranks[0]] = True
    while True:
        new = dst[reached[src]]
        if reached[new].all():
            return reached
        reached[new] = True
