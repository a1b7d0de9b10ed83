"""How the minutes of a laboratory are shared between its stages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clock:
    """So many seconds from now on; `left` is what remains until a part of them has passed."""

    seconds: float
    now: Callable[[], float] = time.monotonic
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now()

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self.now() - self._start

    def left(self, part: float = 1.0) -> float:
        """Seconds until `part` of the whole time has passed; zero when it has."""
        return max(0.0, part * self.seconds - self.spent)
