"""``commsim compare``: measured curves against predictions: is a bandwidth right, and if not, why?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commsim.accuracy.compare import Comparison
    from commsim.accuracy.verdict import Verdict
    from commsim.accuracy.whatif import Tried
    from commsim.measure.assemble import NoRows
    from commsim.measure.records import Curve


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Predictions (folders of `commsim run`, their result.csv, scenario files or shipped ones' names) "
            "and measured curves (logs, CSV tables, folders of `commsim measure`), in any order.",
        ),
    ],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    parse_only: Annotated[
        bool, typer.Option("--parse-only", help="Only read the measured files and show what is in them.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if/--no-what-if", help="Look for the cause where a curve is not as expected.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for comparison.csv and the plot (default: the first prediction's).",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw comparison.png and .svg.")] = True,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Write the verdict as one HTML file to mail: answer, tables that sort, pictures, provenance.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say whether measured curves are as they should be: verdict and likely cause first, then every size."""
    if parse_only:
        if html is not None:
            raise typer.BadParameter("found it with --parse-only, which compares nothing", param_hint="--html")
        _parse_only(files, json_output)
        return
    from commsim.accuracy.judge import judged, pairs, sort_files

    predictions, measured = sort_files(_found(files))
    folder = out or predictions[0].folder
    results = [judged(p, verdict, what_if) for p, verdict in pairs(predictions, measured)]
    written = _write([v for v, _ in results], folder, plot) if out is not None or plot else []
    if html is not None:
        from commsim.files import write_atomically
        from commsim.report.compare_page import compare_page
        from commsim.report.page import html as page_text

        write_atomically(html, page_text(compare_page(results, _title([v.comparison for v, _ in results]))))
    if json_output:
        import json

        from commsim.report.verdict import verdict_dict

        comparisons = [v.comparison.summary() | {"verdict": verdict_dict(v, tried)} for v, tried in results]
        typer.echo(json.dumps({"comparisons": comparisons}, indent=2, allow_nan=False))
        return
    _print(results)
    if written:
        typer.echo(f"# wrote {', '.join(p.name for p in written)} in {folder}")
    if html is not None:
        typer.echo(f"# wrote {html}")


def _found(files: list[Path]) -> list[Path]:
    """The files; what is none may be the name of a shipped scenario."""
    from commsim.cli.find import find_scenario
    from commsim.errors import CommsimError, LogFormatError

    found, faults = [], []
    for path in files:
        try:
            is_file = path.exists() or path.suffix not in ("", ".yaml", ".yml")
            found.append(path if is_file else find_scenario(str(path)))
        except CommsimError as error:
            faults.append(f"{path}: no such file or folder, and {error}")
    if faults:
        raise LogFormatError("\n".join(faults))
    return found


def _print(results: list[tuple[Verdict, list[Tried]]]) -> None:
    from commsim.report.verdict import answer_line, verdict_table

    several = len({v.comparison.predicted.name for v, _ in results}) > 1
    for verdict, tried in results:
        against = f" (against {verdict.comparison.predicted.name})" if several else ""
        typer.echo(f"{answer_line(verdict, tried)}{against}")
    for verdict, tried in results:
        typer.echo(verdict_table(verdict, tried), nl=False)


def _write(verdicts: list[Verdict], folder: Path, plot: bool) -> list[Path]:
    from commsim.files import write_atomically
    from commsim.report.comparisons import comparison_csv

    comparisons = [v.comparison for v in verdicts]
    folder.mkdir(parents=True, exist_ok=True)
    written = [write_atomically(folder / "comparison.csv", comparison_csv(comparisons))]
    if plot:
        from commsim.report.plots import figure_bytes, plot_comparisons

        figure = plot_comparisons(comparisons, _title(comparisons))
        written += [
            write_atomically(folder / f"comparison.{form}", figure_bytes(figure, form)) for form in ("png", "svg")
        ]
    return written


def _title(comparisons: Sequence[Comparison]) -> str:
    """The prediction's name, or how many there are of both."""
    names = dict.fromkeys(c.predicted.name for c in comparisons)
    curves = {id(c.measured) for c in comparisons}
    return next(iter(names)) if len(names) == 1 else f"{len(names)} predictions, {len(curves)} measured curves"


def _parse_only(files: list[Path], json_output: bool) -> None:
    """Shows what measured files hold, empty tables too; a file that cannot be read is a fault, after those that can."""
    import json

    from commsim.errors import CommsimError, LogFormatError
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
        typer.echo(json.dumps({"tables": tables, "skipped_lines": skipped}, indent=2, allow_nan=False))
    elif tables:
        for table in tables:
            ranks = "an unknown number of" if table["n_ranks"] is None else table["n_ranks"]
            typer.echo(f"{table['name']}: {table['collective']} on {ranks} ranks, {len(table['rows'])} sizes")
            for note in table["notes"]:
                typer.echo(f"  note: {note}")
        typer.echo(f"lines that look like rows and cannot be read: {skipped}")
    if faults:
        raise LogFormatError("\n".join(faults))


def _empty_table(empty: NoRows) -> dict[str, Any]:
    table = empty.table
    return {
        "name": empty.name,
        "collective": table.collective,
        "n_ranks": table.n_ranks,
        "dtype": None,
        "redop": None,
        "root": None,
        "time_from": None,
        "conditions": table.conditions,
        "notes": [*table.notes, str(empty)],
        "rows": [],
        "skipped_lines": table.skipped_lines,
    }


def _table(curve: Curve) -> dict[str, Any]:
    from commsim.collectives.semantics import ONE_RATE
    from commsim.units import gb_per_s, microseconds

    known = curve.n_ranks is not None or curve.collective in ONE_RATE
    in_place = curve.in_place_time_s
    rows = []
    for i, size in enumerate(curve.size_bytes):
        second = float("nan") if in_place is None else float(in_place[i])
        rows.append(
            {
                "size_bytes": int(size),
                "time_us": float(microseconds(float(curve.time_s[i]))),
                "in_place_time_us": None if second != second else float(microseconds(second)),  # noqa: PLR0124
                "algbw_GBps": float(gb_per_s(float(size / curve.time_s[i]))),
                "busbw_GBps": float(gb_per_s(float(curve.busbw()[i]))) if known else None,
            }
        )
    return {
        "name": curve.name,
        "collective": curve.collective,
        "n_ranks": curve.n_ranks,
        "dtype": curve.dtype,
        "redop": curve.redop,
        "root": curve.root,
        "time_from": curve.time_from,
        "conditions": curve.conditions,
        "notes": list(curve.notes),
        "rows": rows,
        "skipped_lines": curve.skipped_lines,
    }
