"""Predicted times as planes over the fitted fields: what makes a fit over thousands of predictions affordable.

Every field is a time or the reciprocal of one (a rate), and a predicted time is built from them by sums and maxima (and
power means, which lie between): it is convex in those times. The plane that touches it at one point is therefore a
lower bound everywhere, and exact while the same things stay critical. A fit works on the planes; whoever wants the time
of the result predicts it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MethodType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from commsim.accuracy.baselines import baselines
from commsim.accuracy.case import Case
from commsim.accuracy.fields import Field, parameters_at, replaced, scope_of, space
from commsim.errors import CommsimError
from commsim.nccl.channels import Call
from commsim.nccl.parameters import Parameters, network_of
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.uncertainty import link_kind

R = TypeVar("R")

Float64 = npt.NDArray[np.float64]

_STEP = 1e-3
"""Relative step of the differences: large against rounding, small against any change of what is critical."""

_LARGE = 64
_COARSE = 4
"""From `_LARGE` nodes on, slopes are taken from trees cut into at most 3 * `_COARSE` pieces; times are not."""


class Recorder:
    """Stands for a model and notes the path of every number that is read from it."""

    def __init__(self, model: BaseModel, seen: dict[str, float], prefix: str = "") -> None:
        self._model, self._seen, self._prefix = model, seen, prefix

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if isinstance(value, BaseModel):
            return Recorder(value, self._seen, f"{self._prefix}{name}.")
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self)
        if isinstance(value, float):
            self._seen[self._prefix + name] = value
        return value


class FitPredictor(Predictor):
    """A Predictor that keeps what fits ask for again and again: choices, and channel times by the numbers they read."""

    def __init__(self, case: Case, parameters: Parameters | None = None) -> None:
        topology = case.topology()
        options = Options(
            case.version,
            case.env,
            case.launch,
            iterations=case.iterations,
            operation=case.operation,
            exact=True,
            graphs=case.graphs,
        )
        super().__init__(topology, options, parameters)
        self.generation = topology.gpu.generation
        self.network = network_of(topology, case.env)
        self._choices: dict[tuple[str, int], tuple[str, str]] = {}
        self._times: dict[tuple[str, int, str, str], list[tuple[dict[str, float], tuple[float, float, str, str]]]] = {}

    def choose(self, collective: str, nbytes: int) -> tuple[str, str]:
        """As the Predictor's, once per size."""
        key = collective, nbytes
        if key not in self._choices:
            self._choices[key] = super().choose(collective, nbytes)
        return self._choices[key]

    def _chain(self, call: Call) -> tuple[float, float, str, str]:
        kept = self._times.setdefault((call.collective, call.nbytes, call.algorithm, call.protocol.name), [])
        outer: Any = self.parameters
        recording = isinstance(outer, Recorder)
        model = outer._model if recording else outer
        for read, found in kept:
            if all(_at(model, path) == value for path, value in read.items()):
                if recording:
                    outer._seen.update(read)
                return found
        seen: dict[str, float] = {}
        self.parameters = Recorder(model, seen)  # type: ignore[assignment]
        try:
            found = super()._chain(call)
        finally:
            self.parameters = outer
        kept.append((seen, found))
        if len(kept) > 64:
            del kept[0]
        if recording:
            outer._seen.update(seen)
        return found

    def time(self, collective: str, nbytes: int, parameters: Parameters) -> float:
        """Seconds of a call under other parameters."""
        self.parameters = parameters
        return self.predict(collective, nbytes).time_s

    def coarser(self) -> None:
        """Forget what is kept and cut trees coarsely from now on."""
        self._times.clear()
        if self.system.nodes >= _LARGE and self.system.ranks > 1:
            self._tree_timer().coarse = _COARSE


def _at(model: Any, path: str) -> float:
    for name in path.split("."):
        model = getattr(model, name)
    return float(model)


@dataclass(frozen=True)
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
    generation: str
    network: str  # "none" on one node
    link: str  # what `commsim.nccl.uncertainty` calls the kind of link
    choices: tuple[str, ...]  # algorithm/protocol of each size
    warnings: tuple[str, ...]
    baselines: dict[str, Float64]  # seconds by the names of `commsim.accuracy.baselines`


