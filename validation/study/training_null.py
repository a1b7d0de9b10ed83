"""The null model of training steps: seven coefficients on datasheet figures, what a prediction has to beat.

Terms: ideal compute with the bubble; tensor-parallel traffic inside and across nodes; data-parallel traffic inside and
across nodes; micro-batches times layers of a stage; a constant. Non-negative least squares on the relative error.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from commsim.accuracy.flops import flops_per_token
from commsim.training.step_time import stage_parameters
from study.training_rows import MeasuredRows

Float64 = npt.NDArray[np.float64]


def terms(table: MeasuredRows) -> Float64:
    """Seconds (or counts, for the last two) of every term, shape (rows, 7)."""
    c = table.columns
    steps = [row.step for row in table.rows if row.step is not None]
    flops = np.array([flops_per_token(s, "full") * s.tokens / s.world_size for s in steps])
    m, layers = c.num_microbatches, c.model.layers
    ideal = flops * (1.0 + (c.recompute == "full") / 3.0) / c.gemm_peak * (1.0 + (c.pp - 1.0) / (c.virtual_stages * m))
    tp = 4.0 * m * layers / c.pp * c.rank_tokens * c.model.hidden * 2.0 * 2.0 * (c.tp - 1.0) / c.tp
    dense, experts = stage_parameters(c)
    ranks = c.dp * c.cp
    dp = 2.0 * (ranks - 1.0) / ranks * (dense + experts) * 2.0 * np.where(c.zero_stage >= 3, 1.5 * m, 1.0)
    nvlink, nic, domain = c.accelerator.near_bytes_per_s, c.nic_bytes_per_s, c.nvlink_domain
    inside = c.tp <= domain
    near = c.tp * ranks <= domain
    shared = np.clip(np.floor(domain / c.tp), 1.0, ranks)
    columns = [
        ideal,
        np.where(inside, tp / nvlink, 0.0),
        np.where(inside, 0.0, tp / nic),
        np.where(near, dp / nvlink, 0.0),
        np.where(near, 0.0, dp / (nic * shared)),
        m * layers / c.pp,
        np.ones(len(table)),
    ]
    return np.stack(columns, axis=1)


def null_coefficients(table: MeasuredRows, held_out: Collection[str] = ()) -> Float64:
    """Coefficients fitted to all rows but those of some sources; every source weighs the same."""
    from scipy.optimize import nnls

    keep = ~np.isin(table.source, sorted(held_out))
    part = table.take(np.flatnonzero(keep))
    _, index, counts = np.unique(part.source, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(counts[index])
    design = terms(part) / part.measured[:, None]
    scale = design.max(axis=0)
    scale[scale == 0] = 1.0
    coefficients, _ = nnls(design / scale * weight[:, None], weight)
    return np.asarray(coefficients / scale, np.float64)


def null_seconds(table: MeasuredRows, train: MeasuredRows) -> Float64:
    """Seconds of every row by coefficients that never saw its source."""
    out = np.empty(len(table))
    if not len(table):
        return out
    design = terms(table)
    for name in sorted(set(table.source)):
        mine = table.source == name
        out[mine] = design[mine] @ null_coefficients(train, [name])
    return out
