"""The folder of a laboratory, and the zip that can be mailed."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

from commsim.errors import CommsimError, MeasurementError
from commsim.lab.machine import SCENARIO, TOPOLOGY
from commsim.lab.stages import COLLECTIVES, FORCED, GRAPHS, PARAMS, RATES, REGISTERED, SINGLE, STEPS
from commsim.measure.capture import CHOICES
from commsim.measure.capture import FOLDER as CAPTURE
from commsim.measure.run_folder import read_conditions

REPORT = "report.html"

_STAGES = (COLLECTIVES, SINGLE, FORCED, GRAPHS, REGISTERED, STEPS, RATES)
_OWN = (*_STAGES, CAPTURE, CHOICES, SCENARIO, TOPOLOGY, PARAMS, "calibration.png", REPORT)
_NOT_MAILED = (".log", ".lock", ".part")
"""Raw logs of NCCL name hosts and addresses."""


def begin(folder: Path) -> None:
    """Makes the folder, and sees that it can be written to before minutes are spent; CommsimError where it cannot."""
    probe = folder / ".writable.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as fault:
        raise CommsimError(f"--out {folder}: cannot be written: {fault.strerror}") from None


def expect(folder: Path) -> None:
    """Raise a CommsimError if no earlier laboratory has left anything in the folder."""
    if not any((folder / name).exists() for name in _OWN):
        raise CommsimError(f"--out {folder}: found nothing that was measured, expected a folder of `commsim gpu`")


def expect_same(folder: Path, machine: Mapping[str, object]) -> None:
    """Raise a CommsimError if the folder's collectives were measured on another machine.

    `machine` has what stays the same all through a laboratory, by the names of ``run.json``. Asked before anything is
    captured, since that would overwrite what an earlier machine's NCCL said.
    """
    before = read_conditions(folder / COLLECTIVES)
    now = machine.items()
    if other := [f"{name} was {before[name]}, is {value}" for name, value in now if before.get(name, value) != value]:
        raise CommsimError(
            f"--out {folder}: holds measurements of another machine ({'; '.join(other)}); use another --out, "
            "or --fresh to start over"
        )


def discard(folder: Path) -> None:
    """Removes what a laboratory wrote, and nothing else; MeasurementError where that is not allowed."""
    try:
        for name in _OWN:
            path = folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as fault:
        raise MeasurementError(f"{folder}: cannot be emptied: {fault.strerror}") from None


def pack(folder: Path) -> Path:
    """Writes ``<folder>.zip`` with everything but raw logs; returns its path."""
    target = folder.with_name(f"{folder.name}.zip")
    temporary = target.with_name(f".{target.name}.part")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(p for name in _OWN for p in _files(folder / name)):
                archive.write(path, Path(folder.name) / path.relative_to(folder))
        temporary.replace(target)
    except OSError as fault:
        raise MeasurementError(f"{target}: cannot be written: {fault.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _files(path: Path) -> list[Path]:
    inside = path.rglob("*") if path.is_dir() else [path]
    return [one for one in inside if one.is_file() and one.suffix not in _NOT_MAILED]
