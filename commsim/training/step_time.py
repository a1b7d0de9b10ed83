"""Seconds of a training step in closed form: compute, what of the traffic is exposed, and the pipeline's bubble."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce

import numpy as np

from commsim.training.columns import Number, holds, where
from commsim.training.compute import FUSED_BACKWARD_FLOPS, Passes, Values, memory_rate, step_compute
from commsim.training.dispatch import (
    FP8_BYTES,
    Dispatcher,
    ExpertExchange,
    RankLinks,
    combine_seconds,
    dispatch_seconds,
    dispatch_values,
)
from commsim.training.muon import gathered_bytes, orthogonalise_seconds
from commsim.training.overlap import added
from commsim.training.recompute import module_shares
from commsim.training.spec import Steps
from commsim.training.stages import Share, telling_stages


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
    """Seconds of every step by part, at the stage that takes longest for a micro-batch."""
    work = step_compute(step, v)
    dense, moe = _layer(work.dense, step, v, 0.0), _layer(work.moe, step, v, 1.0)
    head = work.head.forward + work.head.backward
    share = _slowest(step, dense.total, moe.total, head)
    stage = _Layer(*(share.dense * a + share.moe * b for a, b in zip(dense.parts, moe.parts, strict=True)))
    outputs = share.outputs * head
    whole = (step.model.layers - step.model.moe_layers) * dense.total + step.model.moe_layers * moe.total + head
    weight = work.of_stage(step, lambda p: p.weight)
    m, compute = step.num_microbatches, stage.compute + outputs
    back = work.of_stage(step, lambda p: p.backward + recompute_seconds(p, step))
    bubble = _bubble(
        step, whole, stage.total + outputs, weight, back / (back + work.of_stage(step, lambda p: p.forward))
    )
    pp, dp = _pipeline_parallel(step, v), _data_parallel(step, v, compute)
    seconds = (
        m * compute,
        m * stage.tp,
        m * stage.ep,
        m * stage.cp,
        pp,
        bubble,
        dp,
        optimizer_seconds(step, v),
        v["constant"],
    )
    return StepTime(*(v["scale"] * part for part in seconds))


@dataclass(frozen=True, eq=False)
class _Layer:
    """Seconds of a layer's passes, there and back, on one micro-batch: compute, and what is exposed of each axis."""

    compute: Number
    tp: Number
    ep: Number
    cp: Number

    @property
    def parts(self) -> tuple[Number, ...]:
        return self.compute, self.tp, self.ep, self.cp

    @property
    def total(self) -> Number:
        return self.compute + self.tp + self.ep + self.cp


def _layer(p: Passes, step: Steps, v: Values, experts: float) -> _Layer:
    """A layer's passes; `experts`: 1 where it exchanges tokens with others'."""
    compute = p.forward + p.backward + recompute_seconds(p, step)
    tp = _tensor_parallel(step, v)
    tp = where(step.overlap_tp, added(tp, compute, v["exposed_tp"], v["slowdown"]), tp)
    cp = _context_parallel(step, v)
    core = p.attention * (1.0 + FUSED_BACKWARD_FLOPS)
    cp = where(step.context_parallel == "ring", added(cp, core, v["exposed_cp"], v["slowdown"]), cp)
    return _Layer(compute, tp, experts * _expert_parallel(step, v, compute), cp)


def _slowest(step: Steps, dense: Number, moe: Number, head: Number) -> Share:
    """What the stage holds that takes longest for a micro-batch, of the seconds of its parts."""
    dual = step.schedule == "dualpipe"
    first, second, most, last = (
        np.stack(np.broadcast_arrays(*vars(share).values(), dual)[:-1]) for _, share in telling_stages(step)
    )
    # Half of DualPipe's micro-batches see a stage's own layers, half those of the stage opposite.
    mean = (first + last) / 2.0
    held = (where(dual, mean, first), second, most, where(dual, mean, last))
    seconds = np.stack([d * dense + e * moe + o * head for d, e, _, o in held])
    worst = seconds.argmax(axis=0)
    return Share(*np.take_along_axis(np.stack(np.broadcast_arrays(*held)), worst[None, None], axis=0)[0])


