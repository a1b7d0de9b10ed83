"""Verdicts as text: the answer first, then every size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from commsim.accuracy.verdict import DEFAULT_BAND, Verdict
from commsim.accuracy.whatif import AS_PREDICTED, Tried
from commsim.report.tables import format_time_us, summary_line
from commsim.units import gb_per_s


def answer_line(verdict: Verdict, tried: Sequence[Tried]) -> str:
    """The verdict in one line, with the what-if that fits best."""
    # Causes that fit alike cannot be told apart by this curve.
    alike = [t for t in tried if t.score <= 1.25 * tried[0].score and t.cause != AS_PREDICTED][:3]
    return verdict.sentence(f"{', or '.join(t.cause for t in alike)} ({fit(tried[0])})" if tried else "")


def fit(tried: Tried) -> str:
    """How far the curve is from a what-if, as a mean factor in percent."""
    return f"fits to {100 * np.expm1(tried.score):.0f} %"


def verdict_table(verdict: Verdict, tried: Sequence[Tried] = ()) -> str:
    """Predicted and measured time, bus bandwidth, band and verdict of every size; ends with a newline."""
    c = verdict.comparison
    factor = c.measured.factor() if c.measured.n_ranks else c.predicted.factor()
    lines = [
        f"# predicted: {c.predicted.name}",
        f"# measured : {c.measured.name} ({c.measured.source or 'no file'})",
        f"# {'size':>10}  {'predicted':>10}  {'measured':>10}  {'busbw':>8}  {'error':>7}  {'expected busbw':>16}  "
        "verdict",
        f"# {'(B)':>10}  {'(us)':>10}  {'(us)':>10}  {'(GB/s)':>8}  {'(%)':>7}  {'(GB/s)':>16}",
    ]
    for i, size in enumerate(c.size_bytes):
        speed = gb_per_s(float(size) * factor)
        slow, fast = (speed / (c.predicted_s[i] * side[i]) for side in (verdict.high, verdict.low))
        expected = f"{slow:.2f} .. {fast:.2f}"
        mark = "  (prediction interpolated)" if c.interpolated[i] else ""
        lines.append(
            f"{size:>12}  {format_time_us(c.predicted_s[i]):>10}  {format_time_us(c.measured_s[i]):>10}  "
            f"{speed / c.measured_s[i]:>8.2f}  {100 * c.error[i]:>+7.1f}  {expected:>16}  {verdict.of_size(i)}{mark}"
        )
    lines.append(summary_line(c))
    if verdict.assumed:
        lines.append(f"# the prediction has no band of its own; {100 * DEFAULT_BAND:.0f} % either way is taken")
    lines += [f"# {'' if t.cause == AS_PREDICTED else 'what if '}{t.cause}: {fit(t)}" for t in tried]
    if c.outside:
        lines.append(f"# not compared: {c.outside} measured sizes outside the predicted range")
    if c.measured.skipped_lines:
        lines.append(f"# not read: {c.measured.skipped_lines} lines of the log that look like rows")
    lines += [f"# note: {note}" for note in (*c.measured.notes, *c.notes)]
    return "\n".join(lines) + "\n"


def verdict_dict(verdict: Verdict, tried: Sequence[Tried]) -> dict[str, Any]:
    """The verdict as plain values, for JSON."""
    c = verdict.comparison
    return {
        "answer": answer_line(verdict, tried),
        "state": verdict.state,
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
        "what_if": [{"cause": t.cause, "mean_log_error": t.score} for t in tried],
    }
