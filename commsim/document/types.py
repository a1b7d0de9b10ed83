"""A Document: plain data and the place of every value in the file; how values and faults are shown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NoReturn, TypeAlias, TypeVar

from commsim.errors import Fault, LogFormatError, ScenarioError, TopologyError

KeyPath: TypeAlias = tuple[str | int, ...]
KeyFaults: TypeAlias = list[tuple[KeyPath, str]]
Mark: TypeAlias = tuple[int, int]
FaultyError: TypeAlias = type[ScenarioError] | type[TopologyError] | type[LogFormatError]

P = TypeVar("P")

LOCATED = "commsim_located"
"""The type of pydantic's errors whose context names the places of their faults (`located`)."""

KEYWORD = "keyword "
"""How the place of a value begins that a keyword of a Python call gave, in place of an override."""

# A message must fit one screen: this many faults of a line or two each, then "and N more".
SHOWN_FAULTS = 12
SHOWN_CHARACTERS = 60
MESSAGE_CHARACTERS = 400


@dataclass(frozen=True)
class Document:
    """One YAML document.

    ``data`` holds dict, list, str, int, float, bool and None only. ``marks`` gives the line and column (from
    1) of the value at each path, ``key_marks`` that of its key. ``overrides`` maps a path to the text of the
    ``key.path=value`` that set it.
    """

    file: str
    data: Any
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    key_marks: dict[KeyPath, Mark] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)

    def value(self, path: KeyPath) -> Any:
        """The value at ``path``."""
        return reduce(lambda value, key: value[key], path, self.data)

    def part(self, path: KeyPath) -> Document:
        """The document of the value at ``path``: its faults are told by their paths below it."""

        def below(places: dict[KeyPath, P]) -> dict[KeyPath, P]:
            return {at[len(path) :]: place for at, place in places.items() if at[: len(path)] == path}

        return Document(self.file, self.value(path), below(self.marks), below(self.key_marks), below(self.overrides))

    def fault(self, path: KeyPath, message: str, *, at_key: bool = False) -> Fault:
        """A fault at ``path``: in the override that set it, else at its place or its nearest parent's."""
        text = self._override(path)
        if text is not None:
            said = text.startswith(("-", KEYWORD))  # an option says what it is
            place = text.removeprefix(KEYWORD) if said else f"override {text!r}"
            return Fault(place, 0, 0, show_path(path), printable(message))
        line, column = self._mark(path, at_key)
        return Fault(self.file, line, column, show_path(path), printable(message))

    def error(self, path: KeyPath, message: str) -> ScenarioError:
        """The exception of one `fault`."""
        return ScenarioError([self.fault(path, message)])

    def overridden(self, path: KeyPath) -> bool:
        """Whether an override set the value at ``path``, or one that it is part of."""
        return any(path[: len(o)] == o for o in self.overrides)

    def _mark(self, path: KeyPath, at_key: bool) -> Mark:
        if at_key and path in self.key_marks:
            return self.key_marks[path]
        parents = (path[:length] for length in range(len(path), -1, -1))
        return next((self.marks[parent] for parent in parents if parent in self.marks), (1, 1))

    def _override(self, path: KeyPath) -> str | None:
        nearest = [o for o in self.overrides if path[: len(o)] == o]
        if not nearest and path and path not in self.marks:  # a parent that only an override created
            nearest = [o for o in self.overrides if o[: len(path)] == path]
        return shorten(self.overrides[max(nearest, key=len)], 80) if nearest else None


def raise_faults(faults: Iterable[Fault], error: FaultyError = ScenarioError) -> NoReturn:
    """Raise ``error`` with the faults in file order, at most one screen of them."""
    ordered = sorted(set(faults))
    if len(ordered) > SHOWN_FAULTS:
        rest = len(ordered) - SHOWN_FAULTS
        ordered = [*ordered[:SHOWN_FAULTS], Fault(ordered[-1].file, 0, 0, "", f"and {rest} more")]
    raise error(ordered)


def shorten(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """The text itself, or its beginning and ``...``."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def printable(text: str) -> str:
    """The message on one line, without characters that would steer a terminal."""
    flat = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.replace("\n", " "))
    return shorten(flat, MESSAGE_CHARACTERS)


def show(value: object) -> str:
    """A found value as a person wrote it, in at most some sixty characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return shorten(repr(shorten(value)), SHOWN_CHARACTERS + 4)
    if isinstance(value, dict):
        names = ", ".join(shorten(str(k), 20) for k in list(value)[:4])
        return f"a mapping with {names}{', ...' if len(value) > 4 else ''}" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    return shorten(repr(value))


def show_path(path: KeyPath) -> str:
    """``workload.0.collective``; keys that are not plain words are quoted."""
    return shorten(".".join(shorten(_key(k), 40) for k in path), 120)


def _key(key: str | int) -> str:
    text = str(key)
    return text if text.isprintable() and "." not in text and " " not in text and text else repr(text)


def suggest(name: str, names: Sequence[str]) -> str:
    """``did you mean 'ring'?`` for a near name, else the names expected."""
    lower = {n.lower(): n for n in reversed(names)}
    parts = sorted((n for n in names if name.lower() in n.lower()), key=len) if len(name) > 2 else []
    # h100: hgx-h100, not h800
    if parts and name.lower() not in lower:
        return f"did you mean {' or '.join(repr(n) for n in parts[:3])}?"
    close = difflib.get_close_matches(name[:80].lower(), list(lower), n=1, cutoff=0.6)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    if not names:
        return "expected none here"
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"expected one of {listed}" if len(names) > 1 else f"expected {listed}"
