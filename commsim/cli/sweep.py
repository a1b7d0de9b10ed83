"""``commsim sweep`` and ``commsim merge``: many scenarios from one file, on processes, a cluster, or in shards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commsim.planner.workers import PointAnswer

_SAY_EVERY_S = 30.0
_MOST_SAID = 8
_MOST_ANSWERED = 20_000  # points: the rows of more are for other tools


def sweep(
    file: Annotated[str, typer.Argument(help="A sweep file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes of its scenario as key.path=value.", metavar="[KEY=VALUE]..."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the journal and the rows (default: out/<name>).", show_default=False
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-j", min=1, help="Local processes (default: the cores one may use).")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="A dask scheduler instead, such as tcp://host:8786.", show_default=False),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", help="Only part I of N (from 0), such as 2/8; then commsim merge.", show_default=False),
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write rows.parquet beside rows.csv.")] = False,
    html: Annotated[
        bool, typer.Option("--html/--no-html", help="Write report.html: curves along every path, knees, rows.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, whatever the journal holds.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count and list the points, run none.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
    ] = False,
) -> None:
    """Run a scenario over grids of values; interrupt it and run it again, and it goes on where it was."""
    from commsim.cli.find import find_scenario
    from commsim.errors import CommsimError
    from commsim.planner.journal import Journal
    from commsim.planner.sweep import read_sweep
    from commsim.planner.workers import run_cluster, run_local

    if cluster is not None and workers is not None:
        raise CommsimError("found --cluster and --workers, expected one of them")
    part, parts = _shard(shard)
    path = find_scenario(file)
    plan = read_sweep(path, overrides or [])
    points = list(plan.points())
    mine = [p for p in points if p.number % parts == part]
    if dry_run:
        _list(points, plan.paths, json_output)
        return
    folder = out or Path("out") / _slug(plan.name)
    name = "journal.jsonl" if parts == 1 else f"journal-{part}-of-{parts}.jsonl"
    with Journal(folder / name, plan.identity, len(points), restart, plan.name) as journal:
        ahead = [p for p in mine if p.number not in journal.done]
        found = len(mine) - len(ahead)
        answers: Iterator[list[PointAnswer]] = iter(())
        if ahead:
            answers = run_cluster(plan, ahead, cluster) if cluster else run_local(plan, ahead, workers or _cores())
        begun = time.monotonic()
        with _Bar(len(mine), found, json_output) as bar:
            try:
                for some in answers:
                    journal.append(some)
                    bar.advance(len(some))
            except KeyboardInterrupt:
                typer.echo(
                    f"commsim: {len(journal.done):,} of {len(mine):,} points are in {journal.path}; "
                    "run the same command to go on",
                    err=True,
                )
                raise
        seconds = time.monotonic() - begun
    summary: dict[str, Any] = {
        "points": len(points),
        "in_this_shard": len(mine),
        "found_in_journal": found,
        "computed": len(ahead),
        "seconds": round(seconds, 3),
    }
    if parts == 1:
        summary |= _finish([folder / name], folder, parquet, (plan.name, path) if html else None)
    _say(summary, folder / name, json_output)
    if summary.get("failed") == len(points):
        raise typer.Exit(1)


def merge(
    folder: Annotated[Path, typer.Argument(help="The folder with the journals of all shards.")],
    parquet: Annotated[bool, typer.Option("--parquet", help="Write rows.parquet beside rows.csv.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
    ] = False,
) -> None:
    """Put the shards of a sweep together: the same rows as from a single run."""
    from commsim.errors import CommsimError

    journals = sorted(folder.glob("journal*.jsonl"))
    if not journals:
        raise CommsimError(f"{folder}: found no journal*.jsonl, expected those that commsim sweep --shard writes")
    summary = _finish(journals, folder, parquet)
    _say(summary, folder, json_output)
    if summary["failed"] == summary["points"]:
        raise typer.Exit(1)


def _finish(journals: list[Path], folder: Path, parquet: bool, page: tuple[str, Path] | None = None) -> dict[str, Any]:
    """Writes the sorted rows, and the page of a sweep (name, file); what was written and how many points failed."""
    from commsim.files import write_atomically
    from commsim.planner.results import as_csv, as_parquet, merged

    _, points = merged(journals)
    written = [write_atomically(folder / "rows.csv", as_csv(points))]
    if parquet:
        written.append(write_atomically(folder / "rows.parquet", as_parquet(points)))
    if page is not None:
        from commsim.report.page import html
        from commsim.report.sweep_page import sweep_page

        name, file = page
        text = html(sweep_page(points, name, file.read_text(encoding="utf-8")))
        written.append(write_atomically(folder / "report.html", text))
    failed = [p for p in points if p["error"]]
    answers = []
    if len(failed) < len(points) and len(points) <= _MOST_ANSWERED:
        from commsim.report.fabric_answer import enough_lines
        from commsim.report.sweep_plot import figure_of

        answers = enough_lines(points, figure_of(points))
    return {
        "points": len(points),
        "rows": sum(len(p["rows"]) for p in points),
        "failed": len(failed),
        "answers": answers,
        "first_error": failed[0]["error"] if failed else None,
        "files": [str(p) for p in written],
    }


def _say(summary: dict[str, Any], place: Path, json_output: bool) -> None:
    if json_output:
        import json

        typer.echo(json.dumps(summary, indent=2))
        return
    if "computed" in summary:
        rate = f" ({summary['computed'] / summary['seconds']:,.0f}/s)" if summary["seconds"] else ""
        typer.echo(
            f"# {summary['points']:,} points: {summary['computed']:,} computed in {summary['seconds']:.1f} s{rate}, "
            f"{summary['found_in_journal']:,} found in {place}"
        )
    if "files" in summary:
        failed = f", {summary['failed']:,} points failed" if summary["failed"] else ""
        typer.echo(f"# {summary['rows']:,} rows{failed}: {', '.join(summary['files'])}")
        for line in summary["answers"][:_MOST_SAID]:
            typer.echo(f"# {line}")
        if (more := len(summary["answers"]) - _MOST_SAID) > 0:
            typer.echo(f"# and {more:,} more such lines, one per combination of the other values: --json has all")
        if summary["first_error"]:
            typer.echo(f"# first error: {summary['first_error']}")


def _list(points: list[Any], paths: list[str], json_output: bool) -> None:
    if json_output:
        import json

        typer.echo(json.dumps({"points": len(points), "paths": paths}))
        return
    typer.echo(f"# {len(points):,} points over {', '.join(paths)}")
    for point in points[:20]:
        typer.echo(f"{point.number}\t" + "\t".join(f"{name}={value}" for name, value in point.values.items()))
    if len(points) > 20:
        typer.echo(f"... and {len(points) - 20:,} more")


def _shard(text: str | None) -> tuple[int, int]:
    from commsim.errors import CommsimError

    if text is None:
        return 0, 1
    part, slash, parts = text.partition("/")
    good = slash and part.isascii() and part.isdigit() and parts.isascii() and parts.isdigit()
    if not good or not int(part) < int(parts) <= 100_000:
        raise CommsimError(f"found --shard {text!r}, expected I/N with 0 <= I < N, such as 2/8")
    return int(part), int(parts)


def _slug(name: str) -> str:
    import re

    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "sweep"


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Bar:
    """Progress on stderr with rate and time left: a bar on a terminal, else a line now and then."""

    def __init__(self, total: int, done: int, quiet: bool) -> None:
        import sys

        self._total, self._done, self._quiet = total, done, quiet
        self._begun = self._said = time.monotonic()
        self._computed = 0
        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, completed=done, rate="")

    def __enter__(self) -> _Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """So many points more are done."""
        self._done += count
        self._computed += count
        now = time.monotonic()
        rate = self._computed / max(now - self._begun, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rate=f"{rate:,.0f} points/s")
        elif not self._quiet and now - self._said >= _SAY_EVERY_S:
            self._said = now
            left = (self._total - self._done) / rate
            say(f"{self._done:,} of {self._total:,} points, {rate:,.0f}/s, {left:,.0f} s left", err=True)
