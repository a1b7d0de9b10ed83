"""Fits the closed form's parameters to published rows: robust least squares around starting values.

A row's error is ln(predicted / measured), squared up to `SCALE` and linear beyond. Rows of a source share the error of
its software and clocks, so a source weighs as much as `ROWS` rows however many it has. The starting values are a
Gaussian prior with the spreads of `parameters.yaml`; Gauss-Newton steps find the minimum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.training.compute import Values
from commsim.training.parameters import parameters
from commsim.training.step_time import step_time
from study.training_rows import MeasuredRows, fitted

Float64 = npt.NDArray[np.float64]

SCALE = 0.08
"""Error in ln at which a row's weight begins to fall."""

ROWS = 4.0
"""Rows that a source counts as."""

_MOST = 100
"""Rows of a source that a fit looks at: every so many of them."""

_STEP, _ROUNDS, _LEAST = 1e-3, 4, 0.02

_SECANTS, _CLOSE = 12, 2e-3
"""Rounds, and the last step, of a fit without a source: its slopes are corrected by secants (Broyden 1965), as taking
them anew costs an evaluation a parameter. Its predictions are within 0.25 % of those with slopes of every round."""


def training_part(table: MeasuredRows, most: int = _MOST) -> MeasuredRows:
    """The rows that fits use: those that the rules of their source allow, at most `most` of a source."""
    chosen: list[int] = []
    for name in sorted(set(table.source)):
        index = [i for i, row in enumerate(table.rows) if row.source == name and fitted(row)]
        if len(index) > most:
            index = [index[k] for k in np.linspace(0, len(index) - 1, most).round().astype(int)]
        chosen += index
    return table.take(np.array(sorted(chosen), np.int64))


@dataclass(frozen=True)
class Removal:
    """A term taken out of the model: parameters held where it vanishes, parts of the step and columns dropped."""

    name: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    columns: Mapping[str, Any] = field(default_factory=dict)

    def seconds(self, table: MeasuredRows, values: Values) -> Float64:
        """Predicted seconds of every row without the term."""
        time = step_time(table.columns.replaced(self.columns) if self.columns else table.columns, values)
        kept = [getattr(time, part.name) for part in fields(time) if part.name not in self.parts]
        return np.asarray(sum(kept, start=np.zeros(len(table))), np.float64)


class Fit:
    """Fits on one training table, possibly with a term of the model taken out."""

    def __init__(self, train: MeasuredRows, removal: Removal | None = None) -> None:
        self.train = train
        self.removal = removal or Removal()
        off = dict(self.removal.values)
        free = [p for p in parameters() if p.spread > 0 and p.name not in off]
        self.names = [p.name for p in free]
        self._spread = np.array([p.spread for p in free])
        self._start = {p.name: p.start for p in parameters()} | off
        self._known: dict[frozenset[str], Float64] = {}
        self._first: tuple[Float64, Float64] | None = None

    def values(self, x: Float64) -> Values:
        """Parameters at ln(value / start) = x."""
        return self._start | {n: self._start[n] * float(np.exp(v)) for n, v in zip(self.names, x, strict=True)}

    def without(self, sources: Collection[str]) -> Values:
        """The fit that never saw the rows of some sources."""
        key = frozenset(sources) & frozenset(self.train.source)
        if key not in self._known:
            self._known[key] = self._solve(key)
        return self.values(self._known[key])

    def _log(self, x: Float64) -> Float64:
        return np.log(self.removal.seconds(self.train, self.values(x)))

    def _slopes(self, x: Float64, at: Float64) -> Float64:
        eye = np.eye(len(x)) * _STEP
        return np.stack([(self._log(x + e) - at) / _STEP for e in eye], axis=1)

    def _solve(self, held_out: frozenset[str]) -> Float64:
        keep = ~np.isin(self.train.source, sorted(held_out))
        counts = Counter(self.train.source[keep])
        base = np.array(
            [min(counts[s], ROWS) / counts[s] if k else 0.0 for s, k in zip(self.train.source, keep, strict=True)]
        )
        x = np.zeros(len(self.names))
        if self._first is None:
            at = self._log(x)
            self._first = at, self._slopes(x, at)
        at, slopes = self._first  # every fit begins at the starts, so they share the first slopes
        for _ in range(_SECANTS if held_out else _ROUNDS):
            error = at - np.log(self.train.measured)
            weight = base / np.sqrt(1.0 + (error / SCALE) ** 2) / SCALE**2
            normal = slopes.T @ (slopes * weight[:, None]) + np.diag(self._spread**-2)
            step = np.linalg.solve(normal, -slopes.T @ (weight * error) - x / self._spread**2)
            step *= min(1.0, 0.4 / max(float(np.abs(step).max()), 1e-12))
            x = x + step
            if float(np.abs(step).max()) < (_CLOSE if held_out else _LEAST):
                break
            before, at = at, self._log(x)
            if held_out:
                slopes = slopes + np.outer(at - before - slopes @ step, step / (step @ step))
            else:
                slopes = self._slopes(x, at)
        return x

    def seconds(self, table: MeasuredRows) -> Float64:
        """Seconds of every row of a table, by the fit that never saw the row's source."""
        out = np.empty(len(table))
        for name in sorted(set(table.source)):
            mine = np.flatnonzero(table.source == name)
            out[mine] = self.removal.seconds(table.take(mine), self.without([name]))
        return out
