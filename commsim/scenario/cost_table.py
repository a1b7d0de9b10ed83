"""What one call costs, as a table that other programs can ask: knots of the model, straight lines between them.

Knots are the model's own times. Where it is straight there are few of them; where it jumps, as NCCL takes another
algorithm or one more channel, a knot stands on either side. The first few sizes of a quarter of an octave are asked of
the model itself, so that the first answer takes as long as one prediction; when more of them are asked for, the quarter
is filled, and those are knots of it too. Between neighbouring knots a time lies between theirs; from the
last knot on every further byte takes what those of the last octave take.
"""

from __future__ import annotations

import csv
import json
import warnings
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from io import StringIO
from itertools import pairwise
from math import ceil, isfinite
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, Protocol

from commsim.document.types import show
from commsim.errors import CommsimError, CommsimWarning, LogFormatError, UnitError
from commsim.files import check_writable, safe_cell, write_atomically
from commsim.units import format_size, microseconds, nccl_bytes

LAST_KNOT = 1 << 34
"""Bytes of the last knot, 16 GiB: twice what nccl-tests are usually run up to."""

TOLERANCE = 0.004
"""Relative error of a straight line at the probed sizes from which on it gets a knot in its middle."""

_PROBES = (0.0, 0.5, 0.18, 0.36, 0.67, 0.84, 1.0)
"""Where a line is compared with the model, as parts of its length: 0 and 1 are the sizes beside its ends, where jumps
are. With these the largest error of 3,000 sizes was 0.63 %; with three of them 1.2 %."""

MOST_KNOTS = 2048
"""Of a quarter of an octave: NCCL's model needs up to 300. A model that jumps at every other size gets no more."""

ASKED_ALONE = 32
"""Sizes of a quarter of an octave that the model is asked for one by one before the quarter is filled, which takes it 9
to 300 times: whoever asks for few never waits for that, whoever asks for many waits a third longer at most."""

_CELLS = 4 * (LAST_KNOT.bit_length() - 3)
_FORMAT = "commsim cost table 1"


class CostSource(Protocol):
    """Where the knots come from: a model that pickles."""

    @property
    def step_bytes(self) -> int:
        """Bytes between the sizes that it is asked for: an element, or what its kernels need."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the times so far."""

    def seconds(self, nbytes: int) -> float:
        """Of one call."""


