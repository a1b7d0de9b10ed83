"""A plan by levels in words and as a document: the limit, what is reached, and whether it is of the whole machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commsim.report.synthesis import Beside
from commsim.report.tables import hanging
from commsim.synthesis.words import why
from commsim.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from commsim.synthesis.level_search import LevelPlan


def plan_dict(plan: LevelPlan, *, proven: bool, beside: Beside | None = None) -> dict[str, Any]:
    """The figures of a plan, NCCL's time among them where it is known; times in microseconds."""
    beside = beside or Beside()
    seconds = beside.nccl_s
    theirs = {} if seconds is None else {"nccl_us": microseconds(seconds), "nccl_ratio": seconds / plan.limit_s}
    if beside.bound is not None:
        theirs["bound_us"] = microseconds(beside.bound.seconds)
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


def plan_text(plan: LevelPlan, *, proven: bool, beside: Beside | None = None) -> str:
    """Some lines on a plan, with NCCL's time on the same machine where it is known."""
    beside = beside or Beside()
    sort = {"flow": "exact", "program": "a linear program", "cut": "a cut"}[plan.limit.by]
    whole = "the whole machine" if plan.period is None else f"{plan.period} nodes that stand for all"
    end = "; proven: every rank ends with what the collective promises" if proven else ""
    lines = [
        f"{plan.network.name}: {plan.collective} of {format_bytes(plan.nbytes)} among {plan.network.n} ranks",
        *hanging("  limit    ", f"{format_time(plan.limit_s)}  {sort}: {why(plan.network, plan.limit)}"),
        *(beside.bound.lines() if beside.bound else ()),
        *hanging(
            "  reached  ", f"{format_time(plan.seconds)}  {plan.ratio:#.4g} of the limit of the whole, on ideal links"
        ),
        *hanging("  schedule ", f"by levels (nodes, rails), {plan.rows} moves, simulated for {whole}{end}"),
    ]
    if beside.nccl_s is not None:
        share = f"{beside.nccl_s / plan.limit_s:.4g} of the limit ({beside.choice})"
        lines += hanging("  NCCL     ", f"{format_time(beside.nccl_s)}  {share}")
    return "\n".join(lines)
