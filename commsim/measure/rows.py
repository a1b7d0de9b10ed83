"""Rows of a measured table before they become curves, and what the rows themselves tell about the run.

Logs are cut, edited and interleaved, so a row counts only if its columns agree: size with count, algbw with size and
time. What a log does not state (collective, number of ranks) is deduced where the rows leave one possibility.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commsim.collectives.semantics import DIVIDED, NCCL_TESTS, ONE_RATE, PAIRWISE, REDUCING, ROOTED, busbw_factor
from commsim.measure.records import COLLECTIVES
from commsim.units import GIGA

# Bytes per element by the names nccl-tests and its relatives print.
ITEMSIZE: dict[str, int] = {
    **dict.fromkeys(("int8", "uint8", "char", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "float16", "fp16", "bfloat16", "bf16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float", "float32", "fp32"), 4),
    **dict.fromkeys(("int64", "uint64", "double", "float64", "fp64"), 8),
}

_MAX_SIZE = 2**62
_MAX_TIME_US = 1e12  # eleven days for one operation: past any measurement
_PRINTED = 0.03  # algbw against size/time agrees within 3 % plus print rounding in every published log we hold


class Group(NamedTuple):
    """One column group of a row as printed: time in us, bandwidths in GB/s, NaN where blank."""

    time_us: float
    algbw: float
    busbw: float
    checked: bool | None = None  # False where the error column says N/A, None where there is no such column
    wrong: int = 0  # elements of the result that were


NOTHING = Group(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table: size in bytes, count in elements (None where blank), both column groups."""

    line: int
    size: int
    count: int | None
    dtype: str
    redop: str
    root: int | None
    out_of_place: Group
    in_place: Group

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What rows of one curve share."""
        return self.dtype, self.redop, self.root


@dataclass
class LogTable:
    """Rows under one header, with what the file states about the run."""

    line: int
    rows: list[TableRow] = field(default_factory=list)
    collective: str | None = None  # as stated by the file, in our words
    n_ranks: int | None = None  # as stated by the file
    ranks_from_lines: bool = False  # counted from "Rank n" lines, which an edited log may have lost in part
    has_redop: bool = True
    has_root: bool = True
    conditions: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)  # NCCL's variables that the rows were measured under
    skipped_lines: int = 0
    notes: list[str] = field(default_factory=list)


def print_rounding(group: Group) -> float:
    """Half a unit of the last digit that bandwidths of this magnitude are printed with, GB/s."""
    return 0.0051 if max(group.algbw, group.busbw) < 999 else 0.51


def group_is_sound(size: int, group: Group, coarse_time: bool = False) -> bool:
    """Whether time, algbw and busbw of one printed group belong to `size` and to each other.

    Old nccl-tests prints algbw = busbw = size / time * (n-1)/n for all_gather and reduce_scatter, so half the
    quotient is accepted where the two columns are equal. `coarse_time`: printed with two digits (1.0e+07).
    """
    if not (0 < group.time_us < _MAX_TIME_US and 0 <= group.algbw < GIGA and 0 <= group.busbw < GIGA):
        return False
    expected = size / group.time_us / 1e3
    slack = _PRINTED + 0.05 * coarse_time
    rounding = print_rounding(group)
    old = 0.5 if abs(group.algbw - group.busbw) <= 2 * rounding else 1.0
    if not expected * old * (1 - slack) - rounding <= group.algbw <= expected * (1 + slack) + rounding:
        return False
    return 0.49 * group.algbw - rounding <= group.busbw <= 2 * group.algbw + 3 * rounding


def size_is_sound(size: int, count: int | None, dtype: str) -> bool:
    """Whether size is a whole multiple of count elements: 1 for all_reduce and the like, n for all_gather."""
    if not 0 <= size < _MAX_SIZE:
        return False
    if count is None or dtype not in ITEMSIZE:
        return True
    block = count * ITEMSIZE[dtype]
    return size == 0 if block == 0 else size % block == 0 and size > 0


def blocks(rows: Sequence[TableRow]) -> int | None:
    """size / (count * itemsize) if it is the same in all rows: 1, or the number of ranks."""
    lengths = {r.size // (r.count * ITEMSIZE[r.dtype]) for r in rows if r.count and r.dtype in ITEMSIZE and r.size > 0}
    return lengths.pop() if len(lengths) == 1 else None


def _ratio_bounds(rows: Iterable[TableRow]) -> tuple[float, float]:
    """The interval that busbw / algbw must lie in, from the rounding of both, over all rows and groups."""
    low, high = 0.0, math.inf
    for row in rows:
        for group in (row.out_of_place, row.in_place):
            rounding = print_rounding(group)
            if group.algbw > 10 * rounding and group.busbw >= 0:
                low = max(low, (group.busbw - rounding) / (group.algbw + rounding))
                high = min(high, (group.busbw + rounding) / (group.algbw - rounding))
    return low, high


def deduce_ranks(collective: str, rows: Sequence[TableRow]) -> int | None:
    """The number of ranks that busbw / algbw allows, or None where it allows several or none.

    >>> one = TableRow(1, 8, 2, "float", "sum", -1, Group(1.0, 100.0, 175.0), NOTHING)
    >>> deduce_ranks("all_reduce", [one])
    8
    """
    k = blocks(rows)
    if collective in DIVIDED - ROOTED and k is not None and k > 1:
        return k  # count is per rank there
    if collective in ONE_RATE:
        return None
    low, high = _ratio_bounds(rows)
    scale = 2.0 if collective == "all_reduce" else 1.0
    if low == 0 or high > 2 or low > high or high >= scale:
        return None  # no row speaks, or n is so large that rounding hides it
    first, last = math.ceil(scale / (scale - low) - 1e-9), math.floor(scale / (scale - high) + 1e-9)
    return first if first == last and first > 1 else None


def deduce_collective(
    table: LogTable, rows: Sequence[TableRow], n_ranks: int | None, file_name: str
) -> tuple[str | None, str]:
    """The collective that rows under this header come from, with the reason; None where several remain."""
    sample = rows[0]
    k = blocks(rows)
    reduces = table.has_redop and sample.redop not in ("", "none")
    rooted = table.has_root and sample.root is not None and sample.root >= 0
    several = k is not None and k > 1
    # sendrecv prints an operation, or none.
    left = [c for c in NCCL_TESTS if (c in ROOTED) == rooted and (c == "send_recv" or (c in REDUCING) == reduces)]
    if not (reduces and rooted):
        divided = several if reduces or rooted else not (k == 1 and table.has_redop)
        left = [name for name in left if (name in DIVIDED) == divided]
    left = [name for name in left if _ratio_fits(name, rows, n_ranks or (k if several else None))]
    if len(left) > 1:
        # alltoall and sendrecv cannot be verified in place: they print N/A there, the others a count.
        in_place = {row.in_place.checked for row in rows}
        if in_place == {True}:
            left = [name for name in left if name not in PAIRWISE]
        elif in_place == {False} and {row.out_of_place.checked for row in rows} == {True}:
            left = [name for name in left if name in PAIRWISE]
    if len(left) == 1:
        return left[0], "columns of the table"
    named = name_hint(file_name)
    return (named, "name of the file") if named in left else (None, " or ".join(left))


def _ratio_fits(collective: str, rows: Sequence[TableRow], n_ranks: int | None) -> bool:
    low, high = _ratio_bounds(rows)
    if collective == "send_recv":
        return low <= 1.001 and high >= 0.999
    if collective == "all_reduce":
        return high >= 0.999 if n_ranks is None else low <= busbw_factor(collective, n_ranks) + 0.002 and high >= 0.999
    return True


def name_hint(file_name: str) -> str | None:
    """The collective that a file's name holds."""
    text = "".join(c for c in file_name.lower() if c.isalnum())
    return next((COLLECTIVES[key] for key in sorted(COLLECTIVES, key=len, reverse=True) if key in text), None)
