"""The faults of a file from the errors of pydantic: at their places, in the words of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from commsim.document.slots import Slot, bounds, choices, describe, keys_of, meaning, slots_of, step
from commsim.document.types import LOCATED, Document, KeyPath, show, suggest
from commsim.errors import Fault


def faults_of(errors: Sequence[ErrorDetails], model: type[BaseModel], document: Document, at: KeyPath) -> list[Fault]:
    """The faults of the document's value at ``at``, which is no ``model``."""
    items = [item for error in errors for item in _items(error, document.value(at))]
    return [_fault(item, model, document, at) for item in _meant(items, 0)]


_Tags: TypeAlias = tuple[tuple[int, str], ...]
"""Union branches, each with the length of the path before it."""


@dataclass(frozen=True)
class _Item:
    """A pydantic error: ``path`` is its place in the data; ``tags`` the union branches its location names."""

    kind: str
    path: KeyPath
    tags: _Tags
    value: Any
    context: dict[str, Any]
    text: str


def _items(error: ErrorDetails, checked: Any) -> list[_Item]:
    context: dict[str, Any] = dict(error.get("ctx", {}))
    path, tags = _walk(tuple(error["loc"]), checked, error["type"], error["input"])
    item = _Item(error["type"], path, tags, error["input"], context, error["msg"])
    if item.kind == "too_short" and len(item.value) >= context["min_length"]:
        return []  # pydantic counts only the valid items of a list; the others are faults of their own
    if error["type"] != LOCATED:
        return [item]
    return [
        _Item(LOCATED, (*path, *f["at"]), tags, None, {"text": f["message"]}, f["message"]) for f in context["faults"]
    ]


def _walk(loc: KeyPath, checked: Any, kind: str, refused: Any) -> tuple[KeyPath, _Tags]:
    """Split a pydantic location into the path through the value checked and the union tags between.

    A tag may look like a key (``preset``), so both readings are tried; best is the one that ends at the
    value refused, then at the last name, then the longer one.
    """

    def readings(i: int, here: Any, path: KeyPath, tags: _Tags, ended: bool) -> Iterator[tuple[Any, KeyPath, _Tags]]:
        if i == len(loc):
            same = kind != "missing" and here == refused
            yield (same, ended or not loc, len(path)), path, tags
            return
        key, last = loc[i], i == len(loc) - 1
        in_list = isinstance(here, list) and isinstance(key, int) and key < len(here)
        if in_list or (isinstance(here, dict) and key in here):
            yield from readings(i + 1, here[key], (*path, key), tags, last)
        elif last and kind == "missing" and isinstance(here, list if isinstance(key, int) else dict):
            yield from readings(i + 1, None, (*path, key), tags, True)
        if len(tags) < 4:
            yield from readings(i + 1, here, path, (*tags, (len(path), str(key))), False)

    first = readings(0, checked, (), (), False)
    _, path, tags = max(first, key=lambda reading: reading[0], default=(None, (), ()))
    return path, tags


_WRONG_KIND = re.compile(r".*_type|literal_error|enum|.*_parsing|is_instance_of|none_required")


def _meant(items: Sequence[_Item], depth: int) -> list[_Item]:
    """The errors left when, at each union, only the branch that the writer evidently meant is reported."""
    plain = [i for i in items if len(i.tags) <= depth]
    unions: dict[KeyPath, dict[str, list[_Item]]] = {}
    for item in items:
        if len(item.tags) > depth:
            length, tag = item.tags[depth]
            unions.setdefault(item.path[:length], {}).setdefault(tag, []).append(item)
    for prefix, branches in unions.items():
        scores = {tag: _distance(prefix, branch) for tag, branch in branches.items()}
        chosen = min(scores, key=scores.__getitem__)
        if scores[chosen] >= 1000 and len(branches) > 1:
            plain.append(_none_fits(prefix, branches))
        else:
            plain.extend(_meant(branches[chosen], depth + 1))
    return plain


def _distance(prefix: KeyPath, branch: Sequence[_Item]) -> int:
    """How far the value is from a union branch: by its kind, then unknown keys, missing keys, the rest."""
    total = 0
    for item in branch:
        below = len(item.path) - len(prefix)
        if below == 0 and _WRONG_KIND.fullmatch(item.kind):
            total += 1000
        elif below == 1 and item.kind == "extra_forbidden":
            total += 10
        elif below == 1 and item.kind == "missing":
            total += 5
        else:
            total += 1
    return total


def _none_fits(prefix: KeyPath, branches: dict[str, list[_Item]]) -> _Item:
    own = [next(i for i in items if len(i.path) == len(prefix)) for items in branches.values()]
    expected = dict.fromkeys(_expected(i, []) for i in own)
    return _Item("commsim_union", prefix, (), own[0].value, {"expected": " or ".join(expected)}, "")


