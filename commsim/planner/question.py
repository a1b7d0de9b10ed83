"""A plan file: the model, the machines to choose from, and what may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from commsim.document import apply_overrides, compose_documents, located, raise_faults, read_text, validate
from commsim.document.types import Document, KeyPath, show
from commsim.errors import CommsimError, ScenarioError
from commsim.fields import Bandwidth, Seconds
from commsim.scenario.strict import Strict
from commsim.topology.spec import TopologySpec
from commsim.training.memory import Framework
from commsim.training.model import model
from commsim.training.precision import precision

Count = Annotated[int, Field(ge=1, le=2**24)]


def _listed(value: Any) -> Any:
    """One value where a list may stand."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


_LISTED = BeforeValidator(_listed)
Counts = Annotated[tuple[Count, ...], _LISTED]
Names = Annotated[tuple[str, ...], _LISTED]
Stages = Annotated[tuple[Literal[0, 1, 2, 3], ...], _LISTED]
Recompute = Annotated[tuple[Literal["none", "selective", "full"], ...], _LISTED]
Flags = Annotated[tuple[bool, ...], _LISTED]
Schedules = Annotated[tuple[Literal["1f1b", "interleaved_1f1b", "zb_h1", "gpipe", "dualpipe"], ...], _LISTED]


class Cluster(Strict):
    """A machine to choose, and its prices."""

    topology: TopologySpec
    name: str | None = Field(default=None, min_length=1, max_length=100)
    accelerator: str | None = None
    gpu_hour_usd: float = Field(default=0.0, ge=0)
    nic_usd: float = Field(default=0.0, ge=0)
    switch_usd: float = Field(default=0.0, ge=0)
    years: float = Field(default=4.0, gt=0)

    def title(self) -> str:
        """Its name, or its preset and number of nodes."""
        return self.name or f"{self.topology.nodes} x {self.topology.preset or self.topology.path or 'node'}"


class Failures(Strict):
    """Mean hours between failures, and what a restart and a checkpoint take.

    The storage's default is 1 GB/s per node: 2 TB/s, sustained, for Llama 3's 2,048 nodes (arXiv:2407.21783, 3.3.1).
    """

    gpu_hours: float | None = Field(default=None, gt=0)
    nic_hours: float | None = Field(default=None, gt=0)
    host_hours: float | None = Field(default=None, gt=0)
    restart: Seconds = 600.0
    storage_bandwidth: Bandwidth | None = None


class Search(Strict):
    """Values of axes; an axis left out takes all that the machine and the model allow."""

    tp: Counts | None = None
    pp: Counts | None = None
    cp: Counts | None = None
    ep: Counts | None = None
    virtual_stages: Counts | None = None
    micro_batch_size: Counts | None = None
    zero_stage: Stages | None = None
    recompute: Recompute | None = None
    sequence_parallel: Flags | None = None
    schedule: Schedules | None = None


class PlanSpec(Strict):
    """What is asked: how to train a model on one of several machines."""

    model: str = Field(min_length=1)
    clusters: tuple[Cluster, ...] = Field(min_length=1, max_length=64)
    global_batch_size: Counts
    seq_len: Counts | None = None
    precision: Names = ("bf16",)
    framework: Framework = "megatron"
    stack: Literal["tuned", "compiled", "eager"] = "tuned"
    flash_attention: bool = True
    overlap_tp: bool = False
    tokens: float = Field(default=0.0, ge=0, description="tokens to train on, such as 300.0e9")
    search: Search = Field(default_factory=Search)
    failures: Failures | None = None
    best: Annotated[int, Field(ge=1, le=200)] = 10

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

    name: str = Field(min_length=1, max_length=200)
    plan: PlanSpec


def read_plan(path: Path, overrides: Sequence[str] = ()) -> tuple[PlanFile, Document]:
    """The question of a file, overrides applied, and its document; ScenarioError with every fault."""
    documents, faults = compose_documents(read_text(path), str(path))
    if faults:
        raise_faults(faults)
    if len(documents) != 1:
        raise ScenarioError(f"{path}: found {len(documents)} documents, expected one plan")
    document = apply_overrides(documents[0], overrides)
    return validate(PlanFile, document), document
