"""What a question in one line says: a collective or a model, a machine, and a few numbers, as on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal

from commsim.collectives.semantics import NCCL_TESTS
from commsim.units import GIGA

Kind = Literal["collective", "training", "generation"]


@dataclass(frozen=True)
class OneLine:
    """What is asked of a machine; what is None is filled in, or is as a scenario has it where it says nothing.

    ``subject``: a collective, a model, or a Hugging Face config.json. ``on``: a preset, or a file of a topology.
    Sizes are called as nccl-tests' long options, in bytes. ``batch``: sequences of a training step, or requests that
    each replica has at once. ``tokens``: to train on. ``generate``: ``IN:OUT``, tokens of prompts and answers.
    ``as_keywords``: of a Python call, so that messages name keywords, not options.
    """

    subject: str
    on: str
    nodes: int | None = None
    minbytes: int | None = None
    maxbytes: int | None = None
    stepfactor: int | None = None
    stepbytes: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    dp: int | None = None
    ep: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    seq_len: int | None = None
    zero: int | None = None
    recompute: str | None = None
    framework: str | None = None
    precision: str | None = None
    generate: str | None = None
    range_ratio: float | None = None
    rate: float | None = None
    requests: int | None = None
    attention_dp: int | None = None
    tokens: float | None = None
    overrides: tuple[str, ...] = ()
    as_keywords: bool = False

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the fields that say something, in order, without what every question has."""
        every = ("subject", "on", "overrides", "as_keywords")
        return tuple(f.name for f in fields(self) if f.name not in every and getattr(self, f.name) is not None)


OPTIONS = {"nodes": "-n", "minbytes": "-b", "maxbytes": "-e", "stepfactor": "-f", "stepbytes": "-i"}
"""The options of the command line that are not called as the fields are."""

SIZES = ("minbytes", "maxbytes", "stepfactor", "stepbytes")
BYTES = ("minbytes", "maxbytes", "stepbytes")
_ONLY_GENERATION = ("generate", "range_ratio", "rate", "requests", "attention_dp")
_ONLY_TRAINING = ("cp", "dp", "micro_batch", "micro_batches", "seq_len", "zero", "recompute", "tokens")
_OF_MODELS = (*_ONLY_TRAINING, *_ONLY_GENERATION, "tp", "pp", "ep", "batch", "framework", "precision")
_WITHOUT_EFFECT: dict[Kind, tuple[str, ...]] = {
    "collective": _OF_MODELS,
    "training": SIZES,
    "generation": (*SIZES, *_ONLY_TRAINING),
}
_NOUNS: dict[Kind, str] = {"collective": "a collective", "training": "a training step", "generation": "generation"}
_SERVING = ("vllm", "sglang", "tensorrt_llm", "hf")


def option(question: OneLine, name: str) -> str:
    """A field as it was written: ``--tp 8``, ``-e 8G``, of a Python call ``tp=8``, ``maxbytes='8G'``."""
    value = getattr(question, name)
    if question.as_keywords:
        return f"{name}={nccl_size(value) if name in BYTES else value!r}"
    if name == "tokens":
        return f"--tokens {value / GIGA:g}B"
    text = nccl_size(value) if name in BYTES else f"{value:g}" if isinstance(value, float) else f"{value}"
    return f"{OPTIONS.get(name, '--' + name.replace('_', '-'))} {text}"


def collective_named(name: str) -> str | None:
    """The collective of a name as NCCL, nccl-tests or torch write it (``AllReduce``, ``all_reduce_perf``), or None."""
    plain = {known.replace("_", ""): known for known in NCCL_TESTS}
    return plain.get(re.sub(r"[-_ ]", "", name.lower().removesuffix("_perf")))


def kind_of(question: OneLine) -> Kind:
    """What is asked: a collective, a training step, or answers where something that only generation has is given."""
    if collective_named(question.subject):
        return "collective"
    answers = any(name in question.given for name in _ONLY_GENERATION) or question.framework in _SERVING
    return "generation" if answers else "training"


def without_effect(question: OneLine) -> tuple[str, ...]:
    """A sentence for each option that changes nothing of what is asked."""
    kind = kind_of(question)
    idle = [name for name in question.given if name in _WITHOUT_EFFECT[kind]]
    told = [f"{option(question, name)} changes nothing: {_NOUNS[kind]} has no such thing" for name in idle]
    instead = next((change for change in question.overrides if change.startswith("topology.nodes=")), None)
    if question.nodes is not None and instead:
        told.append(f"{option(question, 'nodes')} changes nothing beside {instead}")
    return tuple(told)


_SUFFIX = {0: "", 10: "K", 20: "M", 30: "G", 40: "T"}


def nccl_size(nbytes: int) -> str:
    """A size as nccl-tests takes it: ``8``, ``64K``, ``8G``."""
    power = next((p for p in (40, 30, 20, 10) if nbytes and nbytes % 2**p == 0), 0)
    return f"{nbytes >> power}{_SUFFIX[power]}"
