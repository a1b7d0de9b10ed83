"""The quantities behind claims: each computed by the same code that predicts steps, memory and traffic.

A function gets the claim, its scenario and its topology, and returns what comes out with what had to be assumed, and
with the reason that would explain a difference. `commsim.scenario.workload.claim` decides whether the claim holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commsim.errors import ScenarioError
from commsim.scenario.claim import ClaimSpec
from commsim.scenario.training import TrainingSpec, step_of
from commsim.training import tasks, traffic
from commsim.training.accelerator import accelerator
from commsim.training.activations import layer_kept, recomputed
from commsim.training.finetune import NF4_DOUBLE_BYTES, FineTune, finetune_memory, lora_parameters
from commsim.training.memory import software, states
from commsim.training.model import model
from commsim.training.pipeline import run as run_order
from commsim.training.pipeline_schedules import build
from commsim.training.precision import precision, with_gradients
from commsim.training.spec import Step
from commsim.training.stages import Weights, chunks_of
from commsim.training.utilisation import model_flops
from commsim.training.work import compute_time, optimizer_time
from commsim.units import GIB, GIGA

if TYPE_CHECKING:
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class Finding:
    """What was computed; ``assumption``: what it holds under; ``because``: why it may differ from what is said."""

    value: float
    assumption: str = ""
    because: str = ""


Quantity = Callable[[ClaimSpec, "Setting", "Topology"], Finding]


def _number(claim: ClaimSpec, name: str, default: float | None = None) -> float:
    value = claim.inputs.get(name, default)
    if not isinstance(value, (int, float)):
        raise ScenarioError(f"claim.inputs: found no number {name!r}, which {claim.quantity} needs")
    return float(value)


def _word(claim: ClaimSpec, name: str, default: str | None = None) -> str:
    value = claim.inputs.get(name, default)
    if not isinstance(value, str):
        raise ScenarioError(f"claim.inputs: found no text {name!r}, which {claim.quantity} needs")
    return value


def _training(claim: ClaimSpec) -> TrainingSpec:
    if claim.training is None:
        raise ScenarioError(f"claim: found no training, which {claim.quantity} needs")
    return claim.training


# -- traffic ---------------------------------


def ring_time_ratio(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Time of a ring all_reduce on all nodes over that on ``few`` nodes, by NCCL's model with NCCL_ALGO=Ring."""
    from commsim.nccl.predict import Options, Predictor
    from commsim.scenario.training_run import parts_of

    part = parts_of(scenario.topology, scenario.base_dir, topology)
    nbytes = round(_number(claim, "nbytes"))
    options = Options(version=(2, 26, 2), mode="single", algorithm="ring")
    seconds = [
        Predictor(part(nodes, topology.ranks_per_node), options).predict("all_reduce", nbytes).time_s
        for nodes in (round(_number(claim, "few")), topology.nodes)
    ]
    return Finding(seconds[1] / seconds[0], because="latency grows with the number of ranks")


