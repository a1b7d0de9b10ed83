"""The workloads behind the performance bars: each is prepared once and then timed in CPU-seconds, warm.

``python benchmarks/table.py`` measures them all beside the recorded figures of other simulators.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from commsim.collectives.ring import ring_all_reduce, stepwise_ring_all_reduce
from commsim.engine.cosim import Environment, Template
from commsim.engine.evaluate import evaluate
from commsim.engine.fair import simulate_fair
from commsim.engine.family import hierarchical_family, ring_family
from commsim.engine.program import Program, build_program
from commsim.engine.simulate import simulate
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import prepare, run
from commsim.scenario.setting import build_topology
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset

SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios" / "benchmarks"


@dataclass(frozen=True)
class Workload:
    """One line of the table: ``prepare`` gives what is timed; it answers with the amount of work done.

    ``unit`` "s": CPU-seconds, at most ``bar``; "Mop/s" and "kop/s": work per CPU-second, at least ``bar``; "MiB": the
    answer itself, at most ``bar``. ``peer``: its section in peers.yaml; ``fresh``: what is run measures a process of
    its own, imports and all, and the answer is what it measured.
    """

    name: str
    title: str
    unit: str
    bar: float
    prepare: Callable[[], Callable[[], float]]
    rounds: int = 5
    peer: str = ""
    fresh: bool = False

    def measure(self, rounds: int | None = None) -> float:
        """The median over some rounds after a warm one, in ``unit``."""
        run = self.prepare()
        work = run()
        if self.unit == "MiB" or self.fresh:
            return work
        seconds = []
        for _ in range(rounds or self.rounds):
            before = time.process_time()
            run()
            seconds.append(time.process_time() - before)
        median = float(np.median(seconds))
        return median if self.unit == "s" else work / median / {"Mop/s": 1e6, "kop/s": 1e3}[self.unit]

    def holds(self, value: float, slowness: float) -> bool:
        """Whether a value meets the bar on a machine that is so many times slower than that of the bars."""
        if self.unit == "MiB":
            return value <= self.bar
        return value <= self.bar * slowness if self.unit == "s" else value >= self.bar / slowness


def _topology(name: str) -> Topology:
    return build_topology(load_scenarios(SCENARIOS / f"{name}.yaml", [])[0])


def _built(name: str, n: int, *, in_order: bool = True) -> Callable[[], Callable[[], float]]:
    """Schedule, program and simulation of a shipped benchmark; the topology is there already."""

    def prepare() -> Callable[[], float]:
        topology = _topology(name)
        builder = ring_all_reduce if name.startswith("w1") else stepwise_ring_all_reduce

        def run() -> float:
            return simulate(build_program(builder(n, 1 << 30), topology), in_order=in_order, merge=True).messages

        return run

    return prepare


def _wavefront(n: int, *, uneven: bool = False) -> Callable[[], Callable[[], float]]:
    """W1 by arithmetic; ``uneven``: every hop with a latency of its own, so that no position stands for another."""

    def prepare() -> Callable[[], float]:
        topology = _flat(n)
        if uneven:
            latency = np.random.default_rng(0).uniform(1e-6, 2e-6, topology.link_latency.size)
            object.__setattr__(topology, "link_latency", latency)
        family = ring_family("all_reduce", n, n << 20)
        return lambda: evaluate(family, topology, "wavefront").messages

    return prepare


def _flat(n: int) -> Topology:
    scenario = load_scenarios(SCENARIOS / "w1-ring-8.yaml", [f"topology.nodes={n}"])[0]
    return build_topology(scenario)


def ring_program(n: int) -> Program:
    """Ring all_reduce on a switch, two hops of 50 GB/s and 0.5 us; 64 KiB per message."""
    schedule = ring_all_reduce(n, n << 16)
    ptr, idx = schedule.dependencies()
    ranks = np.arange(n)
    links = np.stack([ranks, n + (ranks + 1) % n], axis=1).ravel()
    return _program(schedule.payload_bytes(), schedule.src, (ptr, idx), np.arange(n + 1) * 2, links, 2 * n)


def all_to_all_program(n: int, sizes: Any) -> Program:
    """Every rank to every other at once on a switch; two hops."""
    turn, rank = np.divmod(np.arange(n * (n - 1)), n)
    rows = rank.size
    links = np.stack([rank, n + (rank + turn + 1) % n], axis=1).ravel()
    none = (np.zeros(rows + 1, np.int64), np.zeros(0, np.int32))
    return _program(np.broadcast_to(sizes, (rows,)), np.arange(rows), none, np.arange(rows + 1) * 2, links, 2 * n)


def _program(nbytes: Any, route: Any, after: Any, ptr: Any, links: Any, count: int) -> Program:
    return Program(
        nbytes=nbytes,
        route=route.astype(np.int32),
        delay_s=np.zeros(nbytes.size),
        succ_ptr=after[0],
        succ_idx=after[1],
        route_ptr=ptr.astype(np.int64),
        route_link=links.astype(np.int32),
        link_bandwidth=np.full(count, 50e9),
        link_latency=np.full(count, 0.5e-6),
    )


def _costs() -> Callable[[], float]:
    """20,000 calls on a group of four GPUs of a node, sizes even in their logarithm; the table is there already."""
    import commsim

    sizes = np.exp2(np.random.default_rng(0).uniform(3, 34, 1000)).astype(np.int64).tolist()
    ranks = [0, 2, 4, 6]

    def run() -> float:
        for _ in range(20):
            for size in sizes:
                commsim.cost("all_gather", size, ranks, "hgx-h100-ndr400", dtype="bfloat16")
        return 20.0 * len(sizes)

    return run


def _decode_steps() -> Callable[[], float]:
    """Steps of DeepSeek-V3 on eight H200, every one of another length of the cache."""
    from itertools import count

    from commsim.generation.batch import Batch
    from commsim.generation.formats import formats
    from commsim.generation.replica import Engine, Replica
    from commsim.generation.step import StepModel
    from commsim.training.accelerator import accelerator
    from commsim.training.model import model

    replica = Replica(model("deepseek-v3"), accelerator("H200"), Engine("sglang"), tp=8, formats=formats("fp8_block"))
    step, cached = StepModel(replica), count(1000)

    def run() -> float:
        for _ in range(100):
            step.seconds(Batch(64, float(next(cached))))
        return 100.0

    return run


def _simulated(make: Callable[[], Program], **how: Any) -> Callable[[], Callable[[], float]]:
    def prepare() -> Callable[[], float]:
        program = make()
        return lambda: simulate(program, **how).messages

    return prepare


def _shared(make: Callable[[], Program]) -> Callable[[], Callable[[], float]]:
    def prepare() -> Callable[[], float]:
        program = make()
        return lambda: simulate_fair(program).messages

    return prepare


def _four_hops() -> Program:
    """All-to-all of 256 ranks in nodes of 8 under leaves and spines: up to eight links, four that queue."""
    from commsim.collectives.pairwise import pairwise_all_to_all

    topology = load_preset("hgx-h100-ndr400", nodes=32, nodes_per_leaf=8, oversubscription=4.0)
    program = build_program(pairwise_all_to_all(256, 256 << 16), topology)
    # The four of the network: NIC to leaf, leaf to spine, and down again.
    kept = topology.link_kind[program.route_link] >= 4
    length = np.bincount(
        np.repeat(np.arange(program.route_ptr.size - 1), np.diff(program.route_ptr))[kept],
        minlength=program.route_ptr.size - 1,
    )
    ptr = np.concatenate([[0], np.cumsum(length)])
    return replace(program, route_ptr=ptr, route_link=program.route_link[kept])


def _random_sizes() -> Program:
    return all_to_all_program(64, np.random.default_rng(1).integers(1, 2 << 20, 64 * 63))


def _hierarchical() -> Callable[[], float]:
    topology = load_preset("hgx-h100-ndr400", nodes=12_800, oversubscription=4.0)

    def run() -> float:
        total = evaluate(hierarchical_family(102_400, 102_400 << 10, 8), topology, "fold")
        return total.messages

    return run


def pipeline(per_gpu: bool, contention: Any = "fifo") -> Callable[[], Callable[[], float]]:
    """10,000 collectives on 64 GPUs: 8 stages of 8 ranks, all_reduces of 8 MiB, 2 MiB sent to the next stage."""
    stages, layers, micro_batches, compute_s = 8, 8, 19, 100e-6

    def prepare() -> Callable[[], float]:
        topology = load_preset("hgx-h100-ndr400", nodes=stages)
        reduce, send = Template.of(ring_all_reduce(8, 8 << 20)), Template.send(2 << 20)
        groups = [tuple(range(8 * s, 8 * s + 8)) for s in range(stages)]

        def run() -> float:
            env = Environment(topology, contention)
            begin = _per_gpu if per_gpu else _per_stage
            begin(env, groups, (reduce, send), (micro_batches, 8 * layers, compute_s))
            env.run()
            return env.network.started

        return run

    return prepare


Steps = Generator[Any, Any, None]


def _per_stage(env: Environment, groups: list[tuple[int, ...]], templates: Any, shape: Any) -> None:
    reduce, send = templates
    micro_batches, layers, compute_s = shape
    came = [[env.event() for _ in range(micro_batches)] for _ in groups]

    def hand_on(s: int, m: int) -> Steps:
        yield env.all_of([env.start(send, (a, b)) for a, b in zip(groups[s], groups[s + 1], strict=True)])
        came[s + 1][m].succeed()

    def stage(s: int) -> Steps:
        for m in range(micro_batches):
            if s:
                yield came[s][m]
            for _ in range(layers):
                yield env.timeout(compute_s)
                yield env.start(reduce, groups[s])
            if s + 1 < len(groups):
                env.process(hand_on(s, m))

    for s in range(len(groups)):
        env.process(stage(s))


def _per_gpu(env: Environment, groups: list[tuple[int, ...]], templates: Any, shape: Any) -> None:
    reduce, send = templates
    micro_batches, layers, compute_s = shape
    came = [[[env.event() for _ in group] for _ in range(micro_batches)] for group in groups]
    barrier = [[0, env.event()] for _ in groups]

    def arrive(s: int) -> simpy.Event:
        """The end of the collective, which starts when the last GPU of the stage has arrived."""
        entry = barrier[s]
        entry[0] += 1
        if entry[0] == len(groups[s]):
            barrier[s] = [0, env.event()]
            env.start(reduce, groups[s]).callbacks.append(entry[1].trigger)
        return entry[1]

    def gpu(s: int, i: int) -> Steps:
        for m in range(micro_batches):
            if s:
                yield came[s][m][i]
            for _ in range(layers):
                yield env.timeout(compute_s)
                yield arrive(s)
            if s + 1 < len(groups):
                target = came[s + 1][m][i]
                env.start(send, (groups[s][i], groups[s + 1][i])).callbacks.append(lambda _, t=target: t.succeed())

    for s, group in enumerate(groups):
        for i in range(len(group)):
            env.process(gpu(s, i))


_MEMORY = """
from pathlib import Path
from commsim.collectives.ring import ring_all_reduce
from commsim.engine.program import build_program
from commsim.engine.simulate import simulate
from workloads import _topology
def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
topology = _topology("w1-ring-1024")
simulate(build_program(ring_all_reduce(8, 1 << 20), topology))
idle = kib("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
simulate(build_program(ring_all_reduce(1024, 1 << 30), topology))
print((kib("VmHWM") - idle) / 1024)
"""


def _memory() -> Callable[[], float]:
    """Peak resident size above that of a process that has loaded and compiled everything."""

    def run() -> float:
        here = Path(__file__).resolve().parent
        done = subprocess.run([sys.executable, "-c", _MEMORY], cwd=here, check=True, capture_output=True, text=True)
        return float(done.stdout)

    return run


def _machine(nodes: int, faults: str = "", more: str = "") -> str:
    """A scenario of one all_reduce of 1 GiB by NCCL on so many nodes of eight H100."""
    return f"""
name: Scale
topology: {{preset: hgx-h100-ndr400, nodes: {nodes}, faults: [{faults}]}}
library: {{name: nccl, version: 2.26.2}}
workload: [{more or "{collective: all_reduce, sizes: 1 GiB}"}]
"""


_SLOW = "{link: [node0.gpu1, node0.nvswitch], bandwidth_factor: 0.5}"
_DEAD = "{nic: [17, 3], failed: true}"
_HALVES = ", ".join(
    f"{{name: {name}, ranks: [{first} .. {first + 262_143}], collective: all_reduce, size: 1 GiB}}"
    for name, first in (("first", 0), ("second", 262_144))
)


@lru_cache
def _run_fresh(scenario: str) -> tuple[float, float]:
    """CPU-seconds and peak MiB of ``commsim run`` on a scenario, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scale.yaml"
        path.write_text(scenario)
        command = [sys.executable, "-m", "commsim", "run", str(path), "--no-files"]
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, *command], check=True, capture_output=True, text=True
        )  # fmt: skip
    seconds, mib = done.stdout.split()
    return float(seconds), float(mib)


_MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def _step(name: str) -> Callable[[], Callable[[], float]]:
    """A shipped training step on its machine, which is there already; its groups are timed anew in each run."""

    def prepared() -> Callable[[], float]:
        ready = prepare(load_scenarios(SCENARIOS.parent / "training" / f"{name}.yaml", [])[0])
        return lambda: float(len(run(ready).answers))

    return prepared


def _scale(name: str, title: str, scenario: str, seconds: float, mib: float) -> list[Workload]:
    """Time and memory of one run."""
    return [
        Workload(name, title, "s", seconds, lambda: lambda: _run_fresh(scenario)[0], fresh=True),
        Workload(f"{name}-memory", "the same, memory", "MiB", mib, lambda: lambda: _run_fresh(scenario)[1]),
    ]


WORKLOADS = [
    Workload("w1-256", "W1 ring, 256 ranks, schedule and run", "s", 0.04, _built("w1-ring-256", 256), 9, "w1-256"),
    Workload(
        "w1-1024", "W1 ring, 1,024 ranks, schedule and run", "s", 0.30, _built("w1-ring-1024", 1024), 7, "w1-1024"
    ),
    Workload("w1-1024-memory", "the same, memory above idle", "MiB", 200, _memory),
    Workload(
        "w1-1024-heap",
        "the same, heap forced",
        "s",
        0.7,
        _built("w1-ring-1024", 1024, in_order=False),
        5,
        "w1-1024",
    ),
    Workload("w2-1024", "W2 two-level ring, 1,024 ranks", "s", 1.5, _built("w2-two-level-1024", 1024), 5, "w2-1024"),
    Workload("wavefront-1024", "W1 by wavefront, 1,024 ranks", "s", 0.02, _wavefront(1024)),
    Workload("wavefront-16384", "W1 by wavefront, 16,384 ranks", "s", 0.5, _wavefront(16_384)),
    Workload("wavefront-1024-uneven", "1,024 ranks, every hop different", "s", 0.02, _wavefront(1024, uneven=True)),
    Workload(
        "fifo-ring-1024",
        "FIFO heap, ring of 1,024 on a switch",
        "Mop/s",
        5.0,
        _simulated(lambda: ring_program(1024), in_order=False, merge=True),
        5,
        "fifo-ring-1024",
    ),
    Workload(
        "fifo-2-hops",
        "FIFO heap, 2 hops: random all-to-all of 512",
        "Mop/s",
        3.0,
        _simulated(
            lambda: all_to_all_program(512, np.random.default_rng(0).integers(1, 1 << 20, 512 * 511)), in_order=False
        ),
    ),
    Workload(
        "fifo-4-hops", "FIFO heap, 4 hops: all-to-all of 256, 4:1", "Mop/s", 1.2, _simulated(_four_hops, in_order=False)
    ),
    Workload("in-order", "pass without a heap, ring of 1,024", "Mop/s", 30.0, _simulated(lambda: ring_program(1024))),
    Workload(
        "fair-all-to-all-64",
        "fair sharing, all-to-all of 64, equal sizes",
        "Mop/s",
        2.0,
        _shared(lambda: all_to_all_program(64, 1 << 20)),
        25,
        "fair-all-to-all-64",
    ),
    Workload("fair-ring-1024", "fair sharing, ring of 1,024", "Mop/s", 2.0, _shared(lambda: ring_program(1024))),
    Workload(
        "fair-random-64",
        "fair sharing, all-to-all of 64, random sizes",
        "kop/s",
        8.0,
        _shared(_random_sizes),
        5,
        "fair-random-64",
    ),
    Workload("pipeline-stage", "10,000 collectives with simpy, process per stage", "s", 0.3, pipeline(per_gpu=False)),
    Workload("pipeline-gpu", "the same, process per GPU", "s", 0.5, pipeline(per_gpu=True)),
    Workload("fold-102400", "hierarchical all_reduce, 102,400 GPUs, 4:1", "s", 0.05, _hierarchical),
    Workload("step-512", "training step of 512 GPUs, transfers share links", "s", 1.0, _step("llama-3-70b-512-h100")),
    Workload("step-16384", "the same, 16,384 GPUs", "s", 8.0, _step("llama-3-405b-16384-h100"), 3),
    *_scale("nccl-8", "NCCL, 8 GPUs, a slow NVLink", _machine(1, _SLOW), 2.0, 500),
    *_scale("nccl-8192-dead-nic", "NCCL, 1,024 nodes of 8 GPUs, one dead NIC", _machine(1024, _DEAD), 2.0, 500),
    *_scale("nccl-65536", "NCCL, 65,536 nodes of 8 GPUs", _machine(65_536), 2.0, 2048),
    *_scale("nccl-65536-dead-nic", "the same, one dead NIC", _machine(65_536, _DEAD), 10.0, 2048),
    *_scale(
        "nccl-65536-jobs",
        "the same, two jobs of half of it each",
        _machine(65_536, more=f"{{jobs: [{_HALVES}]}}"),
        20.0,
        2048,
    ),
    Workload("decode-step", "decode steps of 64 sequences, warm: at most 5 ms each", "kop/s", 0.2, _decode_steps),
    Workload("cost", "calls of commsim.cost, warm, a size each: at most 50 us a call", "kop/s", 20.0, _costs),
]
