"""Rows of a run as text, in the form of nccl-tests."""

from __future__ import annotations

from typing import Any

from commsim.measure.run import Run
from commsim.units import format_time

HEADER = (
    f"# {'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'root':>5} "
    f"{'time':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>7} {'time':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>7}  "
    f"{'p95':>10} {'sent/rank':>12}\n"
    f"# {'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'':>5} "
    + f"{'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7} " * 2
    + f" {'(us)':>10} {'(B)':>12}"
)
"""Two lines; the first time is out of place, the second in place, as far as the library has both."""


def heading(run: Run) -> str:
    """What is measured, on what, in lines that start with ``#``; the head of the table where there will be rows."""
    kinds = ", ".join(dict.fromkeys([*(t.collective for t in run.tasks), *(t.scheme for t in run.training)]))
    side_by_side = sum(len(item.jobs) for item in run.jobs)
    kinds = ", ".join(filter(None, [kinds, f"{side_by_side} jobs" if side_by_side else ""]))
    schedules = ", ".join(dict.fromkeys(task.algorithm for task in run.tasks if task.schedule))
    how = f"{schedules} over {run.backend}" if schedules else run.backend
    if run.backend == "nccl":
        how += f" through {run.runner}"
    if run.group_size < run.world_size:
        how += f", communicators of {run.group_size} ({run.split})"
    if run.graph:
        how += f", {run.graph} launches of a CUDA graph"
    if run.register != "none":
        how += f", registered: {run.register}"
    if any(run.late_s):
        how += ", " + ", ".join(f"rank {r} {format_time(s)} late" for r, s in enumerate(run.late_s) if s)
    lines = [
        f"# commsim measure: {run.name}",
        f"# {kinds} on {run.world_size} ranks, {how}, {run.network}; "
        f"{run.iterations} iterations after {run.warmup}, {run.mode.replace('_', ' ')}",
    ]
    if run.tasks:
        lines += [f"# {'':>47} {'out-of-place':^37}{'in-place':^37}", HEADER]
    return "\n".join(lines)


def format_row(row: dict[str, Any]) -> str:
    """A row as nccl-tests prints it, with the 95th percentile of the time and the most that a rank sent."""
    parts = [f"  {row['size_bytes']:>12} {row['count']:>12} {row['dtype']:>9} {row['redop']:>6} {row['root']:>5}"]
    for place in ("oop", "ip"):
        if f"{place}_time_us" not in row:
            parts.append(f"{'-':>10} {'-':>8} {'-':>8} {'N/A':>7}")
            continue
        time, algbw, busbw, wrong = (row[f"{place}_{n}"] for n in ("time_us", "algbw_GBps", "busbw_GBps", "wrong"))
        parts.append(f"{time:>10.1f} {algbw:>8.3f} {busbw:>8.3f} {wrong:>7}")
    p95 = max((row[name] for place in ("oop", "ip") if (name := f"{place}_p95_us") in row), default=None)
    sent = max((int(n) for n in row.get("sent_bytes", "").split()), default=0)
    return " ".join(parts) + f"  {'-' if p95 is None else f'{p95:.1f}':>10} {sent or '-':>12}"
