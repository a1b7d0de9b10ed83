"""Seconds of grouped products, one group per expert that has rows: kernels that swap rows and columns take tiles of as
few as 8 rows, so that a group of a few rows is the traffic of its weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.training.columns import Number, where
from commsim.training.kernels import Throughput

ROW_TILES = (8, 16, 32, 64, 128, 256)
COLUMNS = 128
"""Of a tile: the side of the weight that a block of threads takes."""


@dataclass(frozen=True, eq=False)
class GroupedTerms:
    """What the shape of grouped products costs, as `commsim.training.kernels.ProductTerms` has it of single ones.

    ``expert``: seconds of a group beside its tiles: its rows are counted, its weight's address is found.
    """

    side: Number
    overhead: Number
    tail: Number
    expert: Number = 0.0


@dataclass(frozen=True, eq=False)
class Grouped:
    """`groups` products whose rows are `rows` together, by (k, n); `drawn`: groups differ as a router draws them."""

    rows: Number
    groups: Number
    n: Number
    k: Number
    nbytes: Number
    drawn: Number = True


def grouped_seconds(g: Grouped, gpu: Throughput, terms: GroupedTerms) -> Number:
    """Seconds: tiles in waves over the SMs, and the traffic of weights and rows beside them."""
    second = 2.0 * gpu.sms / gpu.flop_per_s
    each = g.rows / g.groups
    columns = np.ceil(g.n / COLUMNS) * g.groups / gpu.sms
    best = np.inf
    for rows in ROW_TILES:
        full = columns * where(g.drawn, np.maximum(each / rows + 0.5, 1.0), np.ceil(each / rows))
        waves = np.ceil(full)
        waves = np.maximum(waves - terms.tail * (waves - full), 1.0)
        best = np.minimum(best, waves * np.maximum(float(rows * COLUMNS), terms.side * (rows + COLUMNS)))
    work = best * second * (g.k + terms.overhead)
    memory = g.nbytes / gpu.bytes_per_s
    return np.sqrt(work * work + memory * memory) + terms.expert * g.groups
