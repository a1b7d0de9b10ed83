"""How far `commsim.cost` is from `commsim.run` between the knots of its tables, how often the model itself falls, and
how long a call takes.

    python benchmarks/cost_error.py [PRESET:NODES ...]

Random sizes, even in their logarithm, of every collective of NCCL; those of a machine and a collective are run as one
scenario. Exit status 1 where a difference is above 1 % or a call takes longer than 50 us.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import commsim as cs
from commsim.collectives.semantics import NCCL_TESTS
from commsim.scenario.cost_source import shared_table

BAR, CALL_BAR_S = 0.01, 50e-6
SIZES = 200
MACHINES = ("hgx-h100:1", "hgx-h100-ndr400:4", "dgx-a100-hdr200:2", "hgx-b200:1", "aws-p4d:8")


def sizes(seed: int) -> list[int]:
    """Random sizes of whole float32 elements from 4 B to 32 GiB, ascending: a few lie beyond the last knot."""
    drawn = np.exp2(np.random.default_rng(seed).uniform(2, 35, SIZES)).astype(np.int64)
    return sorted({int(size) // 4 * 4 for size in drawn})


def differences(preset: str, nodes: int, collective: str, seed: int) -> tuple[np.ndarray, float, float]:
    """|cost / run - 1| of every size; seconds of a warm call; how far the model falls at most between two sizes."""
    some = sizes(seed)
    topology = {"preset": preset, "nodes": nodes}
    item = {"collective": collective, "sizes": [f"{size} B" for size in some]}
    result = cs.run({"name": "cost", "topology": topology, "workload": [item]})
    run = result.to_frame()["time_us"].to_numpy() / 1e6
    of_all = shared_table(collective, None, topology)  # which `cost` reads
    of_all.fill()  # the first sizes of a quarter of an octave are the model's own
    table = np.array([of_all(size) for size in some])
    begun = time.process_time()
    for size in some:
        cs.cost(collective, size, None, topology)
    call_s = (time.process_time() - begun) / len(some)
    return np.abs(table / run - 1), call_s, float((1 - run[1:] / run[:-1]).max())


def main() -> int:
    """Prints a line per machine and collective, and all together."""
    every, slowest = [], 0.0
    for machine in sys.argv[1:] or MACHINES:
        preset, _, nodes = machine.partition(":")
        for number, collective in enumerate(NCCL_TESTS):
            begun = time.process_time()
            off, call_s, fall = differences(preset, int(nodes or 1), collective, number)
            every.append(off)
            slowest = max(slowest, call_s)
            print(
                f"{machine} {collective}: max {off.max():.3%}, p99 {np.quantile(off, 0.99):.3%}; {1e6 * call_s:.1f} us "
                f"a call; the model falls by up to {max(fall, 0):.1%}; {time.process_time() - begun:.1f} s",
                flush=True,
            )
    off = np.concatenate(every)
    print(f"{off.size} sizes: max {off.max():.3%}, p99 {np.quantile(off, 0.99):.3%}; {1e6 * slowest:.1f} us a call")
    return int(off.max() > BAR or slowest > CALL_BAR_S)


if __name__ == "__main__":
    raise SystemExit(main())
