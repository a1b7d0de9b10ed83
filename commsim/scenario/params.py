"""Files of fitted parameters: what `commsim calibrate` writes and `params:` of a scenario names.

::

    library: gloo
    provenance: fitted by commsim 0.1.0 to allreduce.csv (sha256 0123...), 2026-01-31
    conditions: {topology: loopback, ranks: 4}
    seen: [{collective: all_reduce, nodes: 1, gpus: 4, smallest_bytes: 8, largest_bytes: 1048576}]
    values: {call: 3e-05 s, message: 1e-05 s, ...}
    band: {low: 0.9, high: 1.15}

`values` are the fields of the library's parameters by their names (`ring_hop.nvlink.LL` for a field of a field), with
units; what a fit could not determine keeps its shipped value and is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from commsim.document import Document, read_documents, validate
from commsim.document.types import show
from commsim.errors import Fault, ScenarioError
from commsim.scenario.strict import Strict

if TYPE_CHECKING:
    from commsim.gloo.parameters import GlooParameters
    from commsim.nccl.parameters import Parameters
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology

M = TypeVar("M", bound=BaseModel)


RENAMED = {
    "slice_cost": "pause.Simple",
    "channel_cost_before_2_22": "channel_cost_before_2_14",
    "efficiency.through_host": "network.through_host_efficiency",
}
"""Names that files written before may hold, and what the same thing is called now (CHANGELOG.md)."""


NEAR = 0.8
"""Likeness (difflib) from which on another name is asked after: a slip, not a parameter that is gone."""


class Band(Strict):
    """Factors on a predicted time that held eight of ten held-out measurements."""

    low: float = Field(gt=0, le=1)
    high: float = Field(ge=1)


class Fitted(Strict):
    """One fitted value with its 95 % confidence interval, as text with units."""

    value: str | float
    low: str | float | None = None
    high: str | float | None = None


class Seen(Strict):
    """Calls that a fit has seen: a collective on a shape of the machine, over sizes.

    `off_bytes`: those of `sizes_bytes` whose measured time is outside of the fit's band. Both are blank where no
    size could be left out, and in files that were written before they were kept.
    """

    collective: str
    nodes: int = Field(ge=1)
    gpus: int = Field(ge=1)
    smallest_bytes: int = Field(ge=0)
    largest_bytes: int = Field(ge=0)
    sizes_bytes: tuple[int, ...] = ()
    off_bytes: tuple[int, ...] = ()

    @property
    def shape(self) -> str:
        """Nodes, and GPUs of each."""
        return f"{self.nodes} x {self.gpus} ranks"


class Errors(Strict):
    """Mean absolute relative errors of what a fit had not seen: by the fit, and by the shipped parameters."""

    fitted: float = Field(ge=0)
    shipped: float = Field(ge=0)


class ParamsFile(Strict):
    """The whole file."""

    library: Literal["nccl", "gloo"]
    provenance: str
    conditions: dict[str, str | int | float] = Field(default_factory=dict)
    files: list[dict[str, str | int]] = Field(default_factory=list)
    values: dict[str, Fitted]
    kept: dict[str, str] = Field(default_factory=dict)  # field -> why it keeps its shipped value
    held_out_mape: float | None = Field(default=None, ge=0)
    errors: dict[Literal["sizes", "shapes", "collectives"], Errors] = Field(default_factory=dict)
    slower: tuple[str, ...] = ()  # what was measured is slow for such a machine, in words
    band: Band | None = None
    seen: tuple[Seen, ...] = ()  # none of files that were written before it was kept
    band_left_out: Band | None = None  # of the measurements of shapes that the fit had not seen


def read_params(path: Path) -> ParamsFile:
    """The file; ScenarioError with file, line and column where it is not one."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise ScenarioError([Fault(str(path), 0, 0, "", f"expected one document, found {len(documents)}")])
    return validate(ParamsFile, documents[0])


def gloo_parameters(scenario: Setting) -> tuple[GlooParameters, tuple[float, float] | None]:
    """The gloo parameters of a scenario, and the band of its fit where it has one."""
    from commsim.gloo.parameters import shipped_parameters

    if scenario.library.measured:
        return _adapted(scenario, shipped_parameters()), None
    return _with_file(scenario, shipped_parameters(), "gloo")


