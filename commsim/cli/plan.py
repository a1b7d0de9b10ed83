"""``commsim plan``: the best configuration of a training step on one of several machines, and why it is that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from commsim.planner.plan import PlanAnswer


def plan(
    file: Annotated[str, typer.Argument(help="A plan file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes as key.path=value, such as plan.best=5.", metavar="[KEY=VALUE]..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the files (default: out/<name>).", show_default=False)
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate/--no-simulate", help="Simulate the best ones, or take the closed form's word.")
    ] = True,
    html: Annotated[bool, typer.Option("--html/--no-html", help="Write report.html, one file to mail.")] = False,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Whether to write files at all.")] = True,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
    ] = False,
) -> None:
    """Search every way to cut a model over a machine, simulate the best, and say what binds them."""
    from commsim.cli.find import find_scenario
    from commsim.planner.plan import PlanAnswer, machines, neighbours, rank, ranked_choices, sensitivity, shortlist
    from commsim.planner.plan import simulate as simulate_best
    from commsim.planner.question import read_plan
    from commsim.report.plan_tables import counted, headline, reasons, table

    path = find_scenario(file)
    question, document = read_plan(path, overrides or [])
    spec = question.plan
    found = machines(spec, document, path.parent)
    answer = PlanAnswer()
    interrupted = False
    begun = time.process_time()
    ranked_in = 0.0
    with _PlanBar(json_output) as bar:
        try:
            rank(spec, found, answer, bar.say)
            ranked_in = time.process_time() - begun
            chosen = shortlist(spec, found, answer)
            if simulate:
                simulate_best(spec, chosen, path.parent, answer, bar.say)
            else:
                ranked_choices(spec, chosen, answer)
        except KeyboardInterrupt:
            interrupted = True
            if not answer.choices:
                for ranking in answer.rankings.values():
                    ranking.best.sort(key=lambda r: r.seconds_per_token)
                seen = [m for m in found if m.title in answer.rankings]
                ranked_choices(spec, shortlist(spec, seen, answer), answer)
    ranked_in = ranked_in or time.process_time() - begun
    best = answer.best
    around, changes = neighbours(spec, best), sensitivity(best)
    folder = (out or Path("out") / _slug(question.name)) if files else None
    written = _write(answer, question.name, spec, folder, ranked_in, around, changes, html) if folder else []
    if json_output:
        typer.echo(_json(answer, question.name, ranked_in, around, changes))
    else:
        for line in headline(best):
            typer.echo(line)
        typer.echo("")
        typer.echo(table(answer), nl=False)
        typer.echo("* no other is quicker, leaner, smaller and cheaper\n")
        for line in (*reasons(around, changes), "", *counted(answer, ranked_in)):
            typer.echo(line)
        if written:
            typer.echo(f"# wrote {', '.join(p.name for p in written)} in {folder}")
    if interrupted:
        typer.echo("commsim: interrupted; this is the best so far", err=True)
        raise typer.Exit(130)


def _slug(name: str) -> str:
    import re

    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "plan"


def _json(answer: PlanAnswer, name: str, seconds: float, around: Any, changes: Any) -> str:
    import json

    from commsim.report.plan_tables import headline, rows

    return json.dumps(
        {
            "schema_version": 1,
            "name": name,
            "complete": answer.complete,
            "answer": headline(answer.best),
            "ranking_seconds": round(seconds, 3),
            "counts": {title: dict(ranking.counts) for title, ranking in answer.rankings.items()},
            "choices": rows(answer),
            "neighbours": [vars(n) for n in around],
            "sensitivity": [vars(s) for s in changes],
        },
        indent=2,
        allow_nan=False,
    )


def _write(
    answer: PlanAnswer, name: str, spec: Any, folder: Path, seconds: float, around: Any, changes: Any, html: bool
) -> list[Path]:
    """Writes plan.json, the winner's scenario and the picture; returns the paths."""
    import os

    from commsim.files import write_atomically
    from commsim.planner.plan import scenario_of
    from commsim.report.plan_tables import plot_choices, rows
    from commsim.report.plots import figure_bytes
    from commsim.scenario.load import plain_yaml

    best = answer.best
    data = scenario_of(best, spec, name)
    if "path" in data["topology"]:
        data["topology"]["path"] = os.path.relpath(data["topology"]["path"], folder)
    scenario = plain_yaml(data)
    figure = plot_choices(rows(answer), name)
    written = [
        write_atomically(folder / "plan.json", _json(answer, name, seconds, around, changes) + "\n"),
        write_atomically(
            folder / "best.yaml", f"# The best configuration of {name}: commsim run simulates it\n{scenario}"
        ),
        *(write_atomically(folder / f"choices.{form}", figure_bytes(figure, form)) for form in ("png", "svg")),
    ]
    if html:
        from commsim.report.page import html as page_text
        from commsim.report.plan_page import plan_page

        page = plan_page(answer, name, scenario, seconds, around, changes)
        written.append(write_atomically(folder / "report.html", page_text(page)))
    return written


class _PlanBar:
    """Progress on stderr, only on a terminal."""

    def __init__(self, quiet: bool) -> None:
        import sys

        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> _PlanBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, what: str, done: int, of: int) -> None:
        """So much of it is done."""
        if self._bar is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bar.add_task(what, total=of)
            self._bar.update(self._tasks[what], completed=done)
