"""A step of reinforcement learning as pictures: who works when, and how the answers of a rollout end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.report import style
from commsim.report.chart import Axis, Chart, Mark, Panel, Series, Span
from commsim.report.chart_figure import draw
from commsim.rl.step import ENGINES, TRAINER
from commsim.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.rl.step import Span as PhaseSpan
    from commsim.scenario.rl_result import RlItem

MEANING = {
    "rollout": "engines answer all prompts",
    "scoring": "forwards over the answers",
    "update": "optimizer steps",
    "sync": "weights on their way to the engines",
    "transfer": "states to the host and back, where both share GPUs",
    "control": "the controller between phases",
}


def rl_step_chart(item: RlItem) -> Chart:
    """Who works when over a step: a row for the engines, the trainer and every model with GPUs of its own."""
    places = lanes(item)
    spans = [
        Span(
            places.index(_place(item, span)),
            span.start_s,
            span.end_s,
            span.phase.name,
            style.STAGES[span.phase.stage],
            MEANING[span.phase.stage],
        )
        for span in item.step.spans
    ]
    used = [stage for stage in style.STAGES if item.step.seconds(stage) > 0]
    return Chart(
        f"{item.name}: a step of {format_time(item.step_s)}",
        Axis("time of the step", unit="s", low=0.0, high=item.step_s),
        rows=tuple(places),
        spans=tuple(spans),
        key=tuple((f"{stage}: {MEANING[stage]}", style.STAGES[stage]) for stage in used),
    )


def plot_rl_step(item: RlItem, provenance: str = "") -> Figure:
    """The figure of `rl_step_chart`."""
    return draw(rl_step_chart(item), provenance=provenance, width=9.0)


def lanes(item: RlItem) -> list[str]:
    """The rows of the picture: where phases run, those that share GPUs in one."""
    return list(dict.fromkeys(_place(item, span) for span in item.step.spans))


def _place(item: RlItem, span: PhaseSpan) -> str:
    if item.engine_gpus == 0 and span.phase.place in (ENGINES, TRAINER):
        return "all GPUs"
    return span.phase.place


def rollout_chart(item: RlItem) -> Chart:
    """Answers that are under way over the rollout; the tail, in which less than a tenth is, is shaded."""
    times, left = zip(*item.under_way, strict=True)
    tail = Mark(item.most_s, f"the last tenth: {format_time(item.tail_s)}", times[-1], style.CP)
    series = Series("answers under way", tuple(times), tuple(map(float, left)), style.STAGES["rollout"])
    return Chart(
        f"{item.name}: {item.sequences:,} answers on {item.engines} engines",
        Axis("time of the rollout", unit="s", low=0.0, high=times[-1]),
        (Panel(Axis("answers under way", low=0.0), (series,), (tail,)),),
    )


def plot_rollout(item: RlItem, provenance: str = "") -> Figure:
    """The figure of `rollout_chart`."""
    return draw(rollout_chart(item), provenance=provenance)
