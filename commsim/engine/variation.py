"""What differs from run to run and from rank to rank: jitter per message, slow nodes, ranks that are slow or late.

A variation changes a Program, and the evaluators run what it becomes; the same seed gives the same times to the last
bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Schedule
from commsim.engine.evaluate import Contention
from commsim.engine.fair import connections, simulate_fair
from commsim.engine.program import Float64, Int32, Program, build_program, pointers
from commsim.engine.simulate import Outcome, simulate
from commsim.topology.graph import Topology

Distribution = Literal["exponential", "uniform", "lognormal"]

P99 = 0.99

_LEAST = 2.0**-53
"""What a share lies away from 0 and 1 at least: there a normal distribution has no end."""


@dataclass(frozen=True)
class Jitter:
    """A random delay of every message before its first link, in seconds, drawn anew for every message and run.

    ``uniform`` lies between 0 and twice the mean; ``lognormal`` has ``sigma`` as the deviation of its logarithm, which
    makes its tail: of 100 messages one takes more than about 6 times the mean at sigma 1.
    """

    mean_s: float
    distribution: Distribution = "exponential"
    sigma: float = 1.0

    def draws(self, rng: np.random.Generator, count: int) -> Float64:
        """Delays of as many messages, (count,)."""
        if self.distribution == "uniform":
            return rng.uniform(0.0, 2.0 * self.mean_s, count)
        if self.distribution == "lognormal":
            # The mean of exp(N(mu, sigma^2)) is exp(mu + sigma^2 / 2).
            return self.mean_s * rng.lognormal(-(self.sigma**2) / 2, self.sigma, count)
        return rng.exponential(self.mean_s, count)


@dataclass(frozen=True)
class Straggler:
    """Ranks whose GPUs' own links take ``factor`` times as long for a byte, and that come ``delay_s`` late."""

    ranks: tuple[int, ...]
    factor: float = 1.0
    delay_s: float = 0.0


