"""What a scenario's library is fitted to: curves of its machine, or the numbers that `library.measured` knows of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from commsim.bounds import lower_bound_s
from commsim.errors import CalibrationError, CommsimError, Fault, OutOfReachError, ScenarioError, TopologyError
from commsim.fitting.calibration import Calibration, adapt
from commsim.fitting.known import known_curve, size_bytes
from commsim.fitting.models import CurveModel, GlooModel, NcclModel, unpredictable
from commsim.fitting.planes import FieldPredictor
from commsim.nccl.operation import Operation
from commsim.nccl.predict import Options
from commsim.scenario.setting import MeasuredOn, Setting, nccl_graphs
from commsim.topology.presets import load_topology
from commsim.units import format_bytes, format_time

if TYPE_CHECKING:
    from commsim.measure.records import Curve
    from commsim.topology.graph import Topology

FAR = 0.05
"""A known number missed by more than this share is named: the prior forbids it, or what a link can carry."""

DOUBTED = 3.0
"""Times that a known number is apart from what is shipped before one should look whether it is of this machine, call
and unit: of the first and last sizes of 412 published logs 3 % are."""

NAMED = 3
"""Parameters that `known_words` names, those that moved most."""


def curve_model(
    scenario: Setting, topology: Topology, curves: Sequence[Curve], on: Sequence[Topology] | None = None
) -> CurveModel:
    """The model that a scenario's library has; CalibrationError where it has no parameters.

    `on`: the shape of the machine that each curve was measured on, by default that of the scenario.
    """
    shapes = [topology] * len(curves) if on is None else on
    if scenario.library.name == "gloo":
        return GlooModel(curves, shapes, one_host=scenario.library.one_host, mode=scenario.mode)
    if scenario.library.name == "nccl":
        predictors = [_predictor(scenario, shape, curve) for curve, shape in zip(curves, shapes, strict=True)]
        return NcclModel(predictors, curves)
    raise CalibrationError("library none has no parameters but its links; expected a scenario of nccl or gloo")


def _predictor(scenario: Setting, topology: Topology, curve: Curve) -> FieldPredictor:
    """The predictor of a curve: its own data type, reduction and environment, everything else the scenario's."""
    library = scenario.library
    options = Options(
        version=library.named_version,
        env=library.env | curve.env,
        launch=library.launch_mode,
        registered=library.registered,
        operation=Operation.named(curve.dtype, curve.redop),
        exact=True,
        graphs=nccl_graphs(scenario, topology),
    )
    try:
        return FieldPredictor(topology, options)
    except CommsimError as error:
        raise unpredictable(curve, error) from None


def adapted(scenario: Setting, topology: Topology, known: Mapping[str, Mapping[str, str]]) -> Calibration:
    """The parameters of a scenario's library adapted to what is known of a topology: by collective, numbers by size.

    CalibrationError where they cannot be, OutOfReachError where a number is below what the links allow, or is met only
    with parameters out of reach.
    """
    curves = [known_curve(numbers, name, topology.world_size) for name, numbers in known.items()]
    below = [
        (curve.collective, int(n), f"{format_bytes(int(n))} is taken to last {_short(t)}, which no algorithm can: the "
                                   f"links allow {_short(least)}")
        for curve in curves
        for n, t in zip(curve.size_bytes, curve.time_s.tolist(), strict=True)
        if t < (least := lower_bound_s(curve.collective, int(n), topology, in_network=True).seconds)
    ]  # fmt: skip
    if below:
        raise OutOfReachError(below)
    return adapt(curve_model(scenario, topology, curves), curves)


@dataclass(frozen=True)
class _Question:
    """A scenario by what its known numbers are of."""

    key: str
    scenario: Setting = field(compare=False)
    on: MeasuredOn = field(compare=False)


