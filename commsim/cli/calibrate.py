"""``commsim calibrate``: a library's parameters from measured curves of one machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.find import find_scenario
from commsim.cli.options import Json
from commsim.cli.say import print_json, say
from commsim.errors import CalibrationError, CommsimError, ScenarioError
from commsim.files import check_writable, write_atomically

if TYPE_CHECKING:
    from commsim.measure.records import Curve
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology


def calibrate(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file (or a shipped one) of the machine that was measured.")
    ],
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Measured curves (logs, tables, folders of `commsim measure`) or training steps; key.path=value.",
            metavar="LOG... [KEY=VALUE]...",
        ),
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="In place of logs a number or two of the scenario's first collective: 8B=23us,plateau=361GB/s.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The parameter file to write.")] = Path("params.yaml"),
    plot: Annotated[bool, typer.Option(help="Draw the residuals beside it (.png and .svg).")] = True,
    json_output: Json = False,
) -> None:
    """Fit the physical parameters of NCCL's or gloo's model to measured curves, with held-out error and intervals.

    The curves may be of several collectives, and of several numbers of nodes and of GPUs of the machine: then the error
    on each of them left out is told, too.
    """
    from commsim.accuracy.calibration import LARGE_BYTES
    from commsim.accuracy.calibration import calibrate as fit
    from commsim.accuracy.calibration_models import model_of
    from commsim.accuracy.shapes import Shape, leave_out, topologies_of
    from commsim.accuracy.training_rows import is_table_of_rows
    from commsim.cli.pictures import write_both
    from commsim.report.calibration import calibration_table, params_yaml, plot_residuals
    from commsim.scenario.load import load_scenarios
    from commsim.scenario.setting import build_topology
    from commsim.topology.presets import load_topology

    pictures = [out.with_suffix(ending) for ending in (".png", ".svg")] if plot else []
    words = [text for text in logs or () if "=" in text and not Path(text).exists()]
    files = [Path(text) for text in logs or () if text not in words]
    path = find_scenario(scenario)
    for target in (out, *pictures):
        if target.resolve() in {path.resolve(), *(file.resolve() for file in files)}:
            raise CalibrationError(f"--out {out}: {target} is an input; expected another name")
        check_writable(target)
    if out in pictures:
        raise CalibrationError(f"--out {out}: the picture goes there; expected a name such as params.yaml")
    scenarios = load_scenarios(path, words)
    if len(scenarios) != 1:
        raise ScenarioError(f"{path}: found {len(scenarios)} scenarios, expected one to calibrate")
    one = scenarios[0]
    if known:
        _known(one, known, files, out, json_output)
        return
    if files and all(is_table_of_rows(file) for file in files):
        _steps(one, files, out, json_output)
        return
    topology = build_topology(one)
    curves = _curves(files)

    def build(shape: Shape) -> Topology:
        (made,) = load_scenarios(
            path, [*words, f"topology.nodes={shape.nodes}", f"topology.gpus_per_node={shape.gpus}"]
        )
        return build_topology(made)

    whole = load_topology(one.topology.model_copy(update={"gpus_per_node": None}), one.base_dir).ranks_per_node
    on = topologies_of(curves, topology, whole, build)
    show = sys.stderr.isatty()

    def progress(text: str) -> None:
        if show:
            typer.echo(f"# {text}", err=True)

    result = fit(model_of(one, topology, curves, on), curves, progress)
    widest = max(on, key=lambda shape: (shape.nodes, shape.world_size))
    out.parent.mkdir(parents=True, exist_ok=True)
    written = [write_atomically(out, params_yaml(result, one, widest))]
    if plot:
        written += write_both(out.with_suffix(""), plot_residuals(result, f"{one.name}: calibration"))
    for name in dict.fromkeys(curve.name for curve in curves if curve.n_ranks is None):
        say(f"note: {name} does not say its ranks: the scenario's {topology.world_size} are taken", err=True)
    carried = {
        "shapes": leave_out(one, topology, curves, on, lambda _, m: Shape(m.nodes, m.ranks_per_node), progress),
        "collectives": leave_out(one, topology, curves, on, lambda curve, _: curve.collective, progress),
    }
    if json_output:
        large = result.error(result.held_out_s, LARGE_BYTES)
        document = {
            "held_out_mape": result.error(result.held_out_s),
            "fitted_mape": result.error(result.fitted_s),
            "shipped_mape": result.error(result.before_s),
            "held_out_mape_above_64_kib": None if large != large else large,  # noqa: PLR0124 - NaN
            "spread": result.spread(),
            "spread_above_64_kib": result.spread(LARGE_BYTES),
            "values": {v.path: {"value": v.value, "low": v.low, "high": v.high} for v in result.values},
            "kept": result.kept,
            "left_out": {name: [asdict(part) for part in parts] for name, parts in carried.items()},
            "suspects": list(result.suspects),
        }
        print_json(document)
        return
    typer.echo(calibration_table(result, carried), nl=False)
    typer.echo(f"# wrote {', '.join(str(p) for p in written)}")


def _known(scenario: Scenario, texts: list[str], files: list[Path], out: Path, json_output: bool) -> None:
    """Calibrate with a number or two that a person knows."""
    from commsim.accuracy.calibration import adapt
    from commsim.accuracy.calibration_models import model_of
    from commsim.accuracy.known import known_curve
    from commsim.report.calibration import known_table, params_yaml
    from commsim.scenario.setting import build_topology

    if files:
        raise CalibrationError(f"found --from beside {files[0]}, expected known numbers or logs")
    if not scenario.collectives:
        raise ScenarioError(f"{scenario.name!r} has no collective, expected one that the known numbers are of")
    topology = build_topology(scenario)
    curve = known_curve(texts, scenario.collectives[0].collective, topology.world_size)
    result = adapt(model_of(scenario, topology, [curve]), [curve])
    out.parent.mkdir(parents=True, exist_ok=True)
    path = write_atomically(out, params_yaml(result, scenario, topology))
    if json_output:
        print_json({"values": {v.path: {"shipped": v.shipped, "value": v.value} for v in result.values}})
        return
    typer.echo(known_table(result), nl=False)
    typer.echo(f"# wrote {path}")


def _steps(scenario: Scenario, files: list[Path], out: Path, json_output: bool) -> None:
    """Calibrate the compute of a training scenario with measured steps."""
    from commsim.accuracy.training import calibrate_from_rows
    from commsim.accuracy.training_rows import read_rows
    from commsim.scenario.training import values_of
    from commsim.scenario.workload.training import TrainingWork

    items = [item.training for item in scenario.workload if isinstance(item, TrainingWork)]
    if not items:
        raise ScenarioError(f"{scenario.name!r} has no training item, expected one to calibrate with training steps")
    rows = [row for file in files for row in read_rows(file)]
    result = calibrate_from_rows(rows, values_of(items[0], scenario.base_dir))
    out.parent.mkdir(parents=True, exist_ok=True)
    path = write_atomically(out, result.text())
    if json_output:
        errors = {"before_pct": dict(result.before), "after_pct": dict(result.after)}
        print_json({"scale": result.scale, **errors, "left_out": dict(result.left_out)})
        return
    typer.echo(f"predicted times are scaled by {result.scale:.4f}")
    for name, error in result.before.items():
        typer.echo(f"  {name:24s} {error:+7.1f} % before, {result.after[name]:+7.1f} % after")
    for name, reason in result.left_out.items():
        typer.echo(f"  {name:24s} not used: {reason}")
    typer.echo(f"# wrote {path}; use it by training.params in the scenario")


def _curves(files: list[Path]) -> list[Curve]:
    """The measured curves of the files; every file that holds none is a fault."""
    from commsim.measure.parsers import read_measured

    curves, faults = [], []
    if not files:
        raise CalibrationError("found no log among the arguments, expected measured curves to fit")
    for file in files:
        try:
            for curve in read_measured(file):
                if curve.kind != "measured":
                    faults.append(f"{file}: a prediction, expected measured curves")
                elif len(curve):
                    curves.append(curve)
        except CommsimError as error:
            faults.append(str(error))
    if faults:
        raise CalibrationError("\n".join(dict.fromkeys(faults)))
    return curves
