"""A ``training:`` item of a scenario: what may be said, and the `Step` that it means on the scenario's machine."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from commsim.document import failing, refuse
from commsim.document.types import KeyFaults, KeyPath
from commsim.errors import CommsimError, ScenarioError
from commsim.fields import Bytes
from commsim.scenario.strict import Strict
from commsim.scenario.training_parts import Count, FineTuneSpec, MeshSpec, Module, OffloadSpec, TaskSpec, refusals
from commsim.topology.graph import Topology
from commsim.training.accelerator import Accelerator, accelerator, read_processor
from commsim.training.comm_sms import check_comm_sms
from commsim.training.compute import Values
from commsim.training.finetune import fine_tune
from commsim.training.mesh import ORDER, Mesh
from commsim.training.model import Model, model
from commsim.training.parameters import read_values, shipped_values
from commsim.training.pipeline_schedules import SCHEDULES, V_SHAPED, misfit
from commsim.training.precision import Precision, precision, with_gradients
from commsim.training.spec import STOPS_EARLY, Step
from commsim.training.stages import chunk_weights, chunks_of
from commsim.training.traffic import refuse_sharded_gradients
from commsim.units import GIGA, format_bytes


def is_processor_file(accelerator: str | None) -> bool:
    """Whether an ``accelerator`` names a file of `commsim rates`, not a datasheet."""
    return accelerator is not None and accelerator.endswith((".yaml", ".yml"))


class TrainingSpec(Strict):
    """One training step: model, batch, mesh, schedule, and what the software does."""

    model: str = Field(min_length=1, description="a preset, or a Hugging Face `config.json` beside the scenario")
    global_batch_size: Count = Field(description="sequences of one step")
    micro_batch_size: Count = Field(default=1, description="sequences of one pass")
    seq_len: Count | None = Field(default=None, description="tokens of a sequence; left out: the model's")
    packed: tuple[Count, ...] = Field(
        default=(),
        max_length=10_000,
        description="lengths in tokens of documents that fill a sequence, each as likely, to which attention is kept",
    )
    mesh: MeshSpec = Field(default_factory=MeshSpec, description="how the ranks are cut")
    virtual_stages: Count | None = Field(
        default=None, description="model chunks per pipeline stage; left out: 2 with `zb_v` and `dualpipe_v`, else 1"
    )
    stage_layers: tuple[int, ...] | None = Field(
        default=None,
        description=(
            "layers of every chunk in model order; left out: even, embedding and output counting as a layer where "
            "that divides"
        ),
    )
    pipeline_schedule: str = Field(
        default="1f1b",
        description=(
            "`naive`, `gpipe`, `1f1b`, `interleaved_1f1b`, `zb_h1`, `dualpipe`, or in a V over two chunks of stages "
            "`zb_v`, `dualpipe_v`"
        ),
    )
    sequence_parallel: bool = Field(default=False, description="cut norms and residuals over tp")
    context_parallel: Literal["ring", "all_gather", "ulysses"] = Field(
        default="ring", description="how cp exchanges keys and values"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=0,
        description="what is sharded: 0 nothing (DDP), 1 the optimizer, 2 gradients too, 3 parameters too (FSDP)",
    )
    gradients: Literal["all_reduce", "parameter_server"] = Field(
        default="all_reduce",
        description="without ZeRO, how gradients are summed: between the ranks, or by one process on the first host",
    )
    shard_ranks: Count | None = Field(
        default=None, description="ranks that share one copy under `zero_stage` (HSDP); left out: all of dp and cp"
    )
    recompute: Literal["none", "selective", "layerwise", "full"] = Field(
        default="none",
        description=(
            "what the backward pass computes again: `selective` the attention core, `layerwise` every second product"
        ),
    )
    recompute_modules: tuple[Module, ...] = Field(
        default=("core_attn",),
        min_length=1,
        description=(
            "what `recompute: selective` computes again, named as in Megatron-LM's --recompute-modules: `core_attn`, "
            "`mla_up_proj`, `moe_act`, `layernorm`, `mlp`, `moe`, `shared_experts`"
        ),
    )
    fp8_activations: bool = Field(
        default=False,
        description="what products and SwiGLU read is kept, and sent to experts but by nccl, in 8 bit (DeepSeek-V3)",
    )
    loss_chunks: Count = Field(
        default=1, description="pieces of a micro-batch whose loss is computed one after the other (torchtune: 8)"
    )
    fused_loss: bool = Field(
        default=False, description="one kernel from 16-bit logits to their gradient, as torch.compile makes of the loss"
    )
    optimizer_in_backward: bool = Field(
        default=False,
        description="a weight is updated as soon as its gradient is made, which is freed; for one micro-batch",
    )
    precision: str = Field(default="bf16", description="`bf16`, `fp16`, `fp8`, `tf32`, `fp32`, `pure-bf16` ...")
    bytes_per_parameter: Literal[16, 18, 20] | None = Field(
        default=None,
        description="of weights, gradients and optimizer; 18 has fp32 gradients; left out: 18 with megatron, else 16",
    )
    optimizer: str = Field(
        default="adam",
        description=(
            "`adam`, `adamw`, `muon`, `adam-bf16` and `adam-fp8` (a precision-aware optimizer's moments), `adam-8bit`, "
            "`paged-adam`, `paged-adam-8bit` (states that may leave the GPU), `sgd`, `sgd-momentum`, `adafactor`"
        ),
    )
    accelerator: str | None = Field(
        default=None,
        description=(
            "another datasheet than that of the topology's GPU, or the file that `commsim rates --device cpu` wrote: "
            "each rank has of its rates what it has of the node's `cpu.cores`, one at most"
        ),
    )
    framework: Literal["megatron", "deepspeed", "fsdp2", "ddp", "nanotron"] = Field(
        default="megatron",
        description="bytes per parameter, and what goes together (deepspeed: no ZeRO-2 or 3 with a pipeline)",
    )
    stack: Literal["tuned", "compiled", "eager"] = Field(default="tuned", description="class of the software's kernels")
    flash_attention: bool = Field(default=True, description="attention is one fused kernel")
    attention_kernel: Literal["vendor", "open"] = Field(
        default="vendor", description="of fused attention: cuDNN and FlashAttention-3, or FlashAttention-1 and -2"
    )
    cuda_graphs: bool = Field(default=False, description="kernels are launched by CUDA graphs: the host costs less")
    frozen_weights: bool = Field(default=False, description="no gradients of the base weights; `finetune` implies it")
    finetune: FineTuneSpec | None = Field(default=None, description="few weights trained beside a frozen base")
    overlap_dp: bool = Field(default=True, description="gradients and shards move while something is computed")
    overlap_param_gather: bool = Field(
        default=True,
        description="with `overlap_dp` and ZeRO-1 or 2: updated parameters come back beside the next step's forward",
    )
    overlap_tp: bool = Field(
        default=False, description="tensor parallel exchanges hide behind the products they belong to"
    )
    overlap_pp: bool = Field(default=True, description="activations between stages move while something is computed")
    bucket_size: Bytes | None = Field(
        default=None,
        description=(
            "of gradients, such as `25 MiB`; left out: Megatron's, 40 M gradients, or a million per dp rank if "
            "that is more"
        ),
    )
    capacity_factor: float | None = Field(
        default=None, gt=0, description="tokens of an expert beyond it are dropped; left out: none are"
    )
    imbalance: float = Field(default=1.0, ge=1.0, description="tokens of the busiest expert rank over the mean")
    expert_dispatch: Literal["nccl", "deepep", "deepep_low_latency", "hybrid", "nvlink"] = Field(
        default="nccl",
        description=(
            "what sends tokens to their experts and back: NCCL's all_to_all, or the kernels of DeepEP (normal, low "
            "latency), HybridEP or multi-node NVLink"
        ),
    )
    slowdown: float | None = Field(
        default=None, ge=1.0, le=4.0, description="of compute beside communication; left out: 1.1, or that of `params`"
    )
    comm_sms: Annotated[int, Field(ge=0)] | Literal["channels"] | None = Field(
        default=None, description="SMs that a collective holds, `channels`: as NCCL chose; in place of `slowdown`"
    )
    stragglers: dict[int, Annotated[float, Field(ge=1.0)]] = Field(
        default_factory=dict, description="pipeline stage to the factor on its compute, in a second replica"
    )
    contention: bool = Field(default=True, description="transfers that share links slow each other down")
    overlap_ep: bool = Field(
        default=False, description="experts' exchanges hide behind another micro-batch's pass, as DualPipe's always do"
    )
    offload: OffloadSpec | None = Field(default=None, description="states on the host or on drives")
    task: TaskSpec | None = Field(default=None, description="what the steps are for: days and dollars")
    params: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "compute of this machine, a file beside the scenario that `commsim calibrate` wrote from measured "
            "steps; left out: the shipped values"
        ),
    )

    @model_validator(mode="after")
    def _names_exist(self) -> TrainingSpec:
        mesh, zero = self.mesh, self.zero_stage
        cuts_model, tuned = mesh.tp * mesh.pp * mesh.cp * mesh.ep > 1, self.finetune is not None
        lora = self.finetune is not None and self.finetune.kind == "lora"
        cut = mesh.cp * mesh.ep > 1 if lora else cuts_model
        served, offload = self.gradients == "parameter_server", self.offload
        known = f"found {self.pipeline_schedule!r}, expected one of {', '.join(SCHEDULES)}"
        server = "found parameter_server, expected all_reduce: a server is for zero_stage 0 and a mesh of dp only"
        muon = "found muon, expected another one: it updates whole weights, on the GPU"
        uncut = "found offloaded parameters without zero_stage 3, which cuts them"
        sharded = refuse_sharded_gradients(zero, mesh.pp, self.framework)
        order = f"found {', '.join(mesh.order)}, expected {', '.join(ORDER)} in some order"
        layers = "found no layers or a negative number, expected one number per chunk"
        refuse(
            *refusals(precision, self.precision, ("precision",)),
            *refusals(accelerator, None if is_processor_file(self.accelerator) else self.accelerator, ("accelerator",)),
            *refusals(model, None if self.model.endswith(".json") else self.model, ("model",)),
            (self.pipeline_schedule not in SCHEDULES, ("pipeline_schedule",), known),
            (offload and offload.parameters and zero < 3, ("offload", "parameters"), uncut),
            (served and (zero or cuts_model), ("gradients",), server),
            (self.optimizer == "muon" and (tuned or (offload and offload.optimizer)), ("optimizer",), muon),
            (tuned and cut, ("finetune",), "found a mesh with tp, pp, cp or ep, expected dp, and of lora tp and pp"),
            (
                tuned and zero in (1, 2),
                ("finetune",),
                f"found zero_stage {zero}, expected 0, or 3, which cuts the base",
            ),
            (
                tuned and offload and (offload.optimizer or offload.parameters),
                ("finetune",),
                "found offload of states as well, expected one of them, or offload of activations only",
            ),
            (
                self.recompute_modules != ("core_attn",) and self.recompute != "selective",
                ("recompute_modules",),
                f"found recompute {self.recompute}, expected selective, which recomputes modules",
            ),
            (sharded, ("zero_stage",), sharded or ""),
            (sorted(mesh.order) != sorted(ORDER), ("mesh", "order"), order),
            (self.stage_layers is not None and min(self.stage_layers, default=-1) < 0, ("stage_layers",), layers),
        )
        return self


_RENAMED = {"schedule": "pipeline_schedule"}


def machine_faults(spec: TrainingSpec, topology: Topology, base_dir: Path) -> KeyFaults:
    """What does not go with the machine, each at its key."""
    if not topology.one_build:
        return [((), "found nodes of different kinds, expected nodes that are alike, some of which may have faults")]
    try:
        mesh = mesh_of_spec(spec, topology)
    except CommsimError as error:
        return [(("mesh",), str(error))]
    unread = refusals(partial(model_of, spec), base_dir, ("model",))
    wrong = mesh.misfit(topology.world_size, 0 if unread else model_of(spec, base_dir).heads)
    if wrong or unread:
        return failing((wrong, ("mesh",), wrong or ""), *unread)
    try:
        step = step_of(spec, topology, base_dir)
    except CommsimError as error:
        return [_placed(text) for text in str(error).split("; ")]
    schedule = step.schedule if step.pp > 1 else step.run_schedule
    late = misfit(schedule, step.pp, step.num_microbatches, step.virtual_stages)
    heads = step.model.heads // step.tp
    uneven = f"ulysses needs whole heads: {heads} do not divide by cp = {step.cp}"
    beyond = [stage for stage in spec.stragglers if not 0 <= stage < step.pp]
    return failing(
        *refusals(partial(values_of, spec), base_dir, ("params",)),
        *refusals(partial(_check_buckets, step), spec.bucket_size, ("bucket_size",)),
        (late, ("pipeline_schedule",), late or ""),
        *refusals(partial(chunks_of, step), spec.stage_layers, ("stage_layers",)),
        *refusals(lambda tune: fine_tune(step, **dict(tune)), spec.finetune, ("finetune", "rank")),
        *refusals(partial(check_comm_sms, step, spec.slowdown), spec.comm_sms, ("comm_sms",)),
        (spec.context_parallel == "ulysses" and heads % step.cp, ("context_parallel",), uneven),
        *((True, ("stragglers",), f"found stage {stage}, expected 0 to {step.pp - 1}") for stage in beyond[:1]),
    )


def _check_buckets(step: Step, bucket_bytes: float) -> None:
    """ScenarioError for buckets so small that a simulation of each would never end."""
    held = [chunk_weights(step, chunk) for chunk in chunks_of(step)]
    gradients = max(max(w.dense, w.expert) for w in held) * step.precision.gradient_bytes
    least = math.ceil(gradients / MOST_BUCKETS / 1e3) * 1000
    if bucket_bytes < least:
        text = f"found {format_bytes(int(bucket_bytes))}, which makes over {MOST_BUCKETS:,} buckets of gradients"
        raise ScenarioError(f"{text}; expected at least {least // 1000} kB here")


MOST_BUCKETS = 10_000
"""Of a chunk; a few hundred are usual."""


def values_of(spec: TrainingSpec, base_dir: Path) -> Values:
    """The parameters of compute: those that ship, with those of the item's `params` in their place."""
    return shipped_values() if spec.params is None else read_values(base_dir / spec.params)


