"""The rank that a file's name tells."""

from __future__ import annotations

import re
from pathlib import Path

_ENDINGS = (".gz", ".json", ".jsonl", ".pickle", ".pkl", ".pt", ".trace", ".sqlite", ".log", ".txt")


def rank_of(path: Path) -> int | None:
    """Rank 3 of ``nccl_trace_rank_3``, ``rank3.json`` or ``fr3.json.gz``; None where the name holds none."""
    name = path.name
    while (ending := next((e for e in _ENDINGS if name.endswith(e)), None)) is not None:
        name = name.removesuffix(ending)
    said = re.findall(r"rank[_\-.]?([0-9]{1,7})(?![0-9])", name, re.IGNORECASE)
    last = re.search(r"([0-9]{1,7})$", name)
    return int(said[-1]) if said else int(last[1]) if last else None