@dataclass(frozen=True, eq=False)
class Known:
    """The machine that `library.measured` of a scenario is of, and the parameters adapted to it."""

    topology: Topology
    fit: Calibration

    def words(self) -> str:
        """What was taken as known, and how the parameters moved, in a line."""
        times = [
            f"{collective} of {format_bytes(nbytes)} in {_short(known)} (as shipped {_short(shipped)})"
            for (collective, nbytes), known, shipped in zip(
                self._calls(), self.fit.measured_s.tolist(), self.fit.before_s.tolist(), strict=True
            )
        ]
        moved = sorted(self.fit.values, key=lambda v: -abs(np.log(v.value / v.shipped)))
        named = [f"{v.path} x {v.value / v.shipped:.3g}" for v in moved[:NAMED]]
        rest = moved[NAMED:]
        if rest:
            factors = [v.value / v.shipped for v in rest]
            span = dict.fromkeys(f"{factor:.3g}" for factor in (min(factors), max(factors)))
            named.append(f"{len(rest)} more x {' .. '.join(span)}")
        of = f"{self.topology.world_size} ranks of {self.topology.name}"
        return f"taken as known: {', '.join(times)} on {of}; parameters moved: {', '.join(named) or 'none'}"

    def missed(self) -> list[str]:
        """A sentence for each number that is not met, or far from what is shipped."""
        return [f"library.measured: {text}" for text in doubts(self.fit)]

    def _calls(self) -> list[tuple[str, int]]:
        return _calls(self.fit)


def doubts(fit: Calibration) -> list[str]:
    """A sentence for each known number that the parameters do not meet, or that is far from what is shipped."""
    out = []
    columns = (fit.measured_s.tolist(), fit.fitted_s.tolist(), fit.before_s.tolist())
    for (collective, nbytes), known, now, shipped in zip(_calls(fit), *columns, strict=True):
        what = f"{collective} of {format_bytes(nbytes)}"
        if abs(now / known - 1) > FAR:
            out.append(f"{what} is not met: {_short(now)} instead of {_short(known)}")
        if max(known / shipped, shipped / known) > DOUBTED:
            times = f"{known / shipped:.3g} times" if known > shipped else f"a {shipped / known:.3g}th of"
            out.append(f"{what} is {times} what is shipped: look whether it is of this machine, call and unit")
    return out


def _calls(fit: Calibration) -> list[tuple[str, int]]:
    return [(curve.collective, int(n)) for curve in fit.curves for n in curve.size_bytes]


def _short(seconds: float) -> str:
    return format_time(float(f"{seconds:.3g}"))


def known_of(scenario: Setting) -> Known:
    """What `library.measured` of a scenario gives, fitted once in a process.

    ScenarioError, at each number, where they are out of reach.
    """
    library = scenario.library
    on = library.measured_on or MeasuredOn(topology=scenario.topology, library=library, mode=scenario.mode)
    key = f"{scenario.base_dir}\n{on.model_dump_json(exclude_unset=True)}\n{sorted(library.measured.items())}"
    return _known(_Question(key, scenario, on))


@lru_cache(maxsize=16)
def _known(question: _Question) -> Known:
    scenario, on = question.scenario, question.on
    there = Setting.model_construct(name=scenario.name, topology=on.topology, library=on.library, mode=on.mode)
    there._base_dir = scenario.base_dir
    try:
        topology = load_topology(on.topology, scenario.base_dir)
        return Known(topology, adapted(there, topology, dict(scenario.library.measured.items())))
    except OutOfReachError as error:
        raise ScenarioError([_fault(scenario, *miss) for miss in error.misses]) from None
    except CalibrationError as error:
        raise scenario.document.error(("library", "measured"), str(error)) from None
    except TopologyError as error:
        raise scenario.document.error(("library", "measured"), str(error).splitlines()[0]) from None


def _fault(scenario: Setting, collective: str, nbytes: int, text: str) -> Fault:
    numbers = next(numbers for name, numbers in scenario.library.measured.items() if name == collective)
    size = next(size for size in numbers if size_bytes(size) == nbytes)
    return scenario.document.fault(("library", "measured", collective, size), text)
