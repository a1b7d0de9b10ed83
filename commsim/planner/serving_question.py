"""A plan file of the key ``serve``: requests, machines to choose from, what users accept, and what is searched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from commsim.document import apply_overrides, read_documents, refuse, validate
from commsim.document.types import Document, show
from commsim.errors import ScenarioError
from commsim.fields import Seconds
from commsim.planner.question import Cluster, Counts, Names, PlanFile
from commsim.scenario.generation import GenerationSpec
from commsim.scenario.json_schema import schema_of
from commsim.scenario.load import with_changes_named
from commsim.scenario.strict import Strict

SEARCHED = ("mesh", "batch", "concurrency", "rate", "requests", "file", "prefill")
"""Keys of an item that a plan answers, or that would take its place."""

Framework = Literal["vllm", "sglang", "tensorrt_llm"]


class ServingSearch(Strict):
    """Values of axes; an axis left out takes all that the machine and the model allow."""

    tp: Counts | None = Field(default=None, description="tensor parallel ranks")
    pp: Counts = Field(default=(1,), description="pipeline stages")
    attention_dp: Counts | None = Field(default=None, description="groups with sequences of their own in attention")
    ep: Counts | None = Field(default=None, description="ranks that experts are dealt to")
    batch: Counts | None = Field(
        default=None,
        description="requests of each replica at once; left out: 1, 2, 4, 8, 12 ... until more give nothing",
    )
    precision: Names | None = Field(default=None, description="of weights; left out: that of `generation`")
    framework: tuple[Framework, ...] | None = Field(
        default=None, min_length=1, description="left out: that of `generation`"
    )


class ServingSpec(Strict):
    """What is asked: how to cut a model into replicas, and how many requests each should have at once."""

    generation: GenerationSpec = Field(
        description="model, lengths and framework as in a scenario, without what is searched: mesh and load"
    )
    clusters: tuple[Cluster, ...] = Field(min_length=1, max_length=64, description="machines to choose from")
    most_tpot: Seconds | None = Field(default=None, description="mean time per output token that users accept")
    most_ttft: Seconds | None = Field(default=None, description="mean time to the first token that they accept")
    search: ServingSearch = Field(default_factory=ServingSearch, description="values of the axes")
    best: Annotated[int, Field(ge=1, le=200)] = Field(default=10, description="so many are listed")

    @model_validator(mode="after")
    def _only_what_is_not_searched(self) -> ServingSpec:
        given = [name for name in SEARCHED if name in self.generation.model_fields_set]
        titles = [cluster.title() for cluster in self.clusters]
        again = [i for i, title in enumerate(titles) if title in titles[:i]]
        refuse(
            *((True, ("generation", name), f"found {name}, which the plan answers; expected none") for name in given),
            (self.generation.framework == "hf", ("generation", "framework"), "found hf, expected a serving framework"),
            *((True, ("clusters", i), f"found {show(titles[i])} again, expected a name of its own") for i in again),
        )
        return self


class ServingFile(Strict):
    """The whole file."""

    name: str = Field(min_length=1, max_length=200, description="what tables and plots are titled")
    serve: ServingSpec = Field(description="the question")


def is_serving(path: Path) -> bool:
    """Whether a plan file asks how to serve, not how to train."""
    documents = read_documents(path)
    return any(isinstance(one.data, dict) and "serve" in one.data for one in documents)


def read_serving(path: Path, overrides: Sequence[str] = ()) -> tuple[ServingFile, Document]:
    """The question of a file, overrides applied, and its document; ScenarioError with every fault."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise ScenarioError(f"{path}: found {len(documents)} documents, expected one plan")
    document = with_changes_named(apply_overrides(documents[0], overrides), overrides)
    return validate(ServingFile, document), document


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of plan files, by which editors complete and check them: of training or of serving."""
    schema, serving = schema_of(PlanFile, "commsim plan"), schema_of(ServingFile, "commsim plan")
    schema["$defs"] |= serving["$defs"]
    schema["properties"]["serve"] = serving["properties"]["serve"]
    del schema["required"]
    schema["anyOf"] = [{"required": ["name", "plan"]}, {"required": ["name", "serve"]}]
    return schema
