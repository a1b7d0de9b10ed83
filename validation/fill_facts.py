"""Writes what is known of publications into a table of training steps: facts of the software, and how rows are scored.

    python validation/fill_facts.py STEPS.csv [OUT.csv]

Only blank cells are filled, by `validation/study/publications.yaml`; columns that no row needs are left out. Without
OUT.csv the table itself is written.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

from commsim.accuracy.cells import NEEDED, read_table
from commsim.accuracy.facts import FACTS
from commsim.files import write_atomically
from study.training_rows import SCORING, with_facts


def filled_table(path: Path) -> str:
    """The table with the facts of its publications, as CSV text."""
    rows = read_table(path, NEEDED)
    full = [with_facts(cells) for cells in rows]
    names = list(rows[0]) + [n for n in (*FACTS, *SCORING) if n not in rows[0] and any(r.get(n) for r in full)]
    out = io.StringIO()
    table = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(full)
    return out.getvalue()


def main() -> int:
    """Fill the table that the arguments name."""
    if len(sys.argv) not in (2, 3):
        print(__doc__)
        return 2
    path = Path(sys.argv[1])
    print(f"wrote {write_atomically(Path(sys.argv[-1]), filled_table(path))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
