"""A schedule for one collective, network and size: trees between least load and least depth, in pieces, by simulation.

Large arrays want the packing that loads the busiest link least, small ones the shortest ways; between them what the
simulation says. So some forests are made, from one end to the other, each is cut into more and more pieces as long
as that gains, and the quickest is kept. Small arrays are also sent as known algorithms do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from commsim.collectives.semantics import DIVIDED, PAIRWISE, RING_PASSES, ROOTED
from commsim.synthesis.aim import WHOLE_ARRAY, Aim, packing_of
from commsim.synthesis.exchange import PathPacking, ends_of
from commsim.synthesis.flat import flatten, paired
from commsim.synthesis.forest import Forest, Tree
from commsim.synthesis.justify import justified
from commsim.synthesis.known import MOST_BYTES, MOST_RANKS, known_schedules
from commsim.synthesis.laying import SYNTHESIZED, Laid, lay
from commsim.synthesis.laying_pairs import lay_pairs
from commsim.synthesis.limit import CollectiveLimit, limit_of
from commsim.synthesis.packing import Packing
from commsim.synthesis.pieces import pieces_of_blocks
from commsim.synthesis.timing import seconds_of
from commsim.synthesis.whole import whole_blocks
from commsim.topology.kinds import Float64

MOST_ROWS = 6_000_000
"""Rows of a schedule at most: half a minute of simulation, and 1 GB as a table."""
_MOST_PIECES = 1 << 15
_ENOUGH = 4e-3
"""Share above the limit below which nothing better is looked for."""
_GAIN = 2e-4
"""Share that a schedule of more pieces must gain."""
_JUSTIFIED = 3
"""Times that the rows of the best are put in another order."""
_KNOWN_S = 2.0
"""Seconds that known algorithms are tried for where trees took all the time."""
_SLACK = (1e-3, 1e-2)
"""How far above the least level forests lie that weigh only the length of ways."""
_WEIGHTS = (1.0, 10.0, 1e3)
"""What seconds on ways count against seconds of the busiest link, of the others."""
_WHOLE = (1, 4)
"""Pieces of a block that are each given one tree."""
_LATE = 100.0
"""Times the latency limit, up to which trees are weighed by their length."""
_FIRST, _PHASE = 0.4, 0.2
"""Of the budget: when the first forest is no longer cut into more pieces, and what each phase has."""
_SAME = 1e-6
"""Share within which limits are the same, one of which a linear program says."""
_LAST, _LEAST_ROWS = 0.3, 100_000
"""Of the budget, what the last trial of a forest may take for which the time is up, and its rows however little that
is: some tenths of a second."""
_ROW_S = 5e-6
"""Seconds of a row until one was tried: those of `MOST_ROWS` in half a minute."""
_FINEST = 2.5e-4
"""Of all the time: what a piece takes at least, as less would not show."""
_NOMINAL_PIECES = 16
"""Pieces that the length of a hop is weighed with before their number is known."""


@dataclass(frozen=True, eq=False)
class Synthesis:
    """A schedule and what it reaches; that of a known algorithm keeps the trees which it was quicker than."""

    question: Aim
    limit: CollectiveLimit
    forest: Forest
    laid: Laid
    pieces: int
    seconds: float

    @property
    def limit_s(self) -> float:
        """What no schedule beats."""
        return self.limit.seconds(self.question.limited_size)

    @property
    def ratio(self) -> float:
        """Reached over the limit."""
        return self.seconds / self.limit_s if self.limit_s else 1.0

    @property
    def known(self) -> bool:
        """Whether a known algorithm is the schedule, and not the trees."""
        return self.laid.schedule.algorithm != SYNTHESIZED

    @property
    def depth(self) -> int:
        """Branches of the longest way of a piece, or steps of a known algorithm."""
        return self.laid.schedule.steps if self.known else self.forest.depth

    @property
    def in_switches(self) -> bool:
        """Whether a switch copies or adds."""
        return not self.known and self.forest.in_switches

    @property
    def link_s(self) -> Float64:
        """Seconds that each edge of the network carries data, (E,)."""
        network, laid = self.question.network, self.laid
        if self.known:
            load = np.zeros(network.edges)
            for way, nbytes in zip(laid.way.tolist(), laid.schedule.payload_bytes().tolist(), strict=True):
                load[list(laid.ways[way])] += nbytes
        else:
            load = self.forest.load() * self.question.size
        return load / (network.capacity * float(network.unit))

    @property
    def packed_s(self) -> float:
        """Seconds that the busiest link is busy."""
        return float(self.link_s.max(initial=0.0))


class TreeSearch:
    """The search for one question: its packing, and the quickest schedule so far."""

    def __init__(self, question: Aim, budget_s: float = 60.0, other: TreeSearch | None = None) -> None:
        """``other``: a search for another size of the same, whose limit and trees are taken."""
        self.question, self.budget_s = question, budget_s
        self.started = time.process_time()
        q = question
        self._packing: tuple[Packing, float] | None = None
        if other is None:
            self.limit = limit_of(q.network, q.collective, root=q.root, blocks=q.blocks or None)
        else:
            self.limit, self._packing = other.limit, other._packing
        self.best: Synthesis | None = None
        self.even = self.interrupted = False
        self.most_pieces = _MOST_PIECES
        self._trial_s, self._row_s = 0.0, _ROW_S
        self._until = self.started + budget_s * _FIRST

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.process_time() - self.started > self.budget_s

    @property
    def good(self) -> bool:
        """Whether the best is as near to the limit as matters."""
        if self.best is None:
            return False
        return self.best.ratio <= 1 + _ENOUGH

    @property
    def packing(self) -> tuple[Packing, float]:
        """The trees that are known, and the least level that they reach."""
        if self._packing is None:
            q = self.question
            level = float(self.limit.per_byte_s) * float(q.network.capacity.max()) * float(q.network.unit)
            packing = packing_of(q, level, self._short)
            packing.solve(budget_s=self.budget_s / 2)
            self._packing = packing, packing.level
        return self._packing

    def run(self, track: Callable[[Synthesis], None] | None = None) -> Synthesis:
        """The quickest schedule that is found until all has been tried, the time is up, or Ctrl-C ends the search."""
        try:
            for forest in self.forests():
                self._tracked(partial(self._cut, forest), track)
                if self._stop:
                    break
            self._tracked(self._justify, track)
            self._tracked(self._known, track)
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.interrupted = True
        assert self.best is not None
        return self.best

    def _tracked(self, work: Callable[[], None], track: Callable[[Synthesis], None] | None) -> None:
        before = self.best
        work()
        if track is not None and self.best is not None and self.best is not before:
            track(self.best)

    def _justify(self) -> None:
        """Puts the rows of the best in a better order, as long as that gains."""
        for _ in range(_JUSTIFIED):
            best = self.best
            if best is None or self.good or self.even or not self._in_time(4):
                return
            laid = justified(best.laid, self.question.network)
            seconds = seconds_of(laid, self.question.network)
            if seconds >= best.seconds * (1 - _GAIN):
                return
            self.best = replace(best, laid=laid, seconds=seconds)

    def _known(self) -> None:
        """Tries known algorithms where the array is small and the trees are not near the limit, for some seconds."""
        q = self.question
        best, small = self.best, q.size <= MOST_BYTES and q.network.n <= MOST_RANKS and self._short
        if best is None or self.good or not small or q.blocks or self.even:
            return
        until = max(time.process_time() + _KNOWN_S, self.started + self.budget_s)
        for laid in known_schedules(q.network, q.collective, q.size, q.root, q.itemsize):
            if best.ratio <= 1 + _ENOUGH or time.process_time() > until:
                return
            seconds = seconds_of(laid, q.network)
            if seconds < best.seconds * (1 - _GAIN):
                count = laid.schedule.chunk_bytes.size
                self.best = best = Synthesis(q, self.limit, best.forest, laid, count, seconds)

    def forests(self) -> Iterator[Forest]:
        """Forests from the least level to the shortest ways."""
        q, (_, level) = self.question, self.packing
        rate = q.network.capacity * float(q.network.unit)
        piece = q.size / q.network.n / _NOMINAL_PIECES
        hop_s = q.network.latency + piece / rate
        for slack in _SLACK:
            yield self._shortened(hop_s, 1.0, level * (1 + slack))
            self._until = self.started + self.budget_s
            if slack == _SLACK[0] and self._in_phases:
                yield self._phases()
        weights = _WEIGHTS if self._short else _WEIGHTS[:1]
        for weight in weights:
            yield self._shortened(hop_s, weight, None)
        if self._short and q.collective not in WHOLE_ARRAY:
            for count in _WHOLE:
                yield self._whole(hop_s, count)

    @property
    def _short(self) -> bool:
        """Whether latencies matter beside bytes."""
        return self.limit.bandwidth_s(self.question.size) < _LATE * self.limit.latency_s

    @property
    def _in_phases(self) -> bool:
        """Whether adding and spreading one after the other may reach the limit, of arrays of some size."""
        q = self.question
        if q.collective != "all_reduce" or self._short or (q.network.copies | q.network.adds).any():
            return False
        phases = [float(limit_of(q.network, phase, latency=False).per_byte_s) for phase in sorted(RING_PASSES)]
        return sum(phases) <= float(self.limit.per_byte_s) * (1 + _SAME)

    def _phases(self) -> Forest:
        """Into roots as in the best reduce_scatter, and then out of them as in the best all_gather."""
        trees, share = list[Tree](), list[float]()
        for collective in sorted(RING_PASSES):
            question = replace(self.question, collective=collective)
            search = TreeSearch(question, self.budget_s * _PHASE)
            forest = search.run().forest
            if search.interrupted:
                raise KeyboardInterrupt
            trees += forest.into or forest.out
            share += forest.share.tolist()
        return paired(self.question.network, trees, share, apart=True)

    def _whole(self, hop_s: Float64, count: int) -> Forest:
        forest = whole_blocks(self.packing[0], hop_s, self.question.size, count)
        return _with_own(forest, self.question) if isinstance(self.packing[0], PathPacking) else forest

    def _shortened(self, hop_s: Float64, weight: float, most: float | None) -> Forest:
        (p, _), q = self.packing, self.question
        if isinstance(p, PathPacking):
            return _with_own(p.shorten(hop_s, q.size, weight, most), q)
        return flatten(p, hop_s, q.size, weight, most, self.started + self.budget_s)

    def _cut(self, forest: Forest) -> None:
        """Tries the forest in few and in many pieces, and then in numbers beside the best."""
        q = self.question
        bytes_s, late_s = self.limit.bandwidth_s(q.size), self.limit.latency_s
        finest = bytes_s / (_FINEST * (bytes_s + late_s))
        if q.collective in WHOLE_ARRAY:
            finest *= max(len(forest.share), q.network.n)
        elements = q.size // q.itemsize // (q.network.n if q.collective in DIVIDED else 1)  # of a piece one at least
        most = max(1, min(self.most_pieces, MOST_ROWS // rows_per_piece(forest, q.collective), elements, int(finest)))
        counts = [1]
        while counts[-1] * 4 <= most:
            counts.append(counts[-1] * 4)
        tried: dict[int, float] = {}
        for count in [] if self.over else counts:
            tried[count] = self._tried(forest, count)
            if self.good or not self._in_time(4):  # the next has four times as many rows
                break
        if self.good:
            return
        last = max(tried, default=0)
        if last < counts[-1] and tried.get(last, 0.0) == min(tried.values(), default=0.0):  # time is up before the turn
            rows = max(_LEAST_ROWS, _LAST * self.budget_s / self._row_s)
            likely = max(n for n in counts if n == 1 or n * rows_per_piece(forest, q.collective) <= rows)
            if likely > last:
                tried[likely] = self._tried(forest, likely)
        if self._stop:
            return
        near = min(tried, key=lambda count: tried[count])
        for count in (near * 2,) if near == max(tried) else (near // 2, near * 2):
            if 1 <= count <= most and not self._stop and self._in_time(2):
                self._tried(forest, count)

    @property
    def _stop(self) -> bool:
        return self.good or (self.over and self.best is not None)

    def _in_time(self, times: int) -> bool:
        """Whether what takes so many times as long as the last trial would end within the budget."""
        return time.process_time() + times * self._trial_s < self._until

    def _tried(self, forest: Forest, count: int) -> float:
        begun = time.process_time()
        one = self._with(forest, count)
        self._trial_s = time.process_time() - begun
        self._row_s = self._trial_s / max(1, one.laid.schedule.rows)
        if self.best is None or one.seconds < self.best.seconds * (1 - _GAIN):
            self.best = one
        return one.seconds

    def _with(self, forest: Forest, count: int) -> Synthesis:
        laid = laid_out(self.question, forest, count, self.even)
        return Synthesis(self.question, self.limit, forest, laid, count, seconds_of(laid, self.question.network))


def laid_out(question: Aim, forest: Forest, count: int, even: bool = False) -> Laid:
    """The schedule of a forest with ``count`` pieces of every block, message or array."""
    q, trees = question, forest.out or forest.into
    if q.collective in PAIRWISE:
        groups: dict[tuple[int, int], list[int]] = {}
        for k, tree in enumerate(trees):
            groups.setdefault(ends_of(tree), []).append(k)
        message = q.size // q.network.n if q.collective == "all_to_all" else q.size
        blocks = [(own, forest.share[own]) for own in groups.values()]
        pieces = pieces_of_blocks(blocks, [message] * len(blocks), count, q.itemsize, True)
        return lay_pairs(forest, pieces, q.collective, count)
    if q.collective in WHOLE_ARRAY:
        blocks, sizes = [(list(range(len(trees))), forest.share)], [q.size]
    else:
        whose = [_owner(tree, q) for tree in trees]
        own_of = [[k for k, rank in enumerate(whose) if rank == r] for r in range(q.network.n)]
        blocks, sizes = [(own, forest.share[own]) for own in own_of], q.block_bytes()
    pieces = pieces_of_blocks(blocks, sizes, count, q.itemsize, even)
    return lay(forest, pieces, q.collective, q.root if q.collective in ROOTED else 0)


def _owner(tree: Tree, q: Aim) -> int:
    """The rank whose block a tree carries."""
    if q.collective == "scatter":
        return tree.branches[-1].dst if tree.branches else q.root
    return tree.root


def _with_own(forest: Forest, q: Aim) -> Forest:
    """With an empty tree for the block that a root keeps (gather, scatter)."""
    if q.collective in PAIRWISE:
        return forest
    share = np.append(forest.share, 1e-9)
    return Forest(forest.network, share, (*forest.out, Tree(q.root, ())))


def rows_per_piece(forest: Forest, collective: str) -> int:
    """Rows of the schedule for each piece of a block, message or array, about."""
    sides = [trees for trees in (forest.out, forest.into) if trees]
    per_tree = sum(float(np.mean([len(tree.branches) for tree in trees])) for trees in sides)
    if collective in WHOLE_ARRAY:
        return max(1, round(per_tree))
    groups = {ends_of(tree) if collective in PAIRWISE else tree.root for tree in sides[0] if tree.branches}
    return max(1, round(per_tree * len(groups)))
