"""Schedules over sizes: from the shortest ways to the fullest links, the quickest of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from commsim.synthesis.aim import Aim
from commsim.synthesis.search import Synthesis, TreeSearch

SIZES = tuple(1 << k for k in range(10, 31, 2))
"""1 KiB to 1 GiB."""


def front(
    question: Aim,
    sizes: Sequence[int] = SIZES,
    budget_s: float = 60.0,
    track: Callable[[Synthesis], None] | None = None,
) -> list[Synthesis]:
    """The quickest schedule of every size; all share their trees, and the budget evenly. Ctrl-C leaves the rest out."""
    started = time.process_time()
    first: TreeSearch | None = None
    out: list[Synthesis] = []
    for k, size in enumerate(sizes):
        left = max(0.0, budget_s - (time.process_time() - started)) / (len(sizes) - k)
        search = TreeSearch(replace(question, nbytes=size), left if first is not None else budget_s / 2, first)
        first = first or search
        out.append(search.run())
        if track is not None:
            track(out[-1])
        if search.interrupted:
            break
    return out
