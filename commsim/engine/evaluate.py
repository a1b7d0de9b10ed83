"""One question, several evaluators: the cheapest whose conditions are verified answers, and says who it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from commsim.engine.program import Int32, Program, build_program
from commsim.engine.simulate import Outcome, simulate
from commsim.errors import InfeasibleError

if TYPE_CHECKING:
    from commsim.collectives.schedule import Schedule
    from commsim.topology.graph import Topology

Engine = Literal["auto", "closed_form", "event"]


def evaluate(
    schedule: Schedule, topology: Topology, engine: Engine = "auto", *, block_rate: float | None = None
) -> Outcome:
    """The Outcome of a schedule on the topology's own routes; ``level`` names the evaluator that found it.

    ``auto`` takes the closed form where `uniform_steps` proves it right, else simulates. Asking for
    ``closed_form`` where it is not proven is an InfeasibleError that says which condition fails. ``block_rate``:
    see `build_program`.
    """
    if engine not in {"auto", "closed_form", "event"}:
        raise ValueError(f"unknown engine {engine!r}, expected auto, closed_form or event")
    program = build_program(schedule, topology, block_rate=block_rate)
    if engine == "event":
        return simulate(program)
    found = uniform_steps(program, schedule.step)
    if isinstance(found, Outcome):
        return found
    if engine == "closed_form":
        raise InfeasibleError(f"no closed form for {schedule.algorithm} {schedule.collective} here: {found}")
    return simulate(program)


def uniform_steps(program: Program, step: Int32) -> Outcome | str:
    """The exact Outcome of a program in equal steps without contention, or the condition that does not hold.

    Every step takes T = delay + sum of latencies + nbytes / smallest bandwidth, and row i runs from ``step[i]`` T
    to ``(step[i] + 1)`` T, if all of these hold: (1) every row has the same bytes, delay, latency and smallest
    bandwidth; (2) no link lies on two routes; (3) every route carries one row in each step; (4) rows wait for
    rows of earlier steps only, and (5) after step 0 each for one of the step before. Proof by induction: by (4) a
    row of step s is ready at s T at the latest, by (5) not earlier, and by (1) to (3) the only other user of its
    links then, the row of the step before on its route, has ended. A ring on a non-blocking network is of this
    kind, with 2(N-1) steps (alpha + S/(N B)): Patarasuk & Yuan 2009.
    """
    p, rows = program, program.rows
    if not rows:
        return "there is nothing to send"
    if not ((p.nbytes == p.nbytes[0]).all() and (p.delay_s == p.delay_s[0]).all()):
        return "the messages differ in size or delay"
    used, rank_of_route = np.unique(p.route, return_inverse=True)
    lengths = np.diff(p.route_ptr)[used]
    if (lengths != lengths[0]).any() or lengths[0] == 0:
        return "the routes differ in length, or some row uses no link"
    links = p.route_link[p.route_ptr[used][:, None] + np.arange(lengths[0])]
    if np.bincount(links.ravel(), minlength=p.links).max() > 1:
        return "two routes share a link"
    inv_bandwidth = 1.0 / p.link_bandwidth
    # A link is held by a slower one before it until the tail has passed.
    held = np.maximum.accumulate(inv_bandwidth[links], axis=1)
    latency = p.link_latency[links].sum(axis=1)
    if (latency != latency[0]).any() or (held[:, -1] != held[0, -1]).any():
        return "the routes differ in latency or smallest bandwidth"
    steps = int(step.max()) + 1
    cell = rank_of_route.reshape(-1) * np.int64(steps) + step
    if rows != steps * used.size or np.bincount(cell, minlength=rows).max() > 1:
        return "some route does not carry exactly one message in each step"
    before = np.repeat(step, np.diff(p.succ_ptr))
    after = step[p.succ_idx]
    if (before >= after).any():
        return "some row waits for one of its own or a later step"
    led = np.zeros(rows, bool)
    led[p.succ_idx[before == after - 1]] = True
    if not (led | (step == 0)).all():
        return "some row does not wait for one of the step before"
    each = p.delay_s[0] + (latency[0] + p.nbytes[0] * held[0, -1])
    busy = np.zeros(p.links)
    busy[links] = held * (float(p.nbytes[0]) * steps)
    return Outcome(
        program,
        ready_s=step * each,
        start_s=step * each + p.delay_s[0],
        end_s=(step + np.int64(1)) * each,
        link_bytes=p.link_bytes(),
        link_busy_s=busy,
        level="closed_form",
        method="formula",
    )
