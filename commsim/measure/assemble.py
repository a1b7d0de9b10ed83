"""From the rows of a file to its curves: one per kind of run, repeats folded into a band."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from commsim.collectives.semantics import ONE_RATE, RING_PASSES, busbw_factor
from commsim.errors import Fault, LogFormatError
from commsim.measure.records import Curve, FloatArray, IntArray
from commsim.measure.rows import Group, LogTable, TableRow, deduce_collective, deduce_ranks, print_rounding
from commsim.units import GIGA, format_bytes


@dataclass(frozen=True)
class Wanted:
    """What the caller states about a file that may not state it itself."""

    collective: str | None = None
    n_ranks: int | None = None
    likely_ranks: int | None = None
    """Those of the machine, taken where a file states none and gives only what needs them."""


def curves_of(tables: list[LogTable], path: Path, wanted: Wanted) -> list[Curve]:
    """The curves of one file.

    Consecutive tables of the same kind whose sizes do not overlap are one curve (a script that runs one
    size at a time); tables whose sizes overlap may differ in a setting that the log does not print and stay
    apart.
    """
    parts = [part for table in tables for part in _curves_of_table(table, path, wanted)]
    if wanted.collective is not None:
        matching = [c for c in parts if c.collective == wanted.collective]
        if parts and not matching:
            others = ", ".join(sorted({c.collective for c in parts}))
            raise error(path, tables[0].line, f"found {others}, expected {wanted.collective} as asked for")
        parts = matching
    merged: list[Curve] = []
    for part in parts:
        if merged and _same_run(merged[-1], part):
            merged[-1] = _joined(merged[-1], part)
        else:
            merged.append(part)
    return _named(merged, path.stem)


def error(path: Path, line: int, message: str) -> LogFormatError:
    """A LogFormatError at a place a person can open."""
    return LogFormatError([Fault(str(path), line, 1 if line else 0, "", message)])


class NoRows(LogFormatError):  # noqa: N818 - a table, if an empty one
    """A log that ended before its first result: `table` holds what it says of the run."""

    def __init__(self, path: Path, table: LogTable, message: str) -> None:
        super().__init__([Fault(str(path), table.line, 1, "", message)])
        self.name, self.table = path.stem, table


def _curves_of_table(table: LogTable, path: Path, wanted: Wanted) -> Iterator[Curve]:
    by_key: dict[tuple[str, str, int | None], list[TableRow]] = {}
    for row in table.rows:
        if row.size > 0:
            by_key.setdefault(row.key, []).append(row)
    for i, rows in enumerate(by_key.values()):
        yield _curve(table, rows, path, wanted, 0 if i else table.skipped_lines)


def _curve(table: LogTable, rows: list[TableRow], path: Path, wanted: Wanted, skipped: int) -> Curve:
    notes = list(table.notes)
    if wanted.n_ranks is not None and table.n_ranks not in (None, wanted.n_ranks):
        raise error(path, table.line, f"found {table.n_ranks} ranks, but {wanted.n_ranks} ranks were asked for")
    n_ranks = table.n_ranks or wanted.n_ranks
    collective = table.collective or wanted.collective
    if collective is None:
        collective, reason = deduce_collective(table, rows, n_ranks, path.stem)
        if collective is None:
            text = f"the file does not say which collective this is ({reason}); "
            expected = "expected a log that does, or its name in the file's, such as all_reduce.log"
            raise error(path, table.line, text + expected)
        notes.append(f"collective deduced from the {reason}")
    deduced = deduce_ranks(collective, rows)
    if n_ranks is None and deduced is None:
        notes.append("the file does not say how many ranks")
    elif n_ranks is None:
        n_ranks = deduced
        notes.append(f"{n_ranks} ranks deduced from the bandwidth columns")
    elif table.ranks_from_lines and deduced not in (None, n_ranks) and wanted.n_ranks is None:
        notes.append(f"the rank lines name {n_ranks} ranks, the bandwidth columns show {deduced}, taken here")
        n_ranks = deduced
    if n_ranks is None and wanted.likely_ranks is not None and not any(_time(r, collective, None)[0] > 0 for r in rows):
        n_ranks = wanted.likely_ranks
        notes.append(f"{n_ranks} ranks taken: all GPUs of the machine")
    conditions = dict(table.conditions)
    if collective in RING_PASSES and n_ranks is not None and _old_convention(rows, n_ranks):
        conditions["old_convention"] = "yes"
        notes.append("algbw column already holds (n-1)/n (old nccl-tests); times are unaffected")
    times = [_time(row, collective, n_ranks) for row in rows]
    kept = [(row, t, origin) for row, (t, origin) in zip(rows, times, strict=True) if 0 < t < math.inf]
    if not kept:
        raise error(path, table.line, _no_time(collective, n_ranks, rows))
    origins = {origin for _, _, origin in kept}
    sizes = np.array([row.size for row, _, _ in kept], np.int64)
    size, time_s, low_s, high_s = _fold(sizes, np.array([t for _, t, _ in kept]))
    both = [math.nan if row.in_place.wrong else row.in_place.time_us * 1e-6 for row, _, _ in kept]
    in_place = _fold(sizes, np.array(both))[1]
    wrong = [row.size for row, _, _ in kept if row.out_of_place.wrong + row.in_place.wrong]
    notes += _wrong(kept)
    dtype, redop, root = rows[0].key
    return Curve(
        name=path.stem,
        collective=collective,
        n_ranks=n_ranks,
        kind="measured",
        size_bytes=size,
        time_s=time_s,
        in_place_time_s=None if np.all(np.isnan(in_place)) else in_place,
        dtype=dtype,
        redop="" if redop == "none" else redop,
        root=None if root is None or root < 0 else root,
        low_s=low_s if len(size) < len(kept) else None,
        high_s=high_s if len(size) < len(kept) else None,
        conditions=conditions,
        env=dict(table.env),
        source=str(path),
        skipped_lines=skipped + len(rows) - len(kept),
        wrong_rows=len(wrong),
        wrong_bytes=tuple(wrong),
        time_from=origins.pop() if len(origins) == 1 else "mixed",
        notes=tuple(notes),
    )


def _time(row: TableRow, collective: str, n_ranks: int | None) -> tuple[float, str]:
    """Seconds of one row and where they come from: out of place before in place, time before bandwidth."""
    for group, name in ((row.out_of_place, "out_of_place"), (row.in_place, "in_place")):
        if group.time_us > 0:
            return group.time_us * 1e-6, name
        if (converted := _from_bandwidth(row.size, group, collective, n_ranks)) > 0:
            return converted, "busbw" if name == "out_of_place" else "in_place_busbw"
    return math.nan, ""


def _wrong(kept: list[tuple[TableRow, float, str]]) -> list[str]:
    """A note where results were wrong: those times are not of the work that was asked for."""
    rows = [(row, row.out_of_place.wrong + row.in_place.wrong) for row, _, _ in kept]
    bad = [(row, wrong) for row, wrong in rows if wrong]
    if not bad:
        return []
    row, most = max(bad, key=lambda item: item[1])
    at = f"{len(bad)} of {len(rows)} rows" if len(rows) > 1 else "the row"
    return [f"wrong results in {at}: the log counts {most:,} elements at {format_bytes(row.size)}"]


def _from_bandwidth(size: int, group: Group, collective: str, n_ranks: int | None) -> float:
    if group.busbw > 0:
        if n_ranks is not None or collective in ONE_RATE:
            return size * busbw_factor(collective, n_ranks or 1) / (group.busbw * GIGA)
        return math.nan
    return size / (group.algbw * GIGA) if group.algbw > 0 else math.nan


def _no_time(collective: str, n_ranks: int | None, rows: list[TableRow]) -> str:
    if n_ranks is None and any(g.busbw > 0 for row in rows for g in (row.out_of_place, row.in_place)):
        return (
            f"only the bus bandwidth of {collective} is given, and a time needs the number of ranks; "
            "expected a column n_ranks, a log with the lines that name the ranks, or its machine and nodes (--on, -n)"
        )
    return "no row holds a time or a bandwidth above zero"


def _old_convention(rows: list[TableRow], n_ranks: int) -> bool:
    """Whether algbw equals busbw in rows whose digits would show the factor (n-1)/n between them."""
    groups = [g for row in rows for g in (row.out_of_place, row.in_place)]
    telling = [g for g in groups if g.algbw / n_ranks > 4 * print_rounding(g)]
    return bool(telling) and all(abs(g.busbw - g.algbw) <= 2 * print_rounding(g) for g in telling)


def _fold(size: IntArray, time_s: FloatArray) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Ascending distinct sizes with median, smallest and largest time of their repeats."""
    sizes, inverse = np.unique(size, return_inverse=True)
    if len(sizes) == len(size):
        order = np.argsort(size)
        return sizes, time_s[order], time_s[order], time_s[order]
    order = np.argsort(inverse, kind="stable")
    groups = np.split(time_s[order], np.flatnonzero(np.diff(inverse[order])) + 1)
    groups = [g[~np.isnan(g)] if not np.all(np.isnan(g)) else g for g in groups]
    median, low, high = (np.array([float(f(g)) for g in groups]) for f in (np.median, np.min, np.max))
    return sizes, median, low, high


