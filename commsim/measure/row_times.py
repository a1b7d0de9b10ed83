"""Whether a row still fits into the time that a run has, by how long the rows before it took."""

from __future__ import annotations

import time

from commsim.measure.run import Repeat


class RowTimes:
    """Seconds that rows took, with all that belongs to them: warm-up, repeats, checks.

    A collective takes alpha + beta n: the next size goes on from the last two on their line.
    """

    def __init__(self, start: float, seconds: float | None) -> None:
        self.start, self.seconds = start, seconds
        self._taken: dict[str, dict[int, float]] = {}

    @property
    def is_over(self) -> bool:
        """Whether the seconds are over; never where there is no end."""
        return self.seconds is not None and time.monotonic() - self.start > self.seconds

    def add(self, point: Repeat, seconds: float) -> None:
        """What a row took."""
        self._taken.setdefault(_kind(point), {})[point.size] = seconds

    def expected(self, point: Repeat) -> float:
        """Seconds that a row will take at least; zero for the first of its kind."""
        taken = sorted(self._taken.get(_kind(point), {}).items())
        if not taken:
            return 0.0
        size, seconds = taken[-1]
        if len(taken) > 1 and point.size > size:
            before, less = taken[-2]
            return seconds + max(0.0, seconds - less) * (point.size - size) / (size - before)
        return max((s for n, s in taken if n <= point.size), default=0.0)

    def is_too_long(self, point: Repeat) -> bool:
        """Whether a row would end after the seconds are over."""
        if self.seconds is None:
            return False
        return time.monotonic() - self.start + self.expected(point) > self.seconds


def _kind(point: Repeat) -> str:
    return f"{point.task.collective} {point.task.algorithm}"
