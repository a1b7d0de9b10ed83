"""Writes what the reference takes from the code: `python docs/reference_pages.py` (or `make reference`).

On the pages of docs/reference, between markers `<!-- begin: x -->` and `<!-- end: x -->`: `command NAME` is a command's
usage, arguments and options as typer knows them; `fields MODEL` the fields of a block of a file as pydantic knows them;
`python NAME` a name of `import commsim` with its docstring. A command without a place on the page gets one at its end.
What stands around the blocks is written by hand. `tests/test_reference.py` fails where a block is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel

from commsim import api
from commsim.cli import app
from commsim.cli.complete import NAMES
from commsim.collectives import traffic
from commsim.collectives.semantics import NCCL_TESTS
from commsim.doctor.cluster_file import DoctorFile
from commsim.document.paths import paths_of
from commsim.files import write_atomically
from commsim.planner.question import PlanFile
from commsim.planner.serving_question import ServingFile
from commsim.scenario.json_schema import sweep_schema
from commsim.scenario.schema import Scenario
from commsim.scenario.workload.registry import OneOfTheKinds
from commsim.topology.spec import TopologyFile
from commsim.training.model import model_names
from commsim.units import format_bandwidth, format_time

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
COMMANDS_PAGE = PAGES / "cli.md"

_BLOCK = re.compile(r"<!-- begin: (command|fields|python) ([\w-]+) -->\n.*?<!-- end: \1 \2 -->", re.DOTALL)
_SUFFIX = re.compile(r"(Spec|Work)$")
_FORMS = {"2 us": format_time, "400 Gb/s": format_bandwidth}
_VALUE_NAMES = {Path: "PATH", int: "N", float: "X"}


def names() -> str:
    """The names that shells complete, as JSON: collectives, models, keys of overrides."""
    items: list[Any] = [{"collective": "x"}, {"training": {"model": "x"}}, {"generation": {"model": "x"}}]
    paths = {path for item in items for path in paths_of(Scenario, {"workload": [item]})}
    keys = sorted(path for path in paths if "measured_on" not in path)
    return json.dumps({"collectives": NCCL_TESTS, "models": sorted(model_names()), "keys": keys}, indent=0) + "\n"


def commands() -> dict[str, Any]:
    """Every command by its words joined with `-`: ``run``, ``topo-show``."""

    def walk(group: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, (*words, name))
            else:
                yield "-".join((*words, name)), command

    return dict(walk(typer.main.get_command(app), ()))


def command_block(name: str) -> str:
    """Usage, what the command does, and a table of its arguments and options."""
    command = commands()[name]
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.expose_value]
    usage = " ".join(["commsim", *name.split("-"), *(["[OPTIONS]"] if options else []), *map(_argument, arguments)])
    rows = [(f"`{_argument(p)}`", p) for p in arguments] + [(_names(p, hints[p.name]), p) for p in options]
    lines = [f"`{usage}`", "", str(command.help), ""]
    lines += ["| | meaning | default |", "|---|---|---|"] if rows else []
    lines += [f"| {_cell(names)} | {_cell(_marked(p.help))} | {_default(p)} |" for names, p in rows]
    return "\n".join(lines).rstrip()


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    if parameter.nargs == -1 and "..." not in name:
        name += "..."
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _names(option: Any, hint: Any) -> str:
    """``--plot / --no-plot``, ``--out PATH, -o PATH``."""
    if option.is_flag:
        on, off = (", ".join(f"`{name}`" for name in names) for names in (option.opts, option.secondary_opts))
        return f"{on} / {off}" if off else on
    value = option.metavar or next((text for kind, text in _VALUE_NAMES.items() if kind in _kinds(hint)), "TEXT")
    return ", ".join(f"`{name} {value}`" for name in option.opts)


def _kinds(hint: Any) -> set[Any]:
    return {hint}.union(*map(_kinds, typing.get_args(hint))) if typing.get_args(hint) else {hint}


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if parameter.param_type_name == "option" and parameter.is_flag:
        return (
            ""
            if value is None or not parameter.secondary_opts
            else f"`{(parameter.opts if value else parameter.secondary_opts)[0]}`"
        )
    return "" if value in (None, "") else f"`{getattr(value, 'value', value)}`"


def _marked(text: str | None) -> str:
    """Options in a sentence set as code; angle brackets are no HTML."""
    text = re.sub(r"(?<![`\w>-])(--?[a-z][a-z-]*)(?![`\w])", r"`\1`", text or "")
    return re.sub(r"(?<!`)([\w./]*<\w+>[\w.*/-]*)", r"`\1`", text)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


@cache
def models() -> dict[str, type[BaseModel]]:
    """Every block that a file may hold, by the name of its model."""
    found: dict[str, type[BaseModel]] = {}

    def walk(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ not in found:
            found[kind.__name__] = kind
            for field in kind.model_fields.values():
                walk(field.annotation)
        for part in (*typing.get_args(kind), *([kind.union] if isinstance(kind, OneOfTheKinds) else [])):
            walk(part)

    for root in (Scenario, PlanFile, ServingFile, TopologyFile, DoctorFile):
        walk(root)
    return found


def fields_block(name: str) -> str:
    """A table of the fields of a model; those of blocks inside it without a table of their own stand there, dotted."""
    schema = _sweep_keys() if name == "Sweep" else models()[name].model_json_schema(mode="validation")
    definitions = schema.get("$defs", {})
    lines = [f'<a id="{name.lower()}"></a>', "", "| field | value | default | meaning |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in _rows(schema, definitions, "")]
    return "\n".join(lines)


def _sweep_keys() -> dict[str, Any]:
    """The keys that a sweep file has beside those of a scenario."""
    own = {k: v for k, v in sweep_schema()["properties"].items() if k not in Scenario.model_fields}
    return {"properties": own}


def _rows(schema: Any, definitions: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for key, field in schema["properties"].items():
        inner, step = _inner(field)
        if inner and inner not in _placed():
            yield from _rows(definitions[inner], definitions, f"{prefix}{key}.{step}")
            continue
        default = "required" if key in schema.get("required", ()) else _shown(field.get("default"), _value(field))
        yield f"`{prefix}{key}`", _value(field), default, field.get("description", "")


def _inner(field: Any) -> tuple[str, str]:
    """The one block that a field holds, or a list of: its name, and ``N.`` for a list."""
    kinds = [k for k in field.get("anyOf", [field]) if k.get("type") != "null"]
    if len(kinds) == 1 and "$ref" in kinds[0]:
        return kinds[0]["$ref"].rpartition("/")[2], ""
    if len(kinds) == 1 and "$ref" in kinds[0].get("items", {}):
        return kinds[0]["items"]["$ref"].rpartition("/")[2], "N."
    return "", ""


@cache
def _placed() -> dict[str, str]:
    """The models that have a table of their own, and the page of each."""
    return {
        found[2]: page.name
        for page in sorted(PAGES.glob("*.md"))
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))
        if found[1] == "fields"
    }


def _shown(value: Any, kind: str) -> str:
    """A default as a file would have it."""
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        quantity = next((form for unit, form in _FORMS.items() if unit in kind), "{:g}".format)
        return f"`{quantity(value)}`"
    return f"`{value}`"


def _value(field: Any) -> str:
    """What a field takes, in words."""
    if "anyOf" in field:
        listed = [k["items"] for k in field["anyOf"] if "items" in k]
        if len(field["anyOf"]) > 1 and listed and listed[0] in field["anyOf"]:
            return f"{_value(listed[0])}; or a list"
        kinds = [_value(k) for k in field["anyOf"] if k.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{_SUFFIX.sub('', name).lower()}]({_placed()[name]}#{name.lower()})" if name in _placed() else "block"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{v}`" for v in field.get("enum", [field.get("const")]))
    if "examples" in field:
        return f"quantity, such as `{field['examples'][0]}`"
    kind = field.get("type")
    if kind == "array":
        items = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_value(items).replace('whole number', 'whole numbers')}" if _value(items) else "list"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"mapping to {_value(inner)}" if isinstance(inner, dict) and _value(inner) else "mapping"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true`, `false`"}
    return words.get(str(kind), "") + (_bounds(field) if kind in ("integer", "number") else "")


def _bounds(field: Any) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    above = field.get("exclusiveMinimum")
    texts = [f"from {low:g}"] if low is not None else [f"above {above:g}"] if above is not None else []
    texts += [f"to {high:,.0f}" if high >= 10 else f"to {high:g}"] if high is not None else []
    return " " + " ".join(texts) if texts else ""


def python_block(name: str) -> str:
    """A name of the API: its signature and docstring; of a class also its attributes, properties and methods."""
    thing = getattr(api, name)
    if not inspect.isclass(thing):
        return _described(f"commsim.{name}{_signature(thing)}", inspect.getdoc(thing) or "")
    lines = [_plain(inspect.getdoc(thing) or "")]
    if dataclasses.is_dataclass(thing):
        lines += ["", "Fields: " + ", ".join(f"`{f.name}: {f.type}`" for f in dataclasses.fields(thing)) + "."]
    lines += ["", "| | |", "|---|---|"]
    for member, value in vars(thing).items():
        if member.startswith("_") or not (isinstance(value, property) or inspect.isfunction(value)):
            continue
        text = inspect.getdoc(value.fget if isinstance(value, property) else value) or ""
        called = _signature(value, own=True) if inspect.isfunction(value) else ""
        lines.append(f"| `{member}{_cell(called)}` | {_cell(_plain(text.partition(chr(10) * 2)[0]))} |")
    return "\n".join(lines)


def _signature(thing: Any, own: bool = False) -> str:
    """Parameters as they are written; annotations are short texts."""
    signature = inspect.signature(thing)
    parameters = [p for i, p in enumerate(signature.parameters.values()) if not (own and i == 0)]
    return str(signature.replace(parameters=parameters)).replace("'", "")


def _described(head: str, text: str) -> str:
    prose: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        (lines if line.startswith((">>> ", "... ")) or lines else prose).append(line)
    parts = ["```python", head, "```", "", _plain("\n".join(prose).strip())]
    if lines:
        parts += ["", "```pycon", *lines, "```"]
    return "\n".join(parts)


def _plain(text: str) -> str:
    return text.replace("``", "`")


_KINDS = {"command": command_block, "fields": fields_block, "python": python_block}


def with_blocks(text: str) -> str:
    """A page with what stands between its markers anew."""

    def block(found: re.Match[str]) -> str:
        kind, name = found.groups()
        return f"<!-- begin: {kind} {name} -->\n{_KINDS[kind](name)}\n<!-- end: {kind} {name} -->"

    return _BLOCK.sub(block, text)


def with_places(text: str) -> str:
    """The page of commands with a place for each of them."""
    for name in commands():
        if f"<!-- begin: command {name} -->" not in text:
            marks = f"<!-- begin: command {name} -->\n<!-- end: command {name} -->"
            text = f"{text.rstrip()}\n\n## `commsim {name.replace('-', ' ')}`\n\n{marks}\n"
    return text


def pages() -> dict[Path, str]:
    """Every page of the reference as it should be."""
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))}
    texts[COMMANDS_PAGE] = with_places(texts[COMMANDS_PAGE])
    texts[PAGES / "traffic.md"] = traffic.page()
    return {page: with_blocks(text) for page, text in texts.items()}


def main() -> int:
    """Write the pages, and the names that shells complete."""
    write_atomically(NAMES, names())
    for page, text in pages().items():
        if text != page.read_text(encoding="utf-8"):
            write_atomically(page, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
