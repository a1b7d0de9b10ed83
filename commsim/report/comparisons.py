"""A prediction beside a measured curve as text: the table of sizes, one line of errors, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from commsim.accuracy.compare import BAND_LABELS, BANDS, Comparison
from commsim.measure.records import Curve
from commsim.report.tables import exact, exact_us, format_time_us


def comparison_table(comparison: Comparison) -> str:
    """Predicted against measured time per size, then the MAPE by size band; ends with a newline."""
    c = comparison
    lines = [
        f"# predicted: {c.predicted.name}",
        f"# measured : {c.measured.name} ({c.measured.source or 'no file'}){_how(c.measured)}",
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
    lines.append(summary_line(c))
    if c.outside:
        lines.append(f"# not compared: {c.outside} measured sizes outside the predicted range")
    if c.measured.skipped_lines:
        lines.append(f"# not read: {c.measured.skipped_lines} lines of the log that look like rows")
    lines += [f"# note: {note}" for note in (*c.measured.notes, *c.notes)]
    return "\n".join(lines) + "\n"


def summary_line(comparison: Comparison) -> str:
    """One line with the MAPE of all rows and by band, and the bias."""
    parts = [f"# MAPE {100 * comparison.mape:.1f} % over {comparison.n} sizes"]
    for name, _, _ in BANDS:
        mape = comparison.band_mape(name)
        parts.append(f"{BAND_LABELS[name]}: " + ("no rows" if mape is None else f"{100 * mape:.1f} %"))
    return "; ".join(parts) + f"; median log ratio {comparison.median_log_ratio:+.3f}"


def _how(curve: Curve) -> str:
    origin = {
        "out_of_place": "",
        "in_place": "in-place time",
        "busbw": "time from bus bandwidth",
        "in_place_busbw": "time from in-place bus bandwidth",
        "mixed": "times of mixed origin",
    }[curve.time_from]
    return f", {origin}" if origin else ""


def comparison_csv(comparisons: Iterable[Comparison]) -> str:
    """The rows of several comparisons as one CSV table."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        [
            "predicted",
            "measured",
            "size_bytes",
            "predicted_us",
            "measured_us",
            "error_percent",
            "interpolated",
        ]
    )
    for c in comparisons:
        for size, predicted, measured, error, between in zip(
            c.size_bytes, c.predicted_s, c.measured_s, c.error, c.interpolated, strict=True
        ):
            writer.writerow(
                [
                    c.predicted.name,
                    c.measured.name,
                    int(size),
                    exact_us(predicted),
                    exact_us(measured),
                    exact(100 * error),
                    int(between),
                ]
            )
    return stream.getvalue()
