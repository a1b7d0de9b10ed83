"""Training steps, jobs, claims and traces on the page of a run: sentences that answer, and the sections under them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.report.page import Cell, Code, Facts, Part, Section, Text, picture, table
from commsim.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from commsim.scenario.chakra_result import TraceItem
    from commsim.scenario.jobs_result import JobsItem
    from commsim.scenario.training_result import TrainingItem
    from commsim.scenario.workload.claim import ClaimItem

GIB = 2.0**30


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


def jobs_answer(item: JobsItem) -> list[str]:
    """What each job loses to the others."""
    return [
        f"{row.job}: {row.collective} of {format_bytes(row.size_bytes)} on {row.n_ranks} ranks takes "
        f"{format_time(row.together_s)} beside the others and {format_time(row.alone_s)} alone, "
        f"{row.slowdown:.2f} times as long."
        for row in item.rows
    ]


def jobs_sections(item: JobsItem) -> list[Section]:
    """One row per job."""
    spread = item.repeats > 1
    columns = [
        "job", "collective", "algorithm", "ranks", "size", "start (us)", "alone (us)", "together (us)",
        *(["p99 (us)"] if spread else []), "slowdown", "meets on",
    ]  # fmt: skip
    rows = [
        (
            row.job, row.collective, row.algorithm, row.n_ranks, Cell(format_bytes(row.size_bytes), row.size_bytes),
            microseconds(row.start_s), microseconds(row.alone_s), microseconds(row.together_s),
            *([microseconds(row.p99_s or 0.0)] if spread else []), row.slowdown, row.meets_on or "no link",
        )
        for row in item.rows
    ]  # fmt: skip
    links = "FIFO links" if item.contention == "fifo" else "fair sharing"
    note = f"{links}; slowdown: time together over time alone."
    return [Section("Jobs beside each other", (table(columns, rows, note),))]


def claims_answer(items: tuple[ClaimItem, ...]) -> list[str]:
    """How many hold."""
    return [f"{sum(item.holds for item in items)} of {len(items)} claims hold."] if items else []


def claims_sections(items: tuple[ClaimItem, ...]) -> list[Section]:
    """What is said, by whom, what comes out, and the verdict."""
    parts: list[Part] = []
    for item in items:
        facts = (
            ("source", item.source),
            ("printed", f"{' to '.join(f'{v:.6g}' for v in item.printed)} {item.unit}".strip()),
            ("computed", f"{item.value:.6g} {item.unit}".strip()),
            ("verdict", item.verdict),
        )
        parts += [Text(item.text), Facts(facts)]
    return [Section("Claims", tuple(parts))] if items else []


def traces_answer(item: TraceItem) -> list[str]:
    """The time, what it is spent on, and what limits it."""
    exposed = item.mean("exposed") / item.seconds if item.seconds else 0.0
    return [
        f"{item.name}: {format_time(item.seconds)} on {len(item.ranks)} ranks; exposed communication takes "
        f"{exposed:.1%} of the mean rank's time.",
        f"Bottleneck: {item.bottleneck}.",
    ]


def traces_sections(item: TraceItem) -> list[Section]:
    """Where the time of the mean rank goes, the critical path, the calls, and every rank."""
    from commsim.report.chakra import MEANINGS
    from commsim.report.chakra_plot import plot_ranks

    total = item.seconds or 1.0
    parts = [(name, microseconds(item.mean(p)), 100 * item.mean(p) / total, meaning) for name, p, meaning in MEANINGS]
    path = [(what, microseconds(s), 100 * s / total, count) for what, s, count in item.path]
    calls = [
        (row.call, row.ranks, Cell(format_bytes(row.nbytes), row.nbytes), row.count, microseconds(row.mean),
         microseconds(row.most), microseconds(row.total))
        for row in item.calls
    ]  # fmt: skip
    ranks = [
        (row.rank, *(microseconds(v) for v in (row.compute, row.communication, row.exposed, row.idle, row.end)))
        for row in item.ranks
    ]
    return [
        Section(
            "Where the time goes",
            (
                picture(plot_ranks(item), "What every rank spends the time on."),
                table(["part", "mean rank (us)", "share (%)", "what"], parts),
            ),
        ),
        Section("Critical path", (table(["what", "time (us)", "share (%)", "operations"], path),)),
        Section("Calls", (table(["call", "ranks", "size", "calls", "mean (us)", "longest (us)", "all (us)"], calls),)),
        Section("Ranks", (table(["rank", "compute (us)", "communication (us)", "exposed (us)", "idle (us)",
                                 "end (us)"], ranks),)),
    ]  # fmt: skip


def sureness(trainings: int, claims: int, traces: int) -> list[Part]:
    """Where the error of each kind is counted."""
    parts: list[Part] = []
    if trainings:
        parts.append(
            Text(
                "How far off predicted training steps are, over published ones: page Accuracy of training steps "
                "(docs/accuracy-training.md), counted by commsim validate training."
            )
        )
    if claims:
        parts.append(Text("A verdict is the computed value against the printed one, within the claim's tolerance."))
    if traces:
        parts.append(
            Text(
                "Compute takes what the traces state, or at least what a datasheet allows; each call takes what the "
                "model of NCCL predicts, whose error over published curves is on the page Accuracy (docs/accuracy.md), "
                "counted by commsim validate collectives. Replayed traces as a whole were not compared with measured "
                "ones."
            )
        )
    return parts
