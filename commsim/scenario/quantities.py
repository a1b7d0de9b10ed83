"""The quantities behind claims: each computed by the same code that predicts steps, memory and traffic.

A function gets what the claim says and its machine, and returns what comes out with what had to be assumed, and with
the reason that would explain a difference. `commsim.scenario.workload.claim` decides whether the claim holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import isfunction
from math import log2
from typing import TYPE_CHECKING

from commsim.errors import ScenarioError
from commsim.scenario.training import TrainingSpec, step_of
from commsim.training import traffic
from commsim.training.accelerator import accelerator
from commsim.training.activations import layer_kept, recomputed
from commsim.training.finetune import NF4_DOUBLE_BYTES, FineTune, finetune_memory, lora_kept, lora_parameters
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
    from commsim.scenario.rl_result import RlItem
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class Finding:
    """What was computed; ``assumption``: what it holds under; ``because``: why it may differ from what is said."""

    value: float
    assumption: str = ""
    because: str = ""


@dataclass(frozen=True, eq=False)
class ClaimCase:
    """What a claim asks of a machine: the fields of `ClaimSpec`, of ``printed`` the last."""

    quantity: str
    inputs: dict[str, float | str]
    training: TrainingSpec | None
    printed: float
    unit: str
    setting: Setting
    topology: Topology

    def number(self, name: str, default: float | None = None) -> float:
        """An input; ScenarioError where there is none."""
        value = self.inputs.get(name, default)
        if not isinstance(value, (int, float)):
            raise ScenarioError(f"claim.inputs: found no number {name!r}, which {self.quantity} needs")
        return float(value)

    def whole(self, name: str, default: int | None = None) -> int:
        """An input as a whole number."""
        return round(self.number(name, default))

    def word(self, name: str, default: str | None = None) -> str:
        """An input that is a name."""
        value = self.inputs.get(name, default)
        if not isinstance(value, str):
            raise ScenarioError(f"claim.inputs: found no text {name!r}, which {self.quantity} needs")
        return value

    @property
    def spec(self) -> TrainingSpec:
        """The claim's training; ScenarioError where there is none."""
        if self.training is None:
            raise ScenarioError(f"claim: found no training, which {self.quantity} needs")
        return self.training

    @property
    def step(self) -> Step:
        """The step of its training."""
        return step_of(self.spec, self.topology, self.setting.base_dir)


# -- traffic ---------------------------------


def ring_time_ratio(case: ClaimCase) -> Finding:
    """Time of a ring all_reduce on all nodes over that on ``few`` nodes, by NCCL's model with NCCL_ALGO=Ring."""
    from commsim.nccl.predict import Options, Predictor
    from commsim.scenario.training_run import parts_of

    topology, options = case.topology, Options(version=(2, 26, 2), mode="single", algorithm="ring")
    part = parts_of(case.setting.topology, case.setting.base_dir, topology)
    seconds = [
        Predictor(part(nodes, topology.ranks_per_node), options).predict("all_reduce", case.whole("nbytes")).time_s
        for nodes in (case.whole("few"), topology.nodes)
    ]
    return Finding(seconds[1] / seconds[0], because="latency grows with the number of ranks")


def ring_traffic_ratio(case: ClaimCase) -> Finding:
    """Bytes of a ring all_reduce over all links with ``many`` ranks over those with ``few``: 2 (N-1) per byte."""
    ranks = case.whole("few"), case.whole("many")
    few, many = (n * traffic.AxisCalls("dp", "all_reduce", 1.0, n).sent_bytes for n in ranks)
    return Finding(many / few)


def server_ratio(case: ClaimCase) -> Finding:
    """Bytes through one parameter server over those through a rank of a ring; gradients as wide as parameters."""
    n = case.whole("ranks")
    received, sent = traffic.server_bytes(1.0, 1.0, n)
    ring = 2 * traffic.sent_bytes(traffic.data_parallel("ddp", 1.0, 1.0, n))
    return Finding((received + sent) / ring, because="a ring moves 2 (N-1)/N of the bytes both ways, a server N")


def ddp_bytes_per_rank(case: ClaimCase) -> Finding:
    """Gigabytes that a rank sends per step: counted on the rows of a ring schedule of as many ranks."""
    from commsim.collectives.ring import ring_all_reduce

    n = case.whole("ranks")
    share = float(ring_all_reduce(n, n * 1024).sent_bytes().max()) / (n * 1024)
    return Finding(share * case.number("gigabytes"))


