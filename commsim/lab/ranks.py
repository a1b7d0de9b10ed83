"""The ranks of a laboratory: started anew for every stage, here or beside each process of torchrun or srun.

A lost rank or a faulted GPU takes one stage with it. A nursery forks them, so that no stage waits for torch to load.
"""

from __future__ import annotations

from collections.abc import Callable

from commsim.errors import MeasurementError
from commsim.measure.launcher import beside, capture_beside, capture_here, launch
from commsim.measure.nursery import Nursery
from commsim.measure.rendezvous import Place, Rendezvous
from commsim.measure.run import Run

SHARING = 4
"""Ranks that share the only GPU of a computer: the fewest with which rings and trees differ."""

_POLL_S = 0.2
_IDLE_S = 3600.0
"""For how long a rank waits for the next stage: rank 0 measures rates or describes the machine meanwhile."""


class StartedHere:
    """Ranks of this computer."""

    def __init__(self, world_size: int, ranks_per_gpu: int, show: Callable[[str], None], port: int | None) -> None:
        self.world_size, self.ranks_per_gpu = world_size, ranks_per_gpu
        self._show, self._port = show, port
        self._nursery: Nursery | None = None

    def capture(self, run: Run) -> None:
        """Has NCCL say what it chooses for a run, untimed; what is missing afterwards could not be had."""
        capture_here(run, self._show, port=self._port, nursery=self._begun())

    def measure(self, run: Run) -> None:
        """Measures a run into its folder; MeasurementError where it cannot go on."""
        launch(run, self._show, port=self._port, nursery=self._begun())

    def end(self) -> None:
        """Lets the ranks go; nothing is measured afterwards."""
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def _begun(self) -> Nursery:
        if self._nursery is None or self._nursery.gone:
            self._nursery = Nursery()
        return self._nursery


class Joined:
    """A rank beside each process of torchrun or srun, led by the process of rank 0, which says what comes next."""

    def __init__(self, place: Place, ranks_per_gpu: int, show: Callable[[str], None], arrival_s: float) -> None:
        self.world_size, self.ranks_per_gpu = place.world_size, ranks_per_gpu
        self._place, self._show = place, show
        self._meeting = Rendezvous(place, "lab", arrival_s)
        self._number = 0
        self._nursery = Nursery()

    def capture(self, run: Run) -> None:
        self._say(run.to_json())
        capture_beside(run, self._place, self._show, self._nursery)

    def measure(self, run: Run) -> None:
        self._say(run.to_json())
        if fault := beside(run, self._place, f"stage {self._number}", self._nursery):
            raise MeasurementError(fault)

    def end(self) -> None:
        self._say("")
        self._nursery.close()

    def _say(self, text: str) -> None:
        self._meeting.store.set(_key(self._number), text)
        self._number += 1


Ranks = StartedHere | Joined


def follow(place: Place, arrival_s: float) -> None:
    """What a process of torchrun or srun other than that of rank 0 does: what rank 0 says, until it says no more.

    A stage that fails ends here as everywhere, and rank 0 says why; the next one is tried.
    """
    meeting = Rendezvous(place, "lab", arrival_s)
    number, nursery = 0, Nursery()
    try:
        while text := _next(meeting, number):
            number += 1
            run = Run.from_json(text)
            if run.capture_choices:
                capture_beside(run, place, lambda line: None, nursery)
            else:
                beside(run, place, f"stage {number}", nursery)
    finally:
        nursery.close()


def _next(meeting: Rendezvous, number: int) -> str:
    """What to measure next, as JSON; empty when nothing is left. Raises MeasurementError when rank 0 is gone."""
    try:
        if not meeting.has([_key(number)], _IDLE_S, _POLL_S):
            raise MeasurementError(f"{meeting.place}: rank 0 has said nothing for {_IDLE_S:.0f} s")
        return str(meeting.store.get(_key(number)).decode())
    except RuntimeError:  # of torch, when the store is gone
        raise MeasurementError(f"{meeting.place}: rank 0 has stopped") from None


def _key(number: int) -> str:
    return f"lab/{number}"
