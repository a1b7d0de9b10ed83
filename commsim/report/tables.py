"""Rows as text: the table of nccl-tests, and CSV with units in its columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from commsim.measure.records import RESULT_COLUMNS
from commsim.scenario.item import Item, Row
from commsim.units import format_bytes, gb_per_s, microseconds

_LEFT = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw")
_UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)")
_WIDTHS = (12, 12, 8, 6, 6, 7, 6, 6)


def format_time_us(seconds: float) -> str:
    """Microseconds as nccl-tests prints them: two decimals below 100, one below 10000, then none."""
    time = microseconds(seconds)
    return f"{time:.2f}" if time < 99.995 else f"{time:.1f}" if time < 9999.95 else f"{time:.0f}"


def result_table(item: Item, heading: Iterable[str] = ()) -> str:
    """One curve in the shape of nccl-tests output, with how each time came about; ends with a newline.

    Lines that start with ``#`` are no rows; `heading` lines stand before the header.
    """
    more = {
        "algorithm": [row.algorithm or "-" for row in item.rows],
        "protocol": [row.protocol or "-" for row in item.rows],
        "channels": [str(row.channels) if row.channels else "-" for row in item.rows],
        "bound": [_optional_time(row.lower_bound_s) for row in item.rows],
    }
    if any(row.p99_s is not None for row in item.rows):
        more["p99"] = [_optional_time(row.p99_s) for row in item.rows]
    widths = {name: max([len(name), *(len(v) for v in values)]) for name, values in more.items()}
    header = _line(_LEFT, widths, list(more)) + "  bottleneck"
    units = _line(_UNITS, widths, ["", "", "", *["(us)"] * (len(more) - 3)])
    lines = [f"# {text}".rstrip() for text in heading]
    lines += ["#" + header[1:], "#" + units[1:].rstrip()]
    for i, row in enumerate(item.rows):
        left = (
            str(row.size_bytes),
            str(row.count),
            row.dtype,
            row.redop or "none",
            str(row.root),
            format_time_us(row.time_s),
            f"{gb_per_s(row.algbw):.2f}",
            f"{gb_per_s(row.busbw):.2f}",
        )
        text = _line(left, widths, [values[i] for values in more.values()])
        lines.append(f"{text}  {row.bottleneck}".rstrip())
    if item.rows:
        mean = float(np.mean([gb_per_s(row.busbw) for row in item.rows]))
        lines += [f"# Avg bus bandwidth    : {mean:g}", "#"]
    if note := falls_note(item):
        lines.append(f"# {note}")
    return "\n".join(lines) + "\n"


_FALL = 0.01
"""Smallest part of its time by which a larger message must be quicker to be worth a word."""

_MOST_FALLS = 3


def falls_note(item: Item) -> str:
    """Where a larger message takes less time since the library chooses otherwise for it; empty where none does."""
    if item.library == "none":  # nobody chooses, or we do, by the times themselves
        return ""
    changes = [
        f"{format_bytes(after.size_bytes)} ({_choice(before)}, then {_choice(after)})"
        for before, after in pairwise(item.rows)
        if after.time_s < (1 - _FALL) * before.time_s and _choice(before) != _choice(after)
    ]
    if not changes:
        return ""
    name = item.library.upper() if item.library == "nccl" else item.library
    more = f" and at {len(changes) - _MOST_FALLS} more sizes" if len(changes) > _MOST_FALLS else ""
    return (
        f"the time falls at {', '.join(changes[:_MOST_FALLS])}{more}: {name} changes its choice there by an estimate "
        "of its own, not by these times"
    )


def _choice(row: Row) -> str:
    channels = f"on {row.channels} channel{'s' if row.channels != 1 else ''}" if row.channels else ""
    return " ".join(word for word in (row.algorithm, row.protocol, channels) if word)


def _line(left: Sequence[str], widths: dict[str, int], right: Sequence[str]) -> str:
    first = "  ".join(f"{text:>{width}}" for text, width in zip(left, _WIDTHS, strict=True))
    rest = "  ".join(f"{text:>{width}}" for text, width in zip(right, widths.values(), strict=True))
    return f"{first}  {rest}"


def _optional_time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time_us(seconds)


def result_csv(items: Iterable[Item]) -> str:
    """The rows of several curves as one CSV table, units in its columns; `read_measured` reads it back."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(RESULT_COLUMNS)
    for item in items:
        for row in item.rows:
            writer.writerow(
                [
                    item.name,
                    item.collective,
                    item.n_ranks,
                    row.size_bytes,
                    row.count,
                    row.dtype,
                    row.redop,
                    row.root,
                    exact_us(row.time_s),
                    exact(gb_per_s(row.algbw)),
                    exact(gb_per_s(row.busbw)),
                    exact_us(row.low_s),
                    exact_us(row.high_s),
                    exact_us(row.lower_bound_s),
                    row.algorithm,
                    row.protocol,
                    row.channels or "",
                    row.bottleneck,
                ]
            )
    return stream.getvalue()


def exact_us(seconds: float | None) -> str:
    """Microseconds with nine digits; empty for None."""
    return "" if seconds is None else exact(microseconds(seconds))


def exact(value: float) -> str:
    """Nine digits."""
    return f"{float(value):.9g}"
