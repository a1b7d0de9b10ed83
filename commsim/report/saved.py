"""A result to draw, whether of this process or read back."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from commsim.errors import CommsimError
from commsim.units import format_bytes

if TYPE_CHECKING:
    from commsim.report.steps import StepFigures
    from commsim.scenario.item import Item
    from commsim.scenario.schema import Scenario

T = TypeVar("T")

MOST_BYTES = 256 << 20
"""Larger files are refused."""


@dataclass(frozen=True)
class LinkShares:
    """How busy links were, by name, under one item of a run."""

    item: int
    title: str
    shares: dict[str, float]


@dataclass(frozen=True, eq=False)
class Saved:
    """A result to draw: ``sort`` is run, sweep, plan, validation or scenario; what that sort has not is empty.

    ``answers`` are those of a run, in the order of its file, each as the view of its kind keeps it.
    ``rows`` are those of a sweep as in rows.csv, ``points`` as its journal holds them, ``choices`` those of a plan.
    """

    name: str
    sort: str
    folder: Path
    provenance: str = ""
    answers: tuple[Any, ...] = ()
    scenario: Scenario | None = None
    points: tuple[dict[str, Any], ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    choices: tuple[dict[str, Any], ...] = ()
    document: dict[str, Any] = field(default_factory=dict)

    def of_kind(self, kind: str) -> tuple[Any, ...]:
        """The answers of one kind."""
        return tuple(answer for answer in self.answers if answer.kind == kind)

    @property
    def items(self) -> tuple[Item, ...]:
        """The collectives."""
        return self.of_kind("items")

    @property
    def steps(self) -> tuple[StepFigures, ...]:
        """The training steps."""
        return self.of_kind("trainings")

    @property
    def links(self) -> tuple[LinkShares, ...]:
        """How busy links were under every collective that says so."""
        return tuple(
            LinkShares(
                i,
                f"{item.collective} of {format_bytes(item.use_bytes)}",
                {link.link: link.busy_share for link in item.use.links},
            )
            for i, item in enumerate(self.items, 1)
            if item.use is not None and item.use.links
        )


_CONVERTERS = {"int": int, "str": str}
"""By a field's type; every other is a number or None."""


def of_record(kind: type[T], record: dict[str, Any], **known: Any) -> T:
    """A dataclass of numbers and texts from its saved record, where seconds are microseconds; `known`: other fields.

    A field that the record of an earlier version lacks has its default.
    """
    for column in fields(cast("Any", kind)):
        in_seconds = column.name.endswith("_s")
        key = f"{column.name[:-2]}_us" if in_seconds else column.name
        if column.name in known or (column.default is not MISSING and record.get(key) is None):
            continue
        value: Any = _CONVERTERS.get(str(column.type), float)(record[key])
        known[column.name] = value / 1e6 if in_seconds else value
    return kind(**known)


def refuse_large(path: Path) -> None:
    """CommsimError if a file is larger than `MOST_BYTES`."""
    if path.stat().st_size > MOST_BYTES:
        raise CommsimError(f"{path}: found {path.stat().st_size >> 20} MiB, expected at most {MOST_BYTES >> 20}")


def csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.is_file():
        return
    refuse_large(path)
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            yield from csv.DictReader(stream)
    except (csv.Error, OSError) as fault:
        raise CommsimError(f"{path}: cannot be read as CSV: {fault}") from None
