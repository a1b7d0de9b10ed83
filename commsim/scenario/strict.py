"""The base of every block of a scenario file, and ranks as people write them.

``5``, ``0 .. 31``, every eighth as ``0 .. 63 +8``, or a list of these.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from commsim.document.types import show

MAX_RANKS = 1 << 20

_RANGE = re.compile(r"(?P<first>[0-9]{1,7})\s*\.\.\s*(?P<last>[0-9]{1,7})(?:\s*\+\s*(?P<step>[0-9]{1,7}))?", re.ASCII)
_FORM = "expected {}s such as 5, '0 .. 31', '0 .. 63 +8' for every eighth, or a list of these"


def parse_ranks(value: object, noun: str = "rank") -> tuple[int, ...]:
    """The ranks, or others that are counted from 0, as written, each once; a ValueError that says what was found.

    >>> parse_ranks(["0 .. 3", "8 .. 12 +2"])
    (0, 1, 2, 3, 8, 10, 12)
    """
    if isinstance(value, (list, tuple)):
        ranks = tuple(rank for part in value for rank in _part(part, noun))
        if not value:
            raise ValueError(f"found an empty list, {_FORM.format(noun)}")
    else:
        ranks = _part(value, noun)
    if len(ranks) > MAX_RANKS:
        raise ValueError(f"found {len(ranks):,} {noun}s, expected at most {MAX_RANKS:,}")
    seen: set[int] = set()
    for rank in ranks:
        if rank in seen:
            raise ValueError(f"found {noun} {rank} twice, expected each {noun} once")
        seen.add(rank)
    return ranks


def _part(value: object, noun: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_RANKS:
        return (value,)
    match = _RANGE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= 64 else None
    if match is None:
        raise ValueError(f"found {show(value)}, {_FORM.format(noun)}")
    first, last, step = int(match["first"]), int(match["last"]), int(match["step"] or 1)
    if step == 0:
        raise ValueError(f"found the step +0 in {show(value)}, expected a step above zero, such as +8")
    if first > last:
        raise ValueError(f"found the range {show(value)}, expected its first {noun} not above its last")
    return tuple(range(first, min(last, first + MAX_RANKS * step) + 1, step))


def format_ranks(ranks: tuple[int, ...]) -> list[int | str]:
    """What `parse_ranks` reads back: runs of equal steps as ranges.

    >>> format_ranks((0, 1, 2, 3, 8, 10, 12, 40))
    ['0 .. 3', '8 .. 12 +2', 40]
    """
    out: list[int | str] = []
    i = 0
    while i < len(ranks):
        step, j = 1, i
        if i + 1 < len(ranks) and ranks[i + 1] > ranks[i]:
            step = ranks[i + 1] - ranks[i]
            while j + 1 < len(ranks) and ranks[j + 1] - ranks[j] == step:
                j += 1
        if j < i + 2:
            out.append(ranks[i])
            i += 1
            continue
        out.append(f"{ranks[i]} .. {ranks[j]}" + (f" +{step}" if step > 1 else ""))
        i = j + 1
    return out


Ranks = Annotated[
    tuple[int, ...],
    BeforeValidator(parse_ranks, json_schema_input_type=int | str | list[int | str]),
    PlainSerializer(format_ranks, return_type=list[int | str]),
]


class Strict(BaseModel):
    """Unknown keys are faults; instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
