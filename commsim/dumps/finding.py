"""One thing that is wrong in a job, with the words for ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["empty", "dead", "mismatch", "missing", "stuck", "late", "slow"]
"""In the order of their weight: an earlier one explains later ones."""

KINDS: tuple[Kind, ...] = ("empty", "dead", "mismatch", "missing", "stuck", "late", "slow")

_MOST_SHOWN = 8


@dataclass(frozen=True)
class DumpFinding:
    """One thing that is wrong: the ranks that cause it, the call, and a sentence that names both."""

    kind: Kind
    ranks: tuple[int, ...]
    group: str
    sequence: int
    operation: str
    text: str


def format_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-6, 9``."""
    parts: list[str] = []
    numbers = sorted(set(ranks))
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        parts.append(f"{numbers[at]}-{numbers[end]}" if end > at + 1 else ", ".join(map(str, numbers[at : end + 1])))
        at = end + 1
    shown = ", ".join(parts[:_MOST_SHOWN]) + (", ..." if len(parts) > _MOST_SHOWN else "")
    return f"rank{'s' if len(numbers) != 1 else ''} {shown}"
