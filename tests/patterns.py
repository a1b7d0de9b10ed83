"""What ranks send and must receive as whole tensors: `commsim.measure.pattern` without its chunks."""

from __future__ import annotations

from typing import Any

import torch

from commsim.measure.pattern import PERIOD, Pattern


def tile(pattern: Pattern, base: Any, first: int, last: int) -> Any:
    """The elements first..last of the array whose period is `base`."""
    values = pattern._typed(base).roll(-(first % PERIOD))
    return values.repeat(-(-(last - first) // PERIOD) or 1)[: last - first].view(pattern.dtype)


def given(pattern: Pattern, rank: int) -> Any:
    """The send buffer of a rank."""
    part = pattern.given(rank)
    return tile(pattern, part.base, part.first, part.last)


def expected(pattern: Pattern, rank: int) -> Any | None:
    """What the receive buffer of a rank must hold; None where nothing is promised to it."""
    parts = pattern.wanted(rank)
    return None if parts is None else torch.cat([tile(pattern, p.base, p.first, p.last) for p in parts])
