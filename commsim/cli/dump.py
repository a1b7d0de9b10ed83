"""``commsim dump``: what the dumps of a job say: who did not enter which call, who was late, what took too long."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.options import Json
from commsim.cli.say import aside, print_json, say, stages_bar

if TYPE_CHECKING:
    from commsim.accuracy.diagnosis import JobDiagnosis

ANYTHING = "any"


def dump(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="One file for each rank, or folders of them, plain or gzipped: PyTorch's flight recorder (pickle or "
            "JSON), traces of torch.profiler, NCCL's inspector, ncclras (text or JSON), nsys exports (sqlite)."
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="MACHINE",
            help="Hold each call against this machine: a preset, a file of a topology or of one scenario, or the name "
            "of a shipped scenario.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="KEY=VALUE",
            help="With --on: replay the calls with another setting: nodes=4, bucket=50MB (of gradients), nics=4, "
            "nic_rate='200 Gb/s', version=2.28.3, or a key of a scenario (library.env.NCCL_ALGO=Ring); may stand "
            "several times.",
        ),
    ] = None,
    late: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=100.0,
            metavar="PERCENT",
            help="A rank is late that cost the others more than this part of the time that the files cover.",
        ),
    ] = 5.0,
    json_output: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for dump.png and .svg: ranks over time.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write all of it as one HTML file to mail.")] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit 1 where one of these is found, with commas: dead, mismatch, missing, stuck, late, slow, "
            "empty, or any."
        ),
    ] = None,
) -> None:
    """Say what was wrong in a job, from what it left behind: rank, call and cause first, then the calls."""
    failing = _failing(fail_on)
    if isnan(late):
        raise typer.BadParameter("found nan, expected a part of the time in percent", param_hint="--late")
    if changes and on is None:
        raise typer.BadParameter("found it without --on, which names the machine", param_hint="--with")
    if Path("-") in files:
        text = "found -, expected files: standard input is not read, since the name of a file tells the rank"
        raise typer.BadParameter(text, param_hint="FILES")
    from commsim.accuracy.diagnosis import diagnose

    with stages_bar(json_output) as show:
        found = diagnose(
            files, on, changes or (), late / 100, lambda count: show("files", count + 1, max(len(files), count + 1))
        )
    written = _write(found, out, html)
    if json_output:
        from commsim.report.dumps import dump_dict

        print_json(dump_dict(found))
    else:
        _say(found, written)
    if failing & {finding.kind for finding in found.findings}:
        raise typer.Exit(1)


def _failing(words: str | None) -> set[str]:
    """The kinds of findings that make the command fail."""
    from commsim.dumps.finding import KINDS

    given = [word.strip() for word in words.split(",")] if words is not None else []
    if unknown := [word for word in given if word not in (*KINDS, ANYTHING)]:
        text = f"found {', '.join(map(repr, unknown))}, expected some of {', '.join((*KINDS, ANYTHING))}"
        raise typer.BadParameter(text, param_hint="--fail-on")
    return set(KINDS) if ANYTHING in given else set(given)


def _write(found: JobDiagnosis, out: Path | None, html: Path | None) -> list[Path]:
    """The files that were asked for."""
    from commsim.files import write_atomically
    from commsim.report.dump_chart import dump_chart
    from commsim.report.dumps import dump_page

    written = []
    if out is not None and (chart := dump_chart(found)) is not None:
        from commsim.cli.pictures import write_both
        from commsim.report.chart_figure import draw

        written += write_both(out / "dump", draw(chart, width=10.0))
    if html is not None:
        from commsim.report.page import html as page_text

        written.append(write_atomically(html, page_text(dump_page(found))))
    return written


_MOST_SENTENCES = 6


def _say(found: JobDiagnosis, written: list[Path]) -> None:
    """Prints the answer, what limits it, then the tables."""
    from commsim.report.dumps import dump_tables
    from commsim.report.tables import fitted

    replayed = found.replayed is not None
    answer = found.answer[:-1] if replayed else found.answer
    lines = list(answer[:_MOST_SENTENCES])
    if len(answer) > _MOST_SENTENCES:
        lines.append(f"And {len(answer) - _MOST_SENTENCES} more findings (--json has all).")
    if replayed:
        lines.append(found.answer[-1])
    for line in fitted([*lines, *(f"# {note}" for note in found.notes)]):
        say(line)
    if text := dump_tables(found):
        say("\n" + text, nl=False)
    for path in written:
        aside(f"# wrote {path}")
