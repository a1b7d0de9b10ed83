"""The workload items of a question about a model: a training step, or requests that it answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from commsim.document import Document
from commsim.document.types import KeyPath, show
from commsim.errors import CommsimError, ScenarioError
from commsim.scenario.asked import OneLine, option
from commsim.scenario.asked_machine import built, nodes_for
from commsim.topology.graph import Topology

LENGTHS = "1024:1024"
"""Tokens in and out of a request where none are given, as of vLLM's serving benchmark."""

PER_STAGE = 4
"""Micro-batches of each replica per pipeline stage: from there the bubble is small (GPipe, arXiv:1811.06965, 2.3)."""

ZERO = {"megatron": 1, "deepspeed": 1, "nanotron": 1, "fsdp2": 3, "ddp": 0}
"""By framework, what of ZeRO its recipes train with where there are several replicas."""

SEQUENCE_PARALLEL = ("megatron", "nanotron")
"""Frameworks whose recipes cut norms and residuals over tp."""

_KEYS = {"batch": "global_batch_size", "micro_batch": "micro_batch_size", "zero": "zero_stage"}

Item = tuple[dict[str, Any], dict[KeyPath, str]]
"""A workload item, and the option that gave each of its values."""


def training(question: OneLine) -> Item:
    """The item of a training step, without what the machine decides."""
    item: dict[str, Any] = {"model": question.subject}
    places: dict[KeyPath, str] = {("training", "model"): question.subject}
    for name in ("seq_len", "batch", "micro_batch"):
        _put(item, places, question, name)
    _mesh(item, places, question, ("tp", "pp", "cp", "dp", "ep"))
    for name in ("zero", "recompute", "framework", "precision"):
        _put(item, places, question, name)
    if question.tokens is not None:
        item["task"] = {"kind": "pretrain", "tokens": question.tokens}
        places["training", "task", "tokens"] = option(question, "tokens")
    return {"training": item}, places


def generation(question: OneLine) -> Item:
    """The item of requests, without what the machine decides."""
    lengths = question.generate or LENGTHS
    item: dict[str, Any] = {"model": question.subject}
    places: dict[KeyPath, str] = {("generation", "model"): question.subject}
    _mesh(item, places, question, ("tp", "pp", "ep", "attention_dp"), "generation")
    item |= dict(
        zip(("prompt", "answer"), _lengths(lengths, "generate" if question.as_keywords else "--generate"), strict=True)
    )
    for name in ("prompt", "answer"):
        places["generation", name] = option(replace(question, generate=lengths), "generate")
        if question.range_ratio is not None:
            item[name] = {"tokens": item[name], "range_ratio": question.range_ratio}
            places["generation", name, "range_ratio"] = option(question, "range_ratio")
    if question.batch is None and question.rate is None:
        item["batch"] = 1
    for name in ("batch", "rate", "requests", "framework", "precision"):
        if (value := getattr(question, name)) is not None:
            item[name] = value
            places["generation", name] = option(question, name)
    return {"generation": item}, places


def usual_tp(name: str, gpus: int = 8) -> int:
    """Tensor parallel ranks that a model by name or config.json allows: the most up to 8 that are on one node."""
    from commsim.training.hf_config import read_hf_config
    from commsim.training.model import model

    one = read_hf_config(Path(name)) if name.endswith(".json") else model(name)
    sizes = (one.heads, one.recurrent.key_heads, gpus)
    return next(tp for tp in (8, 4, 2, 1) if not any(size % tp for size in sizes))


def served_by() -> str:
    """The version of NCCL that the serving frameworks have."""
    from commsim.generation.collectives import NCCL_VERSION
    from commsim.nccl.version import format_version

    return format_version(NCCL_VERSION)


def _put(item: dict[str, Any], places: dict[KeyPath, str], question: OneLine, name: str) -> None:
    """A value of a training step, where it is given."""
    if (value := getattr(question, name)) is not None:
        key = _KEYS.get(name, name)
        item[key] = value
        places["training", key] = option(question, name)


def _mesh(
    item: dict[str, Any], places: dict[KeyPath, str], question: OneLine, axes: tuple[str, ...], kind: str = "training"
) -> None:
    item["mesh"] = {axis: value for axis in axes if (value := getattr(question, axis)) is not None}
    places |= {(kind, "mesh", axis): option(question, axis) for axis in item["mesh"]}


def _lengths(text: str, name: str) -> tuple[int, int]:
    prompt, colon, answer = text.partition(":")
    if not colon or not (prompt.isascii() and prompt.isdecimal() and answer.isascii() and answer.isdecimal()):
        raise ScenarioError(f"{name}: found {show(text)}, expected tokens in and out, such as 1024:1024")
    return int(prompt[:18]), int(answer[:18])


