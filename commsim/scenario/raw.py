"""`library: none`: the schedule of an algorithm as it is, on the bare links; no protocol, no launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import Schedule
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.evaluate import evaluate
from commsim.scenario.run import RowPredictor
from commsim.topology.graph import LinkKind

if TYPE_CHECKING:
    from commsim.engine.simulate import Outcome
    from commsim.scenario.result import Row
    from commsim.scenario.schema import CollectiveWork, Scenario
    from commsim.topology.graph import Topology

PIECE_BYTES = 512 << 10
"""A tree's data moves in pieces of this size, at most 64 of them per channel."""


class RawRows(RowPredictor):
    """Rows of one schedule on a topology, timed by the engine that the scenario asks for."""

    def __init__(self, scenario: Scenario, topology: Topology, work: CollectiveWork) -> None:
        super().__init__(work, topology)
        self._engine = scenario.engine
        self._algorithm = work.algorithm or "ring"
        self._channels = work.channels or (2 if self._algorithm == "tree" else 1)

    def schedule(self, size: int) -> Schedule:
        """The schedule for one size."""
        n, itemsize = self.topology.world_size, self.work.item_bytes
        if self._algorithm == "ring":
            return ring_all_reduce(n, size, self._channels, itemsize)
        pieces = max(1, min(64, -(-size // (self._channels * PIECE_BYTES))))
        return tree_all_reduce(n, size, self._channels, self.topology.ranks_per_node, pieces, itemsize=itemsize)

    def __call__(self, size: int) -> Row:
        """The prediction for one size in bytes."""
        outcome = evaluate(self.schedule(size), self.topology, self._engine)
        time = outcome.makespan_s
        return self.row(
            size,
            time_s=time,
            kernel_s=time,
            launch_s=0.0,
            algorithm=self._algorithm,
            protocol="",
            channels=self._channels,
            bottleneck=_bottleneck(outcome, self.topology),
            level=outcome.level,
        )


def _bottleneck(outcome: Outcome, topology: Topology) -> str:
    """The kind of the busiest link if it is busy for most of the time, else latency."""
    if outcome.makespan_s == 0.0:
        return "nothing to send"
    busiest = int(np.argmax(outcome.link_busy_s))
    if outcome.link_busy_s[busiest] < 0.5 * outcome.makespan_s:
        return "latency"
    return LinkKind(int(topology.link_kind[busiest])).name.lower()
