"""Scenario files to Scenarios, and back to the resolved form that is saved beside a result."""

from __future__ import annotations

import copy
import glob
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from commsim.document import (
    Document,
    KeyPath,
    apply_overrides,
    compose_documents,
    raise_faults,
    read_text,
    try_validate,
)
from commsim.document.types import KeyFaults, show, suggest
from commsim.errors import CommsimError, Fault, ScenarioError
from commsim.files import data_root
from commsim.scenario.nccl_env import unknown_names
from commsim.scenario.schema import Scenario
from commsim.topology.presets import preset_names

LONGEST_NAME = 200
"""Characters of a scenario's name."""


def find_scenario(name: str, command: str = "run") -> Path:
    """The path of a scenario file; a shipped one may be named with or without its folder and suffix.

    ScenarioError where there is none, and for a collective or a model how the command asks it of a machine.
    """
    path = Path(name)
    try:
        if path.is_absolute() or (path.exists() and not path.is_dir()):
            return path
        folder = data_root() / "scenarios"
        relative = path.relative_to("scenarios") if path.parts[:1] == ("scenarios",) else path
        for candidate in (folder / relative, folder / f"{relative}.yaml"):
            if candidate.is_file():
                return candidate
        shipped = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.yaml"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"found {name[:80]!r}, expected the name of a scenario file ({error})") from None
    if path.is_dir() or (path.suffix in (".yaml", ".yml") and len(path.parts) > 1 and path.parts[0] != "scenarios"):
        return path  # the loader says that there is no such file
    if (data_root() / "topologies" / f"{name}.yaml").is_file():
        raise ScenarioError(
            f"found the preset {name!r}, expected a scenario, which names it as topology: {{preset: {name}}}"
        )
    if noun := _asked_of_a_machine(name):
        raise ScenarioError(
            f"found the {noun} {name!r}, expected a scenario, or a machine beside it, such as "
            f"{_example(name, noun, command)}"
        )
    wanted = relative.with_suffix("").as_posix()
    near = get_close_matches(wanted, shipped, n=3, cutoff=0.5)
    near = near or [one for one in shipped if len(wanted) > 2 and wanted.lower() in one][:3]
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; shipped scenarios are {_overview(shipped)}"
    raise ScenarioError(f"found no scenario file {name!r}{hint}")


def with_changes_named(document: Document, overrides: Sequence[str]) -> Document:
    """The document with the overrides in its name, which titles and folders take.

    The file's own words, such as "two nodes", are about what the file says. An override of the name is a name.
    """
    name = document.data.get("name") if isinstance(document.data, dict) else None
    changes = [text.strip() for text in overrides]
    if not isinstance(name, str) or not changes or any(text.startswith("name=") for text in changes):
        return document
    parts = [text.partition("=") for text in changes]
    short = [path.rpartition(".")[2] for path, _, _ in parts]
    words = [  # the last word of the path, where no other change has it too; of a file its name
        f"{last if short.count(last) == 1 else path}={Path(value).name if last in ('params', 'path') else value}"
        for last, (path, _, value) in zip(short, parts, strict=True)
    ]
    longer = f"{name}, with {', '.join(words)}"
    if len(longer) > LONGEST_NAME:
        longer = f"{longer[: LONGEST_NAME - 12]}... {hashlib.sha256(longer.encode()).hexdigest()[:8]}"
    return replace(document, data=document.data | {"name": longer if len(name) <= LONGEST_NAME else name})


def _asked_of_a_machine(name: str) -> str:
    """What a name is of that a machine is asked of: a collective or a model; empty where it is none."""
    from commsim.scenario.asked import collective_named

    return "collective" if collective_named(name) else "model" if is_model(name) else ""


def _example(name: str, noun: str, command: str) -> str:
    """A command, or the call of a Python function, that asks a collective or a model of a machine, and runs."""
    if command.startswith("cs."):
        how = ("'topology.nodes=4..16 x2', ", "") if command == "cs.sweep" else ("", ", nodes=4")
        return f"{command}({name!r}, {how[0]}on='hgx-h100-ndr400'{how[1]})"
    if command == "plan" and noun == "model":
        return f"commsim plan {name} --on hgx-h100-ndr400 -n 8"
    if command == "sweep":
        nodes = "1..8" if noun == "collective" else "4..16"
        return f"commsim sweep {name} --on hgx-h100-ndr400 'topology.nodes={nodes} x2'"
    if noun == "collective":
        return f"commsim run {name} --on hgx-h100-ndr400 -n 4"
    from commsim.scenario.asked_model import usual_tp

    return f"commsim run {name} --on hgx-h100-ndr400 --tp {usual_tp(name)}"


def is_model(name: str) -> bool:
    """Whether it is the name of a model."""
    from commsim.training.model import model

    try:
        return bool(model(name))
    except CommsimError:
        return False


