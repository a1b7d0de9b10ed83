"""The scenario that a question in one line means.

What a question leaves open is filled in after its overrides, so that they count; `assumed` says what that was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from commsim.collectives.semantics import NCCL_TESTS
from commsim.document import Document, apply_overrides, raise_faults
from commsim.document.types import KEYWORD, KeyPath, show, suggest
from commsim.errors import CommsimError, ScenarioError
from commsim.scenario.asked import SIZES, Kind, OneLine, collective_named, kind_of, option
from commsim.scenario.load import check_document, find_scenario, with_changes_named
from commsim.scenario.schema import Scenario
from commsim.topology.presets import preset_names
from commsim.units import format_size, parse_bytes

__all__ = ["OneLine", "assumed", "checked", "document_of", "mapping_of", "scenario_of"]


def place_of(question: OneLine) -> str:
    """What stands in messages in the place of a file's name."""
    return "the call" if question.as_keywords else "the command line"


FIRST_BYTES, LAST_BYTES, FACTOR = 8, parse_bytes("8 GiB"), 2
"""Sizes of a collective where none are given: `-b 8 -e 8G -f 2`, as the README of nccl-tests runs it."""


def scenario_of(question: OneLine) -> Scenario:
    """The scenario; ScenarioError with all that is wrong, each at the option that says it."""
    return checked(document_of(question))


def checked(document: Document) -> Scenario:
    """The scenario of a question's document; ScenarioError with every fault."""
    scenario, faults = check_document(document, Path())
    if scenario is None or faults:
        raise_faults(faults)
    return scenario


def mapping_of(question: OneLine) -> dict[str, Any]:
    """What stands in the scenario's file, plain values in the order of a file. Raises ScenarioError."""
    data: dict[str, Any] = document_of(question).data
    return data


def document_of(question: OneLine) -> Document:
    """The scenario's document, in which the place of each value is the option that gave it.

    Raises ScenarioError for an unknown subject or machine; values are judged where the document is checked.
    """
    kind = kind_of(question)
    subject = subject_of(question.subject, _on(question))
    machine, options = _machine(question)
    if kind == "collective":
        item, places = _collective(question, subject)
        data: dict[str, Any] = {"topology": machine, "library": {"name": "nccl"}, "workload": [item]}
    else:
        from commsim.scenario import asked_model as of_model

        item, places = of_model.training(question) if kind == "training" else of_model.generation(question)
        library = {"name": "nccl"} | ({"version": of_model.served_by()} if kind == "generation" else {})
        data = {"topology": machine, "library": library, "workload": [item]}
    options |= {("workload", 0, *path): text for path, text in places.items()}
    if question.as_keywords:
        options = {path: f"{KEYWORD}{text}" for path, text in options.items()}
    written = Document(place_of(question), {"name": _name(question, subject, kind), **data}, {(): (0, 0)}, {}, options)
    document = apply_overrides(written, question.overrides)
    return with_changes_named(_filled(document, question, kind), question.overrides)


def assumed(document: Document) -> str:
    """What the question of a `document_of` leaves open and was filled in, as half a sentence; empty where nothing."""
    workload = document.data.get("workload") or [{}]
    if not isinstance(workload[0], Mapping) or "training" not in workload[0]:
        return ""
    from commsim.scenario.asked_model import said

    return said(document)


def _filled(document: Document, question: OneLine, kind: Kind) -> Document:
    """The document with what the question leaves open and the machine decides."""
    data = document.data
    if not isinstance(data.get("topology"), dict):
        return document
    if kind == "collective":
        return _with_library(document)
    from commsim.scenario import asked_model as of_model

    filled = of_model.filled_training(data, question) if kind == "training" else of_model.filled_generation(data)
    return replace(document, data=filled)


def _with_library(document: Document) -> Document:
    """Of ranks that are processes without a GPU gloo is asked, if nothing else is said."""
    from commsim.scenario.asked_machine import built

    topology = built(document.data["topology"])
    own = any(path[:1] == ("library",) for path in document.overrides)
    if topology is None or topology.gpu.generation != "cpu" or own:
        return document
    return replace(document, data={**document.data, "library": {"name": "gloo"}})


