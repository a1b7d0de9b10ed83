"""``commsim schema``: what editors need to complete scenario files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    """The kinds of files."""

    SCENARIO = "scenario"
    SWEEP = "sweep"
    PLAN = "plan"


def schema(
    kind: Annotated[Kind, typer.Argument(help="Which kind of file.")] = Kind.SCENARIO,
) -> None:
    """Print the JSON Schema of scenario, sweep or plan files, for editors that complete and check YAML."""
    import json

    from commsim.planner.question import plan_schema
    from commsim.scenario.json_schema import scenario_schema, sweep_schema

    made = {Kind.SCENARIO: scenario_schema, Kind.SWEEP: sweep_schema, Kind.PLAN: plan_schema}[kind]()
    typer.echo(json.dumps(made, indent=1, ensure_ascii=False))
