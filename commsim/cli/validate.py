"""``commsim validate``: the model against whole folders of measured curves."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from commsim.cli.commands import group
from commsim.cli.say import say

app = group("Score the model against folders of measured curves.")

R = TypeVar("R")


@app.callback()
def _root() -> None:
    """Score the model against folders of measured curves."""


@app.command("collectives")
def collectives(
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Further folders, as after --data.", show_default=False),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", help="Folders of INDEX_*.csv and <slug>.csv (default: the project's).", show_default=False
        ),
    ] = None,
    cases: Annotated[
        list[Path] | None, typer.Option("--cases", help="Case files beside the project's.", show_default=False)
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="zero-shot (default), few, transfer, calibrated, all; may be repeated.", show_default=False),
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the figures as JSON; - for stdout.", show_default=False)
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write docs/accuracy.md, its pictures, the medians.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Write the outcome as one HTML file to mail: errors of every log, pictures.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 where a median is worse than recorded.")] = False,
    only: Annotated[str | None, typer.Option(help="Score logs of these slugs only: shell patterns, commas.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes at work.")] = 2,
) -> None:
    """Predict every log of the folders and say how far off the predictions are."""
    import json

    from commsim.accuracy.modes import MODES
    from commsim.accuracy.record import compare_medians, document, recorded
    from commsim.accuracy.validate import find_reasons, prepare, score, training_folder
    from commsim.accuracy.workers import Workers
    from commsim.errors import ScenarioError
    from commsim.files import check_writable, write_atomically
    from commsim.report.accuracy import summary, write_report

    for wanted in (json_path, html):
        if wanted is not None and str(wanted) != "-":
            check_writable(wanted)
    if only is not None and not only.strip(", "):
        raise ScenarioError(f"--only: found {only!r}, expected patterns of slugs, such as 'alps_*,gj_*'")
    asked = mode or ["zero-shot"]
    for name in asked:
        if name not in (*MODES, "all"):
            raise ScenarioError(f"--mode: found {name!r}, expected one of {', '.join(MODES)} or all")
    modes = MODES if "all" in asked or report else tuple(m for m in MODES if m in asked)
    folders = [*(data or ()), *(more or ())] or [training_folder()]
    with Workers(workers, _progress) as at_work:
        validation = prepare(at_work, folders, cases or (), only.split(",") if only is not None else None)
        for name in modes:
            score(validation, name, at_work)
        if not check:
            find_reasons(validation, modes[0], at_work)
    found = document(validation, asked[0])
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if json_path is not None and str(json_path) != "-":
        write_atomically(json_path, text)
    written = []
    if html is not None:
        from commsim.report.page import html as page_text
        from commsim.report.validation_page import collectives_page

        written.append(write_atomically(html, page_text(collectives_page(validation, found))))
    if report:
        written += write_report(validation, found)
    for path in written:
        say(f"# wrote {path}", err=True)
    say(text if str(json_path) == "-" else summary(found), nl=False)
    if check:
        worse = compare_medians(recorded(), found)
        for line in worse:
            say(f"worse than recorded: {line}", err=True)
        if worse:
            raise typer.Exit(1)


@app.command("training")
def training(
    steps: Annotated[
        Path | None,
        typer.Option("--steps", help="CSV of training steps (default: the project's).", show_default=False),
    ] = None,
    memory: Annotated[
        Path | None,
        typer.Option("--memory", help="CSV of memory figures; scores those of the steps, too.", show_default=False),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="loso (without the row's source) or one-row (with one row of it).")
    ] = "loso",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the figures as JSON; - for stdout.", show_default=False)
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write docs/accuracy-training.md, its pictures, the record; with ablation.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Write the outcome as one HTML file to mail: errors of every row, pictures.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 where a median is worse than recorded.")] = False,
) -> None:
    """Predict published training steps and say how far off the predictions are."""
    import json

    from commsim.accuracy.training import MODES, document, training_steps, validate_training
    from commsim.accuracy.training_memory import memory_document, memory_of_steps, read_memory
    from commsim.accuracy.training_record import compare_sources, recorded
    from commsim.errors import ScenarioError
    from commsim.files import write_atomically
    from commsim.report.training_accuracy import summary, write_report

    if mode not in MODES:
        raise ScenarioError(f"--mode: found {mode!r}, expected one of {', '.join(MODES)}")
    if report and steps is not None:
        raise ScenarioError("--report: the page is about the project's rows; leave --steps out")
    figures_of_memory = read_memory(memory) if memory is not None else []
    validation = validate_training(steps or training_steps(), mode)
    found = document(validation)
    if memory is not None:
        found["memory"] = memory_document([*figures_of_memory, *memory_of_steps(validation.rows)])
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if json_path is not None and str(json_path) != "-":
        write_atomically(json_path, text)
    written = []
    if html is not None:
        from commsim.report.page import html as page_text
        from commsim.report.validation_page import training_page

        written.append(write_atomically(html, page_text(training_page(validation, found))))
    if report:
        written += write_report(validation, _progress)
    for path in written:
        say(f"# wrote {path}", err=True)
    say(text if str(json_path) == "-" else summary(validation, found), nl=False)
    if check:
        worse = compare_sources(recorded()["modes"][mode], found["per_source"])
        for line in worse:
            say(f"worse than recorded: {line}", err=True)
        if worse:
            raise typer.Exit(1)


def _progress(items: Iterable[R], label: str, total: int) -> Iterable[R]:
    if not sys.stderr.isatty():
        return items
    return _bar(items, label, total)


def _bar(items: Iterable[R], label: str, total: int) -> Iterator[R]:
    from rich.console import Console
    from rich.progress import track

    yield from track(items, f"{label:12s}", total=total, console=Console(stderr=True), transient=True)