def _collective(question: OneLine, collective: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """The item, and the options of its sizes."""
    first = FIRST_BYTES if question.minbytes is None else question.minbytes
    last = max(LAST_BYTES, first) if question.maxbytes is None else question.maxbytes
    if question.stepbytes is not None and question.stepfactor is not None:
        raise ScenarioError(
            f"found {option(question, 'stepfactor')} beside {option(question, 'stepbytes')}, expected one of them"
        )
    if question.stepbytes is not None:
        step = f"+{format_size(question.stepbytes)}"
    else:
        step = f"x{FACTOR if question.stepfactor is None else question.stepfactor}"
    sizes = format_size(first) if first == last else f"{format_size(first)} .. {format_size(last)} {step}"
    given = " ".join(option(question, name) for name in SIZES if name in question.given)
    return {"collective": collective, "sizes": sizes}, ({("sizes",): given} if given else {})


def subject_of(name: str, beside: str = "--on") -> str:
    """The collective or model of a name; ScenarioError with what is near of both."""
    return collective_named(name) or _model(name, beside)


def _model(name: str, beside: str) -> str:
    """The name of a model or its file; ScenarioError with what is near of models and collectives."""
    if name.endswith((".yaml", ".yml")):
        raise ScenarioError(
            f"found the file {show(name)} beside {beside}, expected a collective or a model, such as all_reduce or "
            "llama-3-70b: a scenario names its machine itself"
        )
    if name.endswith(".json"):
        return Path(name).parent.name or Path(name).stem
    from commsim.training.model import model, model_names

    try:
        model(name)
    except CommsimError:
        if _is_shipped(name):
            raise ScenarioError(
                f"found the scenario {show(name)} beside {beside}, expected a collective or a model, such as "
                f"all_reduce or llama-3-70b: a scenario names its machine itself, and commsim run {name} runs it"
            ) from None
        near = suggest(name, [*NCCL_TESTS, *model_names()])
        if near.startswith("expected"):
            near = f"expected a collective ({', '.join(NCCL_TESTS)}), a model such as llama-3-70b, or its config.json"
        raise ScenarioError(f"found {show(name)}, which is no collective and no model; {near}") from None
    return name


def _is_shipped(name: str) -> bool:
    try:
        return find_scenario(name).is_file()
    except (ScenarioError, OSError):
        return False


def _on(question: OneLine) -> str:
    """How the machine is said."""
    return "on" if question.as_keywords else "--on"


def _machine(question: OneLine) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """The topology's block, and the options that say it."""
    kind = "preset" if question.on in preset_names() else "path"
    machine: dict[str, Any] = {kind: question.on if kind == "preset" else str(machine_file(question.on, _on(question)))}
    options: dict[KeyPath, str] = {("topology", kind): option(question, "on")}
    if question.nodes is not None:
        machine["nodes"] = question.nodes
        options["topology", "nodes"] = option(question, "nodes")
    return machine, options


def machine_file(name: str, said: str = "--on") -> Path:
    """The file of a topology; a ScenarioError where there is none."""
    try:
        if Path(name).is_file():
            return Path(name)
    except (ValueError, OSError):  # a NUL, or a name too long
        pass
    raise ScenarioError(f"{said}: found {show(name)}, which is no file; of presets, {suggest(name, preset_names())}")


def _name(question: OneLine, subject: str, kind: Kind) -> str:
    """Of the scenario: what is asked of what, so that two questions have two folders."""
    nodes = "" if question.nodes is None else f"{question.nodes} x "
    cut = [f"{axis} {value}" for axis in ("tp", "pp", "cp", "ep") if (value := getattr(question, axis)) is not None]
    what = f"{subject} answers" if kind == "generation" else subject
    parts = [f"{what} on {nodes}{Path(question.on).stem}", *(cut if kind != "collective" else [])]
    return ", ".join(parts)[:200]
