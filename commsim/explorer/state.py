"""What the page shows, as words by key: the same as a URL's query, a scenario's document, a command, a Python call.

A key stands for one place of a scenario; what a scenario says beside these is kept whole under `more`, as JSON.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pprint import pformat
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

from commsim.document.types import KeyPath, show
from commsim.errors import ScenarioError
from commsim.scenario.asked import OneLine
from commsim.scenario.collective import parse_size_list
from commsim.units import format_size

Question = Literal["collective", "training"]

LONGEST = 20_000
"""Characters of a state: browsers take addresses of that length."""

DEFAULTS = {
    "on": "hgx-h100-ndr400",
    "nodes": "4",
    "library": "nccl",
    "collective": "all_reduce",
    "sizes": "8 B .. 8 GiB x2",
    "model": "llama3-70b",
    "tp": "8",
    "pp": "4",
    "zero": "1",
    "sp": "true",
}
"""What the page begins with; a key that is not here is left to the machine and the library."""


def _whole(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text


def _number(text: str) -> float | int | str:
    return float(text) if re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", text) else _whole(text)


def _flag(text: str) -> bool | str:
    return text == "true" if text in ("true", "false") else text


def _faults(text: str) -> list[dict[str, Any]]:
    """``nic:0.3:failed;link:leaf0~spine1:0.5``; ScenarioError for another form."""
    faults: list[dict[str, Any]] = []
    for part in filter(None, text.split(";")):
        match = re.fullmatch(r"(link|nic|node|switch):([^:]+):(failed|no_gdr|[0-9.]+)", part)
        if match is None:
            raise ScenarioError(
                f"found the fault {show(part)}, expected one such as nic:0.3:0.5 or switch:leaf0:failed"
            )
        kind, place, what = match.groups()
        where: Any = place
        if kind == "nic":
            where = [_whole(n) for n in place.split(".")]
        elif kind == "link":
            where = place.split("~")
        elif kind == "node":
            where = _whole(place)
        wrong = {what: True} if what in ("failed", "no_gdr") else {"bandwidth_factor": float(_number(what))}
        faults.append({kind: where, **wrong})
    return faults


def _placement(text: str) -> dict[str, Any]:
    """``leaf``, ``random``, or nodes with commas."""
    if text in ("leaf", "random"):
        return {"by": text}
    return {"nodes": [_whole(part.strip()) for part in text.split(",")]}


def _sizes(text: str) -> str | list[str]:
    """A size, a range, or sizes with commas."""
    return [part.strip() for part in text.split(",")] if "," in text else text


@dataclass(frozen=True)
class _Key:
    """Where a key's value stands in a scenario, and how it is read."""

    path: KeyPath
    read: Callable[[str], Any] = str


_MACHINE = {
    "on": _Key(("topology", "preset")),
    "path": _Key(("topology", "path")),
    "nodes": _Key(("topology", "nodes"), _whole),
    "gpus": _Key(("topology", "gpus_per_node"), _whole),
    "nics": _Key(("topology", "nics_per_node"), _whole),
    "rate": _Key(("topology", "nic_bandwidth")),
    "over": _Key(("topology", "oversubscription"), _number),
    "leaf": _Key(("topology", "nodes_per_leaf"), _whole),
    "faults": _Key(("topology", "faults"), _faults),
    "library": _Key(("library", "name")),
    "version": _Key(("library", "version")),
    "registered": _Key(("library", "registered")),
    "placement": _Key(("placement",), _placement),
}
_COLLECTIVE = {
    "collective": _Key(("workload", 0, "collective")),
    "sizes": _Key(("workload", 0, "sizes"), _sizes),
    "dtype": _Key(("workload", 0, "dtype")),
    "algorithm": _Key(("workload", 0, "algorithm")),
    "ncclalgo": _Key(("library", "env", "NCCL_ALGO")),
    "protocol": _Key(("workload", 0, "protocol")),
    "channels": _Key(("workload", 0, "channels"), _whole),
}
_T: KeyPath = ("workload", 0, "training")
_TRAINING = {
    "model": _Key((*_T, "model")),
    "seq": _Key((*_T, "seq_len"), _whole),
    "gb": _Key((*_T, "global_batch_size"), _whole),
    "mb": _Key((*_T, "micro_batch_size"), _whole),
    "tp": _Key((*_T, "mesh", "tp"), _whole),
    "pp": _Key((*_T, "mesh", "pp"), _whole),
    "cp": _Key((*_T, "mesh", "cp"), _whole),
    "ep": _Key((*_T, "mesh", "ep"), _whole),
    "dp": _Key((*_T, "mesh", "dp"), _whole),
    "vs": _Key((*_T, "virtual_stages"), _whole),
    "pipeline": _Key((*_T, "pipeline_schedule")),
    "zero": _Key((*_T, "zero_stage"), _whole),
    "recompute": _Key((*_T, "recompute")),
    "sp": _Key((*_T, "sequence_parallel"), _flag),
    "precision": _Key((*_T, "precision")),
}
_OF: dict[Question, dict[str, _Key]] = {
    "collective": _MACHINE | _COLLECTIVE,
    "training": {k: v for k, v in _MACHINE.items() if k != "placement"} | _TRAINING,
}
_NOT_ASKED = ("name", "report")
"""What a scenario says that is not about the answer: the page names it by what it asks."""

