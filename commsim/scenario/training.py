"""A ``training:`` item of a scenario: what may be said, and the `Step` that it means on the scenario's machine."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from commsim.document import located
from commsim.document.types import KeyPath
from commsim.errors import CommsimError, ScenarioError
from commsim.fields import Bandwidth, Bytes
from commsim.scenario.strict import Strict
from commsim.topology.graph import Topology
from commsim.training.accelerator import Accelerator, accelerator
from commsim.training.compute import Values
from commsim.training.mesh import ORDER, Mesh
from commsim.training.model import Model, model
from commsim.training.parameters import read_values, shipped_values
from commsim.training.pipeline_schedules import SCHEDULES, misfit
from commsim.training.precision import Precision, precision, with_gradients
from commsim.training.spec import Step
from commsim.training.stages import chunks_of
from commsim.training.traffic import refuse_sharded_gradients

Count = Annotated[int, Field(ge=1, le=2**20)]


class MeshSpec(Strict):
    """Sizes of the axes; dp left out is what the machine leaves."""

    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    dp: Count | None = None
    ep: Count = 1
    expert_tp: Count | None = None
    order: tuple[str, ...] = Field(default=ORDER, description="innermost first")


class TaskSpec(Strict):
    """What the steps are for: tokens to see, and what a GPU-hour costs."""

    kind: Literal["pretrain", "sft", "reward_model", "rlhf_ppo", "rl_verifiable"] = "pretrain"
    tokens: float = Field(default=0.0, ge=0, description="tokens to train on, such as 1.4e12")
    steps: Count | None = None
    gpu_hour_usd: float | None = Field(default=None, ge=0)
    prompt_len: Count = 256
    answer_len: Count = 256
    critic: str | None = None
    generation_tp: Count = 1

    @model_validator(mode="after")
    def _has_an_end(self) -> TaskSpec:
        if not self.tokens and self.steps is None:
            raise located(((), "found neither tokens nor steps, expected one of them"))
        if self.critic is not None:
            faults = _said(model, self.critic, ("critic",))
            if faults:
                raise located(*faults)
        return self


class OffloadSpec(Strict):
    """ZeRO-Offload (optimizer) and ZeRO-Infinity (parameters); rates are those of a node."""

    optimizer: bool = True
    parameters: bool = False
    host_memory_bandwidth: Bandwidth = 200e9
    nvme_bandwidth: Bandwidth | None = None


class TrainingSpec(Strict):
    """One training step: model, batch, mesh, schedule, and what the software does."""

    model: str = Field(min_length=1, description="a preset, or a config.json beside the scenario")
    global_batch_size: Count
    micro_batch_size: Count = 1
    seq_len: Count | None = None
    mesh: MeshSpec = Field(default_factory=MeshSpec)
    virtual_stages: Count = 1
    stage_layers: tuple[int, ...] | None = None
    pipeline_schedule: str = "1f1b"
    sequence_parallel: bool = False
    context_parallel: Literal["ring", "all_gather", "ulysses"] = "ring"
    zero_stage: Literal[0, 1, 2, 3] = 0
    shard_ranks: Count | None = None
    recompute: Literal["none", "selective", "layerwise", "full"] = "none"
    precision: str = "bf16"
    bytes_per_parameter: Literal[16, 18, 20] | None = None
    optimizer: str = "adam"
    accelerator: str | None = None
    framework: Literal["megatron", "deepspeed", "fsdp2", "ddp"] = "megatron"
    stack: Literal["tuned", "compiled", "eager"] = "tuned"
    flash_attention: bool = True
    attention_kernel: Literal["vendor", "open"] = "vendor"
    cuda_graphs: bool = False
    frozen_weights: bool = False
    overlap_dp: bool = True
    overlap_tp: bool = False
    overlap_pp: bool = True
    bucket_size: Bytes | None = None
    capacity_factor: float | None = Field(default=None, gt=0)
    imbalance: float = Field(default=1.0, ge=1.0)
    slowdown: float = Field(default=1.0, ge=1.0, le=4.0)
    stragglers: dict[int, float] = Field(default_factory=dict, description="pipeline stage: factor on its compute")
    contention: bool = True
    overlap_ep: bool | None = None
    offload: OffloadSpec | None = None
    task: TaskSpec | None = None
    params: str | None = Field(
        default=None, min_length=1, description="compute of this machine: a file that `commsim calibrate` wrote"
    )

    @model_validator(mode="after")
    def _names_exist(self) -> TrainingSpec:
        faults: list[tuple[KeyPath, str]] = []
        for key, find in (("precision", precision), ("accelerator", accelerator)):
            value = getattr(self, key)
            faults += _said(find, value, (key,)) if value is not None else []
        if not self.model.endswith(".json"):
            faults += _said(model, self.model, ("model",))
        if self.pipeline_schedule not in SCHEDULES:
            text = f"found {self.pipeline_schedule!r}, expected one of {', '.join(SCHEDULES)}"
            faults.append((("pipeline_schedule",), text))
        if self.offload is not None and self.offload.parameters and self.zero_stage < 3:
            text = "found offloaded parameters without zero_stage 3, which cuts them"
            faults.append((("offload", "parameters"), text))
        refused = refuse_sharded_gradients(self.zero_stage, self.mesh.pp, self.framework)
        if refused:
            faults.append((("zero_stage",), refused))
        if sorted(self.mesh.order) != sorted(ORDER):
            faults.append(
                (("mesh", "order"), f"found {', '.join(self.mesh.order)}, expected {', '.join(ORDER)} in some order")
            )
        if self.stage_layers is not None and min(self.stage_layers, default=-1) < 0:
            faults.append((("stage_layers",), "found no layers or a negative number, expected one number per chunk"))
        if faults:
            raise located(*faults)
        return self


class TrainingWork(Strict):
    """A workload item that is a training step."""

    training: TrainingSpec

    def place_faults(self, topology: Topology, base_dir: Path) -> list[tuple[KeyPath, str]]:
        """What does not go with the machine, each at its key."""
        spec, at = self.training, ("training",)
        return [((*at, *path), text) for path, text in _machine_faults(spec, topology, base_dir)]


def _said(call: Any, value: Any, path: KeyPath) -> list[tuple[KeyPath, str]]:
    try:
        call(value)
    except CommsimError as error:
        return [(path, str(error))]
    return []


_IN_MESH = {"tp", "pp", "cp", "dp", "ep", "expert_tp"}
_RENAMED = {"schedule": "pipeline_schedule"}


def _machine_faults(spec: TrainingSpec, topology: Topology, base_dir: Path) -> list[tuple[KeyPath, str]]:
    if not topology.uniform:
        return [((), "found nodes of different kinds, expected nodes that are alike")]
    sizes = spec.mesh
    dp = _dp(spec, topology)
    try:
        mesh = Mesh(dp or 1, sizes.pp, sizes.cp, sizes.tp, sizes.ep, sizes.expert_tp, sizes.order)
    except CommsimError as error:
        return [(("mesh",), str(error))]
    wrong = mesh.misfit(topology.world_size)
    if wrong:
        return [(("mesh",), wrong)]
    try:
        step = step_of(spec, topology, base_dir)
    except CommsimError as error:
        return [_placed(text) for text in str(error).split("; ")]
    faults: list[tuple[KeyPath, str]] = []
    if spec.params is not None:
        faults += _said(partial(values_of, spec), base_dir, ("params",))
    late = misfit(step.schedule, step.pp, step.num_microbatches, step.virtual_stages)
    if late:
        faults.append((("pipeline_schedule",), late))
    if spec.stage_layers is not None:
        faults += _said(partial(chunks_of, step), spec.stage_layers, ("stage_layers",))
    heads = step.model.heads // step.tp
    if spec.context_parallel == "ulysses" and heads % step.cp:
        faults.append((("context_parallel",), f"ulysses needs whole heads: {heads} do not divide by cp = {step.cp}"))
    wrong_stage = next((s for s in spec.stragglers if not 0 <= s < step.pp), None)
    if wrong_stage is not None:
        faults.append((("stragglers",), f"found stage {wrong_stage}, expected 0 to {step.pp - 1}"))
    return faults


def values_of(spec: TrainingSpec, base_dir: Path) -> Values:
    """The parameters of compute: those that ship, with those of the item's `params` in their place."""
    return shipped_values() if spec.params is None else read_values(base_dir / spec.params)


