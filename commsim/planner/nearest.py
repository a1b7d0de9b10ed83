"""Where nothing fits: what comes nearest, and the cheapest change that makes it fit."""

from __future__ import annotations

from commsim.planner.ranking import Ranked
from commsim.planner.space import Space
from commsim.training.advice import advice
from commsim.training.memory import Framework, step_memory
from commsim.units import GIB

MOST_HINTS = 2
"""Changes that a message names."""


def would_fit(leanest: dict[str, tuple[Space, Ranked]], framework: Framework) -> str:
    """What the leanest combination of each machine (by its title) lacks, as the end of a sentence; empty of none."""
    if not leanest:
        return ""

    def beyond(title: str) -> float:
        space, ranked = leanest[title]
        return ranked.memory_bytes - space.accelerator.room_bytes

    title = min(leanest, key=beyond)
    space, ranked = leanest[title]
    step = space.step(ranked.places)
    memory = step_memory(step, framework)
    needs = f"; the leanest, on {title}, needs {memory.peak / GIB:.1f} of {memory.capacity / GIB:.1f} GiB"
    hints = advice(step, memory, framework)
    return f"{needs}; it would fit with {' or '.join(hints[:MOST_HINTS])}" if hints else needs
