"""Training steps: figures, causes and memory as text, CSV, pictures and sections of a page, and all read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.engine.timeline import Timeline
from commsim.report.page import Code, Part, Section, Text, plot, table
from commsim.report.saved import csv_rows
from commsim.report.steps import (
    StepFigures,
    breakdown_chart,
    figures_of,
    gantt_lines,
    memory_chart,
    pipeline_chart,
    plot_memory,
    plot_pipeline,
)
from commsim.report.tables import csv_text, folded, hanging, records_csv
from commsim.report.view import PictureKind, Shown, View
from commsim.units import GIB, GIGA, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.scenario.training_result import TrainingItem

_MEANING = {
    "compute": "products, attention, element-wise kernels",
    "tp": "tensor parallelism, exposed",
    "cp": "context parallelism, exposed",
    "ep": "experts' dispatch and combine, exposed",
    "dp": "gradients and parameters, exposed",
    "offload": "parameters and activations from and to the host, exposed",
    "pp": "sends between stages, and what passes wait for on shared links",
    "bubble": "stages that wait for the schedule",
    "optimizer": "update of the parameters",
    "constant": "between steps: data, logging, the norm of gradients",
}


def training_table(item: TrainingItem, heading: Iterable[str] = ()) -> str:
    """The answer for a terminal; lines that start with ``#`` are no figures."""
    step = item.step
    lines = [f"does not fit: {misfit(item)}"] if not item.memory.fits else []
    lines += [f"# {text}".rstrip() for text in heading]
    mesh = f"tp {step.tp}, pp {step.pp}" + (f" x {step.virtual_stages}" if step.virtual_stages > 1 else "")
    mesh += f", cp {step.cp}, dp {step.dp}" + (f", ep {step.ep}" if step.ep > 1 else "")
    passes = f"{step.num_microbatches} micro-batch{'es' if step.num_microbatches != 1 else ''}"
    lines += [
        f"# {step.model.name}, {mesh}, {item.schedule}, ZeRO {step.zero_stage}, recompute {step.recompute}, "
        f"{step.precision.name}",
        f"# {step.global_batch_size} sequences of {step.seq_len} tokens, {passes} of "
        f"{step.micro_batch_size}, {'with' if item.contended else 'without'} contention on links",
        "#",
        *_noted(f"  step                {format_time(item.step_s):>12}", _band_words(item)),
        f"  tokens/s/GPU        {item.tokens_per_s_per_gpu:>12.1f}",
        f"  model TFLOP/s/GPU   {item.flop_per_s_per_gpu / 1e12:>12.1f}",
        *_noted(f"  MFU                 {item.mfu:>12.1%}", f"(causal attention counted: {item.mfu_causal:.1%})"),
        *_noted(f"  HFU                 {item.hfu:>12.1%}", "(with what is recomputed)"),
        *(f"# note: {note}" for note in (*item.notes, item.lost) if note),
        "#",
        "# where the time goes (mean stage)",
    ]
    for cause, seconds, meaning in _causes(item):
        lines += hanging(f"  {cause:<10} {format_time(seconds):>12} {seconds / item.step_s:>7.1%}  ", meaning)
    lines += ["#", *_traffic_lines(item), *_memory_lines(item)]
    if item.task is not None:
        lines += ["#", *_task_lines(item)]
    lines += ["#", *gantt_lines(item)]
    return "\n".join(folded(lines)) + "\n"


def _causes(item: TrainingItem) -> list[tuple[str, float, str]]:
    """(cause, seconds of the mean stage, what it is) of the causes that take time."""
    seconds = ((cause, item.causes.get(cause, 0.0)) for cause in _MEANING)
    return [(cause, value, _MEANING[cause]) for cause, value in seconds if abs(value) > 1e-9 * item.step_s]


def _traffic_lines(item: TrainingItem) -> list[str]:
    lines = [f"  {axis:<10} {nbytes / GIGA:>9.3f} GB" for axis, nbytes in item.sent_bytes.items()]
    return ["# what one GPU sends per step (of the stage that sends most)", *lines, "#"] if lines else []


MOST_PARTS = 4
"""Parts of a stage's memory that are named, the largest; the rest is one figure, so that they add up."""