def zero_traffic(case: ClaimCase) -> Finding:
    """Bytes of ZeRO-3 over those of DDP at one micro-batch, parameters and gradients in the same type."""
    n, m = case.whole("ranks"), case.whole("micro_batches", 1)
    both = [traffic.sent_bytes(traffic.data_parallel(s, 1.0, 1.0, n, m)) for s in ("zero3", "ddp")]
    return Finding(both[0] / both[1], because=f"with {m} accumulated micro-batches ZeRO-3 gathers and scatters in each")


# -- memory ---------------------------------


def _states(parameters: float, ranks: int, stage: int) -> float:
    """Bytes of model states of one rank: 16-bit weights and gradients, 12 bytes of optimizer."""
    gpu, formats = accelerator("V100"), precision("fp16")
    one = Step(model("megatron-7.5b"), gpu, formats, 2048, 1, ranks, dp=ranks, zero_stage=stage)
    kept = states(one, replace(software(one, "megatron"), gradient=2.0), Weights(parameters, 0.0))
    return kept["weights"] + kept["gradients"] + kept["optimizer"]


def zero_gigabytes(case: ClaimCase) -> Finding:
    """Gigabytes (10**9) of model states on one rank."""
    return Finding(_states(case.number("parameters"), case.whole("ranks"), case.whole("stage")) / GIGA)


def zero_saving(case: ClaimCase) -> Finding:
    """How many times less memory ZeRO-3 needs for model states than DDP."""
    ranks = case.whole("ranks")
    kept = [_states(7.5e9, ranks, stage) for stage in (0, 3)]
    return Finding(kept[0] / kept[1], because=f"states divide by the {ranks} ranks; 120 is their gigabytes unsharded")


def model_states(case: ClaimCase) -> Finding:
    """GiB of weights, gradients and optimizer of all parameters."""
    formats = with_gradients(precision("fp16"), case.whole("bytes", 16))
    return Finding(case.number("parameters") * formats.state_bytes("adam") / GIB)


def optimizer_share(case: ClaimCase) -> Finding:
    """Percent of the model states that are the optimizer's: master weights and two moments."""
    formats = precision("fp16")
    return Finding(100.0 * formats.optimizer_bytes("adam") / formats.state_bytes("adam"))


def bytes_per_parameter(case: ClaimCase) -> Finding:
    """Bytes per parameter of weight, gradient and Adam's states."""
    formats = precision(case.word("precision"))
    if "variant" in case.inputs:
        formats = with_gradients(formats, case.whole("variant"))
    return Finding(formats.state_bytes("adam"))


def activation_growth(case: ClaimCase) -> Finding:
    """Exponent with which activations of a layer grow from ``seq_len`` tokens to twice as many."""
    step = case.step
    kept = [
        recomputed(layer_kept(longer, 0, dropout=not step.flash_attention), longer)
        for longer in (step, replace(step, seq_len=step.seq_len * 2))
    ]
    return Finding(log2(kept[1] / kept[0]), because="the terms that grow with s stay beside those that grow with s^2")


def lora_saving(case: ClaimCase) -> Finding:
    """Percent by which LoRA with Adam needs less than training all weights, states only."""
    each = {"weights": case.number("weight"), **{n: case.number(n) for n in ("gradient", "optimizer")}}
    counted = " and ".join(name for name, nbytes in each.items() if nbytes)
    usual = precision("bf16").state_bytes("adam")
    return Finding(
        100.0 * (1.0 - each["weights"] / sum(each.values())),
        assumption=f"{counted} are counted, all in fp32; with 16-bit weights and fp32 states it is "
        f"{100 * (1 - 2.0 / usual):.0f} %",
    )


def finetune_gigabytes(case: ClaimCase) -> Finding:
    """Gigabytes per GPU of LoRA (16-bit base) or QLoRA (``base: nf4``) over ``ranks`` GPUs, with checkpointing."""
    tokens, ranks = case.whole("tokens"), case.whole("ranks", 1)
    one = Step(
        model(case.word("model")), accelerator("A100"), precision("bf16"), tokens, 1, 1,
        frozen_weights=True, recompute="full", stack="eager",
    )  # fmt: skip
    base = NF4_DOUBLE_BYTES if case.word("base", "bf16") == "nf4" else 2.0
    every = ("q", "k", "v", "o", "up", "gate", "down")
    trained = lora_parameters(one, case.whole("rank", 16), every)
    parts = finetune_memory(one, FineTune(trained, base, kept_bytes=lora_kept(one, every)), ranks)
    return Finding(
        sum(parts.values()) / GIGA,
        assumption=f"a micro-batch has {tokens} tokens, recomputation is full, and {trained / 1e6:.0f} million trained "
        "parameters keep 16 bytes each",
        because=", ".join(f"{name} take {value / GIGA:.1f} GB" for name, value in parts.items()),
    )


# -- time ---------------------------------


