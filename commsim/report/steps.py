"""A training step as pictures: where its time goes, what fills the memory of its stages, and its pipeline.

The pipeline is drawn as the papers do, a row per stage and a box per pass; as letters too. `StepFigures` is what
pictures need of a step, from a run in this process or from a saved one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.engine.timeline import Timeline
from commsim.report import style
from commsim.scenario.training_result import CAUSES
from commsim.units import GIB, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.scenario.training_result import TrainingItem

_EXPOSED = ("tp", "cp", "ep", "dp", "offload", "pp")
"""Causes of which only what is not hidden behind compute counts."""

# Okabe & Ito's colours (style.py); what is computed in blues, what is waited for in the warm ones.
CAUSE_COLOURS = {
    "compute": "#0072B2",
    "tp": "#D55E00",
    "cp": "#E69F00",
    "ep": "#8C510A",
    "dp": "#CC79A7",
    "offload": "#000000",
    "pp": "#009E73",
    "bubble": "#BBBBBB",
    "optimizer": "#56B4E9",
    "constant": "#F0E442",
}

_PARTS = ("weights", "gradients", "optimizer", "activations")
_EDGE: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6}
MOST_BARS = 24


@dataclass(frozen=True, eq=False)
class StepFigures:
    """One step: seconds by cause, bytes of every stage by part under the capacity of a GPU, and its timeline.

    ``values`` are all of the answer, as in its JSON.
    """

    kind: ClassVar[str] = "trainings"

    name: str
    schedule: str
    step_s: float
    stages: int
    virtual_stages: int
    micro_batches: int
    causes: dict[str, float]
    memory: tuple[dict[str, float], ...]
    capacity: float
    timeline: Timeline | None = None
    values: dict[str, Any] = field(default_factory=dict)


def figures_of(record: dict[str, Any], timeline: Timeline | None) -> StepFigures:
    """Those of a step by its values in JSON."""
    return StepFigures(
        name=str(record["item"]),
        schedule=str(record["pipeline_schedule"]),
        step_s=float(record["step_s"]),
        stages=int(record["pp"]),
        virtual_stages=int(record["virtual_stages"]),
        micro_batches=int(record["micro_batches"]),
        causes={cause: float(record.get(f"{cause}_s") or 0.0) for cause in CAUSES},
        memory=tuple({str(n): GIB * float(v) for n, v in s["parts_GiB"].items()} for s in record["memory"]),
        capacity=GIB * float(record["capacity_GiB"]),
        timeline=timeline,
        values=record,
    )


def plot_breakdown(bars: Sequence[tuple[str, dict[str, float]]], title: str, provenance: str = "") -> Figure:
    """A bar per (label, seconds by cause): compute, what is exposed of each axis, the bubble, the optimizer."""
    shown, left = bars[:MOST_BARS], len(bars) - MOST_BARS
    total = [sum(causes.values()) for _, causes in shown]
    scale, unit = (1.0, "s") if max(total) >= 1.0 else (1e3, "ms")
    with style.drawing(9.0, 2.0 + 0.42 * len(shown), provenance) as (figure, axes):
        ends = [0.0] * len(shown)
        for cause in CAUSES:
            widths = [scale * max(causes.get(cause, 0.0), 0.0) for _, causes in shown]
            if max(widths) <= 1e-4 * scale * max(total):
                continue
            axes.barh(
                range(len(shown)), widths, left=ends, height=0.7, color=CAUSE_COLOURS[cause], label=cause, **_EDGE
            )
            for i, (start, width) in enumerate(zip(ends, widths, strict=True)):
                share = width / (scale * max(total))
                if share > 0.055:
                    ink = "white" if cause in ("compute", "tp", "ep", "pp", "offload") else style.INK
                    text = f"{100 * width / (scale * total[i]):.0f} %"
                    axes.text(start + width / 2, i, text, ha="center", va="center", fontsize=8, color=ink)
            ends = [a + b for a, b in zip(ends, widths, strict=True)]
        for i, end in enumerate(ends):
            axes.text(end, i, f" {format_time(total[i])}", ha="left", va="center", fontsize=8.5)
        axes.set_yticks(range(len(shown)), [label for label, _ in shown])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * max(ends))
        axes.grid(visible=False, axis="y")
        seen = [cause for cause in _EXPOSED if any(causes.get(cause) for _, causes in shown)]
        notes = [f"of {', '.join(seen)} what is exposed"] if seen else []
        notes += [f"{left} more are not drawn"] if left > 0 else []
        axes.set(xlabel="; ".join([f"time of the mean stage ({unit})", *notes]), title=title)
        figure.legend(loc="outside lower left", ncols=9, columnspacing=1.0)
    return figure


def _few_parts(memory: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The parts in one order, those that are small on every stage as one."""
    names = dict.fromkeys(name for parts in memory for name in parts)
    largest = {name: max(parts.get(name, 0.0) for parts in memory) for name in names}
    rest = sorted((n for n in largest if n not in _PARTS), key=lambda n: -largest[n])
    most = max(sum(parts.values()) for parts in memory)
    small = {name for i, name in enumerate(rest) if i >= 3 or largest[name] < 0.02 * most}
    kept = [name for name in (*_PARTS, *rest) if largest.get(name) and name not in small]
    few = [{name: parts.get(name, 0.0) for name in kept} for parts in memory]
    if small:
        few = [made | {"other": sum(parts.get(n, 0.0) for n in small)} for made, parts in zip(few, memory, strict=True)]
    return few


