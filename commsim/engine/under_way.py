"""Calls under way in a simpy environment, each as fast as the links that it shares with others let it.

What ends or begins changes the pace of those alone with which it shares links, and of those that these share some with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commsim.engine.sharing import Sharing


@dataclass(slots=True, eq=False)
class _Run:
    """One call that runs: seconds of it alone that were left at a time, its pace since, and the event of its end."""

    call: int
    began: float
    left_s: float
    at: float
    event: Any
    pace: float = 0.0
    end: Any = None  # the timeout that stands for its end at this pace


class CallsUnderWay:
    """Starts calls of a `Sharing` and ends them; times are those of the environment, in seconds."""

    def __init__(self, env: Any, sharing: Sharing) -> None:
        self._env, self._sharing = env, sharing
        self._runs: dict[int, list[_Run]] = {}  # by call, in the order of their starts
        self._here = 0  # a bit for each call of them
        self._calls: dict[int, list[int]] = {}  # that such bits stand for
        self._paces: dict[tuple[int, ...], list[float]] = {}

    def meets(self, call: int) -> bool:
        """Whether a call may be held up by others; -1 is none."""
        return call >= 0 and self._sharing.meets(call)

    def start(self, call: int, alone_s: float) -> Any:
        """The event of the end of a call that would take so long alone; its value is the seconds that it took."""
        now = self._env.now
        run = _Run(call, now, alone_s, now, self._env.event())
        self._runs.setdefault(call, []).append(run)
        self._here |= 1 << call
        self._repace(call)
        return run.event

    def _repace(self, call: int) -> None:
        """Lets those that a call's start or end concerns go on at the pace that is theirs now."""
        near = self._near(call)
        if near not in self._calls:
            self._calls[near] = [place for place, bit in enumerate(reversed(f"{near:b}")) if bit == "1"]
        concerned = [run for one in self._calls[near] for run in self._runs[one]]
        some = tuple([run.call for run in concerned])
        if some not in self._paces:
            self._paces[some] = self._sharing.pace(some)[0].tolist()
        now = self._env.now
        for run, pace in zip(concerned, self._paces[some], strict=True):
            if pace == run.pace:
                continue
            run.left_s -= (now - run.at) * run.pace
            run.at, run.pace = now, pace
            run.end = end = self._env.timeout(max(run.left_s, 0.0) / pace, run)
            end.callbacks.append(self._ended)

    def _near(self, call: int) -> int:
        """A bit for each call under way that shares links with a call, or with one that does."""
        near = new = 1 << call
        while new:
            last = new.bit_length() - 1
            more = self._sharing.near(last) & self._here & ~near
            near |= more
            new = new & ~(1 << last) | more
        return near & self._here

    def _ended(self, end: Any) -> None:
        run = end.value
        if run.end is not end:  # it has another pace since, and another end
            return
        self._runs[run.call].remove(run)
        if not self._runs[run.call]:
            self._here ^= 1 << run.call
        run.event.succeed(self._env.now - run.began)
        self._repace(run.call)
