"""What a process of the page has in memory before it is asked: imported once, in the process that others fork from.

Modules, compiled loops and the machine of the first answer are then there at once, also after a crash.
"""

from __future__ import annotations

from pathlib import Path

from commsim.explorer.answers import answer
from commsim.scenario.predictors import Cache

CACHE = Cache()
"""The machines and models that were built last; each process goes on with its own."""

answer("curve", {}, Path(), CACHE, lambda what, done, of: None)
