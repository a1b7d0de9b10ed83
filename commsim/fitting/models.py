"""What a calibration fits: the fields of a library's model, and its predictions as planes over them.

See `commsim.fitting.planes` for why a predicted time is the largest of planes that touch it. gloo's is one too: every
parameter is a time or a rate, and the engine adds and takes maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.errors import CalibrationError, CommsimError
from commsim.fitting.fields import FieldSpace, parameters_at, replaced, space, walk
from commsim.fitting.planes import FieldPredictor, Planes, planes
from commsim.measure.records import Curve

if TYPE_CHECKING:
    from pydantic import BaseModel

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


class GlooModel:
    """The gloo model's predictions of curves, as a function of x = ln(value / shipped) of its `fields`.

    `on` is the topology of each curve; the prior is centered at `center`.
    """

    def __init__(self, curves: Sequence[Curve], on: Sequence[Topology], *, one_host: bool, mode: str) -> None:
        from commsim.gloo.parameters import shipped_parameters

        self._shipped = shipped_parameters()
        self._on, self._curves, self._one_host, self._mode = on, curves, one_host, mode
        listed = [parameter for parameter in walk(self._shipped) if parameter[0] in _WIDTH]
        paths, shipped, is_time = zip(*listed, strict=True)
        names = tuple(("gloo", path) for path in paths)
        variance = np.diag([_WIDTH[path] ** 2 for path in paths])
        index = {field: i for i, field in enumerate(names)}
        self.fields = FieldSpace(names, np.array(shipped), np.array(is_time), variance, index)
        self.center = np.zeros(len(names))

    def part(self, some: Sequence[int]) -> GlooModel:
        """The model of some of the curves, by their indices."""
        curves, on = [self._curves[i] for i in some], [self._on[i] for i in some]
        return GlooModel(curves, on, one_host=self._one_host, mode=self._mode)

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

    def contact(self, x: Float64) -> Planes:
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
        return Planes(here, here - slope @ np.exp(sign * x), slope)


class NcclModel:
    """The same of the channel model, through the planes of `commsim.fitting.planes`; a predictor for each curve."""

    def __init__(self, predictors: Sequence[FieldPredictor], curves: Sequence[Curve]) -> None:
        self.fields = space()
        self.center = np.zeros(len(self.fields.fields))
        self._curves = [(p, c, [int(n) for n in c.size_bytes]) for p, c in zip(predictors, curves, strict=True)]
        widest = max(predictors, key=lambda p: p.topology.nodes)  # whose calls go over the network, if any do
        self._generation, self._network = widest.generation, widest.network
        self._scopes = frozenset(scope for p in predictors for scope in (p.generation, p.network, "launch"))

    def part(self, some: Sequence[int]) -> NcclModel:
        """As of `GlooModel`; what is known of their planes is kept."""
        each = [self._curves[i] for i in some]
        return NcclModel([predictor for predictor, _, _ in each], [curve for _, curve, _ in each])

    def path(self, field: int) -> str:
        """As of `GlooModel`; empty for a field of other machines."""
        scope, path = self.fields.fields[field]
        return path if scope in self._scopes else ""

    def parameters(self, x: Float64) -> BaseModel:
        """As of `GlooModel`."""
        return parameters_at(self._generation, self._network, self.fields.values(x))

    def contact(self, x: Float64) -> Planes:
        """As of `GlooModel`; CalibrationError for a curve that cannot be predicted."""
        parts = []
        for predictor, curve, nbytes in self._curves:
            try:
                parts.append(planes(predictor, curve.collective, nbytes, x))
            except CommsimError as error:
                raise unpredictable(curve, error) from None
        return Planes(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("seconds", "constant", "slope")))

    def times(self, x: Float64) -> Float64:
        """As of `GlooModel`."""
        values = self.fields.values(x)
        return np.concatenate([p.times(curve.collective, nbytes, values) for p, curve, nbytes in self._curves])


CurveModel = GlooModel | NcclModel


def unpredictable(curve: Curve, error: CommsimError) -> CalibrationError:
    """Why a curve cannot be fitted to."""
    return CalibrationError(f"{curve.name} cannot be predicted: {str(error).splitlines()[0]}")
