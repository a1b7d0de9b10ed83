"""A curve from the numbers that a person knows: the time of a small call, the plateau of the bus bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from commsim.collectives.semantics import busbw_factor
from commsim.errors import CalibrationError, UnitError
from commsim.measure.records import Curve
from commsim.units import GIB, parse_bandwidth, parse_bytes, parse_time

PLATEAU = "plateau"
"""The word for a size from which on the bus bandwidth does not grow any more."""

PLATEAU_BYTES = int(8 * GIB)
"""Where nccl-tests' curves usually end (``-e 8G``): published bus bandwidths grow no more than 2 % beyond 4 GiB."""


def number_faults(numbers: Sequence[tuple[str, str]]) -> dict[int, str]:
    """By its place, why a pair is not a size with the time or the bus bandwidth that it takes, or is there already."""
    faults, seen = dict[int, str](), set[int]()
    for place, (size, value) in enumerate(numbers):
        try:
            nbytes = size_bytes(size)
            _seconds(size, nbytes, value, 1.0)
        except UnitError as error:
            faults[place] = str(error)
            continue
        if nbytes in seen:
            faults[place] = "this size is there already"
        seen.add(nbytes)
    return faults


def size_bytes(size: str) -> int:
    """Bytes of a size or of the plateau; UnitError."""
    nbytes = PLATEAU_BYTES if size == PLATEAU else parse_bytes(size)
    if nbytes < 1:
        raise UnitError(f"found the size {size}, expected 1 B or more")
    return nbytes


def known_curve(numbers: Mapping[str, str], collective: str, n_ranks: int) -> Curve:
    """The curve of ``{"8B": "23us", "plateau": "361GB/s"}``: sizes with times, or with bus bandwidths.

    CalibrationError for one rank. The numbers are those that `number_faults` has nothing against.
    """
    if n_ranks < 2:
        raise CalibrationError("found one rank, which sends nothing; expected a scenario of two or more")
    factor = busbw_factor(collective, n_ranks)
    points = {size_bytes(size): _seconds(size, size_bytes(size), value, factor) for size, value in numbers.items()}
    sizes = np.array(sorted(points), np.int64)
    time = np.array([points[int(n)] for n in sizes])
    return Curve("known", collective, n_ranks, "measured", sizes, time)


def _seconds(size: str, nbytes: int, value: str, factor: float) -> float:
    if not value:
        raise UnitError("expected a size and what it takes, such as 8B=23us or 1GiB=361GB/s")
    if value.endswith("/s"):
        return nbytes * factor / _positive(parse_bandwidth(value), value)
    if size == PLATEAU:
        raise UnitError(f"found {value}, expected a bus bandwidth, such as 361GB/s")
    return _positive(parse_time(value), value)


def _positive(number: float, text: str) -> float:
    if number <= 0:
        raise UnitError(f"found {text}, expected more than nothing")
    return number
