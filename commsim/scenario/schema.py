"""What a scenario file may say: strict pydantic models; cross-field faults sit at the value at fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PrivateAttr, model_validator

from commsim.collectives import registry
from commsim.collectives.semantics import ROOTED, NcclTestsName
from commsim.document import Document, located
from commsim.document.types import KeyPath, show, suggest
from commsim.measure.run import ITEM_BYTES
from commsim.nccl.operation import Operation, unknown_to
from commsim.nccl.version import parse_version
from commsim.scenario.chakra import TraceWork
from commsim.scenario.claim import ClaimWork
from commsim.scenario.jobs import JobsWork
from commsim.scenario.nccl_env import value_faults
from commsim.scenario.sizes import parse_size_list
from commsim.scenario.strict import Strict
from commsim.scenario.training import TrainingWork
from commsim.scenario.variation import VariationSpec
from commsim.topology.spec import TopologySpec
from commsim.units import format_bytes

DEFAULT_NCCL_VERSION = "2.26.2"

_OTHER_DTYPE_NAMES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "fp64": "float64",
    "bf16": "bfloat16",
    "int": "int32",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
}


def _dtype(value: Any) -> Any:
    """Names of nccl-tests and others; the nearest of our names would mislead (``float`` is not float16)."""
    if isinstance(value, str) and value in _OTHER_DTYPE_NAMES:
        raise ValueError(f"found {value!r}, did you mean {_OTHER_DTYPE_NAMES[value]!r}?")
    return value


def _version(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){2}", value, re.ASCII):
        return value
    raise ValueError(f"found {show(value)}, expected an NCCL version of three numbers, such as {DEFAULT_NCCL_VERSION}")


def _env_value(value: Any) -> Any:
    """``NCCL_MAX_NCHANNELS: 16`` need not be quoted."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


DType = Annotated[
    Literal[
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3",
        "float8_e5m2",
    ],
    BeforeValidator(_dtype),
]
Sizes = Annotated[
    tuple[int, ...],
    BeforeValidator(parse_size_list, json_schema_input_type=str | list[str]),
    PlainSerializer(lambda sizes: [f"{s} B" for s in sizes], return_type=list[str]),
]
EnvValue = Annotated[str, BeforeValidator(_env_value, json_schema_input_type=str | int)]


class Library(Strict):
    """Who runs the collective: NCCL or gloo with their own choices, or ``none`` for a raw schedule."""

    name: Literal["nccl", "gloo", "none"] = Field(
        default="nccl",
        description=(
            "whose collectives they are: NCCL's, gloo's as torch calls it, or `none` for raw schedules; the name "
            "alone may stand in place of the block"
        ),
    )
    version: Annotated[str, BeforeValidator(_version, json_schema_input_type=str)] = Field(
        default=DEFAULT_NCCL_VERSION, description="of NCCL, three numbers: constants and rules differ by version"
    )
    env: dict[str, EnvValue] = Field(
        default_factory=dict, description="the `NCCL_*` variables of the run; one that is not modelled gives a warning"
    )
    graph: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "what NCCL found on the machine itself, in place of a search: a file of `NCCL_GRAPH_DUMP_FILE`, or a log "
            "of `NCCL_DEBUG=INFO` with the lines of `NCCL_DEBUG_SUBSYS=INIT,GRAPH`, of a job with as many GPUs a node; "
            "a file beside the scenario, as an override from where the program runs"
        ),
    )
    launch_mode: Literal["one_process", "process_per_gpu"] = Field(
        default="process_per_gpu",
        description="one GPU per process (torchrun, mpirun), or all GPUs of a node in one (nccl-tests `-g 8`); NCCL's",
    )
    one_host: bool = Field(
        default=False,
        description="with gloo: all nodes share the `cpu.cores` of one computer, as network namespaces do",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _env_makes_sense(self) -> Library:
        faults: list[tuple[KeyPath, str]] = [(("env", k), m) for k, m in value_faults(self.env).items()]
        needs = {"version": "nccl", "env": "nccl", "graph": "nccl", "launch_mode": "nccl", "one_host": "gloo"}
        faults += [
            ((key,), f"found {key} with library {self.name}, expected it only with library {library}")
            for key, library in needs.items()
            if library != self.name
            and key in self.model_fields_set
            and getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True)
        ]
        if faults:
            raise located(*faults)
        return self


