"""A plan file: the model, the machines to choose from, and what may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, model_validator

from commsim.document import apply_overrides, located, raise_faults, read_documents, refuse, validate
from commsim.document.types import Document, KeyPath, show
from commsim.errors import CommsimError, ScenarioError
from commsim.fields import Bandwidth, Seconds
from commsim.planner.offers import Offer, offers
from commsim.scenario.load import LONGEST_NAME, with_changes_named, with_machine
from commsim.scenario.machine_in_name import with_machine_named
from commsim.scenario.setting import Library
from commsim.scenario.strict import Strict
from commsim.scenario.training_parts import Module
from commsim.topology.spec import TopologySpec
from commsim.training.memory import Framework
from commsim.training.model import model
from commsim.training.precision import precision

Count = Annotated[int, Field(ge=1, le=2**24)]


def _one_or_more(kind: Any) -> BeforeValidator:
    """One value where a list may stand."""
    return BeforeValidator(
        lambda value: tuple(value) if isinstance(value, (list, tuple)) else (value,),
        json_schema_input_type=kind | list[kind],
    )


Stage = Literal[0, 1, 2, 3]
Recomputed = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "gpipe", "dualpipe", "dualpipe_v"]
Counts = Annotated[tuple[Count, ...], _one_or_more(Count)]
Names = Annotated[tuple[str, ...], _one_or_more(str)]
Stages = Annotated[tuple[Stage, ...], _one_or_more(Stage)]
Recompute = Annotated[tuple[Recomputed, ...], _one_or_more(Recomputed)]
Flags = Annotated[tuple[bool, ...], _one_or_more(bool)]
Schedules = Annotated[tuple[Schedule, ...], _one_or_more(Schedule)]


class Cluster(Strict):
    """A machine to choose, and its prices."""

    topology: TopologySpec = Field(description="a machine, as in a scenario")
    name: str | None = Field(
        default=None, min_length=1, max_length=100, description="what tables call it; left out: nodes and preset"
    )
    library: Library = Field(
        default_factory=Library,
        description="NCCL, its version and environment, and what is known of the machine: for what is simulated",
    )
    accelerator: str | None = Field(default=None, description="another datasheet than that of the topology's GPU")
    gpu_hour_usd: float = Field(default=0.0, ge=0, description="price of a GPU-hour, in dollars")
    nic_usd: float = Field(default=0.0, ge=0, description="price of a network card")
    switch_usd: float = Field(default=0.0, ge=0, description="price of a switch of the network")
    years: float = Field(
        default=4.0,
        gt=0,
        description=(
            "over which cards and switches are written off, used around the clock; the default is an assumption"
        ),
    )

    @model_validator(mode="after")
    def _library_fits(self) -> Cluster:
        name = self.library.name
        refuse(
            (name != "nccl", ("library",), f"found library {name}, expected nccl"),
            (self.library.graph, ("library", "graph"), "found a graph of whole nodes, but groups run on parts of them"),
        )
        return self

    def title(self) -> str:
        """Its name, or its preset and number of nodes."""
        return self.name or f"{self.topology.nodes} x {self.topology.preset or self.topology.path or 'node'}"


class Failures(Strict):
    """Mean hours between failures, and what a restart and a checkpoint take.

    The storage's default is 1 GB/s per node: 2 TB/s, sustained, for Llama 3's 2,048 nodes (arXiv:2407.21783, 3.3.1).
    The restart's is an assumption: that run kept over 90 % of its time (3.3.4) with 419 unexpected interruptions in 54
    days, so that one cost less than 19 minutes, lost work included.
    """

    gpu_hours: float | None = Field(
        default=None,
        gt=0,
        description="mean hours between failures of one GPU; left out: 79,000, of the Llama 3 405B run",
    )
    nic_hours: float | None = Field(
        default=None,
        gt=0,
        description="of one network card with its cable and switch port; left out: 506,000, of the same run",
    )
    host_hours: float | None = Field(
        default=None, gt=0, description="of one host with its software; left out: 24,000, of the same run"
    )
    restart: Seconds = Field(
        default=600.0, description="from a failure to the first new step; the default is an assumption"
    )
    storage_bandwidth: Bandwidth | None = Field(
        default=None, description="what the storage takes from all nodes together; left out: 1 GB/s per node"
    )


class Search(Strict):
    """Values of axes; an axis left out takes all that the machine and the model allow."""

    tp: Counts | None = Field(default=None, description="tensor parallel")
    pp: Counts | None = Field(default=None, description="pipeline stages")
    cp: Counts | None = Field(default=None, description="context parallel")
    ep: Counts | None = Field(default=None, description="expert parallel")
    virtual_stages: Counts | None = Field(default=None, description="model chunks per stage")
    micro_batch_size: Counts | None = Field(default=None, description="sequences of one pass")
    zero_stage: Stages | None = Field(default=None, description="what is sharded")
    recompute: Recompute | None = Field(default=None, description="what the backward pass computes again")
    sequence_parallel: Flags | None = Field(default=None, description="norms and residuals cut over tp")
    schedule: Schedules | None = Field(default=None, description="of the pipeline")


SOFTWARE = (
    "stack", "flash_attention", "overlap_tp", "overlap_ep", "expert_dispatch", "optimizer", "recompute_modules",
    "fp8_activations", "imbalance", "packed",
)  # fmt: skip
"""What a question says of the software, alike for all configurations."""


class PlanSpec(Strict):
    """What is asked: how to train a model on one of several machines."""

    model: str = Field(min_length=1, description="a preset of the training model")
    clusters: tuple[Cluster, ...] = Field(min_length=1, max_length=64, description="machines to choose from")
    global_batch_size: Counts = Field(description="sequences of one step; several are compared per token")
    seq_len: Counts | None = Field(default=None, description="tokens of a sequence; left out: the model's")
    precision: Names = Field(default=("bf16",), description="as in a training item")
    framework: Literal["megatron", "nemo", "fsdp2", "torchtitan", "deepspeed", "ddp", "nanotron"] = Field(
        default="megatron",
        description=(
            "what memory holds, and the schedules, recomputation and ZeRO stages that its release has "
            "(`commsim/planner/offers.yaml`; of ddp and nanotron all); what `search` names is searched none the less"
        ),
    )
    stack: Literal["tuned", "compiled", "eager"] = Field(default="tuned", description="class of the software's kernels")
    flash_attention: bool = Field(default=True, description="attention is one fused kernel")
    optimizer: str = Field(default="adam", description="as of `training:`, such as `adam-bf16` or `muon`")
    recompute_modules: tuple[Module, ...] = Field(
        default=("core_attn",),
        min_length=1,
        description="what `recompute: selective` computes again, as of `training:`",
    )
    fp8_activations: bool = Field(default=False, description="kept and sent to experts in 8 bit, as of `training:`")
    expert_dispatch: Literal["nccl", "deepep", "deepep_low_latency", "hybrid", "nvlink"] = Field(
        default="nccl", description="what sends tokens to their experts and back, as of `training:`"
    )
    imbalance: float = Field(
        default=1.0, ge=1.0, description="of experts' ranks the busiest one's tokens over the mean"
    )
    packed: tuple[Count, ...] = Field(
        default=(), max_length=10_000, description="lengths of documents that fill a sequence, as of `training:`"
    )
    overlap_tp: bool = Field(
        default=False, description="tensor parallel exchanges hide behind the products they belong to"
    )
    overlap_ep: bool = Field(default=False, description="experts' exchanges hide behind another micro-batch's pass")
    tokens: float = Field(default=0.0, ge=0, description="to train on, such as `300.0e+9`: for days and dollars")
    search: Search = Field(
        default_factory=Search,
        description="values of the axes; an axis left out takes all that machine and model allow",
    )
    failures: Failures | None = Field(default=None, description="what stops the run: for checkpoints and goodput")
    best: Annotated[int, Field(ge=1, le=200)] = Field(default=10, description="so many are simulated")

    @property
    def offer(self) -> Offer | None:
        """What the framework's release has of the axes; None of one of which that is not known."""
        return offers().get(self.framework)

    @property
    def memory(self) -> Framework:
        """The memory model of the framework."""
        return self.offer.memory if self.offer is not None else cast("Framework", self.framework)

    @property
    def named_axes(self) -> dict[str, tuple[Any, ...]]:
        """The axes whose values the question names."""
        named = {name: getattr(self.search, name) for name in type(self.search).model_fields}
        return {name: tuple(values) for name, values in named.items() if values is not None}

    @model_validator(mode="after")
    def _names_exist(self) -> PlanSpec:
        faults: list[tuple[KeyPath, str]] = []
        named: list[tuple[KeyPath, Callable[[str], object], str]] = [(("model",), model, self.model)]
        named += [(("precision", i), precision, p) for i, p in enumerate(self.precision)]
        for path, find, name in named:
            try:
                find(name)
            except CommsimError as error:
                faults.append((path, str(error)))
        titles = [c.title() for c in self.clusters]
        for i, title in enumerate(titles):
            if title in titles[:i]:
                faults.append((("clusters", i), f"found {show(title)} again, expected a name of its own"))
        if faults:
            raise located(*faults)
        return self


