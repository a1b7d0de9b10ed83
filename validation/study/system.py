"""The logs of one system in one process: what is predicted of each, and what of its machine the study speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.errors import CommsimError
from commsim.fitting.models import NcclModel
from commsim.fitting.planes import FieldPredictor
from commsim.nccl.environment import POINT_TO_POINT
from commsim.nccl.predict import Options
from commsim.nccl.uncertainty import link_kind
from study.baselines import baselines
from study.case import Case
from study.log import Log

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Facts:
    """What is said of a log's machine and of its prediction as shipped; `fault`: why there is none."""

    generation: str = ""
    network: str = ""  # "none" on one node
    link: str = ""  # what `commsim.nccl.uncertainty` calls the kind of link
    warnings: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()  # algorithm/protocol of each size
    seconds: Float64 | None = None
    baselines: dict[str, Float64] | None = None  # seconds by the names of `study.baselines`
    fault: str = ""


def predictor_of(case: Case) -> FieldPredictor:
    """The predictor of a case's machine."""
    options = Options(
        case.version,
        case.env,
        case.launch,
        iterations=case.iterations,
        operation=case.operation,
        exact=True,
        registered=case.registered,
    )
    return FieldPredictor(case.topology(), options)


def predictor_key(case: Case) -> tuple[object, ...]:
    """Cases with equal keys have the same predictor."""
    machine, env = (str(sorted(block.items(), key=str)) for block in (case.machine, case.env))
    return machine, env, case.version, case.launch, case.iterations, case.operation, case.registered


def times(case: Case, nbytes: Sequence[int]) -> Float64 | str:
    """Predicted seconds as shipped, or why there are none: one log's fault must not end a validation of many."""
    try:
        predictor = predictor_of(case)
        return np.array([predictor.predict(case.collective, n).time_s for n in nbytes])
    except CommsimError as error:
        return str(error).splitlines()[0]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"internal error: {type(error).__name__}: {error}"


class System:
    """The logs of a system; what has been found of one of their machines is kept from mode to mode."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs = logs
        self._predictors: dict[tuple[object, ...], FieldPredictor] = {}
        self._facts: dict[int, Facts] = {}

    def facts(self, i: int) -> Facts:
        """What is said of a log; it is predicted when it is asked for first."""
        if i not in self._facts:
            self._facts[i] = self._found(i)
        return self._facts[i]

    def known(self, some: Iterable[int] | None = None) -> list[int]:
        """Indices of the logs that can be predicted, of some where they are given."""
        return [i for i in (range(len(self.logs)) if some is None else some) if not self.facts(i).fault]

    def predictor(self, i: int) -> FieldPredictor:
        """The predictor of a log, which logs of the same machine and conditions share."""
        case = self.logs[i].case
        key = predictor_key(case)
        if key not in self._predictors:
            self._predictors[key] = predictor_of(case)
        return self._predictors[key]

    def model(self, parts: Sequence[tuple[int, Sequence[int] | None]]) -> NcclModel:
        """The model of some sizes (None: all) of some logs."""
        return NcclModel([self.predictor(i) for i, _ in parts], [self.logs[i].curve(rows) for i, rows in parts])

    def _found(self, i: int) -> Facts:
        log = self.logs[i]
        try:
            predictor = self.predictor(i)
            predicted = [predictor.predict(log.case.collective, n) for n in log.nbytes]
            simple = baselines(predictor, log.case.collective, log.nbytes)
        except CommsimError as error:
            return Facts(fault=str(error).splitlines()[0])
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            return Facts(fault=f"internal error: {type(error).__name__}: {error}")
        return Facts(
            generation=predictor.generation,
            network=predictor.network if predictor.topology.nodes > 1 else "none",
            link=link_kind(predictor.system, predictor.machine, predictor.topology.network),
            warnings=tuple(predictor.warnings),
            choices=tuple(f"{p.algorithm}/{p.protocol}" for p in predicted),
            seconds=np.array([p.time_s for p in predicted]),
            baselines=simple,
        )

    def best_choice(self, i: int) -> tuple[Float64, tuple[str, ...]]:
        """Seconds and name of the algorithm and protocol that come nearest to each size, of those open to NCCL.

        Sends and receives have no choice.
        """
        log, predictor = self.logs[i], self.predictor(i)
        predictor.parameters = predictor.parameters_at({})  # fits leave theirs
        collective = log.case.collective
        best = []
        for n, measured in zip(log.nbytes, log.time_s.tolist(), strict=True):
            if collective in POINT_TO_POINT:
                options = [predictor.predict(collective, n)]
            else:
                every = {(c.algorithm, c.protocol) for c in predictor.candidates(collective, n)}
                options = [predictor.predict_as(collective, n, choice) for choice in sorted(every)]
            best.append(min(options, key=lambda p: abs(p.time_s / measured - 1)))
        return np.array([p.time_s for p in best]), tuple(f"{p.algorithm}/{p.protocol}" for p in best)
