"""How much memory a run needs, and a polite refusal before the machine starts to swap."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from commsim.errors import InfeasibleError
from commsim.units import format_bytes

# Measured on programs of 10**5..10**7 ops as peak resident bytes above the idle process: the columns of Schedule and
# Program with their dependences, and the state of a run. Recording adds 20 bytes per hop and 4 per op.
BUILD_BYTES_PER_ROW = 110
RUN_BYTES_PER_ROW = 48
RECORD_BYTES_PER_HOP = 16


def machine_bytes() -> int | None:
    """Memory this process may use: the machine's, or its control group's limit when smaller; None when unknown."""
    found: list[int] = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no sysconf on Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min((f for f in found if f > 0), default=None)


def estimate_bytes(rows: int) -> int:
    """Bytes that building and simulating a schedule of ``rows`` rows takes.

    >>> estimate_bytes(1_000_000)
    158000000
    """
    return rows * (BUILD_BYTES_PER_ROW + RUN_BYTES_PER_ROW)


def require_memory(needed_bytes: int, rows: int, *, limit_bytes: int | None = None) -> None:
    """Raise InfeasibleError when a run needs more than the limit, by default half of the machine's memory."""
    if limit_bytes is None:
        machine = machine_bytes()
        if machine is None:
            return
        limit_bytes = machine // 2
    if needed_bytes > limit_bytes:
        raise InfeasibleError(
            f"a simulation of {rows:,} chunk moves needs about {format_bytes(needed_bytes)}, the limit is "
            f"{format_bytes(limit_bytes)} (half of the memory unless set); fewer chunks, channels or ranks would fit"
        )
