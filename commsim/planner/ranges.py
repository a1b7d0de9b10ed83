"""The values of a range such as ``1..64 x2``, ``1..8`` or ``400..1600 x2 Gb/s``, one point of a sweep each."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from commsim.errors import UnitError
from commsim.scenario.collective import MAX_SIZES, parse_sizes
from commsim.units import format_size

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_UNIT = r"[A-Za-zµμ][A-Za-zµμ/]*"
_RANGE = re.compile(
    rf"\s*(?P<first>{_NUMBER})\s*(?P<unit>{_UNIT})?\s*\.\.\s*(?P<last>{_NUMBER})\s*(?P<own>(?!x\s*\d){_UNIT})?"
    rf"(?:\s*(?P<by>[x*+])\s*(?P<step>{_NUMBER})\s*(?P<end>{_UNIT})?)?\s*",
    re.ASCII | re.DOTALL,
)
_FORM = "expected a range such as '1..64 x2', '1..8', '0..1 +0.25' or '400..1600 x2 Gb/s'"
_MOST_CHARACTERS = 128


def is_range(value: object) -> bool:
    """Whether a value is meant as a range: a text of two numbers with ``..`` between them."""
    return (
        isinstance(value, str) and len(value) <= _MOST_CHARACTERS and bool(re.match(rf"\s*{_NUMBER}[^.]*\.\.", value))
    )


def values_of(text: str) -> list[int | float | str]:
    """The values of a range, ascending, at most 1000: whole numbers, others, or texts with the unit of the range.

    It multiplies (``x2``) or adds (``+2``) up to its last at most; without a step it adds 1, and sizes double as
    where sizes stand in a scenario. Raises UnitError.
    """
    match = _RANGE.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    if match is None:
        raise UnitError(f"found {text[:60]!r}, {_FORM}")
    units = {unit for unit in (match["unit"], match["own"], match["end"]) if unit}
    if len(units) > 1 or (units and units <= _SIZES):
        return _sizes(text, units, match)
    unit = next(iter(units), "")
    first, last = _number(match["first"], text), _number(match["last"], text)
    if first > last:
        raise UnitError(f"found the range {text!r}, expected its first value not above its last")
    step = _number(match["step"] or "1", text)
    numbers = _product(text, first, last, step) if match["by"] in ("x", "*") else _sum(text, first, last, step)
    return [f"{number:f} {unit}" if unit else _plain(number) for number in numbers]


_SIZES = {f"{prefix}B" for prefix in ("", "k", "K", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi")}


def _sizes(text: str, units: set[str], match: re.Match[str]) -> list[int | float | str]:
    """Sizes, as a scenario has them; a unit after all stands for the numbers before it, too."""
    if not units <= _SIZES:
        raise UnitError(f"found the units {' and '.join(sorted(units))} in {text!r}, expected one of both ends")
    end = match["end"] if match["by"] != "+" else ""
    last = match["own"] or end or match["unit"]
    step = "" if match["by"] is None else f" {match['by']}{match['step']}"
    if match["by"] == "+":
        step += f" {match['end'] or last}"
    sizes = parse_sizes(f"{match['first']} {match['unit'] or last} .. {match['last']} {last}{step}")
    if len(sizes) > MAX_SIZES:
        raise UnitError(f"found {len(sizes):,} values in {text!r}, expected at most {MAX_SIZES:,}")
    return [format_size(size) for size in sizes]


def _number(text: str, whole: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise UnitError(f"found {text!r} in {whole!r}, {_FORM}") from None
    if abs(number.adjusted()) > 18:
        raise UnitError(f"found {text!r} in {whole!r}, expected numbers below 10^18")
    return number


def _sum(text: str, first: Decimal, last: Decimal, step: Decimal) -> list[Decimal]:
    if step <= 0:
        raise UnitError(f"found the step '+{step}' in {text!r}, expected one above zero")
    count = int((last - first) / step) + 1
    if count > MAX_SIZES:
        raise UnitError(f"found {count:,} values in {text!r}, expected at most {MAX_SIZES:,}; widen the step")
    return [first + i * step for i in range(count)]


def _product(text: str, first: Decimal, last: Decimal, factor: Decimal) -> list[Decimal]:
    if factor <= 1:
        raise UnitError(f"found the factor 'x{factor}' in {text!r}, expected one above 1")
    if first <= 0:
        raise UnitError(f"found the first value {first} in {text!r}, expected one above zero to multiply")
    numbers = [first]
    while (following := numbers[-1] * factor) <= last:
        numbers.append(following)
        if len(numbers) > MAX_SIZES:
            raise UnitError(f"found over {MAX_SIZES:,} values in {text!r}, expected fewer; a larger factor")
    return numbers


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)
