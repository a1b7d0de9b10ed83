"""``commsim schema``: what editors need to complete scenario files."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer


class FileKind(StrEnum):
    """The kinds of files."""

    SCENARIO = "scenario"
    SWEEP = "sweep"
    PLAN = "plan"
    CLUSTER = "cluster"


def schema(kind: Annotated[FileKind, typer.Argument(help="Which kind of file.")] = FileKind.SCENARIO) -> None:
    """Print the JSON Schema of scenario, sweep, plan or cluster files, for editors that complete and check YAML."""
    import json

    from commsim.doctor.cluster_file import cluster_schema
    from commsim.planner.serving_question import plan_schema
    from commsim.scenario.json_schema import scenario_schema, sweep_schema

    makers: dict[FileKind, Callable[[], dict[str, Any]]] = {
        FileKind.SCENARIO: scenario_schema,
        FileKind.SWEEP: sweep_schema,
        FileKind.PLAN: plan_schema,
        FileKind.CLUSTER: cluster_schema,
    }
    made = makers[kind]()
    typer.echo(json.dumps(made, indent=1, ensure_ascii=False))
