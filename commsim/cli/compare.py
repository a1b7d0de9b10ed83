"""``commsim compare``: measured curves against predictions: is a bandwidth right, and if not, why?"""

from __future__ import annotations

from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.options import Json, Memory, RawBytes
from commsim.cli.say import aside, print_json, stages_bar
from commsim.cli.say import verdict as say_verdict
from commsim.errors import CommsimError, LogFormatError
from commsim.files import write_atomically
from commsim.scenario.load import find_scenario

if TYPE_CHECKING:
    from commsim.accuracy.judge import CurveSource
    from commsim.accuracy.verdict import Verdict
    from commsim.measure.assemble import NoRows
    from commsim.measure.records import Curve
    from commsim.report.answers import Compared


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Measured curves (logs, CSV tables, folders of `commsim measure`; - for standard input) and "
            "predictions (folders of `commsim run`, their result.csv, scenarios); without one the logs say which."
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="MACHINE",
            help="Without a prediction: the machine of the logs, a preset, a topology file, NCCL's topology XML or a "
            "saved `nvidia-smi topo -m` (default: as the logs name it).",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "-n", min=1, help="Without a prediction: nodes of logs that do not say how many."),
    ] = None,
    json_output: Json = False,
    parse_only: Annotated[
        bool, typer.Option("--parse-only", help="Only read the measured files and show what is in them.")
    ] = False,
    what_if: Annotated[bool, typer.Option(help="Look for the cause where a curve is not as expected.")] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for comparison.csv and the plot (default: the first prediction's)."),
    ] = None,
    plot: Annotated[bool, typer.Option(help="Draw comparison.png and .svg.")] = True,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write the verdict as one HTML file to mail: answer, tables that sort, pictures, provenance."
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(help="Exit 1 where a verdict is one of these, with commas: slower, faster, wrong, unjudged."),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            help="Write the verdicts as JUnit for acceptance tests; what fails is --fail-on (default: slower,wrong)."
        ),
    ] = None,
    raw: RawBytes = False,
    memory: Memory = None,
) -> None:
    """Say whether measured curves are as they should be: verdict and likely cause first, then every size."""
    del memory
    if parse_only:
        if html is not None:
            raise typer.BadParameter("found it with --parse-only, which compares nothing", param_hint="--html")
        _parse_only(files, json_output)
        return
    failing = _failing(fail_on)
    from commsim.accuracy.from_log import likely_ranks
    from commsim.accuracy.judge import apart, judged, sort_files
    from commsim.cli.pictures import write_both
    from commsim.report.answers import Compared
    from commsim.report.verdict import comparison_csv, verdict_dict

    predictions, measured = sort_files(_paths(files), likely_ranks(on, nodes))
    if predictions and on is not None:
        raise typer.BadParameter("found it beside a prediction, which names its machine", param_hint="--on")
    if predictions and nodes is not None:
        raise typer.BadParameter("found it beside a prediction, which says how many", param_hint="--nodes")
    paired, said = _paired(predictions, measured, on, nodes)
    with stages_bar(json_output) as show:
        results = [
            judged(p, verdict, what_if, partial(show, f"causes of {verdict.comparison.measured.name}"))
            for p, verdict in paired
        ]
        tests = [apart(p, *result) for (p, _), result in zip(paired, results, strict=True)]
    compared = Compared(tuple(results), said, tuple(test for test in tests if test))
    folder = out or paired[0][0].folder
    written = []
    plot = plot and (out is not None or bool(predictions))  # a log alone is answered, and nothing written unasked
    if out is not None or plot:
        folder.mkdir(parents=True, exist_ok=True)
        written.append(
            write_atomically(folder / "comparison.csv", comparison_csv([v.comparison for v, _ in compared.verdicts]))
        )
    if plot:
        written += write_both(folder / "comparison", compared.draw())
    if html is not None:
        from commsim.report.page import html as page_text

        write_atomically(html, page_text(compared.page()))
    if junit is not None:
        from commsim.report.several_logs import junit as junit_text

        write_atomically(junit, junit_text(compared.verdicts, failing or {"slower", "wrong"}))
    if json_output:
        comparisons = [v.comparison.summary() | {"verdict": verdict_dict(v, tried)} for v, tried in compared.verdicts]
        print_json({"said": list(said), "tests": list(compared.tests), "comparisons": comparisons})
    else:
        _say(compared, [source for source, _ in paired], bool(predictions), raw)
        if written:
            aside(f"# wrote {', '.join(p.name for p in written)} in {folder}")
        for path in (html, junit):
            if path is not None:
                aside(f"# wrote {path}")
    if any(verdict.state in failing for verdict, _ in compared.verdicts):
        raise typer.Exit(1)


def _paired(
    predictions: list[CurveSource], measured: list[Curve], on: str | None, nodes: int | None
) -> tuple[list[tuple[CurveSource, Verdict]], tuple[str, ...]]:
    """The verdicts, and what is said before them: contradictions, and of logs alone the machine and what was taken."""
    from commsim.accuracy.judge import beyond_fit, contradicted, pairs
    from commsim.accuracy.judge_logs import judge_logs
    from commsim.cli.which_machine import ask

    if not predictions:
        return judge_logs(measured, on, ask, nodes)
    paired = pairs(predictions, measured)
    against = [
        f"{verdict.comparison.measured.name} contradicts {verdict.comparison.predicted.name}: {line}"
        for source, verdict in paired
        for line in contradicted(source, verdict.comparison.measured)
    ]
    unseen = [line for source, verdict in paired for line in beyond_fit(source, verdict.comparison.measured)]
    return paired, tuple(dict.fromkeys([*against, *unseen]))