class CollectiveWork(Strict):
    """One collective over message sizes; ``sizes`` are bytes, None to take those of the measured files."""

    collective: Literal[NcclTestsName, "all_to_all_v"] = Field(
        description="which one; `all_to_all_v` is not one of NCCL's own"
    )
    sizes: Sizes | None = Field(
        default=None,
        description=(
            "one size, a list, or a range such as `8 B .. 8 GiB x2`; left out: those of the curves under `compare`"
        ),
    )
    dtype: DType = Field(
        default="float32",
        description="type of an element; with `redop` it decides which of NCCL's algorithms a reduction may have",
    )
    redop: Literal["sum", "prod", "max", "min", "avg"] = Field(
        default="sum", description="how elements are combined; NVLS knows `sum`, and `max` and `min` of some types"
    )
    algorithm: str | None = Field(
        default=None,
        description=(
            "with library `none` only: a name that `commsim schedule list` shows for the collective, or `auto` for "
            "the quickest of all that fit; left out: the first of the list"
        ),
    )
    root: int | None = Field(
        default=None, ge=0, description="rank of broadcast, reduce, gather and scatter; left out: 0"
    )
    protocol: Literal["LL", "LL128", "Simple"] | None = Field(
        default=None, description="what `NCCL_PROTO` does, for this entry; left out: NCCL's choice"
    )
    channels: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="what `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS` do; left out: the library's choice",
    )

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def operation(self) -> Operation:
        """What the call does to its elements."""
        return Operation(self.dtype, self.redop)

    def as_logged(self, dtype: str, redop: str) -> CollectiveWork:
        """The item with the type and the reduction of a log, in its words, where it states none of its own."""
        named = Operation.named(dtype, redop)
        logged = {"dtype": named.dtype if dtype else "", "redop": named.redop if redop else ""}
        unstated = {k: v for k, v in logged.items() if v and k not in self.model_fields_set}
        return self.model_copy(update=unstated)


class Report(Strict):
    """What to write beside the table."""

    plot: bool = Field(default=False, description="write the bandwidth curve as PNG and SVG")
    html: bool = Field(default=False, description="write the whole report as one file that loads nothing")


_NEED_NCCL = {TrainingWork: ("training", "training"), ClaimWork: ("claim", "a claim"), TraceWork: ("trace", "a trace")}
"""Key and words of the items that only the model of NCCL times, and of training, which gloo's times too."""