def _overview(shipped: list[str]) -> str:
    """The names at the top, and how many each folder has."""
    top = [name for name in shipped if "/" not in name]
    folders = Counter(name.partition("/")[0] for name in shipped if "/" in name)
    return f"{', '.join(top)}, and those of {', '.join(f'{folder}/ ({n})' for folder, n in folders.items())}"


def load_scenarios(path: Path, overrides: Sequence[str] = ()) -> list[Scenario]:
    """The scenarios of a file in order, each with the ``key.path=value`` overrides applied.

    Raises ScenarioError with every fault: of the YAML, of the values, of files that ``compare`` names.
    """
    path = Path(path)
    documents, faults = compose_documents(read_text(path), str(path))
    unread = tuple(faults)
    scenarios: list[Scenario] = []
    names: dict[str, int] = {}
    for written in documents:
        if other := _other_kind(written):
            faults.append(other)
            continue
        try:
            document = with_changes_named(apply_overrides(with_machine(written), overrides), overrides)
        except ScenarioError as exc:
            faults += exc.faults
            continue
        scenario, its_faults = check_document(document, path.parent)
        faults += [f for f in its_faults if not any(_echoes(f, refused) for refused in unread)]
        if scenario is None:
            continue
        if overrides:
            from commsim.scenario.machine_in_name import with_machine_named

            title = with_machine_named(scenario.name, overrides, scenario.topology, path.parent, LONGEST_NAME)
            scenario = scenario.model_copy(update={"name": title})
        line = names.setdefault(scenario.slug, document.marks.get(("name",), (0, 0))[0])
        if scenarios and any(s.slug == scenario.slug for s in scenarios):
            message = f"found the name {scenario.name!r} again (first on line {line}), expected another"
            faults.append(document.fault(("name",), message))
        scenarios.append(scenario)
    if faults:
        raise_faults(faults)
    return scenarios


def _other_kind(document: Document) -> Fault | None:
    """The fault of a file that is evidently meant for another command."""
    plain = document.data if isinstance(document.data, dict) else {}
    for key, noun in (("plan", "plan"), ("sweep", "sweep"), ("serve", "plan")):
        if key in plain:
            message = f"found a {noun}, expected a scenario; commsim {noun} FILE takes it"
            return document.fault((key,), message, at_key=True)
    if "topology" not in plain and {"gpu", "node", "extends"} & set(plain) and "workload" not in plain:
        return document.fault((), "found a topology, expected a scenario, which names it as topology: {path: FILE}")
    return None


def check_document(document: Document, base_dir: Path) -> tuple[Scenario | None, list[Fault]]:
    """The scenario of a document whose file names are relative to ``base_dir``, and every fault found."""
    document = with_machine(document)
    scenario, faults = try_validate(Scenario, document)
    if scenario is not None:
        scenario._document, scenario._base_dir = document, base_dir
    faults += _named_faults(document, base_dir)
    return scenario, [fault for fault in faults if not _doubled(fault, faults)]


def with_machine(document: Document, at: KeyPath = ()) -> Document:
    """The document with what `library.measured` was measured on, where it does not say: what stands beside it.

    So what changes the machine or the library after that, an override or a point of a sweep, does not change what was
    measured. `at`: where topology and library are.
    """

    def library_of(block: Any) -> dict[str, Any]:
        library = block.get("library") if isinstance(block, dict) else None
        return library if isinstance(library, dict) else {}

    if not library_of(document.value(at)).get("measured"):
        return document
    document = replace(document, data=copy.deepcopy(document.data))
    block = document.value(at)
    library = library_of(block)
    setup = {key: value for key, value in library.items() if key not in ("measured", "measured_on")}
    beside = {"topology": block.get("topology"), "library": setup, "mode": block.get("mode", "back_to_back")}
    on = library.get("measured_on") or {}
    if isinstance(on, dict):
        library["measured_on"] = {k: copy.deepcopy(v) for k, v in beside.items() if v is not None} | on
    return document


def _doubled(fault: Fault, faults: Sequence[Fault]) -> bool:
    """Whether a fault only says of what numbers were measured on what another says of the scenario itself."""
    of_copy = "library.measured_on." in fault.path
    return of_copy and any(fault.message == other.message for other in faults if other.path != fault.path)


