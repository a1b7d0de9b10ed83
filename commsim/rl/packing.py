"""Sequences of unequal length for a training step: packed into micro-batches of so many tokens, or padded."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bins:
    """Micro-batches of one update: of each replica, and tokens of one: the mean, or where all are alike the longest."""

    each: int
    tokens: int


def packed_bins(lengths: Sequence[int], most: int, replicas: int, multiple: int = 1, alike: bool = False) -> Bins:
    """Micro-batches of at most `most` tokens into which sequences are packed, the longest first, each where it fits
    best (best-fit decreasing; NeMo-RL and verl do much the same).

    Tokens are rounded up to a `multiple`; `alike`: all are padded to the longest, as a pipeline needs them.

    >>> packed_bins([60, 50, 40, 30, 20], 100, 1)
    Bins(each=2, tokens=100)
    """
    free: list[tuple[int, int]] = []  # (tokens left, number of the micro-batch), rising
    filled: list[int] = []
    for length in sorted((min(n, most) for n in lengths), reverse=True):
        place = bisect_left(free, (length, 0))
        if place < len(free):
            left, number = free.pop(place)
        else:
            left, number = most, len(filled)
            filled.append(0)
        filled[number] += length
        if left > length:
            insort(free, (left - length, number))
    each = -(-len(filled) // replicas)
    return Bins(each, _up(max(filled) if alike else sum(filled) / (each * replicas), multiple))


def padded_bins(count: int, longest: int, micro_batch: int, replicas: int, multiple: int = 1) -> Bins:
    """Micro-batches of sequences that are padded to the longest; tokens are those of one sequence.

    >>> padded_bins(64, 500, 4, 8, 64)
    Bins(each=2, tokens=512)
    """
    return Bins(-(-count // (micro_batch * replicas)), _up(longest, multiple))


def _up(tokens: float, multiple: int) -> int:
    return int(-(-tokens // multiple) * multiple)
