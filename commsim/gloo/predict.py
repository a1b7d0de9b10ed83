"""The time of a gloo collective on a topology: its schedule, lowered to processes and links, run by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commsim.collectives.semantics import DIVIDED
from commsim.engine.memory import require_memory
from commsim.engine.program import Int64, Program
from commsim.engine.simulate import simulate
from commsim.engine.usage import kind_name, limiting_link
from commsim.gloo.lower import (
    BYTES_PER_OP,
    PIECE_BYTES,
    SMALL_PIECE_BYTES,
    Standing,
    links_of,
    lower,
    ops_of_call,
    torch_copies,
)
from commsim.gloo.parameters import GlooParameters, shipped_parameters
from commsim.gloo.schedules import gloo_schedule, messages
from commsim.topology.graph import Topology
from commsim.units import format_bytes


class CallsInARow(NamedTuple):
    """Calls in a row, and the two (from 0) between whose ends their pace is taken."""

    calls: int
    settled: int
    last: int


EVEN = CallsInARow(3, 0, 2)
"""Rings, and what one rank paces: as fast from the first call on."""

SETTLING = CallsInARow(8, 2, 6)
"""Ranks run ahead of each other for some calls until they have settled, and the last call has none beside it."""

RUN_AHEAD = frozenset({"broadcast", "all_to_all", "all_to_all_v"})


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
    """Predicts calls on one topology.

    `one_host`: all its nodes share the cores of one computer. `late_s`: for how many seconds a rank stops before each
    of its calls; the time of a call is then from when it should have begun.
    """

    def __init__(
        self,
        topology: Topology,
        parameters: GlooParameters | None = None,
        *,
        one_host: bool = False,
        mode: str = "back_to_back",
        late_s: Mapping[int, float] | None = None,
    ) -> None:
        self.topology, self.one_host, self.mode = topology, one_host, mode
        self.parameters = parameters or shipped_parameters()
        self.links = links_of(topology, self.parameters, one_host)
        self.late_s = np.array([(late_s or {}).get(rank, 0.0) for rank in range(topology.world_size)])

    def predict(self, collective: str, nbytes: int, *, root: int = 0, itemsize: int = 4) -> GlooPrediction:
        """The time of one call of `nbytes` (the nccl-tests size), the mean of a row of calls unless mode is single."""
        n = self.topology.world_size
        if n == 1:
            return GlooPrediction(nbytes, self.parameters.call + float(self.late_s[0]), "copy", "call")
        row = CallsInARow(1, 0, 0) if self.mode == "single" else SETTLING if collective in RUN_AHEAD else EVEN
        algorithm, program = self._program(collective, nbytes, np.arange(n), root, itemsize, row.calls)
        outcome = simulate(program)
        ends = outcome.end_s.reshape(row.calls, -1).max(axis=1)
        time = float(ends[row.last] - ends[row.settled]) / (row.last - row.settled) if row.last else float(ends[0])
        busiest, share = limiting_link(outcome, self.topology)
        limit = self.links.of(busiest) or kind_name(self.topology, busiest)
        bottleneck = limit if share >= 0.5 else "latency"
        return GlooPrediction(nbytes, time, algorithm, bottleneck, limit, share)

    def beside_others(self, collective: str, nbytes: int, ranks: Int64, root: int = 0) -> tuple[str, Program]:
        """The algorithm, and what one call among some ranks does on the links, fit to run beside those of other ranks.

        `root` counts among the ranks. InfeasibleError where that would take more memory than there is.
        """
        return self._program(collective, nbytes, ranks, root, piece_bytes=SMALL_PIECE_BYTES)

    def _program(
        self,
        collective: str,
        nbytes: int,
        ranks: Int64,
        root: int,
        itemsize: int = 4,
        calls: int = 1,
        piece_bytes: int = PIECE_BYTES,
    ) -> tuple[str, Program]:
        n = ranks.size
        unit = n * itemsize if collective in DIVIDED else itemsize
        whole = max(unit, nbytes // unit * unit)
        ops = calls * ops_of_call(n, *messages(collective, n, whole, itemsize), piece_bytes)
        where = f"{calls} calls of gloo's {collective} of {format_bytes(whole)} on {n} ranks, a simulation"
        require_memory(BYTES_PER_OP * ops, ops, subject=where, advice="take a smaller size, or fewer ranks")
        calling = self._calling(whole, ranks) if "all_to_all" in collective else None
        schedule = gloo_schedule(collective, n, whole, root=root, itemsize=itemsize, calling=calling)
        copies = torch_copies(collective, whole, n)
        program = lower(
            schedule,
            self.topology,
            self.parameters,
            self.links,
            copies,
            calls,
            Standing(ranks, self.late_s),
            piece_bytes,
        )
        return schedule.algorithm, program

    def _calling(self, nbytes: int, ranks: Int64) -> Int64:
        """The place of each rank in the order in which ranks call in a loop.

        Who stops before calls, or has slow links, comes last; equal ranks come in the order of their numbers.
        """
        n, topology = ranks.size, self.topology
        block = nbytes / n
        seconds = [
            self.late_s[rank]
            + sum(block / topology.link_bandwidth[topology.route(rank, peer)].min() for peer in ranks if peer != rank)
            for rank in ranks
        ]
        order = np.argsort(np.round(seconds, 9), kind="stable")  # sums in another order may differ in the last bit
        return np.argsort(order)