def bubble(case: ClaimCase) -> Finding:
    """Idle over busy time of a schedule with equal stages, by running its order."""
    p, m, v = (case.whole(n, 1) for n in ("stages", "micro_batches", "virtual_stages"))
    order = build(case.word("schedule"), p, m, v)
    seconds = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
    return Finding(run_order(order, lambda s, a: seconds[a.kind] / order.chunks).bubble)


def split_width(case: ClaimCase) -> Finding:
    """Columns of a tensor on each rank of a tp group."""
    return Finding(case.number("width") / case.number("ranks"))


def _compute_seconds(step: Step) -> float:
    """Seconds of one micro-batch's passes on one GPU of every stage."""
    seconds = map(compute_time(step), chunks_of(step))
    return sum(s.forward + s.backward_input + s.backward_weight for s in seconds)


def _step_seconds(step: Step) -> float:
    """Seconds of compute of a step: all passes and the slowest update."""
    return step.num_microbatches * _compute_seconds(step) + max(optimizer_time(step))


def single_gpu_days(case: ClaimCase) -> Finding:
    """Days of training on one GPU, as if memory were no limit, by the operator model."""
    step, tokens = case.step, case.number("tokens")
    step_s = _step_seconds(step)
    unit_days = 365.25 if case.unit == "years" else 1.0
    days = tokens / step.tokens * step_s / 86400
    reached = model_flops(step) / step_s / step.accelerator.peak(step.precision.gemm)
    needed = reached * days / (case.printed * unit_days)
    return Finding(
        days / unit_days,
        assumption=f"{tokens:.3g} tokens are seen, at {reached:.0%} of the peak",
        because=f"with {tokens:.3g} tokens it needs {needed:.0%} of the peak, and the operators reach {reached:.0%}",
    )


def recompute_cost(case: ClaimCase) -> Finding:
    """Percent by which passes take longer with full recomputation."""
    none, full = (_compute_seconds(replace(case.step, recompute=r)) for r in ("none", "full"))
    return Finding(100.0 * (full / none - 1.0))


def training_days(case: ClaimCase) -> Finding:
    """Days (or ``unit: months``) of the claim's training at its tokens, by simulating one step."""
    from commsim.scenario.training_run import run_training

    item, _ = run_training(case.setting, case.topology, case.spec)
    days = case.number("tokens") / item.step.tokens * item.step_s / 86400
    return Finding(
        days / 30.44 if case.unit == "months" else days,
        assumption="no step is lost, and the mesh is the one given here" if case.number("ours", 0) else "",
        because=f"one step takes {item.step_s:.1f} s, {item.tokens_per_s_per_gpu:.0f} tokens/s/GPU, without failures",
    )


def order_ratio(case: ClaimCase) -> Finding:
    """Step time with pp innermost (tp across nodes) over that with tp innermost."""
    from commsim.scenario.training_run import run_training

    mesh = case.spec.mesh.model_copy(update={"order": ("pp", "cp", "ep", "dp", "tp")})
    specs = (case.spec, case.spec.model_copy(update={"mesh": mesh}))
    given, turned = (run_training(case.setting, case.topology, spec)[0].step_s for spec in specs)
    return Finding(turned / given)


def _rlhf(case: ClaimCase) -> RlItem:
    """A step of DeepSpeed-Chat's PPO."""
    from commsim.scenario.rl_chat import chat_spec
    from commsim.scenario.rl_run import run_rl

    spec = chat_spec(
        case.spec,
        critic=case.word("critic", "opt-350m"),
        engine_tp=case.whole("generation_tp", 1),
        prompt=case.whole("prompt", 256),
        answer=case.whole("answer", 256),
    )
    return run_rl(case.setting, case.topology, spec)[0]


def rlhf_hours(case: ClaimCase) -> Finding:
    """Hours of one epoch of RLHF's third step."""
    item = _rlhf(case)
    parts = ", ".join(f"{name} {seconds / item.step_s:.0%}" for name, seconds in item.step.shown().items())
    batch = f"a GPU takes {item.sequences // item.gpus} sequences at once"
    return Finding(
        case.number("queries") / item.sequences * item.step_s / 3600,
        assumption=f"{batch} ({parts})",
        because=f"the source does not print all conditions: here {batch} ({parts})",
    )


def rlhf_usd(case: ClaimCase) -> Finding:
    """The same in dollars."""
    hours = rlhf_hours(case)
    return replace(hours, value=hours.value * case.topology.world_size * case.number("gpu_hour_usd"))


FUNCTIONS: dict[str, Callable[[ClaimCase], Finding]] = {
    name: function
    for name, function in sorted(vars().items())
    if isfunction(function) and function.__module__ == __name__ and not name.startswith("_")
}
"""Every public function above, by name."""
