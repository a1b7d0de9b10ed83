"""Muon's update: Newton-Schulz iterations on every matrix of the layers, and what ranks gather for them.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon); Moonlight (Liu et al. 2025, arXiv:2502.16982), whose distributed
Muon keeps ZeRO-1's cut. Matrices are those of the products (Megatron-Core stores queries, keys and values as one, gate
and up-projection too); of tensor parallelism every rank takes its part for a matrix (Megatron-Core's blockwise mode).
Embeddings and output have AdamW; so do norms, which are too few to count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.training.columns import Number, where
from commsim.training.compute import Values, gemm_rate, host_seconds, memory_rate, product_terms
from commsim.training.kernels import Throughput, product_seconds
from commsim.training.operators import Gemm, dense_layer, moe_layer
from commsim.training.spec import Steps

ITERATIONS = 5
"""Of Newton-Schulz (Jordan et al. 2024)."""

MOMENTUM_BYTES = 2.0
"""Of a momentum that is gathered, as it is multiplied: bf16."""

_KERNELS = 3.0 * ITERATIONS + 4.0
"""Launches for a matrix: three products an iteration, momentum, norm, scale and step."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """Matrices of one shape on a rank of the mean stage, before ZeRO cuts them."""

    rows: Number
    columns: Number
    count: Number

    @property
    def products(self) -> tuple[Gemm, ...]:
        """Of one iteration on one of them, a x b with a <= b: X X^T, its square, and their polynomial times X; 4 a^2 b
        + 2 a^3 FLOPs."""
        a, b = np.minimum(self.rows, self.columns), np.maximum(self.rows, self.columns)
        return Gemm("xxt", a, a, b), Gemm("square", a, a, a), Gemm("times", a, b, a)


def matrices(step: Steps) -> tuple[list[Matrix], list[Matrix]]:
    """(those of all ranks of a data-parallel group, those of routed experts) of the layers of the mean stage."""
    moe = step.model.moe_layers
    kinds = [(dense_layer(step), (step.model.layers - moe) / step.pp)]
    if np.any(moe > 0):
        kinds.append((moe_layer(step), moe / step.pp))
    held: tuple[list[Matrix], list[Matrix]] = ([], [])
    for layer, layers in kinds:
        for g in layer.gemms:
            if not g.inner and np.any(g.k * g.n > 0):
                count = layers * g.groups * g.share * where(g.k * g.n > 0, 1.0, 0.0)
                held[g.name.startswith("experts")].append(Matrix(g.k, g.n, count))
    return held


def _touched(step: Steps, total: Number, count: Number, ranks: Number) -> Number:
    """Of a total over so many matrices, what is a rank's to do: all without ZeRO, its share with ZeRO-3, and of a part
    that ends within matrices its share and on average one more."""
    whole = total / np.maximum(count, 1.0)
    part = total / ranks + where(step.zero_stage < 3, whole, 0.0)
    return where((step.zero_stage > 0) & (ranks > 1), np.minimum(total, part), total)


def _cuts(step: Steps) -> list[tuple[list[Matrix], Number, Number]]:
    """Both kinds of matrices, how many they are, and the ranks over which ZeRO cuts them."""
    kinds = zip(matrices(step), (step.shards, step.expert_dp), strict=True)
    return [(some, sum(m.count for m in some), ranks) for some, ranks in kinds]


def orthogonalise_seconds(step: Steps, values: Values) -> Number:
    """Seconds of the iterations on a rank, as long as their launches take at least."""
    gpu = Throughput(gemm_rate(step, values, wide=True), memory_rate(step, values), step.accelerator.sms)
    terms = product_terms(values)
    launched: Number = 0.0
    seconds: Number = 0.0
    for some, count, ranks in _cuts(step):
        each = (m.count * ITERATIONS * product_seconds(g, 0.0, gpu, terms) for m in some for g in m.products)
        seconds = seconds + _touched(step, sum(where(np.isfinite(s), s, 0.0) for s in each), count, ranks)
        launched = launched + _touched(step, count, count, ranks)
    return np.maximum(seconds, host_seconds(_KERNELS * launched, step, values))


def gathered_bytes(step: Steps) -> tuple[Number, Number]:
    """Bytes of momenta, of dense and of expert matrices, that a rank must have for its matrices: those that its part
    under ZeRO-1 and 2 touches (Moonlight, algorithm 1). With ZeRO-3, which cuts every matrix, its share of them, to
    which pieces come and whose results go back (microsoft/dion, `muon.py`). 0 without ZeRO."""
    both: list[Number] = []
    for some, count, ranks in _cuts(step):
        elements = _touched(step, sum(m.count * m.rows * m.columns for m in some), count, ranks)
        moved = MOMENTUM_BYTES * elements * where(step.zero_stage >= 3, 2.0, 1.0)
        both.append(where((step.zero_stage > 0) & (ranks > 1) & (step.frozen_weights == 0), moved, 0.0))
    return both[0], both[1]
