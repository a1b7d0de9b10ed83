"""A synthesized schedule for MSCCL: pieces of one length, and as many as its runtime takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commsim.collectives.msccl_export import msccl_text
from commsim.collectives.msccl_limits import MOST_CHANNELS, MOST_STEPS
from commsim.collectives.schedule import Schedule
from commsim.errors import ScheduleError
from commsim.synthesis.aim import WHOLE_ARRAY
from commsim.synthesis.search import Synthesis, laid_out, rows_per_piece
from commsim.synthesis.timing import seconds_of

_FULL = 0.6
"""Part of a thread block's steps that sends take: the others wait."""
_MOVES_OF_A_GPU = 1_000
"""Moves that a GPU sends at most, about: each is a step there and one at its receiver, of 4,095 elements of XML."""


def for_msccl(best: Synthesis, protocol: str = "Simple") -> tuple[Synthesis, str]:
    """The schedule with the same trees in equal pieces, and its XML: in as many pieces as MSCCL's runtime takes.

    A known algorithm as it is where that can be, else its trees. Sizes are rounded up to whole pieces. A ScheduleError
    says what cannot be expressed at all.
    """
    q = best.question
    reason: ScheduleError | None = None
    if best.known:
        try:
            return best, msccl_text(_on_channels(best.laid.schedule), protocol)
        except ScheduleError as error:
            reason = error
    for count in _counts(best):
        unit = q.itemsize * count * (1 if q.collective in WHOLE_ARRAY else q.network.n)
        whole = replace(q, nbytes=-(-q.size // unit) * unit)
        laid = laid_out(whole, best.forest, count, even=True)
        try:
            text = msccl_text(_on_channels(laid.schedule), protocol)
        except ScheduleError as error:
            reason = error
            if laid.schedule.endpoints > laid.schedule.world_size:
                break
            continue
        one = Synthesis(whole, best.limit, best.forest, laid, count, seconds_of(laid, q.network))
        return one, text
    raise ScheduleError(str(reason))


def _on_channels(schedule: Schedule) -> Schedule:
    """The schedule with its pieces on so many channels that no thread block has more steps than MSCCL takes.

    Without its builder's rule of what waits for what: an importer finds that out itself.
    """
    of_pair = np.bincount(schedule.src.astype(np.int64) * schedule.endpoints + schedule.dst)
    channels = 1
    while channels < MOST_CHANNELS and int(of_pair.max(initial=0)) > channels * MOST_STEPS * _FULL:
        channels *= 2
    return schedule.edit(channel=schedule.src_chunk % channels, known_dependencies=None)


def _counts(best: Synthesis) -> list[int]:
    """Numbers of pieces, most first: of those whose moves a GPU's XML may have room for."""
    each = rows_per_piece(best.forest, best.question.collective)
    most = max(1, _MOVES_OF_A_GPU * best.question.network.n // each)
    counts = [1]
    while counts[-1] * 2 <= min(most, max(best.pieces, len(best.forest.share))):
        counts.append(counts[-1] * 2)
    return counts[::-1]
