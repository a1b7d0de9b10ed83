"""When two schedules are the same: one form for all ways to number the steps and order the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from commsim.collectives.schedule import Schedule

_COLUMNS = ("step", "channel", "src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "op")


def canonical(schedule: Schedule) -> Schedule:
    """The rows in the earliest step that the data allows, sorted by step, channel, ranks and places.

    Steps are counted along the dependences that the rows imply. ``after`` is left out: importers add waits
    that belong to how a file says something, not to what it moves.
    """
    s = schedule.edit(after=np.zeros((0, 2), np.int64), step=schedule.step)
    step = earliest_steps(s)
    keys = {name: getattr(s, name) for name in _COLUMNS} | {"step": step}
    order = np.lexsort([keys[name] for name in reversed(_COLUMNS)])
    return s.take(order, step=step[order])


def earliest_steps(schedule: Schedule) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The length of the longest chain of dependences that leads to each row, (rows,).

    Rows that swap two chunks in one step do not wait for each other and stay in one step.
    """
    ptr, idx = schedule.dependencies()
    step = np.zeros(schedule.rows, np.int64)
    bounds = np.flatnonzero(np.diff(schedule.step, prepend=-1, append=-1) != 0)
    # Every dependence leads to a later step, so a step is final once all steps before it are done.
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        edges = slice(int(ptr[begin]), int(ptr[end]))
        source = np.repeat(np.arange(begin, end), np.diff(ptr[begin : end + 1]))
        np.maximum.at(step, idx[edges], step[source] + 1)
    return step


def same_schedule(a: Schedule, b: Schedule) -> bool:
    """Whether two schedules move the same chunks between the same places in the same order of dependence.

    Names of algorithms, numbers of steps, order of rows within what the data allows, ``after`` and lowered
    columns do not count; sizes of chunks do.
    """
    frame = ("collective", "world_size", "endpoints", "root", "in_place", "scratch_chunks", "rows")
    if any(getattr(a, name) != getattr(b, name) for name in frame) or not np.array_equal(a.chunk_bytes, b.chunk_bytes):
        return False
    one, two = canonical(a), canonical(b)
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in _COLUMNS)
