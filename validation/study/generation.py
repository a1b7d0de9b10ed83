"""How far predicted runs of serving frameworks are off measured ones, without the architecture or the GPU scored.

Parameters are those of `validation/generation/runs_without.yaml`, fitted to the project's rows of other architectures
(or GPUs); of a GPU left out kernels are those fitted without it, too. An architecture or GPU that the project has no
rows of is predicted by what ships.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.document import read_documents
from commsim.errors import CommsimError
from commsim.generation.parameters import generation_values
from commsim.generation.replica import Replica
from commsim.generation.steady import ClosedLoop
from commsim.generation.terms import PATH, kernels
from commsim.processes import Pool
from commsim.training.compute import Values
from study.paths import VALIDATION
from study.serving_queue import LoopTimes, QueueTimes
from study.serving_rows import Refused, ServingRow, ServingTable, Split, read_runs

FOLDER = VALIDATION / "generation"
PROJECT = FOLDER / "serving.csv"
WITHOUT = FOLDER / "runs_without.yaml"

MODES = ("leave-model", "leave-gpu")

Float64 = npt.NDArray[np.float64]
Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]


@dataclass(frozen=True, eq=False)
class GenerationScores:
    """The rows of a file with predicted times, and those that can't be answered."""

    table: ServingTable
    mode: str
    times: Sequence[LoopTimes]

    @property
    def each_errors(self) -> Float64:
        """Signed relative errors of the time per output token."""
        return np.array([t.each_s / row.each_s - 1.0 for t, row in zip(self.times, self.table.rows, strict=True)])

    @property
    def first_errors(self) -> Float64:
        """Of the time to the first token; NaN where none is stated."""
        pairs = zip(self.times, self.table.rows, strict=True)
        return np.array([t.first_s / row.first_s - 1.0 if row.first_s else np.nan for t, row in pairs])


def key_of(row: ServingRow, mode: str) -> str:
    """What is left out when a row is scored."""
    return f"model:{row.architecture}" if mode == "leave-model" else f"gpu:{row.replica.gpu.name}"


@dataclass(frozen=True)
class Job:
    """A replica and its loads, with the parameters and the terms of kernels that are known of it."""

    replica: Replica
    split: Split | None
    loops: tuple[ClosedLoop, ...]
    values: Values
    terms: Path


def score(
    path: Path | None = None, mode: str = MODES[0], workers: int = 1, progress: Progress | None = None
) -> GenerationScores:
    """The errors of a file's rows, by default of the project's."""
    table = read_runs(path or PROJECT)
    known: Mapping[str, Mapping[str, float]] = read_documents(WITHOUT)[0].data
    of: dict[tuple[str, str, Replica, Split | None], dict[ClosedLoop, None]] = defaultdict(dict)
    for row in table.rows:
        of[key_of(row, mode), row.system, row.replica, row.split][row.loop] = None
    jobs = [
        Job(
            replica,
            split,
            tuple(loops),
            {**generation_values(), **known.get(key, {})},
            _terms(key, system, mode, known),
        )
        for (key, system, replica, split), loops in of.items()
    ]
    made: dict[tuple[Replica, Split | None, ClosedLoop], LoopTimes | str] = {}
    with Pool(workers) as pool:
        results = pool.map(times_of, jobs)
        for job, times in zip(
            jobs, results if progress is None else progress(results, "replicas", len(jobs)), strict=True
        ):
            made |= {(job.replica, job.split, loop): t for loop, t in zip(job.loops, times, strict=True)}
    answers = [made[row.replica, row.split, row.loop] for row in table.rows]
    pairs = list(zip(table.rows, answers, strict=True))
    refused = [Refused(row.id, t) for row, t in pairs if isinstance(t, str)]
    rows = tuple(row for row, t in pairs if not isinstance(t, str))
    answered = ServingTable(rows, (*table.refused, *refused))
    return GenerationScores(answered, mode, [t for t in answers if not isinstance(t, str)])


def times_of(job: Job) -> list[LoopTimes | str]:
    """The times of each load, or why the queue refuses it."""
    queue = QueueTimes(job.values, kernels(job.terms))
    out: list[LoopTimes | str] = []
    for loop in job.loops:
        try:
            out.append(queue.of(job.replica, loop, job.split))
        except CommsimError as error:
            out.append(str(error).splitlines()[0])
    return out


