"""Predicted times as planes over the fitted fields: what makes a fit over thousands of predictions affordable.

Every field is a time or the reciprocal of one (a rate), and a predicted time is built from them by sums and maxima (and
power means, which lie between): it is convex in those times. The plane that touches it at one point is therefore a
lower bound everywhere, and exact while the same things stay critical. A fit works on the planes; whoever wants the time
of the result predicts it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from commsim.accuracy.fields import Field, parameters_at, replaced, scope_of, space
from commsim.nccl.parameters import Parameters, network_of
from commsim.nccl.predict import Options, Predictor
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

    def choose(self, collective: str, nbytes: int) -> tuple[str, str]:
        """As the Predictor's."""
        key = collective, nbytes
        if key not in self._choices:
            self._choices[key] = super().choose(collective, nbytes)
        return self._choices[key]

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

    def coarse(self) -> FieldPredictor:
        """One that cuts the trees of many nodes coarsely; itself for few nodes."""
        if self.system.nodes < _LARGE or self.system.ranks == 1:
            return self
        topology, options = self._job
        return FieldPredictor(topology, replace(options, tree_pieces=_COARSE))


@dataclass(frozen=True, eq=False)
class Planes:
    """The planes of one job: at `nbytes[i]` the time is constant[i] + sum over fields of slope[i, f] * time of f.

    `field` are indices of `space().fields`; `slope` is in seconds per unit of exp(sign * x), so that at x = 0 the
    columns add up to the seconds that each field contributes.
    """

    nbytes: tuple[int, ...]
    seconds: Float64  # at the point of contact
    constant: Float64
    slope: Float64  # (sizes, fields used)
    field: npt.NDArray[np.int64]
    choices: tuple[str, ...]  # algorithm/protocol of each size


def planes(predictor: FieldPredictor, collective: str, nbytes: Sequence[int], values: Mapping[Field, float]) -> Planes:
    """The planes of calls of several sizes, at some values of the fields."""
    fitted, parameters, coarse = space(), predictor.parameters_at(values), predictor.coarse()
    slope, used = np.zeros((len(nbytes), len(fitted.fields))), set()
    seconds, constant, choices = np.zeros(len(nbytes)), np.zeros(len(nbytes)), []
    for i, n in enumerate(nbytes):
        read: dict[str, float] = {}
        predictor.parameters = noting(parameters, read)
        predicted = predictor.predict(collective, n)
        here = seconds[i] = predicted.time_s
        choices.append(f"{predicted.algorithm}/{predicted.protocol}")
        if coarse is not predictor:
            here = coarse.seconds(collective, n, parameters)
        total = 0.0
        for path, value in read.items():
            f = fitted.index.get((scope_of(path, predictor.generation, predictor.network), path))
            if f is None:
                continue
            sign = float(fitted.sign[f])
            moved = replaced(parameters, {path: value * np.exp(sign * _STEP)})
            # d T / d ln(time of the field): what the field contributes at this point.
            part = seconds[i] / here * (coarse.seconds(collective, n, moved) - here) / np.expm1(_STEP)
            total += part
            # In units of exp(sign * x): its value here is (value / start) ** sign.
            slope[i, f] = part / (value / fitted.start[f]) ** sign
            used.add(f)
        constant[i] = seconds[i] - total
    order = np.array(sorted(used), np.int64)
    return Planes(tuple(nbytes), seconds, constant, slope[:, order], order, tuple(choices))


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
