"""The pipeline of a step as the papers draw it: a row per stage, a box per pass; as letters, and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.engine.timeline import Timeline
from commsim.report import style
from commsim.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.report.steps import StepFigures
    from commsim.scenario.training_result import TrainingItem

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


def gantt_lines(item: TrainingItem, width: int = 100) -> list[str]:
    """One line per stage: what it does in the middle of each slice of the step; ``.`` is idle.

    F forward, B backward (I of inputs, W of weights), o optimizer; where nothing is computed, r and g: reduce and
    gather, gradients and parameters under way.
    """
    timeline, stages = item.timeline, item.step.pp
    shown = range(min(stages, _MOST_STAGES))
    columns = max(20, width - 12)
    edges = np.linspace(0.0, item.step_s, columns + 1)
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
        axes.set_xlim(0, item.step_s * scale)
        axes.set_ylim(0, rows)
        axes.set_xlabel(f"time ({unit})")
        chunks = f" x {item.virtual_stages}" if item.virtual_stages > 1 else ""
        passes = f"{item.micro_batches} micro-batch{'es' if item.micro_batches != 1 else ''}"
        cut = f"pp {item.stages}{chunks}, {passes}"
        axes.set_title(f"{item.name}: {item.schedule}, {cut}, step {format_time(item.step_s)}")
        axes.grid(visible=False)
        handles = [Patch(color=COLOURS[n], label=_WORDS.get(n, n)) for n in COLOURS if n in seen]
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), borderaxespad=0.4)
    return figure
