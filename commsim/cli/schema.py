"""``commsim schema``: what editors need to complete scenario files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    """The kinds of files."""

    SCENARIO = "scenario"
    SWEEP = "sweep"


def schema(
    kind: Annotated[Kind, typer.Argument(help="Which kind of file.")] = Kind.SCENARIO,
) -> None:
    """Print the JSON Schema of scenario or sweep files, for editors that complete and check YAML."""
    import json

    from commsim.scenario.json_schema import scenario_schema, sweep_schema

    made = scenario_schema() if kind is Kind.SCENARIO else sweep_schema()
    typer.echo(json.dumps(made, indent=1, ensure_ascii=False))
