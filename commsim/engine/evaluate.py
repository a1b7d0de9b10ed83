"""One question, several evaluators: the cheapest whose conditions are verified answers, and says who it was.

The ladder, cheapest first: closed form, wavefront (rings by arithmetic), fold (one part for all that stand alike),
event (FIFO links by heap or in order; fair sharing). All agree where they overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args, overload

import numpy as np

from commsim.collectives.schedule import Schedule
from commsim.engine.fair import connections, simulate_fair
from commsim.engine.family import Family, Totals
from commsim.engine.fold import fold, run_folded
from commsim.engine.merging import Routes
from commsim.engine.program import Int32, Program, build_program, require_ranks
from commsim.engine.refine import simulate_folded
from commsim.engine.simulate import Outcome, simulate
from commsim.engine.wavefront import servers_of, wavefront
from commsim.errors import InfeasibleError
from commsim.topology.graph import Topology

Engine = Literal["auto", "closed_form", "wavefront", "fold", "event"]
Contention = Literal["fifo", "fair"]

ENGINES: tuple[Engine, ...] = get_args(Engine)

DIFFERENCE = 0.1
"""Where FIFO links and fair sharing differ by more than this share, a result gives both."""


_ROWS_DO_NOT_FOLD = (
    "with FIFO links only a ring with equal chunks folds, whose messages are alike seen from every rank; "
    "any schedule may under fair sharing"
)


@overload
def evaluate(work: Schedule, topology: Topology, engine: Engine = ..., *, contention: Contention = ...) -> Outcome: ...


@overload
def evaluate(work: Family, topology: Topology, engine: Engine = ..., *, contention: Contention = ...) -> Totals: ...


def evaluate(
    work: Schedule | Family, topology: Topology, engine: Engine = "auto", *, contention: Contention = "fifo"
) -> Outcome | Totals:
    """What becomes of a schedule or a family on the topology's own routes; ``level`` names the evaluator that found it.

    ``auto`` takes the cheapest level whose conditions are verified. Asking for a level whose conditions do not hold is
    an InfeasibleError that says which one fails. A Schedule has times for every row (`Outcome`), a Family, whose rows
    are not built below the level ``event``, its `Totals`.
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}, expected {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
    if contention not in get_args(Contention):
        raise ValueError(f"unknown contention {contention!r}, expected fifo or fair")
    if isinstance(work, Family):
        if topology.draws_flowlets:
            raise _not_here("rule", work, "flowlets are drawn message by message; expected a schedule, which has rows")
        return _family(work, topology, engine, contention)
    return evaluate_program(work, build_program(work, topology), engine=engine, contention=contention)


def evaluate_program(
    schedule: Schedule,
    program: Program,
    routes: Routes | None = None,
    engine: Engine = "auto",
    *,
    contention: Contention = "fifo",
) -> Outcome:
    """`evaluate` for a schedule whose Program is already there, and perhaps its merged routes."""
    if engine == "wavefront":
        raise _not_here("wavefront", schedule, "it takes rings given as a family, without rows")
    if engine == "fold" and contention == "fifo":
        raise _not_here("folding", schedule, _ROWS_DO_NOT_FOLD)
    reason = ""
    if engine in {"auto", "closed_form"}:
        outcome = uniform_steps(program, schedule.step)
        if isinstance(outcome, Outcome):
            return replace(outcome, contention=contention)
        reason = outcome
    if engine == "closed_form":
        raise _not_here("closed form", schedule, reason)
    if contention == "fifo":
        return simulate(program, merge=True, routes=routes)
    conn = connections(schedule, program)
    if engine in {"auto", "fold"}:
        folded = simulate_folded(program, conn)
        if isinstance(folded, Outcome):
            return folded
        if engine == "fold":
            raise _not_here("folding", schedule, folded)
    return simulate_fair(program, conn)


def _family(family: Family, topology: Topology, engine: Engine, contention: Contention) -> Totals:
    levels: dict[Engine, tuple[str, Callable[[], Totals | str]]] = {
        "closed_form": ("closed form", lambda: synchronous(family, topology)),
        "wavefront": ("wavefront", lambda: _wavefront(family, topology, contention)),
        "fold": ("folding", lambda: _folded(family, topology, contention)),
    }
    for level, (name, evaluated) in levels.items():
        if engine in {"auto", level}:
            totals = evaluated()
            if isinstance(totals, Totals):
                return replace(totals, contention=contention)
            if engine == level:
                raise _not_here(name, family, totals)
    program = family.program(topology)
    if contention == "fifo":
        outcome = simulate(program, merge=True)
    else:
        outcome = simulate_fair(program, family.connections(program.route, family.world_size))
    return _totals(family, outcome, np.arange(program.links, dtype=np.int32), outcome.level, "")


def _wavefront(family: Family, topology: Topology, contention: Contention) -> Totals | str:
    # Under fair sharing several channels go side by side where FIFO links take turns.
    return "channels share links" if contention == "fair" and family.channels > 1 else wavefront(family, topology)


def _folded(family: Family, topology: Topology, contention: Contention) -> Totals | str:
    folded = fold(family, topology, fifo=contention == "fifo")
    if isinstance(folded, str):
        return folded
    if contention == "fifo":
        return run_folded(folded)
    part = folded.program()
    outcome = simulate_fair(part, family.connections(part.route, folded.senders))
    return _totals(family, outcome, folded.link, "fold", folded.part)


def _totals(family: Family, outcome: Outcome, link: Int32, level: str, part: str) -> Totals:
    return Totals(
        outcome.makespan_s,
        family.messages,
        link,
        outcome.link_bytes,
        outcome.link_busy_s,
        level,
        outcome.method,
        outcome.exact,
        part,
        outcome.contention,
    )


def _not_here(level: str, work: Schedule | Family, reason: str) -> InfeasibleError:
    return InfeasibleError(f"no {level} for {work.algorithm} {work.collective} here: {reason}")


@dataclass(frozen=True)
class BothWays:
    """Seconds of one run with FIFO links and with fair sharing."""

    fifo_s: float
    fair_s: float

    @property
    def differs(self) -> bool:
        """Whether they differ by more than a tenth of the shorter."""
        low, high = sorted((self.fifo_s, self.fair_s))
        return high > low * (1 + DIFFERENCE)

    def __str__(self) -> str:
        return (
            f"{1e6 * self.fifo_s:.6g} us with FIFO links and {1e6 * self.fair_s:.6g} us with fair sharing, "
            f"{abs(self.fair_s / self.fifo_s - 1):.0%} apart"
        )


def other_contention(outcome: Outcome, schedule: Schedule) -> BothWays:
    """The makespan of an outcome beside the one that the other view of contention gives.

    The other run lets fair sharing batch events within a thousandth of the time, which is quick and near enough.
    """
    if outcome.level == "closed_form":
        return BothWays(outcome.makespan_s, outcome.makespan_s)
    if outcome.contention == "fair":
        return BothWays(simulate(outcome.program, merge=True).makespan_s, outcome.makespan_s)
    fair = simulate_fair(outcome.program, connections(schedule, outcome.program), quantum=1e-3)
    return BothWays(outcome.makespan_s, fair.makespan_s)


def synchronous(family: Family, topology: Topology) -> Totals | str:
    """The exact Totals of a family whose ranks keep step with each other, or the condition that does not hold.

    If in every phase all routes have one latency and one smallest bandwidth, and no two share a link, then all ranks
    end a step at once, and find links free in the next: steps (alpha + m / B), summed over the phases.
    """
    require_ranks(family.world_size, topology)
    if family.lanes > 1:
        return "each rank sends several messages in a step"
    makespan, busy, carried = 0.0, dict[int, float](), dict[int, int]()
    for phase in filter(lambda phase: phase.steps, family.phases):
        servers = servers_of(np.arange(family.world_size), phase.to, topology)
        if isinstance(servers, str):
            return servers
        if (servers.latency_s != servers.latency_s[0]).any() or (
            servers.inv_bandwidth != servers.inv_bandwidth[0]
        ).any():
            return "the routes differ in latency or smallest bandwidth"
        makespan += phase.steps * float(servers.latency_s[0] + phase.nbytes * servers.inv_bandwidth[0])
        sent = phase.steps * phase.nbytes
        for link, held in zip(servers.link.tolist(), servers.held.tolist(), strict=True):
            busy[link] = busy.get(link, 0.0) + held * sent
            carried[link] = carried.get(link, 0) + sent
    return Totals(
        makespan_s=makespan,
        messages=family.messages,
        link=np.array(list(busy), np.int32),
        link_bytes=np.array(list(carried.values()), np.int64),
        link_busy_s=np.array(list(busy.values())),
        level="closed_form",
        method="formula",
    )


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
