"""What ``commsim synthesize`` does for machines too large to look for trees among all ranks: plans by levels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from commsim.cli.say import print_json, terminal_bar
from commsim.errors import CommsimError, InfeasibleError

if TYPE_CHECKING:
    from commsim.nccl.predict import Prediction, Predictor
    from commsim.synthesis.level_search import LevelPlan
    from commsim.topology.graph import Topology

LEVELS_FROM = 65
"""Ranks from which a machine of several nodes is planned by levels first."""
GOOD = 1.03
"""Of the limit: a plan by levels that is no nearer to it is followed by a search for trees, where that is possible."""
_PROVEN_ROWS = 2_000_000
"""Rows up to which the whole schedule is proven; an all_reduce of more slices in one of them."""


def plan_of_levels(topology: Topology, collective: str, nbytes: int, budget_s: float, quiet: bool) -> LevelPlan | str:
    """The best plan by levels, or why the machine has none."""
    from commsim.synthesis.level_search import plan_by_levels

    with terminal_bar(quiet) as bar:
        task = bar.add_task("planning by levels", total=None) if bar else None

        def told(one: LevelPlan) -> None:
            if bar is not None:
                bar.update(task, description=f"{one.ratio:.4g} of the limit")

        try:
            return plan_by_levels(topology, collective, nbytes, budget_s=budget_s, track=told)
        except InfeasibleError as error:
            return str(error)


def nccl_beside(
    topology: Topology, collective: str, nbytes: int, ranks: tuple[int, ...] | None = None
) -> tuple[Predictor, Prediction] | None:
    """NCCL's model of the machine and its own time there; None where it has none."""
    from commsim.nccl.predict import Options, Predictor

    if any(group.gpu.generation == "cpu" for group in topology.groups):
        return None
    try:
        model = Predictor(topology, Options(), None, ranks)
        return model, model.predict(collective, nbytes)
    except CommsimError:
        return None


def choice_of(nccl: Prediction) -> str:
    """What NCCL chose, in words."""
    return f"{nccl.algorithm}, {nccl.protocol}, channels: {nccl.channels}"


def show_plan(plan: LevelPlan, topology: Topology, out: Path | None, json_output: bool) -> None:
    """Proves a plan where it is whole, prints it, and writes its schedule."""
    from commsim.collectives.check import check
    from commsim.report.level_plan import plan_dict, plan_text
    from commsim.report.synthesis import Beside, RawBound
    from commsim.synthesis.bound import BoundQuestion
    from commsim.synthesis.level_search import one_slice

    proven = plan.laid is not None and (plan.rows <= _PROVEN_ROWS or plan.collective == "all_reduce")
    if proven and plan.laid is not None:
        check(plan.laid.schedule if plan.rows <= _PROVEN_ROWS else one_slice(topology, plan.nbytes))
    known = nccl_beside(topology, plan.collective, plan.nbytes)
    beside = Beside() if known is None else Beside(known[1].time_s, choice_of(known[1]))
    beside = replace(beside, bound=RawBound.of(topology, BoundQuestion(plan.collective), plan.nbytes, plan.limit_s))
    if json_output:
        print_json(plan_dict(plan, proven=proven, beside=beside))
    else:
        typer.echo(plan_text(plan, proven=proven, beside=beside))
    if out is None:
        return
    if plan.laid is None:
        raise CommsimError(f"{out}: the plan is folded, {plan.rows} moves stand for all, and no schedule to be written")
    from commsim.collectives.goal import goal_text
    from commsim.collectives.json_table import json_text
    from commsim.collectives.msccl_export import msccl_text
    from commsim.files import write_atomically

    schedule, ending = plan.laid.schedule, out.suffix.lower()
    text = (
        json_text(schedule) if ending == ".json" else goal_text(schedule) if ending == ".goal" else msccl_text(schedule)
    )
    write_atomically(out, text)
    typer.echo(f"wrote {out}", err=True)
