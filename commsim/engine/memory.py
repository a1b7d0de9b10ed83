"""How much memory a simulation needs per row, and the refusal where that is more than it may take."""

from __future__ import annotations

from commsim.memory import require_memory

__all__ = ["RUN_BYTES_PER_ROW", "estimate_bytes", "require_memory"]

# Peak resident bytes above the idle process, measured at 2 million rows and rounded up: the columns of Schedule and
# Program, 66 for a ring with its dependences by arithmetic, 258 for a tree whose dependences are derived by sorting.
KNOWN_BYTES_PER_ROW = 75
DERIVED_BYTES_PER_ROW = 265
# By count: in-degrees, three times and a full heap, whose arrays double in size.
RUN_BYTES_PER_ROW = 76


def estimate_bytes(rows: int, *, derived: bool = True) -> int:
    """Bytes that building and simulating a schedule of ``rows`` rows takes at most.

    ``derived=False``: the builder gives the dependences by arithmetic, so they need not be sorted out.

    >>> estimate_bytes(1_000_000, derived=False)
    151000000
    """
    return rows * ((DERIVED_BYTES_PER_ROW if derived else KNOWN_BYTES_PER_ROW) + RUN_BYTES_PER_ROW)