def _kind(curve: Curve) -> tuple[object, ...]:
    """What curves of one run have in common."""
    same = curve.collective, curve.n_ranks, curve.dtype, curve.redop, curve.root, curve.time_from
    return *same, curve.conditions.get("env"), curve.in_place_time_s is None


def _same_run(first: Curve, second: Curve) -> bool:
    if first.low_s is not None or second.low_s is not None:  # repeats
        return False
    return _kind(first) == _kind(second) and not np.intersect1d(first.size_bytes, second.size_bytes).size


def _joined(first: Curve, second: Curve) -> Curve:
    order = np.argsort(np.concatenate([first.size_bytes, second.size_bytes]))
    names = [name for name in ("size_bytes", "time_s", "in_place_time_s") if getattr(first, name) is not None]
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])[order] for name in names
    }
    notes = tuple(dict.fromkeys(first.notes + second.notes))
    summed = ("skipped_lines", "wrong_rows", "wrong_bytes")
    sums = {name: getattr(first, name) + getattr(second, name) for name in summed}
    return replace(first, **joined, **sums, notes=notes)


def _named(curves: list[Curve], stem: str) -> list[Curve]:
    """Names that tell the curves of one file apart."""
    kinds = {c.collective for c in curves}
    names: list[str] = []
    for curve in curves:
        name = f"{stem} {curve.collective}" if len(kinds) > 1 else stem
        again = sum(1 for n in names if n == name or n.startswith(f"{name} #"))
        names.append(f"{name} #{again + 1}" if again else name)
    return [replace(c, name=n) for c, n in zip(curves, names, strict=True)]
