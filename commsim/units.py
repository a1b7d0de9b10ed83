"""Quantity strings to SI floats and back: the only home of 1e9 and 2**30.

Inside commsim every number is bytes, seconds, bytes/s or FLOP/s. People write ``400 Gb/s`` or ``2 us``; the
conversion happens once, at the edge. Bits (``b``) against bytes (``B``) and powers of ten (``GB``) against
powers of two (``GiB``) are strict: two known simulators read "GB/s" 7.4 % apart. A bare number is an error.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from commsim.errors import UnitError

GIGA = 1e9
"""10**9: of bytes and bits per second, FLOP/s, parameters."""

GIB = 2.0**30
"""Bytes of a GiB."""

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES: dict[str, float] = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}
_BANDWIDTH: dict[str, float] = {f"{p}B/s": f for p, f in (_DECIMAL | _BINARY).items()}
_BANDWIDTH |= {f"{p}b/s": f / 8 for p, f in (_DECIMAL | _BINARY).items()}
_BANDWIDTH |= {f"{p}bps": f / 8 for p, f in _DECIMAL.items() if p}
_TIME = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}

# Outside of these, quotients of sizes, rates and times leave the range of floats.
_LEAST_BANDWIDTH, _MOST_BANDWIDTH = 1.0, 1e18
_MOST_TIME = 1e4 * 86400.0

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", re.ASCII)


def _split(text: object, units: dict[str, float], quantity: str, example: str) -> tuple[str, str]:
    """The number, without underscores, and the known unit of a quantity."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        raise UnitError(f"found the bare number {text!r}, expected a {quantity} with its unit, such as {example!r}")
    if not isinstance(text, str):
        raise UnitError(f"found {repr(text)[:60]}, expected a {quantity} with its unit, such as {example!r}")
    if len(text) > 64:
        raise UnitError(f"found a text of {len(text)} characters, expected a {quantity} such as {example!r}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"found {text!r}, expected a {quantity} such as {example!r}")
    number, unit = match[1].replace("_", ""), match[2]
    if not unit:
        raise UnitError(f"found the bare number {text!r}, expected a {quantity} with its unit, such as {example!r}")
    if unit not in units:
        raise UnitError(f"found the unit {unit!r} in {text!r}, {_hint(unit, units, quantity)}")
    if not math.isfinite(float(number) * units[unit]):
        raise UnitError(f"found {text!r}, expected a finite {quantity}")
    if float(number) < 0:
        raise UnitError(f"found {text!r}, expected a {quantity} that is not negative")
    return number, unit


_BITS = " (b is a bit, B is a byte)"


def _hint(unit: str, units: dict[str, float], quantity: str) -> str:
    # Other spellings that say clearly which one is meant: GBps, Gbit/s, Gigabit/s, GB/sec, usec.
    spelled = re.sub(r"(?<=[bB])ps$", "/s", unit)
    spelled = re.sub(r"[bB]its?(?=/|$)", "b", re.sub(r"[bB]ytes?(?=/|$)", "B", spelled))
    spelled = re.sub(r"(?<!^)(?:ec|econds?|ecs)$", "", re.sub(r"^(?:sec|secs|seconds?)$", "s", spelled))
    for candidate in (spelled, f"{spelled}/s"):
        if candidate in units:
            return f"did you mean {candidate!r}?{_BITS if 'b' in candidate.lower() else ''}"
    if units is _BYTES and unit.upper() in ("K", "M", "G", "T"):  # nccl-tests' 8G is 8 GiB
        return f"did you mean '{unit.upper()}iB' (powers of 1024) or '{unit.upper()}B' (powers of 1000)?"
    same = [u for u in units if u.lower() == unit.lower()]
    if same:
        return f"did you mean {' or '.join(repr(u) for u in same)}?{_BITS if 'b' in unit.lower() else ''}"
    for other, name in ((_BYTES, "size"), (_BANDWIDTH, "bandwidth"), (_TIME, "time")):
        if other is not units and unit in other:
            return f"which is a unit of {name}, expected a {quantity}"
    return f"expected a {quantity} in one of {', '.join(list(units)[:12])} ..."


def parse_bytes(text: object) -> int:
    """Bytes from a string such as ``64 MiB`` or ``8 B``; a fraction of a byte is an error."""
    number, unit = _split(text, _BYTES, "size", "64 MiB")
    if float(number) * _BYTES[unit] > 2**62:
        raise UnitError(f"found {text!r}, expected at most 4 EiB")
    exact = Decimal(number)  # a float would round 2.3 GB and anything above 2**53
    value = exact * int(_BYTES[unit])
    if value != value.to_integral_value() or bool(value) != bool(exact):
        raise UnitError(f"found {text!r}, which is {float(value):g} bytes; expected a whole number of bytes")
    return int(value)


def nccl_bytes(text: str) -> int:
    """Bytes of a size as nccl-tests reads it: ``8``, ``64K``, ``8G`` are powers of 1024.

    ``64 MiB``, ``1.5M`` and ``1e6`` too.
    Source: parsesize of nccl-tests src/common.cu, v2.19.6. Raises UnitError.
    """
    match = re.fullmatch(r"\s*([+-]?\d{1,18}(?:\.\d{1,9})?(?:[eE]\d{1,2})?)\s*([kKmMgGtT]?)\s*", text, re.ASCII)
    return parse_bytes(f"{match[1]} {match[2].upper()}{'iB' if match[2] else 'B'}" if match else text)


_MANY = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def parse_count(text: str) -> float:
    """A large number as people say it, of tokens or parameters: ``300B``, ``15T``, ``300e9``; not zero."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?(?:[eE]\+?\d{1,2})?)\s*([kKMBGT]?)\s*", text, re.ASCII)
    if not match or not float(match[1]):
        raise UnitError(f"found {text[:40]!r}, expected how many, such as 300B or 15T")
    return float(match[1]) * _MANY[match[2].upper()]


def parse_bandwidth(text: object) -> float:
    """Bytes per second from a string such as ``400 Gb/s`` or ``50 GB/s``; not zero, nor absurd."""
    number, unit = _split(text, _BANDWIDTH, "bandwidth", "400 Gb/s")
    value = float(number) * _BANDWIDTH[unit]
    if value == 0:
        raise UnitError(f"found {text!r}, expected a bandwidth above zero")
    if not _LEAST_BANDWIDTH <= value <= _MOST_BANDWIDTH:
        raise UnitError(f"found {text!r}, expected a bandwidth from 1 B/s to 1000 PB/s")
    return value


def parse_time(text: object) -> float:
    """Seconds from a string such as ``2 us``."""
    number, unit = _split(text, _TIME, "time", "2 us")
    value = float(number) * _TIME[unit]
    if value > _MOST_TIME:
        raise UnitError(f"found {text!r}, expected a time of at most 10000 d")
    return value


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    factor, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / factor:.4g} {unit}"


_POWERS_OF_TWO: list[tuple[float, str]] = [(2**40, "TiB"), (GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")]
_POWERS_OF_TEN: list[tuple[float, str]] = [(1e12, "TB"), (GIGA, "GB"), (1e6, "MB")]


def format_bytes(nbytes: float) -> str:
    """A size as `format_size` says it where that is short, else rounded in powers of two: ``64 MiB``, ``7.45 GiB``."""
    return _exactly(nbytes) or _scaled(nbytes, _POWERS_OF_TWO)


def format_memory(nbytes: float) -> str:
    """Memory, which is counted in powers of two: ``11.44 GiB``."""
    return _scaled(nbytes, _POWERS_OF_TWO)


def format_size(nbytes: int) -> str:
    """A size exactly: in powers of two, else in powers of ten from 1 MB where three digits do, else in bytes.

    >>> [format_size(n) for n in (2**26, 8 * 10**9, 1234567)]
    ['64 MiB', '8 GB', '1234567 B']
    """
    return _exactly(nbytes) or f"{nbytes} B"


def _exactly(nbytes: float) -> str:
    """The size in few digits; empty where those would round it. `format` of chart_axes.js is the same."""
    if not math.isfinite(nbytes) or nbytes != int(nbytes):
        return ""
    for steps, most in ((_POWERS_OF_TWO, 4), (_POWERS_OF_TEN, 3)):
        short = _scaled(nbytes, steps)
        number, unit = short.split()
        exact = Decimal(number)
        large = nbytes >= 1e6 or steps is _POWERS_OF_TWO
        if large and exact * int(_BYTES[unit]) == int(nbytes) and len(exact.normalize().as_tuple().digits) <= most:
            return short
    return ""


def format_bandwidth(bytes_per_s: float) -> str:
    """A bandwidth in powers of ten: ``50 GB/s``."""
    return _scaled(bytes_per_s, [(1e12, "TB/s"), (GIGA, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")])


def format_time(seconds: float) -> str:
    """A time with a fitting prefix: ``12.5 us``."""
    return _scaled(seconds, [(1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_percent(share: float) -> str:
    """Two digits of a share: ``1.7 %``, ``1,600 %``."""
    return f"{100 * share:.2g} %" if share < 0.99 else f"{float(f'{100 * share:.2g}'):,.0f} %"


MOST_TIMES = 1000
"""Factor above which a ratio tells no more than that it is absurd."""


def factor_text(factor: float) -> str:
    """A ratio of times: ``x2.20``, or ``more than x1000``.

    >>> factor_text(2.2), factor_text(3.4e12)
    ('x2.20', 'more than x1000')
    """
    return f"more than x{MOST_TIMES}" if factor > MOST_TIMES else f"x{factor:.2f}"


def gb_per_s(bytes_per_s: float) -> float:
    """GB/s, the unit of nccl-tests' algbw and busbw columns."""
    return bytes_per_s / GIGA


def gbit_per_s(bytes_per_s: float) -> float:
    """Gb/s, the unit in which NICs are sold."""
    return bytes_per_s * 8 / GIGA


def seconds_of_ns(nanoseconds: float) -> float:
    """Seconds of nanoseconds, the unit of profilers."""
    return nanoseconds / 1e9


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds."""
    return round(seconds * 1e9)


def microseconds(seconds: float) -> float:
    """Microseconds, the unit of nccl-tests' time column."""
    return seconds * 1e6
