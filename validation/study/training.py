"""Predicted training steps against published rows: errors by row and source, without their source or with one of its
rows; simulated as `commsim run` does, or by the closed form that the planner ranks with; the null model beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.accuracy.training import SPREAD_OF_ROWS, SPREAD_OF_SOURCES
from commsim.training.compute import Values
from study.paths import VALIDATION
from study.training_fit import Fit, training_part
from study.training_null import null_seconds
from study.training_rows import MeasuredRows, PublishedRow, apart, errors, group_of, read_published, table_of
from study.training_simulated import Progress, simulated

Float64 = npt.NDArray[np.float64]

MODES = ("loso", "one-row")
ENGINES = ("simulation", "closed_form")


def training_steps() -> Path:
    """The rows that the project carries, which fits use."""
    return VALIDATION / "training" / "steps.csv"


@dataclass(frozen=True, eq=False)
class TrainingValidation:
    """Rows of a file with their predictions: seconds per row of `table`, and why others have none.

    ``first``: of the engine, leaving the source out, whatever the mode; ``closed``: the closed form's likewise.
    """

    rows: Sequence[PublishedRow]
    table: MeasuredRows
    mode: str
    engine: str
    predicted: Float64
    first: Float64
    closed: Float64
    null: Float64
    fit: Fit
    used: frozenset[str] = frozenset()  # ids of rows that calibrated their source


def validate_training(
    path: Path,
    mode: str = "loso",
    known: Path | None = None,
    *,
    engine: str = "simulation",
    workers: int = 1,
    progress: Progress | None = None,
) -> TrainingValidation:
    """Predict the rows of a file; everything fitted comes from the `known` rows of other sources.

    The parameters are fitted with the closed form, whichever engine predicts. A row whose machine the simulation does
    not know (`machine_of`) is predicted in closed form.
    """
    rows = read_published(path)
    carried = rows if known is not None and known == path else read_published(known or training_steps())
    table = table_of(rows)
    whole = table_of(carried)
    fit = Fit(training_part(whole))
    closed = fit.seconds(table)
    first = _simulated(table, fit, closed, workers, progress) if engine == "simulation" else closed
    predicted, used = with_one_row(table, first) if mode == "one-row" else (first, frozenset[str]())
    null = null_seconds(table, fit.train)
    return TrainingValidation(rows, table, mode, engine, predicted, first, closed, null, fit, used)


def _simulated(table: MeasuredRows, fit: Fit, closed: Float64, workers: int, progress: Progress | None) -> Float64:
    """Seconds of every row simulated, each with the values that its source did not move."""
    of_source = {name: fit.without([name]) for name in sorted(set(table.source))}
    steps = [row.step for row in table.rows if row.step is not None]
    seconds = simulated(steps, [of_source[row.source.name] for row in table.rows], workers, progress)
    return np.where(np.isnan(seconds), closed, seconds)


def one_row_scale(predicted_s: float, measured_s: float) -> float:
    """The factor on a source's predicted times that one measured row suggests.

    The row's error is partly its own: of ln(measured / predicted) the share that the source is expected to have in
    common counts (`SPREAD_OF_SOURCES`, `SPREAD_OF_ROWS`).
    """
    share = SPREAD_OF_SOURCES**2 / (SPREAD_OF_SOURCES**2 + SPREAD_OF_ROWS**2)
    return float((measured_s / predicted_s) ** share)


def calibration_row(table: MeasuredRows) -> int:
    """The row to measure: the one that is most like all others in how it is cut, not looking at measured times.

    Distance in the logarithms of ranks per axis, batch, sequence, width, layers and peak, and in what is recomputed.
    """
    c = table.columns
    model, axes = c.model, [c.tp, c.pp, c.cp, c.dp, c.ep, c.micro_batch_size]
    sizes = [*axes, c.seq_len, model.hidden, model.layers, c.num_microbatches, c.gemm_peak]
    kinds = [2.0 * (c.recompute == "full"), 2 * model.moe_layers / model.layers]
    features = np.stack([*np.log(sizes), *kinds], axis=1)
    distance = np.abs(features[:, None, :] - features[None, :, :]).sum(axis=2)
    return int(distance.sum(axis=1).argmin())


def with_one_row(table: MeasuredRows, predicted: Float64) -> tuple[Float64, frozenset[str]]:
    """Seconds after scaling each source by what its calibration row suggests, and the ids of those rows."""
    out, used = predicted.copy(), set()
    for name in sorted(set(table.source)):
        of_source = np.flatnonzero(table.source == name).tolist()
        mine = np.array([i for i in of_source if not apart(table.rows[i])], np.int64)
        if len(mine) < 2:
            continue
        k = int(mine[calibration_row(table.take(mine))])
        out[mine] = predicted[mine] * one_row_scale(float(predicted[k]), float(table.measured[k]))
        used.add(table.rows[k].id)
    return out, frozenset(used)


def figures(error: Float64) -> dict[str, Any]:
    """Size, mean and median absolute error, 90 % quantile, largest, and median signed error, in percent."""
    if not len(error):
        return {"n": 0}
    size = np.abs(error)
    return {
        "n": len(error),
        "mape": round(float(size.mean()), 2),
        "median": round(float(np.median(size)), 2),
        "p90": round(float(np.quantile(size, 0.9)), 2),
        "max": round(float(size.max()), 2),
        "bias": round(float(np.median(error)), 2),
    }


def per_group(table: MeasuredRows, predicted: Float64, used: frozenset[str] = frozenset()) -> dict[str, Any]:
    """`figures` by group, of the rows that are neither apart nor used; `apart` beside where there are such rows."""
    error = errors(table, predicted)
    groups: dict[str, list[int]] = {}
    aside: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        if row.id not in used:
            (aside if apart(row) else groups).setdefault(group_of(row), []).append(i)
    out = {name: figures(error[index]) for name, index in sorted(groups.items())}
    for name, index in sorted(aside.items()):
        out.setdefault(name, {"n": 0})["apart"] = figures(error[index])
    return out


def document(validation: TrainingValidation) -> dict[str, Any]:
    """All figures as plain values: ``per_row``, ``per_source``, ``null_model``."""
    place = {row.id: i for i, row in enumerate(validation.table.rows)}
    error = errors(validation.table, validation.predicted)
    rows = [_row_record(validation, row, place.get(row.id), error) for row in validation.rows]
    null = {
        "per_row": {row.id: float(f"{t:.6g}") for row, t in zip(validation.table.rows, validation.null, strict=True)},
        "per_source": per_group(validation.table, validation.null, validation.used),
    }
    return {
        "per_row": rows,
        "per_source": per_group(validation.table, validation.predicted, validation.used),
        "null_model": null,
    }


def _row_record(validation: TrainingValidation, row: PublishedRow, i: int | None, error: Float64) -> dict[str, Any]:
    record: dict[str, Any] = {"id": row.id, "source": row.source.name}
    if i is None:
        reason = row.reason or "missing: a measured time, rate, TFLOP/s or MFU"
        return record | {"measured_s": None, "predicted_s": None, "error_pct": None, "reason": reason}
    reason = f"reported apart: {why}" if (why := apart(row)) else ""
    if row.id in validation.used:
        reason = "the row that its source is calibrated with"
    return record | {
        "measured_s": float(f"{validation.table.measured[i]:.6g}"),
        "predicted_s": float(f"{validation.predicted[i]:.6g}"),
        "error_pct": round(float(error[i]), 2),
        "reason": reason,
    }


def shipped_fit(path: Path | None = None) -> Values:
    """The fit on all carried rows: what `parameters.yaml` holds."""
    return Fit(training_part(table_of(read_published(path or training_steps())))).without(())