class Scenario(Strict):
    """A topology and a workload, with how to predict it and what to compare it with."""

    name: str = Field(
        min_length=1,
        max_length=200,
        description=(
            "what tables and plots are titled; in lower case, with words joined by `-`, the default output folder"
        ),
    )
    topology: TopologySpec = Field(description="the machine")
    library: Library = Field(
        default_factory=Library, description="whose collectives, and in which version and environment"
    )
    workload: tuple[CollectiveWork | JobsWork | TrainingWork | ClaimWork | TraceWork, ...] = Field(
        min_length=1, description="what is predicted, one table or answer per entry"
    )
    engine: Literal["auto", "closed_form", "wavefront", "fold", "event"] = Field(
        default="auto",
        description=(
            "how times are computed; a level that does not apply says which of its conditions fails; `fold` only "
            "with library `none`"
        ),
    )
    contention: Literal["fifo", "fair"] = Field(
        default="fifo",
        description=(
            "with library `none`: messages that meet on a link go one after the other, or side by side with a "
            "max-min fair share each"
        ),
    )
    variation: VariationSpec | None = Field(
        default=None, description="with library `none`: what differs from run to run and from rank to rank"
    )
    mode: Literal["back_to_back", "single"] = Field(
        default="back_to_back",
        description=(
            "`back_to_back`: calls follow each other, as in nccl-tests; `single`: one call that somebody waits "
            "for, which pays launch and kernel"
        ),
    )
    compare: tuple[str, ...] = Field(
        default=(), description="measured curves beside the scenario file: CSV tables or logs"
    )
    params: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "a file of fitted parameters that `commsim calibrate` wrote, beside the scenario; as an override, from "
            "where the program runs"
        ),
    )
    report: Report = Field(default_factory=Report, description="what to write beside the table")

    _document: Document = PrivateAttr(default_factory=lambda: Document("", None))
    _base_dir: Path = PrivateAttr(default_factory=Path)

    @property
    def source(self) -> str:
        """The file it was read from, empty for one made in code."""
        return self._document.file

    @property
    def base_dir(self) -> Path:
        """The folder that ``compare`` and ``topology.path`` are relative to."""
        return self._base_dir

    @property
    def document(self) -> Document:
        """The document it was read from, for faults that only show later."""
        return self._document

    @property
    def slug(self) -> str:
        """The name as a file name: lower case, words joined by ``-``."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:80] or "scenario"

    @property
    def collectives(self) -> tuple[CollectiveWork, ...]:
        """The workload items of one collective each."""
        return tuple(work for work in self.workload if isinstance(work, CollectiveWork))

    @property
    def jobs(self) -> tuple[JobsWork, ...]:
        """The workload items of several jobs at once."""
        return tuple(work for work in self.workload if isinstance(work, JobsWork))

    @property
    def trainings(self) -> tuple[TrainingWork, ...]:
        """The workload items that are training steps."""
        return tuple(work for work in self.workload if isinstance(work, TrainingWork))

    @property
    def claims(self) -> tuple[ClaimWork, ...]:
        """The workload items that are claims."""
        return tuple(work for work in self.workload if isinstance(work, ClaimWork))

    @property
    def traces(self) -> tuple[TraceWork, ...]:
        """The workload items that are execution traces."""
        return tuple(work for work in self.workload if isinstance(work, TraceWork))

    def compare_paths(self) -> list[Path]:
        """The measured files, from where the program runs."""
        return [self.base_dir / name for name in self.compare]

    def params_path(self) -> Path | None:
        """The file of fitted parameters: beside the scenario, or where the program runs if an override names it."""
        return self._file(("params",), self.params)

    def graph_path(self) -> Path | None:
        """The file of NCCL's graphs: beside the scenario, or where the program runs if an override names it."""
        return self._file(("library", "graph"), self.library.graph)

    def _file(self, key: KeyPath, name: str | None) -> Path | None:
        if name is None:
            return None
        return Path(name) if key in self.document.overrides else self.base_dir / name

    def nccl_env(self, work: CollectiveWork) -> dict[str, str]:
        """NCCL's environment for one item: ``library.env`` and what the item itself fixes."""
        env = dict(self.library.env)
        if work.protocol is not None:
            env["NCCL_PROTO"] = work.protocol
        if work.channels is not None:
            env["NCCL_MIN_NCHANNELS"] = env["NCCL_MAX_NCHANNELS"] = str(work.channels)
        return env

    def __eq__(self, other: object) -> bool:
        """Equal if they say the same, wherever they were read from."""
        return isinstance(other, Scenario) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.name)

    @model_validator(mode="after")
    def _items_fit(self) -> Scenario:
        faults: list[tuple[KeyPath, str]] = []
        library = self.library.name
        for i, work in enumerate(self.workload):
            if isinstance(work, CollectiveWork):
                faults += self._item_faults(i, work)
            elif isinstance(work, (TrainingWork, ClaimWork, TraceWork)):
                training = isinstance(work, TrainingWork)
                if library != "nccl" and not (training and library == "gloo"):
                    key, what = _NEED_NCCL[type(work)]
                    text = f"found {what} with library {library}, expected library nccl" + " or gloo" * training
                    faults.append((("workload", i, key), text))
            elif library != "none":
                text = f"found jobs with library {library}, whose times are not those of links; expected library none"
                faults.append((("workload", i, "jobs"), text))
        if self.compare and not self.collectives:
            faults.append((("compare",), "found measured files without a collective, expected one as well"))
        if self.variation is not None and library != "none":
            faults.append(
                (("variation",), f"found variation with library {library}, expected it only with library none")
            )
        if (self.variation is not None or self.jobs) and self.engine not in ("auto", "event"):
            what = "variation" if self.variation is not None else "jobs"
            faults.append((("engine",), f"found engine {self.engine} with {what}, expected auto or event"))
        if self.library.graph is not None and len(self.collectives) < len(self.workload):
            text = "found a graph of whole nodes beside work that runs on parts of them, expected collectives only"
            faults.append((("library", "graph"), text))
        if library == "none" and self.params is not None:
            faults.append((("params",), "found params with library none, which has no parameters but its links"))
        if library == "gloo" and self.engine not in ("auto", "event"):
            text = f"found engine {self.engine} with library gloo, expected auto or event"
            faults.append((("engine",), text))
        elif library != "none":
            for key, value in (("engine", "fold"), ("contention", "fair")):
                if getattr(self, key) == value:
                    text = f"found {key} {value} with library {library}, expected it only with library none"
                    faults.append(((key,), text))
        if faults:
            raise located(*faults)
        return self

    def _item_faults(self, i: int, work: CollectiveWork) -> list[tuple[KeyPath, str]]:
        at: KeyPath = ("workload", i)
        faults: list[tuple[KeyPath, str]] = []
        if work.sizes is None and not self.compare:
            faults.append(
                (at, "found no key 'sizes', expected it, such as '8 B .. 8 GiB x2', unless compare has files")
            )
        odd = next((s for s in work.sizes or () if s % work.item_bytes), None)
        if odd is not None:
            text = f"found {format_bytes(odd)}, expected a multiple of {work.item_bytes} B, one {work.dtype}"
            faults.append(((*at, "sizes"), text))
        if work.root is not None and work.collective not in ROOTED:
            text = f"found a root for {work.collective}, expected it only for broadcast, reduce, gather and scatter"
            faults.append(((*at, "root"), text))
        if self.library.name == "none":
            known = ["auto", *(a for c, a in registry.names() if c == work.collective)]
            if work.algorithm is not None and work.algorithm not in known:
                text = f"found the unknown algorithm {show(work.algorithm)}, {suggest(work.algorithm, known)}"
                faults.append(((*at, "algorithm"), text))
            if work.protocol is not None:
                text = f"found protocol {work.protocol} with library none, expected it only with library nccl"
                faults.append(((*at, "protocol"), text))
            return faults
        if self.library.name == "gloo":
            faults += [
                ((*at, key), f"found {key} with library gloo, which chooses itself")
                for key in ("algorithm", "protocol", "channels")
                if getattr(work, key) is not None
            ]
            return faults
        if reason := unknown_to(parse_version(self.library.version), None, work.collective, work.operation):
            key = "redop" if f"no {work.redop}," in reason else "dtype"
            faults.append(((*at, key), f"found {getattr(work, key)}, but {reason}"))
        if work.algorithm is not None:
            text = (
                f"found algorithm {work.algorithm} with library nccl, which chooses itself; "
                f"expected library none, or NCCL_ALGO: {work.algorithm.title()} in library.env"
            )
            faults.append(((*at, "algorithm"), text))
        for key, names in (
            ("protocol", ("NCCL_PROTO",)),
            ("channels", ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")),
        ):
            both = [n for n in names if n in self.library.env]
            if getattr(work, key) is not None and both:
                faults.append(((*at, key), f"found {key} here and {both[0]} in library.env, expected one"))
        return faults
