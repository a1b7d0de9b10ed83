"""A file of the doctor: the cluster, what has been measured, or both."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from commsim.collectives.semantics import NCCL_TESTS
from commsim.doctor.cluster import hostlist
from commsim.document import refuse
from commsim.errors import CommsimError
from commsim.fields import Bandwidth, Bytes, Seconds
from commsim.scenario.strict import Strict, parse_ranks
from commsim.units import GIB


def _hosts(value: Any) -> tuple[str, ...]:
    """Names, or lists as Slurm writes them."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("expected names of hosts, such as node[001-128]")
    try:
        return hostlist(",".join(parts))
    except CommsimError as error:
        raise ValueError(str(error)) from None


Hosts = Annotated[tuple[str, ...], BeforeValidator(_hosts, json_schema_input_type=str | list[str])]
PartList = Annotated[
    tuple[int, ...],
    BeforeValidator(lambda v: parse_ranks(v, noun="GPU"), json_schema_input_type=int | str | list[int | str]),
]
ALL = ("all",)
"""In place of names: every host."""

Parts = Annotated[int, Field(strict=True, ge=1, le=64)]


class MeasurementSpec(Strict):
    """One result: which hosts, how, and the time or the bus bandwidth."""

    hosts: Hosts = Field(default=ALL, description="names in the order of the ring, or `all`")
    gpus: PartList | None = Field(default=None, description="which GPUs of each host; left out: all")
    scope: Literal["across", "inside", "all"] | None = Field(
        default=None,
        description=(
            "`across`: a ring for each place of a GPU, one GPU of every host in each (NCCL_TESTS_SPLIT=MOD); `inside`: "
            "a ring in every host (DIV), or a figure of each GPU alone; `all`: one ring of all; left out: `inside` for "
            "one host, else `all`"
        ),
    )
    shift: int = Field(default=0, ge=0, le=64, description="of two hosts, how many GPUs further on the second's are")
    collective: Literal[NCCL_TESTS] = Field(default="all_reduce", description="as nccl-tests calls it")  # type: ignore[valid-type]
    size: Bytes = Field(default=int(GIB), ge=1 << 20, description="of the message; small ones do not show a slow part")
    time: Seconds | None = Field(default=None, gt=0, description="of a call, of the slowest ring")
    busbw: Bandwidth | None = Field(default=None, gt=0, description="bus bandwidth, in place of the time")

    @model_validator(mode="after")
    def _one_result(self) -> MeasurementSpec:
        both = self.time is not None and self.busbw is not None
        refuse(
            (both, ("busbw",), "found busbw beside time, expected one of them"),
            (self.time is None and self.busbw is None, (), "found no result, expected time or busbw"),
            (self.shift and len(self.hosts) != 2, ("shift",), "found a shift, expected it of two hosts only"),
        )
        return self


class DoctorFile(Strict):
    """The cluster and its measurements; either may be left out."""

    hosts: Hosts | None = Field(default=None, description="names, such as `node[001-128]`; left out: those of the logs")
    gpus: Parts | None = Field(default=None, description="GPUs of a host; left out: as in the logs, or 8")
    nics: Parts | None = Field(default=None, description="network cards of a host; left out: as many as GPUs")
    nodes_per_leaf: int | None = Field(
        default=None, ge=1, le=4096, description="hosts under a leaf switch, in the order of `hosts`"
    )
    leaves: Annotated[list[Hosts], Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="the hosts under each leaf switch, in place of `nodes_per_leaf`"
    )
    rails: bool = Field(default=True, description="whether each card of a host has a leaf switch of its own")
    machine: str | None = Field(
        default=None, min_length=1, max_length=200, description="a preset, by which healthy times are predicted"
    )
    measurements: Annotated[list[MeasurementSpec], Field(max_length=10_000)] = Field(
        default_factory=list, description="results so far"
    )

    @model_validator(mode="after")
    def _one_way(self) -> DoctorFile:
        both = self.leaves is not None and self.nodes_per_leaf is not None
        refuse((both, ("nodes_per_leaf",), "found nodes_per_leaf beside leaves, expected one of them"))
        return self


def cluster_schema() -> dict[str, Any]:
    """The JSON Schema of a cluster file."""
    return DoctorFile.model_json_schema() | {"title": "commsim cluster"}
