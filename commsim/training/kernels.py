"""Seconds of one kernel by its shape: a matrix product, a grouped product of experts, fused attention over a prompt.

What a GPU reaches of its peaks for large shapes is an argument (`Throughput`), what shapes cost are terms with a
physical meaning. `commsim.training.compute` makes the passes of a step of them; `validation/fit_operators.py` fits the
terms to kernels measured one by one. Numbers are numbers or arrays of one per kernel; times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.training.columns import Number
from commsim.training.operators import Attention, Gemm

TILES = ((256, 128), (128, 128), (64, 64))
"""Rows and columns of the tiles that libraries choose from; longer lists fit measured kernels no better."""

QUERY_TILE, KEY_BLOCK = 128, 64
"""Rows of queries that a block of threads has, and keys that it takes at a time (FlashAttention-2, width 128)."""

LEAST_K = 128
"""Elements of k that a part of a split product has at least: two steps of a tile's main loop."""


@dataclass(frozen=True, eq=False)
class Throughput:
    """What a GPU reaches at best: FLOP/s of large kernels, bytes/s of memory; and how many SMs share the work."""

    flop_per_s: Number
    bytes_per_s: Number
    sms: Number


@dataclass(frozen=True, eq=False)
class ProductTerms:
    """What the shape of a product costs.

    ``side``: a tile of r by c runs at the full rate where r c / (r + c) reaches it: what it reads per FLOP is then what
    L2 delivers. ``tail``: share of the idle SMs of the last wave that other kernels' tiles, or higher clocks, make use
    of. ``corner``: exponent of the corner between tensor cores and memory; 2: half of the shorter one is hidden.
    """

    side: Number
    overhead: Number  # elements of k that a tile begins and ends with: operands under way, results on their way
    tail: float = 0.0
    split: Number = np.inf  # of summing the parts of a product whose k is split over idle SMs
    corner: float = 2.0
    launch: Number = 0.0


@dataclass(frozen=True, eq=False)
class AttentionTerms:
    """What the shape of fused attention costs.

    ``softmax``: SM-seconds of a score's exponential and its share of the sums, which run beside no product.
    """

    softmax: Number
    start: Number  # of a tile of queries
    tail: Number = 0.5  # of the longest tile, that SMs wait for at the end
    launch: Number = 0.0


def product_seconds(g: Gemm, nbytes: Number, gpu: Throughput, terms: ProductTerms) -> Number:
    """Seconds of a product that moves so many bytes through memory: the best tile in waves, and its traffic.

    8192 x 28672 x 4096 on 132 SMs at 1 PFLOP/s is 109 waves of 128 by 128, which cost nothing to begin:

    >>> terms = ProductTerms(side=64.0, overhead=0.0)
    >>> round(float(product_seconds(Gemm("up", 8192, 28672, 4096), 0.0, Throughput(1e15, 3e12, 132), terms)) * 1e3, 3)
    1.931
    """
    second = 2.0 * gpu.sms / gpu.flop_per_s  # of an SM per multiplication
    row_tiles = {rows: g.row_tiles(rows) / gpu.sms for rows, _ in TILES}
    col_tiles = {cols: np.ceil(g.n / cols) for _, cols in TILES}
    best, k = np.inf, g.k + terms.overhead
    for rows, cols in TILES:
        each = second * (rows * cols * np.maximum(terms.side * (rows + cols) / (rows * cols), 1.0))  # per element of k
        full = row_tiles[rows] * col_tiles[cols]
        waves = np.ceil(full)
        if terms.tail:
            waves = np.maximum(waves - terms.tail * (waves - full), 1.0)
        best = np.minimum(best, waves * (k * each))
    parts = np.maximum(np.minimum(1.0 / np.maximum(full, 1e-9), g.k / LEAST_K), 1.0)  # of the smallest tile's k
    best = np.minimum(best, terms.split + waves * ((g.k / parts + terms.overhead) * each))
    return terms.launch + corner(best, nbytes / gpu.bytes_per_s, terms.corner)


def attention_seconds(a: Attention, gpu: Throughput, terms: AttentionTerms) -> Number:
    """Seconds of a fused kernel: tiles of queries over the SMs, a tile passing over the keys that its rows may see."""
    most = np.ceil(a.keys / KEY_BLOCK) * KEY_BLOCK
    beyond = (
        QUERY_TILE * np.minimum(a.keys / a.queries, 1.0) + KEY_BLOCK
    ) / 2.0  # of the mask, in tiles that it crosses
    span = np.minimum(a.span + beyond, most)
    key = QUERY_TILE * (2.0 * a.widths * gpu.sms / gpu.flop_per_s + terms.softmax)
    longest = terms.start + np.minimum(2.0 * span, most) * key
    waves = a.pairs * np.ceil(a.queries / QUERY_TILE) / gpu.sms
    work = waves * (terms.start + span * key) + terms.tail * longest * np.minimum(waves, 1.0)
    return terms.launch + corner(np.maximum(longest, work), a.nbytes / gpu.bytes_per_s, 2.0)


def corner(one: Number, other: Number, exponent: float) -> Number:
    """Of two durations side by side, (a^e + b^e)^(1/e)."""
    if exponent == 2.0:
        return np.sqrt(one * one + other * other)
    return (one**exponent + other**exponent) ** (1.0 / exponent)
