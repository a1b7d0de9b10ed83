"""Carries measured curves into ``validation/measured/``: the numbers and their conditions, nobody's prose.

    python validation/carry.py SOURCE_DIR [TARGET_DIR]

SOURCE_DIR holds one ``<slug>.csv`` per log and the indexes ``INDEX_single_node.csv`` and ``INDEX_multi_node.csv``.
The tables are copied as they are. Of the index, the columns of `KEPT` are copied; those of `CONDITIONS` stay as the row
of ``validation/measured/`` has them, and a new log must bring them; `flags` derives the rest. The same source gives the
same files, and a file that the source no longer has is removed.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

from commsim.files import write_atomically
from study.index import REQUIRED

MEASURED = Path(__file__).resolve().parent / "measured"
INDEXES = ("INDEX_single_node.csv", "INDEX_multi_node.csv")
CONDITIONS = (
    "machine",
    "system",
    "nodes",
    "gpus_per_node",
    "network",
    "nics_per_node",
    "nic_gbps",
    "nccl_version",
    "launch",
    "iterations",
    "env",
    "assumed",
    "in_words",
)
KEPT = (
    "slug",
    "collective",
    "n_ranks",
    "healthy",
    "date",
    "source_url",
    "gpu_model",
    "intra_link",
    "inter_link",
    "nccl_tests_version",
)
FLAGS = ("busbw_only", "in_place_only", "old_convention")
COLUMNS = (*KEPT[:3], *CONDITIONS[:-1], *KEPT[3:9], "in_words", KEPT[9], *FLAGS)


def flags(record: dict[str, str], rows: list[dict[str, str]]) -> dict[str, str]:
    """The derived columns of one log, ``yes`` or blank."""

    def has(*columns: str) -> bool:
        return any(row.get(column) for row in rows for column in columns)

    return {
        "busbw_only": "" if has("oop_time_us", "ip_time_us") else "yes",
        "in_place_only": "" if has("oop_time_us", "oop_algbw_GBps", "oop_busbw_GBps") else "yes",
        "old_convention": "yes" if "OLD CONVENTION" in record.get("notes", "") else "",
    }


def conditions() -> dict[str, dict[str, str]]:
    """The columns of `CONDITIONS` of every log that is carried already, by slug."""
    rows = (row for name in INDEXES for row in _records(MEASURED / name))
    return {row["slug"]: {column: row[column] for column in CONDITIONS} for row in rows}


def _records(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _conditions_of(record: dict[str, str], known: dict[str, dict[str, str]]) -> dict[str, str]:
    if record["slug"] in known:
        return known[record["slug"]]
    missing = [column for column in REQUIRED if not record.get(column)]
    if missing:
        raise SystemExit(f"{record['slug']}: fill in {', '.join(missing)} (docs/guides/validate.md)")
    return {column: record.get(column, "") for column in CONDITIONS}


def carry(source: Path, target: Path) -> list[Path]:
    """Write the tables, indexes and spreads of `source` to `target`; returns what was written."""
    written, known = [], conditions()
    for name in INDEXES:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for record in _records(source / name):
            table = source / f"{record['slug']}.csv"
            data = table.read_bytes().replace(b"\r\n", b"\n")
            rows = list(csv.DictReader(data.decode().splitlines()))
            kept = {column: " ".join(record[column].split()) for column in KEPT}
            writer.writerow(kept | _conditions_of(record, known) | flags(record, rows))
            written.append(write_atomically(target / table.name, data))
        written.append(write_atomically(target / name, text.getvalue()))
    written += [
        write_atomically(target / table.name, table.read_bytes().replace(b"\r\n", b"\n"))
        for table in sorted(source.glob("SPREAD_*.csv"))
    ]
    for old in set(target.glob("*.csv")) - set(written):
        old.unlink()
    return written


def main(arguments: list[str]) -> int:
    """Command line: the source folder, then where to write if not beside this file."""
    if not 1 <= len(arguments) <= 2 or not all((Path(arguments[0]) / name).is_file() for name in INDEXES):
        print(f"usage: python validation/carry.py SOURCE_DIR [TARGET_DIR]; SOURCE_DIR holds {' and '.join(INDEXES)}")
        return 2
    target = Path(arguments[1]) if len(arguments) > 1 else MEASURED
    written = carry(Path(arguments[0]), target)
    print(f"{len(written)} files, {sum(path.stat().st_size for path in written) / 1e6:.2f} MB, in {target.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