def _terms(key: str, system: str, mode: str, known: Mapping[str, object]) -> Path:
    return path_without(system) if mode == "leave-gpu" and key in known else PATH


def path_without(system: str) -> Path:
    """The terms of kernels without a GPU; those that ship where they never saw it."""
    path = FOLDER / f"kernels_without_{system}.yaml"
    return path if path.exists() else PATH


# -- figures ---------------------------------

GROUPS: Mapping[str, Callable[[ServingRow], str]] = {
    "by_model": lambda row: row.architecture,
    "by_gpu": lambda row: row.replica.gpu.name,
    "by_framework": lambda row: row.framework,
    "by_release": lambda row: f"{row.framework} {'.'.join(map(str, row.replica.engine.release))}",
    "by_formats": lambda row: f"{row.replica.formats.weights.name}, experts {row.replica.formats.experts.name}",
    "by_mesh": lambda row: mesh_words(row),  # noqa: PLW0108 (defined below)
    "by_lengths": lambda row: f"{row.loop.isl:g}:{row.loop.osl:g}",
    "by_concurrency": lambda row: _band(row.loop.concurrency),
    "by_mode": lambda row: row.mode,
}


def mesh_words(row: ServingRow) -> str:
    """The mesh in words, such as ``tp8 ep8``."""
    r = row.replica
    parts = {"tp": r.tp, "pp": r.pp, "dp": r.attention_dp, "ep": r.moe_ep}
    return " ".join(f"{name}{n}" for name, n in parts.items() if n > 1) or "tp1"


def _band(concurrency: int) -> str:
    return next(
        (f"{low} to {high}" for low, high in ((1, 8), (9, 32), (33, 128), (129, 512)) if concurrency <= high),
        "above 512",
    )


def document(scores: GenerationScores) -> dict[str, Any]:
    """The figures as plain values; errors are medians of absolute ones in percent, biases medians of signed ones."""
    rows = scores.table.rows
    figures: dict[str, Any] = {
        "mode": scores.mode,
        "n_rows": scores.table.count,
        "n_answered": len(rows),
        "answered_pct": round(100.0 * len(rows) / scores.table.count, 1),
        "median_error_pct": _figures(scores, np.ones(len(rows), bool)),
        "not_answered": _reasons(scores.table.refused),
    }
    for name, key in GROUPS.items():
        keys = np.array([key(row) for row in rows])
        figures[name] = {str(value): _figures(scores, keys == value) for value in np.unique(keys)}
    figures["rows"] = [_row(row, t) for row, t in zip(rows, scores.times, strict=True)]
    return figures


def _figures(scores: GenerationScores, chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
    out: dict[str, Any] = {"rows": int(chosen.sum())}
    for name, errors in (("tpot", scores.each_errors[chosen]), ("ttft", scores.first_errors[chosen])):
        known = errors[~np.isnan(errors)]
        out[name] = round(100.0 * float(np.median(np.abs(known))), 1) if known.size else None
        out[f"{name}_bias"] = round(100.0 * float(np.median(known)), 1) if known.size else None
        out[f"{name}_within_25"] = round(100.0 * float((np.abs(known) <= 0.25).mean()), 1) if known.size else None
    return out


def _reasons(refused: Sequence[Refused]) -> list[dict[str, Any]]:
    """Reasons with their rows, the most frequent first."""
    ids: dict[str, list[str]] = defaultdict(list)
    for one in refused:
        ids[one.reason].append(one.id)
    counts = Counter({reason: len(of) for reason, of in ids.items()})
    return [{"reason": reason, "rows": n, "ids": ids[reason]} for reason, n in counts.most_common()]


def _row(row: ServingRow, t: LoopTimes) -> dict[str, Any]:
    return {
        "id": row.id,
        "model": row.replica.model.name,
        "gpu": row.replica.gpu.name,
        "framework": row.framework,
        "mesh": mesh_words(row),
        "concurrency": row.loop.concurrency,
        "isl": row.loop.isl,
        "osl": row.loop.osl,
        "tpot_ms": round(1e3 * t.each_s, 3),
        "tpot_measured_ms": round(1e3 * row.each_s, 3),
        "ttft_ms": round(1e3 * t.first_s, 2),
        "ttft_measured_ms": round(1e3 * row.first_s, 2) if row.first_s else None,
    }
