"""The page of a comparison: is each measured curve as it should be, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import commsim
from commsim.accuracy.compare import Comparison
from commsim.accuracy.verdict import DEFAULT_BAND, Verdict
from commsim.accuracy.whatif import Tried
from commsim.report.page import Cell, Column, Facts, Page, Part, Section, Text, picture, table
from commsim.report.verdict import answer_line, fit, speed_text
from commsim.units import format_bytes, gb_per_s, microseconds

Judged: TypeAlias = tuple[Verdict, Sequence[Tried]]


def compare_page(results: Sequence[Judged], title: str) -> Page:
    """The page of verdicts with the what-ifs that were tried."""
    comparisons = [verdict.comparison for verdict, _ in results]
    several = len({c.predicted.name for c in comparisons}) > 1
    answers = [
        answer_line(verdict, tried) + (f" (against {verdict.comparison.predicted.name})" if several else "")
        for verdict, tried in results
    ]
    sections = [_pictures(comparisons, collective) for collective in dict.fromkeys(_collectives(comparisons))]
    for verdict, tried in results:
        sections.append(Section(_title(verdict.comparison, several), tuple(_parts(verdict, tried))))
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


def _collectives(comparisons: Sequence[Comparison]) -> list[str]:
    return [c.measured.collective for c in comparisons]


def _title(comparison: Comparison, several: bool) -> str:
    return comparison.measured.name + (f" against {comparison.predicted.name}" if several else "")


def _pictures(comparisons: Sequence[Comparison], collective: str) -> Section:
    from commsim.report.plots import plot_comparisons

    mine = [c for c in comparisons if c.measured.collective == collective]
    figure = plot_comparisons(mine, f"{collective}, measured and predicted")
    caption = "Bus bandwidth against message size; below, how far the prediction is off. Shaded: what is expected."
    return Section(f"{collective}: measured and predicted", (picture(figure, caption),))


def _parts(verdict: Verdict, tried: Sequence[Tried]) -> list[Part]:
    c = verdict.comparison
    factor = c.measured.factor() if c.measured.n_ranks else c.predicted.factor()
    rows = []
    for i, size in enumerate(c.size_bytes):
        speed = gb_per_s(float(size) * factor)
        slow, fast = (speed / (c.predicted_s[i] * side[i]) for side in (verdict.high, verdict.low))
        reached, ratio = float(speed / c.measured_s[i]), float(verdict.ratio[i])
        rows.append(
            (
                Cell(format_bytes(int(size)), float(size)), Cell(verdict.of_size(i), ratio),
                microseconds(float(c.measured_s[i])), microseconds(float(c.predicted_s[i])), 100 * (ratio - 1),
                Cell(speed_text(reached), reached), Cell(f"{speed_text(slow)} to {speed_text(fast)}", float(slow)),
                "prediction interpolated" if c.interpolated[i] else "",
            )
        )  # fmt: skip
    columns: list[str | Column] = [
        Column("size", number=True), "verdict", "measured (us)", "predicted (us)",
        "time against predicted (%)",
        Column("measured busbw (GB/s)", number=True), Column("expected busbw (GB/s)", number=True), "note",
    ]  # fmt: skip
    shown = len(columns) if c.interpolated.any() else len(columns) - 1
    parts: list[Part] = [table(columns[:shown], [row[:shown] for row in rows])]
    if tried:
        parts.append(
            Text("What-if simulations that fit this curve clearly better than the prediction, the best first:")
        )
        parts.append(table(["what if", "how well it fits"], [(t.cause, Cell(fit(t), t.score)) for t in tried]))
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
        parts.append(
            Text(
                "A size is as expected within the band of the prediction. It is meant to hold eight of ten "
                "measurements of the kind: published ones of the same GPU generation and kind of link, each predicted "
                "without any of its own system, or the sizes that a calibration had not seen. A wide band says that "
                "machines of the kind differ."
            )
        )
    if any(v.assumed for v, _ in results):
        parts.append(
            Text(f"Where a prediction has no band of its own, {100 * DEFAULT_BAND:.0f} % either way is taken.")
        )
    if any(tried for _, tried in results):
        parts.append(
            Text("A cause is the what-if that fits best of those tried; it is a hint where to look, not a proof.")
        )
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
        said = ", ".join(f"{k} {v}" for k, v in c.measured.conditions.items() if v)
        ranks = "unknown ranks" if c.measured.n_ranks is None else f"{c.measured.n_ranks} ranks"
        what = f"{c.measured.collective} on {ranks}, {c.measured.time_from.replace('_', ' ')} times"
        facts.append(("measured", "; ".join(t for t in (c.measured.source or c.measured.name, what, said) if t)))
        facts.append(("predicted", "; ".join(t for t in (c.predicted.name, c.predicted.source) if t)))
    return tuple(dict.fromkeys(facts))
