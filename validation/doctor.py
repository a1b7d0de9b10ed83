"""Puts faults into simulated clusters, has `commsim doctor` find them, and counts how often and how soon it does.

    python validation/doctor.py                 the tables (some minutes)
    python validation/doctor.py --write         also docs/accuracy-doctor.md
    python validation/doctor.py --hosts 16      one size of cluster
    python validation/doctor.py --testbed 20    one slow cable of eight, on real ranks

The clusters are HGX H100 nodes with eight cards on a rail-optimised tree. A test takes what NCCL's predictor says of
the whole machine with the fault in its place and the ranks where the test has them, times lognormal noise. The doctor
knows loads of single parts, and nothing of shares and places of a trial.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log, log2
from pathlib import Path

import numpy as np

from commsim.doctor.cluster import HostCluster
from commsim.doctor.examination import Examination, examine
from commsim.doctor.forward import RING, Forward, forward_of
from commsim.doctor.group_test import GroupTest
from commsim.doctor.posterior import Priors
from commsim.doctor.suspect import PartKind, Suspects, suspects_of
from commsim.files import write_atomically
from commsim.nccl.predict import Options, Predictor
from commsim.topology.faults import degraded
from commsim.topology.graph import Topology
from commsim.topology.kinds import LinkKind
from commsim.topology.presets import load_preset
from commsim.topology.spec import FaultSpec
from study.words import words_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy-doctor.md"
MACHINE = "hgx-h100-ndr400"
GPUS = 8
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NOISE = 0.05
SHARES = (0.05, 0.75)
"""Between which the rate that a fault leaves is drawn, its logarithm evenly."""


@dataclass(frozen=True)
class Trial:
    """What a doctor was faced with, what it said, with which probability, and after how many tests and rounds."""

    hosts: int
    kind: str
    faults: int
    right: bool
    sure: bool
    probability: float
    tests: int
    rounds: int
    words: str

    @property
    def budget(self) -> float:
        """Tests that it may take: for each fault."""
        return (2 * log2(self.hosts) + 4) * max(1, self.faults)


def per_leaf(hosts: int) -> int:
    """Hosts under a leaf: all of four, else such that there are four leaves, or leaves of 32."""
    return hosts if hosts <= 4 else min(32, hosts // 4)


@cache
def machine(hosts: int) -> tuple[Topology, Suspects, Forward]:
    """A healthy cluster, what may be slow in it, and what the doctor takes for its healthy times."""
    topology = load_preset(MACHINE, nodes=hosts, nodes_per_leaf=per_leaf(hosts))
    names = tuple(f"node{i}" for i in range(hosts))
    cluster = HostCluster(names, GPUS, GPUS, np.arange(hosts) // per_leaf(hosts), rails=True)
    return topology, suspects_of(cluster), forward_of(MACHINE, cluster)


def fault_specs(topology: Topology, suspects: Suspects, at: int, share: float) -> list[FaultSpec]:
    """A suspect at a share of its rate, in the words of a topology."""
    host, part, leaf = (int(column[at]) for column in (suspects.host, suspects.part, suspects.leaf))
    match PartKind(int(suspects.place[at])):
        case PartKind.NODE:
            return [FaultSpec(node=host, bandwidth_factor=share)]
        case PartKind.NIC:
            return [FaultSpec(nic=(host, part), bandwidth_factor=share)]
        case PartKind.LINK:
            return [FaultSpec(link=(f"node{host}.gpu{part}", f"node{host}.nvswitch"), bandwidth_factor=share)]
        case _:
            name = f"leaf{leaf}.rail{part}"
            vertex = list(topology.vertex_name).index(name)
            up = (topology.link_src == vertex) & (topology.link_kind == LinkKind.FABRIC)
            ends = {topology.vertex_name[int(v)] for v in topology.link_dst[up]}
            return [FaultSpec(link=(name, end), bandwidth_factor=share) for end in sorted(ends)]


class Simulated:
    """Runs tests on a cluster with faults; counts them."""

    def __init__(self, hosts: int, faults: dict[int, float], rng: np.random.Generator) -> None:
        healthy, self.suspects, _ = machine(hosts)
        specs = [spec for at, share in faults.items() for spec in fault_specs(healthy, self.suspects, at, share)]
        self.topology, self.rng = degraded(healthy, specs), rng
        self.hosts = {int(self.suspects.host[at]) for at in faults}
        self.parts = {int(self.suspects.part[at]) for at in faults}

    def __call__(self, tests: list[GroupTest]) -> list[float]:
        """Seconds of each test."""
        return [
            max(self._predicted(group, test.nbytes) for group in self._groups(test))
            * exp(self.rng.normal(0.0, NOISE))
            for test in tests
        ]  # fmt: skip

    def _predicted(self, ranks: list[int], nbytes: int) -> float:
        model = Predictor(self.topology, Options(version=(2, 26, 2), env=dict(RING)), ranks=ranks)
        return model.predict("all_reduce", nbytes).time_s

    def _groups(self, test: GroupTest) -> Iterator[list[int]]:
        """Ranks of the communicators of a test: of those that no fault touches, one stands for all."""
        of = [[host * GPUS + gpu for gpu in test.gpus_of(i, GPUS)] for i, host in enumerate(test.hosts)]
        if test.scope == "all":
            yield [rank for each in of for rank in each]
        elif test.scope == "inside":
            healthy = [each for host, each in zip(test.hosts, of, strict=True) if host not in self.hosts]
            yield from (each for host, each in zip(test.hosts, of, strict=True) if host in self.hosts)
            yield from healthy[:1]
        else:
            rings = [[each[i] for each in of] for i in range(len(test.gpus))]
            touched = [bool(self.parts & {rank % GPUS for rank in ring}) for ring in rings]
            yield from (ring for ring, is_touched in zip(rings, touched, strict=True) if is_touched)
            yield from [ring for ring, is_touched in zip(rings, touched, strict=True) if not is_touched][:1]


def alike(suspects: Suspects, at: int) -> set[int]:
    """Suspects that no test can tell from one: the networks of two hosts that are all there are."""
    if len(suspects.cluster.hosts) == 2 and suspects.place[at] == PartKind.NODE:
        return set(np.flatnonzero(suspects.place == PartKind.NODE).tolist())
    return {at}


def trial(hosts: int, count: int, rng: np.random.Generator, at_once: int = 1) -> Trial:
    """One cluster with so many faults."""
    _, suspects, forward = machine(hosts)
    places = [place for place in PartKind if (suspects.place == place).any()]
    faults: dict[int, float] = {}
    while len(faults) < count:
        place = places[rng.integers(len(places))]
        at = int(rng.choice(np.flatnonzero(suspects.place == place)))
        faults[at] = exp(rng.uniform(log(SHARES[0]), log(SHARES[1])))
    most = int((2 * log2(hosts) + 4) * max(1, count))
    examination = Examination(suspects, forward, Priors(noise=NOISE), at_once=at_once)
    diagnosis = examine(examination, Simulated(hosts, faults, rng), most)
    wanted = set().union(*(alike(suspects, at) for at in faults))
    cells = examination.state.answers()[0][0]
    apart = np.prod([1 if set(m) <= wanted else len(m) for m in map(examination.state.members, cells)])
    kinds = " + ".join(sorted(PartKind(int(suspects.place[at])).name.lower() for at in faults)) or "healthy"
    truth = ", ".join(f"{suspects.name(at)} at {share:.2f}" for at, share in faults.items()) or "healthy"
    words = f"{truth}: said {', '.join(suspects.name(at) for at in diagnosis.blamed[:3]) or 'healthy'}"
    right = set(diagnosis.blamed) == wanted
    return Trial(
        hosts,
        kinds,
        count,
        right,
        diagnosis.sure,
        diagnosis.answer / float(apart),
        len(diagnosis.observed),
        diagnosis.rounds,
        words,
    )


def rows(trials: Sequence[Trial]) -> str:
    """Cells of a table: count, right, Brier score, tests and rounds."""
    right = np.mean([t.right for t in trials])
    brier = np.mean([(t.probability - t.right) ** 2 for t in trials])
    tests, rounds = [t.tests for t in trials], [t.rounds for t in trials]
    return (
        f"{len(trials)} | {100 * right:.1f} | {brier:.3f} | {np.mean(tests):.1f} | {max(tests)} | {np.mean(rounds):.1f}"
    )


def table(trials: Sequence[Trial]) -> str:
    """What was found, by size of cluster and kind of fault."""
    lines = ["| clusters | n | right % | Brier score | tests, mean | most | rounds |", "|---|--:|--:|--:|--:|--:|--:|"]
    one = [t for t in trials if t.faults == 1]
    groups = [("**one fault**", one)]
    groups += [
        (f"{hosts} hosts (at most {int(2 * log2(hosts) + 4)} tests)", [t for t in one if t.hosts == hosts])
        for hosts in SIZES
    ]
    groups += [(f"a slow {kind}", [t for t in one if t.kind == kind]) for kind in ("node", "nic", "link", "leaf")]
    groups += [("**no fault**", [t for t in trials if t.faults == 0])]
    groups += [("**two faults**, twice the tests", [t for t in trials if t.faults == 2])]
    groups += [("**all**", list(trials))]
    return "\n".join([*lines, *(f"| {name} | {rows(those)} |" for name, those in groups if those)])


def page(trials: Sequence[Trial], in_rounds: Sequence[Trial]) -> str:
    """The page of the documentation."""
    wrong = "\n".join(f"- {t.hosts} hosts, p = {t.probability:.2f}: {t.words}" for t in trials if not t.right)
    return f"""# How often the doctor is right

