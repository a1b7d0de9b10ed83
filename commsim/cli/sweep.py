"""``commsim sweep`` and ``commsim merge``: many scenarios from one file, on processes, a cluster, or in shards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.options import AskedOptions, Memory, OnlyJson, changes, complete_subjects, spread
from commsim.cli.say import print_json, say, terminal_bar
from commsim.errors import CommsimError
from commsim.files import slug, write_atomically
from commsim.processes import usable_cores
from commsim.scenario.load import find_scenario

if TYPE_CHECKING:
    from commsim.planner.sweep import Sweep
    from commsim.planner.workers import PointAnswer

_SAY_EVERY_S = 30.0
_MOST_SAID = 8
_MOST_ANSWERED = 20_000  # points: the rows of more are for other tools


@spread
def sweep(
    file: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_subjects,
            help="A sweep file or a scenario, or the name of a shipped one; with --on a collective or a model.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        changes(
            "Changes of its scenario as key.path=value; of a range, a path of the sweep: topology.nodes='1..64 x2'."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the journal and the rows (default: out/<name>).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-j", min=1, help="Local processes (default: the cores one may use).")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="A dask scheduler instead, such as tcp://host:8786.")] = None,
    shard: Annotated[
        str | None, typer.Option(help="Only part I of N (from 0), such as 2/8; then commsim merge.")
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write rows.parquet beside rows.csv.")] = False,
    html: Annotated[bool, typer.Option(help="Write report.html: curves along every path, knees, rows.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, whatever the journal holds.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count and list the points, run none.")] = False,
    memory: Memory = None,
    json_output: OnlyJson = False,
    *,
    question: AskedOptions,
) -> None:
    """Run a scenario over grids of values; interrupt it and run it again, and it goes on where it was."""
    from commsim.planner.journal import Journal
    from commsim.planner.sweep import read_sweep
    from commsim.planner.workers import run_cluster, run_local

    del memory  # the processes share it
    if cluster is not None and workers is not None:
        raise CommsimError("found --cluster and --workers, expected one of them")
    part, parts = _shard(shard)
    if question.given:
        plan = _asked(file, overrides or [], question)
    else:
        plan = read_sweep(find_scenario(file, "sweep"), overrides or [])
    points = list(plan.points())
    mine = [p for p in points if p.number % parts == part]
    if dry_run:
        _list(points, plan.paths, json_output)
        return
    _say_known(plan, json_output)
    if plan.assumed and not json_output:
        from commsim.report.tables import comment

        typer.echo("\n".join(comment(f"taken where nothing is said: {plan.assumed}")))
    folder = out or Path("out") / slug(plan.name, "sweep")
    name = "journal.jsonl" if parts == 1 else f"journal-{part}-of-{parts}.jsonl"
    with Journal(folder / name, plan.identity, len(points), restart, plan.name) as journal:
        ahead = [p for p in mine if p.number not in journal.done]
        kept = len(mine) - len(ahead)
        answers: Iterator[list[PointAnswer]] = iter(())
        if ahead:
            answers = (
                run_cluster(plan, ahead, cluster) if cluster else run_local(plan, ahead, workers or usable_cores())
            )
        begun = time.monotonic()
        with _counting(len(mine), kept, json_output) as advance:
            try:
                for some in answers:
                    journal.append(some)
                    advance(len(some))
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
        "found_in_journal": kept,
        "computed": len(ahead),
        "seconds": round(seconds, 3),
    }
    if parts == 1:
        page = None
        if html:
            page = plan.text if question.given else find_scenario(file).read_text(encoding="utf-8")
        summary |= _finish([folder / name], folder, parquet, plan, page, overrides or ())
    _say(summary, folder / name, json_output)
    if summary.get("failed") == len(points):
        raise typer.Exit(2)  # as where `run` refuses the one point that it has


def _asked(subject: str, overrides: list[str], options: AskedOptions) -> Sweep:
    """The sweep of a question in one line."""
    from commsim.cli.asked import asked_question
    from commsim.planner.sweep import asked_sweep
    from commsim.scenario.asked import without_effect

    question = asked_question(subject, overrides, options)
    for line in without_effect(question):
        say(f"warning: {line}", err=True)
    return asked_sweep(question)


def _say_known(plan: Sweep, json_output: bool) -> None:
    """What is assumed, or taken as known of the machine, and the doubts about it; wrong numbers end the sweep."""
    from commsim.nccl.job_notes import NO_VERSION
    from commsim.scenario.load import check_document

    scenario, _ = check_document(plan.base, plan.base_dir)
    if scenario is None:
        return
    library = scenario.library
    if (
        library.name == "nccl"
        and library.named_version is None
        and not {"library", "library.version"} & set(plan.paths)
    ):
        say(f"warning: {NO_VERSION}", err=True)
    if not library.measured:
        return
    from commsim.scenario.fit import known_of

    known = known_of(scenario)
    if not json_output:
        typer.echo(f"# {known.words()}")
    for text in known.missed():
        say(f"warning: {text}", err=True)


def merge(
    folder: Annotated[Path, typer.Argument(help="The folder with the journals of all shards.")],
    parquet: Annotated[bool, typer.Option("--parquet", help="Write rows.parquet beside rows.csv.")] = False,
    json_output: OnlyJson = False,
) -> None:
    """Put the shards of a sweep together: the same rows as from a single run."""
    journals = sorted(folder.glob("journal*.jsonl"))
    if not journals:
        raise CommsimError(f"{folder}: found no journal*.jsonl, expected those that commsim sweep --shard writes")
    summary = _finish(journals, folder, parquet)
    _say(summary, folder, json_output)
    if summary["failed"] == summary["points"]:
        raise typer.Exit(2)


def _finish(
    journals: list[Path],
    folder: Path,
    parquet: bool,
    plan: Sweep | None = None,
    page: str | None = None,
    given: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes the sorted rows, and the page of a sweep's file; what was written and how many points failed."""
    from commsim.planner.results import as_csv, as_parquet, merged
    from commsim.planner.sweep import idle_reasons
    from commsim.report.sweep_plot import unchanged_lines, unchanged_paths

    _, points = merged(journals)
    written = [write_atomically(folder / "rows.csv", as_csv(points))]
    if parquet:
        written.append(write_atomically(folder / "rows.parquet", as_parquet(points)))
    few = len(points) <= _MOST_ANSWERED
    why = idle_reasons(plan, unchanged_paths(points)) if plan is not None and few else {}
    if plan is not None and page is not None:
        from commsim.report.answers import Swept
        from commsim.report.page import html

        text = html(Swept(plan.name, tuple(points), page, why, tuple(given)).page())
        written.append(write_atomically(folder / "report.html", text))
    failed = [p for p in points if p["error"]]
    answers, unchanged, table = [], [], []
    if len(failed) < len(points) and few:
        from commsim.report.sweep_plot import enough_lines, figure_of
        from commsim.report.sweep_table import points_table

        table = points_table(points, figure_of(points))
        answers, unchanged = enough_lines(points, figure_of(points)), unchanged_lines(points, why)
    return {
        "points": len(points),
        "rows": sum(len(p["rows"]) for p in points),
        "failed": len(failed),
        "answers": answers,
        "unchanged": unchanged,
        "table": table,
        "first_error": failed[0]["error"] if failed else None,
        "files": [str(p) for p in written],
    }


