"""A question in one line as keywords of a Python call: ``run("all_reduce", on="hgx-h100-ndr400", nodes=4)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict, get_type_hints

from commsim.document.types import show, suggest
from commsim.errors import ScenarioError, UnitError
from commsim.scenario.arguments import Size, size, whole_number
from commsim.scenario.asked import BYTES, OPTIONS, OneLine, collective_named
from commsim.scenario.load import is_model
from commsim.units import parse_count


class PlanKeywords(TypedDict, total=False):
    """A machine, and how a model is trained on it; each is the option of its name."""

    on: str | PathLike[str]
    nodes: int
    batch: int
    seq_len: int
    precision: str
    framework: str
    tokens: float | str


class Keywords(PlanKeywords, total=False):
    """A machine, and what is asked of it; sizes are bytes, or texts such as ``"8G"`` or ``"64 MiB"``."""

    minbytes: Size
    maxbytes: Size
    stepfactor: int
    stepbytes: Size
    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    micro_batch: int
    micro_batches: int
    zero: int
    recompute: str
    generate: str
    range_ratio: float
    rate: float
    requests: int
    attention_dp: int


def question_in_keywords(
    subject: object, given: Mapping[str, Any], overrides: Sequence[str] = (), known: type = Keywords
) -> OneLine:
    """What a call with these keywords asks; ScenarioError for one that is unknown, of the wrong type, or without `on`.

    None is as if it were left out.
    """
    names = get_type_hints(known)
    letters = {letter.lstrip("-"): name for name, letter in OPTIONS.items() if name in names}
    for name in given:
        if name not in names:
            near = f"did you mean {letters[name]!r}?" if name in letters else suggest(name, list(names))
            raise ScenarioError(f"found the keyword {show(name)}, {near}")
    words = {name: _value(name, value) for name, value in given.items() if value is not None}
    if not isinstance(subject, (str, PathLike)):
        raise ScenarioError(f"found a scenario beside {_said(words)}, expected a collective or a model by name")
    if "on" not in words:
        raise ScenarioError(f"found {_said(words)} without on, {_expected(str(subject), words)}")
    return OneLine(**words, subject=str(subject), overrides=tuple(overrides), as_keywords=True)


def _value(name: str, value: object) -> Any:
    """The value as a `OneLine` has it."""
    if name == "on":
        if isinstance(value, (str, PathLike)):
            return str(value)
        raise ScenarioError(f"on: found {show(value)}, expected a preset or a file of a topology")
    if name in BYTES:
        return size(name, value)
    if name == "tokens":
        try:
            return parse_count(str(value))
        except UnitError as error:
            raise UnitError(f"tokens: {error}") from None
    kind = get_type_hints(Keywords)[name]
    if kind is str and isinstance(value, str):
        return value
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is int:
        return whole_number(name, value, least=0 if name == "zero" else 1)
    raise ScenarioError(f"{name}: found {show(value)}, expected {'a text' if kind is str else 'a number'}")


def _said(words: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in words.items()) or "nothing"


def _expected(subject: str, words: Mapping[str, Any]) -> str:
    """What belongs beside a subject without a machine."""
    if collective_named(subject) or subject.endswith(".json") or is_model(subject):
        return f"expected a machine for {subject!r:.80}, such as on='hgx-h100-ndr400'"
    change = f"'topology.nodes={words.get('nodes', 4)}'"
    return f"expected it of a collective or a model; of a scenario it is a change, such as {change}"
