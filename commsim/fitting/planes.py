"""Predicted times as planes over the fitted fields: what makes a fit over thousands of predictions affordable.

Every field is a time or the reciprocal of one (a rate), and a predicted time is built from them by sums and maxima (and
power means, which lie between): it is convex in those times. The plane that touches it at one point is therefore a
lower bound everywhere, and exact while the same things stay critical. A fit works on the planes; whoever wants the time
of the result predicts it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from commsim.fitting.fields import Field, parameters_at, replaced, scope_of, space
from commsim.nccl.parameters import Parameters, network_of
from commsim.nccl.predict import Options, Prediction, Predictor
from commsim.topology.graph import Topology

Float64 = npt.NDArray[np.float64]
M = TypeVar("M", bound=BaseModel)

_STEP = 1e-3
"""Relative step of the differences: large against rounding, small against any change of what is critical."""

_LARGE = 64
_COARSE = 4
"""From `_LARGE` nodes on, slopes are taken from trees cut into at most 3 * `_COARSE` pieces; times are not."""


class FieldPredictor(Predictor):
    """Predicts calls at many values of the fields; NCCL's choice, which depends on none, is made once for a call."""

    def __init__(self, topology: Topology, options: Options) -> None:
        super().__init__(topology, options)
        self._job = topology, options
        self.generation = topology.gpu.generation
        self.network = network_of(topology, options.env)
        self._choices: dict[tuple[str, int], tuple[str, str]] = {}
        self._planes: dict[tuple[str, int, bytes], _Plane] = {}

    def choose(self, collective: str, nbytes: int) -> tuple[str, str]:
        """As the Predictor's."""
        key = collective, nbytes
        if key not in self._choices:
            self._choices[key] = super().choose(collective, nbytes)
        return self._choices[key]

    def predict_as(self, collective: str, nbytes: int, choice: tuple[str, str]) -> Prediction:
        """The prediction of a call with another (algorithm, protocol) than NCCL's."""
        kept = self._choices.get((collective, nbytes))
        self._choices[collective, nbytes] = choice
        try:
            return self.predict(collective, nbytes)
        finally:
            del self._choices[collective, nbytes]
            if kept is not None:
                self._choices[collective, nbytes] = kept

    def parameters_at(self, values: Mapping[Field, float]) -> Parameters:
        """The parameters of this machine at some values of the fields."""
        return parameters_at(self.generation, self.network, values)

    def seconds(self, collective: str, nbytes: int, parameters: Parameters) -> float:
        """Seconds of a call under these parameters."""
        self.parameters = parameters
        return self.predict(collective, nbytes).time_s

    def times(self, collective: str, nbytes: Sequence[int], values: Mapping[Field, float]) -> Float64:
        """Seconds of calls of several sizes at some values of the fields."""
        parameters = self.parameters_at(values)
        return np.array([self.seconds(collective, n, parameters) for n in nbytes])

    def plane(self, collective: str, nbytes: int, x: Float64) -> _Plane:
        """The plane of one size at x = ln(value / shipped) of the fields; made once for a point."""
        key = collective, nbytes, x.tobytes()
        if key not in self._planes:
            self._planes[key] = _touching(self, collective, nbytes, x)
        return self._planes[key]

    @cached_property
    def coarse(self) -> FieldPredictor:
        """One that cuts the trees of many nodes coarsely; itself for few nodes."""
        if self.system.nodes < _LARGE or self.system.ranks == 1:
            return self
        topology, options = self._job
        return FieldPredictor(topology, replace(options, tree_pieces=_COARSE))


@dataclass(frozen=True, eq=False)
class _Plane:
    seconds: float  # at the point of contact
    constant: float
    slope: dict[int, float]  # seconds per unit of exp(sign * x), by the field's index in `space()`


@dataclass(frozen=True, eq=False)
class Planes:
    """A plane per size: the time is constant[i] + sum over fields of slope[i, f] * exp(sign[f] * x[f]).

    At x = 0, the shipped values, the slopes of a size are the seconds that each field contributes.
    """

    seconds: Float64  # (sizes,) at the point of contact
    constant: Float64  # (sizes,)
    slope: Float64  # (sizes, fields of `space()`)


def planes(predictor: FieldPredictor, collective: str, nbytes: Sequence[int], x: Float64) -> Planes:
    """The planes of calls of several sizes, at x = ln(value / shipped) of the fields."""
    each = [predictor.plane(collective, n, x) for n in nbytes]
    slope = np.zeros((len(nbytes), x.size))
    for row, plane in zip(slope, each, strict=True):
        row[list(plane.slope)] = list(plane.slope.values())
    return Planes(np.array([p.seconds for p in each]), np.array([p.constant for p in each]), slope)


def _touching(predictor: FieldPredictor, collective: str, nbytes: int, x: Float64) -> _Plane:
    fitted, parameters, coarse = space(), predictor.parameters_at(space().values(x)), predictor.coarse
    read: dict[str, float] = {}
    here = seconds = predictor.seconds(collective, nbytes, noting(parameters, read))
    if coarse is not predictor:
        here = coarse.seconds(collective, nbytes, parameters)
    slope, constant = dict[int, float](), seconds
    for path, value in read.items():
        f = fitted.index.get((scope_of(path, predictor.generation, predictor.network), path))
        if f is None:
            continue
        sign = float(fitted.sign[f])
        moved = replaced(parameters, {path: value * np.exp(sign * _STEP)})
        # d T / d ln(time of the field): what the field contributes at this point.
        part = seconds / here * (coarse.seconds(collective, nbytes, moved) - here) / np.expm1(_STEP)
        constant -= part
        slope[f] = part / (value / fitted.shipped[f]) ** sign
    return _Plane(seconds, constant, slope)


# -- what a predicted time depends on ---------------------------------


class _Noting:
    """A model whose instances note every number that is read from them, by its path, in `_seen`."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if isinstance(value, float):
            seen, prefix = super().__getattribute__("_seen")
            seen[prefix + name] = value
        return value


def noting(model: M, seen: dict[str, float], prefix: str = "") -> M:
    """A copy of a model that writes every number read from it to `seen`, as ``{"base.LL": 4e-6}``."""
    values: dict[str, Any] = {
        name: noting(value, seen, f"{prefix}{name}.") if isinstance(value, BaseModel) else value
        for name, value in model.__dict__.items()
    }
    copy: M = _noting_class(type(model)).model_construct(**values)
    object.__setattr__(copy, "_seen", (seen, prefix))
    return copy


@lru_cache(maxsize=64)
def _noting_class(kind: type[M]) -> type[M]:
    return type(f"Noting{kind.__name__}", (_Noting, kind), {})
