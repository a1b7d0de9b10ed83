"""Which scenario a question for a cost is: the machine that was named, with one call in place of its workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from commsim.collectives.semantics import NCCL_TESTS
from commsim.document import Document, apply_overrides, raise_faults, read_documents
from commsim.document.types import show, suggest
from commsim.errors import ScenarioError
from commsim.scenario.load import check_document, find_scenario, load_scenarios, scenario_warnings, with_machine
from commsim.scenario.setting import Setting, idle_warnings
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology, preset_names

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario
    from commsim.topology.spec import TopologySpec

AnyMachine: TypeAlias = str | Path | Mapping[str, Any] | Topology | Setting
"""A preset; a file of a topology or of one scenario, or the name of a shipped one; what stands in such a file, as a
mapping or read."""

_NO_FILE = "cost"
"""What stands in messages in the place of a file's name."""

_NO_CALL = ("sizes", "collective")
"""Keys of a workload item that are the question itself."""


@dataclass(frozen=True)
class AskedCall:
    """What is asked for beside the machine and the ranks; None: as the scenario has it, else the default.

    ``overrides``: ``key.path=value`` texts on the scenario whose ``workload.0`` is the call.
    """

    collective: str | None
    dtype: str | None = None
    redop: str | None = None
    mode: str | None = None
    library: str | Mapping[str, Any] | None = None
    overrides: tuple[str, ...] = ()


def setting_of(machine: AnyMachine, asked: int | tuple[int, ...] | None, call: AskedCall) -> Scenario:
    """The scenario of one call on a machine."""
    if repeated := [text for text in call.overrides if text.strip().startswith("workload.0.sizes")]:
        raise ScenarioError(f"found {show(repeated[0])}, expected sizes as arguments, such as 64MiB")
    document, base_dir = _document(machine, asked, call)
    setting, faults = check_document(document, base_dir)
    if setting is None or faults:
        raise_faults(replace(fault, line=0, column=0) if fault.file == _NO_FILE else fault for fault in faults)
    return setting


def of_job(
    machine: AnyMachine, ranks: int | None, mode: str | None, library: str | Mapping[str, Any] | None
) -> Setting:
    """The setting of a job of so many ranks, to be asked as a machine for the groups of it; none of a Topology.

    What a scenario says of collectives stays in it.
    """
    assert not isinstance(machine, Topology), "which has its ranks"
    return setting_of(machine, ranks, AskedCall(None, mode=mode, library=library))


def notes_of(setting: Scenario, topology: Topology) -> tuple[str, ...]:
    """What of a question has no effect, as `run` says it of a scenario."""
    notes = scenario_warnings(setting) + idle_warnings(setting, topology)
    return tuple(note.removeprefix(f"{_NO_FILE}:1:1 ") for note in notes)


def built(spec: TopologySpec, base_dir: Path, joined: bool) -> Topology:
    """A topology, one for equal descriptions, whose models are shared; what stands in files is read anew."""
    text = spec.model_dump_json(exclude_unset=True)
    if '"path"' in text:
        return load_topology(spec, base_dir, joined=joined)
    return _built_as(_Described(text, spec), joined)


def _document(machine: AnyMachine, asked: int | tuple[int, ...] | None, call: AskedCall) -> tuple[Document, Path]:
    """The scenario of a question, and the folder that its files are relative to."""
    if isinstance(machine, Topology):  # which stands in for what would be built from this block
        if isinstance(call.library, Mapping) and "measured" in call.library:
            raise ScenarioError("library.measured: found it with a Topology, expected a machine that a file describes")
        block = {"name": machine.name, "topology": {"preset": preset_names()[0]}}
        return _with_call(Document(_NO_FILE, block), call), Path()
    if isinstance(machine, Mapping) and "topology" not in machine:
        return _of_block(dict(machine), asked, call), Path()
    if isinstance(machine, (str, Path)):
        if str(machine) in preset_names():
            return _of_block({"preset": str(machine)}, asked, call), Path()
        path = _path_of(str(machine))
        if not _holds_scenario(path):
            return _of_block({"path": str(path.absolute())}, asked, call), Path()
    document, base_dir = _scenario_of(machine)
    return _with_call(document, call), base_dir


def _scenario_of(machine: object) -> tuple[Document, Path]:
    """The document of a scenario, and its folder; of what names none a ScenarioError."""
    if isinstance(machine, Setting):
        return machine.document, machine.base_dir
    if isinstance(machine, Mapping):
        return Document(_NO_FILE, dict(machine)), Path()
    if not isinstance(machine, (str, Path)):
        raise ScenarioError(
            f"machine: found {show(machine)}, expected a preset, a file of a topology or of one scenario, what such a "
            "file holds, or a Topology"
        )
    path = _path_of(str(machine))
    scenarios = load_scenarios(path)
    if len(scenarios) != 1:
        raise ScenarioError(f"{path}: found {len(scenarios)} scenarios, expected one")
    return scenarios[0].document, path.parent


