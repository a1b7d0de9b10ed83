"""A step of reinforcement learning as pictures: who works when, and how the answers of a rollout end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.report import style
from commsim.rl.step import ENGINES, TRAINER, TimedPhase
from commsim.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commsim.scenario.rl_result import RlItem

# Okabe & Ito's colours (style.py): what is computed in blue and green, what is moved in warm colours.
STAGE_COLOURS = {
    "rollout": "#009E73",
    "scoring": "#56B4E9",
    "update": "#0072B2",
    "sync": "#D55E00",
    "transfer": "#E69F00",
    "control": "#BBBBBB",
}

MEANING = {
    "rollout": "engines answer all prompts",
    "scoring": "forwards over the answers",
    "update": "optimizer steps",
    "sync": "weights on their way to the engines",
    "transfer": "states to the host and back, where both share GPUs",
    "control": "the controller between phases",
}

_NARROW = 0.055
"""Share of the width from which on a phase has room for its name."""


def plot_rl_step(item: RlItem, provenance: str = "") -> Figure:
    """Who works when over a step: a row for the engines, the trainer and every model with GPUs of its own."""
    places = lanes(item)
    with style.drawing(9.0, 1.7 + 0.5 * len(places), provenance) as (figure, axes):
        for span in item.step.spans:
            _bar(axes, span, places.index(_place(item, span)), item.step_s)
        axes.set_yticks(range(len(places)), places)
        axes.set(xlim=(0, item.step_s), ylim=(len(places) - 0.45, -0.55), xlabel="time of the step (s)")
        axes.grid(visible=False, axis="y")
        axes.set_title(f"{item.name}: a step of {format_time(item.step_s)}")
        used = [stage for stage in STAGE_COLOURS if item.step.seconds(stage) > 0]
        handles = [_patch(STAGE_COLOURS[stage], f"{stage}: {MEANING[stage]}") for stage in used]
        figure.legend(handles=handles, loc="outside lower left", ncols=2, borderaxespad=0.4)
    return figure


def lanes(item: RlItem) -> list[str]:
    """The rows of the picture: where phases run, those that share GPUs in one."""
    return list(dict.fromkeys(_place(item, span) for span in item.step.spans))


def _place(item: RlItem, span: TimedPhase) -> str:
    if item.engine_gpus == 0 and span.phase.place in (ENGINES, TRAINER):
        return "all GPUs"
    return span.phase.place


def _bar(axes: Axes, span: TimedPhase, row: int, step_s: float) -> None:
    phase = span.phase
    axes.barh(row, phase.seconds, left=span.start_s, height=0.72, color=STAGE_COLOURS[phase.stage], edgecolor="white")
    if phase.seconds > _NARROW * step_s:
        room = int(phase.seconds / step_s * 95)
        text = phase.name if len(phase.name) <= room else f"{phase.name[: max(room - 1, 1)]}."
        middle = span.start_s + phase.seconds / 2
        dark = phase.stage in ("update", "sync", "rollout")
        axes.text(middle, row, text, ha="center", va="center", fontsize=8, color="white" if dark else style.INK)


def _patch(colour: str, label: str) -> object:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)


def plot_rollout(item: RlItem, provenance: str = "") -> Figure:
    """Answers that are under way over the rollout; the tail, in which less than a tenth is, is shaded."""
    times = [t for t, _ in item.under_way]
    left = [n for _, n in item.under_way]
    end = times[-1]
    with style.drawing(8.0, 3.6, provenance) as (figure, axes):
        axes.axvspan(item.most_s, end, color="#F3E6D0", linewidth=0, zorder=0)
        axes.plot(times, left, color=STAGE_COLOURS["rollout"])
        axes.set(xlim=(0, end), ylim=(0, None), xlabel="time of the rollout (s)", ylabel="answers under way")
        tail = f"the last tenth: {format_time(item.tail_s)}"
        near = item.most_s > 0.6 * end
        place = (item.most_s, 0.82 * item.sequences)
        axes.annotate(tail, place, (-6 if near else 6, 0), textcoords="offset points", ha="right" if near else "left")
        axes.set_title(f"{item.name}: {item.sequences:,} answers on {item.engines} engines")
    return figure