class PlanFile(Strict):
    """The whole file."""

    name: str = Field(min_length=1, max_length=200, description="what tables and plots are titled")
    plan: PlanSpec = Field(description="the question")


def read_plan(path: Path, overrides: Sequence[str] = ()) -> tuple[PlanFile, Document]:
    """The question of a file, overrides applied, and its document; ScenarioError with every fault."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise ScenarioError(f"{path}: found {len(documents)} documents, expected one plan")
    written = documents[0]
    if isinstance(written.data, dict) and "workload" in written.data and "plan" not in written.data:
        raise_faults([written.fault((), "found a scenario, expected a plan; commsim run FILE takes it")])
    if isinstance(written.data, dict) and "serve" in written.data:
        other = "found a plan of serving, expected one of training; commsim.serve takes it"
        raise_faults([written.fault(("serve",), other)])
    return judged(written, overrides, path.parent)


def judged(written: Document, overrides: Sequence[str], folder: Path = Path()) -> tuple[PlanFile, Document]:
    """The question of a document whose files are named from a folder, and the document with its overrides."""
    document = with_changes_named(_with_machines(apply_overrides(_with_machines(written), overrides)), overrides)
    question = validate(PlanFile, document)
    if len(question.plan.clusters) == 1:
        spec = question.plan.clusters[0].topology
        title = with_machine_named(question.name, overrides, spec, folder, LONGEST_NAME)
        question = question.model_copy(update={"name": title})
    return question, document


def _with_machines(document: Document) -> Document:
    """`with_machine` of every cluster that is one."""
    question = document.data.get("plan") if isinstance(document.data, dict) else None
    clusters = question.get("clusters") if isinstance(question, dict) else None
    for i in range(len(clusters) if isinstance(clusters, list) else 0):
        document = with_machine(document, ("plan", "clusters", i))
    return document