def _fault(item: _Item, model: type[BaseModel], document: Document, at: KeyPath) -> Fault:
    path = (*at, *item.path)
    tags = {tag for _, tag in item.tags}
    if item.kind == "extra_forbidden":
        names = keys_of(_slots(model, item.path[:-1], tags))
        near = _longer(item, model, document, at) or suggest(str(item.path[-1]), names)
        return document.fault(path, f"found the unknown key {show(item.path[-1])}, {near}", at_key=True)
    if item.kind == "missing" and isinstance(item.path[-1], int):  # a list of fixed length, such as a pair
        why = meaning(_slots(model, item.path[:-1], tags)).replace("`", "")
        wanted = why or f"at least {item.path[-1] + 1} items"
        return document.fault(path[:-1], f"found a list of {len(item.value)}, expected {wanted}")
    if item.kind == "missing":
        slots = _slots(model, item.path, tags)
        kind, why = describe(slots), meaning(slots)
        named = choices(slots)
        if named and all(f"`{choice}`" in why for choice in named):
            kind, why = why.replace("`", ""), ""  # the description names the choices, and says more of each
        wanted = f"{f' with {kind}' if kind else ''}{f' ({why})' if why else ''}"
        return document.fault(path[:-1], f"found no key {str(item.path[-1])!r}, expected it{wanted}")
    if item.kind == LOCATED:
        return document.fault(path, str(item.context["text"]))
    if item.kind in ("value_error", "assertion_error"):
        return document.fault(path, str(item.context.get("error", item.text)))
    if item.tags and item.tags[-1][1] == "[key]":
        return document.fault(path, f"found the key {show(item.value)}, expected {_expected(item, [])}", at_key=True)
    slots = _slots(model, item.path, tags)
    return document.fault(path, f"found {show(item.value)}, {_wanted(item, slots)}")


def _longer(item: _Item, model: type[BaseModel], document: Document, at: KeyPath) -> str:
    """What was meant by an override whose path leaves out a part; empty where it is none."""
    if document.value(at) is None:
        return ""
    path = (*at, *item.path)
    given = next((o for o in document.overrides if o[: len(path)] == path), None)
    if given is None:
        return ""
    from commsim.document.paths import longer

    return longer(".".join(map(str, given[len(at) :])), model, document.value(at))


def _slots(model: type[BaseModel], path: KeyPath, tags: set[str]) -> list[Slot]:
    """What the model has at the path, following the union branches named by ``tags`` if there is a choice."""
    slots = list(slots_of(model))
    for key in path:
        named = [s for s in slots if getattr(s.kind, "__name__", "") in tags]
        slots = step(named or slots, key)
    return [s for s in slots if getattr(s.kind, "__name__", "") in tags] or slots


def _wanted(item: _Item, slots: Sequence[Slot]) -> str:
    """``expected ...``, or ``did you mean ...?`` where the value is nearly one of a few names."""
    if item.kind in ("literal_error", "enum", "union_tag_invalid"):
        key = "expected_tags" if item.kind == "union_tag_invalid" else "expected"
        names = re.findall(r"'([^']*)'", str(item.context.get(key, "")))
        value = item.context.get("tag", item.value)
        if names and isinstance(value, str):
            return suggest(value, names)
        if names:
            return f"expected {'one of ' if len(names) > 1 else ''}{', '.join(names[:12])}"
    return f"expected {_expected(item, slots)}"


_KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number{bounds}"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number{bounds}"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "mapping_type"), "a mapping of keys and values"
    ),
    "string_type": "text",
    "none_required": "null",
    "path_type": "a file name",
    "finite_number": "a finite number",
    "union_tag_not_found": "a mapping with the key {discriminator}",
    "greater_than": "{number} > {gt}",
    "greater_than_equal": "{number} >= {ge}",
    "less_than": "{number} < {lt}",
    "less_than_equal": "{number} <= {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "commsim_union": "{expected}",
}


def _expected(item: _Item, slots: Sequence[Slot]) -> str:
    if isinstance(item.value, float) and not isfinite(item.value):
        return f"a finite number{bounds(slots)}"
    if item.kind in _KINDS:
        whole = isinstance(item.value, int) and all(s.kind is not float for s in slots)
        number = "a whole number" if whole else "a number"
        wanted = _KINDS[item.kind].format(number=number, bounds=bounds(slots), **item.context)
        of = meaning(slots) if wanted == "a list" else ""
        return f"{wanted}: {of}" if of else wanted
    text = re.sub(r"^Input should be (?:a valid |an? )?", "", item.text)
    return text[:1].lower() + text[1:]
