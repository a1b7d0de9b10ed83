"""A prediction beside a measured curve as text: the table of sizes, one line of errors, CSV."""

from __future__ import annotations

from collections.abc import Iterable

from commsim.accuracy.compare import BAND_LABELS, BANDS, Comparison
from commsim.report.columns import csv_text
from commsim.report.tables import format_time_us
from commsim.units import microseconds

_ORIGINS = {
    "out_of_place": "",
    "in_place": ", in-place time",
    "busbw": ", time from bus bandwidth",
    "in_place_busbw": ", time from in-place bus bandwidth",
    "mixed": ", times of mixed origin",
}


def comparison_table(comparison: Comparison) -> str:
    """Predicted against measured time per size, then the MAPE by size band; ends with a newline."""
    c = comparison
    lines = [
        *names(c, _ORIGINS[c.measured.time_from]),
        f"# {'size':>10}  {'predicted':>10}  {'measured':>10}  {'error':>8}",
        f"# {'(B)':>10}  {'(us)':>10}  {'(us)':>10}  {'(%)':>8}",
    ]
    for size, predicted, measured, error, between in zip(
        c.size_bytes, c.predicted_s, c.measured_s, c.error, c.interpolated, strict=True
    ):
        mark = "  interpolated" if between else ""
        lines.append(
            f"{size:>12}  {format_time_us(predicted):>10}  {format_time_us(measured):>10}  {100 * error:>+8.1f}{mark}"
        )
    return "\n".join([*lines, summary_line(c), *remarks(c)]) + "\n"


def names(c: Comparison, origin: str = "") -> list[str]:
    """The two curves, a line each; `origin`: how the measured times came about."""
    measured = f"{c.measured.name} ({c.measured.source or 'no file'}){origin}"
    return [f"# predicted: {c.predicted.name}", f"# measured : {measured}"]


def summary_line(comparison: Comparison) -> str:
    """One line with the MAPE of all rows and by band, and the bias."""
    parts = [f"# MAPE {100 * comparison.mape:.1f} % over {comparison.n} sizes"]
    for name, _, _ in BANDS:
        mape = comparison.band_mape(name)
        parts.append(f"{BAND_LABELS[name]}: " + ("no rows" if mape is None else f"{100 * mape:.1f} %"))
    return "; ".join(parts) + f"; median log ratio {comparison.median_log_ratio:+.3f}"


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