def _placed(text: str) -> tuple[KeyPath, str]:
    """A fault of `Step` at the key that it begins with."""
    match = re.match(r"([a-z_]+)", text)
    name = _RENAMED.get(match[1], match[1]) if match else ""
    if name in _IN_MESH:
        return ("mesh",), text
    return ((name,), text) if name in TrainingSpec.model_fields else ((), text)


def _dp(spec: TrainingSpec, topology: Topology) -> int | None:
    if spec.mesh.dp is not None:
        return spec.mesh.dp
    rest = topology.world_size // (spec.mesh.tp * spec.mesh.pp * spec.mesh.cp)
    return rest or None


def mesh_of_spec(spec: TrainingSpec, topology: Topology) -> Mesh:
    """The mesh on the machine's GPUs."""
    m = spec.mesh
    return Mesh(_dp(spec, topology) or 1, m.pp, m.cp, m.tp, m.ep, m.expert_tp, m.order)


def model_of(spec: TrainingSpec, base_dir: Path) -> Model:
    """The model: a preset, or a Hugging Face config.json beside the scenario."""
    if not spec.model.endswith(".json"):
        return model(spec.model)
    from commsim.training.hf_config import read_hf_config

    return read_hf_config(base_dir / spec.model)


def precision_of(spec: TrainingSpec) -> Precision:
    """The number formats; 18 bytes per parameter (fp32 gradients) with megatron, as it trains."""
    found = precision(spec.precision)
    if not found.master:
        return found
    return with_gradients(found, spec.bytes_per_parameter or (18 if spec.framework == "megatron" else 16))


