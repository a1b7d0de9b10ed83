"""The outcome of a validation as plain values, what of it is recorded, and when a later one counts as worse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commsim.accuracy.validate import FIGURES, Validation, baseline_record, medians, record
from commsim.errors import ScenarioError
from commsim.nccl.uncertainty import SIZE_BANDS, band_of
from commsim.resources import data_root

TOLERANCE = 1.0
"""Points by which a median may worsen."""

_KEPT = ("slug", "collective", "system", "class", "healthy", *FIGURES)


def document(validation: Validation, mode: str) -> dict[str, Any]:
    """All figures: those of `mode` at the top, those of every mode scored under ``modes``, and the baselines."""
    modes = {name: record(validation, name) for name in validation.modes}
    top = modes.get(mode) or next(iter(modes.values()))
    return {"schema_version": 1, **top, "baselines": baseline_record(validation), "modes": modes}


def record_path() -> Path:
    """Where the project keeps its recorded figures."""
    return data_root() / "validation" / "accuracy.json"


def to_record(found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of every log in every mode, which medians over any part of the logs follow from."""
    return {
        "schema_version": 1,
        "modes": {
            name: [{k: row[k] for k in _KEPT} for row in mode["per_log"] if row["mape"] is not None]
            for name, mode in found["modes"].items()
        },
    }


def recorded() -> dict[str, Any]:
    """The recorded figures."""
    path = record_path()
    if not path.is_file():
        raise ScenarioError(f"{path}: not found; run with --report first")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def compare_medians(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The medians that are worse than recorded by more than `TOLERANCE`, over the logs that are listed in both.

    A log that was predicted and is not any more is worse, too.
    """
    worse = []
    for mode, rows in before["modes"].items():
        if mode not in now["modes"]:
            continue
        listed = {r["slug"]: r for r in now["modes"][mode]["per_log"]}
        old = [r for r in rows if r["slug"] in listed and r["healthy"] != "no"]
        new = [listed[r["slug"]] for r in old]
        worse += [f"{mode}: {r['slug']} is not predicted: {r['reason']}" for r in new if r["mape"] is None]
        new = [r for r in new if r["mape"] is not None]
        then, today = _flat(medians(old)), _flat(medians(new))
        worse += [
            f"{mode}, {name}: {today[name]:.1f} %, was {value:.1f} %"
            for name, value in then.items()
            if name in today and today[name] > value + TOLERANCE
        ]
    return worse


def _flat(summary: Mapping[str, Any]) -> dict[str, float]:
    """Medians over logs and systems, over all logs and by class."""
    out: dict[str, float] = {}
    for name, part in [("all", summary["all"]), *summary["by_class"].items()]:
        for kind in ("logs", "systems"):
            out |= {f"{name}, {kind}, {f}": v for f, v in part[kind].items() if v is not None}
    return out


def residual_quantiles(validation: Validation, mode: str = "zero-shot") -> dict[str, Any]:
    """What `commsim.nccl.uncertainty` reads: quantiles of measured / predicted by generation, link and size band.

    Every log weighs alike, so that a long curve does not speak for many.
    """
    _, seconds = validation.modes[mode]
    kinds: dict[tuple[str, str], list[int]] = {}
    for entry in validation.entries:
        if entry.log is not None and entry.case.healthy != "no":
            planes = validation.planes[entry.log]
            kinds.setdefault((planes.generation, planes.link), []).append(entry.log)
    out = []
    for (generation, link), logs in sorted(kinds.items()):
        size = np.concatenate([validation.study.logs[i].nbytes for i in logs])
        ratio = np.concatenate([validation.study.logs[i].time_s / seconds[i] for i in logs])
        weight = np.concatenate([np.full(len(validation.study.logs[i].nbytes), 1 / len(seconds[i])) for i in logs])
        bands = {}
        for name, _ in SIZE_BANDS:
            rows = np.array([band_of(int(n)) == name for n in size])
            if rows.any():
                low, high = (_quantile(ratio[rows], weight[rows], q) for q in (0.1, 0.9))
                bands[name] = {"low": round(low, 3), "high": round(high, 3), "n": int(rows.sum())}
        out.append(
            {
                "generation": generation,
                "link": link,
                "smallest": int(size.min()),
                "largest": int(size.max()),
                "most_nodes": max(validation.study.logs[i].case.nodes for i in logs),
                "bands": bands,
            }
        )
    return {"kinds": out}


def _quantile(values: Sequence[float] | np.ndarray, weight: np.ndarray, q: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(np.asarray(values)[order][int(np.searchsorted(total, q * total[-1]).clip(0, len(order) - 1))])
