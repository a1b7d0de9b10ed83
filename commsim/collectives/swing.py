"""Swing: swaps whose partners lie near each other on a ring or torus, first to one side, then to the other.

In step t an even rank r swaps with r + rho(t) and an odd one with r - rho(t), modulo the ranks, where
rho(t) = 1 - 2 + 4 - ... = (1 - (-2)^(t+1)) / 3: 1, -1, 3, -5, 11, ... Distances are a third shorter than those
of recursive doubling. Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce",
NSDI 2024. The blocks of two partners never overlap for a power of two; other rank counts are folded as for
recursive doubling (the paper has a form of its own for even counts, which is not built here).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from commsim.collectives.recursive import swap_all_gather, swap_all_reduce, swap_halves_all_reduce, swap_reduce_scatter
from commsim.collectives.rows import Int64


def swing_partners(ranks: int) -> Int64:
    """Partner of each rank in each step, (log2(ranks), ranks); ``ranks`` is a power of two.

    >>> swing_partners(8)
    array([[1, 0, 3, 2, 5, 4, 7, 6],
           [7, 2, 1, 4, 3, 6, 5, 0],
           [3, 6, 5, 0, 7, 2, 1, 4]])
    """
    steps, rank = np.arange(ranks.bit_length() - 1)[:, None], np.arange(ranks)
    distance = (1 - (-2) ** (steps + 1)) // 3
    return np.where(rank % 2 == 0, rank + distance, rank - distance) % ranks


swing_all_reduce = partial(swap_halves_all_reduce, "swing", swing_partners)
"""Bandwidth-optimal: halves with the nearest partner first, 2 log2(p) steps."""


swing_latency_all_reduce = partial(swap_all_reduce, "swing_latency", swing_partners)
"""Latency-optimal: the whole array with every partner, log2(p) steps."""


swing_reduce_scatter = partial(swap_reduce_scatter, "swing", swing_partners)
"""The nearest partner and half the array first."""


swing_all_gather = partial(swap_all_gather, "swing", swing_partners)
"""The nearest partner and half the array last."""