def recompute_seconds(p: Passes, step: Steps) -> Number:
    """Seconds of a layer's second forward: all of it, or up to its last product where it `ends_early`; its modules (of
    attention's core where it is not fused), or what layer-wise AC drops; modules of some layers only count for all of
    them by their share."""
    products, kernels = module_shares(step)
    core = where(step.flash_attention, 0.0, p.attention) * holds(step.recompute_modules, "core_attn")
    modules = core + products * p.gemm + kernels * p.memory
    layerwise = where(step.recompute == "layerwise", LAYERWISE_PRODUCTS * p.gemm + LAYERWISE_MEMORY * p.memory, 0.0)
    whole = p.forward - where(step.ends_early, p.last, 0.0)
    return where(step.recompute == "full", whole, where(step.recompute == "selective", modules, layerwise))


# -- inside a pass, seconds of a stage's layers on one micro-batch ---------------------------------


def _hidden_bytes(step: Steps) -> Number:
    """Bytes of a micro-batch's hidden states in 16 bit, before tp cuts them."""
    return step.rank_tokens * step.model.hidden * 2.0


def _tensor_parallel(step: Steps, v: Values) -> Number:
    """Two all_reduces forward and two backward (Shoeybi et al. 2019); sequence parallelism gathers the inputs of both
    pairs of products once more (Korthikanti et al. 2022), full recomputation repeats the forward's, or the first."""
    all_reduce = 2.0 * ring_seconds(_hidden_bytes(step), step.tp, 1.0, step, v)
    again = where(step.sequence_parallel, 1.0, 0.0) + where(step.recompute == "full", 2.0 - step.ends_early, 0.0)
    return all_reduce * (4.0 + again)


def _expert_parallel(step: Steps, v: Values, compute: Number) -> Number:
    """Dispatch and combine, forward and backward; with expert_tp > 1 their ranks gather tokens and sum, too.

    DualPipe, and Megatron-Core with `overlap_moe_expert_parallel_comm`, run them beside another micro-batch's pass.
    """
    nbytes = _hidden_bytes(step) / step.tp * step.expert_tp * step.model.routing.top_k * step.imbalance
    rounds = where(step.recompute == "full", 3.0 - 0.5 * step.ends_early, 2.0)  # the forward's again, or its dispatch
    exchanged = rounds * sum(expert_exchange_seconds(step, v))
    summed = 2.0 * rounds * ring_seconds(nbytes, step.expert_tp, 1.0, step, v)
    least = where(step.hides_experts, 0.0, v["exposed_ep"])
    summed = where(step.overlap_tp, added(summed, compute, v["exposed_tp"], v["slowdown"]), summed)
    return added(exchanged, compute, least, expert_slowdown(step, v)) + summed


def expert_exchange_seconds(step: Steps, v: Values) -> tuple[Number, Number]:
    """Seconds of dispatch and combine of a layer's tokens, one way, with each GPU's share of the NICs."""
    exchange = exchange_of(step)
    links, kernels = RankLinks.of(step.accelerator, step.nic_bytes_per_s), dispatcher_of(step)
    values = {**dispatch_values(), **v}
    return dispatch_seconds(kernels, exchange, links, values), combine_seconds(kernels, exchange, links, values)


def exchange_of(step: Steps) -> ExpertExchange:
    """What the ranks of an expert-parallel group exchange for a layer and micro-batch."""
    return ExpertExchange(
        tokens=step.rank_tokens / step.tp * step.expert_tp,
        hidden=step.model.hidden,
        top_k=step.model.routing.top_k,
        experts=step.model.routing.experts,
        ranks=step.ep,
        inside=_inside(step.ep, 1.0, step.nvlink_domain),
        node_limit=step.model.routing.node_limit,
        imbalance=step.imbalance,
    )


def dispatcher_of(step: Steps) -> Dispatcher:
    """What sends a step's tokens, and in which types: 8 bit on the way to the experts where that is what their products
    read and keep, 16 on the way back (DeepSeek-V3, arXiv:2412.19437, section 3.3.3). NCCL sends what it is given."""
    width = step.precision.activation_bytes
    quantised = step.fp8_activations & (step.expert_dispatch != "nccl")
    there = where(quantised, FP8_BYTES, width)
    return Dispatcher(step.expert_dispatch, dispatch_bytes=there, combine_bytes=width)


def expert_slowdown(step: Steps, v: Values) -> Number:
    """Of compute beside an exchange of experts, at least that of other communication: its kernels hold SMs, half of
    them where they fill the GPU."""
    links = RankLinks.of(step.accelerator, step.nic_bytes_per_s)
    taken = dispatcher_of(step).sms_taken(links) / links.sms
    held = where(taken > 1.0, 0.0, np.minimum(taken, 0.5))
    return where(step.expert_dispatch == "nccl", v["slowdown"], np.maximum(v["slowdown"], 1.0 / (1.0 - held)))