@dataclass(frozen=True)
class Variation:
    """Jitter, the spread of nodes and stragglers, and how often a run is repeated with other draws.

    ``node_spread`` is the standard deviation of what a node takes, as a part of it; a node that would be quicker than
    the model gains nothing, because its links are no faster than they are.
    """

    seed: int = 0
    repeats: int = 1
    jitter: Jitter | None = None
    stragglers: tuple[Straggler, ...] = ()
    node_spread: float = 0.0

    @property
    def draws(self) -> bool:
        """Whether runs differ by what is drawn."""
        return self.jitter is not None or self.node_spread > 0

    def node_factors(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Float64:
        """How many times as long as in the model each of some nodes takes."""
        if not self.node_spread:
            return np.ones(shape)
        return np.asarray(np.maximum(1.0, 1.0 + self.node_spread * rng.standard_normal(shape)))

    def slowest(self, nodes: int, chance: float) -> float:
        """The factor that the slowest of so many nodes stays below in this share of runs: an order statistic."""
        of_each = min(max(chance, _LEAST) ** (1 / nodes), 1.0 - _LEAST)
        return max(1.0, 1.0 + self.node_spread * NormalDist().inv_cdf(of_each))

    def generator(self, *run: int) -> np.random.Generator:
        """The source of random numbers of one run, named by whole numbers: the same whatever ran before."""
        return np.random.default_rng((self.seed, *run))

    def late(self) -> dict[int, float]:
        """Seconds by which each late rank comes late."""
        return {rank: s.delay_s for s in self.stragglers if s.delay_s for rank in s.ranks}

    def of(
        self, program: Program, src: Int32, dst: Int32, topology: Topology, rng: np.random.Generator
    ) -> tuple[Program, int]:
        """The program of one run, and how many ops now stand before its own; op i moves from src[i] to dst[i].

        A rank that comes late neither sends nor receives before: an op of its own, without links, ends when it comes,
        and all moves from and to the rank wait for that.
        """
        delay = program.delay_s
        if self.jitter is not None:
            delay = delay + np.where(program.hops() > 0, self.jitter.draws(rng, program.rows), 0.0)
        rate = self._bandwidth(program, topology)
        if self.node_spread:
            rate = rate.copy()
            rate[: topology.link_src.size] /= self._of_links(topology, rng)
        varied = replace(program, delay_s=delay, link_bandwidth=rate)
        late = self.late()
        return (_with_late(varied, src, dst, late), len(late)) if late else (varied, 0)

    def _of_links(self, topology: Topology, rng: np.random.Generator) -> Float64:
        """The factor of each link by the node it is at, of two the slower one's."""
        drawn = np.append(self.node_factors(rng, (topology.nodes,)), 1.0)  # last: the fabric's, which is in no node
        of = topology.vertex_node
        return np.asarray(np.maximum(drawn[of[topology.link_src]], drawn[of[topology.link_dst]]))

    def _bandwidth(self, program: Program, topology: Topology) -> Float64:
        slowed = program.link_bandwidth
        for one in self.stragglers:
            if one.factor != 1.0:
                vertex = topology.rank_vertex[list(one.ranks)]
                at = np.isin(topology.link_src, vertex) | np.isin(topology.link_dst, vertex)
                slowed = slowed.copy()
                slowed[: at.size][at] /= one.factor
        return slowed


def _with_late(p: Program, src: Int32, dst: Int32, late: dict[int, float]) -> Program:
    count = len(late)
    held = [np.flatnonzero((src == rank) | (dst == rank)) for rank in late]
    nowhere = p.route_ptr.size - 1
    before = pointers([rows.size for rows in held])
    return replace(
        p,
        nbytes=np.concatenate([np.zeros(count, np.int64), p.nbytes]),
        route=np.concatenate([np.full(count, nowhere, np.int32), p.route]),
        delay_s=np.concatenate([list(late.values()), p.delay_s]),
        succ_ptr=np.concatenate([before[:-1], before[-1] + p.succ_ptr]),
        succ_idx=np.concatenate([*held, p.succ_idx]).astype(np.int32) + np.int32(count),
        route_ptr=np.append(p.route_ptr, p.route_ptr[-1]),
    )


def repeated(
    schedule: Schedule,
    topology: Topology,
    variation: Variation,
    contention: Contention = "fifo",
    runs: Iterable[int] | None = None,
) -> Iterator[Outcome]:
    """What becomes of a schedule in each of ``variation.repeats`` runs, or in the ``runs`` of these numbers.

    A rank that comes late has an op of its own, before the schedule's.

    >>> from commsim.collectives.ring import ring_all_reduce
    >>> from commsim.topology.presets import load_preset
    >>> runs = repeated(ring_all_reduce(8, 8 << 20), load_preset("hgx-h100"), Variation(1, 50, Jitter(1e-6)))
    >>> spread = RepeatedTimes(np.array([run.makespan_s for run in runs]))
    >>> spread.median_s < spread.p99_s
    True
    """
    program = build_program(schedule, topology)
    conn = connections(schedule, program)
    for run in range(variation.repeats) if runs is None else runs:
        rng = variation.generator(run, program.rows, int(program.nbytes.sum()) % (1 << 32))
        varied, late = variation.of(program, schedule.src, schedule.dst, topology, rng)
        if contention == "fifo":
            yield simulate(varied)
        else:
            yield simulate_fair(varied, more_connections(conn, late))


def more_connections(connection: Int32, count: int) -> Int32:
    """The connections of ops with ``count`` ops before them that have one each."""
    first = int(connection.max(initial=-1)) + 1
    return np.concatenate([first + np.arange(count, dtype=np.int32), connection]).astype(np.int32)


@dataclass(frozen=True, eq=False)
class RepeatedTimes:
    """Seconds of repeated runs, (repeats,)."""

    times_s: npt.NDArray[np.float64]

    @property
    def median_s(self) -> float:
        """The median."""
        return float(np.median(self.times_s))

    @property
    def p99_s(self) -> float:
        """The time that at most one run in a hundred exceeds: one of the times, not a value between two."""
        return float(np.quantile(self.times_s, P99, method="higher"))

    @property
    def typical(self) -> int:
        """The number of the run nearest to the median."""
        return int(np.argmin(np.abs(self.times_s - self.median_s)))
