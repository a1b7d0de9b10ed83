"""``commsim validate``: the model against whole folders of measured curves."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from commsim.cli.commands import group

app = group("Score the model against folders of measured curves.")

JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON; - for stdout.")]
Check = Annotated[bool, typer.Option("--check", help="Exit 1 where a median is worse than recorded.")]


@app.callback()
def _root() -> None:
    """Score the model against folders of measured curves."""


@app.command("collectives")
def collectives(
    more: Annotated[list[Path] | None, typer.Argument(metavar="DIR", help="Further folders, as after --data.")] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Folders of INDEX_*.csv and <slug>.csv (default: the project's)."),
    ] = None,
    cases: Annotated[list[Path] | None, typer.Option(help="Case files beside the project's.")] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="zero-shot (default), two, few, transfer, shapes, calibrated, forced, all; may be repeated."),
    ] = None,
    json_path: JsonPath = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write docs/accuracy.md, its pictures, the medians.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the outcome as one HTML file to mail: errors of every log, pictures.")
    ] = None,
    check: Check = False,
    only: Annotated[str | None, typer.Option(help="Score logs of these slugs only: shell patterns, commas.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes at work.")] = 2,
) -> None:
    """Predict every log of the folders and say how far off the predictions are."""
    study = _study()
    folders = [*(sources or ()), *(more or ())]
    names = only.split(",") if only is not None else None
    output = study.Output(json_path, html, report, check)
    study.collectives(folders, cases or [], mode or ["zero-shot"], names, workers, output)


@app.command("terms")
def terms(
    more: Annotated[list[Path] | None, typer.Argument(metavar="DIR", help="Further folders, as after --data.")] = None,
    sources: Annotated[
        list[Path] | None, typer.Option("--data", help="Folders of logs (default: all three of the project's).")
    ] = None,
    json_path: JsonPath = None,
    report: Annotated[bool, typer.Option("--report", help="Write docs/accuracy-terms.md and the record.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the outcome as one HTML file to mail.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 where a term does harm to machines it was not read off.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Use logs of these slugs only: shell patterns, commas.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes at work.")] = 2,
) -> None:
    """Switch every term of the model off, one at a time, and say by how much the errors grow."""
    study = _study()
    names = only.split(",") if only is not None else None
    study.terms([*(sources or ()), *(more or ())], names, workers, study.Output(json_path, html, report, check))


@app.command("degraded")
def degraded(
    pairs: Annotated[
        Path | None, typer.Option(help="CSV of pairs, healthy and degraded (default: the project's).")
    ] = None,
    json_path: JsonPath = None,
    report: Annotated[bool, typer.Option("--report", help="Write docs/accuracy-degraded.md.")] = False,
) -> None:
    """Predict what known faults cost on machines that were measured with and without them."""
    study = _study()
    study.degraded(pairs, study.Output(json_path, None, report, check=False))


@app.command("kernels")
def kernels(
    data: Annotated[
        Path | None, typer.Option(help="CSV of all-reduces of serving frameworks (default: the project's).")
    ] = None,
    json_path: JsonPath = None,
    report: Annotated[bool, typer.Option("--report", help="Write docs/accuracy-kernels.md.")] = False,
) -> None:
    """Predict measured all-reduces of vLLM, SGLang and TensorRT-LLM, and say how far off the predictions are."""
    study = _study()
    study.kernels(data, study.Output(json_path, None, report, check=False))


@app.command("generation")
def generation(
    runs: Annotated[
        Path | None, typer.Option(help="CSV of runs of serving frameworks (default: the project's).")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="leave-model (without the row's architecture) or leave-gpu (without its GPU).")
    ] = "leave-model",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes at work.")] = 2,
    json_path: JsonPath = None,
    report: Annotated[bool, typer.Option("--report", help="Write docs/accuracy-generation.md.")] = False,
) -> None:
    """Predict measured runs of vLLM, SGLang and TensorRT-LLM, and say how far off the predictions are."""
    study = _study()
    study.generation(runs, mode, workers, study.Output(json_path, None, report, check=False))


@app.command("training")
def training(
    steps: Annotated[Path | None, typer.Option(help="CSV of training steps (default: the project's).")] = None,
    memory: Annotated[Path | None, typer.Option(help="CSV of memory figures; scores those of the steps, too.")] = None,
    mode: Annotated[
        str, typer.Option(help="loso (without the row's source) or one-row (with one row of it).")
    ] = "loso",
    engine: Annotated[
        str, typer.Option(help="simulation, as commsim run answers (some minutes), or closed_form, as plans rank.")
    ] = "simulation",
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
    json_path: JsonPath = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write docs/accuracy-training.md, its pictures, the record; with ablation.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the outcome as one HTML file to mail: errors of every row, pictures.")
    ] = None,
    check: Check = False,
) -> None:
    """Predict published training steps and say how far off the predictions are."""
    study = _study()
    study.training(steps, memory, mode, engine, workers, study.Output(json_path, html, report, check))


def _study() -> Any:
    """The commands of ``validation/study``: of the checkout that commsim runs from, else of the current folder's."""
    from commsim.errors import ScenarioError
    from commsim.files import data_root

    for checkout in (data_root(), Path.cwd(), *Path.cwd().parents):
        if (checkout / "validation" / "study" / "command.py").is_file():
            if str(checkout / "validation") not in sys.path:
                sys.path.insert(0, str(checkout / "validation"))
            return importlib.import_module("study.command")
    raise ScenarioError(
        "validate needs a checkout of commsim, whose validation/study it runs: found none around the package nor "
        "around the current folder; run it in a clone of the repository"
    )
