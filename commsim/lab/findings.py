"""What a laboratory's folder says: measured against predicted, calibrated, NCCL's choices beside the model's."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from commsim.accuracy.judge import CurveSource, judged
from commsim.accuracy.verdict import Verdict
from commsim.accuracy.whatif import Tried, predicted_curve
from commsim.collectives.semantics import RING_PASSES
from commsim.errors import CommsimError
from commsim.files import write_atomically
from commsim.fitting.calibration import Calibration, calibrate
from commsim.lab.machine import SCENARIO
from commsim.lab.stages import COLLECTIVES, FORCED, GRAPHS, PARAMS, RATES, REGISTERED, SINGLE, STEPS
from commsim.measure.capture import CHOICES, read_object
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.measure.run_folder import TABLE, TRAINING, read_conditions
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import parse_version
from commsim.report.calibration import params_yaml, plot_residuals
from commsim.report.plots import figure_bytes
from commsim.scenario.fit import curve_model
from commsim.scenario.load import load_scenarios
from commsim.scenario.schema import Scenario
from commsim.scenario.setting import build_topology, nccl_graphs
from commsim.units import format_bytes

SHARED = "ranks share a GPU and take turns on it: their times say nothing of links, and none is judged or calibrated on"
"""Why. An empty all_reduce of 4 ranks on an H200 took 13.5 ms: six steps of its ring, 2.2 ms of turns each."""


@dataclass(frozen=True)
class Choice:
    """One call: what NCCL logged that it took, and what the model takes; channels are None where the log has none."""

    collective: str
    nbytes: int
    logged: str  # algorithm/protocol
    predicted: str
    logged_channels: int | None
    predicted_channels: int

    @property
    def agrees(self) -> bool:
        """Whether algorithm and protocol are the same."""
        return self.logged == self.predicted


@dataclass(frozen=True)
class Variant:
    """A call as a CUDA graph or with registered memory, beside the same call without; seconds out of place."""

    way: str
    collective: str
    nbytes: int
    time_s: float
    plain_s: float


@dataclass
class Findings:
    """All that the folder says; `gaps` are the parts that could not be had, with the reason."""

    machine: str = "this machine"
    judged: list[tuple[Verdict, list[Tried]]] = field(default_factory=list)
    calibration: Calibration | None = None
    choices: list[Choice] = field(default_factory=list)
    traffic: list[tuple[str, int, float, float]] = field(default_factory=list)  # collective, size, measured, predicted
    calls: list[Mapping[str, str]] = field(default_factory=list)  # rows of one rank with a GPU for itself
    steps: list[Mapping[str, Any]] = field(default_factory=list)
    rates: list[Mapping[str, str]] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


def conclude(folder: Path, progress: Callable[[str], None] = lambda text: None) -> Findings:
    """What is in the folder, judged; writes ``params.yaml`` and its picture where there is enough to fit.

    A part that fails is named in `gaps` and does not keep the others from the report.
    """
    findings = Findings()
    scenario = _scenario(folder, findings)
    curves = _curves(folder, COLLECTIVES, findings)
    forced = [
        replace(curve, name=f"{curve.collective}, {one.name} forced")
        for one in sorted((folder / FORCED).glob("*/"))
        for curve in _curves(folder, f"{FORCED}/{one.name}", findings)
    ]
    if scenario is not None:
        findings.machine = scenario.name
        parts: dict[str, Callable[[], None]] = {
            "comparing with the shipped prediction": partial(_judge, scenario, curves, findings),
            "calibrating": partial(_calibrate, scenario, [*curves, *forced], folder, findings, progress),
            "reading NCCL's choices": partial(_choices, scenario, folder, findings),
        }
        if read_conditions(folder / COLLECTIVES).get("ranks_per_gpu", 1) > 1:
            del parts["comparing with the shipped prediction"], parts["calibrating"]
            findings.gaps.append(SHARED)
        for name, part in parts.items():
            progress(name)
            try:
                part()
            except CommsimError as error:
                findings.gaps.append(f"{name}: {error}")
    _traffic(folder / COLLECTIVES, findings)
    findings.calls = _table(folder / SINGLE / TABLE)
    findings.steps = read_object(folder / STEPS / TRAINING).get("items", [])
    findings.variants = list(_variants(folder))
    findings.rates = _table(folder / RATES / "rates.csv")
    return findings


def _scenario(folder: Path, findings: Findings) -> Scenario | None:
    path = folder / SCENARIO
    if not path.exists():
        findings.gaps.append("the machine could not be described: nothing is predicted for it")
        return None
    try:
        return load_scenarios(path)[0]
    except CommsimError as error:
        findings.gaps.append(f"{path.name}: {error}")
        return None


def _curves(laboratory: Path, name: str, findings: Findings) -> list[Curve]:
    """The curves of a stage."""
    folder = laboratory / name
    if not (folder / TABLE).exists():
        return []
    try:
        return [curve for curve in read_measured(folder) if len(curve)]
    except CommsimError as error:
        findings.gaps.append(str(error))
        return []


def _judge(scenario: Scenario, curves: list[Curve], findings: Findings) -> None:
    """Each curve against the prediction that commsim ships with, before any calibration."""
    why: dict[str, list[str]] = {}
    source = CurveSource(Path(scenario.source), Path(scenario.source).parent, None, scenario)
    nameless = [replace(curve, source=f"{COLLECTIVES}/{TABLE}") for curve in curves]  # a whole path may name a user
    for curve in nameless:
        try:
            line = predicted_curve(scenario, curve.collective, [int(n) for n in curve.size_bytes])
            findings.judged.append(judged(source, source.verdict_of(line, curve), what_if=True))
        except CommsimError as error:
            why.setdefault(str(error), []).append(curve.collective)
    findings.gaps += [f"{', '.join(names)}: {text}" for text, names in why.items()]


def _calibrate(
    scenario: Scenario, curves: list[Curve], folder: Path, findings: Findings, progress: Callable[[str], None]
) -> None:
    if not curves:
        findings.gaps.append("calibrating: no curve has been measured")
        return
    topology = build_topology(scenario)
    calibration = calibrate(curve_model(scenario, topology, curves), curves, progress)
    write_atomically(folder / PARAMS, params_yaml(calibration, scenario, [topology] * len(calibration.curves)))
    figure = plot_residuals(calibration, f"{scenario.name}: calibration")
    write_atomically(folder / "calibration.png", figure_bytes(figure, "png"))
    findings.calibration = calibration


def _choices(scenario: Scenario, folder: Path, findings: Findings) -> None:
    if (folder / CHOICES).exists():
        findings.choices = logged_choices(scenario, folder / CHOICES)
    else:
        findings.gaps.append("NCCL's own choices were not captured")


def logged_choices(scenario: Scenario, path: Path) -> list[Choice]:
    """NCCL's logged choices in a ``nccl_choices.json`` beside those of the model, each call once."""
    topology, library = build_topology(scenario), scenario.library
    options = Options(
        parse_version(library.version),
        dict(library.env),
        library.launch_mode,
        exact=True,
        graphs=nccl_graphs(scenario, topology),
        registered=library.registered,
    )
    model = Predictor(topology, options)
    choices: dict[Choice, None] = {}
    for logged in json.loads(path.read_text(encoding="utf-8"))["choices"]:
        collective, nbytes = logged["collective"], int(logged["nbytes"])
        if collective in RING_PASSES:  # NCCL logs the bytes of one rank (src/enqueue.cc: count times element)
            nbytes *= model.system.ranks
        ours = model.predict(collective, nbytes)
        log, modelled = f"{logged['algorithm']}/{logged['protocol']}", f"{ours.algorithm}/{ours.protocol}"
        choices[Choice(collective, nbytes, log, modelled, logged.get("channels"), ours.channels)] = None
    return list(choices)