def filled_generation(data: dict[str, Any]) -> dict[str, Any]:
    """The scenario with as many nodes as one replica needs, where it does not say how many there are."""
    mesh = _of(data, "generation").get("mesh")
    return _with_nodes(data, _product(mesh, ("tp", "pp", "attention_dp")), built(data["topology"]))[0]


def filled_training(data: dict[str, Any], question: OneLine) -> dict[str, Any]:
    """The scenario with nodes, batch, sharding and number format where it says nothing of them."""
    item = _of(data, "training")
    gpus = _product(item.get("mesh"), ("tp", "pp", "cp"))
    data, topology = _with_nodes(data, gpus * _product(item.get("mesh"), ("dp",)), built(data["topology"]))
    if not item:
        return data
    replicas = max(topology.world_size // gpus, 1) if topology else 1
    framework = item.get("framework", "megatron")
    made = _batch(item, question, replicas) | {
        "zero_stage": ZERO.get(framework, 0) if replicas > 1 else 0,
        "sequence_parallel": framework in SEQUENCE_PARALLEL and _product(item.get("mesh"), ("tp",)) > 1,
        "precision": _precision(topology),
    }
    item = {**item, **{key: value for key, value in made.items() if key not in item}}
    order = [key for key in _ORDER if key in item]
    item = {key: item[key] for key in [*order, *(key for key in item if key not in order)]}
    return {**data, "workload": [{**data["workload"][0], "training": item}, *data["workload"][1:]]}


_ORDER = ("model", "seq_len", "global_batch_size", "micro_batch_size", "mesh")


def _batch(item: dict[str, Any], question: OneLine, replicas: int) -> dict[str, Any]:
    """Sequences of a step and of a pass: of both and the passes of a replica two decide the third."""
    whole, micro = item.get("global_batch_size"), item.get("micro_batch_size")
    pass_size = micro if _count(micro) else 1
    passes = question.micro_batches
    if passes is None or not _count(whole):
        passes = passes or PER_STAGE * _product(item.get("mesh"), ("pp",))
        return {"global_batch_size": replicas * passes * pass_size, "micro_batch_size": 1}
    fits, left = divmod(whole, replicas * passes)
    if left or not fits or micro not in (None, fits):
        of = "" if micro is None else f" of {micro}"
        raise ScenarioError(
            f"{option(question, 'micro_batches')}: found {passes} micro-batches{of} on each of {replicas} replicas "
            f"beside a batch of {whole} sequences, expected a batch of {replicas * passes * pass_size}, or one of the "
            "two left out"
        )
    return {"micro_batch_size": fits}


def _with_nodes(data: dict[str, Any], gpus: int, topology: Topology | None) -> tuple[dict[str, Any], Topology | None]:
    nodes = nodes_for(topology, gpus, data["topology"])
    if nodes is None:
        return data, topology
    block = {**data["topology"], "nodes": nodes}
    return {**data, "topology": block}, built(block)


def _precision(topology: Topology | None) -> str:
    """bf16 where the GPU has it, else fp16: a V100 does not."""
    from commsim.scenario.training import accelerator_of

    try:
        bf16 = topology is None or dict(accelerator_of(topology).flop_per_s).get("bf16") is not None
    except CommsimError:  # no datasheet, which is told with all others
        bf16 = True
    return "bf16" if bf16 else "fp16"


def _of(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """The item, as overrides left it; empty where they made something else of it."""
    workload = data.get("workload")
    first = workload[0] if isinstance(workload, list) and workload else None
    item = first.get(kind) if isinstance(first, dict) else None
    return item if isinstance(item, dict) else {}


def _product(mesh: object, axes: tuple[str, ...]) -> int:
    """GPUs of some axes; what is no count is judged later."""
    product = 1
    for axis in axes:
        size: object = mesh.get(axis) if isinstance(mesh, dict) else None
        product *= size if _count(size) else 1
    return product


def _count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 2**20


def said(document: Document) -> str:
    """What was filled in of a training step and no option or override says, as half a sentence."""
    item, stated = _of(document.data, "training"), document.overrides
    open_keys = [key for key in item if not any(path[:4] == ("workload", 0, "training", key) for path in stated)]
    mesh, topology = item.get("mesh"), built(document.data["topology"])
    gpus = _product(mesh, ("tp", "pp", "cp"))
    replicas = max(topology.world_size // gpus, 1) if topology else 1
    whole, micro = item.get("global_batch_size"), item.get("micro_batch_size", 1)
    words = []
    if "global_batch_size" in open_keys and _count(whole) and _count(micro):
        passes = whole // (replicas * micro)
        words.append(f"a batch of {whole:,} sequences ({replicas:,} x {passes:,} micro-batches of {micro})")
    if "zero_stage" in open_keys:
        words.append(f"zero_stage {item['zero_stage']}")
    if item.get("sequence_parallel") and "sequence_parallel" in open_keys:
        words.append("sequence_parallel")
    if "precision" in open_keys:
        words.append(str(item["precision"]))
    return ", ".join(words)
