"""What went wrong while the rows of a laboratory were measured, from its folders: a line for each kind and stage."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from commsim.lab.findings import COLLECTIVES, FORCED, GRAPHS, REGISTERED, SINGLE, STEPS
from commsim.measure.run_folder import TABLE, read_conditions
from commsim.units import format_bytes


def wrong_data(folder: Path) -> Iterator[str]:
    """Rows whose result was not what it must be: what a machine says that computes or carries wrongly."""
    for stage in _stages(folder):
        with (stage / TABLE).open(newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.DictReader(stream) if _wrong(row)]
        if rows:
            first = f"{rows[0]['collective']} of {format_bytes(int(rows[0]['size_bytes']))}"
            yield (
                f"{_name(stage, folder)}: wrong data in {first}{_and_more(len(rows) - 1)}, up to "
                f"{max(map(_wrong, rows))} elements"
            )


def left_out_or_slowed(folder: Path) -> Iterator[str]:
    """Rows for which a GPU had no room, and GPUs that ran slower than they can while rows were measured."""
    for stage in _stages(folder):
        conditions = read_conditions(stage)
        missing = conditions.get("left_out") or []
        if missing:
            first = f"{missing[0]['what']} is left out{_and_more(len(missing) - 1)}"
            yield f"{_name(stage, folder)}: {first}, {missing[0]['why']}"
        for rank, reasons in (conditions.get("slowed") or {}).items():
            yield f"{_name(stage, folder)}: the GPU of rank {rank} was slowed down: {', '.join(reasons)}"


def _stages(folder: Path) -> list[Path]:
    named = [folder / name for name in (COLLECTIVES, SINGLE, STEPS, GRAPHS, REGISTERED)]
    return [stage for stage in [*named, *sorted((folder / FORCED).glob("*/"))] if (stage / TABLE).is_file()]


def _name(stage: Path, folder: Path) -> str:
    return str(stage.relative_to(folder))


def _wrong(row: dict[str, str]) -> int:
    """Elements of a row that were wrong, in the worse place."""
    return max(int(row[name]) if (row.get(name) or "").isdigit() else 0 for name in ("oop_wrong", "ip_wrong"))


def _and_more(count: int) -> str:
    return f" and {count} more row{'s' * (count > 1)}" if count else ""
