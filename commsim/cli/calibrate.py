"""``commsim calibrate``: a library's parameters from measured curves of one machine."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.options import Json
from commsim.cli.say import aside, print_json, say
from commsim.errors import CalibrationError, CommsimError, ScenarioError
from commsim.files import check_writable, write_atomically
from commsim.scenario.load import find_scenario

if TYPE_CHECKING:
    from commsim.measure.records import Curve
    from commsim.scenario.schema import Scenario


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
    from commsim.accuracy.cells import is_table_of_rows
    from commsim.scenario.load import load_scenarios

    words = [text for text in logs or () if "=" in text and not Path(text).exists()]
    files = [Path(text) for text in logs or () if text not in words]
    path = find_scenario(scenario)
    _check_out(out, [out.with_suffix(ending) for ending in (".png", ".svg")] if plot else [], [path, *files])
    scenarios = load_scenarios(path, words)
    if len(scenarios) != 1:
        raise ScenarioError(f"{path}: found {len(scenarios)} scenarios, expected one to calibrate")
    if scenarios[0].variation is not None:
        text = "found variation, expected none to calibrate: late ranks are no parameter of a machine"
        raise scenarios[0].document.error(("variation",), text)
    scenarios[0].refuse_placement()
    if known:
        _known(scenarios[0], known, files, out, json_output)
    elif files and all(is_table_of_rows(file) for file in files):
        _steps(scenarios[0], files, out, json_output)
    else:
        _measured(scenarios[0], files, out, plot, json_output)


def _check_out(out: Path, pictures: list[Path], inputs: list[Path]) -> None:
    """Faults of the places to write to, before anything is read or fitted."""
    for target in (out, *pictures):
        if target.resolve() in {file.resolve() for file in inputs}:
            raise CalibrationError(f"--out {out}: {target} is an input; expected another name")
        check_writable(target)
    if out in pictures:
        raise CalibrationError(f"--out {out}: the picture goes there; expected a name such as params.yaml")


def _measured(scenario: Scenario, files: list[Path], out: Path, plot: bool, json_output: bool) -> None:
    """Calibrate with measured curves; the file is written before what is left out is fitted again."""
    from commsim.accuracy.healthy import slow_curves
    from commsim.accuracy.shapes import Shape, leave_out, topologies_of
    from commsim.cli.pictures import write_both
    from commsim.fitting.calibration import calibrate as fit
    from commsim.report.calibration import calibration_document, calibration_table, params_yaml, plot_residuals
    from commsim.scenario.fit import curve_model
    from commsim.scenario.setting import build_topology

    topology, curves = build_topology(scenario), _curves(files)
    on = topologies_of(scenario, topology, curves)
    for name in dict.fromkeys(curve.name for curve in curves if curve.n_ranks is None):
        say(f"note: {name} does not say its ranks: the scenario's {topology.world_size} are taken", err=True)
    show = sys.stderr.isatty()

    def progress(text: str) -> None:
        if show:
            typer.echo(f"# {text}", err=True)

    model = curve_model(scenario, topology, curves, on)
    result = fit(model, curves, progress)
    slower = slow_curves(result.curves, result.before_s) if scenario.library.name == "nccl" else []
    for text in slower:
        say(f"warning: {text}", err=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    written = [write_atomically(out, params_yaml(result, scenario, on, slower=slower))]
    if plot:
        written += write_both(out.with_suffix(""), plot_residuals(result, f"{scenario.name}: calibration"))
    shapes = [Shape(machine.nodes, machine.ranks_per_node) for machine in on]
    keys: dict[str, list[Any]] = {
        "shapes": shapes,
        "collectives": [curve.collective for curve in curves],
    }
    left_out = {name: leave_out(curves, shapes, of, model.part, progress) for name, of in keys.items()}
    if any(left_out.values()):
        write_atomically(out, params_yaml(result, scenario, on, left_out, slower))
    if json_output:
        print_json(calibration_document(result, left_out) | {"slower": slower})
        return
    typer.echo(calibration_table(result, left_out), nl=False)
    aside(f"# wrote {', '.join(str(p) for p in written)}")


def _known(scenario: Scenario, texts: list[str], files: list[Path], out: Path, json_output: bool) -> None:
    """Calibrate with a number or two that a person knows."""
    from commsim.fitting.known import number_faults
    from commsim.report.calibration import known_table, params_yaml
    from commsim.scenario.fit import adapted, doubts
    from commsim.scenario.setting import build_topology

    if files:
        raise CalibrationError(f"found --from beside {files[0]}, expected known numbers or logs")
    if not scenario.collectives:
        raise ScenarioError(f"{scenario.name!r} has no collective, expected one that the known numbers are of")
    parts = [part.strip() for text in texts for part in text.split(",")]
    numbers = [(size.strip(), value.strip()) for size, _, value in (part.partition("=") for part in parts)]
    if faults := number_faults(numbers):
        raise CalibrationError("\n".join(f"--from {parts[place]!r}: {text}" for place, text in faults.items()))
    topology = build_topology(scenario)
    result = adapted(scenario, topology, {scenario.collectives[0].collective: dict(numbers)})
    out.parent.mkdir(parents=True, exist_ok=True)
    path = write_atomically(out, params_yaml(result, scenario, [topology]))
    if json_output:
        print_json({"values": {v.path: {"shipped": v.shipped, "value": v.value} for v in result.values}})
        return
    typer.echo(known_table(result, doubts(result)), nl=False)
    aside(f"# wrote {path}")


def _steps(scenario: Scenario, files: list[Path], out: Path, json_output: bool) -> None:
    """Calibrate the compute of a training scenario with measured steps."""
    from commsim.accuracy.training import calibrate_from_rows
    from commsim.accuracy.training_rows import read_rows
    from commsim.scenario.load import scenario_warnings
    from commsim.scenario.setting import build_topology
    from commsim.scenario.training import step_of, values_of
    from commsim.scenario.workload.training import TrainingWork

    items = [item.training for item in scenario.workload if isinstance(item, TrainingWork)]
    if not items:
        raise ScenarioError(f"{scenario.name!r} has no training item, expected one to calibrate with training steps")
    for warning in scenario_warnings(scenario):
        say(f"warning: {warning}", err=True)
    rows = [row for file in files for row in read_rows(file)]
    gpu = step_of(items[0], build_topology(scenario), scenario.base_dir).accelerator
    boards = sorted({row.step.accelerator.name for row in rows if row.step} - {gpu.name})
    if any(row.step and row.step.accelerator.generation != gpu.generation for row in rows):
        raise CalibrationError(f"found steps of {', '.join(boards)}, expected those of the scenario's GPU, {gpu.name}")
    if boards:
        say(f"warning: steps of {', '.join(boards)} calibrate a scenario of {gpu.name}", err=True)
    result = calibrate_from_rows(rows, values_of(items[0], scenario.base_dir))
    out.parent.mkdir(parents=True, exist_ok=True)
    path = write_atomically(out, result.text(gpu.generation))
    if json_output:
        errors = {"before_pct": result.before, "after_pct": result.after, "held_out_pct": result.held_out}
        print_json({"moved": result.moved, **errors, "left_out": result.left_out})
        return
    for name, error in result.before.items():
        others = f", {result.held_out[name]:+7.1f} % by the others" if result.held_out else ""
        typer.echo(f"  {name:24s} {error:+7.1f} % before, {result.after[name]:+7.1f} % after{others}")
    for name, reason in result.left_out.items():
        typer.echo(f"  {name:24s} not used: {reason}")
    moved = sorted(result.moved.items(), key=lambda item: -abs(math.log(item[1])))
    typer.echo("moved: " + (", ".join(f"{name} x {factor:.3f}" for name, factor in moved[:8]) or "nothing"))
    typer.echo(result.verdict())
    aside(f"# wrote {path}; use it by training.params in the scenario, from whose folder its path goes")


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
