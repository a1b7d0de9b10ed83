"""Measurements of one machine, healthy and degraded by a stated cause: does the model see what the cause costs?

A pair is a row of ``PAIRS.csv`` (validation/degraded/README.md): the healthy machine in the columns of an index, what
the cause changes of it in ``set_...`` columns, and two curves or two bus bandwidths. Its ratio is time degraded / time
healthy, the median over the common sizes of 1 MiB and more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from commsim.collectives.semantics import busbw_factor
from commsim.errors import CommsimError, LogFormatError
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve, collective_name
from commsim.nccl.operation import Operation
from commsim.units import parse_bytes
from study.case import Case
from study.cases import case_of
from study.index import cell_fault, count, index_rows, parse_row
from study.log import Float64
from study.paths import VALIDATION
from study.system import times

LEAST_BYTES = 1 << 20
"""Below it time is latency, of which a degraded path says little."""

_COLUMNS = ("healthy_log", "degraded_log", "healthy_busbw_gbps", "degraded_busbw_gbps", "cause", "source_url")
_SAME = 1e-6  # a ratio this near to 1 is no change


@dataclass(frozen=True, eq=False)
class Pair:
    """Two measurements: sizes, seconds of both (relative where the source names no size), and cases to predict.

    `reason`: why there is nothing to predict.
    """

    name: str
    system: str
    cause: str
    source: str
    sizes: tuple[int, ...]
    healthy_s: Float64
    degraded_s: Float64
    cases: tuple[Case, Case] | None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A pair's ratio as measured and as predicted, and predicted / measured time of both sides; `reason`: why not."""

    pair: Pair
    measured: float
    predicted: float | None = None
    healthy: float | None = None
    degraded: float | None = None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """|predicted ratio / measured ratio - 1|."""
        return None if self.predicted is None else abs(self.predicted / self.measured - 1)

    @property
    def direction(self) -> str | None:
        """Right where the prediction says slower as measured, or faster; where it says neither, ``no change``."""
        if self.predicted is None:
            return None
        if abs(self.predicted - 1) < _SAME:
            return "no change"
        return "right" if (self.predicted > 1) == (self.measured > 1) else "wrong"


def pairs_file() -> Path:
    """The project's own pairs."""
    return VALIDATION / "degraded" / "PAIRS.csv"


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, whose curves lie beside it or in the project; LogFormatError where a row is at fault."""
    if not path.is_file():
        raise LogFormatError(f"{path}: found no such file, expected pairs as in validation/degraded/PAIRS.csv")
    rows = list(index_rows(path))
    if rows and (missing := [name for name in _COLUMNS if name not in rows[0]]):
        raise LogFormatError(f"{path}:1: found no columns {', '.join(missing)}, expected those of validation/degraded")
    return [_pair(cells, path.parent) for cells in rows]


def outcomes(pairs: Sequence[Pair]) -> list[Outcome]:
    """Both sides of every pair predicted, in order."""
    return [_outcome(pair) for pair in pairs]


def document(found: Sequence[Outcome]) -> dict[str, Any]:
    """Plain values: every pair, the median error of each system in percent, the median over systems, directions."""
    predicted = [each for each in found if each.error is not None]
    systems: dict[str, list[float]] = {}
    for each in predicted:
        assert each.error is not None
        systems.setdefault(each.pair.system, []).append(100 * each.error)
    by_system = {name: float(np.median(errors)) for name, errors in systems.items()}
    return {
        "pairs": [_row(each) for each in found],
        "n_predicted": len(predicted),
        "n_right": sum(each.direction == "right" for each in predicted),
        "by_system": by_system,
        "median_error_pct": float(np.median(list(by_system.values()))) if by_system else None,
    }


def _row(each: Outcome) -> dict[str, Any]:
    return {
        "pair": each.pair.name,
        "system": each.pair.system,
        "cause": each.pair.cause,
        "sizes": len(each.pair.sizes),
        "measured_ratio": each.measured,
        "predicted_ratio": each.predicted,
        "error_pct": None if each.error is None else 100 * each.error,
        "direction": each.direction,
        "healthy_predicted_to_measured": each.healthy,
        "degraded_predicted_to_measured": each.degraded,
        "reason": each.reason,
        "source_url": each.pair.source,
    }


def _pair(cells: Mapping[str, str], folder: Path) -> Pair:
    logs = cells["healthy_log"], cells["degraded_log"]
    figures = cells["healthy_busbw_gbps"], cells["degraded_busbw_gbps"]
    if all(logs) == any(figures) or any(logs) != all(logs) or any(figures) != all(figures):
        raise cell_fault(cells, "healthy_log", "two logs, or two bus bandwidths in GB/s")
    operation = None
    if all(logs):
        curves = [_curve(name, folder, cells) for name in logs]
        sizes, seconds = _common(*curves)
        operation = Operation.named(curves[0].dtype, curves[0].redop)
    else:
        sizes, seconds = _from_figures(cells)
    if not sizes:
        raise cell_fault(cells, "degraded_log", "a common size of 1 MiB or more")
    missing = cells.get("not_expressed", "")
    cases = None if missing else _cases(cells, folder)
    if cases is not None and operation is not None:
        cases = replace(cases[0], operation=operation), replace(cases[1], operation=operation)
    reason = f"cannot be told to the model: {missing}" if missing else ""
    return Pair(cells["slug"], cells["system"], cells["cause"], cells["source_url"], sizes, *seconds, cases, reason)


def _cases(cells: Mapping[str, str], folder: Path) -> tuple[Case, Case]:
    """The machine of a row, and what becomes of it with the row's ``set_...`` columns laid over the others."""
    changed = {name.removeprefix("set_"): value for name, value in cells.items() if name.startswith("set_") and value}
    faults = changed.pop("faults", "")
    if not changed and not faults:
        raise cell_fault(cells, "set_env", "one of the set_ columns to say what the cause changes, or not_expressed")
    if "env" in changed:  # of a variable that is named twice the last value counts
        changed["env"] = ";".join(part for part in (cells.get("env", ""), changed["env"]) if part)
    parse_row(cells), parse_row({**cells, **changed})  # faults with their places, which a case keeps for a report
    healthy, degraded = case_of(dict(cells), folder), case_of({**cells, **changed}, folder)
    if faults:
        try:
            degraded.machine["faults"] = yaml.safe_load(faults)
        except yaml.YAMLError:
            raise cell_fault(cells, "set_faults", "a list of faults as under `topology:`") from None
    return healthy, degraded


