"""``commsim tune``: a configuration for NCCL's example tuner plugin, or thresholds of all-reduce kernels."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from commsim.cli.options import Json, changes
from commsim.cli.say import aside, print_json, say
from commsim.errors import ScenarioError
from commsim.files import write_atomically
from commsim.scenario.load import find_scenario


def tune(
    scenario: Annotated[str, typer.Argument(help="A scenario file, or the name of a shipped one, with library nccl.")],
    overrides: Annotated[list[str] | None, changes("Changes as key.path=value.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write (default: nccl_tuner.conf, or kernels.json).")
    ] = None,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels", help="Instead: from which size which all-reduce kernel of serving frameworks, as JSON."
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="With --kernels: also draw the quickest by size and number of GPUs (.png, .svg)."),
    ] = None,
    unmeasured: Annotated[
        bool,
        typer.Option(
            "--unmeasured",
            help="Also rules for collectives that were not measured on these ranks, by the error of others.",
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Write NCCL tuner rules for a topology; refuse (status 1) where no gain is larger than predictions err."""
    from commsim.planner.tune import measure_first
    from commsim.planner.tune import tune as rules_of
    from commsim.report.tuner_config import BUILD, tuner_config, tuning_table
    from commsim.scenario.load import load_scenarios
    from commsim.scenario.setting import build_topology

    path = find_scenario(scenario)
    if kernels:
        _kernels(path, overrides or [], out or Path("kernels.json"), plot, json_output)
        return
    if plot is not None:
        raise ScenarioError("--plot: found without --kernels, expected it with them")
    out = out or Path("nccl_tuner.conf")
    scenarios = load_scenarios(path, overrides or [])
    if len(scenarios) != 1:
        raise ScenarioError(f"{path}: found {len(scenarios)} scenarios, expected one to tune")
    tuning = rules_of(scenarios[0], build_topology(scenarios[0]), unmeasured=unmeasured)
    write_atomically(out, tuner_config(tuning))
    if json_output:
        rules = [dataclasses.asdict(rule) for rule in tuning.rules]
        first, build = {"measure_first": measure_first(tuning)}, {"build_plugin": list(BUILD)}
        print_json({"rules": rules, "refused": len(tuning.refused), "band": tuning.band} | first | build)
        return
    typer.echo(tuning_table(tuning), nl=False)
    aside(f"# wrote {out}; run with NCCL_TUNER_PLUGIN and NCCL_TUNER_CONFIG_FILE={out}")


def _kernels(path: Path, overrides: list[str], out: Path, plot: Path | None, json_output: bool) -> None:
    from commsim.cli.pictures import form_of, write_picture
    from commsim.planner.kernels import kernel_tuning, tuning_document
    from commsim.report.kernel_tables import kernel_map, kernel_tables
    from commsim.scenario.load import load_scenarios

    if plot is not None:
        form_of(plot)
    scenarios = load_scenarios(path, overrides)
    if len(scenarios) != 1:
        raise ScenarioError(f"{path}: found {len(scenarios)} scenarios, expected one to tune")
    tuning = kernel_tuning(scenarios[0])
    document = tuning_document(tuning)
    write_atomically(out, json.dumps(document, indent=1) + "\n")
    if plot is not None:
        write_picture(plot, kernel_map(tuning))
    if json_output:
        print_json(document)
        for text in document["notes"]:
            say(f"warning: {text}", err=True)
        return
    typer.echo(kernel_tables(tuning), nl=False)
    aside(f"# wrote {out}{f' and {plot}' if plot is not None else ''}")
