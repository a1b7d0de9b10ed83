"""A training step as text: figures, causes of its time, memory of its stages, the pipeline as a drawing of letters."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from commsim.report.gantt import gantt_lines
from commsim.scenario.training_result import CAUSES, TrainingItem
from commsim.training.simulate import STREAMS
from commsim.units import GIB, GIGA, format_time

_MEANING = {
    "compute": "products, attention, element-wise kernels",
    "tp": "tensor parallelism, exposed",
    "cp": "context parallelism, exposed",
    "ep": "experts' dispatch and combine, exposed",
    "dp": "gradients and parameters, exposed",
    "offload": "parameters from the host, exposed",
    "pp": "sends between stages, exposed",
    "bubble": "stages that wait for the schedule",
    "optimizer": "update of the parameters",
}


def training_table(item: TrainingItem, heading: Iterable[str] = (), width: int = 100) -> str:
    """The answer for a terminal; lines that start with ``#`` are no figures."""
    step = item.step
    lines = [f"# {text}".rstrip() for text in heading]
    mesh = f"tp {step.tp}, pp {step.pp}" + (f" x {step.virtual_stages}" if step.virtual_stages > 1 else "")
    mesh += f", cp {step.cp}, dp {step.dp}" + (f", ep {step.ep}" if step.ep > 1 else "")
    passes = f"{step.num_microbatches} micro-batch{'es' if step.num_microbatches != 1 else ''}"
    lines += [
        f"# {step.model.name}, {mesh}, {item.schedule}, ZeRO {step.zero_stage}, recompute {step.recompute}, "
        f"{step.precision.name}",
        f"# {step.global_batch_size} sequences of {step.seq_len} tokens, {passes} of "
        f"{step.micro_batch_size}, {'with' if item.contended else 'without'} contention on links",
        "#",
        f"  step                {format_time(item.step_s):>12}",
        f"  tokens/s/GPU        {item.tokens_per_s_per_gpu:>12.1f}",
        f"  model TFLOP/s/GPU   {item.flop_per_s_per_gpu / 1e12:>12.1f}",
        f"  MFU                 {item.mfu:>12.1%}  (causal attention counted: {item.mfu_causal:.1%})",
        f"  HFU                 {item.hfu:>12.1%}  (with what is recomputed)",
        "#",
        "# where the time goes (mean stage)",
    ]
    lines += [
        f"  {cause:<10} {format_time(seconds):>12} {seconds / item.step_s:>7.1%}  {meaning}"
        for cause, seconds, meaning in cause_meanings(item)
    ]
    lines += ["#", *_traffic_lines(item), *_memory_lines(item)]
    if item.task is not None:
        lines += ["#", *_task_lines(item)]
    lines += ["#", *gantt_lines(item, width)]
    lines += [f"# note: {note}" for note in item.notes]
    return "\n".join(lines) + "\n"


def cause_meanings(item: TrainingItem) -> list[tuple[str, float, str]]:
    """(cause, seconds of the mean stage, what it is) of the causes that take time."""
    seconds = ((cause, item.causes.get(cause, 0.0)) for cause in CAUSES)
    return [(cause, value, _MEANING.get(cause, "")) for cause, value in seconds if abs(value) > 1e-9 * item.step_s]


def _traffic_lines(item: TrainingItem) -> list[str]:
    sent = item.sent_bytes
    if not sent:
        return []
    lines = ["# what one GPU sends per step (of the stage that sends most)"]
    lines += [f"  {axis:<10} {nbytes / GIGA:>9.3f} GB" for axis, nbytes in sent.items()]
    return [*lines, "#"]


def _memory_lines(item: TrainingItem) -> list[str]:
    """The fullest stages first, their largest parts named."""
    memory = item.memory
    lines = [f"# memory of one GPU, of {memory.capacity / GIB:.1f} GiB"]
    ranked = sorted(memory.stages, key=lambda s: -s.peak)
    for stage in ranked[:4]:
        parts = sorted(stage.parts.items(), key=lambda p: -p[1])[:4]
        words = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts if value)
        lines.append(f"  stage {stage.stage:<4} {stage.peak / GIB:>8.1f} GiB  {words}")
    if len(ranked) > 4:
        lines.append(f"# and {len(ranked) - 4} stages with less")
    if not memory.fits:
        lines += [f"# does not fit; it would with {hint}" for hint in item.advice] or ["# does not fit"]
    return lines


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


def training_csv(items: Iterable[TrainingItem]) -> str:
    """One row per item, units in the columns."""
    return _csv([item.record() for item in items])


def memory_csv(items: Iterable[TrainingItem]) -> str:
    """One row per item, stage and part, in GiB."""
    rows = [
        {"item": item.name, "stage": stage.stage, "part": name, "GiB": value / GIB}
        for item in items
        for stage in item.memory.stages
        for name, value in [*stage.parts.items(), ("peak", stage.peak)]
    ]
    return _csv(rows)


MOST_TIMELINE_ROWS = 200_000
"""Longer timelines are not saved: 20 MB of text."""


def timeline_csv(items: Iterable[TrainingItem]) -> str:
    """What every stage does from when to when: a row per pass and transfer, items counted from 1.

    Items with more than `MOST_TIMELINE_ROWS` rows are left out.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["item", "stage", "stream", "name", "start_s", "end_s"])
    for number, item in enumerate(items, 1):
        t = item.timeline
        if t.rows > MOST_TIMELINE_ROWS:
            continue
        columns = (t.endpoint, t.stream, t.name_code, t.start_s, t.end_s)
        for stage, on, code, start, end in zip(*(column.tolist() for column in columns), strict=True):
            writer.writerow([number, stage, STREAMS[on], t.names[code], f"{start:.9g}", f"{end:.9g}"])
    return stream.getvalue()


def _csv(records: list[dict[str, object]]) -> str:
    stream = io.StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(stream, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in r.items()} for r in records)
    return stream.getvalue()
