"""``key.path=value`` on top of a Document; the value is read and later validated like one in the file."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from commsim.document.reading import compose_documents
from commsim.document.scalars import exponent
from commsim.document.types import Document, KeyPath, raise_faults, shorten, show, show_path
from commsim.errors import Fault


class _PathError(ValueError):
    """An override whose path does not lead anywhere."""


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """A new document with each ``key.path=value`` set; list items by number: ``workload.0.sizes=1 MiB``.

    A key that is new is added; `validate` refuses it, at the override, where the model does not know it.
    """
    faults: list[Fault] = []
    values: list[tuple[str, str, Any]] = []
    for text in overrides:
        name, equals, value_text = (part.strip() for part in text.partition("="))
        place = f"override {shorten(text, 80)!r}"
        if not equals or not all(name.split(".")):
            message = f"found {show(text)}, expected key.path=value, such as topology.nodes=4"
            faults.append(Fault(place, 0, 0, "", message))
            continue
        value, value_faults = _value(value_text, place, shorten(name, 120))
        faults.extend(value_faults)
        values.append((text, name, value))
    return _with(document, values, faults)


def with_values(document: Document, values: Mapping[str, Any]) -> Document:
    """As `apply_overrides`, with values that are already read: ``{"topology.nodes": 4}``."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    named = [(f"{name}={texts[name]}", name, copy.deepcopy(value)) for name, value in values.items()]
    return _with(document, named, [])


def _with(document: Document, values: Sequence[tuple[str, str, Any]], faults: list[Fault]) -> Document:
    """The document with each (text of the override, key.path, value) set; raises all faults."""
    tree = copy.deepcopy(document.data)
    applied = dict(document.overrides)
    for text, name, value in values:
        try:
            path = _set(tree, name.split("."), value)
        except _PathError as exc:
            faults.append(Fault(f"override {shorten(text, 80)!r}", 0, 0, shorten(name, 120), str(exc)))
        else:
            applied = {p: t for p, t in applied.items() if p[: len(path)] != path} | {path: text}
    if faults:
        raise_faults(faults)
    return Document(document.file, tree, document.marks, document.key_marks, applied)


def _value(text: str, place: str, name: str) -> tuple[Any, list[Fault]]:
    if not text:
        return None, []
    if (number := exponent(text)) is not None:
        return number, []
    documents, faults = compose_documents(text, place)
    if not faults and len(documents) != 1:
        return None, [Fault(place, 0, 0, name, "found several documents, expected one value")]
    located = [Fault(place, 0, 0, ".".join(p for p in (name, f.path) if p), f.message) for f in faults]
    return (documents[0].data if documents else None), located


def _set(tree: Any, keys: Sequence[str], value: Any) -> KeyPath:
    """Set the value in place; its path."""
    path: KeyPath = ()
    here = tree
    for i, key in enumerate(keys):
        last = i == len(keys) - 1
        if isinstance(here, dict):
            step: str | int = key
            if last or here.get(key) is None:
                here[key] = value if last else {}
        elif isinstance(here, list):
            step = _index(key, len(here), path)
            if last:
                here[step] = value
        else:
            raise _PathError(
                f"found {show(here)} at {show_path(path) or 'the top'}, expected a mapping to set {key!r} in"
            )
        here, path = here[step], (*path, step)
    return path


def _index(key: str, length: int, path: KeyPath) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < length):
        among = f"an index 0..{length - 1}" if length else "no index into an empty list"
        raise _PathError(f"found {show(key)}, expected {among} of {show_path(path)}")
    return int(key)


def overridden(command: str, overrides: str) -> str:
    """A command line with these overrides at its end, without those of its own that they replace."""
    paths = {word.split("=", 1)[0] for word in shlex.split(overrides)}
    words = shlex.split(command)
    kept = [word for word in words if "=" not in word or word.split("=", 1)[0] not in paths]
    return f"{shlex.join(kept) if len(kept) < len(words) else command} {overrides}"
