"""Predictions beside measured curves: tables, CSV, verdicts, and the page that says whether all is as it should be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

import commsim
from commsim.accuracy.compare import BAND_LABELS, BANDS, Comparison
from commsim.accuracy.healthy import RARE
from commsim.accuracy.posterior import AS_PREDICTED
from commsim.accuracy.verdict import DEFAULT_BAND, Verdict
from commsim.accuracy.whatif import Tried, named
from commsim.report.page import Cell, Column, Facts, Page, Part, Section, Text, plot, size_cell, table
from commsim.report.tables import aligned, csv_text, fitted, format_time_us
from commsim.units import GIGA, MOST_TIMES, format_size, microseconds

_ORIGINS = {
    "out_of_place": "",
    "in_place": ", in-place time",
    "busbw": ", time from bus bandwidth",
    "in_place_busbw": ", time from in-place bus bandwidth",
    "mixed": ", times of mixed origin",
}


def comparison_table(comparison: Comparison, *, raw: bool = False) -> str:
    """Predicted against measured time per size (`raw`: in bytes), then the MAPE by size band; ends with a newline."""
    c = comparison
    lines = [
        *names(c, _ORIGINS[c.measured.time_from]),
        f"# {'size':>10}  {'predicted':>10}  {'measured':>10}  {'error':>8}",
        f"# {'(B)' if raw else '':>10}  {'(us)':>10}  {'(us)':>10}  {'(%)':>8}",
    ]
    for size, predicted, measured, error, between in zip(
        c.size_bytes, c.predicted_s, c.measured_s, c.error, c.interpolated, strict=True
    ):
        mark = "  interpolated" if between else ""
        times = f"{format_time_us(predicted):>10}  {format_time_us(measured):>10}"
        lines.append(f"{size_text(size, raw):>12}  {times}  {100 * error:>+8.1f}{mark}")
    return "\n".join([*lines, summary_line(c), *remarks(c)]) + "\n"


def size_text(nbytes: int, raw: bool) -> str:
    """A size as people say it, or in bytes."""
    return str(nbytes) if raw else format_size(int(nbytes))


def names(c: Comparison, origin: str = "") -> list[str]:
    """The two curves, a line each; `origin`: how the measured times came about."""
    measured = f"{c.measured.name} ({c.measured.source or 'no file'}){origin}"
    return [f"# predicted: {c.predicted.name}", f"# measured : {measured}"]


def summary_line(comparison: Comparison) -> str:
    """One line with the MAPE of all rows and by band, and the bias."""
    parts = [f"# MAPE {_percent(comparison.mape)} % over {comparison.n} sizes"]
    for name, _, _ in BANDS:
        mape = comparison.band_mape(name)
        parts.append(f"{BAND_LABELS[name]}: " + ("no rows" if mape is None else f"{_percent(mape)} %"))
    return "; ".join(parts) + f"; median log ratio {comparison.median_log_ratio:+.3f}"


def _percent(share: float, sign: str = "") -> str:
    """A share in percent, an absurd one capped as ratios are."""
    return f"> {100 * MOST_TIMES}" if share > MOST_TIMES else f"{100 * share:{sign}.1f}"


def remarks(c: Comparison) -> list[str]:
    """What was not compared or read, and the notes."""
    lines = [f"# not compared: {c.outside} measured sizes outside the predicted range"] if c.outside else []
    if c.measured.skipped_lines:
        lines.append(f"# not read: {c.measured.skipped_lines} lines of the log that look like rows")
    return lines + [f"# note: {note}" for note in (*c.measured.notes, *c.notes)]


def comparison_csv(comparisons: Iterable[Comparison]) -> str:
    """The rows of several comparisons as one CSV table."""
    header = ("predicted", "measured", "size_bytes", "predicted_us", "measured_us", "error_percent", "interpolated")
    rows = [
        (c.predicted.name, c.measured.name, size, microseconds(predicted), microseconds(measured), 100 * error, between)
        for c in comparisons
        for size, predicted, measured, error, between in zip(
            c.size_bytes, c.predicted_s, c.measured_s, c.error, c.interpolated.astype(int), strict=True
        )
    ]
    return csv_text([header, *rows])


Judged: TypeAlias = tuple[Verdict, Sequence[Tried]]


MOST_CAUSES = 3


def answer_line(verdict: Verdict, tried: Sequence[Tried]) -> str:
    """The verdict in one line, with the causes that are most probable."""
    alike = named(tried)[:MOST_CAUSES]
    if tried and not alike and verdict.state in ("slower", "faster"):
        return f"{verdict.sentence()}; no cause that is known fits well enough"
    return verdict.sentence(", or ".join(f"{t.cause} ({chance(t)}, {fit(t)})" for t in alike))


def chance(tried: Tried) -> str:
    """How probable a what-if is, among all tried."""
    return f"{100 * tried.probability:.0f} %"


def fit(tried: Tried) -> str:
    """How far the curve still is from a what-if, as a mean factor in percent: less is nearer."""
    return f"off by {100 * np.expm1(tried.score):.0f} %"


def speed_text(speed: float) -> str:
    """GB/s with two decimals, and with two digits where those would be lost: small messages have a speed too.

    >>> speed_text(457.606), speed_text(0.000517)
    ('457.61', '0.00052')
    """
    return f"{speed:.{max(2, 1 - math.floor(math.log10(speed)))}f}" if speed > 0 else "0"


def bus_bandwidths(verdict: Verdict) -> list[tuple[float, float, float]]:
    """GB/s at each size: what was measured, and the slowest and the quickest that are expected."""
    c = verdict.comparison
    factor = c.measured.factor()
    times = (c.measured_s, c.predicted_s * verdict.high, c.predicted_s * verdict.low)
    return list(zip(*((c.size_bytes * factor / GIGA / time).tolist() for time in times), strict=True))


def verdict_table(verdict: Verdict, tried: Sequence[Tried] = (), *, raw: bool = False) -> str:
    """Predicted and measured time, bus bandwidth, band and verdict of every size (`raw`: in bytes), and a newline."""
    c = verdict.comparison
    speeds, expected = [], []
    for speed, slow, fast in bus_bandwidths(verdict):
        speeds.append(speed_text(speed))
        expected.append(f"{speed_text(slow)} .. {speed_text(fast)}")
    bytes_unit = "(B)" if raw else ""
    rows = [
        (f"# {'size':>10}", f"{'predicted':>10}", f"{'measured':>10}", f"{'busbw':>8}", f"{'error':>7}",
         f"{'expected busbw':>16}", "verdict"),
        (f"# {bytes_unit:>10}", "(us)", "(us)", "(GB/s)", "(%)", "(GB/s)", ""),
    ]  # fmt: skip
    for i, size in enumerate(c.size_bytes):
        mark = "  (prediction interpolated)" if c.interpolated[i] else ""
        times = (format_time_us(c.predicted_s[i]), format_time_us(c.measured_s[i]))
        error, word = _percent(c.error[i], "+"), f"{verdict.of_size(i)}{mark}"
        rows.append((size_text(size, raw), *times, speeds[i], error, expected[i], word))
    lines = [summary_line(c)]
    if verdict.assumed:
        lines.append(f"# the prediction has no band of its own; {100 * DEFAULT_BAND:.0f} % either way is taken")
    if tried:
        lines.append("# causes tried: how probable each is among them, and how far off its times still are (less fits)")
    lines += [f"# {'' if t.cause == AS_PREDICTED else 'what if '}{t.cause}: {chance(t)}, {fit(t)}" for t in tried]
    if tried:
        lines.append(f"# none of these: {_none_of_these(tried)[0]}")
    lines += remarks(c)
    return "\n".join([*names(c), *aligned(rows, (6,), spare=(5, 3)), *fitted(lines)]) + "\n"


def _none_of_these(tried: Sequence[Tried]) -> tuple[str, float]:
    """How probable a cause is that was not tried."""
    left = 1.0 - sum(t.probability for t in tried)
    return f"{100 * left:.0f} %", left


def verdict_dict(verdict: Verdict, tried: Sequence[Tried]) -> dict[str, Any]:
    """The verdict as plain values, for JSON."""
    c = verdict.comparison
    return {
        "answer": answer_line(verdict, tried),
        "state": verdict.state,
        "healthy_as_slow": {part.name: part.as_slow for part in verdict.parts},
        "parts": {part.name: part.state for part in verdict.parts},
        "wrong_sizes": c.measured.wrong_rows,
        "sizes": [
            {
                "size_bytes": int(size),
                "predicted_us": 1e6 * float(c.predicted_s[i]),
                "measured_us": 1e6 * float(c.measured_s[i]),
                "low": float(verdict.low[i]),
                "high": float(verdict.high[i]),
                "verdict": verdict.of_size(i),
            }
            for i, size in enumerate(c.size_bytes)
        ],
        "what_if": [
            {"cause": t.cause, "kind": t.kind, "probability": t.probability, "mean_log_error": t.score} for t in tried
        ],
    }


def compare_page(results: Sequence[Judged], title: str, said: Sequence[str] = ()) -> Page:
    """The page of verdicts with the what-ifs that were tried; `said` comes before them."""
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
        warnings=(*said, *_warnings(comparisons)),
        provenance=f"{len(results)} comparison{'s' if len(results) != 1 else ''}.",
    )


def _picture(comparisons: Sequence[Comparison], collective: str) -> Section:
    from commsim.report.plots import comparison_chart

    mine = [c for c in comparisons if c.measured.collective == collective]
    chart = comparison_chart(mine, f"{collective}, measured and predicted")
    caption = "Bus bandwidth and time against message size; below, how far the prediction is off."
    return Section(f"{collective}: measured and predicted", (plot(chart, caption),))


def _parts(verdict: Verdict, tried: Sequence[Tried]) -> list[Part]:
    c = verdict.comparison
    rows = [
        (
            size_cell(c.size_bytes[i]), Cell(verdict.of_size(i), verdict.ratio[i]),
            microseconds(c.measured_s[i]), microseconds(c.predicted_s[i]), 100 * c.error[i],
            Cell(speed_text(speed), speed), Cell(f"{speed_text(slow)} to {speed_text(fast)}", slow),
            "prediction interpolated" if c.interpolated[i] else "",
        )
        for i, (speed, slow, fast) in enumerate(bus_bandwidths(verdict))
    ]  # fmt: skip
    columns: list[str | Column] = [
        Column("size", number=True), "verdict", "measured (us)", "predicted (us)",
        "error of the prediction (%)",
        Column("measured busbw (GB/s)", number=True), Column("expected busbw (GB/s)", number=True), "note",
    ]  # fmt: skip
    shown = len(columns) if c.interpolated.any() else len(columns) - 1
    parts: list[Part] = [table(columns[:shown], [row[:shown] for row in rows])]
    if tried:
        text = "What-if simulations that make this curve more probable than the prediction does, the likeliest first:"
        fits: list[tuple[str, Cell, Cell | str]] = [
            (t.cause, Cell(chance(t), t.probability), Cell(fit(t), t.score)) for t in tried
        ]
        fits.append(("none of these", Cell(*_none_of_these(tried)), ""))
        parts += [Text(text), table(["what if", "probability", "how far off it is"], fits)]
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
    if any(v.parts for v, _ in results):
        text = (
            "The verdict on the whole curve holds its median time above 1 MiB, above 64 MiB, and up to 1 MiB, over the "
            "predicted one against those of published machines that are known to be healthy, of one node where it is "
            f"one. Slower is what fewer than {100 * RARE['large']:g} % of them are (small messages: "
            f"{100 * RARE['small']:g} %). "
            "docs/accuracy-verdicts.md counts how often such a verdict is wrong."
        )
        parts.append(Text(text))
    if any(v.assumed for v, _ in results):
        text = f"Where a prediction has no band of its own, {100 * DEFAULT_BAND:.0f} % either way is taken."
        parts.append(Text(text))
    if any(tried for _, tried in results):
        text = (
            "A probability is that among the causes tried and none of them, each kind before as probable as published "
            "degraded machines make it: a hint where to look, not a proof. docs/accuracy-verdicts.md counts how often "
            "the true cause is named."
        )
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