class CostTable:
    """Seconds of one call by its bytes: called with them, it gives those; `facts` say of which call, on what.

    It pickles, and `to_json` and `to_csv` write all of it.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        source: CostSource | None,
        knots: Mapping[int, float] | None = None,
        *,
        unspoken: Collection[str] | None = None,
    ):
        """With a `source` sizes are filled in when they are asked for; else `knots`, by bytes, are all there is.

        Warnings that come are Python warnings too, once each, but for those `unspoken`; None: all are.
        """
        self.facts = dict(facts)
        self._source = source
        self._jumpy: list[int] = []  # cells that would need more knots
        self._cells: dict[int, tuple[list[int], list[float]]] = {}
        self._alone: dict[int, dict[int, float]] = {}  # of cells not filled: sizes in whole bytes, and their seconds
        self._per_byte: float | None = None
        self._unspoken = None if unspoken is None else set(unspoken)
        self._warn()
        for cell in range(-1, _CELLS) if knots is not None else ():
            first, last = _edges(cell)
            sizes = sorted(size for size in knots or () if first <= size <= last)
            self._cells[cell] = sizes, [knots[size] for size in sizes] if knots else []

    def __call__(self, nbytes: float | str) -> float:
        """Seconds of a call of so many bytes (the nccl-tests size), also as text such as ``64 MiB``; UnitError."""
        size = nbytes if type(nbytes) is int and nbytes >= 0 else _bytes_of(nbytes)
        if size >= LAST_KNOT:
            return self._last() + (size - LAST_KNOT) * self._slope()
        cell = _cell_of(int(size))
        if cell not in self._cells and (alone := self._asked_alone(cell, ceil(size))) is not None:
            return alone
        sizes, seconds = self._cell(cell)
        at = bisect_right(sizes, size)
        before, start = sizes[at - 1], seconds[at - 1]
        return start + (seconds[at] - start) * (size - before) / (sizes[at] - before)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the sizes asked for so far; of a table that was read nothing."""
        jumpy = (
            f"from {format_size(first)} to {format_size(last)} the time jumps too often for a table"
            for first, last in map(_edges, self._jumpy)
        )
        return () if self._source is None else (*self._source.warnings, *jumpy)

    def knots(self) -> tuple[list[int], list[float]]:
        """All sizes in bytes, ascending from 0, and their seconds; fills what has not been asked for."""
        sizes, seconds = [0], [self._cell(-1)[1][0]]
        for cell in range(-1, _CELLS):
            some = self._cell(cell)
            sizes += some[0][1:]
            seconds += some[1][1:]
        return sizes, seconds

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values: the facts, all knots, and the seconds of each byte beyond them."""
        sizes, seconds = self.knots()
        return {
            "format": _FORMAT,
            **self.facts,
            "size_bytes": sizes,
            "seconds": seconds,
            "seconds_per_byte_beyond": self._slope(),
        }

    def to_json(self, file: str | Path) -> Path:
        """Writes all knots with the facts; `CostTable.from_json` reads them. Returns the path.

        CommsimError where there is no such folder.
        """
        path = check_place(file)
        return write_atomically(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def to_csv(self, file: str | Path) -> Path:
        """Writes a row for each knot above 0 B, in the form of a predicted curve (``result.csv``). Returns the path."""
        path, facts = check_place(file), self.facts
        text = StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(("curve", "collective", "n_ranks", "size_bytes", "dtype", "redop", "time_us"))
        same = [safe_cell(facts.get(key)) for key in ("machine", "collective", "n_ranks")]
        type_of = [facts.get("dtype"), facts.get("redop") or "none"]
        for size, seconds in zip(*self.knots(), strict=True):
            if size:
                rows.writerow((*same, size, *type_of, repr(microseconds(seconds))))
        return write_atomically(path, text.getvalue())

    @classmethod
    def from_json(cls, file: str | Path) -> CostTable:
        """The table of a file that `to_json` wrote; LogFormatError where it is none, or where there is none."""
        path = _path(file, "of a file that CostTable.to_json wrote")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise LogFormatError(f"{file}: cannot be read: {reason}; expected a file of CostTable.to_json") from None
        except ValueError as error:  # also of text that is not UTF-8
            raise LogFormatError(f"{file}: found no JSON ({error}), expected what CostTable.to_json wrote") from None
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            given = document.get("format") if isinstance(document, dict) else document
            raise LogFormatError(f"{file}: found the format {show(given)}, expected {_FORMAT!r}")
        sizes, seconds = document.get("size_bytes", []), document.get("seconds", [])
        if fault := _knot_fault(sizes, seconds):
            raise LogFormatError(f"{file}: {fault}")
        written = ("format", "size_bytes", "seconds", "seconds_per_byte_beyond")
        facts = {key: value for key, value in document.items() if key not in written}
        return cls(facts, None, dict(zip(sizes, seconds, strict=True)))

    def __repr__(self) -> str:
        return f"<CostTable of {', '.join(f'{key} {value}' for key, value in self.facts.items() if value is not None)}>"

    def fill(self, track: Callable[[Iterable[int], str], Iterable[int]] | None = None) -> None:
        """Computes all knots, which takes up to minutes; `track` is given what is to be done, to show how far it is."""
        cells: Iterable[int] = range(-1, _CELLS)
        for cell in track(cells, "knots of the table") if track else cells:
            self._cell(cell)

    def _asked_alone(self, cell: int, size: int) -> float | None:
        """The model's own seconds of a size of a cell that is not filled; None where it is to be filled now."""
        alone = self._alone.setdefault(cell, {})
        if size not in alone:
            if cell < 0 or len(alone) >= ASKED_ALONE:  # before 4 B there are three knots
                return None
            alone[size] = self._seconds(size)
            self._warn()
        return alone[size]

    def _seconds(self, size: int) -> float:
        """The model's, of a size or the next that is one for it."""
        assert self._source is not None, "a table that was read has all cells"
        step = self._source.step_bytes
        return self._source.seconds(-(-size // step) * step)

    def _warn(self) -> None:
        """Gives Python the warnings that are new."""
        if self._unspoken is None:
            return
        for text in self.warnings:
            if text not in self._unspoken:
                self._unspoken.add(text)
                warnings.warn(text, CommsimWarning, stacklevel=1)

    def _last(self) -> float:
        cell = _CELLS - 1
        alone = None if cell in self._cells else self._asked_alone(cell, LAST_KNOT)
        return self._cell(cell)[1][-1] if alone is None else alone

    def _slope(self) -> float:
        """Seconds of each byte beyond the last knot: of the last octave, never below zero."""
        if self._per_byte is None:
            octave = LAST_KNOT // 2
            self._per_byte = max(0.0, (self._last() - self(octave)) / octave)
        return self._per_byte

    def _cell(self, cell: int) -> tuple[list[int], list[float]]:
        if cell not in self._cells:
            assert self._source is not None, "a table that was read has all cells"
            known = self._alone.pop(cell, {})
            sizes, seconds = _refined(self._seconds, self._source.step_bytes, known, *_edges(cell))
            if len(sizes) > MOST_KNOTS:
                self._jumpy.append(cell)
            knots = dict(zip(sizes, seconds, strict=True)) | known  # what has been answered stays so
            self._cells[cell] = sorted(knots), [knots[size] for size in sorted(knots)]
            self._warn()
        return self._cells[cell]


def check_place(file: str | Path) -> Path:
    """The path of a file to be written; CommsimError where its folder is missing or takes none."""
    path = _path(file, "of the file to write")
    if not path.parent.is_dir():
        raise CommsimError(f"{path}: found no folder {str(path.parent)!r}, expected one that is there")
    check_writable(path)
    return path


def _path(file: object, noun: str) -> Path:
    """A path that was given as one or as text; LogFormatError for the text of a file, or what is neither."""
    if (
        not isinstance(file, (str, Path))
        or not str(file)
        or (isinstance(file, str) and file.lstrip()[:1] in ("{", "["))
    ):
        raise LogFormatError(f"found {show(file)}, expected the path {noun}")
    if "\0" in str(file):
        raise LogFormatError(f"found {show(str(file))}, expected the path {noun}")
    return Path(file)


def _cell_of(size: int) -> int:
    """The cell of a size below the last knot: quarters of octaves from 4 B on, one before them."""
    if size < 4:
        return -1
    shift = size.bit_length() - 3
    return 4 * shift + (size >> shift) - 4


def _edges(cell: int) -> tuple[int, int]:
    """First and last knot of a cell."""
    first, last = (((4 + (at & 3)) << (at >> 2)) if at >= 0 else 0 for at in (cell, cell + 1))
    return first, last


def _refined(
    model: Callable[[int], float], step: int, asked: Mapping[int, float], first: int, last: int
) -> tuple[list[int], list[float]]:
    """Knots from the first to the last, so close that lines between them hold at every probe."""
    known = dict(asked)

    def at(size: int) -> float:
        if size not in known:
            known[size] = model(size)
        return known[size]

    if first == 0:  # a call without data is none of NCCL's, one of a byte is
        sizes = [0, 1, last]
    else:
        sizes, open_to = [first], [last]
        while open_to:
            middle = None if len(sizes) > MOST_KNOTS else _bend(at, sizes[-1], open_to[-1], step)
            if middle is None:
                sizes.append(open_to.pop())
            else:
                open_to.append(middle)
    return sizes, [at(size) for size in sizes]


def _bend(at: Callable[[int], float], first: int, last: int, step: int) -> int | None:
    """The middle of two sizes between which the model is not straight; None where it is, or nothing is between."""
    steps = (last - first) // step
    if steps < 2:
        return None
    start, slope = at(first), (at(last) - at(first)) / (last - first)
    for part in _PROBES:
        size = first + step * min(steps - 1, max(1, round(part * steps)))
        seconds = at(size)
        if abs(start + slope * (size - first) - seconds) > TOLERANCE * seconds:
            return first + step * (steps // 2)
    return None


def _bytes_of(nbytes: object) -> float:
    """Bytes of what is no plain count: text with a unit, a float, another library's integer."""
    if isinstance(nbytes, str):
        return nccl_bytes(nbytes)
    size: float | None
    try:
        size = nbytes if isinstance(nbytes, float) else index(nbytes)  # type: ignore[arg-type]  # refused below
    except TypeError:
        size = float(nbytes) if isinstance(nbytes, Real) else None  # a float of numpy that is none of Python
    if size is None or isinstance(nbytes, bool) or not isfinite(size) or size < 0:
        raise UnitError(f"found {show(nbytes)}, expected a number of bytes, 0 or more, or a text such as '64 MiB'")
    return size


def _knot_fault(sizes: object, seconds: object) -> str:
    """What is wrong with the knots of a file; empty where nothing is."""
    if not (isinstance(sizes, list) and isinstance(seconds, list) and len(sizes) == len(seconds)):
        return "found no size_bytes and seconds of one length, expected a list of each"
    if any(type(size) is not int for size in sizes) or any(a >= b for a, b in pairwise(sizes)):
        return "found sizes that are no ascending whole numbers of bytes"
    if any(isinstance(s, bool) or not isinstance(s, (int, float)) or not 0 <= s < float("inf") for s in seconds):
        return "found seconds that are no numbers from 0 on"
    edges = {edge for cell in range(-1, _CELLS) for edge in _edges(cell)}
    if missing := edges - set(sizes):
        return f"found no knot at {min(missing)} B, expected one at every quarter of an octave up to {LAST_KNOT} B"
    return ""