def _memory_lines(item: TrainingItem) -> list[str]:
    """The fullest stages first, their largest parts named."""
    memory = item.memory
    lines = [
        f"# memory of one GPU, of {memory.capacity / GIB:.1f} GiB that a program can allocate:",
        *hanging("# ", item.step.accelerator.room_words),
    ]
    ranked = sorted(memory.stages, key=lambda s: -s.peak)
    for stage in ranked[:4]:
        parts = sorted(stage.parts.items(), key=lambda p: -p[1])
        named = [*parts[:MOST_PARTS], ("others", sum(value for _, value in parts[MOST_PARTS:]))]
        words = ", ".join(f"{name} {value / GIB:.1f}" for name, value in named if value)
        lines += hanging(f"  stage {stage.stage:<4} {stage.peak / GIB:>8.1f} GiB  ", words)
    if len(ranked) > 4:
        lines.append(f"# and {len(ranked) - 4} stages with less")
    if not memory.fits:  # the cheapest change is in the first line
        lines += [f"# it would also fit with {hint}" for hint in item.advice[1:]]
    return lines


def misfit(item: TrainingItem) -> str:
    """What the fullest GPU needs and has, and the cheapest change after which the step fits."""
    memory = item.memory
    needs = f"stage {memory.fullest.stage} needs {memory.peak / GIB:.1f} of {memory.capacity / GIB:.1f} GiB"
    if not item.advice:
        return f"{needs}; no change that was tried makes it fit"
    return f"{needs}; the cheapest change that makes it fit: {item.advice[0]}"


def _band_words(item: TrainingItem) -> str:
    """Where 8 of 10 published steps of other sources were; blank with parameters of one's own."""
    band = item.band_s
    return f"(8 in 10 published: {format_time(band[0])} .. {format_time(band[1])})" if band is not None else ""


def _noted(line: str, note: str) -> list[str]:
    """A line with a note behind it, which goes on below itself where the terminal is narrow."""
    return hanging(f"{line}  ", note) if note else [line]


def _task_lines(item: TrainingItem) -> list[str]:
    task = item.task
    assert task is not None
    lines = [
        f"# task {task.name}: {task.steps:,.0f} steps, {task.tokens:.4g} tokens",
        f"  days                {task.days:>12.2f}",
        f"  GPU-hours           {task.gpu_hours:>12,.0f}",
    ]
    if item.gpu_hour_usd is not None:
        lines.append(f"  USD                 {task.usd(item.gpu_hour_usd):>12,.0f}")
    if len(task.phases) > 1:
        total = sum(p.seconds for p in task.phases)
        lines += [f"  {p.name:<18} {format_time(p.seconds):>12} {p.seconds / total:>7.1%}" for p in task.phases]
    return lines


MOST_TIMELINE_ROWS = 200_000
"""Longer timelines are not saved: 20 MB of text."""


def _timeline_csv(items: Iterable[TrainingItem]) -> str:
    """What every stage does from when to when: a row per pass and transfer, items counted from 1.

    Items with more than `MOST_TIMELINE_ROWS` rows are left out.
    """
    from commsim.training.streams import STREAMS

    rows: list[tuple[Any, ...]] = [("item", "stage", "stream", "name", "start_s", "end_s")]
    for number, item in enumerate(items, 1):
        t = item.timeline
        if t.rows <= MOST_TIMELINE_ROWS:
            streams = [STREAMS[stream] for stream in t.stream.tolist()]
            columns = (t.endpoint.tolist(), streams, t.name, t.start_s.tolist(), t.end_s.tolist())
            rows += [(number, *row) for row in zip(*columns, strict=True)]
    return csv_text(rows)


def _sections(item: TrainingItem, alone: bool) -> list[Section]:
    """The causes of the time under the pipeline, the memory of every stage, then all that the terminal shows.

    An item that is not alone on its page is named in the titles.
    """
    figures = figures_of(item.to_dict(), item.timeline)
    before = "" if alone else f"{item.name}: "
    causes = [(name, seconds, 100 * seconds / item.step_s, meaning) for name, seconds, meaning in _causes(item)]
    names = list(dict.fromkeys(name for stage in item.memory.stages for name, value in stage.parts.items() if value))
    memory = [
        (stage.stage, stage.peak / GIB, *(stage.parts.get(name, 0.0) / GIB for name in names))
        for stage in item.memory.stages
    ]
    advice = [Text(f"It would also fit with {hint}.") for hint in item.advice[1:]] if not item.memory.fits else []
    return [
        Section(
            f"{before}Where the time goes",
            (
                plot(breakdown_chart([(item.schedule, item.causes)], item.name), "Time of the mean stage by cause."),
                plot(pipeline_chart(figures), "What every stage does over the step."),
                table(["cause", "time of the mean stage (s)", "share (%)", "what"], causes),
            ),
        ),
        Section(
            f"{before}Memory of one GPU, in GiB",
            (
                plot(memory_chart(figures), "What fills one GPU of every stage."),
                table(["stage", "peak", *names], memory),
                *advice,
            ),
        ),
        Section(f"{before}All figures", (Code(training_table(item)),)),
    ]


