"""``commsim compare``: a prediction against measured curves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    run: Annotated[Path, typer.Argument(help="A folder that `commsim run` wrote, or its result.csv.")],
    measured: Annotated[list[Path], typer.Argument(help="nccl-tests logs, or CSV tables as in validation/measured.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for comparison.csv and the plot (default: the run's).",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw comparison.png and .svg.")] = True,
) -> None:
    """Compare a predicted run with measured curves: error per size, MAPE by size band, and a plot."""
    from commsim.accuracy.compare import compare as compare_curves
    from commsim.errors import CommsimError, LogFormatError
    from commsim.measure.parsers import read_measured
    from commsim.report.tables import comparison_table

    predictions = read_measured(run)
    comparisons, faults = [], []
    for path in measured:
        try:
            for curve in read_measured(path):
                matching = [p for p in predictions if p.collective == curve.collective]
                if not matching:
                    held = ", ".join(sorted({p.collective for p in predictions})) or "nothing"
                    raise LogFormatError(f"{path} measures {curve.collective}, but {run} predicts {held}")
                comparisons += [compare_curves(p, curve) for p in matching]
        except CommsimError as error:
            faults.append(str(error))
    if faults:
        raise LogFormatError("\n".join(faults))
    folder = out or (run if run.is_dir() else run.parent)
    if json_output:
        import json

        typer.echo(json.dumps({"comparisons": [c.summary() for c in comparisons]}, indent=2, allow_nan=False))
    else:
        for comparison in comparisons:
            typer.echo(comparison_table(comparison), nl=False)
    if out is not None or plot:
        from commsim.report.files import write_atomically
        from commsim.report.tables import comparison_csv

        folder.mkdir(parents=True, exist_ok=True)
        written = [write_atomically(folder / "comparison.csv", comparison_csv(comparisons))]
        if plot:
            from commsim.report.plots import figure_bytes, plot_bandwidth

            shown = list({id(c.predicted): c.predicted for c in comparisons}.values())
            figure = plot_bandwidth(shown, [c.measured for c in comparisons], run.name, comparisons)
            written += [
                write_atomically(folder / f"comparison.{form}", figure_bytes(figure, form)) for form in ("png", "svg")
            ]
        if not json_output:
            typer.echo(f"# wrote {', '.join(p.name for p in written)} in {folder}")
