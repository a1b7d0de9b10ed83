"""The test to run next: the one whose result is expected to tell most about what is slow, in bits.

Hypotheses are drawn from the posterior; each says what a candidate test would take, and the information is the entropy
of that mixture less the entropy of its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from commsim.doctor.cluster import HostCluster
from commsim.doctor.forward import Forward
from commsim.doctor.group_test import GroupTest, Scope, ring_size
from commsim.doctor.posterior import Observation, Posterior, Priors, covariance, load_of
from commsim.doctor.suspect import PartKind
from commsim.topology.kinds import Bool, Float64, Int64

_DRAWS, _PAIRED = 1000, 400  # hypotheses for one test, and for several at once
_TRIED = 24  # tests that are tried beside those chosen
_LEAST_BITS = 0.02
_SHARES = (1 / 2, 1 / 3, 2 / 3, 1 / 5, 1 / 12)
"""Of the probability that a candidate's part of the suspects is to hold."""

_SURE, _SUSPECT = 0.9, 0.3


@dataclass(frozen=True)
class NextTest:
    """A test and what its result is expected to tell, in bits."""

    test: GroupTest
    bits: float


def first_test(cluster: HostCluster, nbytes: int | None = None) -> GroupTest:
    """All hosts at once, neighbours under different leaves."""
    hosts = tuple(range(len(cluster.hosts)))
    return _across(cluster, hosts, tuple(range(cluster.gpus)), nbytes, spread=True)


def first_round(cluster: HostCluster, nbytes: int | None = None) -> list[GroupTest]:
    """What a new cluster is asked first, one after the other: the network of all hosts, then NVLink in all."""
    hosts, gpus = tuple(range(len(cluster.hosts))), tuple(range(cluster.gpus))
    inside = [GroupTest("inside", hosts, gpus, nbytes or ring_size(1))] if cluster.gpus > 1 else []
    return [first_test(cluster, nbytes), *inside]


def choose(
    state: Posterior,
    observed: Sequence[Observation],
    forward: Forward,
    priors: Priors,
    *,
    nbytes: int | None = None,
    at_once: int = 1,
    seed: int = 0,
) -> list[NextTest]:
    """The tests to run next, on disjoint hosts if several; the first is expected to tell most.

    Each further one is the best beside those chosen. An empty list where there is none to choose from.
    """
    rng = np.random.default_rng(seed)
    tests = list(dict.fromkeys(candidates(state, nbytes)))
    draws = _draw(state, rng)
    means = [_mean(test, state, draws, observed, forward, priors) for test in tests]
    alone = [
        _bits(mean / np.sqrt(_spread([test], observed, forward, priors)[0, 0]))
        for test, mean in zip(tests, means, strict=True)
    ]
    order = sorted(range(len(tests)), key=lambda i: -alone[i])
    picked, told = order[:1], [alone[order[0]]] if order else []
    while len(picked) < at_once:
        taken = {host for i in picked for host in tests[i].hosts}
        free = [i for i in order if taken.isdisjoint(tests[i].hosts)][:_TRIED]
        beside = [
            _bits_together(
                np.stack([means[j] for j in [*picked, i]], 1),
                _spread([tests[j] for j in [*picked, i]], observed, forward, priors),
                rng,
            )
            for i in free
        ]
        if not free or max(beside) - sum(told) < _LEAST_BITS:
            break
        best = int(np.argmax(beside))
        picked.append(free[best])
        told.append(beside[best] - sum(told))
    return [NextTest(tests[i], bits) for i, bits in zip(picked, told, strict=True)]


# -- candidates ---------------------------------


