"""Measures every workload and prints the table beside the recorded figures of other simulators.

``python benchmarks/table.py --write`` puts it into docs/reference/benchmarks.md. Where SimGrid's header and compiler
are installed, it is built and run side by side.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from reference import slowness
from workloads import WORKLOADS, Workload

import commsim

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "reference" / "benchmarks.md"

_HEAD = """# Benchmarks

CPU time of one process, median of several runs, compiled code warm. The bar is what the project holds itself to; `make
bench` measures again, prints this table and fails when a bar is missed. Figures of other simulators are recorded
(`benchmarks/peers.yaml`), on {peers}: not the machine
below, so a ratio is good to a factor of about 1.5. Above 1 it says how many times faster commsim is. **SimGrid here**
was built and run beside commsim on the machine below (`benchmarks/simgrid_ring.cpp`), where it was installed.

Measured with commsim {version} on {cores} cores, {machine}, Python {python}. A fixed piece of work
(`benchmarks/reference.py`) took {slow} times as long as on the machine that the bars were set on; bars move by that.

| workload | measured | bar | others | ratio |
|---|---:|---:|---|---|
"""

_TAIL = """
W1: ring all_reduce of 1 GiB, hosts with private links of 50 GB/s and 1 us into an ideal switch. W2: the same over nodes
of 8 with one uplink each, leaves and spines; every rank waits for its own send and receive
(`scenarios/benchmarks/`). Both give their closed forms to 1e-9. "Schedule and run" builds the schedule's rows, binds
them to routes and simulates every message. The ring of the wavefront and the fold are not simulated message by message:
see [the engine](../background/engine.md) for when that is exact.

What people wait for is measured as a ratio to another commit, both in one run and by turns: `python benchmarks/felt.py
--against COMMIT` prints wall and CPU time of `plan`, `compare`, `explain` and `validate collectives --only`.
"""


def number(text: str) -> float:
    """The value of ``1.5 s`` or ``2.7 kop/s``."""
    return float(text.split(maxsplit=1)[0])


def row(workload: Workload, value: float, peers: dict[str, str]) -> str:
    """One line of the table."""
    less = workload.unit in {"s", "MiB"}
    ratios = [number(p) / value if less else value / number(p) for p in peers.values()]
    others = ", ".join(f"{name} {p}" for name, p in peers.items())
    sign = "<=" if less else ">="
    shown = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return (
        f"| {workload.title} | {shown} {workload.unit} | {sign} {workload.bar:g} {workload.unit} | {others or '-'} "
        f"| {', '.join(f'{r:.0f}x' if r >= 10 else f'{r:.1f}x' for r in ratios) or '-'} |"
    )


SIMGRID_HEADER = Path("/usr/include/simgrid/s4u.hpp")


def simgrid(ranks: Sequence[int] = (256, 1024), rounds: int = 3) -> dict[str, str]:
    """CPU-seconds of W1 under SimGrid on this machine by workload, medians; empty unless it and g++ are installed.

    A RuntimeError when the simulated time is not the closed form: then the two do not do the same.
    """
    compiler = shutil.which("g++")
    if compiler is None or not SIMGRID_HEADER.exists():
        return {}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ring"
        source = HERE / "simgrid_ring.cpp"
        subprocess.run([compiler, "-O2", "-o", program, source, "-lsimgrid"], check=True, capture_output=True)
        for n in ranks:
            seconds = []
            for _ in range(rounds):
                done = subprocess.run([program, str(n)], check=True, capture_output=True, text=True)
                simulated_ms, cpu_s = (float(word) for word in done.stdout.split() if word[0].isdigit())
                if abs(simulated_ms * 1e-3 / (2 * (n - 1) * (2**30 / n / 50e9 + 2e-6)) - 1) > 1e-5:
                    raise RuntimeError(f"SimGrid says {simulated_ms} ms for {n} ranks, which is not the closed form")
                seconds.append(cpu_s)
            found[f"w1-{n}"] = f"{statistics.median(seconds):.3g} s"
    return found


def main() -> int:
    """Prints the table; 1 when a bar is missed."""
    recorded = yaml.safe_load((HERE / "peers.yaml").read_text())
    lines, missed, beside, factors = [], [], simgrid(), [slowness()]
    for workload in WORKLOADS:
        value = workload.measure()
        factors.append(slowness())
        here = {"**SimGrid here**": beside[workload.peer]} if workload.peer in beside else {}
        lines.append(row(workload, value, recorded.get(workload.peer, {}) | here))
        print(lines[-1], flush=True)
        if not workload.holds(value, max(factors[-2:])):
            missed.append(workload.name)
    slow = statistics.median(factors)
    print(f"this machine was {slow:.2f} times as slow as that of the bars (benchmarks/reference.py)")
    if not beside:
        print("SimGrid is not installed here (libsimgrid-dev and g++): not run side by side")
    if missed:
        print(f"missed: {', '.join(missed)}")
    if "--write" in sys.argv[1:]:
        head = _HEAD.format(
            peers=recorded["machine"],
            version=commsim.__version__,
            cores=os.cpu_count(),
            machine=_cpu(),
            python=platform.python_version(),
            slow=f"{slow:.2f}",
        )
        PAGE.write_text(head + "\n".join(lines) + "\n" + _TAIL)
    return 1 if missed else 0


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
