"""What an algorithm takes at least, for any size, from one look at its rows: enough to leave out a simulation.

Two causes: messages that wait for each other pay their latencies one after the other, and every link must carry its
bytes. No order of messages, no sharing of links and no cutting into pieces takes less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.collectives.schedule import Schedule
from commsim.engine.program import Float64, build_program, routes_of_rows
from commsim.topology.graph import Topology

_ROWS = 100_000
"""Rows whose order is looked at for the chain of latencies, about."""

_ELEMENTS = 3
"""Elements by which a chunk may differ from its exact share: whole elements at each of several cuts, geometrically."""


@dataclass(frozen=True, eq=False)
class Least:
    """``latency_s``: the longest chain of latencies; ``share`` (L,): bytes of a link per byte of the array, over its
    bandwidth; ``slack_s`` (L,): what rounding to whole elements may take off."""

    latency_s: float
    share: Float64
    slack_s: Float64

    def seconds(self, nbytes: int) -> float:
        """The seconds that no simulation of the algorithm with ``nbytes`` bytes stays below."""
        return max(self.latency_s, float((self.share * nbytes - self.slack_s).max(initial=0.0)))


def least(schedule: Schedule, topology: Topology, itemsize: int) -> Least:
    """The Least of an algorithm on the topology's own routes, from its schedule of far more bytes than it has chunks.

    Of many rows only those of some chunks are followed for the latencies: what waits among them waits in the whole.
    """
    from commsim.engine.loops.in_order import run_alone

    ptr, links, route = routes_of_rows(schedule, topology)
    hops = np.diff(ptr)
    carried, uses = np.zeros(hops.size, np.int64), np.bincount(route, minlength=hops.size)
    np.add.at(carried, route, schedule.payload_bytes())
    of_link = np.zeros((2, topology.link_bandwidth.size))
    for total, values in zip(of_link, (carried, uses), strict=True):
        np.add.at(total, links, np.repeat(values, hops))
    p = build_program(_some_chunks(schedule), topology, joins=True)
    way = np.zeros(p.route_ptr.size - 1)
    np.add.at(way, np.repeat(np.arange(way.size), np.diff(p.route_ptr)), p.link_latency[p.route_link])
    latency = run_alone(way[p.route], p.succ_ptr, p.succ_idx, p.indeg.copy(), np.zeros(p.rows))
    return Least(
        latency_s=float(latency),
        share=of_link[0] / (schedule.nbytes * topology.link_bandwidth),
        slack_s=of_link[1] * (_ELEMENTS * itemsize / topology.link_bandwidth),
    )


def _some_chunks(schedule: Schedule) -> Schedule:
    """The rows of every so many-th chunk, so that there are not many more than _ROWS."""
    every = -(-schedule.rows // _ROWS)
    if every == 1:
        return schedule
    kept = (schedule.src_chunk % every == 0) & (schedule.dst_chunk % every == 0)
    return schedule.take(np.flatnonzero(kept))