def candidates(state: Posterior, nbytes: int | None = None) -> Iterator[GroupTest]:
    """Tests that hold about a given share of the probability, by hosts, by places of GPUs, by leaves."""
    s, cluster = state.suspects, state.suspects.cluster
    p = state.probability()
    network, link = (s.place == PartKind.NODE) | (s.place == PartKind.NIC), s.place == PartKind.LINK
    hosts = len(cluster.hosts)
    every = tuple(range(cluster.gpus))
    card = (s.place == PartKind.NIC) | ((s.place == PartKind.LEAF) & (s.part >= 0))
    of_card = _sums(s.part[card], p[card], cluster.nics)[[cluster.nic_of(g) for g in every]]
    of_link = _sums(s.part[link], p[link], cluster.gpus)
    kinds: list[tuple[Scope, Bool, Float64]] = [("across", network, of_card)]
    if link.any():
        kinds += [("inside", link, of_link), ("all", network | link, of_card + of_link)]
    for scope, of, of_gpu in kinds:
        mass = _sums(s.host[of], p[of], hosts)
        for group, gpus in product(_host_groups(mass), _gpu_groups(of_gpu, every)):
            test = _test(cluster, scope, group, gpus, mass, of_gpu, nbytes)
            yield test
            if hosts == 2 and scope == "across" and cluster.nics > 1:  # else no test tells a card from the one it meets
                yield from (replace(test, shift=shift) for shift in (cluster.gpus // 2, cluster.gpus // 4, 1) if shift)
    if cluster.leaves > 1:
        yield from _crossing(state, p, every, of_card, nbytes)


def _sums(at: Int64, weight: Float64, size: int) -> Float64:
    """The weight at each place, (size,)."""
    return np.bincount(at, weight, size).astype(np.float64)


def _host_groups(mass: Float64) -> list[tuple[int, ...]]:
    """All hosts, all but those surely slow, the unsuspicious, and groups of the first two by shares of the mass."""
    everyone = np.arange(mass.size)
    rest = everyone[mass < _SURE]
    groups = [tuple(each.tolist()) for each in (everyone, rest, everyone[mass < _SUSPECT])]
    for pool in (rest, everyone):
        groups += list(_shares(pool, mass[pool]))
    return list(dict.fromkeys(group for group in groups if group))


def _shares(pool: Int64, mass: Float64) -> Iterator[tuple[int, ...]]:
    """Parts of a pool, most suspicious first, that hold the shares of its mass; and what is left by the half."""
    order = pool[np.argsort(-mass, kind="stable")]
    total = np.cumsum(np.sort(mass)[::-1])
    if not pool.size or total[-1] <= 0:
        return
    for share in _SHARES:
        take = int(np.searchsorted(total, share * total[-1] * (1 - 1e-9))) + 1
        if take < order.size or share == _SHARES[0]:
            yield tuple(np.sort(order[:take]).tolist())
        if share == _SHARES[0] and take < order.size:
            yield tuple(np.sort(order[take:]).tolist())


def _gpu_groups(mass: Float64, every: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys([every, *_shares(np.asarray(every), mass)]))


def _test(
    cluster: HostCluster,
    scope: Scope,
    group: tuple[int, ...],
    gpus: tuple[int, ...],
    mass: Float64,
    of_gpu: Float64,
    nbytes: int | None,
) -> GroupTest:
    """The test of a group, with the least suspicious host or GPU beside it where it takes two."""
    pair = _with_partner(gpus, of_gpu, np.zeros(of_gpu.size), 0)
    if scope == "inside":
        return GroupTest("inside", group, pair, nbytes or ring_size(1))
    if scope == "all":
        hosts = _with_partner(group, mass, cluster.leaf, cluster.leaf[group[0]])
        return GroupTest("all", hosts, pair, nbytes or ring_size(len(hosts)))
    return _across(cluster, _with_partner(group, mass, cluster.leaf, cluster.leaf[group[0]]), gpus, nbytes)


def _with_partner(group: tuple[int, ...], mass: Float64, side: Int64 | Float64, own: int) -> tuple[int, ...]:
    """A group of one with another: the least suspicious, of its own side where all are alike."""
    if len(group) > 1 or mass.size < 2:
        return group
    others = [i for i in np.lexsort((np.arange(mass.size), side != own, mass)).tolist() if i not in group]
    return tuple(sorted((*group, others[0])))


def _across(
    cluster: HostCluster, hosts: tuple[int, ...], gpus: tuple[int, ...], nbytes: int | None, *, spread: bool = False
) -> GroupTest:
    leaf = cluster.leaf[list(hosts)]
    if spread:  # the first of every leaf, then the second of every leaf ...
        place = np.array([np.count_nonzero(leaf[:i] == leaf[i]) for i in range(len(hosts))])
        order = np.lexsort((leaf, place))
    else:
        order = np.argsort(leaf, kind="stable")
    return GroupTest("across", tuple(np.asarray(hosts)[order].tolist()), gpus, nbytes or ring_size(len(hosts)))


def _crossing(
    state: Posterior, p: Float64, every: tuple[int, ...], of_gpu: Float64, nbytes: int | None
) -> Iterator[GroupTest]:
    """Rings whose neighbours are under different leaves: all hosts of some leaves, without those most surely slow."""
    s, cluster = state.suspects, state.suspects.cluster
    uplinks, network = s.place == PartKind.LEAF, (s.place == PartKind.NODE) | (s.place == PartKind.NIC)
    mass = _sums(s.leaf[uplinks], p[uplinks], cluster.leaves)
    clean = _sums(s.host[network], p[network], len(cluster.hosts)) < _SURE
    for leaves, gpus in product(_host_groups(mass), _gpu_groups(of_gpu, every)):
        pair = _with_partner(leaves, mass, np.zeros(mass.size), 0)
        under = np.isin(cluster.leaf, pair)
        for hosts in (np.flatnonzero(under & clean), np.flatnonzero(under)):
            if np.unique(cluster.leaf[hosts]).size > 1:
                yield _across(cluster, tuple(hosts.tolist()), gpus, nbytes, spread=True)


# -- what they would tell ---------------------------------


@dataclass(frozen=True, eq=False)
class _Draws:
    """Hypotheses drawn: their rows of the posterior, and of both faults suspect (-1: none) and ln slowdown."""

    row: Int64
    suspect: Int64  # (2, draws)
    slowdown: Float64  # (2, draws)


def _draw(state: Posterior, rng: np.random.Generator) -> _Draws:
    row = rng.choice(state.weight.size, _DRAWS, p=state.weight)
    order = np.argsort(state.cell_of, kind="stable")
    start = np.concatenate([[0], np.cumsum(state.count)])
    suspects, slowdowns = [], []
    for k, column in enumerate((state.first[row], state.second[row])):
        cell = state.cell[column]
        member = order[np.minimum(start[cell] + (rng.random(_DRAWS) * state.count[cell]).astype(int), order.size - 1)]
        suspects.append(np.where(cell >= 0, member, -1))
        slowdowns.append(state.slowdown[column] + state.excess[k, row])
    return _Draws(row, np.array(suspects), np.array(slowdowns))


def _mean(
    test: GroupTest,
    state: Posterior,
    draws: _Draws,
    observed: Sequence[Observation],
    forward: Forward,
    priors: Priors,
) -> Float64:
    """ln t over the expected one under each draw: its faults, and what other tests say of the healthy machine."""
    with np.errstate(divide="ignore"):
        load = np.append(np.log(load_of(test, state.suspects, forward)), -np.inf)
    slow = np.maximum(0.0, load[draws.suspect] + draws.slowdown).max(0)
    if not observed:
        return np.asarray(slow)
    shapes = [each.test.shape for each in observed] + [test.shape]
    common = covariance(shapes, forward, priors)[-1, :-1]
    return np.asarray(slow + state.shift[draws.row] @ common)


def _spread(tests: Sequence[GroupTest], observed: Sequence[Observation], forward: Forward, priors: Priors) -> Float64:
    """The covariance of ln t of tests, given those observed and a hypothesis."""
    shapes = [each.test.shape for each in observed] + [test.shape for test in tests]
    whole, n = covariance(shapes, forward, priors), len(observed)
    return np.asarray(whole[n:, n:] - whole[n:, :n] @ np.linalg.solve(whole[:n, :n], whole[:n, n:]))


_BIN = 0.25  # of the standard deviation of the errors


def _bits(z: Float64) -> float:
    """Information of results around z (draws,), in standard deviations of their errors, about which was drawn."""
    at = np.rint((z - z.min()) / _BIN).astype(int)
    bell = np.exp(-0.5 * (np.arange(-20, 21) * _BIN) ** 2)
    density = np.convolve(np.bincount(at) / at.size, bell / bell.sum())
    density = density[density > 0]
    own = bell / bell.sum()
    return max(0.0, float((own * np.log2(own)).sum() - (density * np.log2(density)).sum()))


def _bits_together(means: Float64, spread: Float64, rng: np.random.Generator) -> float:
    """The same of several tests at once, means (draws, tests) with errors of a covariance, by drawing results."""
    z = np.linalg.solve(np.linalg.cholesky(spread), means[:_PAIRED].T).T
    y = z + rng.standard_normal(z.shape)
    apart = ((y[:, None, :] - z[None, :, :]) ** 2).sum(2)
    own = np.diagonal(apart)
    mixture = np.log(np.exp(-0.5 * (apart - own[:, None])).mean(1))
    return float(-mixture.mean() / np.log(2.0))
