"""How far predicted all-reduces of serving frameworks are off measured ones, also without the GPU or count scored.

Fits see the project's table alone. Of another table's GPU that it does not have, all that is known is the datasheet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.kernels.predict import kernel_values
from commsim.training.compute import Values
from study.kernel_fit import Float64, design, fitted, predicted, with_facts
from study.kernel_rows import MACHINES, NCCL_CURVES, PROJECT, KernelRow, KernelTable, nccl_seconds, read_table
from study.log import read_logs

WAYS = ("as_fitted", "gpu_left_out", "count_left_out", "three_sizes_known")
"""What the parameters know of a row: it is among those fitted; nothing of its GPU; nothing of its number of GPUs;
nothing of its GPU but three sizes of its curve, which are not scored."""

KNOWN_AT = (1 / 6, 1 / 2, 5 / 6)
"""Where the three known sizes are among the sizes of a curve."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class KernelScores:
    """Relative errors of every row by what was known, NaN where a row is not scored; predicted seconds as shipped."""

    table: KernelTable
    errors: Mapping[str, Float64]
    shipped: Float64


def score(path: Path | None = None) -> KernelScores:
    """The errors of a table's rows, by default of the project's."""
    table = read_table(path or PROJECT)
    own = table if path is None else read_table(PROJECT)
    rows, measured = design(table.rows), np.array([row.seconds for row in table.rows])
    shipped = predicted(rows, kernel_values())
    gpu_out = left_out_seconds(table.rows, own.rows, lambda row: row.call.device.name)
    count_out = left_out_seconds(table.rows, own.rows, lambda row: row.call.ranks)
    known, adapted = adapted_to_three(table.rows, gpu_out)
    errors = {
        "as_fitted": np.abs(shipped / measured - 1.0),
        "gpu_left_out": np.abs(gpu_out / measured - 1.0),
        "count_left_out": np.abs(count_out / measured - 1.0),
        "three_sizes_known": np.where(known, np.nan, np.abs(adapted / measured - 1.0)),
    }
    return KernelScores(table, errors, shipped)


def left_out_seconds(
    rows: Sequence[KernelRow], own: Sequence[KernelRow], key: Callable[[KernelRow], object]
) -> Float64:
    """Seconds of rows by parameters fitted to those of the project's rows that have other keys."""
    seen, out = with_facts(own), np.zeros(len(rows))
    if not rows:
        return out
    everything, of_rows = design(seen), design(rows)
    keys, seen_keys = np.array([key(row) for row in rows]), np.array([key(row) for row in seen])
    for value in np.unique(keys):
        v: Values = fitted(everything.taken(seen_keys != value))
        out = np.where(keys == value, predicted(of_rows, v), out)
    return out


def adapted_to_three(rows: Sequence[KernelRow], seconds: Float64) -> tuple[Bools, Float64]:
    """Which rows are known, and the seconds of all moved to them: by their ratio, which moves with ln(size) between.

    Where a curve has a size several times (collections of one release), the first is known; none of them counts.
    """
    known, out = np.zeros(len(rows), bool), seconds.copy()
    for places in _curves(rows).values():
        first: dict[int, int] = {}
        for i in places:
            first.setdefault(rows[i].call.nbytes, i)
        sizes = sorted(first)
        at = sorted({sizes[round(share * (len(sizes) - 1))] for share in KNOWN_AT})
        moved = [np.log(rows[first[size]].seconds / seconds[first[size]]) for size in at]
        for i in places:
            size = rows[i].call.nbytes
            out[i] *= np.exp(np.interp(np.log(size), np.log(at), moved))
            known[i] = size in at
    return known, out


def _curves(rows: Sequence[KernelRow]) -> dict[tuple[Any, ...], list[int]]:
    curves = defaultdict(list)
    for i, row in enumerate(rows):
        curves[row.curve].append(i)
    return curves


# -- which kernel, from which size ---------------------------------


@dataclass(frozen=True)
class Contest:
    """All-reduces of one size on so many GPUs: predicted and measured seconds by who runs them, NCCL and frameworks."""

    gpu: str
    ranks: int
    nbytes: int
    predicted: Mapping[str, float]
    measured: Mapping[str, float]

    @property
    def chosen(self) -> str:
        """Whom the model takes for the quickest."""
        return min(self.predicted, key=lambda name: self.predicted[name])

    @property
    def lost(self) -> float:
        """By what share the choice takes longer than the best that was measured."""
        return self.measured[self.chosen] / min(self.measured.values()) - 1.0


