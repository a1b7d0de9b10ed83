"""Carries measured curves into ``validation/measured/``: the numbers and their conditions, nobody's prose.

    python validation/carry.py SOURCE_DIR [TARGET_DIR]

SOURCE_DIR holds one ``<slug>.csv`` per log and the indexes ``INDEX_single_node.csv`` and ``INDEX_multi_node.csv``.
The tables are copied as they are; of the index, the columns of `KEPT` are copied and the `notes` column is replaced by
flags that `flags` derives. The same source gives the same files, and a file that the source no longer has is removed.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

from commsim.accuracy.cases import iterations_of, launch_in_words, nic_apart
from commsim.files import write_atomically

INDEXES = ("INDEX_single_node.csv", "INDEX_multi_node.csv")
KEPT = (
    "slug",
    "collective",
    "n_ranks",
    "n_nodes",
    "gpus_per_node",
    "gpu_model",
    "intra_link",
    "inter_link",
    "nccl_version",
    "env",
    "nccl_tests_version",
    "healthy",
    "source_url",
    "date",
)
FLAGS = ("launch", "iterations", "nic_apart", "busbw_only", "in_place_only", "old_convention")


def flags(record: dict[str, str], rows: list[dict[str, str]]) -> dict[str, str]:
    """The derived columns of one log: launch, iterations and place of the NICs by its words, and ``yes`` or blank."""

    def has(*columns: str) -> bool:
        return any(row.get(column) for row in rows for column in columns)

    return {
        "launch": launch_in_words(record),
        "iterations": str(iterations_of(record) or ""),
        "nic_apart": "yes" if nic_apart(record) else "no" if record.get("nic_apart") == "no" else "",
        "busbw_only": "" if has("oop_time_us", "ip_time_us") else "yes",
        "in_place_only": "" if has("oop_time_us", "oop_algbw_GBps", "oop_busbw_GBps") else "yes",
        "old_convention": "yes" if "OLD CONVENTION" in record.get("notes", "") else "",
    }


def carry(source: Path, target: Path) -> list[Path]:
    """Write the tables, indexes and spreads of `source` to `target`; returns what was written."""
    written = []
    for name in INDEXES:
        with (source / name).open(encoding="utf-8", newline="") as stream:
            records = list(csv.DictReader(stream))
        text = io.StringIO()
        writer = csv.DictWriter(text, [*KEPT, *FLAGS], lineterminator="\n")
        writer.writeheader()
        for record in records:
            table = source / f"{record['slug']}.csv"
            data = table.read_bytes().replace(b"\r\n", b"\n")
            rows = list(csv.DictReader(data.decode().splitlines()))
            kept = {column: " ".join(record[column].split()) for column in KEPT}
            writer.writerow(kept | flags(record, rows))
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
    target = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).resolve().parent / "measured"
    written = carry(Path(arguments[0]), target)
    print(f"{len(written)} files, {sum(path.stat().st_size for path in written) / 1e6:.2f} MB, in {target.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
