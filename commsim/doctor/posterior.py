"""What is slow, given what was measured: exact over no fault, one fault and two, by Bayes.

Suspects that no test has told apart are one cell, so that a hypothesis is a pair of (cell, slowdown) and its weight
counts the suspects. A slowdown is one of eight ranges, and within a range unknown: ln t of a test is that of the
healthy machine, plus the greatest ln(load x slowdown) of the faults where that is above 0, plus errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from commsim.doctor.forward import Forward
from commsim.doctor.group_test import GroupTest, RingShape, loads
from commsim.doctor.suspect import PartKind, Suspects
from commsim.topology.kinds import Bool, Float64, Int64

_RANGES = 8
_LEAST, _MOST = log(1 / 0.8), log(20.0)
WIDTH = (_MOST - _LEAST) / _RANGES
SLOWDOWNS = _LEAST + WIDTH * (np.arange(_RANGES) + 0.5)
"""The middles of the ranges of ln slowdown, from a part at 80 % of its rate to one at 5 %; each as likely."""

_WITHIN = (WIDTH / 12**0.5) ** 2  # variance of ln slowdown within its range
_RARE = 30.0  # hypotheses e^-30 times as likely as the best are dropped


@dataclass(frozen=True)
class Priors:
    """What is taken for true before a test.

    `faults`: how many suspects are slow, on average, when somebody asks; kinds share it evenly, and within a kind all
    suspects. `noise`: standard deviation of ln t of one run, what healthy hosts differ by included. How far a healthy
    machine may be from its expected times, `Forward` says.
    """

    faults: float = 0.5
    noise: float = 0.05


@dataclass(frozen=True)
class Observation:
    """A test and the seconds that it took."""

    test: GroupTest
    seconds: float


@dataclass(frozen=True, eq=False)
class Posterior:
    """The hypotheses that are left: pairs `first`, `second` of columns of faults (0: none), and their `weight`.

    A fault is a cell and a middle of ln slowdown; `excess` (2, hypotheses) is what the tests say of ln slowdown beside
    the middle. `cell_of` (E,) maps suspects to cells, `count` (cells,) says how many there are in each.
    """

    suspects: Suspects
    cell_of: Int64
    count: Int64
    first: Int64
    second: Int64
    weight: Float64
    excess: Float64
    cell: Int64  # of a fault; -1 for none
    slowdown: Float64  # ln, of a fault; 0 for none
    shift: Float64  # (hypotheses, tests): what is left of each test, over the covariance: for what comes next
    alive: Bool  # (faults, faults), for the update
    columns: tuple[Float64, ...]  # the loads of each test on all suspects
    fit: float  # the chance of tests that fit the best hypothesis as badly as these

    @property
    def healthy(self) -> float:
        """The probability that nothing is slow."""
        return float(self.weight[(self.first == 0) & (self.second == 0)].sum())

    def probability(self) -> Float64:
        """Of each suspect, that it is slow, (E,)."""
        of_cell = np.zeros(self.count.size)
        for one in (self.first, self.second):
            at = self.cell[one]
            np.add.at(of_cell, at[at >= 0], self.weight[at >= 0])
        return np.minimum(of_cell / self.count, 1.0)[self.cell_of]

    def of_hosts(self) -> Float64:
        """Of each host, the probability that a part of it is slow, (hosts,)."""
        host, hosts = self.suspects.host, len(self.suspects.cluster.hosts)
        own = host >= 0
        spare = np.ones((self.count.size + 1, hosts))  # of a cell's suspects, those elsewhere; the last row is no fault
        np.add.at(spare, (self.cell_of[own], host[own]), -1.0 / self.count[self.cell_of[own]])
        a, b = self.cell[self.first], self.cell[self.second]
        other = spare[b]
        same = (a == b) & (a >= 0)  # the second of two in a cell is one of the rest
        most = self.count[b[same], None]
        other[same] = np.maximum(0.0, most * other[same] - 1.0) / np.maximum(most - 1, 1)
        return np.asarray(np.clip(1.0 - (self.weight[:, None] * spare[a] * other).sum(0), 0.0, 1.0))

    def answers(self) -> list[tuple[tuple[int, ...], float]]:
        """Which cells hold the faults, each with its probability, the likeliest first; no cell: all are healthy."""
        cells = np.sort([self.cell[self.first], self.cell[self.second]], axis=0)
        key = (cells[0] + 1) * (self.count.size + 1) + cells[1] + 1
        values, at, inverse = np.unique(key, return_index=True, return_inverse=True)
        weight = np.bincount(inverse, self.weight, values.size)
        order = np.argsort(-weight, kind="stable")
        return [(tuple(int(c) for c in cells[:, at[i]] if c >= 0), float(weight[i])) for i in order]

    def members(self, cell: int) -> Int64:
        """The suspects of a cell."""
        return np.flatnonzero(self.cell_of == cell)


def covariance(tests: Sequence[RingShape], forward: Forward, priors: Priors) -> Float64:
    """Of ln t of healthy tests, (tests, tests): noise, what a shape has in common, what a scale has."""
    numbers: dict[object, int] = {}
    shape = np.array([numbers.setdefault(test, len(numbers)) for test in tests])
    scale = np.array([numbers.setdefault(forward.scale(test), len(numbers)) for test in tests])
    same_shape, same_scale = shape[:, None] == shape, scale[:, None] == scale
    noise = np.eye(len(tests)) * priors.noise**2
    return np.asarray(noise + same_shape * forward.shape_spread**2 + same_scale * forward.scope_spread**2)


def load_of(test: GroupTest, suspects: Suspects, forward: Forward) -> Float64:
    """The loads of a test on all suspects, (E,)."""
    return loads(test, suspects, forward.full(test.shape))


def posterior(
    observed: Sequence[Observation],
    suspects: Suspects,
    forward: Forward,
    priors: Priors,
    before: Posterior | None = None,
) -> Posterior:
    """What is left of the hypotheses after all that was observed.

    `before`: the posterior of the first of them; what it has dropped stays dropped.
    """
    from scipy.linalg import solve_triangular
    from scipy.stats import chi2

    tests = [each.test for each in observed]
    columns = [] if before is None else list(before.columns)
    columns += [load_of(test, suspects, forward) for test in tests[len(columns) :]]
    cell_of, where = _cells(columns, suspects, before)
    load = np.array([column[where] for column in columns])
    parent = np.zeros(where.size, np.int64) if before is None else before.cell_of[where]
    count = np.bincount(cell_of)
    cells = count.size
    cell = np.concatenate([[-1], np.repeat(np.arange(cells), _RANGES)])
    middle = np.concatenate([[0.0], np.tile(SLOWDOWNS, cells)])
    with np.errstate(divide="ignore"):
        slow = np.maximum(0.0, np.log(load)[:, cell[1:]].T + middle[1:, None]) if tests else np.zeros((cells * 8, 0))
    slow = np.concatenate([np.zeros((1, len(tests))), slow])
    alive = _alive(cells, parent, before)
    first, second = np.nonzero(alive)
    chance = _log_prior(first, second, cell, count, _rates(suspects, cell_of, priors))
    keep = np.isfinite(chance)
    first, second, chance = first[keep], second[keep], chance[keep]
    ln_t = np.array([log(each.seconds / forward.expected_s(each.test.shape)) for each in observed])
    root = np.linalg.cholesky(covariance([test.shape for test in tests], forward, priors)) if tests else np.eye(0)
    whiten = solve_triangular(root, np.eye(len(tests)), lower=True)
    square, spread, excess, left = _fit(slow[first], slow[second], ln_t, whiten)
    chance -= 0.5 * (square + spread)
    likely = chance > chance.max() - _RARE
    weight = np.exp(chance[likely] - chance.max())
    alive = np.zeros_like(alive)
    alive[first[likely], second[likely]] = True
    return Posterior(
        suspects, cell_of, count, first[likely], second[likely], weight / weight.sum(), excess[:, likely], cell, middle,
        left[likely] @ whiten, alive, tuple(columns), float(chi2.sf(square.min(), len(tests))) if tests else 1.0,
    )  # fmt: skip


def _cells(columns: list[Float64], suspects: Suspects, before: Posterior | None) -> tuple[Int64, Int64]:
    """The cell of each suspect, and a suspect of each cell: those of one kind with one load in every test."""
    key = suspects.place if before is None else before.cell_of
    for column in columns if before is None else columns[len(before.columns) :]:
        values, index = np.unique(column, return_inverse=True)
        key = np.unique(key * values.size + index, return_inverse=True)[1]
    _, where, cell_of = np.unique(key, return_index=True, return_inverse=True)
    return cell_of, where


def _alive(cells: int, parent: Int64, before: Posterior | None) -> Bool:
    """Which pairs of faults, the first one's column not above the second's, are still thought of."""
    columns = 1 + cells * _RANGES
    upper = np.arange(columns)[:, None] <= np.arange(columns)
    if before is None:
        return np.asarray(upper)
    old = np.concatenate([[0], (1 + parent[:, None] * _RANGES + np.arange(_RANGES)).ravel()])
    either = before.alive | before.alive.T
    return np.asarray(either[old[:, None], old] & upper)


def _rates(suspects: Suspects, cell_of: Int64, priors: Priors) -> Float64:
    """Faults expected of each suspect of a cell, (cells,)."""
    kinds = np.bincount(suspects.place, minlength=len(PartKind))
    each = priors.faults / np.count_nonzero(kinds) / np.maximum(kinds, 1)
    rate = np.zeros(cell_of.max() + 1)
    rate[cell_of] = each[suspects.place]
    return rate


def _log_prior(first: Int64, second: Int64, cell: Int64, count: Int64, rate: Float64) -> Float64:
    """ln of the prior of each pair of faults; -inf where a cell has too few suspects for both."""
    one = np.concatenate([[1.0], np.repeat(count * rate / (1 - rate) / _RANGES, _RANGES)])
    prior = one[first] * one[second]
    same = (cell[first] == cell[second]) & (first > 0)
    n = count[cell[first[same]]]
    prior[same] *= (n - 1) / n
    prior[same & (first == second)] /= 2
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(prior))


def _fit(a: Float64, b: Float64, ln_t: Float64, whiten: Float64) -> tuple[Float64, Float64, Float64, Float64]:
    """-2 ln likelihood of hypotheses as a square and ln of a volume; ln slowdowns beside their middles; residuals.

    `a`, `b` (hypotheses, tests): what either fault does to each test. What both ranges leave open is integrated out:
    two directions of a Gaussian, in closed form. Of two faults in one range each counts half.
    """
    z = (ln_t - np.maximum(a, b)) @ whiten.T
    either = np.maximum(a, b) > 0
    u = (either * (0.5 + 0.5 * np.sign(a - b))) @ whiten.T
    v = (either * (0.5 + 0.5 * np.sign(b - a))) @ whiten.T
    uu, vv, uv = 1 / _WITHIN + (u * u).sum(1), 1 / _WITHIN + (v * v).sum(1), (u * v).sum(1)
    uz, vz = (u * z).sum(1), (v * z).sum(1)
    det = uu * vv - uv * uv
    of_a, of_b = (vv * uz - uv * vz) / det, (uu * vz - uv * uz) / det
    square = (z * z).sum(1) - uz * of_a - vz * of_b
    left = z - of_a[:, None] * u - of_b[:, None] * v
    return square, np.log(det * _WITHIN**2), np.array([of_a, of_b]), left
