"""The page of a comparison: is each measured curve as it should be, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import commsim
from commsim.accuracy.compare import Comparison
from commsim.accuracy.verdict import DEFAULT_BAND, Verdict
from commsim.accuracy.whatif import Tried
from commsim.report.page import Cell, Column, Facts, Page, Part, Section, Text, picture, size_cell, table
from commsim.report.verdict import answer_line, bus_bandwidths, fit, speed_text
from commsim.units import microseconds

Judged: TypeAlias = tuple[Verdict, Sequence[Tried]]


def compare_page(results: Sequence[Judged], title: str) -> Page:
    """The page of verdicts with the what-ifs that were tried."""
    comparisons = [verdict.comparison for verdict, _ in results]
    several = len({c.predicted.name for c in comparisons}) > 1
    answers = [
        answer_line(verdict, tried) + (f" (against {verdict.comparison.predicted.name})" if several else "")
        for verdict, tried in results
    ]
    sections = [_picture(comparisons, name) for name in dict.fromkeys(c.measured.collective for c in comparisons)]
    for verdict, tried in results:
        against = f" against {verdict.comparison.predicted.name}" if several else ""
        sections.append(Section(verdict.comparison.measured.name + against, tuple(_parts(verdict, tried))))
    sections += [
        Section("How sure this is", tuple(_sureness(results))),
        Section("Where the figures come from", (Facts(_provenance(comparisons)),)),
    ]
    return Page(
        title=title,
        question="Is this bandwidth as it should be?" if len(results) == 1 else "Are these as they should be?",
        answer=tuple(answers),
        sections=tuple(sections),
        warnings=tuple(_warnings(comparisons)),
        provenance=f"{len(results)} comparison{'s' if len(results) != 1 else ''}.",
    )


def _picture(comparisons: Sequence[Comparison], collective: str) -> Section:
    from commsim.report.plots import plot_comparisons

    mine = [c for c in comparisons if c.measured.collective == collective]
    figure = plot_comparisons(mine, f"{collective}, measured and predicted")
    caption = "Bus bandwidth against message size; below, how far the prediction is off. Shaded: what is expected."
    return Section(f"{collective}: measured and predicted", (picture(figure, caption),))


def _parts(verdict: Verdict, tried: Sequence[Tried]) -> list[Part]:
    c = verdict.comparison
    rows = [
        (
            size_cell(c.size_bytes[i]), Cell(verdict.of_size(i), verdict.ratio[i]),
            microseconds(c.measured_s[i]), microseconds(c.predicted_s[i]), 100 * (verdict.ratio[i] - 1),
            Cell(speed_text(speed), speed), Cell(f"{speed_text(slow)} to {speed_text(fast)}", slow),
            "prediction interpolated" if c.interpolated[i] else "",
        )
        for i, (speed, slow, fast) in enumerate(bus_bandwidths(verdict))
    ]  # fmt: skip
    columns: list[str | Column] = [
        Column("size", number=True), "verdict", "measured (us)", "predicted (us)",
        "time against predicted (%)",
        Column("measured busbw (GB/s)", number=True), Column("expected busbw (GB/s)", number=True), "note",
    ]  # fmt: skip
    shown = len(columns) if c.interpolated.any() else len(columns) - 1
    parts: list[Part] = [table(columns[:shown], [row[:shown] for row in rows])]
    if tried:
        text = "What-if simulations that fit this curve clearly better than the prediction, the best first:"
        fits = [(t.cause, Cell(fit(t), t.score)) for t in tried]
        parts += [Text(text), table(["what if", "how well it fits"], fits)]
    return parts


def _sureness(results: Sequence[Judged]) -> list[Part]:
    rows = [
        (c.measured.name, c.predicted.name, c.n, 100 * c.mape, c.median_log_ratio, v.state)
        for v, _ in results
        for c in [v.comparison]
    ]
    note = "MAPE: mean of |predicted - measured| / measured over the sizes. Median log ratio: 0.1 is 10 % too slow."
    head = ["measured", "predicted", "sizes", "MAPE (%)", "median log ratio", "verdict"]
    parts: list[Part] = [table(head, rows, note)]
    if any(not v.assumed for v, _ in results):
        text = (
            "A size is as expected within the band of the prediction. It is meant to hold eight of ten measurements of "
            "the kind: published ones of the same GPU generation and kind of link, each predicted without any of its "
            "own system, or the sizes that a calibration had not seen. A wide band says that machines of the kind "
            "differ."
        )
        parts.append(Text(text))
    if any(v.assumed for v, _ in results):
        text = f"Where a prediction has no band of its own, {100 * DEFAULT_BAND:.0f} % either way is taken."
        parts.append(Text(text))
    if any(tried for _, tried in results):
        text = "A cause is the what-if that fits best of those tried; it is a hint where to look, not a proof."
        parts.append(Text(text))
    return parts


def _warnings(comparisons: Sequence[Comparison]) -> list[str]:
    texts = []
    for c in comparisons:
        if c.outside:
            texts.append(f"{c.measured.name}: {c.outside} measured sizes outside the predicted range are not compared")
        if c.measured.skipped_lines:
            texts.append(f"{c.measured.name}: {c.measured.skipped_lines} lines that look like rows could not be read")
        texts += [f"{c.measured.name}: {note}" for note in (*c.measured.notes, *c.notes)]
    return list(dict.fromkeys(texts))


def _provenance(comparisons: Sequence[Comparison]) -> tuple[tuple[str, str], ...]:
    facts = [("commsim", commsim.__version__)]
    for c in comparisons:
        m = c.measured
        conditions = ", ".join(f"{name} {value}" for name, value in m.conditions.items() if value)
        ranks = "unknown ranks" if m.n_ranks is None else f"{m.n_ranks} ranks"
        call = f"{m.collective} on {ranks}, {m.time_from.replace('_', ' ')} times"
        facts.append(("measured", "; ".join(t for t in (m.source or m.name, call, conditions) if t)))
        facts.append(("predicted", "; ".join(t for t in (c.predicted.name, c.predicted.source) if t)))
    return tuple(dict.fromkeys(facts))