def nccl_parameters(scenario: Setting, topology: Topology) -> tuple[Parameters | None, tuple[float, float] | None]:
    """The NCCL parameters of a scenario with `params` or `library.measured`, else None (the shipped ones); and the
    band of the fit."""
    from commsim.nccl.parameters import load_parameters, network_of

    if scenario.params is None and not scenario.library.measured:
        return None, None
    network = network_of(topology, scenario.library.env)
    generations = sorted({group.gpu.generation for group in topology.groups})
    if len(generations) > 1:
        place = ("library", "measured") if scenario.library.measured else ("params",)
        raise scenario.document.error(
            place, f"found GPUs of {' and '.join(generations)}, expected those of one generation"
        )
    shipped = load_parameters(generations[0], network)
    if scenario.library.measured:
        _check_machine(scenario, topology)
        return _adapted(scenario, shipped), None
    path = scenario.params_path()
    fitted = read_params(path).conditions if path is not None else {}
    its_network = fitted.get("network", network)
    if topology.nodes > 1 and fitted.get("nodes", 1) != 1 and its_network != network:
        message = f"{path} was fitted to calls over {its_network}, but this job's go over {network}"
        raise scenario.document.error(("params",), message)
    return _with_file(scenario, shipped, "nccl")


def _adapted(scenario: Setting, shipped: M) -> M:
    """The shipped parameters moved to what `library.measured` knows."""
    from commsim.fitting.fields import replaced
    from commsim.scenario.fit import known_of

    known = known_of(scenario)
    moved = replaced(shipped, {value.path: value.value for value in known.fit.values})
    return moved.model_copy(update={"provenance": known.words()})  # type: ignore[no-any-return]


def _check_machine(scenario: Setting, topology: Topology) -> None:
    """A ScenarioError where the known numbers are of other GPUs, or of calls over another network."""
    from commsim.nccl.parameters import network_of
    from commsim.scenario.fit import known_of

    env, on = scenario.library.env, known_of(scenario).topology
    message = ""
    own = topology.groups[0].gpu.generation
    if on.gpu.generation != own:
        message = f"of {on.gpu.generation} GPUs, but this job's are {own}"
    elif topology.nodes > 1 and on.nodes > 1 and network_of(on, env) != network_of(topology, env):
        message = f"of calls over {network_of(on, env)}, but this job's go over {network_of(topology, env)}"
    if message:
        raise scenario.document.error(("library", "measured"), f"found numbers {message}")


def _with_file(scenario: Setting, shipped: M, library: str) -> tuple[M, tuple[float, float] | None]:
    path = scenario.params_path()
    if path is None:
        return shipped, None
    file = read_params(path)
    if file.library != library:
        message = f"{path} holds parameters of {file.library}, but the library is {library}"
        raise scenario.document.error(("params",), message)
    band = (file.band.low, file.band.high) if file.band else None
    return with_values(shipped, file, path), band


def with_values(shipped: M, file: ParamsFile, path: Path) -> M:
    """The shipped parameters with the values of a file; every unknown name or wrong unit is a fault of the file."""
    values: dict[str, Any] = shipped.model_dump(mode="json")
    faults = []
    document = read_documents(path)[0]
    for name, fitted in file.values.items():
        at = values
        *groups, last = name.split(".")
        for group in groups:
            at = at.get(group) if isinstance(at, dict) else None  # type: ignore[assignment]
        if not isinstance(at, dict) or last not in at or isinstance(at[last], dict):
            text = (
                f"found the parameter {show(name)}, which this version of commsim does not have{_instead(name, values)}"
            )
            faults.append(document.fault(("values", name), text, at_key=True))
        else:
            at[last] = fitted.value
    values["provenance"] = file.provenance
    try:
        made = validate(type(shipped), Document(file=str(path), data=values, marks={}))
    except ScenarioError as error:
        faults += [document.fault(("values", fault.path, "value"), fault.message) for fault in error.faults]
    if faults:
        raise ScenarioError(sorted(faults))
    return made


def _instead(name: str, values: dict[str, Any]) -> str:
    """What to write for an unknown name; empty where no name is near."""
    if name in RENAMED:
        return f"; it is {RENAMED[name]!r} now"
    near = get_close_matches(name[:80], list(_paths(values)), n=1, cutoff=NEAR)
    return f"; did you mean {near[0]!r}?" if near else ""


def _paths(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name
