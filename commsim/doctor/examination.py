"""Rounds of tests until it is known what is slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from commsim.doctor.choice import NextTest, choose, first_round
from commsim.doctor.forward import Forward
from commsim.doctor.group_test import GroupTest
from commsim.doctor.posterior import Observation, Posterior, Priors, posterior
from commsim.doctor.suspect import Suspects
from commsim.topology.kinds import Float64

_NOTHING_TO_TELL = 0.02  # bits: a test that tells less is not worth its time

_CONTRADICTED = 1e-3  # tests that fit the best hypothesis worse than one in so many do contradict each other

_FAR = 3.0  # standard deviations: what lies further off is no healthy machine's spread

Measure = Callable[[list[GroupTest]], list[float]]
"""Runs tests on disjoint hosts at once and gives the seconds of each."""


@dataclass(frozen=True)
class Suspicion:
    """A suspect, the probability that it is slow, its share of its healthy rate if it is, and what mending it gains.

    `share`: the middle of what is likely. `gain`: how many times as fast a call over all hosts, or over the GPUs of
    all hosts, is then.
    """

    at: int
    name: str
    probability: float
    share: float
    gain: float


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What is known: suspicions, the likeliest first, and the tests to run next (none where it is sure).

    `rounds`: those that `examine` has run.
    `sure`: whether an answer names parts and has the probability that was asked for; `answer` is its probability, and
    `blamed` what it names.
    """

    suspects: Suspects
    observed: tuple[Observation, ...]
    rounds: int
    healthy: float
    answer: float
    sure: bool
    fits: bool  # whether a hypothesis explains all tests within their noise
    factor: float | None  # what all tests take, over what the machine should; None where they do not agree on one
    faults: int  # how many parts `blamed` takes for slow
    located: bool  # whether all of `blamed` are slow; else some of them are
    blamed: tuple[int, ...]
    suspicions: tuple[Suspicion, ...]
    following: tuple[NextTest, ...]
    probability: Float64  # of each suspect
    of_hosts: Float64  # that a part of a host is slow


class Examination:
    """Observations as they come in, and the posterior after them."""

    def __init__(
        self,
        suspects: Suspects,
        forward: Forward,
        priors: Priors,
        *,
        sure: float = 0.95,
        nbytes: int | None = None,
        at_once: int = 1,
    ) -> None:
        self.suspects, self.forward, self.priors = suspects, forward, priors
        self.sure, self.nbytes, self.at_once = sure, nbytes, at_once
        self.observed: list[Observation] = []
        self.rounds = 0
        self.state: Posterior = posterior([], suspects, forward, priors)

    def add(self, tests: Sequence[GroupTest], seconds: Sequence[float]) -> None:
        """Takes results."""
        self.observed += [Observation(test, time) for test, time in zip(tests, seconds, strict=True)]
        self.state = posterior(self.observed, self.suspects, self.forward, self.priors, self.state)

    def following(self) -> list[NextTest]:
        """The next round: what tells most, or what sets the scale of rings that have not been run; else empty."""
        first = [NextTest(test, 0.0) for test in first_round(self.suspects.cluster, self.nbytes)]
        if not self.observed:
            return first[:1]
        chosen = choose(
            self.state,
            self.observed,
            self.forward,
            self.priors,
            nbytes=self.nbytes,
            at_once=self.at_once,
            seed=len(self.observed),
        )
        if sum(choice.bits for choice in chosen) >= _NOTHING_TO_TELL:
            return chosen
        scopes = {each.test.scope for each in self.observed}
        return [choice for choice in first if choice.test.scope not in scopes][:1]

    def diagnosis(self) -> Diagnosis:
        """What is known now."""
        cells, answer = self.state.answers()[0]
        located = all(self.state.count[cell] == 1 for cell in cells)
        fits = self.state.fit >= _CONTRADICTED
        factor = self._factor()
        sure = bool(self.observed) and answer >= self.sure and located and fits and factor is None
        following = [] if sure else self.following()
        p = self.state.probability()
        members = [int(at) for cell in cells for at in self.state.members(cell)]
        blamed = tuple(sorted(members, key=lambda at: (-p[at], at)))
        return Diagnosis(
            self.suspects, tuple(self.observed), self.rounds, self.state.healthy, answer, sure, fits, factor,
            len(cells), located, blamed, tuple(self._suspicions(p)), tuple(following), p, self.state.of_hosts(),
        )  # fmt: skip

    def _factor(self) -> float | None:
        """What all tests take over the machine's prediction, where that says more of the machine than of a part.

        All are quicker than it can be; or all are as many times as slow, though no part is in all of them.
        """
        if not self.forward.knows_machine or not self.observed:
            return None
        off = np.array([log(each.seconds / self.forward.expected_s(each.test.shape)) for each in self.observed])
        middle, far = float(np.median(off)), _FAR * self.forward.scope_spread
        if off.max() < -far:
            return float(np.exp(middle))
        alike = np.abs(off - middle).max() <= _FAR * float(np.hypot(self.priors.noise, self.forward.shape_spread))
        shared = bool((np.min(self.state.columns, axis=0) > 0).any())
        return float(np.exp(middle)) if alike and middle > far and not shared else None

    def _suspicions(self, p: Float64, most: int = 20) -> list[Suspicion]:
        order = np.argsort(-p, kind="stable")[:most]
        usual = np.max(self.state.columns, axis=0) if self.observed else np.ones(p.size)
        return [self._suspicion(int(at), float(p[at]), float(usual[at])) for at in order if p[at] > 1e-4]

    def _suspicion(self, at: int, probability: float, load: float) -> Suspicion:
        state = self.state
        cell = state.cell_of[at]
        slow, other, weight = [], [], []
        for k, (one, two) in enumerate(((state.first, state.second), (state.second, state.first))):
            mine = state.cell[one] == cell
            slow.append(state.slowdown[one][mine] + state.excess[k][mine])
            other.append(np.maximum(0.0, state.slowdown[two][mine] + state.excess[1 - k][mine] * (two[mine] > 0)))
            weight.append(state.weight[mine])
        s, o, w = (np.concatenate(each) for each in (slow, other, weight))
        w = w / w.sum()
        gain = np.exp(np.maximum(0.0, np.maximum(s + np.log(max(load, 1e-9)), 0.0) - o))
        return Suspicion(
            at, self.suspects.name(at), probability, min(1.0, float(np.exp(-(w * s).sum()))), float((w * gain).sum())
        )


def examine(examination: Examination, measure: Measure, most: int) -> Diagnosis:
    """Runs rounds until the answer is sure, nothing is left to tell, or `most` tests have been run."""
    diagnosis = examination.diagnosis()
    while diagnosis.following and len(examination.observed) < most:
        tests = [choice.test for choice in diagnosis.following][: most - len(examination.observed)]
        examination.add(tests, measure(tests))
        examination.rounds += 1
        diagnosis = examination.diagnosis()
    return diagnosis