def _say(summary: dict[str, Any], place: Path, json_output: bool) -> None:
    table = summary.pop("table", [])
    if json_output:
        print_json(summary)
        return
    if "computed" in summary:
        per_s = summary["computed"] / summary["seconds"] if summary["seconds"] else 0.0
        rate = f" ({per_s:,.0f}/s)" if per_s >= 1 else ""
        typer.echo(
            f"# {summary['points']:,} points: {summary['computed']:,} computed in {summary['seconds']:.1f} s{rate}, "
            f"{summary['found_in_journal']:,} found in {place}"
        )
    if "files" in summary:
        for line in table:
            typer.echo(line)
        failed = f", {summary['failed']:,} points failed" if summary["failed"] else ""
        typer.echo(f"# {summary['rows']:,} rows{failed}: {', '.join(summary['files'])}")
        for line in summary["answers"][:_MOST_SAID]:
            typer.echo(f"# {line}")
        if (more := len(summary["answers"]) - _MOST_SAID) > 0:
            typer.echo(f"# and {more:,} more such lines, one per combination of the other values: --json has all")
        for line in summary["unchanged"]:
            typer.echo(f"# {line}")
        if summary["first_error"]:
            typer.echo(f"# first error: {summary['first_error']}")


def _list(points: list[Any], paths: list[str], json_output: bool) -> None:
    if json_output:
        typer.echo(json.dumps({"points": len(points), "paths": paths}))
        return
    typer.echo(f"# {len(points):,} points over {', '.join(paths)}")
    for point in points[:20]:
        typer.echo(f"{point.number}\t" + "\t".join(f"{name}={value}" for name, value in point.values.items()))
    if len(points) > 20:
        typer.echo(f"... and {len(points) - 20:,} more")


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    part, slash, parts = text.partition("/")
    good = slash and part.isascii() and part.isdigit() and parts.isascii() and parts.isdigit()
    if not good or not int(part) < int(parts) <= 100_000:
        raise CommsimError(f"found --shard {text!r}, expected I/N with 0 <= I < N, such as 2/8")
    return int(part), int(parts)


@contextmanager
def _counting(total: int, done: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """What is told that so many points more are done, and shows rate and time left: a bar, else a line now and then."""
    begun = time.monotonic()
    last, computed = begun, 0
    with terminal_bar(quiet, counted=True) as bar:
        task = bar and bar.add_task("", total=total, completed=done)

        def advance(count: int) -> None:
            nonlocal last, computed
            computed += count
            now = time.monotonic()
            rate = computed / max(now - begun, 1e-9)
            if bar is not None:
                bar.update(task, completed=done + computed, description=f"{rate:,.0f} points/s")
            elif not quiet and now - last >= _SAY_EVERY_S:
                last = now
                left = (total - done - computed) / rate
                say(f"{done + computed:,} of {total:,} points, {rate:,.0f}/s, {left:,.0f} s left", err=True)

        yield advance
