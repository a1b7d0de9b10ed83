"""What a shell completes: presets, scenarios, collectives, models and keys of overrides. It imports nothing heavy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from commsim.files import data_root

NAMES = Path(__file__).with_name("names.json")
"""Collectives, models and keys, as `docs/reference_pages.py` writes them from the code."""

_ENDINGS = (".yaml", ".yml", ".json", ".log", ".csv", ".txt")


@cache
def _names() -> dict[str, list[str]]:
    names: dict[str, list[str]] = json.loads(NAMES.read_text(encoding="utf-8"))
    return names


def presets(incomplete: str) -> list[str]:
    """Machines: shipped ones, and files."""
    shipped = sorted(path.stem for path in (data_root() / "topologies").glob("*.yaml"))
    return [*(name for name in shipped if name.startswith(incomplete)), *_files(incomplete)]


def scenarios(incomplete: str) -> list[str]:
    """Scenarios: shipped ones, and files."""
    folder = data_root() / "scenarios"
    shipped = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return [*(name for name in shipped if name.startswith(incomplete)), *_files(incomplete)]


def subjects(incomplete: str) -> list[str]:
    """Scenarios, and what a machine is asked of with ``--on``: collectives and models."""
    asked = [name for name in (*_names()["collectives"], *_names()["models"]) if name.startswith(incomplete)]
    return [*scenarios(incomplete), *asked]


def collectives(incomplete: str) -> list[str]:
    """The collectives."""
    return [name for name in _names()["collectives"] if name.startswith(incomplete)]


def overrides(incomplete: str) -> list[str]:
    """``topology.nodes=``; after ``topology.preset=`` the presets."""
    key, equals, value = incomplete.partition("=")
    if equals:
        known = presets(value) if key.endswith("topology.preset") else []
        known += collectives(value) if key.endswith(".collective") else []
        return [f"{key}={name}" for name in known]
    return [f"{name}=" for name in _names()["keys"] if name.startswith(key)]


def _files(incomplete: str) -> list[str]:
    """Folders, and files of an ending that a command reads."""
    path = Path(incomplete)
    folder = path if incomplete.endswith("/") else path.parent
    try:
        here = [p for p in folder.iterdir() if p.as_posix().startswith(incomplete.removeprefix("./")) or not incomplete]
    except OSError:
        return []
    folders = [f"{path.as_posix()}/" for path in here if path.is_dir()]
    return sorted([*folders, *(path.as_posix() for path in here if path.is_file() and path.suffix in _ENDINGS)])
