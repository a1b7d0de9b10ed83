"""A sweep: one scenario, and the values that some of its paths take; every combination is a point.

The file is a scenario (or names one by ``scenario:``) with the further keys ``sweep`` (a list of values, or a range
such as ``1..64 x2``, for each path; their product is the grid), ``include`` (points beside the grid), ``exclude``
(combinations to leave out) and ``replicates`` (how often each point is repeated, with seeds 0, 1, ...). ``include`` and
``exclude`` mean what they mean in the job matrices of GitHub Actions. Ranges and lists in overrides are paths of the
grid, too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import commsim
from commsim.document import (
    Document,
    KeyPath,
    apply_overrides,
    compose_documents,
    raise_faults,
    read_documents,
    with_values,
)
from commsim.document.labels import short_label
from commsim.document.types import shorten, show, suggest
from commsim.errors import CommsimError, Fault, ScenarioError, UnitError
from commsim.planner.ranges import is_range, values_of
from commsim.scenario.asked import SIZES, OneLine
from commsim.scenario.load import check_document, plain_yaml, with_changes_named, with_machine

MOST_POINTS = 1_000_000
"""More points than this are refused: each is at least a millisecond and a line of the journal."""

SEED_PATH = "variation.seed"
"""The path that ``replicates`` sets."""

_KEYS = ("sweep", "include", "exclude", "replicates", "scenario")
_IN_NAME = ("nodes", "tp", "pp", "cp", "ep")
"""What the name of a question in one line holds already."""
_CHECKED_POINTS = 64
"""So many points that hold a value are tried before the value itself is called wrong."""


@dataclass(frozen=True)
class Point:
    """One scenario of a sweep: its number, from 0 in the order of the file, and the values its paths take."""

    number: int
    values: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep file says. `base` is the scenario as a document; `axes` the grid, the last path fastest."""

    name: str
    base: Document
    base_dir: Path
    axes: dict[str, list[Any]]
    include: list[dict[str, Any]]
    exclude: list[dict[str, Any]]
    replicates: int
    assumed: str = ""  # of a question in one line, what nobody said

    @property
    def paths(self) -> list[str]:
        """The paths that vary, in the order of the file."""
        names = [*self.axes, *(name for point in self.include for name in point)]
        return list(dict.fromkeys([*names, SEED_PATH] if self.replicates > 1 else names))

    def points(self) -> Iterator[Point]:
        """Every point in order. Numbers do not depend on what is excluded after them."""
        seeds: list[dict[str, Any]] = [{SEED_PATH: s} for s in range(self.replicates)] if self.replicates > 1 else [{}]
        grid = (dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values()))
        kept = (point for point in grid if not any(_matches(point, rule) for rule in self.exclude))
        number = itertools.count()
        for values in itertools.chain(kept if self.axes else (), self.include):
            for seed in seeds:
                yield Point(next(number), values | seed)

    @property
    def text(self) -> str:
        """As a sweep file: the scenario and its paths."""
        return plain_yaml(self.base.data | {"sweep": self.axes})

    @property
    def identity(self) -> str:
        """Sixteen hexadecimal digits that change with anything that could change a row."""
        content = [commsim.__version__, self.base.data, self.axes, self.include, self.exclude, self.replicates]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _matches(point: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    return all(
        point.get(name) in wanted if isinstance(wanted, list) else point.get(name) == wanted
        for name, wanted in rule.items()
    )


def read_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep of a file, overrides applied to its scenario; raises ScenarioError with every fault.

    A value is at fault here if no point with it can be a scenario; a combination that cannot be is a row with its
    error, later.
    """
    documents = read_documents(path)
    if len(documents) != 1:
        raise ScenarioError(f"{path}: found {len(documents)} documents, expected one sweep")
    return _read(documents[0], overrides, path)


def asked_sweep(question: OneLine) -> Sweep:
    """The sweep of a question in one line, of whose overrides ranges and lists are paths; ScenarioError."""
    from commsim.scenario.question import assumed, document_of

    plain = replace(question, overrides=())
    most = max((nodes for text in question.overrides for nodes in _nodes_of(text)), default=question.nodes)
    written = document_of(replace(plain, nodes=most))  # of a step the batch is filled in for the most nodes
    written = replace(written, data={**written.data, "name": document_of(plain).data["name"]})
    sweep = _read(written, question.overrides, Path(written.file))
    name = _asked_name(sweep, question)
    stated = sweep.base.overrides | {tuple(_keys(path)): path for path in sweep.paths}
    filled = assumed(replace(sweep.base, overrides=stated))
    nodes = f" of {most} node{'s' if most != 1 else ''}" if most else ""
    return replace(sweep, name=name, assumed=f"what a step{nodes} has, at every point: {filled}" if filled else "")


def _asked_name(sweep: Sweep, question: OneLine) -> str:
    """What was asked, so that two sweeps have two folders: the paths with their values, the options, the changes."""
    parts = [(text, *(part.strip() for part in text.partition("=")[::2])) for text in question.overrides]
    if any(path == "name" for _, path, _ in parts):
        return str(sweep.base.data["name"])
    over = [f"{short_label(path, sweep.axes)} {value}" for _, path, value in parts if path in sweep.axes]
    name = f"{sweep.name}, over {', '.join(over)}"
    items = sweep.base.data.get("workload")
    if set(question.given) & set(SIZES) and items:
        name += f", {items[0]['sizes']}"
    said = [f"{one} {getattr(question, one)}" for one in question.given if one not in (*SIZES, *_IN_NAME)]
    named = replace(sweep.base, data={"name": ", ".join([name, *said])})
    changed = with_changes_named(named, [text for text, path, _ in parts if path not in sweep.axes])
    return str(changed.data["name"])


def _keys(path: str) -> list[str | int]:
    return [int(key) if key.isdecimal() else key for key in path.split(".")]


def _nodes_of(text: str) -> list[int]:
    """The numbers of nodes that an override varies."""
    name, _, value = (part.strip() for part in text.partition("="))
    values = (values_of(value) if is_range(value) else _list_of(value)) if name == "topology.nodes" else None
    return [one for one in values or () if isinstance(one, int) and 0 < one <= 65536]


def _read(document: Document, overrides: Sequence[str], path: Path) -> Sweep:
    """The sweep of a document, whose files are named from where `path` lies."""
    written, overrides = _varied(document, overrides, path)
    if not isinstance(written.data, dict) or not {"sweep", "include"} & set(written.data):
        message = "found no key 'sweep', expected it, such as sweep: {topology.nodes: [1, 2, 4]}, or a change such as "
        raise_faults([written.fault((), f"{message}topology.nodes='1..64 x2'")])
    written, faults = _opened(written)
    faults = faults or _shape_faults(written)
    if faults:
        raise_faults(faults)
    base, base_dir = _base(written, path)
    sweep = Sweep(
        name=str(base.data.get("name", path.stem)) if isinstance(base.data, dict) else path.stem,
        base=with_machine(apply_overrides(with_machine(base), overrides)),
        base_dir=base_dir,
        axes=dict(written.data.get("sweep") or {}),
        include=list(written.data.get("include") or []),
        exclude=list(written.data.get("exclude") or []),
        replicates=written.data.get("replicates", 1),
    )
    faults = _size_faults(sweep, written) or _value_faults(sweep, written)
    if faults:
        raise_faults(faults)
    return sweep


def _varied(written: Document, overrides: Sequence[str], path: Path) -> tuple[Document, list[str]]:
    """The document in which overrides that are ranges or lists are paths of the sweep, and the other overrides.

    What the scenario itself takes, such as a range of sizes, stays its value, unless the file varies that path.
    """
    axes, rest = {}, []
    keys = written.data if isinstance(written.data, dict) else {}
    own: dict[str, Any] = keys["sweep"] if isinstance(keys.get("sweep"), dict) else {}
    for text in overrides:
        name, _, value_text = (part.strip() for part in text.partition("="))
        value = value_text if is_range(value_text) else _list_of(value_text)
        if value is None or not (name in own or _refused(written, name, value_text, path)):
            rest.append(text)
        else:
            axes[name] = (value, text)
    if not axes:
        return written, rest
    values = {name: value for name, (value, _) in axes.items()}
    places: dict[KeyPath, str] = {("sweep", name): text for name, (_, text) in axes.items()}
    sweep = {**own, **values}
    return replace(written, data={**keys, "sweep": sweep}, overrides={**written.overrides, **places}), rest


def _list_of(text: str) -> list[Any] | None:
    """The list that an override says, None where it says something else."""
    documents, faults = compose_documents(text, "") if text.startswith("[") else ([], [])
    data = documents[0].data if len(documents) == 1 and not faults else None
    return data if isinstance(data, list) else None


def _refused(written: Document, name: str, value: str, path: Path) -> bool:
    """Whether the scenario refuses a value at a path, so that it can only be several."""
    try:
        base, base_dir = _base(written, path)
        faults = check_document(apply_overrides(base, [f"{name}={value}"]), base_dir)[1]
    except ScenarioError as error:
        faults = list(error.faults)
    mine = [fault for fault in faults if fault.path == name or fault.path.startswith(f"{name}.")]
    if unknown := [fault for fault in mine if fault.message.startswith("found the unknown key")]:
        raise_faults(unknown)
    return bool(mine)


def _opened(written: Document) -> tuple[Document, list[Fault]]:
    """The document with the values of each range of `sweep` in its place, and the faults of ranges."""
    axes = written.data.get("sweep")
    if not isinstance(axes, dict):
        return written, []
    opened, faults = {}, []
    for name, values in axes.items():
        try:
            opened[name] = values_of(values) if is_range(values) else values
        except UnitError as error:
            faults.append(written.fault(("sweep", name), str(error)))
    return replace(written, data={**written.data, "sweep": opened}), faults


def _base(written: Document, path: Path) -> tuple[Document, Path]:
    """The scenario under the sweep, and the folder that its file names are relative to."""
    named = written.data.get("scenario")
    rest = {key: value for key, value in written.data.items() if key not in _KEYS}
    if named is None:
        return Document(written.file, rest, written.marks, written.key_marks, written.overrides), path.parent
    if rest:
        at: KeyPath = (next(iter(rest)),)
        message = f"found the key {at[0]!r} beside 'scenario', expected it in the scenario's own file"
        raise_faults([written.fault(at, message, at_key=True)])
    other = path.parent / named
    if not other.is_file():
        raise_faults([written.fault(("scenario",), f"found no file {show(named)}, expected a scenario file")])
    documents = read_documents(other)
    if len(documents) != 1:
        message = f"found {len(documents)} scenarios in {named}, expected one"
        raise_faults([written.fault(("scenario",), message)])
    return documents[0], other.parent


def _shape_faults(written: Document) -> list[Fault]:
    """What is wrong with the keys of a sweep themselves."""
    keys, faults = written.data, []

    def fault(path: KeyPath, value: Any, expected: str) -> None:
        faults.append(written.fault(path, f"found {show(value)}, expected {expected}"))

    axes = keys.get("sweep", {})
    if not isinstance(axes, dict):
        fault(("sweep",), axes, "paths with lists of values, such as {topology.nodes: [1, 2, 4]}")
    else:
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                fault(("sweep", name), values, "a list of at least one value, or a range such as 1..64 x2")
            elif len({json.dumps(v) for v in values}) < len(values):
                fault(("sweep", name), values, "each value once")
    for key, words in (("include", "points"), ("exclude", "combinations")):
        rules = keys.get(key, [])
        if not isinstance(rules, list):
            fault((key,), rules, f"a list of {words}, such as [{{topology.nodes: 16}}]")
            continue
        for i, rule in enumerate(rules):
            if not isinstance(rule, dict) or not rule:
                fault((key, i), rule, "paths with their values, such as {topology.nodes: 16}")
            elif key == "exclude" and isinstance(axes, dict):
                for name in (n for n in rule if n not in axes):
                    message = f"found the path {show(name)} that does not vary, {suggest(name, list(axes))}"
                    faults.append(written.fault((key, i, name), message, at_key=True))
    replicates = keys.get("replicates", 1)
    if not isinstance(replicates, int) or isinstance(replicates, bool) or not 1 <= replicates <= MOST_POINTS:
        fault(("replicates",), replicates, f"a whole number from 1 to {MOST_POINTS}")
    elif replicates > 1 and isinstance(axes, dict) and SEED_PATH in axes:
        fault(("replicates",), replicates, f"it only where {SEED_PATH} does not vary already")
    if not isinstance(keys.get("scenario", ""), str):
        fault(("scenario",), keys["scenario"], "the name of a scenario file")
    return faults


def _size_faults(sweep: Sweep, written: Document) -> list[Fault]:
    many = (math.prod(len(v) for v in sweep.axes.values()) + len(sweep.include)) * sweep.replicates
    if many > MOST_POINTS:
        message = f"found {many:,} points, expected at most {MOST_POINTS:,}; fewer values, or several sweeps"
        return [written.fault(("sweep",), message)]
    return []


def _value_faults(sweep: Sweep, written: Document) -> list[Fault]:
    """The values with which no point, of the first ones that hold them, can be a scenario."""
    open_values = {(name, i): 0 for name, values in sweep.axes.items() for i in range(len(values))}
    wrong: dict[tuple[str, int], Fault] = {}
    index = {name: {json.dumps(v): i for i, v in enumerate(values)} for name, values in sweep.axes.items()}
    for point in sweep.points():
        if not open_values:
            break
        here = [(n, index[n].get(json.dumps(v), -1)) for n, v in point.values.items() if n in index]
        if not any(key in open_values for key in here):
            continue
        faults = point_faults(sweep, point.values)
        for key in here:
            if key not in open_values:
                continue
            mine = [f for f in faults if f.path == key[0] or f.path.startswith(f"{key[0]}.")]
            if mine:
                wrong[key] = mine[0]
                open_values[key] += 1
            if not mine or open_values[key] >= _CHECKED_POINTS:
                del open_values[key]
                if not mine:
                    wrong.pop(key, None)
    refused = [written.fault(("sweep", name, i), fault.message) for (name, i), fault in wrong.items()]
    return refused or _common_faults(sweep)


def _common_faults(sweep: Sweep) -> list[Fault]:
    """The faults of the scenario itself: those of the first point that no path of the sweep could mend."""
    first = next(sweep.points(), None)
    if first is None:
        return [Fault(sweep.base.file, 1, 1, "sweep", "found no point left, expected at least one")]
    asked = {f"override {shorten(text, 80)!r}" for text in sweep.base.overrides.values()}
    return [f for f in point_faults(sweep, first.values) if f.line or f.file in asked]


def point_faults(sweep: Sweep, values: Mapping[str, Any]) -> list[Fault]:
    """Why the point's values make no scenario; empty if they do."""
    try:
        document = with_values(sweep.base, values)
    except ScenarioError as error:
        return list(error.faults)
    return check_document(document, sweep.base_dir)[1]


def idle_reasons(sweep: Sweep, paths: Sequence[str]) -> dict[str, str]:
    """Why paths of the topology have no effect, by path: that of the first point whose machine does not feel its value.

    For paths that changed no answer; one whose values are felt without changing any has no reason here.
    """
    from commsim.scenario.setting import build_topology
    from commsim.topology.idle import idle_knobs

    reasons: dict[str, str] = {}
    for point in itertools.islice(sweep.points(), _CHECKED_POINTS):
        if all(path in reasons or not path.startswith("topology.") for path in paths):
            break
        try:
            scenario, faults = check_document(with_values(sweep.base, point.values), sweep.base_dir)
            if scenario is None or faults:
                continue
            idle = idle_knobs(scenario.topology, build_topology(scenario), scenario.base_dir)
        except CommsimError:  # the point's row says it
            continue
        for knob, text in idle.items():
            if (path := ".".join(("topology", *knob))) in paths:
                reasons.setdefault(path, text.removeprefix("has no effect: "))
    return reasons
