"""What a calibration fits: the fields of a library's model, and its predictions as planes over them.

See `commsim.accuracy.planes` for why a predicted time is the largest of planes that touch it. gloo's is one too: every
parameter is a time or a rate, and the engine adds and takes maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.accuracy.fields import FieldSpace, parameters_at, replaced, scope_of, space, walk
from commsim.errors import CalibrationError, CommsimError
from commsim.measure.records import Curve
from commsim.nccl.operation import Operation

if TYPE_CHECKING:
    from pydantic import BaseModel

    from commsim.accuracy.planes import FieldPredictor
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

Float64 = npt.NDArray[np.float64]

_STEP = 1e-3
_WIDTH = {
    "call": 2.3,
    "message": 2.3,
    "wake": 3.0,
    "copy_rate": 1.2,
    "reduce_rate": 1.2,
    "memory_rate": 1.2,
    "goodput": 0.1,
}
"""Standard deviation of ln(value) that one would grant each parameter of gloo before measuring: times of system calls
and of waking up differ by the machine and its load tenfold and more, copy rates about threefold, headers hardly."""


@dataclass(frozen=True, eq=False)
class Contact:
    """A plane per row that touches the predictions at one point: seconds, constant (rows,), slope (rows, fields)."""

    seconds: Float64
    constant: Float64
    slope: Float64


class GlooModel:
    """The gloo model's predictions of curves, as a function of x = ln(value / start) of its `fields`.

    `on` is the topology of each curve; `center` is the x of the shipped parameters.
    """

    def __init__(self, scenario: Scenario, curves: Sequence[Curve], on: Sequence[Topology]) -> None:
        from commsim.gloo.parameters import shipped_parameters

        self._shipped = shipped_parameters()
        self._on, self._curves = on, curves
        self._one_host, self._mode = scenario.library.one_host, scenario.mode
        listed = [parameter for parameter in walk(self._shipped) if parameter[0] in _WIDTH]
        paths, start, is_time = zip(*listed, strict=True)
        names = tuple(("gloo", path) for path in paths)
        variance = np.diag([_WIDTH[path] ** 2 for path in paths])
        index = {field: i for i, field in enumerate(names)}
        self.fields = FieldSpace(names, np.array(start), np.array(is_time), variance, index)
        self.center = np.zeros(len(names))

    def path(self, field: int) -> str:
        """The name of a field in a parameter file."""
        return self.fields.fields[field][1]

    def parameters(self, x: Float64) -> BaseModel:
        """The library's parameters at a point."""
        values = {path: value for (_, path), value in self.fields.values(x).items()}
        return replaced(self._shipped, values)  # type: ignore[no-any-return]

    def times(self, x: Float64) -> Float64:
        """Predicted seconds of every size of every curve, in order."""
        from commsim.collectives.semantics import ITEM_BYTES
        from commsim.gloo.predict import GlooPredictor

        parameters: Any = self.parameters(x)
        models = {
            id(topology): GlooPredictor(topology, parameters, one_host=self._one_host, mode=self._mode)
            for topology in self._on
        }
        return np.array(
            [
                models[id(topology)].predict(c.collective, int(n), root=c.root or 0, itemsize=item).time_s
                for c, topology in zip(self._curves, self._on, strict=True)
                for item in [ITEM_BYTES.get(c.dtype, 4)]
                for n in c.size_bytes
            ]
        )

    def contact(self, x: Float64) -> Contact:
        """The planes at a point, over all sizes of all curves in order."""
        here = self.times(x)
        sign = self.fields.sign
        slope = np.zeros((here.size, x.size))
        for f in range(x.size):
            if self.path(f) == "goodput" and all(topology.nodes == 1 for topology in self._on):
                continue  # no network
            moved = x.copy()
            moved[f] += sign[f] * _STEP
            part = (self.times(moved) - here) / np.expm1(_STEP)
            part[np.abs(part) < 1e-6 * here] = 0.0
            slope[:, f] = part / np.exp(sign[f] * x[f])
        return Contact(here, here - slope @ np.exp(sign * x), slope)