def _failing(words: str | None) -> set[str]:
    """The verdicts that make the command fail."""
    given = [word.strip() for word in words.split(",")] if words is not None else []
    if unknown := [word for word in given if word not in VERDICTS]:
        text = f"found {', '.join(map(repr, unknown))}, expected some of {', '.join(VERDICTS)}"
        raise typer.BadParameter(text, param_hint="--fail-on")
    return set(given)


VERDICTS = ("slower", "faster", "wrong", "unjudged")
"""What may be wrong with a curve, or with judging it."""


def _say(compared: Compared, predictions: list[CurveSource], asked: bool, raw: bool) -> None:
    """Prints what comes first, the answers, then the tables; of several logs without a scenario one table."""
    from commsim.report.several_logs import logs_table, overall
    from commsim.report.tables import fitted
    from commsim.report.verdict import verdict_table
    from commsim.scenario.fit import known_of

    known = (known_of(s).words() for p in predictions if (s := p.scenario) and s.library.measured)
    for line in fitted(f"# {said}" for said in (*compared.said, *dict.fromkeys(known))):
        typer.echo(line)
    if not asked and len(compared.verdicts) > 1:
        say_verdict(overall([verdict for verdict, _ in compared.verdicts]))
    for answer in (*compared.answer, *compared.tests):
        say_verdict("\n".join(fitted([answer])))
    if not asked and len(compared.verdicts) > 1:
        say_verdict(logs_table([verdict for verdict, _ in compared.verdicts]), nl=False)
        typer.echo("# every size: --json, --html FILE, --out FOLDER, or one log at a time")
        return
    for verdict, tried in compared.verdicts:
        say_verdict(verdict_table(verdict, tried, raw=raw), nl=False)


def _paths(files: list[Path]) -> list[Path]:
    """The files; what is none may be the name of a shipped scenario."""
    from commsim.measure.parsers import DASH

    paths, faults = [], []
    for path in files:
        try:
            is_file = path == DASH or path.exists() or path.suffix not in ("", ".yaml", ".yml")
            paths.append(path if is_file else find_scenario(str(path)))
        except CommsimError as error:
            faults.append(f"{path}: no such file or folder, and {error}")
    if faults:
        raise LogFormatError("\n".join(faults))
    return paths


def _parse_only(files: list[Path], json_output: bool) -> None:
    """Shows what measured files hold, empty tables too; a file that cannot be read is a fault, after those that can."""
    from commsim.measure.assemble import NoRows
    from commsim.measure.parsers import read_measured

    tables: list[dict[str, Any]] = []
    faults = []
    for path in files:
        try:
            tables += [_table(curve) for curve in read_measured(path)]
        except NoRows as empty:
            tables.append(_empty_table(empty))
        except CommsimError as error:
            faults.append(str(error))
    skipped = sum(table.pop("skipped_lines") for table in tables)
    if json_output and (tables or not faults):
        print_json({"tables": tables, "skipped_lines": skipped})
    elif tables:
        for table in tables:
            ranks = "an unknown number of" if table["n_ranks"] is None else table["n_ranks"]
            typer.echo(f"{table['name']}: {table['collective']} on {ranks} ranks, {len(table['rows'])} sizes")
            for note in table["notes"]:
                typer.echo(f"  note: {note}")
        typer.echo(f"lines that look like rows and cannot be read: {skipped}")
    if faults:
        raise LogFormatError("\n".join(faults))


_CONDITIONS = ("dtype", "redop", "root", "time_from")


def _empty_table(empty: NoRows) -> dict[str, Any]:
    table = empty.table
    return {
        "name": empty.name,
        "collective": table.collective,
        "n_ranks": table.n_ranks,
        **dict.fromkeys(_CONDITIONS),
        "conditions": table.conditions,
        "notes": [*table.notes, str(empty)],
        "rows": [],
        "skipped_lines": table.skipped_lines,
    }


def _table(curve: Curve) -> dict[str, Any]:
    shared = ("name", "collective", "n_ranks", *_CONDITIONS, "conditions")
    return {name: getattr(curve, name) for name in shared} | {
        "notes": list(curve.notes),
        "rows": _rows(curve),
        "skipped_lines": curve.skipped_lines,
    }


def _rows(curve: Curve) -> list[dict[str, Any]]:
    from commsim.collectives.semantics import ONE_RATE
    from commsim.units import gb_per_s, microseconds

    known = curve.n_ranks is not None or curve.collective in ONE_RATE
    unknown = [None] * len(curve)
    in_place = unknown if curve.in_place_time_s is None else curve.in_place_time_s.tolist()
    bus = curve.busbw().tolist() if known else unknown
    return [
        {
            "size_bytes": size,
            "time_us": microseconds(time_s),
            "in_place_time_us": None if second_s is None or isnan(second_s) else microseconds(second_s),
            "algbw_GBps": gb_per_s(size / time_s),
            "busbw_GBps": None if busbw is None else gb_per_s(busbw),
        }
        for size, time_s, second_s, busbw in zip(
            curve.size_bytes.tolist(), curve.time_s.tolist(), in_place, bus, strict=True
        )
    ]