Written by `python validation/doctor.py --write`; do not edit by hand.

{words_of("accuracy-doctor")}

Faults are put into simulated clusters of HGX H100 nodes, eight cards each, on a rail-optimised tree: a node (all its
cards), a card, the NVLinks of a GPU, the uplinks of a leaf switch, each kind as often; what is left of the rate is
between {100 * SHARES[0]:g} and {100 * SHARES[1]:g} %, its logarithm drawn evenly. A test takes what NCCL's predictor
says of the whole machine with the fault in it, with the ranks where the test has them, times lognormal noise of
{100 * NOISE:g} %. The doctor knows neither places nor shares, and loads of single parts alone
([how](guides/doctor.md#how-it-decides)).

*Right*: exactly the faulty parts are named, each to the card, GPU or leaf switch; of two hosts that are the whole
cluster, whose networks no test can tell apart, both. *Brier score*: the mean of (p - 1 if right, else p - 0)², where p
is the probability that the doctor states for its answer. It stops at 0.95, where nothing is left to tell, or after
2 log2 N + 4 tests for each fault.

{table(trials)}

With `--at-once 4`, tests on disjoint hosts run side by side:

{table(in_rounds)}

Wrong answers of the first table, and unsure ones:

{wrong or "None."}
"""


def on_ranks(count: int) -> str:
    """How often a slow cable of eight is found on a testbed with gloo: a half, then a tenth, of each host in turn."""
    from commsim.doctor.forward import Unknown
    from commsim.doctor.runner import TESTBED_BYTES, on_testbed

    suspects, right, tests = suspects_of(HostCluster(tuple(f"node{i}" for i in range(8)), 1, 1)), 0, list[int]()
    for k in range(count):
        node, share = (3 * k + k // 8) % 8, (0.5, 0.1)[k % 2]
        fault = FaultSpec(nic=(node, 0), bandwidth_factor=share)
        with on_testbed(degraded(load_preset("testbed-star", nodes=8), [fault])) as measure:
            diagnosis = examine(Examination(suspects, Unknown(), Priors(noise=0.1), nbytes=TESTBED_BYTES), measure, 20)
        right += diagnosis.blamed == (node,)
        tests.append(len(diagnosis.observed))
        print(f"# node{node} at {share}: said {[suspects.name(at) for at in diagnosis.blamed]}", file=sys.stderr)
    return f"{right} of {count} found on real ranks, with {np.mean(tests):.1f} tests, {max(tests)} at most"


def main(words: Sequence[str]) -> int:
    """Prints the tables, and writes the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--hosts", type=int, nargs="*", default=list(SIZES))
    parser.add_argument(
        "--trials", type=int, default=20, help="with one fault, of each size; a quarter with none and two"
    )
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--testbed", type=int, help="instead: so many trials on real ranks (a minute each; root)")
    given = parser.parse_args(words)
    if given.testbed:
        print(on_ranks(given.testbed))
        return 0

    def all_of(at_once: int, trials: int) -> list[Trial]:
        done = []
        for hosts in given.hosts:
            rng = np.random.default_rng([given.seed, hosts, at_once])
            for count in [1] * trials + [0] * (trials // 4) + [2] * (trials // 4):
                done.append(trial(hosts, count, rng, at_once))
                if not done[-1].right:
                    print(f"# {hosts} hosts: p = {done[-1].probability:.2f}, {done[-1].words}", file=sys.stderr)
            print(f"# {hosts} hosts are through", file=sys.stderr)
        return done

    alone, in_rounds = all_of(1, given.trials), all_of(4, given.trials // 4)
    print(table(alone), table(in_rounds), sep="\n\n")
    if given.write:
        write_atomically(PAGE, page(alone, in_rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