def _placed(text: str) -> tuple[KeyPath, str]:
    """A fault of `Step` at the key that it begins with."""
    match = re.match(r"([a-z_]+)", text)
    name = _RENAMED.get(match[1], match[1]) if match else ""
    if name in MeshSpec.model_fields:
        return ("mesh",), text
    return ((name,), text) if name in TrainingSpec.model_fields else ((), text)


def mesh_of_spec(spec: TrainingSpec, topology: Topology) -> Mesh:
    """The mesh on the machine's GPUs."""
    m = spec.mesh
    dp = m.dp or max(topology.world_size // (m.tp * m.pp * m.cp), 1)
    return Mesh(dp, m.pp, m.cp, m.tp, m.ep, m.expert_tp, m.order)


def model_of(spec: TrainingSpec, base_dir: Path) -> Model:
    """The model: a preset, or a Hugging Face config.json beside the scenario."""
    if not spec.model.endswith(".json"):
        return model(spec.model)
    from commsim.training.hf_config import read_hf_config

    return read_hf_config(base_dir / spec.model)


def precision_of(spec: TrainingSpec) -> Precision:
    """The number formats; 18 bytes per parameter (fp32 gradients) with megatron, as it trains."""
    formats = precision(spec.precision)
    if not formats.master:
        return formats
    return with_gradients(formats, spec.bytes_per_parameter or (18 if spec.framework == "megatron" else 16))


_ALIKE = (
    "micro_batch_size", "global_batch_size", "sequence_parallel", "zero_stage", "recompute", "optimizer", "stack",
    "flash_attention", "attention_kernel", "cuda_graphs", "overlap_dp", "overlap_param_gather", "overlap_tp",
    "overlap_ep", "overlap_pp", "imbalance", "expert_dispatch", "context_parallel", "recompute_modules",
    "fp8_activations", "loss_chunks", "fused_loss", "optimizer_in_backward", "packed",
)  # fmt: skip
"""Fields that an item and its `Step` have in common."""


def step_of(spec: TrainingSpec, topology: Topology, base_dir: Path) -> Step:
    """The step that the item means on a machine; CommsimError with all that does not fit."""
    architecture = model_of(spec, base_dir)
    if spec.seq_len is not None and spec.seq_len != architecture.seq_len and architecture.positions != "learned":
        architecture = replace(architecture, seq_len=spec.seq_len)
    mesh = mesh_of_spec(spec, topology)
    return Step(
        architecture,
        accelerator_for(spec, topology, base_dir),
        precision_of(spec),
        spec.seq_len or architecture.seq_len,
        expert_tp=mesh.expert_tp if architecture.moe else 1,
        schedule=spec.pipeline_schedule,
        virtual_stages=spec.virtual_stages or (2 if spec.pipeline_schedule in V_SHAPED and mesh.pp > 1 else 1),
        shard_ranks=spec.shard_ranks or 0,
        frozen_weights=spec.frozen_weights or spec.finetune is not None,
        gpus_per_node=topology.ranks_per_node,
        nic_bytes_per_s=_nic_share(topology) or GIGA,
        early_stop=spec.framework in STOPS_EARLY,
        **{axis: getattr(mesh, axis) for axis in ("tp", "pp", "cp", "dp", "ep")},
        **{name: getattr(spec, name) for name in _ALIKE},
    )


def _nic_share(topology: Topology) -> float:
    """Bytes per second of NICs that a GPU has if all of its node use them."""
    return topology.nics_per_node * topology.nic_bandwidth / topology.ranks_per_node


def accelerator_for(spec: TrainingSpec, topology: Topology, base_dir: Path) -> Accelerator:
    """What computes a rank's share: the one named, a measured processor in a file, or the machine's GPU."""
    if spec.accelerator is None:
        return accelerator_of(topology)
    if is_processor_file(spec.accelerator):
        return read_processor(base_dir / spec.accelerator, topology.ranks_per_node, topology.cpu.cores)
    return accelerator(spec.accelerator)


_PARTS = {
    "A100 PCIe": "A100-PCIe-80GB",
    "A100 SXM 64 GB": "A100-SXM4-80GB",
    "H100 PCIe": "H100-PCIe-80GB",
    "V100 PCIe": "V100-PCIe-32GB",
    "B200 SXM": "B200",
    "H20 SXM": "H20",
    "H200 SXM": "H200",
    "GeForce RTX 4090": "RTX-4090",
}


def accelerator_of(topology: Topology) -> Accelerator:
    """The datasheet of the machine's GPU; CommsimError when it has none, and ``accelerator`` must name one."""
    name = topology.gpu.model
    try:
        return accelerator(_PARTS.get(name, name.split(" ")[0]))
    except CommsimError:
        expected = f"a datasheet such as H100: there is none of the machine's {name}"
        if topology.gpu.generation == "cpu":
            expected = "the file that `commsim rates --device cpu` writes for ranks without a GPU"
        raise ScenarioError(f"accelerator = none, expected {expected}") from None
