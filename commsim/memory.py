"""How much memory a question may take, and the refusal of one that would take more, before it has begun.

The limit is half of what is free, or what `allowed` says; it belongs to the context (contextvars), so that two runs
side by side may have two.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from commsim.errors import MemoryLimitError
from commsim.units import GIB, format_memory

_CGROUP = Path("/sys/fs/cgroup")
_GROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""The limit and the use of a control group, of version 2 and 1 (Linux, Documentation/admin-guide/cgroup-v2.rst)."""

_limit: ContextVar[int | None] = ContextVar("memory_limit", default=None)


def allow(nbytes: int | None) -> None:
    """From now on questions of this process or thread may take so many bytes; None: half of what is free."""
    _limit.set(nbytes)


@contextlib.contextmanager
def allowed(nbytes: int) -> Iterator[None]:
    """Within the block questions may take so many bytes."""
    before = _limit.set(nbytes)
    try:
        yield
    finally:
        _limit.reset(before)


def limit_bytes() -> int | None:
    """Bytes that a question may take: as allowed, else half of what is free; None where neither is known."""
    given = _limit.get()
    if given is not None:
        return given
    known = [nbytes for nbytes in (machine_bytes(), _free_bytes()) if nbytes is not None]
    return min(known) // 2 if known else None


@cache
def machine_bytes() -> int | None:
    """Memory this process may use: the machine's, or its control group's limit when smaller; None when unknown."""
    limits: list[int] = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no sysconf on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limits += [most for most, _ in _groups()]
    return min((f for f in limits if f > 0), default=None)


@cache
def _free_bytes() -> int | None:
    """What of it was free when first asked for, which is before this process has taken much."""
    free = [most - used for most, used in _groups()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text()
        free.append(int(text.split("MemAvailable:")[1].split()[0]) * 1024)
    return min(free, default=None)


def _groups() -> list[tuple[int, int]]:
    """(limit, use) in bytes of the control groups that have a limit."""
    limits = []
    for most, used in _GROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such group, or no limit: "max"
            limits.append((int((_CGROUP / most).read_text()), int((_CGROUP / used).read_text())))
    return limits


_ADVICE = (
    "take fewer ranks or channels, coarser chunks, or a level without rows (engine: wavefront for rings, fold for "
    "rings and hierarchical all_reduce)"
)


def require_memory(
    needed_bytes: int, count: int, *, subject: str = "a simulation", what: str = "chunk moves", advice: str = _ADVICE
) -> None:
    """Raise MemoryLimitError when ``count`` chunk moves, or ``what`` else, need more bytes than a question may take."""
    limit = limit_bytes()
    if limit is None or needed_bytes <= limit:
        return
    fit = int(count * limit / needed_bytes)
    text = (
        f"{subject} of {count:,} {what} needs about {format_memory(needed_bytes)}, the limit is {format_memory(limit)} "
        f"(half of the free memory unless set); {fit:,} {what.rsplit(maxsplit=1)[-1]} would fit: {advice}"
    )
    if needed_bytes <= (machine_bytes() or 0):  # no use in allowing what is not there
        text += f"; or allow it with --memory {math.ceil(needed_bytes / GIB)}GiB"
    raise MemoryLimitError(text)
