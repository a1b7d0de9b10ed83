"""What is wrong where a report holds counts in place of calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from commsim.dumps.call import Count
from commsim.dumps.finding import DumpFinding, format_ranks


def counted_findings(reported: Sequence[Count]) -> list[DumpFinding]:
    """Ranks that are in trouble, and those that have launched fewer collectives than others."""
    findings = [
        DumpFinding(
            "dead", (c.rank,), c.group, 0, "", f"rank {c.rank} of communicator {c.group}: {c.trouble} ({c.process})"
        )
        for c in reported
        if c.trouble
    ]
    by: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for count in reported:
        if count.operation:
            by[count.group, count.operation].append((count.launched, count.rank, count.process))
    for (group, operation), counts in by.items():
        front, least = max(counts)[0], min(counts)[0]
        if front > least:
            findings.append(_uneven(group, operation, counts, front))
    return findings


def _uneven(group: str, operation: str, counts: Sequence[tuple[int, int, str]], front: int) -> DumpFinding:
    ahead = [rank for launched, rank, _ in counts if launched == front and rank >= 0]
    behind = [rank for launched, rank, _ in counts if launched < front and rank >= 0]
    least = min(counts)[0]
    if behind:
        where = next(process for launched, rank, process in counts if rank == behind[0])
        verb = "has" if len(behind) == 1 else "have"
        text = (
            f"{format_ranks(behind)} {verb} not launched {operation} #{front} of communicator {group}, which "
            f"{format_ranks(ahead) if ahead else 'others'} launched; the furthest behind stands at {least} ({where})"
        )
    else:
        unnamed = next(process for launched, rank, process in counts if launched < front)
        text = (
            f"{unnamed}, all but {format_ranks(ahead)}, have not launched {operation} #{front} of communicator "
            f"{group}; they stand at {least}"
        )
    return DumpFinding("missing", tuple(sorted(behind or ahead)), group, front, operation, text)
