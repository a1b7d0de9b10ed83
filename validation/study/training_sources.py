"""What is known of a source of training rows beside its columns: `training_sources.yaml` as values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from commsim.accuracy.training_rows import TrainingRow, read_rows
from commsim.accuracy.training_source import Source, unknown_source
from commsim.document import read_documents

_PATH = Path(__file__).with_name("training_sources.yaml")


@dataclass(frozen=True)
class PublishedSource(Source):
    """Rules for the rows of one published source, and how they are scored."""

    pattern: str = ""  # found in the column `source`
    early: str = "$^"  # tables that fits leave out
    fit: bool = True
    apart: str = ""  # why its rows are reported apart
    apart_zero3: str = ""
    experts_apart: bool = True  # its models of experts have figures of their own
    group_table: str = ""  # a table that has figures of its own, by how its name begins
    why: str = ""


@lru_cache(maxsize=1)
def sources() -> tuple[PublishedSource, ...]:
    """All known sources, in the order of the file."""
    entries: dict[str, dict[str, Any]] = read_documents(_PATH)[0].data
    return tuple(_source(name, dict(fields)) for name, fields in entries.items())


def _source(name: str, fields: dict[str, Any]) -> PublishedSource:
    if "overlap" in fields:
        fields["overlap"] = frozenset(fields["overlap"])
    if "graphs_from" in fields:
        fields["graphs_from"] = tuple(fields["graphs_from"])
    if isinstance(fields.get("chunks"), dict):
        fields["chunks"] = tuple((int(k), int(v)) for k, v in fields["chunks"].items())
    return PublishedSource(name, **fields)


def source_of(text: str) -> Source:
    """The rules of a source; the defaults under the text's first words where it is not known."""
    return next((source for source in sources() if re.search(source.pattern, text)), unknown_source(text))


def read_published(path: Path) -> list[TrainingRow]:
    """The rows of a file of published steps; LogFormatError where it is not such a table."""
    return read_rows(path, source_of)


def apart(row: TrainingRow) -> str:
    """Why a row is reported apart and not in the figures; blank where it is in them."""
    source = row.source
    if row.step is None or not isinstance(source, PublishedSource):
        return ""
    return source.apart or (source.apart_zero3 if row.step.zero_stage == 3 else "")


def fitted(row: TrainingRow) -> bool:
    """Whether fits may use a row."""
    source = row.source
    if not isinstance(source, PublishedSource):
        return not apart(row)
    return source.fit and not apart(row) and not re.search(source.early, row.cells.get("table", ""))


def group_of(row: TrainingRow) -> str:
    """The group that errors are stated for: the source, its models of experts and a table of another kind apart."""
    source = row.source
    known = source if isinstance(source, PublishedSource) else PublishedSource(source.name)
    if row.step is not None and row.step.model.moe is not None and known.experts_apart:
        return f"{source.name} (experts)"
    if known.group_table and row.cells.get("table", "").startswith(known.group_table):
        return f"{source.name} ({known.group_table})"
    return source.name
