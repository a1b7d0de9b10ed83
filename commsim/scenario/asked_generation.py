"""Which scenario a question for generation is: a model's name, a machine, and a few numbers, as on a command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commsim.document import Document, apply_overrides, raise_faults
from commsim.document.types import KeyPath, show, suggest
from commsim.errors import CommsimError, ScenarioError
from commsim.generation.collectives import NCCL_VERSION
from commsim.nccl.version import format_version
from commsim.scenario.load import check_document
from commsim.scenario.schema import Scenario
from commsim.topology.presets import load_topology, preset_names
from commsim.topology.spec import TopologySpec
from commsim.training.model import model, model_names

_FILE = "the command line"
_ITEM: KeyPath = ("workload", 0, "generation")


@dataclass(frozen=True)
class AskedGeneration:
    """A model on a machine; what is None is as a scenario has it where it says nothing.

    ``on``: a preset, or a file of a topology. ``lengths``: ``IN:OUT``, tokens of prompts and answers.
    """

    model: str
    on: str
    lengths: str
    range_ratio: float | None = None
    nodes: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    attention_dp: int | None = None
    batch: int | None = None
    rate: float | None = None
    requests: int | None = None
    framework: str | None = None
    precision: str | None = None
    overrides: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return (self.tp or 1) * (self.pp or 1) * (self.attention_dp or 1)


def scenario_of(asked: AskedGeneration) -> Scenario:
    """The scenario; ScenarioError with all that is wrong, each at the option that says it."""
    document = _document(asked)
    scenario, faults = check_document(document, Path())
    if scenario is None or faults:
        raise_faults(faults)
    return scenario


def _document(asked: AskedGeneration) -> Document:
    if asked.model.endswith((".yaml", ".yml")):
        raise ScenarioError(f"found the file {show(asked.model)} beside --on, expected a model, such as llama-3-70b")
    if not asked.model.endswith(".json"):
        _known(asked.model)
    mesh: dict[str, Any] = {}
    item: dict[str, Any] = {"model": asked.model, "mesh": mesh}
    item |= dict(zip(("prompt", "answer"), _lengths(asked.lengths), strict=True))
    options: dict[KeyPath, str] = {(*_ITEM, "model"): asked.model}
    options |= {(*_ITEM, name): f"--generate {asked.lengths}" for name in ("prompt", "answer")}
    if asked.range_ratio is not None:
        for name in ("prompt", "answer"):
            item[name] = {"tokens": item[name], "range_ratio": asked.range_ratio}
            options[*_ITEM, name, "range_ratio"] = f"--range-ratio {asked.range_ratio:g}"
    for name in ("tp", "pp", "ep", "attention_dp"):
        if (value := getattr(asked, name)) is not None:
            mesh[name] = value
            options[*_ITEM, "mesh", name] = f"--{name.replace('_', '-')} {value}"
    batch = asked.batch if asked.batch is not None or asked.rate is not None else 1
    for name, value in (("batch", batch), *((n, getattr(asked, n)) for n in ("rate", "requests"))):
        if value is not None:
            item[name] = value
            options[*_ITEM, name] = f"--{name} {value}"
    for name in ("framework", "precision"):
        if (value := getattr(asked, name)) is not None:
            item[name] = value
            options[*_ITEM, name] = f"--{name} {value}"
    kind = "preset" if asked.on in preset_names() else "path"
    machine: dict[str, Any] = {kind: asked.on if kind == "preset" else str(_file(asked.on))}
    options["topology", kind] = f"--on {asked.on}"
    if (nodes := asked.nodes or _nodes(machine, asked)) is not None:
        machine["nodes"] = nodes
        options["topology", "nodes"] = f"--nodes {nodes}"
    name = f"{Path(asked.model).stem if asked.model.endswith('.json') else asked.model} on {Path(asked.on).stem}"
    library = {"name": "nccl", "version": format_version(NCCL_VERSION)}  # as the frameworks have it
    data = {"name": name, "topology": machine, "library": library, "workload": [{"generation": item}]}
    return apply_overrides(Document(_FILE, data, overrides=options), asked.overrides)


def _known(name: str) -> None:
    try:
        model(name)
    except CommsimError:
        near = suggest(name, list(model_names()))
        also = ", or a Hugging Face config.json" if near.startswith("expected") else ""
        raise ScenarioError(f"found the model {show(name)}, {near}{also}") from None


def _lengths(text: str) -> tuple[int, int]:
    prompt, colon, answer = text.partition(":")
    if not colon or not (prompt.isascii() and prompt.isdecimal() and answer.isascii() and answer.isdecimal()):
        raise ScenarioError(f"--generate: found {show(text)}, expected tokens in and out, such as 1024:1024")
    return int(prompt[:18]), int(answer[:18])


def _file(name: str) -> Path:
    """The file of a topology; a ScenarioError where there is none."""
    try:
        if Path(name).is_file():
            return Path(name)
    except (ValueError, OSError):
        pass
    raise ScenarioError(f"--on: found {show(name)}, which is no file; of presets, {suggest(name, preset_names())}")


def _nodes(machine: dict[str, Any], asked: AskedGeneration) -> int | None:
    """As many as one replica needs; None where the machine says itself how many it has, or has room on one."""
    one = load_topology(TopologySpec.model_validate(machine), Path(), joined=False)
    return -(-asked.gpus // one.world_size) if one.nodes == 1 and asked.gpus > one.world_size else None