def _context_parallel(step: Steps, v: Values) -> Number:
    """Keys and values forward, they and their gradients backward, round a ring or gathered; Ulysses exchanges queries
    and results as well, there and back."""
    each = step.rank_tokens / step.tp * 2.0
    kv, q = each * 2.0 * step.model.kv_width, each * step.model.q_width
    again = where(step.recompute == "full", 1.0, 0.0)
    heads = (2.0 + again) * ring_seconds(2.0 * q + kv, step.cp, step.tp, step, v)
    whole = (3.0 + again) * ring_seconds(kv * step.cp, step.cp, step.tp, step, v)
    return where(step.context_parallel == "ulysses", heads, whole)


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


def _bubble(step: Steps, whole: Number, stage: Number, weight: Number, back: Number) -> Number:
    """Idle seconds of the slowest stage, which takes `stage` for a micro-batch that takes `whole` on all of them;
    `weight`: the mean stage's for weight gradients, `back`: the backward's share of its passes.

    1F1B, GPipe: the other stages' passes; interleaved: 1/v of it. ZB-H1: (p - 1)(F + B - 2 W) (Qi et al. 2023, table
    2). DualPipe: (p/2 - 1)(F&B + B - 3 W) (DeepSeek-AI 2024, table 2); DualPipeV, whose 2 p chunks take half as long:
    (p - 1)(F&B + B - 3 W). ZB-V: `zb_v_bubble`.
    """
    passes = whole / step.pp
    rounds = where(step.v_shaped, (step.pp - 1.0) / 2.0, np.maximum(step.pp / 2.0 - 1.0, 0.0))
    bubble = (whole - stage) / step.virtual_stages
    bubble = where(step.schedule == "zb_h1", (step.pp - 1.0) * np.maximum(passes - 2.0 * weight, 0.0), bubble)
    dual = rounds * np.maximum(passes * (1.0 + back) - 3.0 * weight, 0.0)
    bubble = where(step.pairs_passes, dual, bubble)
    if np.any(step.schedule == "zb_v"):
        inputs = passes * back - weight
        of_v = zb_v_bubble(step.pp, passes * (1.0 - back) / 2.0, inputs / 2.0, weight / 2.0)
        bubble = where(step.schedule == "zb_v", of_v, bubble)
    return bubble


def zb_v_bubble(pp: Number, f: Number, i: Number, w: Number) -> Number:
    """Idle seconds of ZB-V from the first stage's start to the last's end, of the seconds of a chunk's F, I and W.

    The paths through the order of `zb_v` that are longer than 2 m (F + I + W) for some F, I and W, m >= 2 p: where
    all are alike the last stage starts (p - 1) F late and nobody is idle between (Qi et al. 2024 count only that).
    """
    n = pp - 1.0
    paths = (
        n * i,  # down with the last inputs' gradients
        2.0 * n * (i - w),
        np.maximum(f, i) + (n - 1.0) * w,
        (2.0 * n - 1.0) * f - (n - 1.0) * i,
        (2.0 * n - 1.0) * f + i - 2.0 * n * w,
        2.0 * n * f - np.minimum(n * i + w, (2.0 * n + 1.0) * w),
    )
    return where(pp > 1, reduce(np.maximum, paths), 0.0)


# -- gradients and update ---------------------------------


def stage_parameters(step: Steps) -> tuple[Number, Number]:
    """Weights of the fullest stage on one rank: dense ones, and routed experts."""
    model, moe = step.model, step.model.moe_layers
    layers = ((model.layers - moe) * model.dense_layer_parameters + moe * model.unrouted_parameters) / step.pp
    output, embedding = model.vocab * model.hidden, model.embedding_parameters
    vocabulary = where((step.pp > 1) & (step.v_shaped == 0), output, embedding + output * (embedding != output))
    return (layers + vocabulary) / step.tp, moe * model.routed_parameters / (step.pp * step.ep * step.expert_tp)


