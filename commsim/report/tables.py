"""Tables: rows as columns of text and as CSV; collectives as nccl-tests prints them, with the use of the network."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any
from unicodedata import east_asian_width

import numpy as np

from commsim.files import safe_cell
from commsim.measure.records import RESULT_COLUMNS
from commsim.scenario.item import Item, Row
from commsim.units import format_bytes, format_size, gb_per_s, microseconds

_NARROWEST, _WIDEST = 60, 100

_LEAST_CELL = 12


def width() -> int:
    """Columns that a table or a comment of text has at most, where its cells let it: the terminal's, 60 to 100.

    ``COLUMNS`` says it too, as for other programs; where neither does (a pipe, a notebook), it is 100.
    """
    return min(max(get_terminal_size((_WIDEST, 24)).columns, _NARROWEST), _WIDEST)


def aligned(
    rows: Sequence[Sequence[str]],
    left: Container[int] = range(1),
    most: int | None = None,
    spare: Iterable[int] = (),
) -> list[str]:
    """A line per row, two spaces between its cells; columns whose numbers are `left` flush left, the others right.

    A last column of words goes on below itself where the line would be wider than `most` (`width`). Where that does not
    do, the columns of `spare` are left out, the first of them first, and a last line says which.
    """
    room = width() if most is None else most
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    kept, out = list(range(len(widths))), []
    for column in spare:
        if _least(widths, kept, left) <= room:
            break
        kept.remove(column)
        out.append(column)
    lines = _aligned([[row[i] for i in kept] for row in rows], [i for i, k in enumerate(kept) if k in left], room)
    if out:
        names = ", ".join(rows[0][i].strip(" #") for i in sorted(out))
        lines += wrap(f"# left out, {room} columns wide: {names}", room, subsequent_indent="#   ")
    return lines


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: characters of Chinese, Japanese and Korean take two.

    >>> columns("x8"), columns("机器")
    (2, 4)
    """
    return len(text) if text.isascii() else len(text) + sum(east_asian_width(c) in "WF" for c in text)


def _padded(cell: str, side: str, width: int) -> str:
    blanks = " " * (width - columns(cell))
    return cell + blanks if side == "<" else blanks + cell


def _least(widths: Sequence[int], kept: Sequence[int], left: Container[int]) -> int:
    """Columns that a table with some of its columns takes at least."""
    *before, last = kept
    end = min(widths[last], _LEAST_CELL) if last in left else widths[last]
    return sum(widths[i] + 2 for i in before) + end


def _aligned(rows: Sequence[Sequence[str]], left: Container[int], most: int) -> list[str]:
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    sides = [("<" if i in left else ">", each) for i, each in enumerate(widths)]
    room = most - sum(each + 2 for each in widths[:-1])
    folds = len(widths) - 1 in left and _LEAST_CELL <= room < widths[-1]
    lines = []
    for *cells, last in rows:
        first, *more = (wrap(last, room) or [""]) if folds else [last]
        padded = [_padded(cell, *each) for cell, each in zip((*cells, first), sides, strict=True)]
        lines += ["  ".join(padded).rstrip(), *(" " * (most - room) + text for text in more)]
    return lines


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short.

    >>> ranges([0, 1, 2, 3, 6])
    '0-3,6'
    """
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    return ",".join("-".join(map(str, part)) for part in parts)


def fitted(lines: Iterable[str]) -> list[str]:
    """Sentences on several lines where the terminal is narrower; whole where nothing says how wide: for scripts.

    Those that begin with ``#`` stay comments, others are indented below their first line; percents are kept whole.
    """
    if not get_terminal_size((0, 0)).columns:
        return list(lines)
    return [part for line in lines for part in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    if line[:2] == "# ":
        return comment(line[2:])
    whole = line.replace(" %", "\N{NO-BREAK SPACE}%")
    parts = wrap(whole, width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [part.replace("\N{NO-BREAK SPACE}%", " %") for part in parts] or [line]


def comment(text: str) -> list[str]:
    """The text as lines that begin with ``#`` and are at most `width` wide."""
    return wrap(text, width(), initial_indent="# ", subsequent_indent="#   ", break_long_words=False) or ["#"]


def hanging(head: str, text: str) -> list[str]:
    """The text behind a head, and below itself where it would be wider than `width`; a head of ``#`` is repeated."""
    first, *more = wrap(text, max(width() - len(head), _LEAST_CELL), break_on_hyphens=False) or [""]
    indent = head if head.startswith("#") else " " * len(head)
    return [head + first, *(indent + line for line in more)]