def contests(scores: KernelScores, folder: Path = NCCL_CURVES) -> list[Contest]:
    """Sizes at which NCCL by nccl-tests was measured, and the kernels of frameworks in graphs, on the same GPUs.

    Of every framework the newest release that was measured there, where it does not itself fall back to NCCL.
    """
    newest: dict[tuple[str, int, str], tuple[int, int, int]] = {}
    for row in scores.table.rows:
        at = row.call.device.name, row.call.ranks, row.call.framework
        newest[at] = max(newest.get(at, (0, 0, 0)), row.call.release)
    times: dict[tuple[str, int, int], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row, seconds in zip(scores.table.rows, scores.shipped, strict=True):
        gpu, ranks, call = row.call.device.name, row.call.ranks, row.call
        own = row.cuda_graph and row.choice.kernel != "nccl"
        if own and call.release == newest[gpu, ranks, call.framework]:
            times[gpu, ranks, call.nbytes][call.framework].append((float(seconds), row.seconds))
    out = []
    nccl = _nccl_curves(folder)
    for (gpu, ranks, nbytes), of in sorted(times.items()):
        measured = nccl.get((gpu, ranks), {}).get(nbytes)
        if measured is not None:
            of["nccl"].append((nccl_seconds(gpu, ranks, nbytes), measured))
            middle = {name: np.median(np.array(pairs), axis=0) for name, pairs in of.items()}
            both = [{name: float(pair[side]) for name, pair in middle.items()} for side in (0, 1)]
            out.append(Contest(gpu, ranks, nbytes, both[0], both[1]))
    return out


def _nccl_curves(folder: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Measured seconds of NCCL's all_reduce of half by GPU, ranks and size."""
    gpus = {machine: gpu for gpu, machine in MACHINES.items()}
    logs = sorted(read_logs([folder], ["*_all_reduce_half_*"]), key=lambda log: log.case.version or (0, 0, 0))
    return {  # of several releases the last one stands
        (gpus[log.case.row["machine"]], log.case.n_ranks): dict(zip(log.nbytes, log.time_s.tolist(), strict=True))
        for log in logs
    }


# -- figures ---------------------------------


def document(scores: KernelScores) -> dict[str, Any]:
    """The figures as plain values; errors are medians in percent."""
    rows = scores.table.rows
    groups: dict[str, Callable[[KernelRow], str]] = {
        "by_gpu": lambda row: row.call.device.name,
        "by_number_of_gpus": lambda row: str(row.call.ranks),
        "by_framework": lambda row: row.call.framework,
        "by_call": lambda row: "cuda_graph" if row.cuda_graph else "eager",
        "by_kernel": lambda row: row.choice.kernel,
    }
    figures: dict[str, Any] = {
        "n_rows": len(rows) + sum(scores.table.refused.values()),
        "n_scored": len(rows),
        "not_predicted": [
            {"device": device, "reason": reason, "rows": n} for (device, reason), n in scores.table.refused.items()
        ],
        "median_error_pct": _medians(scores, np.ones(len(rows), bool)),
    }
    for name, key in groups.items():
        keys = np.array([key(row) for row in rows])
        figures[name] = {str(value): _group(scores, keys == value) for value in np.unique(keys)}
    figures["curves"] = [_curve(scores, places) for _, places in sorted(_curves(rows).items())]
    figures["choice"] = _choice(contests(scores))
    return figures


def _medians(scores: KernelScores, chosen: Bools) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for way in WAYS:
        errors = scores.errors[way][chosen]
        errors = errors[~np.isnan(errors)]
        out[way] = round(100.0 * float(np.median(errors)), 2) if errors.size else None
    return out


def _group(scores: KernelScores, chosen: Bools) -> dict[str, Any]:
    measured = np.array([row.seconds for row in scores.table.rows])[chosen]
    ratio = round(float(np.median(scores.shipped[chosen] / measured)), 3)
    return {"rows": int(chosen.sum()), "predicted_to_measured": ratio, **_medians(scores, chosen)}


def _curve(scores: KernelScores, places: Sequence[int]) -> dict[str, Any]:
    call, row = scores.table.rows[places[0]].call, scores.table.rows[places[0]]
    chosen = np.zeros(len(scores.table.rows), bool)
    chosen[list(places)] = True
    return {
        "framework": call.framework,
        "version": ".".join(map(str, call.release)),
        "cuda_graph": row.cuda_graph,
        "gpu": call.device.name,
        "number_of_gpus": call.ranks,
        **_group(scores, chosen),
    }


def _choice(all_of: Sequence[Contest]) -> dict[str, Any]:
    """What choosing by predicted times loses against the best measured, and what always taking one of them would."""
    if not all_of:
        return {"n_sizes": 0}
    names = sorted({name for contest in all_of for name in contest.measured})
    always = {}
    for name in names:
        of = [replace(c, predicted={name: 0.0}) for c in all_of if name in c.measured]
        always[name] = round(100.0 * float(np.mean([c.lost for c in of])), 2)
    lost = np.array([c.lost for c in all_of])
    chosen_s, best_s = (sum(of(c) for c in all_of) for of in (_chosen_s, _best_s))
    return {
        "n_sizes": len(all_of),
        "time_lost_pct": round(100.0 * (chosen_s / best_s - 1.0), 2),
        "mean_lost_pct": round(100.0 * float(lost.mean()), 2),
        "median_lost_pct": round(100.0 * float(np.median(lost)), 2),
        "best_chosen": int((lost == 0.0).sum()),
        "always_lost_pct": always,
    }


def _chosen_s(contest: Contest) -> float:
    return contest.measured[contest.chosen]


def _best_s(contest: Contest) -> float:
    return min(contest.measured.values())
