"""What is recorded of a validation of training steps, and when a later one counts as worse."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from commsim.document import read_documents
from study import record
from study.paths import VALIDATION
from study.record import TOLERANCE

_BARS = Path(__file__).with_name("training_bars.yaml")


def record_path() -> Path:
    """Where the project keeps its recorded figures."""
    return VALIDATION / "training" / "accuracy.json"


@lru_cache(maxsize=1)
def bars() -> dict[str, dict[str, Any]]:
    """By group of rows: the aim, and what the throw-away closed form and others reach."""
    groups: dict[str, dict[str, Any]] = read_documents(_BARS)[0].data["groups"]
    return groups


def recorded() -> dict[str, Any]:
    """The recorded figures: by engine and mode ``per_source``, and the ablation."""
    return record.recorded(record_path())


def compare_sources(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The groups whose median is worse than recorded by more than `TOLERANCE`, of those with as many rows as then.

    A part of the rows (another file) says nothing about the recorded medians.
    """
    worse = []
    for name, old in before.items():
        new = now.get(name, {"n": 0})
        if not old["n"] or new["n"] not in (0, old["n"]):
            continue
        if not new["n"]:
            worse.append(f"{name}: no row is predicted any more, recorded {old['n']}")
        elif new["median"] > old["median"] + TOLERANCE:
            worse.append(f"{name}: median {new['median']:.1f} %, recorded {old['median']:.1f} %")
    return worse
