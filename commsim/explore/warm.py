"""What a process of the page has in memory before it is asked: modules, and a first answer of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import commsim.explore.answers
import commsim.explore.curve
import commsim.nccl.predict
import commsim.scenario.run  # noqa: F401

if TYPE_CHECKING:
    from commsim.scenario.predictors import Cache


def warm(cache: Cache) -> None:
    """Asks what the page begins with, so that the first question finds it."""
    from commsim.explore.answers import answer

    answer("curve", {}, Path(), cache, lambda what, done, of: None)
