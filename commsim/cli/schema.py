"""``commsim schema``: what editors need to complete scenario files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class FileKind(StrEnum):
    """The kinds of files."""

    SCENARIO = "scenario"
    SWEEP = "sweep"
    PLAN = "plan"


def schema(kind: Annotated[FileKind, typer.Argument(help="Which kind of file.")] = FileKind.SCENARIO) -> None:
    """Print the JSON Schema of scenario, sweep or plan files, for editors that complete and check YAML."""
    import json

    from commsim.planner.serving_question import plan_schema
    from commsim.scenario.json_schema import scenario_schema, sweep_schema

    made = {FileKind.SCENARIO: scenario_schema, FileKind.SWEEP: sweep_schema, FileKind.PLAN: plan_schema}[kind]()
    typer.echo(json.dumps(made, indent=1, ensure_ascii=False))
