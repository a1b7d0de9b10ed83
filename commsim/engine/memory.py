"""How much memory a run needs, and a polite refusal before the machine starts to swap."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from commsim.errors import InfeasibleError
from commsim.units import format_bytes

# Peak resident bytes above the idle process, measured at 2 million rows and rounded up: the columns of Schedule and
# Program, 66 for a ring with its dependences by arithmetic, 258 for a tree whose dependences are derived by sorting.
KNOWN_BYTES_PER_ROW = 75
DERIVED_BYTES_PER_ROW = 265
# By count: in-degrees, three times and a full heap, whose arrays double in size.
RUN_BYTES_PER_ROW = 76


@cache
def machine_bytes() -> int | None:
    """Memory this process may use: the machine's, or its control group's limit when smaller; None when unknown."""
    limits: list[int] = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no sysconf on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min((f for f in limits if f > 0), default=None)


def estimate_bytes(rows: int, *, derived: bool = True) -> int:
    """Bytes that building and simulating a schedule of ``rows`` rows takes at most.

    ``derived=False``: the builder gives the dependences by arithmetic, so they need not be sorted out.

    >>> estimate_bytes(1_000_000, derived=False)
    151000000
    """
    return rows * ((DERIVED_BYTES_PER_ROW if derived else KNOWN_BYTES_PER_ROW) + RUN_BYTES_PER_ROW)


_ADVICE = (
    "take coarser chunks, fewer channels or ranks, or a level without rows (engine: wavefront for rings, fold for "
    "rings and hierarchical all_reduce)"
)


def require_memory(needed_bytes: int, rows: int, *, subject: str = "a simulation", advice: str = _ADVICE) -> None:
    """Raise InfeasibleError when a run needs more than half of the machine's memory."""
    machine = machine_bytes()
    if machine is not None and needed_bytes > machine // 2:
        fit = int(rows * (machine // 2) / needed_bytes)
        raise InfeasibleError(
            f"{subject} of {rows:,} chunk moves needs about {format_bytes(needed_bytes)}, the limit is "
            f"{format_bytes(machine // 2)} (half of the memory unless set); {fit:,} moves would fit: {advice}"
        )
