"""The JSON Schema of scenario files, by which editors complete and check them as they are written."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from commsim.scenario.schema import Scenario

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def scenario_schema() -> dict[str, Any]:
    """The schema of one scenario document, as JSON-ready values.

    It follows the pydantic models; what they check beyond a type (units, whether keys fit together) is not in it.
    YAML language servers know draft 7 and newer keywords in part, so fixed-length lists are written without
    ``prefixItems``, and titles that only repeat the key are left out.
    """
    schema = schema_of(Scenario, "commsim scenario")
    short = schema["$defs"]["Library"]
    names = short["properties"]["name"]
    schema["$defs"]["Library"] = {"anyOf": [{k: names[k] for k in ("enum", "type") if k in names}, short]}
    return schema


def sweep_schema() -> dict[str, Any]:
    """The schema of a sweep file: a scenario, or the name of one, with the keys of the sweep."""
    schema = scenario_schema()
    value: dict[str, Any] = {"description": "any value that the path may have"}
    combination = {"type": "object", "minProperties": 1, "additionalProperties": value}
    schema["title"] = "commsim sweep"
    schema["properties"] |= {
        "scenario": {"type": "string", "description": "the file of the scenario, if it is not written here"},
        "sweep": {
            "type": "object",
            "description": "values for each path, such as `topology.nodes: [1, 2, 4]` or `1..64 x2`; the last path "
            "varies fastest",
            "additionalProperties": {
                "anyOf": [{"type": "array", "minItems": 1, "uniqueItems": True}, {"type": "string"}]
            },
        },
        "include": {
            "type": "array",
            "description": "points beside the grid, each a mapping of paths to values",
            "items": combination,
        },
        "exclude": {
            "type": "array",
            "description": "points to leave out: those that match a whole entry; a list matches any of its values",
            "items": combination,
        },
        "replicates": {
            "type": "integer",
            "minimum": 1,
            "description": "so many points in place of each, with `variation.seed` 0, 1, ...",
        },
    }
    schema["anyOf"] = [{"required": ["scenario"]}, {"required": schema.pop("required")}]
    return schema


def schema_of(kind: type[BaseModel], title: str) -> dict[str, Any]:
    """The schema of a kind of file as editors read it."""
    return {"$schema": DIALECT, "title": title, **_plain(kind.model_json_schema(mode="validation"))}


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _plain(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if "prefixItems" in plain:
        kinds = plain.pop("prefixItems")
        plain["items"] = kinds[0] if all(kind == kinds[0] for kind in kinds) else {"anyOf": kinds}
    if isinstance(plain.get("description"), str):
        plain["description"] = " ".join(plain["description"].replace("``", "`").split())
    return plain
