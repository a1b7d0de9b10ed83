"""The time of a gloo collective on a topology: its schedule, lowered to processes and links, run by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commsim.engine.simulate import simulate
from commsim.engine.usage import kind_name, limiting_link
from commsim.gloo.lower import links_of, lower, torch_copies
from commsim.gloo.parameters import GlooParameters, shipped_parameters
from commsim.gloo.schedules import gloo_schedule

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

CALLS = 3
"""Calls in a row of which the mean of the last ones is taken: by then the ranks have settled into their pace."""

SETTLED = 1

_EQUAL_BLOCKS = frozenset({"reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"})


@dataclass(frozen=True)
class GlooPrediction:
    """What is predicted for one size; `bottleneck` is what is busy for most of the time, else ``latency``.

    `limit` is what is busy longest, for `share` of the time.
    """

    nbytes: int
    time_s: float
    algorithm: str
    bottleneck: str
    limit: str = ""
    share: float = 0.0


class GlooPredictor:
    """Predicts calls on one topology; `one_host`: all its nodes share the cores of one computer."""

    def __init__(
        self,
        topology: Topology,
        parameters: GlooParameters | None = None,
        *,
        one_host: bool = False,
        mode: str = "back_to_back",
    ) -> None:
        self.topology, self.one_host, self.mode = topology, one_host, mode
        self.parameters = parameters or shipped_parameters()

    def predict(self, collective: str, nbytes: int, *, root: int = 0, itemsize: int = 4) -> GlooPrediction:
        """The time of one call of `nbytes` (the nccl-tests size), the mean of a row of calls unless mode is single."""
        n = self.topology.world_size
        if n == 1:
            return GlooPrediction(nbytes, self.parameters.call, "copy", "call")
        unit = n * itemsize if collective in _EQUAL_BLOCKS else itemsize
        whole = max(unit, nbytes // unit * unit)
        schedule = gloo_schedule(collective, n, whole, root=root, itemsize=itemsize)
        links = links_of(self.topology, self.parameters, self.one_host)
        copies = torch_copies(collective, whole, n)
        calls = 1 if self.mode == "single" else CALLS
        outcome = simulate(lower(schedule, self.topology, self.parameters, links, copies, calls))
        time = outcome.makespan_s
        if calls > 1:
            ends = outcome.end_s.reshape(calls, -1).max(axis=1)
            time = float(ends[-1] - ends[SETTLED - 1]) / (calls - SETTLED)
        busiest, share = limiting_link(outcome, self.topology)
        limit = links.of(busiest) or kind_name(self.topology, busiest)
        bottleneck = limit if share >= 0.5 else "latency"
        return GlooPrediction(nbytes, time, schedule.algorithm, bottleneck, limit, share)
