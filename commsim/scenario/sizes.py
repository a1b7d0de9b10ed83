"""Message sizes of a workload: ``8 B .. 8 GiB x2``, ``1 MiB .. 8 MiB +1 MiB``, one size, or a list."""

from __future__ import annotations

import re

from commsim.errors import UnitError
from commsim.units import format_bytes, parse_bytes

MAX_SIZES = 1000

_RANGE = re.compile(r"(?P<first>.*?)\s*\.\.\s*(?P<last>.*?)(?:\s*(?P<step>[x*+]\s*\S.*))?", re.DOTALL)
_FORM = "expected a size such as '64 MiB', or a range such as '8 B .. 8 GiB x2' or '1 MiB .. 8 MiB +1 MiB'"


def parse_sizes(text: object) -> tuple[int, ...]:
    """Bytes of a size or a range, ascending, at most 1000 of them.

    A range multiplies (``x2``, the default) or adds (``+1 MiB``) from its first size up to its last at
    most, as nccl-tests does with ``-b -e -f -i``. Raises UnitError.
    """
    if not isinstance(text, str) or ".." not in text:
        return (parse_bytes(text),)
    match = _RANGE.fullmatch(text.strip()) if len(text) <= 128 else None
    if match is None or not match["first"] or not match["last"] or ".." in match["last"]:
        raise UnitError(f"found {text[:60]!r}, {_FORM}")
    first, last = parse_bytes(match["first"]), parse_bytes(match["last"])
    if first > last:
        raise UnitError(f"found the range {text!r}, expected its first size not above its last")
    step = (match["step"] or "x2").strip()
    if step[0] == "+":
        return _sum_range(text, first, last, parse_bytes(step[1:].strip()))
    return _product_range(text, first, last, step[1:].strip())


def _sum_range(text: str, first: int, last: int, step: int) -> tuple[int, ...]:
    if step == 0:
        raise UnitError(f"found the step '+0' in {text!r}, expected a step above zero, such as +1 MiB")
    count = (last - first) // step + 1
    if count > MAX_SIZES:
        raise UnitError(f"found {count:,} sizes in {text!r}, expected at most {MAX_SIZES:,}; widen the step")
    return tuple(range(first, last + 1, step))


def _product_range(text: str, first: int, last: int, factor_text: str) -> tuple[int, ...]:
    if not (factor_text.isascii() and factor_text.isdigit() and len(factor_text) < 10 and int(factor_text) > 1):
        raise UnitError(f"found the factor 'x{factor_text}' in {text!r}, expected a whole factor above 1")
    if first == 0:
        raise UnitError(f"found the first size 0 B in {text!r}, expected one above zero to multiply")
    sizes = [first]
    while sizes[-1] * int(factor_text) <= last:
        sizes.append(sizes[-1] * int(factor_text))
    return tuple(sizes)


def parse_size_list(value: object) -> tuple[int, ...]:
    """Bytes of everything `parse_sizes` takes, or of a list of quantities. Raises UnitError."""
    if not isinstance(value, (list, tuple)):
        return parse_sizes(value)
    if not value:
        raise UnitError(f"found an empty list, {_FORM}")
    if len(value) > MAX_SIZES:
        raise UnitError(f"found a list of {len(value):,} sizes, expected at most {MAX_SIZES:,}")
    sizes = tuple(parse_bytes(item) for item in value)
    repeated = next((s for i, s in enumerate(sizes) if s in sizes[:i]), None)
    if repeated is not None:
        raise UnitError(f"found the size {format_bytes(repeated)} twice, expected each size once")
    return sizes
