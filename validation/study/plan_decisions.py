"""What a plan decides, scored on published steps whose source is left out: bands of single times, order of two layouts.

A source weighs as much as `ROWS` rows however many it has, as in the fit: a band of rows alike would be one source's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.planner.published import Kind, kind_of
from commsim.training.spec import Step
from commsim.training.uncertainty import INSIDE, StepSpread
from commsim.training.utilisation import model_flops
from study.training_fit import ROWS
from study.training_rows import MeasuredRows, apart

Float64 = npt.NDArray[np.float64]

NEAR = 0.15
"""Layouts whose predicted times differ by no more, in ln, are those whose order is in doubt: their differences make the
margin. Of layouts twice as far apart in time errors differ more, and the order is none the less right."""

_LAYOUT = (
    "tp", "pp", "cp", "dp", "ep", "virtual_stages", "schedule", "sequence_parallel", "zero_stage", "recompute",
    "micro_batch_size",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two layouts of one source's machine and model: ln of the predicted and of the measured time of the slower one
    over that of the other, per token. The slower is the one that is predicted so."""

    source: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """By how much the two errors differ, in ln."""
        return abs(self.measured - self.predicted)


def residuals(table: MeasuredRows, predicted: Float64) -> dict[str, Float64]:
    """ln(measured / predicted) of every source's rows that are not apart."""
    out = defaultdict(list)
    for row, measured, seconds in zip(table.rows, table.measured.tolist(), predicted.tolist(), strict=True):
        if not apart(row):
            out[row.source].append(float(np.log(measured / seconds)))
    return {source: np.array(values) for source, values in sorted(out.items())}


def pairs(table: MeasuredRows, predicted: Float64) -> list[Pair]:
    """All pairs of unlike layouts of one source, machine, model, sequence, batch and precision."""
    jobs: dict[Any, list[tuple[Any, float, float]]] = defaultdict(list)
    for row, measured, seconds in zip(table.rows, table.measured.tolist(), predicted.tolist(), strict=True):
        if row.step is not None and not apart(row):
            layout = tuple(getattr(row.step, name) for name in _LAYOUT)
            jobs[(row.source, *_job(row.step))].append((layout, seconds, measured))
    out = []
    for job, rows in jobs.items():
        for (layout, predicted_s, measured_s), other in combinations(rows, 2):
            if layout != other[0]:
                ratio, truth = float(np.log(predicted_s / other[1])), float(np.log(measured_s / other[2]))
                sign = 1.0 if ratio >= 0 else -1.0
                out.append(Pair(str(job[0]), sign * ratio, sign * truth))
    return out


def _job(step: Step) -> tuple[Any, ...]:
    of_model = step.model.name, step.model.layers, step.model.hidden
    job = step.accelerator.name, step.world_size, step.seq_len, step.global_batch_size, step.precision.name
    return (*of_model, *job, step.flash_attention, step.stack)


def _quantiles(groups: Mapping[str, Float64], shares: Collection[float]) -> Float64:
    """Quantiles over groups of which each counts as at most `ROWS` values."""
    values = np.concatenate(list(groups.values()))
    weight = np.concatenate([np.full(len(g), min(len(g), ROWS) / len(g)) for g in groups.values()])
    order = np.argsort(values)
    place = np.cumsum(weight[order]) - weight[order] / 2
    return np.asarray(np.interp(np.array(list(shares)) * weight.sum(), place, values[order]), np.float64)


def _differences(chosen: Collection[Pair]) -> dict[str, Float64]:
    out = defaultdict(list)
    for pair in chosen:
        if pair.predicted <= NEAR:
            out[pair.source].append(pair.error)
    return {source: np.array(values) for source, values in out.items()}


def spread_of(errors: Mapping[str, Float64], chosen: Collection[Pair]) -> StepSpread:
    """Band and margin that rows and pairs of some sources give."""
    ends = (1 - INSIDE) / 2
    low, high = np.exp(_quantiles(errors, (ends, 1 - ends)))
    margin = np.exp(_quantiles(_differences(chosen), (INSIDE,))[0])
    counts = sum(map(len, errors.values())), len(errors), sum(p.predicted <= NEAR for p in chosen)
    return StepSpread(float(low), float(high), float(margin), *counts)


def inside(errors: Mapping[str, Float64]) -> dict[str, tuple[int, float]]:
    """By source: rows, and the share of them inside the band that the other sources give."""
    out, ends = {}, (1 - INSIDE) / 2
    for source, own in errors.items():
        low, high = _quantiles({s: e for s, e in errors.items() if s != source}, (ends, 1 - ends))
        out[source] = len(own), float(np.mean((own >= low) & (own <= high)))
    return out


def orders(chosen: Collection[Pair]) -> dict[str, dict[str, float]]:
    """By source, with the margin of the others: pairs said to differ and the share in which the quicker one is the
    quicker; pairs said to be ties and the share in which that one is; the most that a wrong order costs."""
    out = {}
    for source in sorted({pair.source for pair in chosen}):
        near = _differences([p for p in chosen if p.source != source])
        margin = float(_quantiles(near, (INSIDE,))[0])
        own = [p for p in chosen if p.source == source]
        far, ties = [p for p in own if p.predicted > margin], [p for p in own if p.predicted <= margin]
        wrong = [-p.measured for p in far if p.measured < 0]
        out[source] = {
            "margin": float(np.exp(margin)),
            "differ": len(far),
            "right": sum(p.measured > 0 for p in far),
            "ties": len(ties),
            "ties_right": sum(p.measured > 0 for p in ties),
            "worst": float(np.expm1(max(wrong, default=0.0))),
        }
    return out


def best_published(table: MeasuredRows) -> list[dict[str, Any]]:
    """Of every accelerator, kind of model and width of products the published step with the most model FLOP/s."""
    best: dict[Kind, dict[str, Any]] = {}
    for row, seconds in zip(table.rows, table.measured.tolist(), strict=True):
        step = row.step
        if step is None or apart(row) or step.frozen_weights:
            continue
        rate = model_flops(step) / seconds / step.world_size / 1e12
        key = kind_of(step)
        if rate > best.get(key, {}).get("tflops_per_gpu", 0.0):
            best[key] = {
                "accelerator": key[0],
                "model_kind": key[1],
                "products": key[2],
                "tflops_per_gpu": round(rate, 1),
                "model": step.model.name,
                "gpus": step.world_size,
                "row": row.id,
                "source": row.cells["source"],
            }
    return [best[key] for key in sorted(best)]
