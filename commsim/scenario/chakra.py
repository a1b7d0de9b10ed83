"""A ``trace:`` item of a scenario: Chakra execution traces, on which ranks they run, and what they leave open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from commsim.chakra.groups import read_groups
from commsim.chakra.reading import read_trace, trace_files
from commsim.chakra.trace import Trace
from commsim.document import located
from commsim.errors import CommsimError, ScenarioError
from commsim.scenario.strict import Ranks, Strict
from commsim.training.accelerator import accelerator


class TraceSpec(Strict):
    """Traces of all ranks, one file each, or of some of them."""

    path: str = Field(
        min_length=1,
        description=(
            "the prefix of `PREFIX.0.et`, `PREFIX.1.et` ..., their folder, or one file, relative to the scenario file"
        ),
    )
    ranks: Ranks | None = Field(
        default=None, description="where the traces run, in their order, such as `0 .. 3`; left out: all ranks"
    )
    others: Literal["refuse", "repeat", "ready"] = Field(
        default="refuse",
        description=(
            "ranks without a file: a fault, or run by the files there are, with peers and groups moved on, or never "
            "keep anyone waiting"
        ),
    )
    groups: str | None = Field(
        default=None,
        min_length=1,
        description=(
            'a JSON file of process groups by name, `{"tp0": [0, 1]}`, relative to the scenario file; left out: what '
            "the traces list"
        ),
    )
    dims: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=8)] | None = Field(
        default=None,
        description=(
            "sizes of the axes that `involved_dim` counts, innermost first; left out: GPUs of a node, then nodes"
        ),
    )
    compute_scale: float = Field(
        default=1.0, gt=0, le=1e6, description="factor on all seconds of compute, host and memory"
    )
    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4"] = Field(
        default="bf16", description="whose peak times nodes that state no duration"
    )
    accelerator: str | None = Field(
        default=None, description="for these another datasheet than that of the topology's GPU"
    )
    contention: bool = Field(default=True, description="transfers that share links slow each other down")

    @model_validator(mode="after")
    def _names_exist(self) -> TraceSpec:
        try:
            if self.accelerator is not None:
                accelerator(self.accelerator).peak(self.precision)
        except CommsimError as error:
            raise located((("accelerator",), str(error))) from None
        return self

    def places(self, world_size: int) -> tuple[int, ...]:
        """The machine's ranks that the traces run on."""
        return self.ranks or tuple(range(world_size))


class TraceFiles:
    """What the files of an item hold: the trace of every rank (None: always ready), and how far it was moved."""

    def __init__(self, spec: TraceSpec, base_dir: Path, world_size: int) -> None:
        count = len(spec.places(world_size))
        files = trace_files(base_dir / spec.path)
        beyond = [rank for rank in files if rank >= count]
        if beyond and len(files) > 1:
            raise ScenarioError(
                f"found a trace of rank {beyond[0]} ({files[beyond[0]].name}), expected ranks 0..{count - 1}: as many "
                "as the topology has, or the item's ranks"
            )
        if beyond:  # one file that the user names stands for rank 0
            files = {0: next(iter(files.values()))}
        missing = [rank for rank in range(count) if rank not in files]
        if missing and spec.others == "refuse":
            raise ScenarioError(_missing_words(missing, files, count))
        read: dict[int, Trace] = {}
        faults: list[str] = []
        for rank, file in files.items():
            try:
                read[rank] = read_trace(file)
            except ScenarioError as error:
                faults.append(str(error))
                if len(faults) == MOST_FILES_AT_FAULT:
                    break
        if faults:
            raise ScenarioError("\n".join(faults))
        known = sorted(read)
        others = [known[rank % len(known)] if spec.others == "repeat" else None for rank in range(count)]
        sources = [rank if rank in read else others[rank] for rank in range(count)]
        self.traces = [None if source is None else read[source] for source in sources]
        self.moved = [0 if source is None else rank - source for rank, source in enumerate(sources)]
        self.listed = read_groups(base_dir / spec.groups, count) if spec.groups is not None else {}


MOST_FILES_AT_FAULT = 3


def _missing_words(missing: list[int], files: dict[int, Path], count: int) -> str:
    have = f"{len(files)} trace{'s' if len(files) > 1 else ''}"
    fewer = f"ranks: 0 .. {len(files) - 1} to run on fewer ranks, " if list(files) == list(range(len(files))) else ""
    return (
        f"found {have} for {count} ranks, none for rank {missing[0]}; expected one file per rank, {fewer}"
        "others: repeat (the files there are, moved on), or others: ready (those without a file keep no one waiting)"
    )
