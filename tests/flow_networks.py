"""Random networks, and limits as plain linear programs over every pair of ranks, which the package's must equal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import lil_array

from commsim.synthesis.network import FlowNetwork, Link, network_of
from commsim.topology.kinds import Float64


@st.composite
def networks(draw: st.DrawFn, most: int = 6, *, both_ways: bool = False, acting: bool = False) -> FlowNetwork:
    """2 to `most` ranks on a cycle, so that all are joined, with up to 3 switches and links of unlike rates."""
    n, m = draw(st.integers(2, most)), draw(st.integers(0, 3))
    ranks, switches = [f"g{i}" for i in range(n)], [f"s{i}" for i in range(m)]
    names, rates = [*ranks, *switches], st.integers(1, 9)
    order = draw(st.permutations(ranks))
    pairs = [(order[i], order[(i + 1) % n]) for i in range(n)]
    some = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=3 * len(names))
    pairs += [pair for pair in draw(some) if pair[0] != pair[1]]
    links: list[Link] = []
    for a, b in pairs:
        rate = draw(rates)
        links += [(a, b, rate, 1e-6)] + ([(b, a, rate, 1e-6)] if both_ways else [])
    return network_of(links, ranks, copies=switches if acting else (), adds=switches if acting else ())


class Program:
    """A linear program that grows: blocks of unknowns of 0 or more, sums of some of them, the last one is the rate."""

    def __init__(self) -> None:
        self.unknowns = 1
        self.equal: list[dict[int, float]] = []
        self.below: list[tuple[dict[int, float], float]] = []

    def new(self, count: int) -> list[int]:
        """Unknowns."""
        self.unknowns += count
        return list(range(self.unknowns - count, self.unknowns))

    def most(self) -> float:
        """The largest rate."""
        cost = np.zeros(self.unknowns)
        cost[0] = -1
        done = linprog(
            cost,
            A_eq=self._rows(self.equal),
            b_eq=np.zeros(len(self.equal)),
            A_ub=self._rows([row for row, _ in self.below]),
            b_ub=[most for _, most in self.below],
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        assert done.status == 0, done.message
        return float(done.x[0])

    def _rows(self, rows: list[dict[int, float]]) -> lil_array:
        out = lil_array((len(rows), self.unknowns))
        for i, row in enumerate(rows):
            for k, value in row.items():
                out[i, k] = value
        return out.tocsr()


RATE = 0


def flow(p: Program, network: FlowNetwork, source: int, ends: dict[int, float], rate: int = RATE) -> list[int]:
    """A flow from a vertex that brings others so many times the rate; the unknowns of its edges."""
    x = p.new(network.edges)
    for v in range(network.vertices):
        row = {x[e]: 1.0 for e in np.flatnonzero(network.head == v).tolist()}
        row |= {x[e]: -1.0 for e in np.flatnonzero(network.tail == v).tolist()}
        wanted = -sum(ends.values()) if v == source else ends.get(v, 0.0)
        p.equal.append(row | ({rate: -wanted} if wanted else {}))
    return x


def share(p: Program, network: FlowNetwork, flows: Iterable[list[int]]) -> None:
    """All flows together fit on the edges."""
    columns = list(flows)
    for e in range(network.edges):
        p.below.append(({column[e]: 1.0 for column in columns}, float(network.capacity[e])))


def tree(p: Program, network: FlowNetwork, source: int, sinks: Iterable[int], rate: int = RATE) -> list[int]:
    """What trees from a vertex to others take of the edges: room for a flow to each; no switch copies unless it can."""
    y = p.new(network.edges)
    for v in sinks:
        for a, b in zip(flow(p, network, source, {v: 1.0}, rate), y, strict=True):
            p.below.append(({a: 1.0, b: -1.0}, 0.0))
    for v in np.flatnonzero((network.rank_of < 0) & ~network.copies).tolist():
        row = {y[e]: 1.0 for e in np.flatnonzero(network.tail == v).tolist()}
        p.below.append((row | {y[e]: -1.0 for e in np.flatnonzero(network.head == v).tolist()}, 0.0))
    return y


def others(network: FlowNetwork, v: int) -> list[int]:
    """The vertices of all ranks but one."""
    return [r for r in network.ranks.tolist() if r != v]


def all_gather_rate(network: FlowNetwork) -> float:
    """Blocks of every rank a second, by trees of each rank; a block and an array are a byte here and below."""
    p = Program()
    share(p, network, [tree(p, network, v, others(network, v)) for v in network.ranks.tolist()])
    return p.most() * float(network.unit)


def broadcast_rate(network: FlowNetwork, root: int) -> float:
    """Arrays a second from a rank."""
    p, v = Program(), int(network.ranks[root])
    share(p, network, [tree(p, network, v, others(network, v))])
    return p.most() * float(network.unit)


def all_reduce_rate(network: FlowNetwork) -> float:
    """Arrays a second that are added along trees into some rank and spread along trees out of it."""
    p, turned = Program(), network.reversed()
    roots, columns = p.new(network.n), []
    for weight, v in zip(roots, network.ranks.tolist(), strict=True):
        columns.append(tree(p, network, v, others(network, v), weight))
        columns.append(tree(p, turned, v, others(network, v), weight))
    share(p, network, columns)
    p.equal.append({RATE: -1.0} | dict.fromkeys(roots, 1.0))
    return p.most() * float(network.unit)


def exchange_rate(network: FlowNetwork, demand: Float64) -> float:
    """How often a second all demands are served, each pair with a flow of its own."""
    p, ranks = Program(), network.ranks.tolist()
    pairs = [(a, b) for a in range(network.n) for b in range(network.n) if a != b and demand[a, b] > 0]
    share(p, network, [flow(p, network, ranks[a], {ranks[b]: float(demand[a, b])}) for a, b in pairs])
    return p.most() * float(network.unit)