def step_of(spec: TrainingSpec, topology: Topology, base_dir: Path) -> Step:
    """The step that the item means on a machine; CommsimError with all that does not fit."""
    architecture = model_of(spec, base_dir)
    if spec.seq_len is not None and spec.seq_len != architecture.seq_len and architecture.positions != "learned":
        architecture = replace(architecture, seq_len=spec.seq_len)
    mesh = mesh_of_spec(spec, topology)
    return Step(
        architecture,
        accelerator(spec.accelerator) if spec.accelerator else accelerator_of(topology),
        precision_of(spec),
        spec.seq_len or architecture.seq_len,
        spec.micro_batch_size,
        spec.global_batch_size,
        tp=mesh.tp,
        pp=mesh.pp,
        cp=mesh.cp,
        dp=mesh.dp,
        ep=mesh.ep,
        expert_tp=mesh.expert_tp if mesh.ep > 1 or mesh.etp else 1,
        virtual_stages=spec.virtual_stages,
        schedule=spec.pipeline_schedule,
        sequence_parallel=spec.sequence_parallel,
        zero_stage=spec.zero_stage,
        shard_ranks=spec.shard_ranks or 0,
        recompute=spec.recompute,
        optimizer=spec.optimizer,
        frozen_weights=spec.frozen_weights,
        stack=spec.stack,
        flash_attention=spec.flash_attention,
        attention_kernel=spec.attention_kernel,
        cuda_graphs=spec.cuda_graphs,
        overlap_dp=spec.overlap_dp,
        overlap_tp=spec.overlap_tp,
        overlap_pp=spec.overlap_pp,
        gpus_per_node=topology.ranks_per_node,
        imbalance=spec.imbalance,
    )


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
        text = f"accelerator = none, expected a datasheet such as H100: there is none of the machine's {name}"
        raise ScenarioError(text) from None
