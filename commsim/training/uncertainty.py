"""How far predicted training steps were off: the band around a time, and how far apart two layouts must be to differ.

`residuals.yaml` holds both, over published steps whose source was left out of everything fitted
(`validation/decisions.py --write` writes it). A source's software and clocks are common to all its steps, so that its
error cancels where two layouts of one machine and model are compared: the band is of single times, the margin of
differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from commsim.document import read_documents

RESIDUALS = Path(__file__).with_name("residuals.yaml")

INSIDE = 0.8
"""Share of published steps that a band is to hold, and of differences that a margin is."""


@dataclass(frozen=True)
class StepSpread:
    """Factors on a predicted time that hold eight of ten published steps of other sources, and the factor (above 1) by
    which two predicted times of one machine and model differ at least where their order is no toss-up."""

    low: float
    high: float
    margin: float
    rows: int
    sources: int
    pairs: int

    def band_s(self, seconds: float) -> tuple[float, float]:
        """The band around a predicted time, in seconds."""
        return seconds * self.low, seconds * self.high

    def tied(self, ratio: float) -> bool:
        """Whether times of this ratio are a tie: layouts of one machine and model, in seconds per token."""
        return abs(math.log(ratio)) <= math.log(self.margin)


@lru_cache(maxsize=2)
def step_spread(simulated: bool = True) -> StepSpread:
    """The spread of simulated steps, or of those of the closed form."""
    engines = read_documents(RESIDUALS)[0].data
    return StepSpread(**engines["simulation" if simulated else "closed_form"])