def _path_of(name: str) -> Path:
    """The file of a machine: one that is there, or a shipped scenario."""
    try:
        path = Path(name) if Path(name).is_file() else find_scenario(name)
        if path.is_file():
            return path
    except (ScenarioError, ValueError, OSError):  # a name with a NUL, or too long for one
        pass
    raise ScenarioError(
        f"machine: found {show(name)}, which is no file and no shipped scenario; of presets, "
        f"{suggest(name, preset_names())}"
    )


def _holds_scenario(path: Path) -> bool:
    data = read_documents(path)[0].data
    return isinstance(data, dict) and bool({"topology", "workload", "plan", "sweep", "serve"} & set(data))


def _of_block(block: dict[str, Any], asked: int | tuple[int, ...] | None, call: AskedCall) -> Document:
    """The scenario of a machine; it gets as many nodes as the ranks need where it does not say how many it has."""
    document = _with_call(Document(_NO_FILE, {"name": "cost", "topology": block}), call)
    block = document.data["topology"]
    if asked is None or not isinstance(block, dict) or {"nodes", "groups"} & set(block):
        return document
    setting, faults = check_document(document, Path())
    if setting is None or faults:
        return document  # whose faults are told with all others
    one = built(setting.topology, Path(), joined=False)
    nodes = -(-(asked if isinstance(asked, int) else max(asked) + 1) // one.world_size)
    if nodes <= 1 or one.nodes > 1:
        return document
    return replace(document, data={**document.data, "topology": {**block, "nodes": nodes}})


def _with_call(document: Document, call: AskedCall) -> Document:
    """The scenario with a call in place of its workload; what is given comes before what it says itself."""
    document = with_machine(document)
    data = {key: value for key, value in document.data.items() if key not in ("compare", "report")}
    given = {key: value for key in ("dtype", "redop") if (value := getattr(call, key)) is not None}
    if call.collective is None:
        items = _items(document) or [{"collective": NCCL_TESTS[0]}]
    else:
        items = [{**_stated(document, call.collective, given), **given, "collective": call.collective}]
    changed: dict[str, Any] = {"workload": [{**item, "sizes": "1 MiB"} for item in items]}
    if call.mode is not None:
        changed["mode"] = call.mode
    if call.library is not None:
        changed["library"] = _library(data.get("library"), call.library)
    return apply_overrides(replace(document, data={"name": "cost", **data, **changed}), call.overrides)


def _library(own: object, given: str | Mapping[str, Any]) -> Any:
    """The library that is given: of the one that the scenario has its keys, another in its place."""
    own = {"name": own} if isinstance(own, str) else own
    if not isinstance(own, Mapping) or not isinstance(given, Mapping):
        return given
    if given.get("name", own.get("name", "nccl")) != own.get("name", "nccl"):
        return given
    return {**own, **given}


def _items(document: Document) -> list[Mapping[str, Any]]:
    """The workload items of a scenario that are one collective each."""
    workload = document.data.get("workload")
    items = workload if isinstance(workload, (list, tuple)) else ()
    return [item for item in items if isinstance(item, Mapping) and "collective" in item]


def _stated(document: Document, collective: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a scenario says of calls of a collective: its item of it; else type and reduction of its only item.

    ScenarioError where it has several that differ in what is not `given`.
    """
    items = _items(document)
    same = [item for item in items if item["collective"] == collective]
    if not same:
        only = items[0] if len(items) == 1 else {}
        return {key: only[key] for key in ("dtype", "redop") if key in only}
    stated = [{key: value for key, value in item.items() if key not in _NO_CALL} for item in same]
    keys = {key for one in stated for key in one if key not in given}
    if differ := sorted(key for key in keys if any(one.get(key) != stated[0].get(key) for one in stated)):
        raise ScenarioError(
            f"found {len(same)} items of {collective} in the scenario that differ in {', '.join(differ)}, expected one"
            + (f" or {' and '.join(differ)}" if set(differ) <= {"dtype", "redop"} else "")
        )
    return stated[0]


@dataclass(frozen=True)
class _Described:
    """A description of a machine that names no file, and the same as text, by which it is looked up."""

    text: str
    spec: TopologySpec = field(compare=False)


@lru_cache(maxsize=64)
def _built_as(described: _Described, joined: bool) -> Topology:
    return load_topology(described.spec, Path(), joined=joined)
