"""The way back: the question in one line that asks what a scenario asks, and the command that puts it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from commsim.document import Document
from commsim.errors import CommsimError
from commsim.scenario.asked import Kind, OneLine, option
from commsim.scenario.collective import parse_size_list
from commsim.scenario.load import check_document
from commsim.scenario.question import mapping_of

_BATCH = {"global_batch_size": "batch", "micro_batch_size": "micro_batch"}
_FIELDS: dict[Kind, dict[str, str]] = {
    "collective": {},
    "training": _BATCH
    | {key: key for key in ("seq_len", "recompute", "framework", "precision")}
    | {"zero_stage": "zero"},
    "generation": {key: key for key in ("batch", "rate", "requests", "framework", "precision")},
}
"""Keys of an item, and the fields of a `OneLine` that say them."""

KINDS: tuple[Kind, ...] = ("collective", "training", "generation")

_AXES = {"training": ("tp", "pp", "cp", "dp", "ep"), "generation": ("tp", "pp", "ep", "attention_dp")}

_UNSAID = {"micro_batch_size": 1, "zero_stage": 0, "sequence_parallel": False, "precision": "bf16"}
"""What a training step is where its scenario says nothing, and a question would fill in something else."""

_BESIDE = ("name", "topology", "workload", "report")
"""Keys of a scenario that are no override: what is asked, and what is not about the answer."""


def question_of(scenario: Mapping[str, Any]) -> OneLine | None:
    """The question that asks what a scenario asks, the rest as overrides; None where one line cannot.

    It has one item, of a collective, a training step or generation, and a machine by preset or file.
    """
    topology, workload = scenario.get("topology"), scenario.get("workload")
    one = workload[0] if isinstance(workload, (list, tuple)) and len(workload) == 1 else None
    if not isinstance(topology, Mapping) or not isinstance(one, Mapping) or scenario.get("compare"):
        return None  # files to compare with are named relative to the scenario's
    on = topology.get("preset", topology.get("path"))
    kind = next((k for k in KINDS if k in one), None)
    if not isinstance(on, str) or kind is None:
        return None
    said: dict[str, Any] = {"nodes": topology.get("nodes", None if "groups" in topology else 1)}
    changes = {f"topology.{key}": topology[key] for key in topology if key not in ("preset", "path", "nodes")}
    item = one if kind == "collective" else one[kind]
    if not isinstance(item, Mapping):
        return None
    (_say_sizes if kind == "collective" else _say_model)(kind, item, said, changes)
    library = scenario.get("library", {})
    changes |= {f"library.{k}": v for k, v in library.items()} if isinstance(library, Mapping) else {"library": library}
    changes |= {key: scenario[key] for key in scenario if key not in (*_BESIDE, "library")}
    subject = item.get("collective" if kind == "collective" else "model")
    question = OneLine(str(subject), on, **said, overrides=tuple(f"{k}={_text(v)}" for k, v in changes.items()))
    return question if _asks(question, scenario) else None


def command_of(question: OneLine, command: str = "run") -> str:
    """The command line that puts a question."""
    question = replace(question, as_keywords=False)
    words = ["commsim", command, question.subject, "--on", question.on]
    for name in question.given:
        words += option(question, name).split(" ", 1)
    return shlex.join([*words, *question.overrides])


def _say_sizes(kind: Kind, item: Mapping[str, Any], said: dict[str, Any], changes: dict[str, Any]) -> None:
    """The sizes as `-b -e -f -i` where they are a range, and what else the item has as overrides."""
    del kind
    changes |= {f"workload.0.{key}": item[key] for key in item if key not in ("collective", "sizes")}
    try:
        sizes = parse_size_list(item.get("sizes"))
    except CommsimError:
        return
    factor = sizes[1] // sizes[0] if len(sizes) > 1 and sizes[0] else 0
    step = sizes[1] - sizes[0] if len(sizes) > 1 else 0
    pairs = list(pairwise(sizes))
    if factor > 1 and all(b == a * factor for a, b in pairs):
        said |= {"minbytes": sizes[0], "maxbytes": sizes[-1], "stepfactor": factor}
    elif all(b - a == step for a, b in pairs):
        said |= {"minbytes": sizes[0], "maxbytes": sizes[-1]} | ({"stepbytes": step} if step else {})
    else:
        changes["workload.0.sizes"] = item["sizes"]


def _say_model(kind: Kind, item: Mapping[str, Any], said: dict[str, Any], changes: dict[str, Any]) -> None:
    """Of a training step or of generation."""
    mesh = item.get("mesh") or {}
    said |= {axis: mesh[axis] for axis in _AXES[kind] if axis in mesh}
    changes |= {f"workload.0.{kind}.mesh.{key}": mesh[key] for key in mesh if key not in _AXES[kind]}
    item = (_UNSAID if kind == "training" else {}) | dict(item)
    prompt, answer = item.get("prompt"), item.get("answer")
    if kind == "generation" and isinstance(prompt, int) and isinstance(answer, int):
        said["generate"] = f"{prompt}:{answer}"
        item = {key: item[key] for key in item if key not in ("prompt", "answer")}
    for key, value in item.items():
        if key in _FIELDS[kind]:
            said[_FIELDS[kind][key]] = value
        elif key not in ("model", "mesh"):
            changes[f"workload.0.{kind}.{key}"] = value


def _text(value: Any) -> str:
    """A value as an override says it."""
    return value if isinstance(value, str) and value and value.isprintable() else json.dumps(value)


def _asks(question: OneLine, scenario: Mapping[str, Any]) -> bool:
    """Whether a question asks just what a scenario does, whatever it is called."""
    try:
        again = mapping_of(question)
    except CommsimError:
        return False
    plain = {key: value for key, value in scenario.items() if key != "report"}
    one, other = (check_document(Document("", {**data, "name": "x"}), Path())[0] for data in (plain, again))
    return one is not None and one == other
