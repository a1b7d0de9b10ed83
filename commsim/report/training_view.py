"""Training steps: the figures of a terminal, where time and memory go as pictures and on a page, and all read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.report.page import Code, Part, Section, Text, picture, table
from commsim.report.saved import csv_rows
from commsim.report.view import PictureChoice, PictureKind, Pictures, Shown, View
from commsim.units import GIB, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.engine.timeline import Timeline
    from commsim.report.saved import Saved
    from commsim.report.steps import StepFigures
    from commsim.scenario.training_result import TrainingItem


def _draw_memory(saved: Saved, selection: PictureChoice) -> Pictures:
    from commsim.report.steps import plot_memory

    for i, suffix in selection.places(len(saved.steps)):
        yield suffix, plot_memory(saved.steps[i], saved.provenance)


def _draw_pipeline(saved: Saved, selection: PictureChoice) -> Pictures:
    from commsim.report.gantt import plot_pipeline

    steps = [step for step in saved.steps if step.timeline is not None]
    for i, suffix in selection.places(len(steps)):
        yield suffix, plot_pipeline(steps[i], saved.provenance)


class TrainingView(View["TrainingItem"]):
    """Training steps."""

    question: ClassVar[str] = "What does a training step cost?"
    kinds: ClassVar[dict[str, PictureKind]] = {
        "memory": PictureKind(
            "what fills the memory of every pipeline stage", lambda saved: bool(saved.steps), _draw_memory
        ),
        "pipeline": PictureKind(
            "what every stage does over the step",
            lambda saved: any(step.timeline is not None for step in saved.steps),
            _draw_pipeline,
        ),
    }

    def table(self, shown: Shown, answer: TrainingItem) -> str:
        """All figures of the step."""
        from commsim.report.training import training_table

        return training_table(answer, [shown.heading, shown.machine, ""])

    def csv(self, shown: Shown, answers: Sequence[TrainingItem]) -> dict[str, str]:
        """Figures, memory by stage and part, and what every stage does when."""
        from commsim.report.training import memory_csv, timeline_csv, training_csv

        return {
            "training.csv": training_csv(answers),
            "memory.csv": memory_csv(answers),
            "timeline.csv": timeline_csv(answers),
        }

    def draw(self, shown: Shown, answer: TrainingItem) -> dict[str, Figure]:
        """What every stage does over the step."""
        from commsim.report.gantt import plot_pipeline

        return {"pipeline": plot_pipeline(self.keep(answer), shown.provenance)}

    def sentences(self, shown: Shown, answers: Sequence[TrainingItem]) -> list[str]:
        """Three sentences for each step."""
        return [line for item in answers for line in training_answer(item)]

    def sections(self, shown: Shown, answers: Sequence[TrainingItem]) -> list[Section]:
        """Time, memory and all figures of each step."""
        alone = len(shown.of_kind("trainings")) == 1
        return [section for item in answers for section in training_sections(item, alone=alone)]

    def sureness(self, shown: Shown, answers: Sequence[TrainingItem]) -> list[Part]:
        """Where the error is counted."""
        text = (
            "How far off predicted training steps are, over published ones: page Accuracy of training steps "
            "(docs/accuracy-training.md), counted by commsim validate training."
        )
        return [Text(text)]

    def keep(self, answer: TrainingItem) -> StepFigures:
        """What pictures need of a step."""
        from commsim.report.steps import figures_of

        return figures_of(answer)

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[StepFigures]:
        """Causes, memory by stage, and the timeline where it was saved."""
        timelines = _timelines(folder / "timeline.csv") if folder is not None and records else {}
        return [_step(record, timelines.get(number)) for number, record in enumerate(records, 1)]


VIEW = TrainingView()


def training_answer(item: TrainingItem) -> list[str]:
    """The step, the memory of the fullest stage, and the task if there is one, in a sentence each."""
    fullest = max(item.memory.stages, key=lambda stage: stage.peak)
    fits = "it fits" if item.memory.fits else "it does not fit"
    lines = [
        f"{item.name}: {format_time(item.step_s)} a step on {item.step.world_size:,} GPUs, {item.mfu:.1%} MFU, "
        f"{item.tokens_per_s_per_gpu:,.0f} tokens/s per GPU.",
        f"The fullest GPU (stage {fullest.stage}) needs {fullest.peak / GIB:.1f} of "
        f"{item.memory.capacity / GIB:.1f} GiB: {fits}.",
    ]
    if item.task is not None:
        price = "" if item.gpu_hour_usd is None else f", ${item.task.usd(item.gpu_hour_usd):,.0f}"
        lines.append(
            f"The task {item.task.name} takes {item.task.days:.1f} days, {item.task.gpu_hours:,.0f} GPU-hours{price}."
        )
    return lines


def training_sections(item: TrainingItem, *, alone: bool) -> list[Section]:
    """The causes of the time under the pipeline, the memory of every stage, then all that the terminal shows.

    An item that is not alone on its page is named in the titles.
    """
    from commsim.report.gantt import plot_pipeline
    from commsim.report.steps import figures_of, plot_breakdown, plot_memory
    from commsim.report.training import cause_meanings, training_table

    figures = figures_of(item)
    before = "" if alone else f"{item.name}: "
    causes = [(name, seconds, 100 * seconds / item.step_s, meaning) for name, seconds, meaning in cause_meanings(item)]
    names = list(dict.fromkeys(name for stage in item.memory.stages for name, value in stage.parts.items() if value))
    memory = [
        (stage.stage, stage.peak / GIB, *(stage.parts.get(name, 0.0) / GIB for name in names))
        for stage in item.memory.stages
    ]
    advice = [Text(f"It would fit with {hint}.") for hint in item.advice] if not item.memory.fits else []
    return [
        Section(
            f"{before}Where the time goes",
            (
                picture(plot_breakdown([(item.schedule, item.causes)], item.name), "Time of the mean stage by cause."),
                picture(plot_pipeline(figures), "What every stage does over the step."),
                table(["cause", "time of the mean stage (s)", "share (%)", "what"], causes),
            ),
        ),
        Section(
            f"{before}Memory of one GPU, in GiB",
            (
                picture(plot_memory(figures), "What fills one GPU of every stage."),
                table(["stage", "peak", *names], memory),
                *advice,
            ),
        ),
        Section(f"{before}All figures", (Code(training_table(item)),)),
    ]


def _step(record: dict[str, Any], timeline: Timeline | None) -> StepFigures:
    from commsim.report.steps import StepFigures
    from commsim.scenario.training_result import CAUSES

    memory = tuple({str(n): GIB * float(v) for n, v in s["parts_GiB"].items()} for s in record["memory"])
    return StepFigures(
        name=str(record["item"]),
        schedule=str(record["pipeline_schedule"]),
        step_s=float(record["step_s"]),
        stages=int(record["pp"]),
        virtual_stages=int(record["virtual_stages"]),
        micro_batches=int(record["micro_batches"]),
        causes={cause: float(record.get(f"{cause}_s") or 0.0) for cause in CAUSES},
        memory=memory,
        capacity=GIB * float(record["capacity_GiB"]),
        timeline=timeline,
        values=record,
    )


def _timelines(path: Path) -> dict[int, Timeline]:
    """The timelines of timeline.csv by item, from 1."""
    from commsim.engine.timeline import Timeline
    from commsim.training.simulate import NAMES, STREAMS

    columns_of: dict[int, list[tuple[float, float, int, int, int]]] = {}
    for row in csv_rows(path):
        place = (int(row["stage"]), STREAMS.index(row["stream"]), NAMES.index(row["name"]))
        columns_of.setdefault(int(row["item"]), []).append((float(row["start_s"]), float(row["end_s"]), *place))
    timelines = {}
    for item, rows in columns_of.items():
        start, end, stage, stream, code = (np.array(column) for column in zip(*rows, strict=True))
        timelines[item] = Timeline(
            start, end, stage.astype(np.int32), stream.astype(np.int32), code.astype(np.uint8),
            np.zeros(start.size, np.int64), NAMES,
        )  # fmt: skip
    return timelines
