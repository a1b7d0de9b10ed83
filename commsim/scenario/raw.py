"""`library: none`: the schedule of an algorithm as it is, on the bare links; no protocol, no launch.

`algorithm: auto` times every algorithm of the collective that fits the ranks and the topology, and answers with the
quickest for each size and the one that comes next.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from commsim.collectives import registry
from commsim.collectives.schedule import Schedule
from commsim.collectives.semantics import DIVIDED, RING_PASSES
from commsim.collectives.semantics import collective as collective_of
from commsim.collectives.traffic import row_count
from commsim.engine.evaluate import BothWays, evaluate, evaluate_program, other_contention
from commsim.engine.family import Family, ring_family
from commsim.engine.least import Least, least
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.merging import Routes
from commsim.engine.placement import place
from commsim.engine.program import Program, build_program
from commsim.engine.simulate import Outcome
from commsim.engine.usage import Use, kind_name, limiting_link, network_use
from commsim.engine.variation import RepeatedTimes, Variation, repeated
from commsim.errors import InfeasibleError, MemoryLimitError, ScheduleError, TopologyError
from commsim.scenario.rows import RowPredictor
from commsim.topology.aggregation import SwitchTree
from commsim.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commsim.collectives.registry import BuildOptions
    from commsim.engine.evaluate import Contention
    from commsim.engine.family import Totals
    from commsim.engine.program import Int64
    from commsim.scenario.collective import CollectiveSpec
    from commsim.scenario.item import Row
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology

PIECE_BYTES = 512 << 10
"""Trees, chains and switches that add pipeline pieces of this size, at most MOST_PIECES of them per channel."""

MOST_PIECES = 64

MOST_MESSAGES = 4_000_000
"""`auto` passes over an algorithm whose schedule sends more messages than this."""

FEW_MESSAGES = 100_000
"""`auto` simulates up to so many messages without asking whether the algorithm could win at all."""

MOST_COMPARED = 20_000
"""Up to so many messages, FIFO links and fair sharing are both simulated, and a difference is said."""

_MOST_KEPT = 10_000_000
"""Messages whose routes and dependences are kept from one size to the next, all algorithms together: 0.4 GB."""

_ALL_PAIRS = frozenset({"pairwise", "direct", "direct_one_shot", "direct_two_shot"})
"""Algorithms in which every rank sends to every other."""

_ROUTE_BYTES = 210
"""Of a pair of ranks while its route is found, beyond what a row takes; measured with a million pairs."""

_RINGS = RING_PASSES | {"all_reduce"}
_PIPELINED = frozenset(
    {"tree", "chain", "double_binary_tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "sharp"}
)


@dataclass(frozen=True)
class Timed:
    """One algorithm's answer for one size."""

    algorithm: str
    seconds: float
    bottleneck: str
    level: str
    p99_s: float | None = None
    outcome: Outcome | Totals | None = None  # of the typical run


