"""A curve from the numbers that a person knows: the time of a small call, the plateau of the bus bandwidth."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from commsim.collectives.semantics import busbw_factor
from commsim.errors import CalibrationError, UnitError
from commsim.measure.records import Curve
from commsim.units import GIB, parse_bandwidth, parse_bytes, parse_time

PLATEAU = "plateau"
"""The word for a size from which on the bus bandwidth does not grow any more."""

PLATEAU_BYTES = int(8 * GIB)
"""Where nccl-tests' curves usually end (``-e 8G``): published bus bandwidths grow no more than 2 % beyond 4 GiB."""


def known_curve(texts: Iterable[str], collective: str, n_ranks: int) -> Curve:
    """The curve of ``8B=23us,plateau=361GB/s``: sizes with times, or with bus bandwidths.

    CalibrationError with every part that is neither.
    """
    if n_ranks < 2:
        raise CalibrationError("found one rank, which sends nothing; expected a scenario of two or more")
    faults, points = [], dict[int, float]()
    for part in (part.strip() for text in texts for part in text.split(",")):
        try:
            size, seconds = _point(part, busbw_factor(collective, n_ranks))
        except UnitError as error:
            faults.append(f"--from {part!r}: {error}")
            continue
        if size in points:
            faults.append(f"--from {part!r}: this size is there already")
        points[size] = seconds
    if faults:
        raise CalibrationError("\n".join(faults))
    sizes = np.array(sorted(points), np.int64)
    time = np.array([points[int(n)] for n in sizes])
    return Curve("known", collective, n_ranks, "measured", sizes, time)


def _point(part: str, factor: float) -> tuple[int, float]:
    name, equals, value = (word.strip() for word in part.partition("="))
    if not equals:
        raise UnitError("expected a size and what it takes, such as 8B=23us or 1GiB=361GB/s")
    size = PLATEAU_BYTES if name == PLATEAU else parse_bytes(name)
    if size < 1:
        raise UnitError(f"found the size {name}, expected 1 B or more")
    if value.endswith("/s"):
        return size, size * factor / _positive(parse_bandwidth(value), value)
    if name == PLATEAU:
        raise UnitError(f"found {value}, expected a bus bandwidth, such as 361GB/s")
    return size, _positive(parse_time(value), value)


def _positive(number: float, text: str) -> float:
    if number <= 0:
        raise UnitError(f"found {text}, expected more than nothing")
    return number
