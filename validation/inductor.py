"""Torch inductor's own estimate of a collective against commsim's, on the same published calls.

    python validation/inductor.py [FOLDER ...]

The logs are those of `validation/measured`, `silicon` and `outside` of the collectives that inductor has a formula for,
on two ranks or more, not known degraded. Inductor's `estimate_nccl_collective_runtime_impl` (torch 2.13.0) is told the
generation of the GPUs, whether NVLink joins them and how many a node has, as it would read them on that machine. It
gets the bytes that its callers give it, of a node of its own graph (the inputs of a rank) and of an FX graph (inputs
and outputs of a rank), and those of nccl-tests, which its formula means. Ours is the prediction as shipped: with the
conditions of the log (NCCL's version, its environment, launches), and with the machine alone.

The error of a log is the mean of |estimate - measured| / measured over its sizes. Exit status 1 where the median of
ours over all logs is above half of the least of inductor's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from commsim.collectives.semantics import GATHERING, SCATTERING
from commsim.errors import CommsimError
from commsim.nccl.predict import Options, Predictor
from commsim.topology.graph import Topology
from study.case import Case
from study.log import Float64, Log, read_logs
from study.paths import VALIDATION
from study.system import predictor_key, predictor_of

FOLDERS = ("measured", "silicon", "outside")
THEIRS = ("inductor, bytes of its own graph", "inductor, bytes of an FX graph", "inductor, bytes of nccl-tests")
OURS = ("commsim, the machine alone", "commsim, the conditions of the log")


@dataclass(frozen=True)
class Score:
    """The errors of a log by the names of `THEIRS` and `OURS`, and those of each of its sizes."""

    log: Log
    errors: dict[str, Float64]

    @property
    def means(self) -> dict[str, float]:
        """The error of the log by each road."""
        return {name: float(errors.mean()) for name, errors in self.errors.items()}


def formula_of(collective: str) -> Any:
    """What inductor calls a collective; None of those that it has no formula for."""
    from torch._inductor.comm_analysis import NCCL_COLL

    return getattr(NCCL_COLL, collective.upper(), None)


def generation_of(sm: int) -> Any:
    """What inductor takes a GPU for by the first digits of its compute capability (`get_gpu_type`)."""
    from torch._inductor.comm_analysis import NVIDIA_GPU_TYPE

    by_major = ((10, "BLACKWELL"), (9, "HOPPER"), (8, "AMPERE"), (7, "VOLTA"))
    return NVIDIA_GPU_TYPE[next((kind for major, kind in by_major if sm // 10 >= major), "AMPERE")]


@contextmanager
def on_machine(topology: Topology, gpus_per_node: int) -> Iterator[None]:
    """Inductor sees the GPUs of a machine."""
    from torch._inductor import comm_analysis

    generation, linked = generation_of(topology.gpu.sm), topology.nvlink_links > 0
    with (
        mock.patch.object(comm_analysis, "get_gpu_type", return_value=generation),
        mock.patch.object(comm_analysis, "_has_nvlink", return_value=linked),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.device_count", return_value=gpus_per_node),
    ):
        yield


def bytes_of(collective: str, size: int, ranks: int) -> tuple[int, int, int]:
    """What inductor counts of a call of an nccl-tests size: of its own graph, of an FX graph, and that size."""
    given = size // ranks if collective in GATHERING else size
    taken = size // ranks if collective in SCATTERING else size
    return given, given + taken, size


def inductors(log: Log, topology: Topology) -> list[Float64]:
    """Seconds of each size by inductor's formula, by the names of `THEIRS`."""
    from torch._inductor.comm_analysis import estimate_nccl_collective_runtime_impl as estimate

    case = log.case
    with on_machine(topology, case.gpus_per_node):
        rows = [
            [1e-3 * estimate(n, case.n_ranks, formula_of(case.collective)) for n in counted]
            for counted in (bytes_of(case.collective, size, case.n_ranks) for size in log.nbytes)
        ]
    return list(np.array(rows).T)


class Scores:
    """Scores logs; what has been found of a machine is kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Predictor] = {}
        self._plain: dict[str, Predictor] = {}

    def of(self, log: Log) -> Score | None:
        """The errors of a log; None where its machine cannot be built or its call not be predicted."""
        case = log.case
        try:
            predictor = self._predictor(case)
            plain = self._plain.setdefault(str(case.machine), Predictor(predictor.topology, Options(exact=True)))
            ours = [[model.predict(case.collective, n).time_s for n in log.nbytes] for model in (plain, predictor)]
        except CommsimError:
            return None
        seconds = [*inductors(log, predictor.topology), *map(np.array, ours)]
        errors = {n: np.abs(s / log.time_s - 1) for n, s in zip((*THEIRS, *OURS), seconds, strict=True)}
        return Score(log, errors)

    def _predictor(self, case: Case) -> Predictor:
        key = predictor_key(case)
        if key not in self._known:
            self._known[key] = predictor_of(case)
        return self._known[key]


def scored(folders: list[Path]) -> list[tuple[str, Score]]:
    """The scored logs, each with the name of its folder."""
    scores, out = Scores(), []
    for folder in folders:
        for log in read_logs([folder]):
            case = log.case
            if case.n_ranks < 2 or case.healthy == "no" or formula_of(case.collective) is None:
                continue
            if (score := scores.of(log)) is not None:
                out.append((folder.name, score))
    return out


def table(parts: dict[str, list[Score]]) -> list[str]:
    """Lines of a table: medians over logs, and over all sizes after the stroke, in percent."""
    lines = [f"{'':38}" + "".join(f"{name} ({len(some)})".rjust(22) for name, some in parts.items())]
    for name in (*THEIRS, *OURS):
        cells = [
            f"{100 * np.median([s.means[name] for s in some]):.1f} / "
            f"{100 * np.median(np.concatenate([s.errors[name] for s in some])):.1f}"
            for some in parts.values()
        ]
        lines.append(f"{name:38}" + "".join(cell.rjust(22) for cell in cells))
    return lines


def main() -> int:
    """Prints the medians by folder and by collective; exit status 1 where ours is above half of theirs."""
    folders = [Path(name) for name in sys.argv[1:]] or [VALIDATION / name for name in FOLDERS]
    logs = scored(folders)
    every = {"all": [score for _, score in logs]}
    by_folder = {name: [s for folder, s in logs if folder == name] for name in dict.fromkeys(f for f, _ in logs)}
    collectives = dict.fromkeys(score.log.case.collective for _, score in logs)
    by_collective = {name: [s for _, s in logs if s.log.case.collective == name] for name in collectives}
    print("Errors in percent: the median over logs / over all sizes.")
    print("\n".join([*table(every | by_folder), "", *table(by_collective)]))
    medians = {name: float(np.median([s.means[name] for s in every["all"]])) for name in (*THEIRS, *OURS)}
    theirs, ours = min(medians[name] for name in THEIRS), max(medians[name] for name in OURS)
    print(f"Ours, at worst, is {ours / theirs:.2f} of theirs at best; the bar is 0.5.")
    return int(ours > 0.5 * theirs)


if __name__ == "__main__":
    raise SystemExit(main())
