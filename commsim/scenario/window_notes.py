"""What to doubt in rows on registered windows: sizes that no published run holds, and sizes that lose by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from commsim.nccl.registered import MEASURED_TO
from commsim.units import format_bytes, format_time

if TYPE_CHECKING:
    from commsim.scenario.item import Row

_SLOWER = 1.02
"""How many times as long a call takes before windows are said to lose: less is within what the model tells apart."""


def window_notes(
    collective: str, generation: str, rows: Sequence[Row], without: Callable[[int], float]
) -> Iterator[str]:  # fmt: skip
    """Of rows of GPUs of a generation, blank over nodes; `without`: seconds of a size where nothing is registered."""
    own = [row for row in rows if row.algorithm in ("symmetric", "copy_engine")]
    most = MEASURED_TO.get((generation, collective), 0)
    if any(row.algorithm == "symmetric" and row.size_bytes > most for row in own):
        above = f" above {format_bytes(most)}" if most else ""
        where = f"on {generation.capitalize()}" if generation else "over nodes"
        yield f"{collective} in windows{above}: no published time {where} holds what is predicted"
    losing = [(row.time_s / seconds, row, seconds) for row in own if (seconds := without(row.size_bytes))]
    losing = [one for one in losing if one[0] > _SLOWER]
    if losing:
        ratio, row, seconds = max(losing, key=lambda one: one[0])
        others = f" ({len(losing) - 1} more of the sizes lose too)" if len(losing) > 1 else ""
        yield (
            f"{collective} of {format_bytes(row.size_bytes)} is predicted to take {format_time(row.time_s)} in windows "
            f"({row.protocol}), {100 * (ratio - 1):.0f} % longer than the {format_time(seconds)} without "
            f"library.registered{others}: NCCL does not compare the two"
        )
