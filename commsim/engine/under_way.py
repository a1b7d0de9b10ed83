"""Calls under way, each as fast as the links that it shares with others let it.

What ends or begins changes the pace of those alone with which it shares links, and of those that these share some with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commsim.engine.clock import Clocks, Then
from commsim.engine.sharing import Sharing


@dataclass(slots=True, eq=False)
class _Run:
    """One call that runs: seconds of it alone that were left at a time, its pace since, and what its end calls."""

    call: int
    left_s: float
    at: float
    then: Then
    what: Any
    pace: float = 0.0
    turn: int = 0  # how many paces it has had


class CallsUnderWay:
    """Starts calls of a `Sharing` and ends them; times are those of the clock, in seconds."""

    def __init__(self, clock: Clocks, sharing: Sharing) -> None:
        self._clock, self._sharing = clock, sharing
        self._runs: dict[int, list[_Run]] = {}  # by call, in the order of their starts
        self._here = 0  # a bit for each call of them
        self._paces: dict[tuple[int, ...], list[float]] = {}
        self._meets: dict[int, bool] = {}
        self._groups: dict[tuple[int, int], list[int]] = {}  # by call and calls under way: those that it concerns

    def meets(self, call: int) -> bool:
        """Whether a call may be held up by others; -1 is none."""
        if call not in self._meets:
            self._meets[call] = call >= 0 and self._sharing.meets(call)
        return self._meets[call]

    def start(self, call: int, alone_s: float, then: Then, what: Any = None) -> None:
        """Begins a call that would take so long alone; its end calls `then(what)`."""
        self._runs.setdefault(call, []).append(_Run(call, alone_s, self._clock.now, then, what))
        self._here |= 1 << call
        self._repace(call)

    def _repace(self, call: int) -> None:
        """Lets those that a call's start or end concerns go on at the pace that is theirs now."""
        here, runs = (call, self._here), self._runs
        near = self._groups.get(here)
        if near is None:
            near = self._groups[here] = self._near(call)
        if not near:
            return
        concerned = [run for one in near for run in runs[one]]
        some = tuple([run.call for run in concerned])
        paces = self._paces.get(some)
        if paces is None:
            paces = self._paces[some] = self._sharing.pace(some)[0].tolist()
        now = self._clock.now
        for run, pace in zip(concerned, paces, strict=True):
            if pace == run.pace:
                continue
            run.left_s -= (now - run.at) * run.pace
            run.at, run.pace = now, pace
            run.turn += 1
            self._clock.after(max(run.left_s, 0.0) / pace, self._ended, (run, run.turn))

    def _near(self, call: int) -> list[int]:
        """The calls under way that share links with a call, or with one that does, in the order of their numbers."""
        near = new = 1 << call
        while new:
            last = new.bit_length() - 1
            more = self._sharing.near(last) & self._here & ~near
            near |= more
            new = new & ~(1 << last) | more
        return [place for place, bit in enumerate(reversed(f"{near & self._here:b}")) if bit == "1"]

    def _ended(self, end: tuple[_Run, int]) -> None:
        run, turn = end
        if run.turn != turn:  # it has another pace since, and another end
            return
        self._runs[run.call].remove(run)
        if not self._runs[run.call]:
            self._here ^= 1 << run.call
        self._repace(run.call)
        run.then(run.what)
