"""Seconds of steps, asked of a step model at few batches and read between them.

A run has a hundred thousand steps that differ a little. Sequences and tokens are exact up to 128 and rounded to seven
binary digits from there on; over the tokens in the cache, in which attention is linear, it is read between powers of
two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.generation.batch import Batch

Float64 = npt.NDArray[np.float64]

StepSeconds = Callable[[Batch], Any]
"""Seconds of a step, as a number, or as a dataclass of its parts in seconds, which may have ``total_s``."""

_FIRST_KNOT = 128
_EXACT = 64


class StepTable:
    """The seconds of steps by part: vectors in the order of `parts`, of which the first is the whole step."""

    def __init__(self, model: StepSeconds) -> None:
        self._model = model
        self._known: dict[tuple[int, int, int, int, int, float], Float64] = {}
        self.parts: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        """How often the step model was asked."""
        return len(self._known)

    def decode(self, sequences: int, cached: float) -> Float64:
        """Of a step in which so many sequences decode with so many tokens cached of each in the mean."""
        low, high, share = between(cached)
        n = rounded(sequences)
        at = self._at(n, low, 0, 0, 0)
        return at if share == 0.0 else at + share * (self._at(n, high, 0, 0, 0) - at)

    def mixed(self, batch: Batch) -> Float64:
        """Of a step with prompts; what more tokens cached add is that of the same step without prompts."""
        n = rounded(batch.sequences)
        p, many = rounded(batch.prompt_tokens), rounded(batch.prompt_sequences)
        low, _, _ = between(batch.cached)
        start, stop, share = between(batch.prompt_cached)
        groups = round(4 * batch.prompt_groups) / 4
        at = self._at(n, low, p, many, start, groups)
        if share:
            at = at + share * (self._at(n, low, p, many, stop, groups) - at)
        if n and batch.cached > low:
            at = at + self.decode(n, batch.cached) - self._at(n, low, 0, 0, 0)
        return at

    def _at(self, n: int, cached: int, p: int, many: int, prompt_cached: int, groups: float = 0.0) -> Float64:
        key = n, cached, p, many, prompt_cached, groups
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._ask(Batch(n, float(cached), p, many, float(prompt_cached), groups))
        return known

    def _ask(self, batch: Batch) -> Float64:
        answer = self._model(batch)
        if not is_dataclass(answer):
            parts, total = {}, float(answer)
        else:
            parts = {f.name: getattr(answer, f.name) for f in fields(answer)}
            parts = {name: float(value) for name, value in parts.items() if isinstance(value, (int, float))}
            total = float(getattr(answer, "total_s", sum(parts.values())))
            parts.pop("total_s", None)
        self.parts = self.parts or tuple(name.removesuffix("_s") for name in parts)
        return np.array([total, *parts.values()])


def rounded(count: int) -> int:
    """A number of sequences or tokens with seven binary digits, the nearest.

    >>> [rounded(n) for n in (1, 63, 100, 129, 1000, 1024)]
    [1, 63, 100, 130, 1000, 1024]
    """
    if count <= 2 * _EXACT:
        return count
    unit = 1 << (count.bit_length() - _EXACT.bit_length())
    return (count + unit // 2) // unit * unit


def between(cached: float) -> tuple[int, int, float]:
    """The numbers of cached tokens below and above which are asked for, and how far between them it is.

    >>> between(0.0), between(192.0), between(1024.0)
    ((0, 128, 0.0), (128, 256, 0.5), (1024, 2048, 0.0))
    """
    if cached < _FIRST_KNOT:
        low, high = 0, _FIRST_KNOT
    else:
        low = 1 << (int(cached).bit_length() - 1)
        high = 2 * low
    return low, high, (cached - low) / (high - low)


def steps_done(first_s: float, more_s: float, elapsed_s: float) -> int:
    """After how many steps, of which the first takes so long and each next `more_s` more, that time is over.

    >>> steps_done(2.0, 0.0, 5.0), steps_done(1.0, 1.0, 3.0)
    (3, 2)
    """
    if abs(more_s) < 1e-9 * first_s:
        steps = elapsed_s / first_s
    else:
        half = first_s - more_s / 2
        steps = (math.sqrt(max(half * half + 2 * more_s * elapsed_s, 0.0)) - half) / more_s
    return max(1, math.ceil(steps - 1e-9))