class NcclModel:
    """The same of the channel model, through the planes of `commsim.accuracy.planes`."""

    def __init__(self, scenario: Scenario, topology: Topology, curves: Sequence[Curve], on: Sequence[Topology]) -> None:
        from commsim.nccl.parameters import load_parameters, network_of

        self.fields = space()
        self._generation = topology.gpu.generation
        widest = max((topology, *on), key=lambda shape: shape.nodes)  # whose calls go over the network, if any do
        self._network = network_of(widest, scenario.library.env)
        shipped = load_parameters(self._generation, self._network)
        self._scopes = frozenset(scope_of(p, self._generation, self._network) for p, _, _ in walk(shipped))
        self.center = np.zeros(len(self.fields.fields))
        for path, value, _ in walk(shipped):
            field = self.fields.index.get((scope_of(path, self._generation, self._network), path))
            if field is not None and value > 0:
                self.center[field] = np.log(value / self.fields.start[field])
        self._curves = [(curve, [int(n) for n in curve.size_bytes]) for curve in curves]
        self._predictors = [_predictor(scenario, shape, curve) for curve, shape in zip(curves, on, strict=True)]

    def path(self, field: int) -> str:
        """As of `GlooModel`; empty for a field of other machines."""
        scope, path = self.fields.fields[field]
        return path if scope in self._scopes else ""

    def parameters(self, x: Float64) -> BaseModel:
        return parameters_at(self._generation, self._network, self.fields.values(x))

    def contact(self, x: Float64) -> Contact:
        from commsim.accuracy.planes import planes

        values, parts = self.fields.values(x), []
        for predictor, (curve, nbytes) in zip(self._predictors, self._curves, strict=True):
            try:
                made = planes(predictor, curve.collective, nbytes, values)
            except CommsimError as error:
                raise _unpredictable(curve, error) from None
            slope = np.zeros((len(nbytes), len(self.fields.fields)))
            slope[:, made.field] = made.slope
            parts.append(Contact(made.seconds, made.constant, slope))
        return Contact(
            *(np.concatenate([getattr(p, name) for p in parts]) for name in ("seconds", "constant", "slope"))
        )

    def times(self, x: Float64) -> Float64:
        values = self.fields.values(x)
        pairs = zip(self._predictors, self._curves, strict=True)
        return np.concatenate([p.times(curve.collective, nbytes, values) for p, (curve, nbytes) in pairs])


CurveModel = GlooModel | NcclModel


def _predictor(scenario: Scenario, topology: Topology, curve: Curve) -> FieldPredictor:
    """The predictor of a curve: its own data type, reduction and environment, everything else the scenario's."""
    from commsim.accuracy.planes import FieldPredictor
    from commsim.nccl.predict import Options
    from commsim.nccl.version import parse_version
    from commsim.scenario.params import nccl_graphs

    library = scenario.library
    options = Options(
        version=parse_version(library.version) if "version" in library.model_fields_set else None,
        env=library.env | curve.env,
        launch=library.launch_mode,
        operation=Operation.named(curve.dtype, curve.redop),
        exact=True,
        graphs=nccl_graphs(scenario, topology),
    )
    try:
        return FieldPredictor(topology, options)
    except CommsimError as error:
        raise _unpredictable(curve, error) from None


def _unpredictable(curve: Curve, error: CommsimError) -> CalibrationError:
    return CalibrationError(f"{curve.name} cannot be predicted: {str(error).splitlines()[0]}")


def model_of(
    scenario: Scenario, topology: Topology, curves: Sequence[Curve], on: Sequence[Topology] | None = None
) -> CurveModel:
    """The model that a scenario's library has; CalibrationError where it has no parameters.

    `on`: the shape of the machine that each curve was measured on, by default that of the scenario.
    """
    shapes = [topology] * len(curves) if on is None else on
    if scenario.library.name == "gloo":
        return GlooModel(scenario, curves, shapes)
    if scenario.library.name == "nccl":
        return NcclModel(scenario, topology, curves, shapes)
    raise CalibrationError("library none has no parameters but its links; expected a scenario of nccl or gloo")