def _named_faults(document: Document, base_dir: Path) -> list[Fault]:
    """A fault for each file or preset named that is not there; from raw data, so it shows with all others."""

    def block(value: Any) -> dict[str, Any]:
        return value if isinstance(value, dict) else {}

    def absent(name: Any, folder: Path) -> bool:
        return isinstance(name, str) and not _exists(folder / name)

    scenario = block(document.data)
    topology, compare = block(scenario.get("topology")), scenario.get("compare")
    beside: list[tuple[KeyPath, Any, str]] = [
        (("compare", i), name, "a measured table or log")
        for i, name in enumerate(compare if isinstance(compare, list) else [])
    ]
    beside.append((("topology", "path"), topology.get("path"), "a topology file"))
    graph = block(scenario.get("library")).get("graph")
    anywhere: list[tuple[KeyPath, Any, str]] = [  # as an override from where the program runs
        (("params",), scenario.get("params"), "parameters that `commsim calibrate` wrote"),
        (("library", "graph"), graph, "one of NCCL_GRAPH_DUMP_FILE or a log of NCCL_DEBUG=INFO"),
        (("placement", "free"), block(scenario.get("placement")).get("free"), "one of free nodes, a node a line"),
    ]
    faults = [
        document.fault(path, f"found no file {show(name)}, expected {kind}")
        for path, name, kind in anywhere
        if absent(name, Path() if path in document.overrides else base_dir)
    ]
    faults += [
        document.fault(path, f"found no file {show(name)} beside the scenario, expected {kind}")
        for path, name, kind in beside
        if absent(name, base_dir)
    ]
    preset = topology.get("preset")
    if isinstance(preset, str) and preset not in preset_names():
        message = f"found the unknown preset {show(preset)}, {suggest(preset, preset_names())}"
        faults.append(document.fault(("topology", "preset"), message))
    return faults


def _echoes(fault: Fault, refused: Fault) -> bool:
    """Whether a fault only says again that a value below was refused by the YAML reader."""
    same_place = fault.line > 0 and (fault.line, fault.column) == (refused.line, refused.column)
    return same_place or (fault.path != "" and refused.path.startswith(f"{fault.path}."))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False


def scenario_warnings(scenario: Scenario) -> list[str]:
    """What looks wrong and is no error: variables that NCCL does not read, a launch mode that changes nothing."""
    library, document = scenario.library, scenario.document
    notes: KeyFaults = [(("library", "env", name), note) for name, note in unknown_names(library.env).items()]
    steps = [work.noun for work in scenario.workload if work.kind in ("trainings", "traces")]
    if steps and library.launch_mode != type(library).model_fields["launch_mode"].default:
        text = f"found {library.launch_mode}, which does not change {steps[0]}: there a process drives each GPU"
        notes.append((("library", "launch_mode"), text))
    return [str(document.fault(path, note, at_key=True)) for path, note in notes]


def resolved_yaml(scenario: Scenario, folder: Path | None = None) -> str:
    """The scenario with every default written out, in schema order; loading it gives an equal scenario.

    File names are relative to ``folder``, where the text is to be saved; by default as they were written.
    """
    if folder is None:
        return plain_yaml(scenario.model_dump(mode="json", exclude_none=True))
    return plain_yaml(_with_files(scenario, lambda path: _relative(path, folder)))


def said_by(scenario: Scenario, folder: Path = Path()) -> dict[str, Any]:
    """What a scenario says itself, as plain values, the files that it reads named from ``folder``."""
    plain = _with_files(scenario, lambda path: _relative(path, folder), unset=False)
    return plain if scenario.compare else {key: value for key, value in plain.items() if key != "compare"}


def _with_files(scenario: Scenario, name: Callable[[Path], str], *, unset: bool = True) -> dict[str, Any]:
    """The scenario's plain values, with defaults or without, the files that it reads named by ``name``."""
    plain = scenario.model_dump(mode="json", exclude_none=True, exclude_unset=not unset)
    plain["compare"] = [name(scenario.base_dir / file) for file in scenario.compare]
    if (params := scenario.params_path()) is not None:
        plain["params"] = name(params)
    if (graph := scenario.graph_path()) is not None:
        plain["library"]["graph"] = name(graph)
    if (free := scenario.free_path()) is not None:
        plain["placement"]["free"] = name(free)
    on = plain.get("library", {}).get("measured_on", {})
    for block, key in ((plain["topology"], "path"), (on.get("topology", {}), "path"), (on.get("library", {}), "graph")):
        if key in block:
            block[key] = name(scenario.base_dir / block[key])
    for work, item in zip(scenario.workload, plain["workload"], strict=True):
        work.name_files(item, lambda file: name(scenario.base_dir / file))
    return plain


def plain_yaml(plain: Any) -> str:
    """Plain values as YAML text that our reader takes."""
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes only what our reader takes: no anchors, and quotes around text that could be something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    from commsim.document.scalars import SurprisingScalarError, plain_value

    try:
        style = None if plain_value(text) == text else "'"
    except SurprisingScalarError:
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def scenario_hash(scenario: Scenario) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the resolved scenario, with what its files hold for their names.

    So a scenario saved beside its result has the hash of the one it came from, and a changed file another one.
    """
    return hashlib.sha256(plain_yaml(_with_files(scenario, _content)).encode()).hexdigest()[:12]


def _content(path: Path) -> str:
    """The digest of a file, of a prefix or folder of traces that of all; of what is no readable file (a folder of an
    earlier run) only the name."""
    if not path.is_file():  # a device may have no end
        traces = [*path.parent.glob(f"{glob.escape(path.name)}.*.et"), *path.glob("*.et")]
        contents = "".join(_content(file) for file in sorted(traces) if file.is_file())
        return hashlib.sha256(contents.encode()).hexdigest() if contents else path.name
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return path.name
