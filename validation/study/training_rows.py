"""Published rows as steps of their source, and those that can be scored as a table.

A row's facts are its columns (`commsim.accuracy.facts`). Blank ones of a publication that the project knows are those
of `publications.yaml`; `validation/fill_facts.py` writes them into a table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commsim.accuracy.cells import NEEDED, read_table
from commsim.accuracy.facts import Cells, entries, implied
from commsim.accuracy.training_rows import RowReader, TrainingRow
from commsim.training.columns import Columns

Float64 = npt.NDArray[np.float64]

PUBLICATIONS = Path(__file__).with_name("publications.yaml")

SCORING = {
    "fit": "no where fits leave the row out",
    "apart": "why the row is reported apart and not in the figures",
    "part": "the part of its source that has figures of its own, all where it has none",
}
"""Columns that say how a row is scored."""


@dataclass(frozen=True, kw_only=True)
class PublishedRow(TrainingRow):
    """A row with its source's short name and its cells, those that `publications.yaml` knows filled in."""

    source: str
    cells: Cells


def publication_of(source: str) -> str:
    """The short name of a source; its first words where it is not known."""
    known = (name for name, entry in entries(PUBLICATIONS).items() if re.search(entry["pattern"], source))
    return next(known, " ".join(source.split()[:3])[:40] or "unnamed")


def with_facts(cells: Cells) -> dict[str, str]:
    """The cells of a row with what is known of its publication in blank ones."""
    out = dict(cells)
    for name, text in implied(entries(PUBLICATIONS).get(publication_of(cells["source"]), {}), cells):
        if not out.get(name):
            out[name] = text
    return out


def row_of(cells: Cells) -> PublishedRow:
    """A row of a table of published steps."""
    known = with_facts(cells)
    return PublishedRow(**vars(RowReader(known).row()), source=publication_of(cells["source"]), cells=known)


def read_published(path: Path) -> list[PublishedRow]:
    """The rows of a file of published steps; LogFormatError where it is not such a table."""
    return [row_of(cells) for cells in read_table(path, NEEDED)]


def apart(row: PublishedRow) -> str:
    """Why a row is reported apart and not in the figures; blank where it is in them."""
    return row.cells.get("apart", "") if row.step is not None else ""


def fitted(row: PublishedRow) -> bool:
    """Whether fits may use a row."""
    return row.cells.get("fit", "") != "no" and not apart(row)


def group_of(row: PublishedRow) -> str:
    """The group that errors are stated for: the source, or a part of it, which its models of experts are."""
    moe = row.step is not None and row.step.model.moe is not None
    part = row.cells.get("part", "") or ("experts" if moe else "all")
    return row.source if part == "all" else f"{row.source} ({part})"


# -- rows as a table ---------------------------------


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Rows that can be predicted, as columns, with what was measured."""

    rows: Sequence[PublishedRow]
    columns: Columns
    measured: Float64  # seconds
    source: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: npt.NDArray[np.int64]) -> MeasuredRows:
        """Some of the rows."""
        return MeasuredRows(
            [self.rows[i] for i in index], self.columns.take(index), self.measured[index], self.source[index]
        )


def table_of(rows: Sequence[PublishedRow]) -> MeasuredRows:
    """The rows that have a step and a measured time."""
    known = [row for row in rows if row.step is not None and row.measured_s is not None]
    return MeasuredRows(
        known,
        Columns([row.step for row in known]),
        np.array([row.measured_s for row in known], np.float64),
        np.array([row.source for row in known], np.str_),
    )


def errors(table: MeasuredRows, predicted: Float64) -> Float64:
    """Signed error of every row in percent."""
    return 100.0 * (predicted - table.measured) / table.measured