def ring_traffic_ratio(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Bytes of a ring all_reduce over all links with ``many`` ranks over those with ``few``: 2 (N-1) per byte."""
    few, many = round(_number(claim, "few")), round(_number(claim, "many"))
    call = [n * traffic.AxisCalls("dp", "all_reduce", 1.0, n).sent_bytes for n in (few, many)]
    return Finding(call[1] / call[0])


def server_ratio(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Bytes through one parameter server over those through a rank of a ring; gradients as wide as parameters."""
    n = round(_number(claim, "ranks"))
    received, sent = traffic.server_bytes(1.0, 1.0, n)
    ring = 2 * traffic.sent_bytes(traffic.data_parallel("ddp", 1.0, 1.0, n))
    return Finding((received + sent) / ring, because="a ring moves 2 (N-1)/N of the bytes both ways, a server N")


def ddp_bytes_per_rank(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Gigabytes that a rank sends per step: counted on the rows of a ring schedule of as many ranks."""
    from commsim.collectives.ring import ring_all_reduce

    n = round(_number(claim, "ranks"))
    schedule = ring_all_reduce(n, n * 1024)
    share = float(schedule.sent_bytes().max()) / (n * 1024)
    return Finding(share * _number(claim, "gigabytes"))


def zero_traffic(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Bytes of ZeRO-3 over those of DDP at one micro-batch, parameters and gradients in the same type."""
    n, m = round(_number(claim, "ranks")), round(_number(claim, "micro_batches", 1))
    both = [traffic.sent_bytes(traffic.data_parallel(s, 1.0, 1.0, n, m)) for s in ("zero3", "ddp")]
    return Finding(both[0] / both[1], because=f"with {m} accumulated micro-batches ZeRO-3 gathers and scatters in each")


# -- memory ---------------------------------


def _states(parameters: float, ranks: int, stage: int) -> float:
    """Bytes of model states of one rank: 16-bit weights and gradients, 12 bytes of optimizer."""
    one = Step(model("megatron-7.5b"), accelerator("V100"), precision("fp16"), 2048, 1, ranks, dp=ranks)
    one = replace(one, zero_stage=stage)
    kept = states(one, replace(software(one, "megatron"), gradient=2.0), Weights(parameters, 0.0))
    return kept["weights"] + kept["gradients"] + kept["optimizer"]


def zero_gigabytes(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Gigabytes (10**9) of model states on one rank."""
    parameters, ranks, stage = (_number(claim, n) for n in ("parameters", "ranks", "stage"))
    return Finding(_states(parameters, round(ranks), round(stage)) / GIGA)


def zero_saving(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """How many times less memory ZeRO-3 needs for model states than DDP."""
    ranks = round(_number(claim, "ranks"))
    kept = [_states(7.5e9, ranks, stage) for stage in (0, 3)]
    return Finding(kept[0] / kept[1], because=f"states divide by the {ranks} ranks; 120 is their gigabytes unsharded")


def model_states(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """GiB of weights, gradients and optimizer of all parameters."""
    formats = with_gradients(precision("fp16"), round(_number(claim, "bytes", 16)))
    return Finding(_number(claim, "parameters") * formats.state_bytes("adam") / GIB)


def optimizer_share(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Percent of the model states that are the optimizer's: master weights and two moments."""
    formats = precision("fp16")
    return Finding(100.0 * formats.optimizer_bytes("adam") / formats.state_bytes("adam"))


def bytes_per_parameter(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Bytes per parameter of weight, gradient and Adam's states."""
    formats = precision(_word(claim, "precision"))
    variant = claim.inputs.get("variant")
    if variant is not None:
        formats = with_gradients(formats, round(_number(claim, "variant")))
    return Finding(formats.state_bytes("adam"))


def activation_growth(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Exponent with which activations of a layer grow from ``seq_len`` tokens to twice as many."""
    step = step_of(_training(claim), topology, scenario.base_dir)
    from math import log2

    kept = []
    for factor in (1, 2):
        longer = replace(step, seq_len=step.seq_len * factor)
        kept.append(recomputed(layer_kept(longer, 0, dropout=not step.flash_attention), longer))
    return Finding(log2(kept[1] / kept[0]), because="the terms that grow with s stay beside those that grow with s^2")


def lora_saving(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Percent by which LoRA with Adam needs less than training all weights, states only."""
    full = _number(claim, "weight") + _number(claim, "gradient") + _number(claim, "optimizer")
    kept = _number(claim, "weight")
    words = ("weights", "gradient", "optimizer")
    counted = [w for w, n in zip(words, ("weight", "gradient", "optimizer"), strict=True) if _number(claim, n)]
    usual = precision("bf16").state_bytes("adam")
    return Finding(
        100.0 * (1.0 - kept / full),
        assumption=f"{' and '.join(counted)} are counted, all in fp32; with 16-bit weights and fp32 states it is "
        f"{100 * (1 - 2.0 / usual):.0f} %",
    )


def finetune_gigabytes(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Gigabytes per GPU of LoRA (16-bit base) or QLoRA (``base: nf4``) over ``ranks`` GPUs, with checkpointing."""
    one = Step(
        model(_word(claim, "model")), accelerator("A100"), precision("bf16"), 2048, 1, 1,
        frozen_weights=True, recompute="full",
    )  # fmt: skip
    base = NF4_DOUBLE_BYTES if _word(claim, "base", "bf16") == "nf4" else 2.0
    every = ("q", "k", "v", "o", "up", "gate", "down")
    trained = lora_parameters(one, round(_number(claim, "rank", 16)), every)
    tokens, ranks = round(_number(claim, "tokens")), round(_number(claim, "ranks", 1))
    parts = finetune_memory(one, FineTune(trained, base), tokens, ranks)
    return Finding(
        sum(parts.values()) / GIGA,
        assumption=f"a micro-batch has {tokens} tokens, recomputation is full, and {trained / 1e6:.0f} million trained "
        "parameters keep 16 bytes each",
        because=", ".join(f"{name} take {value / GIGA:.1f} GB" for name, value in parts.items()),
    )


# -- time ---------------------------------


def bubble(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Idle over busy time of a schedule with equal stages, by running its order."""
    p, m, v = (round(_number(claim, n, 1)) for n in ("stages", "micro_batches", "virtual_stages"))
    order = build(_word(claim, "schedule"), p, m, v)
    seconds = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
    return Finding(run_order(order, lambda s, a: seconds[a.kind] / order.chunks).bubble)


def split_width(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Columns of a tensor on each rank of a tp group."""
    return Finding(_number(claim, "width") / _number(claim, "ranks"))


def _compute_seconds(step: Step) -> float:
    """Seconds of one micro-batch's passes and of the update on one GPU of one stage."""
    seconds = [compute_time(step)(chunk) for chunk in chunks_of(step)]
    return sum(s.forward + s.backward_input + s.backward_weight for s in seconds)


def single_gpu_days(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Days of training on one GPU, as if memory were no limit, by the operator model."""
    step = step_of(_training(claim), topology, scenario.base_dir)
    tokens = _number(claim, "tokens")
    step_s = step.num_microbatches * _compute_seconds(step) + max(optimizer_time(step))
    days = tokens / step.tokens * step_s / 86400
    peak = step.accelerator.peak(step.precision.gemm)
    reached = model_flops(step) / step_s / peak
    needed = reached * days / (claim.printed[-1] * (365.25 if claim.unit == "years" else 1.0))
    value = days / 365.25 if claim.unit == "years" else days
    return Finding(
        value,
        assumption=f"{tokens:.3g} tokens are seen, at {reached:.0%} of the peak",
        because=f"with {tokens:.3g} tokens it needs {needed:.0%} of the peak, and the operators reach {reached:.0%}",
    )


def recompute_cost(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Percent by which passes take longer with full recomputation."""
    step = step_of(_training(claim), topology, scenario.base_dir)
    both = [_compute_seconds(replace(step, recompute=r)) for r in ("none", "full")]
    return Finding(100.0 * (both[1] / both[0] - 1.0))


def training_days(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Days (or ``unit: months``) of the claim's training at its tokens, by simulating one step."""
    from commsim.scenario.training_run import run_training

    item, _ = run_training(scenario, topology, _training(claim))
    days = _number(claim, "tokens") / item.step.tokens * item.step_s / 86400
    return Finding(
        days / 30.44 if claim.unit == "months" else days,
        assumption="no step is lost, and the mesh is the one given here" if _number(claim, "ours", 0) else "",
        because=f"one step takes {item.step_s:.1f} s, {item.tokens_per_s_per_gpu:.0f} tokens/s/GPU, without failures",
    )


def order_ratio(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Step time with pp innermost (tp across nodes) over that with tp innermost."""
    from commsim.scenario.training_run import run_training

    spec = _training(claim)
    turned = spec.mesh.model_copy(update={"order": ("pp", "cp", "ep", "dp", "tp")})
    seconds = [run_training(scenario, topology, s)[0].step_s for s in (spec, spec.model_copy(update={"mesh": turned}))]
    return Finding(seconds[1] / seconds[0])


def _rlhf(claim: ClaimSpec, scenario: Setting, topology: Topology) -> tasks.TaskCost:
    """One epoch of PPO: generation, scoring, and updates whose passes the operator model times."""
    step = step_of(_training(claim), topology, scenario.base_dir)
    critic_spec = _training(claim).model_copy(update={"model": _word(claim, "critic", "opt-350m")})
    critic = step_of(critic_spec, topology, scenario.base_dir)
    updates = [s.num_microbatches * _compute_seconds(s) + max(optimizer_time(s)) for s in (step, critic)]
    learners = tasks.Learner(step.model, updates[0]), tasks.Learner(critic.model, updates[1])
    prompt, answer = round(_number(claim, "prompt", 256)), round(_number(claim, "answer", 256))
    gpus = topology.world_size
    each = 1
    while step.model.parameters() * 2.0 > 0.7 * step.accelerator.memory_bytes * each and each < gpus:
        each *= 2
    rollout = tasks.Rollout(step.global_batch_size, prompt, answer, each)
    steps = _number(claim, "queries") / step.global_batch_size
    return tasks.ppo(steps, *learners, step.accelerator, gpus, rollout)


def rlhf_hours(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """Hours of one epoch of RLHF's third step."""
    cost = _rlhf(claim, scenario, topology)
    parts = ", ".join(f"{name} {share:.0%}" for name, share in tasks.share(cost.phases).items())
    return Finding(
        cost.seconds / 3600,
        assumption=f"generation runs at the roofline ({parts})",
        because=f"the roofline leaves out what the engine adds per token and layer, and traffic of ZeRO-3 ({parts})",
    )


def rlhf_usd(claim: ClaimSpec, scenario: Setting, topology: Topology) -> Finding:
    """The same in dollars."""
    hours = rlhf_hours(claim, scenario, topology)
    return replace(hours, value=hours.value * topology.world_size * _number(claim, "gpu_hour_usd"))


_ALL: tuple[Quantity, ...] = (
    activation_growth,
    bubble,
    bytes_per_parameter,
    ddp_bytes_per_rank,
    finetune_gigabytes,
    lora_saving,
    model_states,
    optimizer_share,
    order_ratio,
    recompute_cost,
    ring_time_ratio,
    ring_traffic_ratio,
    rlhf_hours,
    rlhf_usd,
    server_ratio,
    single_gpu_days,
    split_width,
    training_days,
    zero_gigabytes,
    zero_saving,
    zero_traffic,
)
FUNCTIONS = {quantity.__name__: quantity for quantity in _ALL}
"""By name, as `QUANTITIES` lists them."""
