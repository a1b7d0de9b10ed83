"""Every parameter of the time model has a source: a row of validation/parameters.csv."""

from __future__ import annotations

import csv
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from pydantic import BaseModel

from commsim.nccl.parameters import GENERATIONS, NETWORKS, Parameters, load_parameters


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def paths(model: BaseModel) -> set[str]:
    """The dotted names of all numbers of a model, but for limits in bytes."""
    names = set()
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            names |= {f"{name}.{inner}" for inner in paths(value)}
        elif isinstance(value, float):
            names.add(name)
    return names


def parameters(scope: str) -> set[str]:
    if scope in NETWORKS:
        return paths(load_parameters("hopper", scope).network)
    loaded: Parameters = load_parameters(scope)
    return {name for name in paths(loaded) if not name.startswith("network.")}


def applies(row: dict[str, str], scope: str) -> bool:
    return scope in row["scope"].split() or (row["scope"] == "generations" and scope in GENERATIONS)


def covers(row: dict[str, str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in row["parameter"].split())


@pytest.mark.parametrize("scope", [*GENERATIONS, *NETWORKS])
def test_every_parameter_has_a_source(scope: str, checkout: Path) -> None:
    table = [row for row in rows(checkout / "validation" / "parameters.csv") if applies(row, scope)]
    assert not {name for name in parameters(scope) if not any(covers(row, name) for row in table)}


def test_every_source_is_of_a_parameter(checkout: Path) -> None:
    for row in rows(checkout / "validation" / "parameters.csv"):
        scopes = [scope for scope in (*GENERATIONS, *NETWORKS) if applies(row, scope)]
        known = {name for scope in scopes for name in parameters(scope)}
        assert row["source"]
        for pattern in row["parameter"].split():
            assert any(fnmatchcase(name, pattern) for name in known), row
