"""The outcome of a validation as plain values, what of it is recorded, and when a later one counts as worse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commsim.errors import ScenarioError
from study.paths import VALIDATION
from study.validate import FIGURES, Validation, baseline_record, medians, record

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
    return VALIDATION / "accuracy.json"


def to_record(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of every log in every mode, which medians over any part of the logs follow from."""
    return {
        "schema_version": 1,
        "modes": {
            name: [{k: row[k] for k in _KEPT} for row in mode["per_log"] if row["mape"] is not None]
            for name, mode in figures["modes"].items()
        },
    }


def recorded(path: Path | None = None) -> dict[str, Any]:
    """The recorded figures; ``path``: of a record in another place than that of the collectives."""
    path = path or record_path()
    if not path.is_file():
        raise ScenarioError(f"{path}: not found; run with --report first")
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return figures


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
