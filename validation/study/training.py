"""Predicted training steps against published rows: errors by row and source, without their source or with one of its
rows; simulated as `commsim run` does, or by the closed form that the planner ranks with; the null model beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.accuracy.training import slopes, suggested
from commsim.training.compute import Values
from study.paths import VALIDATION
from study.training_fit import Fit, training_part
from study.training_null import null_seconds
from study.training_rows import MeasuredRows, PublishedRow, apart, errors, group_of, read_published, table_of
from study.training_simulated import Progress, simulated

Float64 = npt.NDArray[np.float64]

MODES = ("loso", "one-row")
ENGINES = ("simulation", "closed_form")

DRAWS = 20
"""Times that a row of a source is drawn at random as the one that is known."""


def training_steps() -> Path:
    """The rows that the project carries, which fits use."""
    return VALIDATION / "training" / "steps.csv"


@dataclass(frozen=True, eq=False)
class TrainingValidation:
    """Rows of a file with their predictions: seconds per row of `table`, and why others have none.

    ``first``: of the engine, leaving the source out, whatever the mode; ``closed``: the closed form's likewise. With
    one row known ``predicted`` is an array (draws, rows) of `with_one_row`.
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

    @property
    def typical(self) -> Float64:
        """Seconds of every row: the prediction, or the median of its draws; where it has none, with no row known."""
        draws = np.atleast_2d(self.predicted)
        known = ~np.all(np.isnan(draws), axis=0)
        out = self.first.copy()
        out[known] = np.nanmedian(draws[:, known], axis=0)
        return out


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
    predicted = with_one_row(table, first, fit) if mode == "one-row" else first
    null = null_seconds(table, fit.train)
    return TrainingValidation(rows, table, mode, engine, predicted, first, closed, null, fit)


def _simulated(table: MeasuredRows, fit: Fit, closed: Float64, workers: int, progress: Progress | None) -> Float64:
    """Seconds of every row simulated, each with the values that its source did not move."""
    of_source = {name: fit.without([name]) for name in sorted(set(table.source))}
    steps = [row.step for row in table.rows if row.step is not None]
    chunks = [row.send_chunk for row in table.rows]
    seconds = simulated(steps, [of_source[row.source] for row in table.rows], workers, progress, chunks)
    return np.where(np.isnan(seconds), closed, seconds)


def with_one_row(table: MeasuredRows, predicted: Float64, fit: Fit) -> Float64:
    """Seconds with one row of the source known, `DRAWS` times at random: an array (draws, rows).

    The known row calibrates the closed form's parameters as `commsim calibrate` does, for GPUs of its generation only;
    what that changes of the closed form is changed of ``predicted``, whichever engine made it. A row is no number where
    it is itself the known one or of another generation, or its source has no other of its generation.
    """
    out = np.full((DRAWS, len(table)), np.nan)
    generation = np.array([row.step.accelerator.generation for row in table.rows if row.step is not None])
    for name in sorted(set(table.source)):
        of_source = [i for i in np.flatnonzero(table.source == name).tolist() if not apart(table.rows[i])]
        of_each = Counter(generation[of_source].tolist())
        mine = np.array([i for i in of_source if of_each[generation[i]] > 1], np.int64)
        if not len(mine):
            continue
        slope = slopes(table.columns.take(mine), fit.without([name]))
        error = np.log(table.measured[mine] / predicted[mine])
        draw = np.random.default_rng(len(mine))
        for turn in range(DRAWS):
            k = int(draw.integers(len(mine)))
            seconds = predicted[mine] * np.exp(slope @ suggested(slope[[k]], error[[k]]))
            seconds[(generation[mine] != generation[mine[k]]) | (mine == mine[k])] = np.nan
            out[turn, mine] = seconds
    return out


def one_row_over_sources(table: MeasuredRows, predicted: Float64, known: Float64, least: int = 5) -> dict[str, Any]:
    """By source with ``least`` rows: the median error of the rows that the known one is to tell of, as shipped and with
    it, and by how much it is worse with it; each the median over the draws."""
    out = {}
    for name in sorted(set(table.source)):
        mine = [i for i in np.flatnonzero(table.source == name).tolist() if not apart(table.rows[i])]
        if len(mine) < least:
            continue
        part = table.take(np.array(mine, np.int64))
        with_row = np.abs(errors(part, known[:, mine]))
        if np.isnan(with_row).all():
            continue
        without = np.where(np.isnan(with_row), np.nan, np.abs(errors(part, predicted[mine])))
        unknown, one = (np.nanmedian(e, axis=1) for e in (without, with_row))
        middle = {"unknown": unknown, "one_row": one, "worse": one - unknown}
        out[name] = {"n": len(mine)} | {key: round(float(np.median(of)), 2) for key, of in middle.items()}
    return out


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


def per_group(table: MeasuredRows, predicted: Float64) -> dict[str, Any]:
    """`figures` by group, of the rows that are not apart; `apart` beside where there are such rows.

    Of an array (draws, rows) the medians over the draws, each without the rows that are no number in it.
    """
    error = np.atleast_2d(errors(table, predicted))
    groups: dict[str, list[int]] = {}
    aside: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        (aside if apart(row) else groups).setdefault(group_of(row), []).append(i)
    out = {name: _over_draws(error[:, index]) for name, index in sorted(groups.items())}
    for name, index in sorted(aside.items()):
        group = out.setdefault(name, {"n": 0})
        if (part := _over_draws(error[:, index]))["n"]:
            group["apart"] = part
    return out


def _over_draws(error: Float64) -> dict[str, Any]:
    each = [part for draw in error if (part := figures(draw[~np.isnan(draw)]))["n"]]
    if not each:
        return {"n": 0}
    middle = {key: round(float(np.median([part[key] for part in each])), 2) for key in each[0]}
    return middle | {"n": error.shape[1]}


def document(validation: TrainingValidation) -> dict[str, Any]:
    """All figures as plain values: ``per_row``, ``per_source``, ``null_model``."""
    place = {row.id: i for i, row in enumerate(validation.table.rows)}
    seconds = validation.typical
    rows = [_row_record(validation, row, place.get(row.id), seconds) for row in validation.rows]
    null = {
        "per_row": {row.id: float(f"{t:.6g}") for row, t in zip(validation.table.rows, validation.null, strict=True)},
        "per_source": per_group(validation.table, validation.null),
    }
    groups = {"per_source": per_group(validation.table, validation.predicted), "null_model": null}
    if validation.mode == "one-row":
        groups["one_row"] = one_row_over_sources(validation.table, validation.first, validation.predicted)
    return {"per_row": rows} | groups


def _row_record(validation: TrainingValidation, row: PublishedRow, i: int | None, seconds: Float64) -> dict[str, Any]:
    record: dict[str, Any] = {"id": row.id, "source": row.source}
    if i is None:
        reason = row.reason or "missing: a measured time, rate, TFLOP/s or MFU"
        return record | {"measured_s": None, "predicted_s": None, "error_pct": None, "reason": reason}
    reason = f"reported apart: {why}" if (why := apart(row)) else ""
    measured, predicted = float(validation.table.measured[i]), float(seconds[i])
    return record | {
        "measured_s": float(f"{measured:.6g}"),
        "predicted_s": float(f"{predicted:.6g}"),
        "error_pct": round(100 * (predicted / measured - 1), 2),
        "reason": reason,
    }


def shipped_fit(path: Path | None = None) -> Values:
    """The fit on all carried rows: what `parameters.yaml` holds."""
    return Fit(training_part(table_of(read_published(path or training_steps())))).without(())