MACHINE_KEYS = frozenset({*_MACHINE} - {"library", "version", "registered", "placement"})
"""Those that say the machine."""

VIEW = ("tab", "size", "node", "schedule", "ranks", "step", "best")
"""Keys of the page alone, which no scenario has: the tab, the size of the heat, the node and the schedule shown."""

KEYS = frozenset({*_MACHINE, *_COLLECTIVE, *_TRAINING, *VIEW, "more"})


@dataclass(frozen=True)
class State:
    """Words by key; one that is missing is as in `DEFAULTS`, an empty one leaves its place to the machine."""

    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, values: object) -> State:
        """From what came over the wire; ScenarioError for what is no state."""
        if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
            raise ScenarioError("found no state, expected words by key")
        if unknown := sorted(set(values) - KEYS):
            raise ScenarioError(f"found the unknown key {show(unknown[0])}, expected some of {', '.join(sorted(KEYS))}")
        if sum(len(v) for v in values.values()) > LONGEST:
            raise ScenarioError(f"found a state of more than {LONGEST:,} characters")
        return cls({k: v.strip() for k, v in values.items()})

    @classmethod
    def of_query(cls, text: str) -> State:
        """From a URL's query or fragment, or a whole address."""
        _, mark, fragment = text.partition("#")
        return cls.of(dict(parse_qsl(fragment if mark else text, keep_blank_values=True, max_num_fields=200)))

    @classmethod
    def of_document(cls, plain: Mapping[str, Any]) -> State:
        """From a scenario's document: its first item, and what has no key of its own as `more`."""
        rest = copy.deepcopy(dict(plain))
        if isinstance(rest.get("library"), str):
            rest["library"] = {"name": rest["library"]}
        items = rest.get("workload")
        first = items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}
        question: Question = "training" if "training" in first else "collective"
        if not {"collective", "training"} & set(first) or len(items or ()) != 1:
            raise ScenarioError("found a scenario that is not of one collective or one training step, expected that")
        values = {"tab": "step"} if question == "training" else {}
        for name, key in _OF[question].items():
            text = _written(name, _take(rest, key.path))
            if text is not None:
                values[name] = text
            elif name in DEFAULTS and name != "library":
                values[name] = ""  # the page's default is not the scenario's
        rest = _without_empty({k: v for k, v in rest.items() if k not in _NOT_ASKED})
        if rest:
            values["more"] = json.dumps(rest, separators=(",", ":"))
        return cls.of(values)

    def __getitem__(self, key: str) -> str:
        return self.values.get(key, DEFAULTS.get(key, ""))

    def query(self) -> str:
        """As a URL's fragment: what differs from the defaults."""
        return urlencode({k: v for k, v in self.values.items() if v != DEFAULTS.get(k, "")})

    def document(self, question: Question) -> dict[str, Any]:
        """The scenario as plain values; ScenarioError for words that cannot be read."""
        made: dict[str, Any] = {"name": self._title(question), "topology": {}, "library": {}, "workload": [{}]}
        for name, key in _OF[question].items():
            if text := self[name]:
                if name == "on" and self["path"]:
                    continue
                if name == "ncclalgo" and self["library"] != "nccl":
                    continue
                if name == "algorithm" and self["library"] != "none":
                    continue
                _put(made, key.path, key.read(text))
        _merge(made, self._more(question))
        if question == "training":
            _fill_batch(made)
        return made if made["library"] else {k: v for k, v in made.items() if k != "library"}

    def _more(self, question: Question) -> dict[str, Any]:
        """What a scenario said beside the keys, where it is of this question."""
        try:
            more = json.loads(self["more"] or "{}")
        except ValueError as error:
            raise ScenarioError(f"more: found no JSON ({error})") from None
        if not isinstance(more, dict):
            raise ScenarioError("more: found no mapping, expected the rest of a scenario")
        items = more.get("workload") or [{}]
        if (question == "training") != ("training" in items[0]):
            more.pop("workload", None)
        return more

    def _title(self, question: Question) -> str:
        nodes = f"{self['nodes'] or '1'} x " if self["nodes"] else ""
        what = self["model"] if question == "training" else self["collective"]
        return f"{what} on {nodes}{self['on'] or self['path'] or 'a machine'}"

    def python(self, question: Question) -> str:
        """The call of the library that asks the same."""
        plain = pformat(self.document(question), sort_dicts=False, width=100)
        return f"import commsim as cs\n\nresult = cs.run({plain})\n"


