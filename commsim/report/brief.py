"""A result in a few lines, where tables would fill screens."""

from __future__ import annotations

from commsim.report.view import Shown
from commsim.units import format_size, format_time, gb_per_s


def brief_lines(shown: Shown) -> list[str]:
    """How far off a result is from each of its measured curves, and what its largest sizes take."""
    lines = []
    for comparison in shown.comparisons:
        large = comparison.band_mape("above_64mib")
        above = "" if large is None else f", {100 * large:.1f} % above 64 MiB"
        lines.append(
            f"{shown.result.name}: {100 * comparison.mape:.1f} % off its measured curve, {comparison.n} sizes{above}"
        )
    for item in shown.result.items:
        if item.rows:
            row = item.rows[-1]
            how = " ".join(word for word in (row.algorithm, row.protocol) if word)
            lines.append(
                f"  {item.collective} of {format_size(row.size_bytes)}: {format_time(row.time_s)}, "
                f"{gb_per_s(row.busbw):.1f} GB/s bus bandwidth, {how}, bound by {row.bottleneck}"
            )
    return lines