def plot_memory(step: StepFigures, provenance: str = "") -> Figure:
    """A bar per stage: what fills one GPU, under the line of what it holds."""
    memory = _few_parts(step.memory)
    names = list(dict.fromkeys(name for parts in memory for name in parts))
    palette = ("#0072B2", "#CC79A7", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#8C510A", "#999999")
    peaks = [sum(parts.values()) / GIB for parts in memory]
    capacity = step.capacity / GIB
    with style.drawing(min(14.0, 6.4 + 0.25 * len(peaks)), 4.6, provenance) as (figure, axes):
        ends = [0.0] * len(peaks)
        for i, name in enumerate(names):
            heights = [parts.get(name, 0.0) / GIB for parts in memory]
            colour = palette[i % len(palette)]
            axes.bar(range(len(peaks)), heights, bottom=ends, width=0.75, label=name, color=colour, **_EDGE)
            ends = [a + b for a, b in zip(ends, heights, strict=True)]
        if len(peaks) <= 32:
            for i, peak in enumerate(peaks):
                axes.text(i, peak, f"{peak:.1f}", ha="center", va="bottom", fontsize=8)
        axes.axhline(capacity, color=style.INK, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3)
        look: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 8.5}
        place = axes.get_yaxis_transform()
        axes.text(0.995, capacity, f"a GPU holds {capacity:.1f} GiB", transform=place, **look)
        axes.set_ylim(0, 1.14 * max(*peaks, capacity))
        every = max(1, len(peaks) // 16)
        axes.set_xticks(range(0, len(peaks), every))
        axes.set_xlim(-0.6, len(peaks) - 0.4)
        axes.grid(visible=False, axis="x")
        axes.set(xlabel="pipeline stage", ylabel="memory of one GPU (GiB)")
        axes.set_title(f"{step.name}: memory by stage")
        figure.legend(loc="outside right upper")
    return figure


COLOURS = {
    "F": "#4477aa",
    "B": "#66a182",
    "I": "#66a182",
    "W": "#b7d7a8",
    "optimizer": "#777777",
    "reduce": "#cc6677",
    "gather": "#ddaa77",
    "send": "#bbbbbb",
}
_WORDS = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights"}
_LETTERS = {"F": "F", "B": "B", "I": "I", "W": "W", "optimizer": "o", "reduce": "r", "gather": "g"}
_MOST_STAGES = 32


def gantt_lines(item: TrainingItem) -> list[str]:
    """One line per stage: what it does in the middle of each slice of the step; ``.`` is idle.

    F forward, B backward (I of inputs, W of weights), o optimizer; where nothing is computed, r and g: reduce and
    gather, gradients and parameters under way.
    """
    timeline, stages = item.timeline, item.step.pp
    shown = range(min(stages, _MOST_STAGES))
    edges = np.linspace(0.0, item.step_s, 89)
    letters = "F forward, B I W backward, o optimizer, r reduce, g gather, . idle"
    lines = [f"# pipeline over {format_time(item.step_s)}: {letters}"]
    lines += [f"  stage {stage:<3} {_letters(timeline, stage, edges)}" for stage in shown]
    if stages > _MOST_STAGES:
        lines.append(f"# and {stages - _MOST_STAGES} stages more")
    return lines


def _letters(timeline: Timeline, stage: int, edges: Any) -> str:
    """The letter of what runs in the middle of each slice."""
    middle = (edges[1:] + edges[:-1]) / 2
    line = np.full(middle.size, ".")
    for stream in (5, 0):
        rows = np.flatnonzero((timeline.endpoint == stage) & (timeline.stream == stream))
        if not rows.size:
            continue
        letters = np.array([_LETTERS[timeline.names[code]] for code in timeline.name_code[rows].tolist()])
        at = np.searchsorted(timeline.start_s[rows], middle, side="right") - 1
        runs = (at >= 0) & (timeline.end_s[rows][at] > middle)
        line[runs] = letters[at[runs]]
    return "".join(line.tolist())


def plot_pipeline(item: StepFigures, provenance: str = "") -> Figure:
    """Boxes per stage over time: compute above, gradients and sends as thin bars below.

    A ValueError where the step has no timeline.
    """
    from matplotlib.patches import Patch

    timeline = item.timeline
    if timeline is None:
        raise ValueError(f"{item.name}: found no timeline to draw")
    rows = min(int(timeline.endpoint.max(initial=0)) + 1, _MOST_STAGES)
    scale, unit = (1.0, "s") if item.step_s >= 1.0 else (1e3, "ms")
    with style.drawing(10.0, 1.9 + 0.32 * rows, provenance) as (figure, axes):
        seen: set[str] = set()
        few = timeline.rows < 1500  # thousands of boxes are megabytes of SVG
        edge, line = ("white", 0.3) if few else ("none", 0.0)
        look: dict[str, Any] = {"edgecolor": edge, "linewidth": line, "rasterized": not few}
        for stage in range(rows):
            for stream, low, height in ((0, 0.28, 0.62), (5, 0.12, 0.14), (4, 0.0, 0.1)):
                mine = (timeline.endpoint == stage) & (timeline.stream == stream)
                for code in np.unique(timeline.name_code[mine]).tolist():
                    name = timeline.names[code]
                    seen.add(name)
                    pick = mine & (timeline.name_code == code)
                    begin, long = timeline.start_s[pick], (timeline.end_s - timeline.start_s)[pick]
                    bars, place = np.column_stack([begin, long]) * scale, (rows - 1 - stage + low, height)
                    axes.broken_barh(bars, place, facecolors=COLOURS.get(name, "#999999"), **look)
        names = [f"stage {s}" if s < item.stages else f"slow replica, stage {s - item.stages}" for s in range(rows)]
        axes.set_yticks([rows - 0.5 - s for s in range(rows)], names)
        axes.set(xlim=(0, item.step_s * scale), ylim=(0, rows), xlabel=f"time ({unit})")
        chunks = f" x {item.virtual_stages}" if item.virtual_stages > 1 else ""
        passes = f"{item.micro_batches} micro-batch{'es' if item.micro_batches != 1 else ''}"
        cut = f"pp {item.stages}{chunks}, {passes}"
        axes.set_title(f"{item.name}: {item.schedule}, {cut}, step {format_time(item.step_s)}")
        axes.grid(visible=False)
        handles = [Patch(color=COLOURS[n], label=_WORDS.get(n, n)) for n in COLOURS if n in seen]
        look = {"columnspacing": 1.1, "handlelength": 1.3, "borderaxespad": 0.4}
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), **look)
    return figure
