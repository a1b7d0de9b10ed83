"""The page of a run: what was predicted, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commsim.report.explain import answer as explained
from commsim.report.explain import why_sections
from commsim.report.page import Cell, Code, Facts, Page, Part, Section, Text, picture, table
from commsim.report.workload_sections import (
    claims_answer,
    claims_sections,
    jobs_answer,
    jobs_sections,
    sureness,
    traces_answer,
    traces_sections,
    training_answer,
    training_sections,
)
from commsim.units import format_bytes, format_time, gb_per_s, microseconds

if TYPE_CHECKING:
    from commsim.accuracy.compare import Comparison
    from commsim.planner.explain import Explanation
    from commsim.scenario.item import Item, Row
    from commsim.scenario.result import Result


def result_page(result: Result, comparisons: Sequence[Comparison], reasons: Sequence[Explanation] = ()) -> Page:
    """The page of a result, its comparisons with measured curves, and what bounds it and would help."""
    sections = [s for item in result.items for s in _item_sections(result, item, comparisons)]
    sections += [s for jobs in result.jobs for s in jobs_sections(jobs)]
    sections += [
        s for training in result.trainings for s in training_sections(training, alone=len(result.trainings) == 1)
    ]
    sections += claims_sections(result.claims)
    sections += [s for replayed in result.traces for s in traces_sections(replayed)]
    sections += why_sections(reasons)
    sections += [
        Section("How sure this is", tuple(_accuracy(result, comparisons))),
        Section("Scenario", (Code(result.resolved),)),
        Section("Where the figures come from", (Facts(_provenance(result)),)),
    ]
    return Page(
        title=result.name,
        question=_question(result),
        answer=(
            *explained(reasons),
            *(line for item in result.items for line in _answer(result, item, comparisons)),
            *(line for jobs in result.jobs for line in jobs_answer(jobs)),
            *(line for training in result.trainings for line in training_answer(training)),
            *claims_answer(result.claims),
            *(line for replayed in result.traces for line in traces_answer(replayed)),
        ),
        sections=tuple(sections),
        warnings=result.warnings,
        provenance=f"Scenario {result.scenario_hash}.",
    )


def _question(result: Result) -> str:
    if result.items:
        return "What should these collectives do on this machine?"
    if result.jobs:
        return "How much do these jobs slow each other?"
    if result.traces:
        return "How long do these traces take on this machine?"
    return "What does a training step cost?" if result.trainings else "Is it so?"


def _answer(result: Result, item: Item, comparisons: Sequence[Comparison]) -> list[str]:
    """The largest and the smallest size in a sentence each, then each measured curve in one."""
    if not item.rows:
        return [f"{item.collective}: no sizes."]
    where = f"{item.collective} on {_machine(result)}"
    small, large = item.rows[0], item.rows[-1]
    lines = [
        f"{where}: {gb_per_s(large.busbw):,.1f} GB/s bus bandwidth at {format_bytes(large.size_bytes)} "
        f"({format_time(large.time_s)}), bound by {large.bottleneck or 'nothing named'}."
    ]
    if len(item.rows) > 1:
        lines.append(f"At {format_bytes(small.size_bytes)} it takes {format_time(small.time_s)}.")
    for c in _of(item, comparisons):
        side = "slower" if c.median_log_ratio > 0 else "faster"
        lines.append(
            f"Against {c.measured.name}: off by {100 * c.mape:.1f} % on average over {c.n} sizes, "
            f"predicted mostly {side} than measured."
        )
    return lines


def _machine(result: Result) -> str:
    t = result.topology
    nodes = f"{t['nodes']} nodes of {t['ranks_per_node']}" if t["nodes"] != 1 else str(t["ranks_per_node"])
    return f"{nodes} {t['gpu']}"


def _of(item: Item, comparisons: Sequence[Comparison]) -> list[Comparison]:
    return [c for c in comparisons if any(c.measured is m for m in item.measured)]


def _item_sections(result: Result, item: Item, comparisons: Sequence[Comparison]) -> list[Section]:
    from commsim.report.crossover import crossover_lines, plot_crossover
    from commsim.report.plots import plot_bandwidth
    from commsim.report.tables import falls_note

    mine = _of(item, comparisons)
    parts: list[Part] = []
    if item.rows:
        figure = plot_bandwidth([item.curve()], list(item.measured), result.name, mine)
        parts.append(picture(figure, f"Bus bandwidth of {item.collective} against message size."))
        if any(row.candidates for row in item.rows):
            parts.append(picture(plot_crossover(item, result.name), "Time of every algorithm that can run."))
            parts += [Text(line.removeprefix("# ")) for line in crossover_lines(item)]
    columns = [
        "size", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "lower bound (us)", "eight of ten within (us)",
        "algorithm", "protocol", "channels", "bottleneck", "engine",
    ]  # fmt: skip
    note = falls_note(item)
    shown = table(columns, [_row(row) for row in item.rows], f"{note[:1].upper()}{note[1:]}." if note else "")
    sections = [Section(f"{item.collective}: prediction", (*parts, shown))]
    for c in mine:
        rows = [
            (
                _size(int(size)), microseconds(float(predicted)), microseconds(float(measured)), 100 * float(error),
                "interpolated" if between else "",
            )
            for size, predicted, measured, error, between in zip(
                c.size_bytes, c.predicted_s, c.measured_s, c.error, c.interpolated, strict=True
            )
        ]  # fmt: skip
        compared = table(["size", "predicted (us)", "measured (us)", "error (%)", "note"], rows)
        sections.append(Section(f"{item.collective}: against {c.measured.name}", (compared,)))
    return sections


def _row(row: Row) -> tuple[object, ...]:
    band = ""
    if row.low_s is not None and row.high_s is not None:
        band = f"{microseconds(row.low_s):,.1f} to {microseconds(row.high_s):,.1f}"
    bound = None if row.lower_bound_s is None else microseconds(row.lower_bound_s)
    return (
        _size(row.size_bytes), microseconds(row.time_s), gb_per_s(row.algbw), gb_per_s(row.busbw), bound, band,
        row.algorithm, row.protocol, row.channels or None, row.bottleneck, row.level,
    )  # fmt: skip


def _size(nbytes: int) -> Cell:
    return Cell(format_bytes(nbytes), float(nbytes))


def _accuracy(result: Result, comparisons: Sequence[Comparison]) -> list[Part]:
    """What is known of the error: by the curves compared here, and by all curves of the kind."""
    parts = sureness(len(result.trainings), len(result.claims), len(result.traces))
    if not result.items and not result.jobs:
        return parts
    if comparisons:
        rows = [(c.measured.name, c.n, 100 * c.mape, c.median_log_ratio) for c in comparisons]
        note = "MAPE: mean of |predicted - measured| / measured over the sizes. Median log ratio: 0.1 is 10 % too slow."
        parts.append(table(["measured curve", "sizes", "MAPE (%)", "median log ratio"], rows, note))
    banded = any(row.low_s is not None for item in result.items for row in item.rows)
    if banded:
        parts.append(
            Text(
                "The range beside each time holds eight of ten published measurements of the same GPU generation and "
                "kind of link, each predicted without any measurement of its own system."
            )
        )
    elif result.scenario.library.name == "none":
        parts.append(
            Text(
                "A raw schedule is simulated on ideal links: no launch, no protocol, no software. Libraries are slower."
            )
        )
    else:
        parts.append(Text("No published measurement of this kind was there to say how far off the prediction may be."))
    return parts


def _provenance(result: Result) -> tuple[tuple[str, str], ...]:
    parameters = dict.fromkeys(item.parameters for item in result.items if item.parameters)
    return (
        ("commsim", result.provenance["commsim"]),
        ("scenario", f"{result.provenance.get('source') or 'made in code'}, hash {result.scenario_hash}"),
        ("topology", f"{result.topology['name']}, {result.topology['ranks']} ranks"),
        *(("parameters", text) for text in parameters),
    )
