"""Justification: a schedule run from its end tells which rows are urgent, and so in which order links should serve.

What must start last when all runs backwards, from its last row to its first, is what must start first. Project
scheduling calls it so (Wiest 1964); it gains there as here because what waits for a busy link and what has much to
come after it are weighed together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commsim.collectives.dependencies import Dependencies, from_edges
from commsim.engine.loops.compiled import compiled
from commsim.engine.program import Program, pointers
from commsim.synthesis.in_steps import run_in_steps
from commsim.synthesis.laying import Laid
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.timing import program_of
from commsim.topology.kinds import Float64, Int64


def justified(laid: Laid, network: FlowNetwork) -> Laid:
    """The same rows in the order in which a run backwards asks for them."""
    forward = program_of(laid, network)
    rows = forward.rows
    before = np.repeat(np.arange(rows), np.diff(forward.succ_ptr))
    after = forward.succ_idx.astype(np.int64)
    end = _backwards(forward, laid, np.argsort(-run_in_steps(forward)[1], kind="stable"), (before, after))
    order = np.argsort(-end, kind="stable")
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows)
    pairs = place[before], place[after]

    def dependencies() -> Dependencies:
        return from_edges(rows, *pairs)

    s = laid.schedule
    columns = ("op", "src", "dst", "src_buffer", "dst_buffer", "src_chunk", "dst_chunk", "channel")
    moved = {name: getattr(s, name)[order] for name in columns}
    latest = np.full(rows, -1, np.int64)
    np.maximum.at(latest, pairs[1], pairs[0])
    schedule = replace(s, **moved, step=_steps(latest), known_dependencies=dependencies)
    return Laid(schedule, laid.way[order], laid.ways)


def _backwards(forward: Program, laid: Laid, order: Int64, pairs: tuple[Int64, Int64]) -> Float64:
    """When each row, (rows,), ends if all goes backwards, every way turned round, links serving in some order."""
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    ptr, idx = from_edges(order.size, place[pairs[1]], place[pairs[0]])
    ways = [way[::-1] for way in laid.ways]
    end = np.empty(order.size)
    end[order] = run_in_steps(
        Program(
            nbytes=forward.nbytes[order],
            route=forward.route[order],
            delay_s=np.zeros(order.size),
            succ_ptr=ptr,
            succ_idx=idx,
            route_ptr=pointers([len(way) for way in ways]),
            route_link=np.array([edge for way in ways for edge in way], np.int32),
            link_bandwidth=forward.link_bandwidth,
            link_latency=forward.link_latency,
        )
    )[1]
    return end


@compiled
def _steps(latest: Int64) -> Int64:
    """The step of every row: a new one begins where a row waits for one of this; ``latest`` (rows,): its last such."""
    step = np.zeros(latest.size, np.int64)
    now, begin = 0, 0
    for i in range(latest.size):
        if latest[i] >= begin:
            now, begin = now + 1, i
        step[i] = now
    return step
