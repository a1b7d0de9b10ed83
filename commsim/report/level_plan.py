"""A plan by levels in words and as a document: the limit, what is reached, and whether it is of the whole machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commsim.synthesis.words import why
from commsim.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from commsim.nccl.predict import Prediction
    from commsim.synthesis.level_search import LevelPlan


def plan_dict(plan: LevelPlan, *, proven: bool, nccl: Prediction | None = None) -> dict[str, Any]:
    """The figures of a plan, NCCL's time among them where it is known; times in microseconds."""
    theirs = {} if nccl is None else {"nccl_us": microseconds(nccl.time_s), "nccl_ratio": nccl.time_s / plan.limit_s}
    return {
        "topology": plan.network.name,
        "collective": plan.collective,
        "size_bytes": plan.nbytes,
        "ranks": plan.network.n,
        "limit_us": microseconds(plan.limit_s),
        "reached_us": microseconds(plan.seconds),
        "ratio": plan.ratio,
        "limit_by": plan.limit.by,
        "exact": plan.limit.exact,
        "why": why(plan.network, plan.limit),
        "by": "levels",
        "folded_nodes": plan.period,
        "pieces": plan.pieces,
        "moves": plan.rows,
        "proven": proven,
    } | theirs


def plan_text(plan: LevelPlan, *, proven: bool, nccl: Prediction | None = None) -> str:
    """Some lines on a plan, with NCCL's time on the same machine where it is known."""
    sort = {"flow": "exact", "program": "a linear program", "cut": "a cut"}[plan.limit.by]
    whole = "the whole machine" if plan.period is None else f"{plan.period} nodes that stand for all"
    end = "; proven: every rank ends with what the collective promises" if proven else ""
    theirs = []
    if nccl is not None:
        how = f"{nccl.algorithm}, {nccl.protocol}, channels: {nccl.channels}"
        theirs = [f"  NCCL     {format_time(nccl.time_s)}  {nccl.time_s / plan.limit_s:.4g} of the limit ({how})"]
    return "\n".join(
        [
            f"{plan.network.name}: {plan.collective} of {format_bytes(plan.nbytes)} among {plan.network.n} ranks",
            f"  limit    {format_time(plan.limit_s)}  {sort}: {why(plan.network, plan.limit)}",
            f"  reached  {format_time(plan.seconds)}  {plan.ratio:#.4g} of the limit of the whole, on ideal links",
            f"  schedule by levels (nodes, rails), {plan.rows} moves, simulated for {whole}{end}",
            *theirs,
        ]
    )
