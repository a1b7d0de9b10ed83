"""A training step as pictures: where its time goes, what fills the memory of its stages, and its pipeline.

The pipeline is drawn as the papers do, a row per stage and a box per pass; as letters too. `StepFigures` is what
pictures need of a step, from a run in this process or from a saved one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.engine.timeline import Timeline
from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series, Span
from commsim.report.chart_figure import draw
from commsim.report.tables import width
from commsim.scenario.training_result import CAUSES
from commsim.units import GIB, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.scenario.training_result import TrainingItem

_EXPOSED = ("tp", "cp", "ep", "dp", "offload", "pp")
"""Causes of which only what is not hidden behind compute counts."""

_PARTS = ("weights", "gradients", "optimizer", "activations")
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


def breakdown_chart(bars: Sequence[tuple[str, dict[str, float]]], title: str) -> Chart:
    """A bar per (label, seconds by cause): compute, what is exposed of each axis, the bubble, the optimizer."""
    shown, left = bars[:MOST_BARS], len(bars) - MOST_BARS
    total = [sum(causes.values()) for _, causes in shown]
    drawn = [cause for cause in CAUSES if max(causes.get(cause, 0.0) for _, causes in shown) > 1e-4 * max(total)]
    spans = []
    for row, (_, causes) in enumerate(shown):
        end = 0.0
        for cause in drawn:
            begin, end = end, end + max(causes.get(cause, 0.0), 0.0)
            share = 100 * (end - begin) / (total[row] or 1.0)
            if end > begin:
                spans.append(Span(row, begin, end, f"{share:.0f} %", style.CAUSES[cause], cause))
    seen = [cause for cause in _EXPOSED if any(causes.get(cause) for _, causes in shown)]
    notes = [f"of {', '.join(seen)} what is exposed"] if seen else []
    notes += [f"{left} more are not drawn"] if left > 0 else []
    return Chart(
        title,
        Axis("time of the mean stage", unit="s", high=max(total)),
        rows=tuple(
            f"{label.replace(chr(10), ': ')} ({format_time(t)})" for (label, _), t in zip(shown, total, strict=True)
        ),
        spans=tuple(spans),
        key=tuple((cause, style.CAUSES[cause]) for cause in drawn),
        note="; ".join(notes),
    )


def plot_breakdown(bars: Sequence[tuple[str, dict[str, float]]], title: str, provenance: str = "") -> Figure:
    """The figure of `breakdown_chart`."""
    return draw(breakdown_chart(bars, title), provenance=provenance, width=9.0)


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


_MEMORY = (style.COMPUTE, style.DP, style.CP, style.BACKWARD, style.OPTIMIZER, style.TP, style.EP, "#999999")


def memory_chart(step: StepFigures) -> Chart:
    """A bar per stage: what fills one GPU, under the line of what it holds."""
    memory = _few_parts(step.memory)
    names = list(dict.fromkeys(name for parts in memory for name in parts))
    stages, capacity = tuple(map(str, range(len(memory)))), step.capacity / GIB
    series = [
        Series(name, stages, tuple(parts.get(name, 0.0) / GIB for parts in memory), _MEMORY[i % len(_MEMORY)], "bars")
        for i, name in enumerate(names)
    ]
    holds = f"a GPU holds {capacity:.1f} GiB"
    series.append(Series(holds, stages, (capacity,) * len(stages), style.INK, "dashed"))
    peaks = [sum(parts.values()) / GIB for parts in memory]
    if len(peaks) <= 32:
        series[-2] = replace(series[-2], labels=tuple(f"{peak:.1f}" for peak in peaks))
    y = Axis("memory of one GPU (GiB)", low=0.0, high=1.08 * max(*peaks, capacity))
    panel = Panel(y, tuple(series), stacked=True, height=1.1)
    return Chart(f"{step.name}: memory by stage", Axis("pipeline stage", "category", categories=stages), (panel,))


def plot_memory(step: StepFigures, provenance: str = "") -> Figure:
    """The figure of `memory_chart`."""
    return draw(memory_chart(step), provenance=provenance)


_WORDS = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights"}
_LETTERS = {"F": "F", "B": "B", "I": "I", "W": "W", "optimizer": "o", "reduce": "r", "gather": "g"}
_MOST_STAGES = 32
_SLICES = 88  # letters of a line


def gantt_lines(item: TrainingItem) -> list[str]:
    """One line per stage: what fills most of each slice of the step; ``.`` is idle.

    F forward, B backward (I of inputs, W of weights), o optimizer; where nothing is computed, r and g: reduce and
    gather, gradients and parameters under way. Where passes are shorter than a slice, only the beginning is shown.
    """
    timeline, stages = item.timeline, item.step.pp
    shown = range(min(stages, _MOST_STAGES))
    passes = np.flatnonzero((timeline.stream == 0) & (timeline.end_s > timeline.start_s))
    slices = min(_SLICES, width() - 12)
    short = float(np.quantile((timeline.end_s - timeline.start_s)[passes], 0.25)) if passes.size else item.step_s
    length = min(item.step_s, slices * short)
    edges = np.linspace(0.0, length, slices + 1)
    letters = "F forward, B I W backward, o optimizer, r reduce, g gather, . idle"
    part = "" if length == item.step_s else f"the first {format_time(length)} of "
    lines = [f"# pipeline over {part}{format_time(item.step_s)}: {letters}"]
    lines += [f"  stage {stage:<3} {_letters(timeline, stage, edges)}" for stage in shown]
    if stages > _MOST_STAGES:
        lines.append(f"# and {stages - _MOST_STAGES} stages more")
    return lines


def _letters(timeline: Timeline, stage: int, edges: Any) -> str:
    """The letter of what fills most of each slice; idle is a part like others, gradients count where none computes."""
    slices = len(edges) - 1
    line, lasting = np.full(slices, "."), np.diff(edges)
    for stream in (0, 5):
        rows = np.flatnonzero((timeline.endpoint == stage) & (timeline.stream == stream))
        kinds = np.array([_LETTERS[timeline.names[code]] for code in timeline.name_code[rows].tolist()])
        start, end = timeline.start_s[rows], timeline.end_s[rows]
        busy, most, filling = np.zeros(slices), np.zeros(slices), np.full(slices, ".")
        for letter in dict.fromkeys(kinds.tolist()):
            of = kinds == letter
            filled = np.diff(_busy_until(start[of], end[of], edges))
            busy += filled
            filling = np.where(filled > most, letter, filling)
            most = np.maximum(most, filled)
        shown = (line == ".") & (most > 0) & (most >= lasting - busy)
        line[shown] = filling[shown]
    return "".join(line.tolist())


def _busy_until(start: Any, end: Any, edges: Any) -> Any:
    """Seconds that these spans, by start and none over another, fill before each edge."""
    before = np.concatenate([[0.0], np.cumsum(end - start)])
    begun = np.searchsorted(start, edges, side="right")
    last = np.maximum(begun - 1, 0)
    return before[begun] - np.where(begun > 0, np.maximum(end[last] - edges, 0.0), 0.0)


_STREAMS = ((0, 0.28, 0.92), (5, 0.12, 0.26), (4, 0.0, 0.1))
"""Where in its row a stream stands: compute above, gradients and sends below."""


def pipeline_chart(item: StepFigures) -> Chart:
    """Boxes per stage over time: compute above, gradients and sends as thin bars below.

    A ValueError where the step has no timeline.
    """
    timeline = item.timeline
    if timeline is None:
        raise ValueError(f"{item.name}: found no timeline to draw")
    rows = min(int(timeline.endpoint.max(initial=0)) + 1, _MOST_STAGES)
    spans = []
    for stream, low, high in _STREAMS:
        mine = np.flatnonzero((timeline.stream == stream) & (timeline.endpoint < rows))
        names = [timeline.names[code] for code in timeline.name_code[mine].tolist()]
        columns = (timeline.endpoint[mine].tolist(), timeline.start_s[mine].tolist(), timeline.end_s[mine].tolist())
        for row, start, end, name in zip(*columns, names, strict=True):
            spans.append(Span(row, start, end, _WORDS.get(name, name), _colour(name), low=low, high=high))
    seen = {span.text for span in spans}
    chunks = f" x {item.virtual_stages}" if item.virtual_stages > 1 else ""
    passes = f"{item.micro_batches} micro-batch{'es' if item.micro_batches != 1 else ''}"
    cut = f"pp {item.stages}{chunks}, {passes}"
    names = [f"stage {s}" if s < item.stages else f"slow replica, stage {s - item.stages}" for s in range(rows)]
    return Chart(
        f"{item.name}: {item.schedule}, {cut}, step {format_time(item.step_s)}",
        Axis("time", unit="s", low=0.0, high=item.step_s),
        rows=tuple(names),
        spans=tuple(spans),
        key=tuple((word, _colour(name)) for name in style.PASSES if (word := _WORDS.get(name, name)) in seen),
    )


def _colour(name: str) -> str:
    return style.PASSES.get(name, "#999999")


def plot_pipeline(item: StepFigures, provenance: str = "") -> Figure:
    """The figure of `pipeline_chart`."""
    return draw(pipeline_chart(item), provenance=provenance, width=10.0)
