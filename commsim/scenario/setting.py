"""What a scenario says beside its workload: the machine, the library, how to predict, what to compare with.

`build_topology` builds the machine; its faults are located in the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationInfo, model_validator

from commsim.collectives.semantics import NcclTestsName
from commsim.document import Document, located, raise_faults, refuse
from commsim.document.types import KeyFaults, KeyPath
from commsim.errors import Fault, TopologyError
from commsim.files import slug
from commsim.nccl.version import ASSUMED, Version, format_version, parse_version
from commsim.scenario.collective import CollectiveSpec
from commsim.scenario.nccl_env import ChoosesByEnv, value_faults
from commsim.scenario.placement import PlacementSpec
from commsim.scenario.strict import Strict
from commsim.scenario.variation import VariationSpec
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

if TYPE_CHECKING:
    from commsim.nccl.graph_file import GraphFile
    from commsim.topology.graph import Topology

Mode = Literal["back_to_back", "single"]


def _env_value(value: Any) -> Any:
    """``NCCL_MAX_NCHANNELS: 16`` need not be quoted."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


EnvValue = Annotated[str, BeforeValidator(_env_value, json_schema_input_type=str | int)]


def _known_numbers(numbers: dict[str, str]) -> dict[str, str]:
    """Sizes with what they take, as they were written."""
    from commsim.fitting.known import number_faults

    if not numbers:
        raise ValueError("found no number, expected a size and what it takes, such as 8B: 23us")
    if faults := number_faults(list(numbers.items())):
        raise located(*(((list(numbers)[place],), text) for place, text in faults.items()))
    return numbers


KnownNumbers = Annotated[dict[str, str], AfterValidator(_known_numbers)]


Framework = Literal["vllm", "sglang", "tensorrt_llm", "flashinfer"]
"""Those of `commsim.kernels.choice`, which few scenarios need."""

_NCCL_RELEASE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){2}", re.ASCII)


def _version(value: Any, info: ValidationInfo) -> Any:
    if info.data.get("name") != "custom_all_reduce" and isinstance(value, str) and _NCCL_RELEASE.fullmatch(value):
        return value
    from commsim.scenario.release import version_of

    return version_of(value, info.data.get("name"), info.data.get("framework"))


class LibrarySetup(ChoosesByEnv):
    """Who runs the collective: NCCL, gloo or a framework's kernels, which choose themselves, or a raw schedule."""

    name: Literal["nccl", "gloo", "custom_all_reduce", "synthesized", "none"] = Field(
        default="nccl",
        description=(
            "whose collectives they are: NCCL's, torch's gloo's, a serving framework's with its all-reduce kernels, "
            "`synthesized` at the limit of the links, or `none` for raw schedules; the name alone may stand for it"
        ),
    )
    framework: Framework | None = Field(
        default=None,
        description="with custom_all_reduce: whose kernels and rules; without `version` its newest release known here",
    )
    version: Annotated[str, BeforeValidator(_version, json_schema_input_type=str | float)] = Field(
        default=format_version(ASSUMED),
        description=(
            "of NCCL, three numbers, or of the framework, two or three: constants and rules differ by version"
        ),
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
    launch_mode: Literal["one_process", "process_per_gpu", "thread_per_gpu"] = Field(
        default="process_per_gpu",
        description=(
            "NCCL's: one GPU per process (torchrun, mpirun), a thread for each GPU of a node (nccl-tests `-t 8`), "
            "which launches beside the others and counts as that, or all GPUs of a node by one thread (`-g 8`)"
        ),
    )
    registered: Literal["none", "buffer", "window"] = Field(
        default="none",
        description=(
            "buffers of the calls that all ranks registered with NCCL: `buffer` with `ncclCommRegister` (nccl-tests "
            "`-R 1`), `window` as symmetric memory with `ncclCommWindowRegister` (`-R 2`, from NCCL 2.27)"
        ),
    )
    cuda_graph: bool | None = Field(
        default=None,
        description=(
            "with custom_all_reduce: calls are captured in a CUDA graph, as where it is left out; false: Python makes "
            "each of them"
        ),
    )
    one_host: bool = Field(
        default=False,
        description="with gloo: all nodes share the `cpu.cores` of one computer, as network namespaces do",
    )

    @property
    def named_version(self) -> Version | None:
        """NCCL's version where the scenario names one."""
        return parse_version(self.version) if "version" in self.model_fields_set else None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _env_makes_sense(self) -> LibrarySetup:
        faults: KeyFaults = [(("env", k), m) for k, m in value_faults(self.env).items()]
        needs = {
            **dict.fromkeys(("env", "graph", "launch_mode", "registered"), ("nccl",)),
            **dict.fromkeys(("framework", "cuda_graph"), ("custom_all_reduce",)),
            "version": ("nccl", "custom_all_reduce"),
            "one_host": ("gloo",),
        }
        if self.name == "custom_all_reduce" and self.framework is None:
            text = f"found no framework with library custom_all_reduce, expected {' or '.join(get_args(Framework))}"
            faults.append((("framework",) if "framework" in self.model_fields_set else (), text))
        faults += [
            ((key,), f"found {key} with library {self.name}, expected it only with library {libraries[0]}")
            for key, libraries in needs.items()
            if self.name not in libraries
            and key in self.model_fields_set
            and getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True)
        ]
        if faults:
            raise located(*faults)
        return self


