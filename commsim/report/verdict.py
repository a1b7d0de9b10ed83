"""Verdicts as text: the answer first, then every size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from commsim.accuracy.verdict import DEFAULT_BAND, Verdict
from commsim.accuracy.whatif import AS_PREDICTED, Tried
from commsim.report.comparisons import names, remarks, summary_line
from commsim.report.tables import format_time_us
from commsim.units import GIGA


def answer_line(verdict: Verdict, tried: Sequence[Tried]) -> str:
    """The verdict in one line, with the what-if that fits best."""
    # Causes that fit alike cannot be told apart by this curve.
    alike = [t for t in tried if t.score <= 1.25 * tried[0].score and t.cause != AS_PREDICTED][:3]
    return verdict.sentence(f"{', or '.join(t.cause for t in alike)} ({fit(tried[0])})" if tried else "")


def fit(tried: Tried) -> str:
    """How far the curve is from a what-if, as a mean factor in percent."""
    return f"fits to {100 * np.expm1(tried.score):.0f} %"


def speed_text(speed: float) -> str:
    """GB/s with two decimals, and with two digits where those would be lost: small messages have a speed too.

    >>> speed_text(457.606), speed_text(0.000517)
    ('457.61', '0.00052')
    """
    return f"{speed:.{max(2, 1 - math.floor(math.log10(speed)))}f}" if speed > 0 else "0"


def bus_bandwidths(verdict: Verdict) -> list[tuple[float, float, float]]:
    """GB/s at each size: what was measured, and the slowest and the quickest that are expected."""
    c = verdict.comparison
    factor = c.measured.factor() if c.measured.n_ranks else c.predicted.factor()
    times = (c.measured_s, c.predicted_s * verdict.high, c.predicted_s * verdict.low)
    return list(zip(*((c.size_bytes * factor / GIGA / time).tolist() for time in times), strict=True))


def verdict_table(verdict: Verdict, tried: Sequence[Tried] = ()) -> str:
    """Predicted and measured time, bus bandwidth, band and verdict of every size; ends with a newline."""
    c = verdict.comparison
    speeds, expected = [], []
    for speed, slow, fast in bus_bandwidths(verdict):
        speeds.append(speed_text(speed))
        expected.append(f"{speed_text(slow)} .. {speed_text(fast)}")
    one, both = (max(least, *map(len, texts)) for least, texts in ((8, speeds), (16, expected)))
    lines = [
        *names(c),
        f"# {'size':>10}  {'predicted':>10}  {'measured':>10}  {'busbw':>{one}}  {'error':>7}  "
        f"{'expected busbw':>{both}}  verdict",
        f"# {'(B)':>10}  {'(us)':>10}  {'(us)':>10}  {'(GB/s)':>{one}}  {'(%)':>7}  {'(GB/s)':>{both}}",
    ]
    for i, size in enumerate(c.size_bytes):
        mark = "  (prediction interpolated)" if c.interpolated[i] else ""
        lines.append(
            f"{size:>12}  {format_time_us(c.predicted_s[i]):>10}  {format_time_us(c.measured_s[i]):>10}  "
            f"{speeds[i]:>{one}}  {100 * c.error[i]:>+7.1f}  {expected[i]:>{both}}  {verdict.of_size(i)}{mark}"
        )
    lines.append(summary_line(c))
    if verdict.assumed:
        lines.append(f"# the prediction has no band of its own; {100 * DEFAULT_BAND:.0f} % either way is taken")
    lines += [f"# {'' if t.cause == AS_PREDICTED else 'what if '}{t.cause}: {fit(t)}" for t in tried]
    return "\n".join([*lines, *remarks(c)]) + "\n"


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
