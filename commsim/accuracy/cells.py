"""Tables of measured training steps as text: their rows by column, and the number that a cell says."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from commsim.document import read_text
from commsim.errors import Fault, LogFormatError

MAX_BYTES = 16 * 2**20
"""A table of rows may be this large: ten times all that is published."""

NEEDED = ("id", "source", "gpu_model", "n_gpus", "seq_len", "global_batch_seqs")
"""Columns without which a table is none of training steps."""

_GROUPED, _THOUSANDS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?"), re.compile(",")


def read_table(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The cells of every row of a CSV file by column; LogFormatError where it lacks a needed column."""
    table = csv.DictReader(io.StringIO(read_text(path, error=LogFormatError, limit=MAX_BYTES)))
    names = table.fieldnames or []
    missing = [n for n in needed if n not in names]
    if missing:
        message = f"found the columns {', '.join(names)[:200]}, expected also {', '.join(missing)}"
        raise LogFormatError([Fault(str(path), 1, 1, "", message)])
    try:
        rows = [{k: (v or "").strip() for k, v in r.items() if isinstance(k, str)} for r in table]
    except csv.Error as exc:
        raise LogFormatError([Fault(str(path), table.line_num, 1, "", str(exc))]) from None
    if not rows:
        raise LogFormatError([Fault(str(path), 2, 1, "", "found no row below the names of the columns, expected some")])
    return rows


def is_table_of_rows(path: Path) -> bool:
    """Whether a file begins like a table of training steps."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as stream:
            head = stream.readline(65536)
    except OSError:
        return False
    return len(set(NEEDED) & {name.strip().strip('"') for name in head.split(",")}) > 1  # `read_table` names the others


def number(text: str) -> float:
    """What a cell says, with or without commas between thousands; not a number where it says none."""
    try:
        return float(_THOUSANDS.sub("", text) if _GROUPED.fullmatch(text) else text)
    except ValueError:
        return math.nan
