"""The ranks of a laboratory: started anew here for each stage, or those that torchrun or srun has started already."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from commsim.errors import MeasurementError
from commsim.measure.launcher import launch
from commsim.measure.rendezvous import Place, open_store
from commsim.measure.run import Run

SHARING = 4
"""Ranks that share the only GPU of a computer: the fewest with which rings and trees differ."""

_POLL_S = 0.2
_IDLE_S = 3600.0
"""For how long a rank waits for the next stage: rank 0 measures rates or describes the machine meanwhile."""


class Ranks(Protocol):
    """Who measures: `measure` returns when all ranks are through with a run, and raises MeasurementError otherwise."""

    world_size: int
    ranks_per_gpu: int

    def measure(self, run: Run) -> None:
        """Measures a run into its folder."""

    def end(self) -> None:
        """Lets the ranks go; nothing is measured afterwards."""


class StartedHere:
    """Ranks of this computer, new processes for every run: a rank that is lost takes one stage with it, not the rest."""

    def __init__(self, world_size: int, ranks_per_gpu: int, show: Callable[[str], None], port: int | None) -> None:
        self.world_size, self.ranks_per_gpu = world_size, ranks_per_gpu
        self._show, self._port = show, port

    def measure(self, run: Run) -> None:
        launch(run, self._show, port=self._port)

    def end(self) -> None:
        return


class Joined:
    """The ranks of torchrun or srun, led by rank 0, which tells the others by the store what to measure next."""

    def __init__(self, place: Place, ranks_per_gpu: int, timeout_s: float) -> None:
        self.world_size, self.ranks_per_gpu = place.world_size, ranks_per_gpu
        self._place, self._store = place, open_store(place, timeout_s)
        self._number = 0

    def measure(self, run: Run) -> None:
        self._store.set(_key(self._number), run.to_json())
        self._number += 1
        _measure(run, self._place, self._store, self._number)

    def end(self) -> None:
        self._store.set(_key(self._number), "")


def follow(place: Place, timeout_s: float) -> None:
    """What a rank other than 0 does: measures what rank 0 says until it says no more.

    A run that fails ends for this rank as for all others; the next one is tried.
    """
    store = open_store(place, timeout_s)
    number = 0
    while text := _next(store, number, place):
        number += 1
        try:
            _measure(Run.from_json(text), place, store, number)
        except MeasurementError:
            continue  # rank 0 says it


def _measure(run: Run, place: Place, store: Any, number: int) -> None:
    from torch.distributed import PrefixStore

    from commsim.measure.torch_runner import run_rank

    run_rank(run, place, store=PrefixStore(f"stage/{number}", store))


def _next(store: Any, number: int, place: Place) -> str:
    """What to measure next, as JSON; empty when nothing is left. Raises MeasurementError when rank 0 is gone."""
    until = time.monotonic() + _IDLE_S
    try:
        while not store.check([_key(number)]):
            if time.monotonic() > until:
                raise MeasurementError(f"{place}: rank 0 has said nothing for {_IDLE_S:.0f} s")
            time.sleep(_POLL_S)
        return str(store.get(_key(number)).decode())
    except RuntimeError:  # of torch, when the store is gone
        raise MeasurementError(f"{place}: rank 0 has stopped") from None


def _key(number: int) -> str:
    return f"lab/{number}"