def _curve(name: str, folder: Path, cells: Mapping[str, str]) -> Curve:
    for place in (folder, VALIDATION / "measured", VALIDATION / "outside"):
        if (path := place / f"{name}.csv").is_file():
            return read_measured(path, collective=cells["collective"], n_ranks=count(cells, "n_ranks"))[0]
    raise LogFormatError(f"{cells['place']} healthy_log: found no log {name[:60]!r}, expected one beside the pairs")


def _common(healthy: Curve, degraded: Curve) -> tuple[tuple[int, ...], tuple[Float64, Float64]]:
    """The sizes from `LEAST_BYTES` on that both curves have, and the seconds of both."""
    one, other = ({int(n): t for n, t in zip(c.size_bytes, c.time_s, strict=True)} for c in (healthy, degraded))
    sizes = tuple(sorted(n for n in one.keys() & other.keys() if n >= LEAST_BYTES))
    return sizes, (np.array([one[n] for n in sizes]), np.array([other[n] for n in sizes]))


def _from_figures(cells: Mapping[str, str]) -> tuple[tuple[int, ...], tuple[Float64, Float64]]:
    """The size of a row's bus bandwidths and the seconds that they stand for; of 1 GiB where none is named."""
    try:
        size = parse_bytes(cells.get("size", "") or "1 GiB")
        rates = [float(cells[name]) * 1e9 for name in ("healthy_busbw_gbps", "degraded_busbw_gbps")]
    except (CommsimError, ValueError):
        raise cell_fault(cells, "size", "a size such as 1 GiB, and bus bandwidths in GB/s") from None
    if not all(0 < rate < np.inf for rate in rates):
        raise cell_fault(cells, "healthy_busbw_gbps", "GB/s above 0")
    collective = collective_name(cells["collective"])
    if collective is None:
        raise cell_fault(cells, "collective", "a name such as all_reduce")
    factor = busbw_factor(collective, count(cells, "n_ranks") or 2)  # of a pair without ranks the ratio is all
    healthy, degraded = (np.array([factor * size / rate]) for rate in rates)
    return (size,), (healthy, degraded)


def _outcome(pair: Pair) -> Outcome:
    measured = float(np.median(pair.degraded_s / pair.healthy_s))
    if pair.cases is None:
        return Outcome(pair, measured, reason=pair.reason)
    sides = [times(case, pair.sizes) for case in pair.cases]
    healthy, degraded = sides
    if isinstance(healthy, str) or isinstance(degraded, str):
        return Outcome(pair, measured, reason=next(side for side in sides if isinstance(side, str)))
    ratios = (degraded / healthy, healthy / pair.healthy_s, degraded / pair.degraded_s)
    predicted, healthy_off, degraded_off = (float(np.median(ratio)) for ratio in ratios)
    return Outcome(pair, measured, predicted, healthy_off, degraded_off)
