"""The planes and times of published logs, each on its own machine, with what simpler models say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from commsim.accuracy.fields import Field
from commsim.accuracy.planes import FieldPredictor, Planes, planes
from commsim.errors import CommsimError
from commsim.nccl.predict import Options
from commsim.nccl.uncertainty import link_kind
from study.baselines import baselines
from study.case import Case

R = TypeVar("R")

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CasePlanes(Planes):
    """The planes of a case, and what of its machine the study speaks of."""

    generation: str
    network: str  # "none" on one node
    link: str  # what `commsim.nccl.uncertainty` calls the kind of link
    warnings: tuple[str, ...]
    baselines: dict[str, Float64]  # seconds by the names of `study.baselines`


def predictor_of(case: Case) -> FieldPredictor:
    """The predictor of a case's machine."""
    options = Options(
        case.version,
        case.env,
        case.launch,
        iterations=case.iterations,
        operation=case.operation,
        exact=True,
    )
    return FieldPredictor(case.topology(), options)


def case_planes(case: Case, nbytes: Sequence[int], values: Mapping[Field, float]) -> CasePlanes:
    """The planes of a case's predictions at some field values."""
    predictor = predictor_of(case)
    made = planes(predictor, case.collective, nbytes, values)
    return CasePlanes(
        **vars(made),
        generation=predictor.generation,
        network=predictor.network if predictor.topology.nodes > 1 else "none",
        link=link_kind(predictor.system, predictor.machine, predictor.topology.network),
        warnings=tuple(predictor.warnings),
        baselines=baselines(predictor, case.collective, nbytes),
    )


def times(case: Case, nbytes: Sequence[int], values: Mapping[Field, float]) -> Float64:
    """Predicted seconds at some field values."""
    return predictor_of(case).times(case.collective, nbytes, values)


def explored(case: Case, nbytes: Sequence[int], values: Mapping[Field, float]) -> CasePlanes | str:
    """The planes of a case, or why it cannot be predicted: one log's fault must not end a validation of many."""
    return _or_why(case_planes, case, nbytes, values)


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


def _jobs_key(case: Case) -> tuple[object, ...]:
    """Cases with equal keys are predicted alike at equal sizes."""
    return (str(sorted(case.machine.items(), key=str)), case.version, case.launch, tuple(sorted(case.env.items())),
            case.collective, case.operation)  # fmt: skip


def unique(cases: Sequence[Case]) -> Iterator[tuple[Case, list[int]]]:
    """One case per key with the indices of all cases that share it."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault(_jobs_key(case), []).append(i)
    for indices in groups.values():
        yield cases[indices[0]], indices