class MeasuredOn(Strict):
    """What numbers were measured on: the machine, and how the library was set up there."""

    topology: TopologySpec = Field(description="the machine")
    library: LibrarySetup = Field(default_factory=LibrarySetup, description="its library, as in a scenario")
    mode: Mode = Field(default="back_to_back", description="as in a scenario")


class Library(LibrarySetup):
    """A library, and what is known of its collectives on the machine."""

    measured: dict[NcclTestsName, KnownNumbers] = Field(
        default_factory=dict,
        description=(
            "numbers that are known of the machine, taken by all of its ranks: by collective, a size, or `plateau` for "
            "8 GiB, with its time or bus bandwidth, such as `{all_reduce: {8B: 23us, plateau: 361GB/s}}`; the "
            "parameters are adapted to them"
        ),
    )
    measured_on: MeasuredOn | None = Field(
        default=None,
        description=(
            "what `measured` is of; left out, or a part of it: the scenario as it stands where `measured` does, so "
            "that overrides, the points of a sweep and what-ifs are other shapes of that machine"
        ),
    )

    @model_validator(mode="after")
    def _numbers_fit(self) -> Library:
        none = f"found measured with library {self.name}, expected it only with library nccl or gloo"
        refuse(
            (self.measured and self.name not in ("nccl", "gloo"), ("measured",), none),
            (self.measured_on and not self.measured, ("measured_on",), "found measured_on without measured"),
        )
        return self


class Report(Strict):
    """What to write beside the table."""

    plot: bool = Field(default=False, description="write the bandwidth curve as PNG and SVG")
    html: bool = Field(default=False, description="write the whole report as one file that loads nothing")


