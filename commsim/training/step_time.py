"""Seconds of a training step in closed form: compute, what of the traffic is exposed, and the pipeline's bubble."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.training.columns import Columns
from commsim.training.compute import Passes, StepCompute, Values, step_compute

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepTime:
    """Seconds of a step by part; `total` is their sum."""

    compute: Float64
    tp: Float64
    ep: Float64
    cp: Float64
    pp: Float64
    bubble: Float64
    dp: Float64
    optimizer: Float64
    constant: Float64

    @property
    def total(self) -> Float64:
        """Seconds of the step."""
        return (
            self.compute
            + self.tp
            + self.ep
            + self.cp
            + self.pp
            + self.bubble
            + self.dp
            + self.optimizer
            + self.constant
        )


def _inside(ranks: Float64, stride: Float64, domain: Float64) -> Float64:
    """Ranks of a group, `stride` apart, that share a domain."""
    return np.clip(np.floor(domain / stride), 1.0, ranks)


def ring_seconds(nbytes: Float64, ranks: Float64, stride: Float64, passes: float, c: Columns, v: Values) -> Float64:
    """`passes` rounds (2 all_reduce, 1 all_gather or reduce_scatter) of rings over ranks `stride` apart."""
    inside = _inside(ranks, stride, c.domain)
    nvlink = c.nvlink * v["nvlink"]
    nic = np.minimum(c.nic * v["nic"] * inside, nvlink)
    rate = np.where(inside >= ranks, nvlink, nic)
    steps = np.where(inside >= ranks, v["alpha"], v["alpha"] + v["alpha_node"] * ranks / inside)
    share = (ranks - 1.0) / np.maximum(ranks, 1.0)
    return np.where(ranks > 1, passes * (nbytes * share / rate + steps), 0.0)


def all_to_all_seconds(nbytes: Float64, ranks: Float64, c: Columns, v: Values) -> Float64:
    """Every rank sends `nbytes` to the others, evenly; over the NICs what leaves the domain."""
    inside = _inside(ranks, np.ones(len(c)), c.domain)
    near = (inside - 1.0) / np.maximum(ranks, 1.0) * nbytes / (c.nvlink * v["nvlink"])
    # A token goes once to a node that holds several of its experts (HybridEP, DeepEP).
    domains = ranks / inside
    distinct = domains * (1.0 - (1.0 - 1.0 / domains) ** c.top_k) / c.top_k
    far = nbytes * distinct * (domains - 1.0) / domains / (c.nic * v["nic"])
    return np.where(ranks > 1, np.maximum(near, far) + v["alpha"], 0.0)


def step_time(c: Columns, v: Values, work: StepCompute | None = None) -> StepTime:
    """Seconds of every step by part; `work`: its compute, where that is known already."""
    work = work or step_compute(c, v)
    one = np.ones(len(c))
    dense, moe = c.dense_layers / c.pp, c.moe_layers / c.pp  # layers of a stage

    def layers(of: str) -> Float64:
        seconds: Float64 = dense * getattr(work.dense, of) + moe * getattr(work.moe, of)
        return seconds

    tp_message = ring_seconds(c.tokens * c.hidden * 2.0, c.tp, one, 2.0, c, v)
    again = dense * recompute_seconds(work.dense, c) + moe * recompute_seconds(work.moe, c)
    forward, backward = layers("forward"), layers("backward") + again
    hidden_tp = np.where(c.overlap_tp > 0, v["exposed_tp"], 1.0)
    tp_layer = tp_message * (2.0 + 2.0 + np.where(c.sp > 0, 1.0, 0.0) + 2.0 * c.full) * hidden_tp
    tp = tp_layer * (dense + moe)

    copies = c.tokens / c.tp * c.expert_tp * c.top_k * c.hidden
    ep = all_to_all_seconds(copies * 2.0 * c.imbalance, c.ep, c, v) * 4.0 * moe * v["exposed_ep"]
    ep = ep + 2.0 * ring_seconds(copies * 2.0 * c.imbalance, c.expert_tp, one, 2.0, c, v) * moe * hidden_tp
    kv = c.tokens * 2.0 * c.kv_width / c.tp * 2.0
    ring = ring_seconds(kv * c.cp, c.cp, c.tp, 1.0, c, v) * 3.0 * (dense + moe)
    cp = np.maximum(ring * v["exposed_cp"], ring - layers("attention"))

    head_f, head_b = work.head.forward, work.head.backward
    mid = forward + backward + tp + ep + cp
    compute = c.m * (forward + backward + head_f + head_b)
    bubble = (c.pp - 1.0) / c.v * mid

    # tp ranks send a slice each and gather on the other side (scatter/gather, Narayanan et al. 2021, section 4.1).
    message = c.tokens * c.hidden * 2.0 / c.tp
    gather = np.where(c.sp > 0, 0.0, ring_seconds(c.tokens * c.hidden * 2.0, c.tp, one, 1.0, c, v))
    hop = np.where(c.tp * c.cp * c.dp >= c.domain, c.nic * v["nic"], c.nvlink * v["nvlink"])
    pp = np.where(
        c.pp > 1,
        2.0 * c.v * c.m * (message / hop + v["alpha"] + gather) * np.where(c.overlap_pp > 0, v["exposed_pp"], 1.0),
        0.0,
    )
    dp = _data_parallel(c, v, forward + backward + head_f + head_b, backward)
    optimizer = optimizer_seconds(c, v)
    parts = (compute, c.m * tp, c.m * ep, c.m * cp, pp, bubble, dp, optimizer, v["constant"] * one)
    return StepTime(*(v["scale"] * part for part in parts))


def recompute_seconds(p: Passes, c: Columns) -> Float64:
    """Seconds of a layer's second forward: all of it, its unfused attention core, or what layer-wise checkpoints drop.

    Layer-wise (torchtitan's selective AC) keeps the results of every second product: about 0.35 of the products and
    half of the element-wise traffic run again.
    """
    selective = c.selective * np.where(c.flash > 0, 0.0, p.attention)
    return c.full * p.forward + selective + c.layerwise * (0.35 * p.gemm + 0.5 * p.memory)


def stage_parameters(c: Columns) -> tuple[Float64, Float64]:
    """Weights of the fullest stage on one rank: dense ones, and routed experts."""
    per_stage = (c.dense_layers * c.dense_parameters + c.moe_layers * c.moe_shared_parameters) / c.pp
    vocabulary = np.where(c.pp > 1, c.output, c.embedding + c.output * (c.embedding != c.output))
    dense = (per_stage + vocabulary) / c.tp
    return dense, c.moe_layers * c.expert_parameters / (c.pp * c.ep * c.expert_tp)


def _data_parallel(c: Columns, v: Values, micro: Float64, backward: Float64) -> Float64:
    """Exposed seconds of gradients and parameters."""
    dense, experts = stage_parameters(c)
    stride = c.tp
    ranks = c.dp * c.cp
    live = np.where(c.frozen > 0, 0.0, 1.0)
    grad = ring_seconds(dense * c.gradient_bytes * live, ranks, stride, 1.0, c, v)
    param = ring_seconds(dense * c.weight_bytes, ranks, stride, 1.0, c, v)
    expert_ranks = c.tp * c.cp * c.dp / (c.ep * c.expert_tp)
    grad = grad + ring_seconds(experts * c.gradient_bytes * live, expert_ranks, c.ep, 1.0, c, v)
    param = param + ring_seconds(experts * c.weight_bytes, expert_ranks, c.ep, 1.0, c, v)
    plain = grad + np.where(c.zero > 0, param * live, grad)
    once = np.where(c.overlap_dp > 0, overlapped(plain, 0.8 * micro, v), plain)
    launch = (v["alpha_z"] + v["alpha_rank"] * ranks) * 3.0 * c.layers * (ranks > 1)
    sharded = 2.0 * param + grad + launch
    each = np.where(c.overlap_dp > 0, overlapped(sharded, 0.9 * micro, v), sharded)
    return np.where(c.zero >= 3, c.m * each, once)


def overlapped(traffic: Float64, window: Float64, v: Values) -> Float64:
    """Seconds that traffic beside `window` seconds of compute adds: what is left in the open, and what the hidden part
    slows compute by, since its kernels hold SMs and memory bandwidth."""
    exposed = np.maximum(v["exposed_dp"] * traffic, traffic - window)
    return exposed + (traffic - exposed) * (1.0 - 1.0 / v["slowdown"])


UPDATE_BYTES = 30.0
"""Per owned parameter: Adam reads and writes the fp32 weight and two moments, reads the gradient, writes 16 bits."""

NORM_BYTES = 8.0
"""Per parameter: the gradient is read for its norm, scaled, and copied."""


def optimizer_seconds(c: Columns, v: Values) -> Float64:
    """Seconds of the update: `UPDATE_BYTES` per owned parameter, and `NORM_BYTES` per parameter."""
    dense, experts = stage_parameters(c)
    dense_owned = dense / np.where(c.zero > 0, c.shards, 1.0)
    expert_owned = experts / np.where(c.zero > 0, np.maximum(c.tp * c.cp * c.dp / (c.ep * c.expert_tp), 1.0), 1.0)
    live = np.where(c.frozen > 0, 0.0, 1.0)
    whole = np.where(c.zero >= 3, dense_owned + expert_owned, dense + experts)
    return (
        live
        * (UPDATE_BYTES * (dense_owned + expert_owned) + NORM_BYTES * whole)
        / (c.hbm * v["hbm"])
        * np.where(c.eager > 0, v["elementwise_eager"], 1.0)
    )
