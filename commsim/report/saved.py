"""A result to draw, whether of this process or read back; its collectives read back."""

from __future__ import annotations

import csv
import stat
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from commsim.engine.usage import KindUse, LinkUse, Use
from commsim.errors import CommsimError
from commsim.files import plain_cell
from commsim.measure.records import Curve
from commsim.scenario.item import Item, Row
from commsim.units import GIGA

if TYPE_CHECKING:
    from commsim.report.steps import StepFigures
    from commsim.scenario.item import Item
    from commsim.scenario.schema import Scenario

T = TypeVar("T")

MOST_BYTES = 256 << 20
"""Larger files are refused."""


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
    def links(self) -> tuple[Item, ...]:
        """The collectives that say how busy links were."""
        return tuple(item for item in self.items if item.use is not None and item.use.links)


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
    """CommsimError for a device, which may have no end, and for a file larger than `MOST_BYTES`."""
    status = path.stat()
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise CommsimError(f"{path}: found a device, expected a file")
    if status.st_size > MOST_BYTES:
        raise CommsimError(f"{path}: found {status.st_size >> 20} MiB, expected at most {MOST_BYTES >> 20}")


def csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.is_file():
        return
    refuse_large(path)
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                yield {name: plain_cell(cell) if isinstance(cell, str) else cell for name, cell in row.items()}
    except (csv.Error, OSError) as fault:
        raise CommsimError(f"{path}: cannot be read as CSV: {fault}") from None


def read_items(name: str, records: list[dict[str, Any]], folder: Path | None) -> list[Item]:
    """The items of a result's JSON, with the links of the table beside it."""
    links = _links(folder / "links.csv") if folder is not None else {}
    return [_item(name, record, tuple(links.get(number, ()))) for number, record in enumerate(records, 1)]


def _item(name: str, item: dict[str, Any], links: tuple[LinkUse, ...]) -> Item:
    rows = tuple(_row(item, record) for record in item["rows"])
    measured, predicted = [], []
    for curve in item.get("measured") or ():
        size, times, at = (np.array(curve[key], float) for key in ("size_bytes", "time_us", "predicted_us"))
        call = (item["collective"], curve["n_ranks"])
        measured.append(Curve(str(curve["name"]), *call, "measured", size.astype(np.int64), times / 1e6))
        predicted.append(Curve(name, *call, "predicted", size.astype(np.int64), at / 1e6))
    return Item(
        name=name,
        collective=str(item["collective"]),
        n_ranks=int(item["n_ranks"]),
        rows=rows,
        library=str(item["library"]),
        mode=str(item["mode"]),
        measured=tuple(measured),
        at_measured=tuple(predicted),
        parameters=str(item.get("parameters") or ""),
        use=_use(item.get("network_use"), links),
        use_bytes=max((row.size_bytes for row in rows), default=0),
        bound=str(item.get("bound") or ""),
    )


def _row(item: dict[str, Any], record: dict[str, Any]) -> Row:
    def algorithms(name: str) -> tuple[tuple[str, float], ...]:
        by_size = (item.get(name) or {}).get(str(record["size_bytes"]), {})
        return tuple((str(n), float(us) / 1e6) for n, us in by_size.items())

    return of_record(
        Row,
        record,
        algbw=GIGA * float(record["algbw_GBps"]),
        busbw=GIGA * float(record["busbw_GBps"]),
        candidates=algorithms("candidates_us"),
        left_out=algorithms("left_out_us"),
    )


def _use(record: dict[str, Any] | None, links: tuple[LinkUse, ...]) -> Use | None:
    """The use of the network; that of an old file, which has only its links, has these."""
    if record is None:
        return Use(0.0, 0.0, "", (), links, len(links)) if links else None
    return of_record(Use, record, kinds=tuple(KindUse(**kind) for kind in record["kinds"]), links=links)


def _links(path: Path) -> dict[int, list[LinkUse]]:
    """The links of links.csv by item, from 1."""
    links: dict[int, list[LinkUse]] = {}
    for row in csv_rows(path):
        busy, share = float(row["busy_us"]) / 1e6, float(row["utilisation"])
        links.setdefault(int(row["item"]), []).append(LinkUse(row["link"], row["kind"], int(row["bytes"]), busy, share))
    return links