def _traffic(folder: Path, findings: Findings) -> None:
    """Bytes of all ranks in one call, counted and by the schedule, of every row that has both.

    In sum: of an adapter that ranks of a node share, nobody knows whose the bytes were.
    """
    for row in _table(folder / TABLE):
        counted, expected = (
            [float(part) for part in row.get(name, "").split()] for name in ("sent_bytes", "expected_sent_bytes")
        )
        if counted and expected:
            findings.traffic.append((row["collective"], int(row["size_bytes"]), sum(counted), sum(expected)))


def _variants(folder: Path) -> Iterator[Variant]:
    """What was measured as a CUDA graph or with registered memory, as far as it was measured without, too."""
    plain = {(row["collective"], row["size_bytes"]): row for row in _table(folder / COLLECTIVES / TABLE)}
    for name in (GRAPHS, REGISTERED):
        for row in _table(folder / name / TABLE):
            beside = plain.get((row["collective"], row["size_bytes"]))
            if beside is not None:
                times = (1e-6 * float(one["oop_time_us"]) for one in (row, beside))
                yield Variant(name, row["collective"], int(row["size_bytes"]), *times)


def _table(path: Path) -> list[Mapping[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))
    except (OSError, ValueError):
        return []


def wrong_data(folder: Path) -> Iterator[str]:
    """Rows whose result was not what it must be: what a machine says that computes or carries wrongly."""
    for stage in _stages(folder):
        if rows := [row for row in _table(stage / TABLE) if _wrong(row)]:
            first = f"{rows[0]['collective']} of {format_bytes(int(rows[0]['size_bytes']))}"
            yield (
                f"{stage.relative_to(folder)}: wrong data in {first}{_and_more(len(rows) - 1)}, up to "
                f"{max(map(_wrong, rows))} elements"
            )


def left_out_or_slowed(folder: Path) -> Iterator[str]:
    """Rows for which a GPU had no room, and GPUs that ran slower than they can while rows were measured."""
    for stage in _stages(folder):
        conditions = read_conditions(stage)
        missing = conditions.get("left_out") or []
        if missing:
            first = f"{missing[0]['what']} is left out{_and_more(len(missing) - 1)}"
            yield f"{stage.relative_to(folder)}: {first}, {missing[0]['why']}"
        for rank, reasons in (conditions.get("slowed") or {}).items():
            yield f"{stage.relative_to(folder)}: the GPU of rank {rank} was slowed down: {', '.join(reasons)}"


def _stages(folder: Path) -> list[Path]:
    named = [folder / name for name in (COLLECTIVES, SINGLE, STEPS, GRAPHS, REGISTERED)]
    return [stage for stage in [*named, *sorted((folder / FORCED).glob("*/"))] if (stage / TABLE).is_file()]


def _wrong(row: Mapping[str, str]) -> int:
    """Elements of a row that were wrong, in the worse place."""
    return max(int(row[name]) if (row.get(name) or "").isdigit() else 0 for name in ("oop_wrong", "ip_wrong"))


def _and_more(count: int) -> str:
    return f" and {count} more row{'s' * (count > 1)}" if count else ""