class Setting(Strict):
    """What a scenario says, whatever kinds of workload there are: these see no more of it than this."""

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
    workload: tuple[Strict, ...] = Field(min_length=1, description="what is predicted, one table or answer per entry")
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
        default=None,
        description=(
            "with library `none`, and `nccl` of collectives: what differs from run to run, from node to node and from "
            "rank to rank; with `nccl` of jobs as well, and of training steps jitter and the spread of nodes; with "
            "`gloo` the delay of stragglers alone, before each of their calls"
        ),
    )
    placement: PlacementSpec | None = Field(
        default=None,
        description=(
            "with library `nccl`, of collectives: which nodes of the machine the ranks are on, in which order; left "
            "out: all ranks in the machine's order"
        ),
    )
    mode: Mode = Field(
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
        return slug(self.name, "scenario")

    @property
    def late_s(self) -> dict[int, float]:
        """Seconds by which ranks come late; empty where none does."""
        return {} if self.variation is None else self.variation.variation.late()

    def compare_paths(self) -> list[Path]:
        """The measured files, from where the program runs."""
        return [self.base_dir / name for name in self.compare]

    def params_path(self) -> Path | None:
        """The file of fitted parameters: beside the scenario, or where the program runs if an override names it."""
        return self._file(("params",), self.params)

    def graph_path(self) -> Path | None:
        """The file of NCCL's graphs: beside the scenario, or where the program runs if an override names it."""
        return self._file(("library", "graph"), self.library.graph)

    def refuse_placement(self) -> None:
        """A ScenarioError where ranks are placed, for what is about all ranks of a machine."""
        if self.placement is not None:
            raise self.document.error(("placement",), "found a placement, expected none here: all ranks take part")

    def free_path(self) -> Path | None:
        """The file of free nodes: beside the scenario, or where the program runs if an override names it."""
        return self._file(("placement", "free"), None if self.placement is None else self.placement.free)

    def _file(self, key: KeyPath, name: str | None) -> Path | None:
        if name is None:
            return None
        return Path(name) if key in self.document.overrides else self.base_dir / name

    def nccl_env(self, work: CollectiveSpec) -> dict[str, str]:
        """NCCL's environment for one item: ``library.env`` and what the item itself fixes."""
        env = dict(self.library.env)
        if work.protocol is not None:
            env["NCCL_PROTO"] = work.protocol
        if work.channels is not None:
            env["NCCL_MIN_NCHANNELS"] = env["NCCL_MAX_NCHANNELS"] = str(work.channels)
        return env


def build_topology(scenario: Setting) -> Topology:
    """The scenario's topology; faults that know no line are located at the scenario's ``topology``.

    NCCL's communicators see themselves whether their nodes reach each other: of a part of the machine others need not.
    """
    parts = scenario.placement is not None or all(getattr(work, "of_parts", False) for work in scenario.workload)
    try:
        topology = load_topology(
            scenario.topology, scenario.base_dir, joined=not (parts and scenario.library.name == "nccl")
        )
    except TopologyError as exc:
        if any(f.line for f in exc.faults) or not scenario.source:
            raise
        messages = [": ".join(p for p in (f.file, f.path, f.message) if p) for f in exc.faults] or [str(exc)]
        raise_faults([_topology_fault(scenario.document, m) for m in messages], TopologyError)
    return topology


def idle_warnings(scenario: Setting, topology: Topology) -> list[str]:
    """The knobs of the network that change nothing on the scenario's topology, each at its place with what to set."""
    if not scenario.topology.model_fields_set & {"oversubscription", "nodes_per_leaf", "fabric"}:
        return []
    from commsim.topology.idle import idle_knobs

    idle = idle_knobs(scenario.topology, topology, scenario.base_dir)
    return [str(scenario.document.fault(("topology", *knob), text, at_key=True)) for knob, text in idle.items()]


def nccl_graphs(scenario: Setting, topology: Topology) -> GraphFile | None:
    """What NCCL found on the machine itself, where the scenario names a file of it; None: it is searched.

    LogFormatError for a broken file, ScenarioError for one of other nodes.
    """
    path = scenario.graph_path()
    if path is None:
        return None
    from commsim.nccl.graph_file import read_graph_file

    graphs = read_graph_file(path)
    if misfit := graphs.misfit(topology.ranks_per_node, topology.nodes):
        raise scenario.document.error(("library", "graph"), misfit)
    return graphs


_NAME_AND_KEYS = re.compile(r"(?:[^:\s]+: )?(?P<keys>[\w.]+): (?P<rest>.+)", re.DOTALL)


def _holds(value: Any, step: str | int) -> bool:
    """Whether a mapping has a key, or a list an item of a number."""
    if isinstance(step, int):
        return isinstance(value, list) and step < len(value)
    return isinstance(value, dict) and step in value


def _topology_fault(document: Document, message: str) -> Fault:
    """At the keys that ``NAME: node.links.1: ...`` begins with if the scenario has them, else at ``topology``."""
    match = _NAME_AND_KEYS.fullmatch(message)
    path: KeyPath = ("topology",)
    here = document.data["topology"]
    for key in match["keys"].split(".") if match else ():
        step = int(key) if isinstance(here, list) and key.isdecimal() else key
        path = (*path, step)
        if not _holds(here, step) or not (path in document.marks or document.overridden(path)):
            return document.fault(("topology",), message.removeprefix("topology: "))
        here = here[step]
    return document.fault(path, match["rest"] if match else message)
