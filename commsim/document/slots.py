"""What a pydantic model accepts at a path: for messages that name the keys, numbers and texts it knows."""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, RootModel


@dataclass(frozen=True)
class Slot:
    """One type that may stand at a place, with the bounds and descriptions annotated there."""

    kind: Any
    metadata: tuple[Any, ...] = ()
    description: str = ""


def slots_of(annotation: Any, metadata: tuple[Any, ...] = (), description: str = "") -> Iterator[Slot]:
    """The alternatives of an annotation: Annotated, unions, aliases and root models opened."""
    origin = get_origin(annotation)
    if hasattr(annotation, "__value__"):  # a `type` alias (Python 3.12)
        yield from slots_of(annotation.__value__, metadata, description)
    elif origin is Annotated:
        inner, *extra = get_args(annotation)
        inner = next((item.union for item in extra if hasattr(item, "union")), inner)  # of kinds imported when needed
        yield from slots_of(inner, (*metadata, *extra), description)
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from slots_of(member, metadata, description)
    elif isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from slots_of(annotation.model_fields["root"].annotation, metadata, description)
    else:
        yield Slot(annotation, metadata, description)


def step(slots: Sequence[Slot], key: str | int) -> list[Slot]:
    """The slots one key or index below."""
    below: list[Slot] = []
    for slot in slots:
        origin, args = get_origin(slot.kind), get_args(slot.kind)
        if isinstance(slot.kind, type) and issubclass(slot.kind, BaseModel):
            for name, field in slot.kind.model_fields.items():
                if key in (name, field.alias):
                    below += slots_of(field.annotation, tuple(field.metadata), field.description or "")
        elif origin in (dict, collections.abc.Mapping) and len(args) == 2:
            below += slots_of(args[1])
        elif origin in (list, tuple, collections.abc.Sequence) and args:
            below += slots_of(args[0])
    return below


def keys_of(slots: Sequence[Slot]) -> list[str]:
    """The keys known at a place, in the order of the models."""
    models = [s.kind for s in slots if isinstance(s.kind, type) and issubclass(s.kind, BaseModel)]
    return list(dict.fromkeys(f.alias or name for m in models for name, f in m.model_fields.items()))


def bounds(slots: Sequence[Slot]) -> str:
    """`` >= 1`` from annotated bounds, empty where there are none."""
    texts = []
    for slot in slots:
        for item in slot.metadata:
            for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
                limit = getattr(item, attribute, None)
                if isinstance(limit, (int, float)):
                    texts.append(f" {sign} {limit}")
    return " and".join(dict.fromkeys(texts))


def meaning(slots: Sequence[Slot]) -> str:
    """What the field of a place is for: the first clause of its description, empty where it has none."""
    return next((slot.description.partition(";")[0] for slot in slots if slot.description), "")


def choices(slots: Sequence[Slot]) -> list[str]:
    """The values of a place that takes a few only, none where it takes others too."""
    taken = [get_args(slot.kind) if get_origin(slot.kind) is Literal else () for slot in slots]
    return [str(value) for values in taken for value in values] if all(taken) else []


def describe(slots: Sequence[Slot]) -> str:
    """What to write at a place: its type in plain words, empty where they are not known."""
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    for slot in slots:
        if slot.kind in names and slot.metadata and not bounds([slot]):
            return ""  # a quantity: its validator knows the form, we do not
        if slot.kind in names:
            return names[slot.kind] + bounds([slot])
        if get_origin(slot.kind) is Literal:
            return "one of " + ", ".join(str(v) for v in get_args(slot.kind)[:12])
        if get_origin(slot.kind) in (list, tuple):
            return "a list"
        if isinstance(slot.kind, type) and issubclass(slot.kind, BaseModel):
            return "a mapping of keys and values"
    return ""
