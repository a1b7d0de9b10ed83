"""Moves of a network onto itself: what holds for the trees of one rank holds for those of the ranks it is moved to.

Ranks are numbered by digits: nodes, and parts of a node inside each other (boards of two GPUs, say). Of each digit one
move is tried: every value to the next one, round. What is a move of the ranks alone need not be one of the machine: a
rank may have a NIC that the next has not. So the vertices that a move of the ranks asks for are derived by refinement
of colours, and every link is compared. The moves that hold commute, and all they make together is the group. Without
a root none of them leaves a rank where it is, so every rank has as many trees as the first. Moves that keep a root turn
what is beside its part of every node, and the nodes beside its own; each of its trees is cut into their images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commsim.synthesis.forest import Branch, Forest, Tree
from commsim.synthesis.network import FlowNetwork
from commsim.topology.kinds import Float64, Int64

MOST_MOVES = 1024
"""Moves of a group at most: more make no problem smaller that matters, and each is a copy of every tree."""
_DIGITS = 3
"""Digits of a number at most, of nodes and of ranks in a node."""
_ROUNDS = 32
"""Rounds of refinement at most: links between the ranks and the vertex farthest from them."""

UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A group of g moves; ``vertex`` (g, V) and ``edge`` (g, E) say where each puts vertices and edges."""

    network: FlowNetwork
    vertex: Int64
    edge: Int64

    @property
    def moves(self) -> int:
        """How many moves there are, that which moves nothing counted."""
        return int(self.vertex.shape[0])

    @cached_property
    def edge_class(self) -> Int64:
        """The class of every edge, numbered from 0, of those that some move puts onto each other, (E,)."""
        return np.unique(self.edge.min(axis=0), return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def _end(self) -> Int64:
        """Where each move puts endpoints: ranks, and after them vertices that copy or add, (g, endpoints)."""
        network = self.network
        ends = np.concatenate([network.ranks, np.flatnonzero(network.copies | network.adds)])
        number = np.full(network.vertices, -1, np.int64)
        number[ends] = np.arange(ends.size)
        return number[self.vertex[:, ends]]

    @cached_property
    def first(self) -> Int64:
        """The first rank of those that each is moved to, (n,)."""
        return np.asarray(self._end[:, : self.network.n].min(axis=0), np.int64)

    @cached_property
    def to_first(self) -> Int64:
        """The move that puts each rank onto the first, (n,)."""
        return np.asarray(self._end[:, : self.network.n].argmin(axis=0), np.int64)

    def shared(self, need: Float64) -> Float64:
        """What the first rank of each class carries for all of it, (n,); the others nothing."""
        return np.asarray(np.bincount(self.first, need, self.network.n), np.float64)

    def images(self, forest: Forest) -> Forest:
        """The forest with every tree moved by all moves, each with its part of the share."""
        out, into = (
            tuple(self._image(tree, move) for tree in trees for move in range(self.moves))
            for trees in (forest.out, forest.into)
        )
        return Forest(self.network, np.repeat(forest.share / self.moves, self.moves), out, into)

    def _image(self, tree: Tree, move: int) -> Tree:
        end, edge = self._end[move], self.edge[move]
        moved = edge[tree.edges].tolist()
        branches, at = [], 0
        for branch in tree.branches:
            way = tuple(moved[at : at + len(branch.way)])
            at += len(way)
            branches.append(Branch(int(end[branch.src]), int(end[branch.dst]), way))
        return Tree(int(end[tree.root]), tuple(branches), tree.into)


def symmetry_of(network: FlowNetwork, root: int | None = None) -> Symmetry | None:
    """The largest group of moves that is tried, of those that keep the root if there is one; None if nothing moves."""
    refined = _Refined(network)
    m, G = _shape(network)
    rank = np.arange(network.n)
    vertex, edge = np.arange(network.vertices)[None, :], np.arange(network.edges)[None, :]
    for size, stride in ((G, 1), (m, G)):
        best: list[tuple[int, Int64, Int64]] = []
        for tried in _moves(rank, size, stride) if root is None else _around(rank, root, size, stride):
            moves = [
                (order, *held)
                for order, moved in tried
                if (held := refined.extended(moved, order) or refined.extended(moved)) is not None
            ]
            if _order(moves) > _order(best):
                best = moves
            if len(best) == len(tried):
                break
        for order, one_vertex, one_edge in best:
            if order * vertex.shape[0] > MOST_MOVES:
                continue
            vertex, edge = _powers(vertex, one_vertex, order), _powers(edge, one_edge, order)
    return Symmetry(network, vertex, edge) if vertex.shape[0] > 1 else None


def _order(moves: list[tuple[int, Int64, Int64]]) -> int:
    return int(np.prod([order for order, *_ in moves], dtype=np.int64))


def _powers(group: Int64, move: Int64, order: int) -> Int64:
    """All that the group does, and after it the move up to ``order - 1`` times."""
    parts = [group]
    for _ in range(order - 1):
        parts.append(move[parts[-1]])
    return np.concatenate(parts)


def _shape(network: FlowNetwork) -> tuple[int, int]:
    """Nodes, and ranks in each; one node where ranks lie in none, or not in as many of each."""
    node = network.node[network.ranks]
    count = np.unique(node, return_counts=True)[1]
    even = node.min() >= 0 and (count == count[0]).all() and (np.diff(node) != 0).sum() == count.size - 1
    return (count.size, int(count[0])) if even else (1, network.n)


def _factors(size: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of at most so many numbers above 1, in order."""
    if size > 1:
        yield (size,)
    if most > 1:
        for first in range(2, size // 2 + 1):
            if size % first == 0:
                yield from ((first, *rest) for rest in _factors(size // first, most - 1))


def _moves(rank: Int64, size: int, stride: int) -> Iterator[list[tuple[int, Int64]]]:
    """Of each way to number, few digits first, of each digit: after how many times all is as before, where ranks go."""
    for digits in sorted(_factors(size, _DIGITS), key=len):
        moves, step = [], stride
        for d in digits:
            value = rank // step % d
            moves.append((d, rank + step * ((value + 1) % d - value)))
            step *= d
        yield moves


def _around(rank: Int64, root: int, size: int, stride: int) -> Iterator[list[tuple[int, Int64]]]:
    """What turns round all parts but that of the root, the smallest parts first, as `_moves` has it."""
    for part in (part for part in range(1, size // 3 + 1) if size % part == 0):
        d, step = size // part, stride * part
        value, own = rank // step % d, root // step % d
        beside = (value - own) % d
        turned = np.where(beside > 0, beside % (d - 1) + 1, 0)
        yield [(d - 1, rank + step * ((turned + own) % d - value))]


class _Refined:
    """A network with the colours of its vertices, by which a move of the ranks is made one of all vertices."""

    def __init__(self, network: FlowNetwork) -> None:
        self.network = network
        self._key = network.tail * network.vertices + network.head
        self._by_key = np.argsort(self._key, kind="stable")
        latency = np.unique(network.latency, return_inverse=True)[1].reshape(-1)
        link = _mixed(network.capacity.astype(np.uint64) * np.uint64(1 << 16) + latency.astype(np.uint64))
        self._out, self._in = link, _mixed(link)
        self._plain = self._colours(np.arange(network.n))
        self._order = np.argsort(self._plain, kind="stable")

    def extended(self, moved: Int64, times: int = 1) -> tuple[Int64, Int64] | None:
        """Where vertices (V,) and edges (E,) go if rank r goes to ``moved[r]``; None where some link would be lost.

        Vertices of one colour, the spines above a leaf say, keep their order, so that moves commute. If the move
        brings all ranks back after so many ``times``, they are also turned, by what brings them back too: the images of
        a tree over one spine then go over all of them.
        """
        n = self.network
        colour = self._colours(moved)
        order = np.argsort(colour, kind="stable")
        if (colour[order] != self._plain[self._order]).any():
            return None
        vertex = np.empty(n.vertices, np.int64)
        vertex[order] = self._order[self._turned(times)]
        key = vertex[n.tail] * n.vertices + vertex[n.head]
        edge = self._by_key[np.minimum(np.searchsorted(self._key[self._by_key], key), n.edges - 1)]
        same = (self._key[edge] == key) & (n.capacity[edge] == n.capacity) & (n.latency[edge] == n.latency)
        return (vertex, edge) if same.all() else None

    def _turned(self, times: int) -> Int64:
        """Places in the order of colours (V,), those of each colour turned by a part that comes back in ``times``."""
        count = np.unique(self._plain, return_counts=True)[1]
        first, count = np.repeat(np.cumsum(count) - count, count), np.repeat(count, count)
        place = np.arange(count.size) - first
        return np.asarray(first + (place + count // np.gcd(count, times)) % count, np.int64)

    def _colours(self, label: Int64) -> UInt64:
        """Of every vertex what it is, and to which ranks, by these labels, it is joined and how, (V,)."""
        n = self.network
        own = _mixed((n.kind.astype(np.uint64) * np.uint64(4) + n.copies * np.uint64(2) + n.adds).astype(np.uint64))
        own[n.ranks] = _mixed(label.astype(np.uint64) + np.uint64(1 << 20))
        rank = n.rank_of >= 0
        colour, kinds = own, 0
        for _ in range(_ROUNDS):
            total = own.copy()
            np.add.at(total, n.tail, _mixed(colour[n.head] ^ self._out))
            np.add.at(total, n.head, _mixed(colour[n.tail] ^ self._in))
            colour = np.where(rank, own, _mixed(total))
            now = np.unique(colour).size
            if now == kinds:
                break
            kinds = now
        return colour


def _mixed(value: UInt64) -> UInt64:
    """Numbers of 64 bits, as if by chance, from others (SplitMix64: Steele, Lea & Flood 2014)."""
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)