def raw_schedule(
    collective: str,
    algorithm: str,
    size: int,
    ranks: int,
    root: int = 0,
    **options: Unpack[BuildOptions],
) -> Schedule:
    """The schedule of an algorithm, pipelined where it gains from it; MemoryLimitError if it would not fit.

    ``chunks`` of the options are a matter of the size unless given.
    """
    wanted = -(-size // (options.get("channels", 1) * PIECE_BYTES)) if algorithm in _PIPELINED else 1
    options.setdefault("chunks", max(1, min(MOST_PIECES, wanted)))
    rows = row_count(
        collective,
        algorithm,
        ranks,
        switches=options.get("switches"),
        channels=options.get("channels", 1),
        chunks=options["chunks"],
        ranks_per_node=options.get("ranks_per_node"),
    )
    needed = estimate_bytes(rows) + _ROUTE_BYTES * ranks**2 * (algorithm in _ALL_PAIRS)
    require_memory(needed, rows, subject=f"{algorithm} {collective} on {ranks:,} ranks, a simulation")
    return registry.build(collective, algorithm, ranks, size, root, **options)


def even_node(topology: Topology, ranks: Int64 | None = None) -> int:
    """Into what runs of ranks on one node the ranks (all, by default) divide: the ranks per node where nodes are alike.

    The greatest common divisor of the lengths: nodes of 8 and of 4 GPUs count as nodes of 4.
    """
    node = topology.rank_node if ranks is None else topology.rank_node[ranks]
    borders = np.flatnonzero(np.diff(node)) + 1
    return int(np.gcd.reduce(np.diff(np.concatenate([[0], borders, [node.size]]))))


@dataclass(frozen=True, eq=False)
class _Candidate:
    """An algorithm that `auto` may choose: its messages, and the least it takes (None: it is never left out)."""

    name: str
    messages: int
    least: Least | None

    def bound(self, size: int) -> float:
        """Seconds that a long simulation cannot end before; 0 for a short one, which is not worth the question."""
        return self.least.seconds(size) if self.least is not None and self.messages > FEW_MESSAGES else 0.0


class RawRows(RowPredictor):
    """Rows of schedules on a topology, timed by the engine that the scenario asks for."""

    def __init__(self, scenario: Setting, topology: Topology, work: CollectiveSpec) -> None:
        names = [name for _, name in registry.names(work.collective)]
        chosen = work.algorithm or names[0]
        adds = {a: where for a in names if (where := registry.entry(work.collective, a).adds_in)}
        super().__init__(work, topology, in_network=chosen in adds, hosts_add=adds.get(chosen) == "server")
        self._engine, self._contention = scenario.engine, scenario.contention
        self._variation = None if scenario.variation is None else scenario.variation.variation
        self._channels = work.channels or 1
        self._per_node = even_node(topology)
        self.use: Use | None = None
        self._rounded: int | None = None  # the first size that was
        self._kept: dict[tuple[str, int], tuple[Program, Routes]] = {}
        self._tree: SwitchTree | None = None
        self._candidates = [_Candidate(chosen, 0, None)]
        if chosen == "auto":
            self._candidates = [fit for name in names if (fit := self._candidate(name)) is not None]
            if not self._candidates:
                raise InfeasibleError(f"no algorithm of {work.collective} can run on {topology.name}")
            self._in_network = any(c.name in adds for c in self._candidates)
            self._hosts_add = any(adds.get(c.name) == "server" for c in self._candidates)

    def _switches(self, algorithm: str) -> SwitchTree | None:
        """The tree of the fabric for what adds in a network's switches."""
        if registry.entry(self.work.collective, algorithm).adds_in != "network":
            return None
        if self._tree is None:
            self._tree = SwitchTree(self.topology)
        return self._tree

    @contextmanager
    def _applied(self, algorithm: str) -> Iterator[None]:
        """What the topology has not that an algorithm needs is a ScheduleError."""
        try:
            yield
        except TopologyError as reason:
            raise ScheduleError(f"{algorithm} {self.work.collective} is not applicable, because {reason}") from None

    def whole(self, size: int) -> int:
        """The size that is timed: where blocks are equal, whole elements for each rank, rounded down as in nccl-tests.

        But one element at least: no block is a part of one.
        """
        unit = self.work.item_bytes * self.topology.world_size
        if not size or not collective_of(self.work.collective).equal_blocks:
            return size
        return max(unit, size // unit * unit)

    def schedule(self, algorithm: str, size: int, chunks: int = 0) -> Schedule:
        """The schedule of one algorithm for one `whole` size; ScheduleError where the topology lacks what it needs."""
        work, ranks, size = self.work, self.topology.world_size, self.whole(size)
        options: BuildOptions = {
            "ranks_per_node": self._per_node,
            "channels": self._channels,
            "itemsize": work.item_bytes,
        }
        if chunks:
            options["chunks"] = chunks
        with self._applied(algorithm):
            options["switches"] = self._switches(algorithm)
            return raw_schedule(work.collective, algorithm, size, ranks, root=work.root or 0, **options)

    def _candidate(self, name: str) -> _Candidate | None:
        """What `auto` needs to know of an algorithm; None if it cannot be timed here, which is said once."""
        n, item = self.topology.world_size, self.work.item_bytes
        size = item * n * n << 24  # far more than there are chunks, in whole blocks
        try:
            with self._applied(name):
                rows = row_count(
                    self.work.collective,
                    name,
                    n,
                    switches=self._switches(name),
                    channels=self._channels,
                    ranks_per_node=self._per_node,
                )
            messages = rows * (MOST_PIECES if name in _PIPELINED else 1)
            if messages > MOST_MESSAGES:
                self.warnings.append(f"auto passes over {name}: it sends more than {MOST_MESSAGES:,} messages")
                return None
            whole = self.schedule(name, size, chunks=1)
            place(whole, self.topology)
            if self.family(name, size) is not None:
                return _Candidate(name, 0, None)
            return _Candidate(name, messages, least(whole, self.topology, item))
        except (ScheduleError, MemoryLimitError) as error:
            self.warnings.append(f"auto passes over {name}: {error}")
            return None

    def family(self, algorithm: str, size: int) -> Family | None:
        """The rule behind an algorithm's rows, where there is one that need not build them; None for `event`.

        Not that of a hierarchical all_reduce, which sends fewer, larger messages than its rows do.
        """
        ruled = algorithm == "ring" and self.work.collective in _RINGS
        if self._engine == "event" or not ruled or self.topology.draws_flowlets:
            return None
        with suppress(ScheduleError):  # no equal chunks: rows know what to do
            return ring_family(
                self.work.collective, self.topology.world_size, size, self._channels, self.work.item_bytes
            )
        return None

    def time(self, algorithm: str, size: int) -> Timed:
        """The simulated time of one algorithm; of runs that vary the median."""
        if self._variation is not None:
            return self._repeated(self._variation, algorithm, size)
        family = self.family(algorithm, size)
        if family is not None:
            total = evaluate(family, self.topology, self._engine, contention=self._contention)
            return self._timed(algorithm, total)
        schedule = self.schedule(algorithm, size)
        if schedule.rows <= MOST_COMPARED or self._contention == "fair":
            outcome = evaluate(schedule, self.topology, self._engine, contention=self._contention)
        else:
            outcome = evaluate_program(schedule, *self._program(algorithm, schedule), self._engine)
        return self._timed(algorithm, outcome)

    def _program(self, algorithm: str, schedule: Schedule) -> tuple[Program, Routes]:
        """The Program of a schedule and its merged routes; these and dependences do not depend on the size: kept."""
        kept = self._kept.get((algorithm, schedule.chunk_bytes.size))
        if kept is not None:
            program, routes = kept
            return replace(program, nbytes=np.pad(schedule.payload_bytes(), (0, program.joins))), routes
        program = build_program(schedule, self.topology, joins=True)
        routes = Routes.merged(program)
        size_counts = self.topology.draws_flowlets  # by which flowlets begin elsewhere
        if not size_counts and sum(p.rows for p, _ in self._kept.values()) + program.rows <= _MOST_KEPT:
            self._kept[algorithm, schedule.chunk_bytes.size] = program, routes
        return program, routes

    def _timed(self, algorithm: str, outcome: Outcome | Totals) -> Timed:
        limit = _bottleneck(outcome, self.topology)
        return Timed(algorithm, outcome.makespan_s, limit, outcome.level, outcome=outcome)

    def _both_ways(self, best: Timed, size: int) -> BothWays | None:
        """Both views of contention for the answer, unless it varies or has too many messages; a difference is said."""
        outcome = best.outcome
        if self._variation is not None or outcome is None or outcome.messages > MOST_COMPARED:
            return None
        if isinstance(outcome, Outcome):
            both = other_contention(outcome, self.schedule(best.algorithm, size))
        else:
            family = self.family(best.algorithm, size)
            assert family is not None  # whose Totals these are
            view: Contention = "fair" if self._contention == "fifo" else "fifo"
            other = evaluate(family, self.topology, contention=view).makespan_s
            both = BothWays(best.seconds, other) if view == "fair" else BothWays(other, best.seconds)
        if both.differs:
            self.warnings.append(f"{best.algorithm} {self.work.collective} of {format_bytes(size)}: {both}")
        return both

    def _repeated(self, variation: Variation, algorithm: str, size: int) -> Timed:
        schedule = self.schedule(algorithm, size)
        runs = repeated(schedule, self.topology, variation, self._contention)
        spread = RepeatedTimes(np.array([outcome.makespan_s for outcome in runs]))
        # That run once more, rather than all of them kept.
        (typical,) = repeated(schedule, self.topology, variation, self._contention, [spread.typical])
        p99 = spread.p99_s if variation.repeats > 1 else None
        return replace(self._timed(algorithm, typical), seconds=spread.median_s, p99_s=p99)

    def __call__(self, size: int) -> Row:
        """The prediction for one size in bytes: the quickest algorithm's, with the one that comes next."""
        timed, left_out, best = self._race(size)
        both = self._both_ways(best, size)
        assert best.outcome is not None
        link, share = limiting_link(best.outcome, self.topology)
        whole = self.whole(size)
        row = self.row(whole, best.seconds)
        if self.work.collective in DIVIDED:  # of blocks that differ by an element the larger ones
            row = replace(row, count=-(-whole // (self.work.item_bytes * self.topology.world_size)))
        if whole != size and self._rounded is None:
            self._rounded = size
            self.warnings.append(
                f"{self.work.collective} has equal blocks of whole {self.work.dtype} for {self.topology.world_size} "
                f"ranks: {format_bytes(size)} is timed as {whole:,} B, and other sizes likewise"
            )
        row = replace(
            row,
            algorithm=best.algorithm,
            channels=self._channels,
            bottleneck=best.bottleneck,
            level=best.level,
            p99_s=best.p99_s,
            busiest_link=self.topology.link_name(link) if link >= 0 else "",
            busiest_share=share if link >= 0 else None,
            fifo_s=both.fifo_s if both else None,
            fair_s=both.fair_s if both else None,
        )
        if size == max(self.work.sizes or (), default=-1):
            self.use = network_use(best.outcome, self.topology)
        if len(timed) == 1:
            return row
        candidates = tuple((t.algorithm, t.seconds) for t in timed)
        runner_up, runner_up_s = candidates[1]
        return replace(
            row, runner_up=runner_up, runner_up_s=runner_up_s, candidates=candidates, left_out=tuple(left_out)
        )

    def _race(self, size: int) -> tuple[list[Timed], list[tuple[str, float]], Timed]:
        """The algorithms by time, those that cannot be among the first two with their bounds, and the first in full.

        Short simulations go first, then the long ones by their bounds; from the first on whose bound is above the
        second time found so far, they are left out.
        """
        # Equal to nine digits is equal: then the first of the list, which is the better known one.
        order = {candidate.name: i for i, candidate in enumerate(self._candidates)}

        def rank(t: Timed) -> tuple[float, int]:
            return float(f"{t.seconds:.9g}"), order[t.algorithm]

        timed: list[Timed] = []
        left_out: list[tuple[str, float]] = []
        best: Timed | None = None
        for bound, candidate in sorted(((c.bound(size), c) for c in self._candidates), key=lambda pair: pair[0]):
            may_lose = bound > 0 and self._variation is None and len(timed) > 1
            if may_lose and bound > sorted(t.seconds for t in timed)[1] * (1 + 1e-3):
                left_out.append((candidate.name, bound))
                continue
            candidate_time = self.time(candidate.name, size)
            if best is None or rank(candidate_time) < rank(best):
                best = candidate_time
            timed.append(replace(candidate_time, outcome=None))  # millions of messages each
        assert best is not None  # there is an algorithm
        return sorted(timed, key=rank), left_out, best


def _bottleneck(outcome: Outcome | Totals, topology: Topology) -> str:
    """The kind of the busiest link if it is busy for most of the time, else latency."""
    link, share = limiting_link(outcome, topology)
    if link < 0:
        return "nothing to send"
    return kind_name(topology, link) if share >= 0.5 else "latency"
