"""How many times as quick the commands are that people wait for, against another commit, in one run.

    python benchmarks/felt.py --against 2159bbf [--rounds 5] [CASE ...]

The other commit is checked out into a folder of its own. Old and new take turns, so that a busy machine slows both
alike; the table has the medians of wall and CPU time (children too) and the ratios of the wall times, beside the bars.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent

CASES: dict[str, tuple[float, str]] = {
    "plan-405b": (6.0, "plan scenarios/plan/llama-3-405b-16384-h100.yaml --no-files"),
    "plan-gpt3": (3.5, "plan scenarios/plan/gpt3-175b-1024-a100.yaml --no-files"),
    "compare": (5.0, "compare allreduce-64-nodes {log} --no-plot --out {out}"),
    "explain": (3.5, "explain allreduce-64-nodes"),
    "explain-step": (3.5, "explain scenarios/training/llama-3-70b-512-h100.yaml"),
    "validate": (16.0, "validate collectives --only a100_80g_cw_x2_all_reduce,a100_40g_x8_oci_all_reduce"),
}
"""By name how many times as quick as 2159bbf it is to be, and the command."""


def slow_log(path: Path) -> None:
    """Writes a log of nccl-tests on 64 nodes at which every size takes 1.6 times as long as predicted here."""
    import commsim as cs

    frame = cs.run("allreduce-64-nodes").to_frame()
    lines = ["# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"]
    for nbytes, microseconds in zip(frame["size_bytes"], 1.6 * frame["time_us"], strict=True):
        rate = nbytes / microseconds / 1e3
        half = f"{microseconds:.2f} {rate:.2f} {2 * rate * 511 / 512:.2f} 0"
        lines.append(f"{nbytes} {nbytes // 4} float sum -1 {half} {half}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measured(tree: Path, command: str) -> tuple[float, float]:
    """Wall and CPU seconds of one command of a checkout; RuntimeError where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as after an install: modules are not compiled at each start
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "commsim", *command.split()],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{tree}: {command} ended with {done.returncode}: {done.stderr[-500:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compared(name: str, trees: tuple[Path, Path], command: str, rounds: int) -> str:
    """One line of the table: medians of both checkouts, by turns, after one run of each that compiles."""
    for tree in trees:
        measured(tree, command)
    taken = [[measured(tree, command) for tree in trees] for _ in range(rounds)]
    (old, old_cpu), (new, new_cpu) = ([statistics.median(t[i][k] for t in taken) for k in (0, 1)] for i in (0, 1))
    bar = CASES[name][0]
    ratio = f"{old / new:.1f}x | {old_cpu / new_cpu:.1f}x | {bar:g}x"
    return f"| {name} | {old:.1f} s | {new:.1f} s | {old_cpu:.1f} s | {new_cpu:.1f} s | {ratio} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, help="a commit, or the folder of a checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"found {', '.join(sorted(unknown))}, expected some of {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as folder:
        other, log = Path(folder, "other"), Path(folder, "slow.log")
        if Path(asked.against).is_dir():
            other = Path(asked.against).resolve()
        else:
            other.mkdir()
            archive = subprocess.run(["git", "archive", asked.against], cwd=HERE, stdout=subprocess.PIPE, check=True)
            subprocess.run(["tar", "x", "-C", str(other)], input=archive.stdout, check=True)
        if "compare" in (asked.cases or CASES):
            slow_log(log)
        print("| command | old | new | old, CPU | new, CPU | ratio | of CPU | bar |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for name in asked.cases or CASES:
            command = CASES[name][1].format(log=log, out=Path(folder, "out"))
            print(compared(name, (other, HERE), command, asked.rounds), flush=True)


if __name__ == "__main__":
    main()