class TrainingView(View["TrainingItem"]):
    """Training steps."""

    question: ClassVar[str] = "What does a training step cost?"
    kinds: ClassVar[dict[str, PictureKind]] = {
        "memory": PictureKind.of_each(
            "what fills the memory of every pipeline stage", lambda saved: saved.steps, plot_memory
        ),
        "pipeline": PictureKind.of_each(
            "what every stage does over the step",
            lambda saved: [step for step in saved.steps if step.timeline is not None],
            plot_pipeline,
        ),
    }

    def table(self, shown: Shown, answer: TrainingItem) -> str:
        return training_table(answer, [shown.heading, shown.machine, ""])

    def csv(self, shown: Shown, answers: Sequence[TrainingItem]) -> dict[str, str]:
        """Figures, memory by stage and part, and what every stage does when."""
        memory = [
            {"item": item.name, "stage": stage.stage, "part": name, "GiB": value / GIB}
            for item in answers
            for stage in item.memory.stages
            for name, value in [*stage.parts.items(), ("peak", stage.peak)]
        ]
        return {
            "training.csv": records_csv([item.record() for item in answers]),
            "memory.csv": records_csv(memory),
            "timeline.csv": _timeline_csv(answers),
        }

    def draw(self, shown: Shown, answer: TrainingItem) -> dict[str, Figure]:
        return {"pipeline": plot_pipeline(self.keep(answer), shown.provenance)}

    def sentences(self, shown: Shown, answers: Sequence[TrainingItem]) -> list[str]:
        lines = []
        for item in answers:
            memory, task, fullest = item.memory, item.task, item.memory.fullest
            if not memory.fits:
                lines.append(f"{item.name} does not fit: {misfit(item)}.")
            lines += [
                f"{item.name}: {format_time(item.step_s)} a step on {item.step.world_size:,} GPUs, {item.mfu:.1%} MFU, "
                f"{item.tokens_per_s_per_gpu:,.0f} tokens/s per GPU.",
                f"The fullest GPU (stage {fullest.stage}) needs {fullest.peak / GIB:.1f} of "
                f"{memory.capacity / GIB:.1f} GiB: {'it fits' if memory.fits else 'it does not fit'}.",
                f"A program can allocate {item.step.accelerator.room_words}.",
            ]
            if (band := item.band_s) is not None:
                low, high = map(format_time, band)
                lines.append(f"8 in 10 published steps of other sources took {low} to {high} where that was predicted.")
            if task is not None:
                price = "" if item.gpu_hour_usd is None else f", ${task.usd(item.gpu_hour_usd):,.0f}"
                lines.append(
                    f"The task {task.name} takes {task.days:.1f} days, {task.gpu_hours:,.0f} GPU-hours{price}."
                )
        return lines

    def sections(self, shown: Shown, answers: Sequence[TrainingItem]) -> list[Section]:
        alone = len(shown.of_kind("trainings")) == 1
        return [section for item in answers for section in _sections(item, alone)]

    def sureness(self, shown: Shown, answers: Sequence[TrainingItem]) -> list[Part]:
        text = (
            "Of published steps of other sources 8 in 10 were within the band of the time: page Accuracy of decisions "
            "(docs/accuracy-decisions.md). How far off predicted training steps are, by source: page Accuracy of "
            "training steps (docs/accuracy-training.md), counted by commsim validate training."
        )
        return [Text(text)]

    def keep(self, answer: TrainingItem) -> StepFigures:
        return figures_of(answer.to_dict(), answer.timeline)

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[StepFigures]:
        timelines = _timelines(folder / "timeline.csv") if folder is not None else {}
        return [figures_of(record, timelines.get(number)) for number, record in enumerate(records, 1)]


def _timelines(path: Path) -> dict[int, Timeline]:
    """The timelines of timeline.csv by item, from 1."""
    from commsim.training.streams import NAMES, STREAMS

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


VIEW = TrainingView()
