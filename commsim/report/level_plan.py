"""A plan by levels in words and as a document: the limit, what is reached, and whether it is of the whole machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commsim.synthesis.words import why
from commsim.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from commsim.synthesis.level_search import LevelPlan


def plan_dict(plan: LevelPlan, *, proven: bool) -> dict[str, Any]:
    """The figures of a plan; times in microseconds."""
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
    }


def plan_text(plan: LevelPlan, *, proven: bool) -> str:
    """Some lines on a plan."""
    sort = {"flow": "exact", "program": "a linear program", "cut": "a cut"}[plan.limit.by]
    whole = "the whole machine" if plan.period is None else f"{plan.period} nodes that stand for all"
    end = "; proven: every rank ends with what the collective promises" if proven else ""
    return "\n".join(
        [
            f"{plan.network.name}: {plan.collective} of {format_bytes(plan.nbytes)} among {plan.network.n} ranks",
            f"  limit    {format_time(plan.limit_s)}  {sort}: {why(plan.network, plan.limit)}",
            f"  reached  {format_time(plan.seconds)}  {plan.ratio:.4g} of the limit of the whole, on ideal links",
            f"  schedule by levels (nodes, rails), {plan.rows} moves, simulated for {whole}{end}",
        ]
    )