def folded(lines: Iterable[str]) -> list[str]:
    """The lines, those of comments that are wider than `width` on several."""
    most = width()
    whole = ([line] if line[:2] != "# " or len(line) <= most else comment(line[2:]) for line in lines)
    return [part for parts in whole for part in parts]


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """CSV of rows, the first of them the header: nine digits of floats, nothing for None, no formulas."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([f"{v:.9g}" if isinstance(v, float) else safe_cell(v) for v in row] for row in rows)
    return stream.getvalue()


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """CSV of rows as plain values, which need not all have the same names."""
    names = list(dict.fromkeys(name for record in records for name in record)) or ["item"]
    return csv_text([names, *([record.get(name) for name in names] for record in records)])


def format_time_us(seconds: float | None) -> str:
    """Microseconds as nccl-tests prints them: two decimals below 100, one below 10000, then none; ``-`` for None."""
    if seconds is None:
        return "-"
    time = microseconds(seconds)
    return f"{time:.2f}" if time < 99.995 else f"{time:.1f}" if time < 9999.95 else f"{time:.0f}"


def result_table(item: Item, heading: Iterable[str] = (), *, raw: bool = False) -> str:
    """One curve with how each time came about; ends with a newline. `raw`: in the shape of nccl-tests output, in bytes.

    Lines that start with ``#`` are no rows; `heading` lines stand before the header.
    """
    rows = item.rows
    head = [line for text in heading for line in comment(text)]
    header, units, *body = _in_bytes(rows) if raw else _in_words(rows)
    lines = [*head, "#" + header[1:], "#" + units[1:], *body]
    if rows:
        lines += [f"# Avg bus bandwidth    : {float(np.mean([gb_per_s(row.busbw) for row in rows])):g}", "#"]
    for note in (bound_note(item), falls_note(item), slowest_note(item)):
        lines += comment(note) if note else []
    return "\n".join(lines) + "\n"


_SPARE = ("root", "channels", "redop", "protocol", "bound", "algbw", "type", "algorithm")
"""Columns that a narrow terminal does without, in this order."""

_Column = tuple[str, str, int, list[str]]
"""Name, unit, width (0: as wide as needed), cells."""


def _in_words(rows: Sequence[Row]) -> list[str]:
    """Header, units and rows with sizes as people say them; what no row has is left out."""
    size: _Column = (" size", "", 0, [f" {format_size(row.size_bytes)}" for row in rows])
    several: list[_Column] = [
        (name, "", 0, cells)
        for name, cells in (
            ("type", [row.dtype for row in rows]),
            ("redop", [row.redop or "none" for row in rows]),
            ("root", [str(row.root) for row in rows]),
        )
        if len(set(cells)) > 1
    ]
    columns = [size, *several, *_times(rows)]
    shown = [column for column in columns if not column[3] or set(column[3]) != {"-"}]
    texts = [(name, unit, *cells) for name, unit, _, cells in shown]
    last = ("bottleneck", "", *(row.bottleneck for row in rows))
    names = [name for name, *_ in texts]
    spare = [names.index(name) for name in _SPARE if name in names]
    return aligned(list(zip(*texts, last, strict=True)), (len(texts),), spare=spare)


def _in_bytes(rows: Sequence[Row]) -> list[str]:
    """Header, units and rows as nccl-tests prints them."""
    columns: list[_Column] = [
        ("size", "(B)", 12, [str(row.size_bytes) for row in rows]),
        ("count", "(elements)", 12, [str(row.count) for row in rows]),
        ("type", "", 8, [row.dtype for row in rows]),
        ("redop", "", 6, [row.redop or "none" for row in rows]),
        ("root", "", 6, [str(row.root) for row in rows]),
        *_times(rows),
    ]
    widths = [width or max(map(len, (name, *cells))) for name, _, width, cells in columns]
    texts = zip(*((name, unit, *cells) for name, unit, _, cells in columns), strict=True)
    last = ("bottleneck", "", *(row.bottleneck for row in rows))
    return [
        "  ".join([*(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), end]).rstrip()
        for cells, end in zip(texts, last, strict=True)
    ]


def _times(rows: Sequence[Row]) -> list[_Column]:
    """What both tables have: times, bandwidths, and how they came about."""
    columns: list[_Column] = [
        ("time", "(us)", 7, [format_time_us(row.time_s) for row in rows]),
        ("algbw", "(GB/s)", 6, [f"{gb_per_s(row.algbw):.2f}" for row in rows]),
        ("busbw", "(GB/s)", 6, [f"{gb_per_s(row.busbw):.2f}" for row in rows]),
        ("algorithm", "", 0, [row.algorithm or "-" for row in rows]),
        ("protocol", "", 0, [row.protocol or "-" for row in rows]),
        ("channels", "", 0, [str(row.channels or "-") for row in rows]),
        ("bound", "(us)", 0, [format_time_us(row.lower_bound_s) for row in rows]),
    ]
    if any(row.p99_s is not None for row in rows):
        columns.append(("p99", "(us)", 0, [format_time_us(row.p99_s) for row in rows]))
    return columns


def bound_note(item: Item) -> str:
    """What the bound of the largest size is, and how far its time is above it; empty where none is known."""
    if not item.bound or not item.rows or not item.rows[-1].lower_bound_s:
        return ""
    row = item.rows[-1]
    return f"bound of {format_bytes(row.size_bytes)}: {item.bound}; the time is {row.over_bound:.2f} times the bound"


def slowest_note(item: Item) -> str:
    """Which NIC, way or node is slower than the rest and limits the larger sizes; empty where none does."""
    rows = [row for row in item.rows if row.limiting_place]
    if not rows:
        return ""
    places = list(dict.fromkeys(row.limiting_place for row in rows))
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return (
        f"slower than the rest, and the limit from {format_bytes(rows[0].size_bytes)} on: {', '.join(places[:3])}{more}"
    )


_FALL = 0.01
"""Smallest part of its time by which a larger message must be quicker to be worth a word."""

_DIP = 0.1
"""The same of its bandwidth, by which it must be lower."""

_MOST_FALLS = 3


def falls_note(item: Item) -> str:
    """Where a larger message takes less time, or has less bandwidth, since the library chooses otherwise for it.

    Empty where none does.
    """
    if item.library == "none":  # nobody chooses, or we do, by the times themselves
        return ""
    changed = [(a, b) for a, b in pairwise(item.rows) if _choice(a) != _choice(b)]
    quicker = [(a, b) for a, b in changed if b.time_s < (1 - _FALL) * a.time_s]
    dips = [(a, b) for a, b in changed if b.size_bytes / b.time_s < (1 - _DIP) * a.size_bytes / a.time_s]
    falls = (("time", quicker), ("bandwidth", dips))
    parts = [f"the {what} falls at {_places(pairs)}" for what, pairs in falls if pairs]
    if not parts:
        return ""
    name = item.library.upper() if item.library == "nccl" else item.library
    return f"{', '.join(parts)}: {name} changes its choice there by an estimate of its own, not by these times"


def _places(pairs: Sequence[tuple[Row, Row]]) -> str:
    places = [f"{format_bytes(b.size_bytes)} ({_choice(a)}, then {_choice(b)})" for a, b in pairs]
    more = f" and at {len(places) - _MOST_FALLS} more sizes" if len(places) > _MOST_FALLS else ""
    return ", ".join(places[:_MOST_FALLS]) + more


def _choice(row: Row) -> str:
    channels = f"on {row.channels} channel{'s' if row.channels != 1 else ''}" if row.channels else ""
    return " ".join(word for word in (row.algorithm, row.protocol, channels) if word)


def result_csv(items: Iterable[Item]) -> str:
    """The rows of several curves as one CSV table, units in its columns; `read_measured` reads it back."""
    rows = [
        {"curve": item.name, **row, "channels": row["channels"] or None} for item in items for row in item.records()
    ]
    return csv_text([RESULT_COLUMNS, *([row[name] for name in RESULT_COLUMNS] for row in rows)])


def use_lines(item: Item) -> list[str]:
    """What the largest size waited for, the time it was exposed, and a line for each kind of link it used."""
    use = item.use
    if use is None:
        return []
    head = f"# network at {format_bytes(item.use_bytes)}: {use.bottleneck}"
    if not use.time_s:
        return [head]
    part = f" (links of {use.part})" if use.part else ""
    kinds = [
        f"#   {kind.kind}: {kind.links} links, {format_bytes(kind.nbytes)}, carrying data for "
        f"{100 * kind.busy_share:.0f} % of the time, at most {100 * kind.busiest_share:.0f} % ({kind.busiest})"
        for kind in use.kinds
    ]
    exposed, time = format_time_us(use.exposed_s), format_time_us(use.time_s)
    return [f"{head}; exposed {exposed} us of {time} us{part}", *kinds]


def links_csv(items: Iterable[Item]) -> str:
    """The links of the largest size of every item, the longest busy first, as one CSV table."""
    rows = [
        (i, item.collective, item.use_bytes, use.link, use.kind, use.nbytes, microseconds(use.busy_s), use.busy_share)
        for i, item in enumerate(items, 1)
        for use in (item.use.links if item.use else ())
    ]
    return csv_text([("item", "collective", "size_bytes", "link", "kind", "bytes", "busy_us", "utilisation"), *rows])
