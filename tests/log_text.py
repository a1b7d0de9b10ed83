"""Texts of nccl-tests logs as users have them, written for tests."""

from __future__ import annotations

from collections.abc import Sequence

GROUP = "time   algbw   busbw #wrong"
HEADER = f"#       size         count      type   redop    root     {GROUP}     {GROUP}"


def log_text(
    gpu: str = "NVIDIA H100 80GB HBM3",
    hosts: Sequence[str] = ("n0",),
    each: int = 8,
    *,
    times_us: Sequence[tuple[int, float]] = ((1 << 20, 60.0), (1 << 26, 400.0), (1 << 30, 4500.0)),
    processes: bool = True,
    extra: Sequence[str] = (),
    wrong: int = 0,
) -> str:
    """A log of all_reduce; `times_us`: size and time of each row."""
    n = len(hosts) * each
    lines = [
        f"# nThread 1 nGpus {1 if processes else each} minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20",
        "# Using devices",
    ]
    for rank in range(n):
        pid = 100 + rank if processes else 100
        place = f"on {hosts[rank // each]} device {rank % each:2d} [0000:{16 + rank % each:02x}:00]"
        lines.append(f"#  Rank {rank:2d} Group  0 Pid {pid:6d} {place} {gpu}")
    lines += [*extra, HEADER]
    factor = 2.0 * (n - 1) / n
    for size, us in times_us:
        group = f"{us:.2f} {size / us / 1e3:.2f} {factor * size / us / 1e3:.2f} {wrong}"
        lines.append(f"{size:12d} {size // 4:12d} float sum -1 {group} {group}")
    return "\n".join(lines) + "\n"
