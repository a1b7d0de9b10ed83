"""Seconds of a training step in closed form: compute, what of the traffic is exposed, and the pipeline's bubble."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from commsim.training.columns import Number, holds, where
from commsim.training.compute import Passes, Values, memory_rate, step_compute
from commsim.training.recompute import module_shares
from commsim.training.spec import Steps


@dataclass(frozen=True, eq=False)
class StepTime:
    """Seconds of a step by part; `total` is their sum."""

    compute: Number
    tp: Number
    ep: Number
    cp: Number
    pp: Number
    bubble: Number
    dp: Number
    optimizer: Number
    constant: Number

    @property
    def total(self) -> Number:
        """Seconds of the step."""
        return sum(getattr(self, part.name) for part in fields(self))


def _inside(ranks: Number, stride: Number, domain: Number) -> Number:
    """Ranks of a group, `stride` apart, that share a domain."""
    return np.clip(np.floor(domain / stride), 1.0, ranks)


def ring_seconds(nbytes: Number, ranks: Number, stride: Number, step: Steps, v: Values) -> Number:
    """A round of rings over ranks `stride` apart: an all_gather or reduce_scatter, half an all_reduce."""
    inside = _inside(ranks, stride, step.nvlink_domain)
    nvlink = step.accelerator.near_bytes_per_s * v["nvlink"]
    nic = np.minimum(step.nic_bytes_per_s * v["nic"] * inside, nvlink)
    rate = where(inside >= ranks, nvlink, nic)
    steps = where(inside >= ranks, v["alpha"], v["alpha"] + v["alpha_node"] * ranks / inside)
    return where(ranks > 1, nbytes * (ranks - 1.0) / ranks / rate + steps, 0.0)


def all_to_all_seconds(nbytes: Number, ranks: Number, step: Steps, v: Values) -> Number:
    """Every rank sends `nbytes` to the others, evenly; over the NICs what leaves the domain."""
    top_k = step.model.routing.top_k
    inside = _inside(ranks, 1.0, step.nvlink_domain)
    near = (inside - 1.0) / ranks * nbytes / (step.accelerator.near_bytes_per_s * v["nvlink"])
    # A token goes once to a node that holds several of its experts (HybridEP, DeepEP).
    domains = ranks / inside
    distinct = domains * (1.0 - (1.0 - 1.0 / domains) ** top_k) / top_k
    far = nbytes * distinct * (domains - 1.0) / domains / (step.nic_bytes_per_s * v["nic"])
    return where(ranks > 1, np.maximum(near, far) + v["alpha"], 0.0)


LAYERWISE_PRODUCTS = 0.35
"""Share of a layer's products that torchtitan's selective AC runs again: every second one (`activation_checkpoint.py`,
``mm_count``), of Llama's seven wk, wo and w3: 0.365 of the FLOPs of the 8B model, 0.363 of the 70B's."""

LAYERWISE_MEMORY = 0.5
"""Share of element-wise traffic that runs again with it: assumed. From 0.25 to 1.0 the mean of the sources' median
errors (`validation/training/steps.csv`) moves by 0.03 points."""

GRADIENT_WINDOW = 0.8
"""Share of a micro-batch's compute beside which gradients move: assumed, between its backward (2/3) and all of it,
where the next forward gathers parameters. From 0.6 to 1.0 the errors move by 0.05 points."""

SHARD_WINDOW = 0.9
"""The same under ZeRO-3, where the first layer's gather stands alone: assumed. From 0.7 up they move by 0.02 points."""

SHARD_COLLECTIVES = 3.0
"""Collectives of a layer under ZeRO-3: parameters gathered twice, gradients scattered (Rajbhandari et al. 2020, 7)."""


def step_time(step: Steps, v: Values) -> StepTime:
    """Seconds of every step by part."""
    work = step_compute(step, v)
    forward = work.of_stage(step, lambda p: p.forward)
    backward = work.of_stage(step, lambda p: p.backward + recompute_seconds(p, step))
    head = work.head.forward + work.head.backward
    m, dual = step.num_microbatches, step.schedule == "dualpipe"
    # Half of DualPipe's micro-batches see the loss on one end of the pipeline, half on the other.
    compute = m * (forward + backward + where(dual, 0.5, 1.0) * head)
    tp, cp = _tensor_parallel(step, v), _context_parallel(step, v, work.of_stage(step, lambda p: p.attention))
    ep = _expert_parallel(step, v) * where(dual, _beside_passes(step, v), 1.0)
    bubble = _bubble(step, forward + backward + tp + ep + cp, work.of_stage(step, lambda p: p.weight))
    pp, dp = _pipeline_parallel(step, v), _data_parallel(step, v, forward + backward + head)
    seconds = (compute, m * tp, m * ep, m * cp, pp, bubble, dp, optimizer_seconds(step, v), v["constant"])
    return StepTime(*(v["scale"] * part for part in seconds))


