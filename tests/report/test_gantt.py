"""The pipeline as letters and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commsim.engine.timeline import Timeline
from commsim.report.plots import figure_bytes
from commsim.report.steps import StepFigures, figures_of, gantt_lines, plot_pipeline
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run
from commsim.scenario.training_result import TrainingItem

_TEXT = """
name: Four stages
topology: {preset: hgx-h100, gpus_per_node: 4}
workload:
  - training: {model: gpt2-1558m, global_batch_size: 8, mesh: {pp: 4}, pipeline_schedule: gpipe}
"""


def _item(tmp_path: Path) -> TrainingItem:
    (tmp_path / "s.yaml").write_text(_TEXT)
    return run(load_scenarios(tmp_path / "s.yaml")[0]).trainings[0]


def test_letters_show_forwards_then_backwards(tmp_path: Path) -> None:
    head, *lines = gantt_lines(_item(tmp_path))
    assert head.startswith("# pipeline over")
    assert len(lines) == 4
    for line in lines:
        letters = line.split(maxsplit=2)[2]
        assert set(letters) <= set("FB.og")
        assert letters.rindex("F") < letters.index("B")  # GPipe
    starts = [line.split(maxsplit=2)[2].index("F") for line in lines]
    assert starts == sorted(starts)
    assert starts[0] < starts[-1]


def test_letters_never_skip_a_pass(tmp_path: Path) -> None:
    """One forward and one backward after the other: many micro-batches may not look like blocks of one sort."""
    (tmp_path / "s.yaml").write_text(_TEXT.replace("size: 8", "size: 256").replace("gpipe", "1f1b"))
    head, *lines = gantt_lines(run(load_scenarios(tmp_path / "s.yaml")[0]).trainings[0])
    assert "the first" in head
    last = lines[-1].split(maxsplit=2)[2].strip(".")
    assert "FFF" not in last
    assert "BBBBBB" not in last
    assert last.count("FB") > 15


def test_the_picture_has_a_row_per_stage(tmp_path: Path) -> None:
    item = _item(tmp_path)
    figure = plot_pipeline(figures_of(item.to_dict(), item.timeline), "where it came from")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"stage {i}" for i in range(4)]
    assert "time" in axes.get_xlabel()
    assert figure_bytes(figure, "png").startswith(b"\x89PNG")


def test_a_long_pipeline_stays_a_small_file() -> None:
    """A box per pass of a large machine would be megabytes of SVG on the page."""
    rows = 20_000
    start = np.arange(rows) / rows
    timeline = Timeline(
        start, start + 0.5 / rows, np.arange(rows, dtype=np.int32) % 16, np.zeros(rows, np.int32),
        np.zeros(rows, np.uint8), np.zeros(rows, np.int64), ("F",),
    )  # fmt: skip
    step = StepFigures("long", "1f1b", 1.0, 16, 1, 8, {}, (), 1.0, timeline)
    assert len(figure_bytes(plot_pipeline(step), "svg")) < 400_000
