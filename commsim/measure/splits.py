"""Which ranks form a communicator together: all of them, or the parts that a rule like that of nccl-tests makes."""

from __future__ import annotations

import re
from collections.abc import Callable

from commsim.errors import MeasurementError

_RULES: dict[str, Callable[[int, int], int]] = {
    "and": lambda rank, number: rank & number,
    "or": lambda rank, number: rank | number,
    "mod": lambda rank, number: rank % number,
    "div": lambda rank, number: rank // number,
}

_SIGNS = {"&": "and", "|": "or", "%": "mod", "/": "div"}

EXPECTED = "a rule such as 'div 4' (four ranks in a row), 'mod 4', 'and 0x4' or 'or 0x3'"


def colors(rule: str, world_size: int) -> list[int]:
    """The color of every rank under a rule; ranks of one color form a communicator (NCCL_TESTS_SPLIT of nccl-tests).

    Raises MeasurementError for a rule that is none, or that makes parts of different sizes, which no row could name.

    >>> colors("div 2", 4), colors("mod 2", 4), colors("", 2)
    ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0])
    """
    if not rule:
        return [0] * world_size
    match = re.fullmatch(r"\s*(and|or|mod|div|[&|%/])\s*(0x[0-9a-f]{1,8}|\d{1,9})\s*", rule.lower())
    if match is None:
        raise MeasurementError(f"found --split {rule!r}, expected {EXPECTED}")
    name, number = _SIGNS.get(match[1], match[1]), int(match[2], 0 if match[2].startswith("0x") else 10)
    if number == 0 and name in ("mod", "div"):
        raise MeasurementError(f"found --split {rule!r}, expected a number above 0")
    each = [_RULES[name](rank, number) for rank in range(world_size)]
    sizes = {each.count(color) for color in each}
    if len(sizes) > 1:
        raise MeasurementError(
            f"--split {rule!r} makes parts of {', '.join(map(str, sorted(sizes)))} of {world_size} ranks, "
            "expected parts of one size"
        )
    return each


def group_of(rule: str, world_size: int, rank: int) -> list[int]:
    """The ranks of the run that share a communicator with a rank, in order."""
    each = colors(rule, world_size)
    return [other for other in range(world_size) if each[other] == each[rank]]