def recompute_seconds(p: Passes, step: Steps) -> Number:
    """Seconds of a layer's second forward: all of it, of its modules (of attention's core where it is not fused), or
    what layer-wise AC drops; modules of some layers only count for all of them by their share."""
    products, kernels = module_shares(step)
    core = where(step.flash_attention, 0.0, p.attention) * holds(step.recompute_modules, "core_attn")
    modules = core + products * p.gemm + kernels * p.memory
    layerwise = where(step.recompute == "layerwise", LAYERWISE_PRODUCTS * p.gemm + LAYERWISE_MEMORY * p.memory, 0.0)
    return where(step.recompute == "full", p.forward, where(step.recompute == "selective", modules, layerwise))


# -- inside a pass, seconds of a stage's layers on one micro-batch ---------------------------------


def _hidden_bytes(step: Steps) -> Number:
    """Bytes of a micro-batch's hidden states in 16 bit, before tp cuts them."""
    return step.rank_tokens * step.model.hidden * 2.0


def _stage_layers(step: Steps) -> Number:
    return step.model.layers / step.pp


def _shown_tp(step: Steps, v: Values) -> Number:
    """The share of tensor parallel traffic that does not hide behind the products it belongs to."""
    return where(step.overlap_tp, v["exposed_tp"], 1.0)


def _tensor_parallel(step: Steps, v: Values) -> Number:
    """Two all_reduces forward and two backward (Shoeybi et al. 2019); sequence parallelism gathers the inputs of both
    pairs of products once more (Korthikanti et al. 2022), full recomputation repeats the forward's."""
    all_reduce = 2.0 * ring_seconds(_hidden_bytes(step), step.tp, 1.0, step, v)
    again = where(step.sequence_parallel, 1.0, 0.0) + where(step.recompute == "full", 2.0, 0.0)
    return all_reduce * (4.0 + again) * _shown_tp(step, v) * _stage_layers(step)


def _expert_parallel(step: Steps, v: Values) -> Number:
    """Dispatch and combine, forward and backward; with expert_tp > 1 their ranks gather tokens and sum, too."""
    layers = step.model.moe_layers / step.pp
    nbytes = _hidden_bytes(step) / step.tp * step.expert_tp * step.model.routing.top_k * step.imbalance
    exchanged = all_to_all_seconds(nbytes, step.ep, step, v) * 4.0 * v["exposed_ep"]
    summed = 4.0 * ring_seconds(nbytes, step.expert_tp, 1.0, step, v) * _shown_tp(step, v)
    return (exchanged + summed) * layers


def _beside_passes(step: Steps, v: Values) -> Number:
    """The share of experts' exchanges in the open that stays there when they run beside another micro-batch's pass
    (DualPipe): the first layer's, and what they slow that pass by; see `commsim.training.work.overlap`."""
    share = (1.0 - 1.0 / v["slowdown"]) + step.pp / step.model.layers
    return np.minimum(share / v["exposed_ep"], 1.0)


def _context_parallel(step: Steps, v: Values, attention: Number) -> Number:
    """Rings of keys and values forward, of them and their gradients backward, behind the attention core."""
    kv = step.rank_tokens * 2.0 * step.model.kv_width / step.tp * 2.0
    ring = ring_seconds(kv * step.cp, step.cp, step.tp, step, v) * 3.0 * _stage_layers(step)
    return np.maximum(ring * v["exposed_cp"], ring - attention)


# -- between stages, seconds of a step ---------------------------------


def _pipeline_parallel(step: Steps, v: Values) -> Number:
    """Messages between stages, there and back; tp ranks send a slice each and gather on the other side
    (scatter/gather, Narayanan et al. 2021, section 4.1)."""
    hidden = _hidden_bytes(step)
    gather = where(step.sequence_parallel, 0.0, ring_seconds(hidden, step.tp, 1.0, step, v))
    crosses = step.tp * step.cp * step.dp >= step.nvlink_domain
    hop = where(crosses, step.nic_bytes_per_s * v["nic"], step.accelerator.near_bytes_per_s * v["nvlink"])
    each = hidden / step.tp / hop + v["alpha"] + gather
    shown = where(step.overlap_pp, v["exposed_pp"], 1.0)
    return where(step.pp > 1, 2.0 * step.virtual_stages * step.num_microbatches * each * shown, 0.0)