def _data_parallel(step: Steps, v: Values, micro: Number) -> Number:
    """Exposed seconds of gradients and parameters; `micro`: compute of a micro-batch."""
    dense, experts = stage_parameters(step)
    ranks, live = step.dp * step.cp, where(step.frozen_weights, 0.0, 1.0)
    share = where(step.zero_stage > 0, step.shards, ranks)

    def round_of(bytes_each: Number) -> Number:
        of_dense = ring_seconds(dense * bytes_each, share, step.tp, step, v)
        return of_dense + ring_seconds(experts * bytes_each, step.expert_dp, step.ep, step, v)

    grad, param = round_of(step.precision.gradient_bytes * live), round_of(step.precision.weight_bytes)
    shard_bytes = dense * step.precision.gradient_bytes * live / share
    across = 2.0 * ring_seconds(shard_bytes, ranks / share, step.tp * share, step, v)  # of HSDP's groups
    grad = grad + where(step.zero_stage < 3, across, 0.0)
    back = where(step.zero_stage > 0, param * live, grad)
    hidden = grad + where(step.overlap_param_gather | (step.zero_stage == 0), back, 0.0)
    beside = overlapped(hidden, GRADIENT_WINDOW * micro, v) + (grad + back - hidden)
    once = where(step.overlap_dp, beside, grad + back)
    # Gradients of all micro-batches but the last may hide behind the next one.
    before = where(step.overlap_dp, added(grad, micro, 0.0, v["slowdown"]), grad)
    once = once + where(reduces_often(step), (step.num_microbatches - 1.0) * before, 0.0)
    launch = shard_launch_seconds(step, v) * SHARD_COLLECTIVES * step.model.layers / step.pp
    sharded = 2.0 * param + grad + launch
    each = where(step.overlap_dp, overlapped(sharded, SHARD_WINDOW * micro, v), sharded)
    summed = where(step.overlap_dp, overlapped(across, GRADIENT_WINDOW * micro, v), across)
    exposed = where(step.zero_stage >= 3, step.num_microbatches * each + summed, once)
    return exposed + _momenta(step, v) if np.any(step.optimizer == "muon") else exposed


def reduces_often(step: Steps) -> Number:
    """Whether gradients leave after each micro-batch: ZeRO-2 keeps only its part of them, but in a pipeline frameworks
    keep a chunk's whole until its last one (Megatron-LM, torch's pipelines; DeepSpeed refuses both together)."""
    return (step.zero_stage == 2) & (step.pp == 1)


def _momenta(step: Steps, v: Values) -> Number:
    """Seconds of gathering momenta for Muon's update."""
    dense, experts = gathered_bytes(step)
    of_dense = where(dense > 0, ring_seconds(dense, step.shards, step.tp, step, v), 0.0)
    of_experts = where(experts > 0, ring_seconds(experts, step.expert_dp, step.ep, step, v), 0.0)
    return where(step.optimizer == "muon", of_dense + of_experts, 0.0)


def shard_launch_seconds(step: Steps, v: Values) -> Number:
    """Seconds that a collective of a layer under ZeRO-3 takes beside its bytes: launch, copies in and out."""
    return (v["alpha_z"] + v["alpha_rank"] * step.shards) * (step.shards > 1)


def overlapped(traffic: Number, window: Number, v: Values) -> Number:
    """Seconds that gradients and parameters beside `window` seconds of compute add."""
    return added(traffic, window, v["exposed_dp"], v["slowdown"])


UPDATE_BYTES = 30.0
"""Per owned parameter: Adam reads and writes the fp32 weight and two moments, reads the gradient, writes 16 bits."""

MUON_BYTES = 22.0
"""The same with one moment; what the iterations read and write is part of their products."""

NORM_BYTES = 8.0
"""Per parameter: the gradient is read for its norm, scaled, and copied."""


def optimizer_seconds(step: Steps, v: Values) -> Number:
    """Seconds of the update: `UPDATE_BYTES` per owned parameter, `NORM_BYTES` per parameter, Muon's iterations."""
    dense, experts = stage_parameters(step)
    sharded = step.zero_stage > 0
    owned = dense / where(sharded, step.shards, 1.0) + experts / where(sharded, step.expert_dp, 1.0)
    whole = where(step.zero_stage >= 3, owned, dense + experts)
    muon = step.optimizer == "muon"
    seconds = (where(muon, MUON_BYTES, UPDATE_BYTES) * owned + NORM_BYTES * whole) / memory_rate(step, v)
    if np.any(muon):
        seconds = seconds + where(muon, orthogonalise_seconds(step, v), 0.0)
    return where(step.frozen_weights, 0.0, seconds) * where(step.stack == "eager", v["elementwise_eager"], 1.0)