def _fill_batch(plain: dict[str, Any]) -> None:
    """The sequences of a step where a state says none: as many as a question in one line takes."""
    item = plain["workload"][0]["training"]
    if "global_batch_size" in item:
        return
    from commsim.scenario.asked_model import filled_training

    filled = filled_training(plain, OneLine(str(item.get("model", "")), ""))["workload"][0]["training"]
    item["global_batch_size"] = filled["global_batch_size"]


# -- places ---------------------------------


def _put(plain: dict[str, Any], path: KeyPath, value: Any) -> None:
    at: Any = plain
    for here in path[:-1]:
        at = at.setdefault(here, {}) if isinstance(at, dict) else at[here]
    at[path[-1]] = value


def _take(plain: Any, path: KeyPath) -> Any:
    """The value at a place, taken out; None where there is none."""
    for here in path[:-1]:
        known = plain if isinstance(plain, dict) else range(len(plain)) if isinstance(plain, list) else ()
        if here not in known:
            return None
        plain = plain[here]
    return plain.pop(path[-1], None) if isinstance(plain, dict) else None


def _written(name: str, value: Any) -> str | None:
    """A value of a scenario as the key's words."""
    if value is None:
        return None
    if name == "faults":
        return ";".join(_fault_words(fault) for fault in value)
    if name == "placement":
        return str(value["by"]) if "by" in value else ", ".join(map(str, value.get("nodes", ())))
    if name == "sizes":
        return _size_words(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _size_words(value: Any) -> str:
    """A range where the sizes are one that multiplies, else all of them."""
    sizes = parse_size_list(value)
    factor = sizes[1] // sizes[0] if len(sizes) > 2 and sizes[0] else 0
    if factor > 1 and all(b == a * factor for a, b in pairwise(sizes)):
        return f"{format_size(sizes[0])} .. {format_size(sizes[-1])} x{factor}"
    return ", ".join(map(format_size, sizes))


def _fault_words(fault: Mapping[str, Any]) -> str:
    kind = next((k for k in ("link", "nic", "node", "switch") if fault.get(k) is not None), "node")
    where = fault.get(kind)
    place = "~".join(where) if kind == "link" else ".".join(map(str, where)) if kind == "nic" else str(where)  # type: ignore[arg-type]
    wrong = next((w for w in ("failed", "no_gdr") if fault.get(w)), None) or str(fault.get("bandwidth_factor", 1))
    return f"{kind}:{place}:{wrong}"


def _merge(plain: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds what is not there yet; lists of mappings by their places."""
    for key, value in more.items():
        mine = plain.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            _merge(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            for one, other in zip(mine, value, strict=False):
                if isinstance(one, dict) and isinstance(other, dict):
                    _merge(one, other)
        elif not mine:
            plain[key] = value


def _without_empty(value: Any) -> Any:
    """Without mappings and lists in which nothing is left."""
    if isinstance(value, dict):
        kept = {k: _without_empty(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v not in ({}, [], None)}
    if isinstance(value, list):
        kept_list = [_without_empty(v) for v in value]
        return kept_list if any(v not in ({}, [], None) for v in kept_list) else []
    return value