def _bubble(step: Steps, passes: Number, weight: Number) -> Number:
    """Idle seconds of a stage whose passes F and B take `passes`, W of them for weight gradients.

    1F1B, GPipe: (p - 1)(F + B); interleaved: 1/v of it. ZB-H1: (p - 1)(F + B - 2 W) (Qi et al. 2023, table 2).
    DualPipe: (p/2 - 1)(F + B - 2 W), where a stage sends what its forward made before the backward that it is paired
    with ends; merged into one pass F&B they would leave (p/2 - 1)(F&B + B - 3 W) (DeepSeek-AI 2024, table 2).
    """
    filled = np.maximum(passes - 2.0 * weight, 0.0)
    dual = np.maximum(step.pp / 2.0 - 1.0, 0.0) * filled
    plain = (step.pp - 1.0) / step.virtual_stages * passes
    zero = where(step.schedule == "zb_h1", (step.pp - 1.0) * filled, plain)
    return where(step.schedule == "dualpipe", dual, zero)


# -- gradients and update ---------------------------------


def stage_parameters(step: Steps) -> tuple[Number, Number]:
    """Weights of the fullest stage on one rank: dense ones, and routed experts."""
    model, moe = step.model, step.model.moe_layers
    layers = ((model.layers - moe) * model.dense_layer_parameters + moe * model.unrouted_parameters) / step.pp
    output, embedding = model.vocab * model.hidden, model.embedding_parameters
    vocabulary = where(step.pp > 1, output, embedding + output * (embedding != output))
    return (layers + vocabulary) / step.tp, moe * model.routed_parameters / (step.pp * step.ep * step.expert_tp)


def _data_parallel(step: Steps, v: Values, micro: Number) -> Number:
    """Exposed seconds of gradients and parameters; `micro`: compute of a micro-batch."""
    dense, experts = stage_parameters(step)
    ranks, live = step.dp * step.cp, where(step.frozen_weights, 0.0, 1.0)

    def round_of(bytes_each: Number) -> Number:
        of_dense = ring_seconds(dense * bytes_each, ranks, step.tp, step, v)
        return of_dense + ring_seconds(experts * bytes_each, step.expert_dp, step.ep, step, v)

    grad, param = round_of(step.precision.gradient_bytes * live), round_of(step.precision.weight_bytes)
    plain = grad + where(step.zero_stage > 0, param * live, grad)
    once = where(step.overlap_dp, overlapped(plain, GRADIENT_WINDOW * micro, v), plain)
    launch = (v["alpha_z"] + v["alpha_rank"] * ranks) * SHARD_COLLECTIVES * step.model.layers * (ranks > 1)
    sharded = 2.0 * param + grad + launch
    each = where(step.overlap_dp, overlapped(sharded, SHARD_WINDOW * micro, v), sharded)
    return where(step.zero_stage >= 3, step.num_microbatches * each, once)


def overlapped(traffic: Number, window: Number, v: Values) -> Number:
    """Seconds that traffic beside `window` seconds of compute adds: what is left in the open, and what the hidden part
    slows compute by, since its kernels hold SMs and memory bandwidth."""
    exposed = np.maximum(v["exposed_dp"] * traffic, traffic - window)
    return exposed + (traffic - exposed) * (1.0 - 1.0 / v["slowdown"])


UPDATE_BYTES = 30.0
"""Per owned parameter: Adam reads and writes the fp32 weight and two moments, reads the gradient, writes 16 bits."""

NORM_BYTES = 8.0
"""Per parameter: the gradient is read for its norm, scaled, and copied."""


def optimizer_seconds(step: Steps, v: Values) -> Number:
    """Seconds of the update: `UPDATE_BYTES` per owned parameter, and `NORM_BYTES` per parameter."""
    dense, experts = stage_parameters(step)
    sharded = step.zero_stage > 0
    owned = dense / where(sharded, step.shards, 1.0) + experts / where(sharded, step.expert_dp, 1.0)
    whole = where(step.zero_stage >= 3, owned, dense + experts)
    seconds = (UPDATE_BYTES * owned + NORM_BYTES * whole) / memory_rate(step, v)
    return where(step.frozen_weights, 0.0, seconds) * where(step.stack == "eager", v["elementwise_eager"], 1.0)
