"""A synthesized schedule for MSCCL: pieces of one length, and as many as its runtime takes."""

from __future__ import annotations

from dataclasses import replace

from commsim.collectives.msccl_export import msccl_text
from commsim.collectives.schedule import Schedule
from commsim.errors import ScheduleError
from commsim.synthesis.search import WHOLE_ARRAY, Synthesis, laid_out
from commsim.synthesis.timing import seconds_of


def for_msccl(best: Synthesis, protocol: str = "Simple") -> tuple[Synthesis, str]:
    """The schedule with the same trees in equal pieces, and its XML: in as many pieces as MSCCL's runtime takes.

    Sizes are rounded up to whole pieces. A ScheduleError says what cannot be expressed at all.
    """
    q, reason = best.question, None
    for count in _counts(best):
        unit = q.itemsize * count * (1 if q.collective in WHOLE_ARRAY else q.network.n)
        whole = replace(q, nbytes=-(-q.size // unit) * unit)
        laid = laid_out(whole, best.forest, count, even=True)
        try:
            text = msccl_text(compacted(laid.schedule), protocol)
        except ScheduleError as error:
            reason = error
            if laid.schedule.endpoints > laid.schedule.world_size:
                break
            continue
        one = Synthesis(whole, best.limit, best.forest, laid, count, seconds_of(laid, q.network))
        return one, text
    raise ScheduleError(str(reason))


def compacted(schedule: Schedule) -> Schedule:
    """The schedule without its builder's rule of what waits for what, which an importer does not know either."""
    return schedule.edit(known_dependencies=None)


def _counts(best: Synthesis) -> list[int]:
    """Numbers of pieces, most first."""
    least = 1
    counts, count = [], best.pieces
    while count >= least:
        counts.append(count)
        count //= 2
    return counts