def planes(case: Case, nbytes: Sequence[int], values: Mapping[Field, float]) -> Planes:
    """The planes of a case's predictions at some field values."""
    fitted = space()
    predictor = FitPredictor(case)
    scope = {p: scope_of(p, predictor.generation, predictor.network) for p in _paths()}
    parameters = parameters_at(predictor.generation, predictor.network, values)
    predictor.parameters = parameters
    predicted = [predictor.predict(case.collective, n) for n in nbytes]
    seconds = np.array([p.time_s for p in predicted])
    choices = [f"{p.algorithm}/{p.protocol}" for p in predicted]
    predictor.coarser()
    columns: dict[int, Float64] = {}
    constant = np.zeros(len(nbytes))
    for i, n in enumerate(nbytes):
        seen: dict[str, float] = {}
        here = predictor.time(case.collective, n, Recorder(parameters, seen))  # type: ignore[arg-type]
        scale = seconds[i] / here
        total = 0.0
        for path, value in seen.items():
            f = fitted.index.get((scope.get(path, ""), path))
            if f is None:
                continue
            sign = 1.0 if fitted.is_time[f] else -1.0
            moved = replaced(parameters, {path: value * np.exp(sign * _STEP)})
            # d T / d ln(time of the field): what the field contributes at this point.
            part = scale * (predictor.time(case.collective, n, moved) - here) / np.expm1(_STEP)
            total += part
            # In units of exp(sign * x): its value here is (value / start) ** sign.
            columns.setdefault(f, np.zeros(len(nbytes)))[i] = part / (value / fitted.start[f]) ** sign
        constant[i] = seconds[i] - total
    order = sorted(columns)
    slope = np.stack([columns[f] for f in order], axis=1) if order else np.zeros((len(nbytes), 0))
    return Planes(
        nbytes=tuple(nbytes),
        seconds=seconds,
        constant=constant,
        slope=slope,
        field=np.array(order, np.int64),
        generation=predictor.generation,
        network=predictor.network if predictor.topology.nodes > 1 else "none",
        link=link_kind(predictor.system, predictor.machine, predictor.topology.network),
        choices=tuple(choices),
        warnings=tuple(predictor.warnings),
        baselines=baselines(predictor, case.collective, nbytes),
    )


@lru_cache(maxsize=1)
def _paths() -> tuple[str, ...]:
    return tuple(sorted({path for _, path in space().fields}))


def times(case: Case, nbytes: Sequence[int], values: Mapping[Field, float]) -> Float64:
    """Predicted seconds at some field values."""
    predictor = FitPredictor(case)
    parameters = parameters_at(predictor.generation, predictor.network, values)
    return np.array([predictor.time(case.collective, n, parameters) for n in nbytes])


def explored(case: Case, nbytes: Sequence[int], values: Mapping[Field, float]) -> Planes | str:
    """The planes of a case, or why it cannot be predicted: one log's fault must not end a validation of many."""
    return _or_why(planes, case, nbytes, values)


def attempted(case: Case, nbytes: Sequence[int], values: Mapping[Field, float]) -> Float64 | str:
    """The times of a case, or why it cannot be predicted."""
    return _or_why(times, case, nbytes, values)


def _or_why(
    work: Callable[[Case, Sequence[int], Mapping[Field, float]], R],
    case: Case,
    nbytes: Sequence[int],
    values: Mapping[Field, float],
) -> R | str:
    try:
        return work(case, nbytes, values)
    except CommsimError as error:
        return str(error).splitlines()[0]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"internal error: {type(error).__name__}: {error}"


def jobs_key(case: Case) -> tuple[object, ...]:
    """Cases with equal keys are predicted alike at equal sizes."""
    return (str(sorted(case.machine.items(), key=str)), case.version, case.launch, tuple(sorted(case.env.items())),
            case.collective, case.operation, "" if case.graphs is None else case.graphs.path)  # fmt: skip


def unique(cases: Sequence[Case]) -> Iterator[tuple[Case, list[int]]]:
    """One case per key with the indices of all cases that share it."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault(jobs_key(case), []).append(i)
    for indices in groups.values():
        yield cases[indices[0]], indices
