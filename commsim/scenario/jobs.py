"""What a scenario may say about several jobs at once: collectives on ranks of their own, and background flows."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from commsim.collectives import registry
from commsim.collectives.semantics import NcclTestsName
from commsim.document import located
from commsim.document.types import KeyFaults, show
from commsim.fields import Bandwidth, Bytes, Seconds
from commsim.scenario.collective import algorithm_faults, root_faults
from commsim.scenario.strict import Ranks, Strict

Rank = Annotated[int, Field(strict=True, ge=0)]
Size = Annotated[int, Field(strict=True, ge=1)]
Int64 = npt.NDArray[np.int64]


class JobSpec(Strict):
    """One job's collective from some time on; rank i of the collective is the i-th of ``ranks``."""

    name: str | None = Field(
        default=None, min_length=1, max_length=60, description="what its row is called; left out: `job 1`, `job 2` ..."
    )
    ranks: Ranks | None = Field(
        default=None,
        description=(
            "`5`, `0 .. 31`, every eighth as `0 .. 63 +8`, or a list of these; rank i of the collective is the "
            "i-th; left out: all"
        ),
    )
    mesh: Annotated[dict[str, Size], Field(min_length=1, max_length=8)] | None = Field(
        default=None,
        description=(
            "axes of a mesh that the ranks form, the last one over neighbours, such as `{dp: 4, tp: 8}`; with `axis`"
        ),
    )
    axis: str | None = Field(
        default=None, description="the axis along which each group is a communicator; all of them run at once"
    )
    start: Seconds = Field(default=0.0, description="when it begins")
    collective: NcclTestsName = Field(description="which one")
    size: Bytes = Field(description="one size")
    algorithm: str | None = Field(
        default=None,
        description=(
            "a name that `commsim schedule list` shows; left out: the first of the list; with library nccl one of "
            "NCCL's, left out: its choice"
        ),
    )
    root: Rank | None = Field(default=None, description="counted within the job's ranks; left out: 0")
    channels: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="shares of the array that go side by side; left out: 1, with library nccl what NCCL chooses",
    )

    @model_validator(mode="after")
    def _both_or_none(self) -> JobSpec:
        if (self.mesh is None) != (self.axis is None):
            missing = "axis" if self.axis is None else "mesh"
            raise ValueError(f"found a mesh or an axis without {missing}, expected both or none")
        if self.mesh is not None and self.axis not in self.mesh:
            raise located((("axis",), f"found {show(self.axis)}, expected one of {', '.join(self.mesh)}"))
        return self

    def groups(self, world_size: int) -> list[Int64]:
        """The ranks of each communicator: all of the job's, or those of each group along its axis."""
        ranks = np.arange(world_size) if self.ranks is None else np.array(self.ranks, np.int64)
        if self.mesh is None:
            return [ranks]
        laid = ranks.reshape(tuple(self.mesh.values()))
        place = list(self.mesh).index(str(self.axis))
        return list(np.moveaxis(laid, place, -1).reshape(-1, self.mesh[str(self.axis)]))


class FlowSpec(Strict):
    """Background traffic between two ranks: ``size`` bytes once, or at a ``rate`` until all jobs have ended."""

    src: Rank = Field(description="rank it comes from")
    dst: Rank = Field(description="rank it goes to")
    size: Bytes | None = Field(default=None, description="bytes, once")
    rate: Bandwidth | None = Field(default=None, description="bytes a second, until all jobs have ended")
    start: Seconds = Field(default=0.0, description="when it begins")

    @model_validator(mode="after")
    def _one_amount(self) -> FlowSpec:
        if (self.size is None) == (self.rate is None):
            given = "neither" if self.size is None else "both"
            raise ValueError(f"found {given} of size and rate, expected one: bytes once, or bytes a second")
        if self.src == self.dst:
            raise located((("dst",), f"found rank {self.dst} as source and destination, expected two ranks"))
        return self


class JobsSpec(Strict):
    """Jobs that share the network, each beside the time it takes alone."""

    jobs: Annotated[tuple[JobSpec, ...], Field(min_length=1, max_length=256)] = Field(
        description="collectives that share the network"
    )
    background: Annotated[tuple[FlowSpec, ...], Field(max_length=4096)] = Field(
        default=(), description="flows between ranks beside them"
    )

    def job_name(self, i: int) -> str:
        """What the i-th job is called: its name, or its place in the list, from 1."""
        return self.jobs[i].name or f"job {i + 1}"

    @model_validator(mode="after")
    def _jobs_fit(self) -> JobsSpec:
        faults: KeyFaults = []
        names: dict[str, int] = {}
        for i, job in enumerate(self.jobs):
            name = self.job_name(i)
            first = names.setdefault(name, i + 1)
            if first <= i:
                faults.append((("jobs", i, "name"), f"found the name {show(name)} again (first at job {first})"))
            faults += [(("jobs", i, *path), text) for path, text in _job_faults(job)]
        if faults:
            raise located(*faults)
        return self

    def rank_faults(self, world_size: int) -> KeyFaults:
        """What is not on a machine of as many ranks."""
        faults: KeyFaults = []
        there = f"expected one of the {world_size} ranks 0..{world_size - 1}"
        for i, job in enumerate(self.jobs):
            wrong = [rank for rank in job.ranks or () if rank >= world_size]
            faults += [(("jobs", i, "ranks"), f"found rank {rank}, {there}") for rank in wrong[:1]]
            if job.ranks is None:
                faults += [(("jobs", i, *path), text) for path, text in _count_faults(job, world_size)]
        for i, flow in enumerate(self.background):
            faults += [
                (("background", i, end), f"found rank {rank}, {there}")
                for end, rank in (("src", flow.src), ("dst", flow.dst))
                if rank >= world_size
            ]
        return faults


def _job_faults(job: JobSpec) -> KeyFaults:
    known = [name for _, name in registry.names(job.collective)]
    faults = algorithm_faults(job.algorithm, known) + root_faults(job.root, job.collective)
    return faults + (_count_faults(job, len(job.ranks)) if job.ranks is not None else [])


def _count_faults(job: JobSpec, count: int) -> KeyFaults:
    if job.mesh is not None:
        shown = " * ".join(map(str, job.mesh.values()))
        if math.prod(job.mesh.values()) != count:
            return [(("mesh",), f"found {shown} = {math.prod(job.mesh.values())}, expected a product of {count}")]
        count = job.mesh[str(job.axis)]
    if count < 2:
        return [(("ranks",), f"found {count} rank for a collective, expected at least 2")]
    if job.root is not None and job.root >= count:
        return [(("root",), f"found root {job.root}, expected one of the job's {count} ranks, counted from 0")]
    return []
