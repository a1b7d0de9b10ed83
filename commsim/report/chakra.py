"""Simulated traces as text and CSV: the time, what ranks spend it on, the calls, the critical path."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from commsim.scenario.chakra_result import TraceItem
from commsim.units import format_bytes, format_time

SHOWN = 12
"""Kinds of calls and ranks in a table on a terminal; the files have all."""


def trace_table(item: TraceItem, heading: Iterable[str] = ()) -> str:
    """The answer for a terminal; lines that start with ``#`` are no figures."""
    lines = [f"# {text}".rstrip() for text in heading]
    total = item.seconds or 1.0
    lines += [
        f"# {item.nodes:,} nodes of {len(item.ranks)} ranks, "
        f"{'with' if item.run.contended else 'without'} contention on links",
        "#",
        f"  time                {format_time(item.seconds):>12}",
        f"  bottleneck          {item.bottleneck}",
        "#",
        "# where the time goes (mean rank)",
    ]
    lines += [
        f"  {name:<19} {format_time(item.mean(part)):>12} {item.mean(part) / total:>7.1%}  {meaning}"
        for name, part, meaning in MEANINGS
    ]
    lines += ["#", f"# critical path to the end of rank {item.longest}"]
    lines += [f"  {what:<34} {format_time(s):>12} {s / total:>7.1%}  {n} x" for what, s, n in item.path[:SHOWN]]
    if item.calls:
        lines += [
            "#",
            f"# {'call':<16} {'ranks':>6} {'size':>12} {'count':>8} {'mean':>12} {'longest':>12} {'all':>12}",
        ]
        for call in item.calls[:SHOWN]:
            times = " ".join(f"{format_time(s):>12}" for s in (call.mean, call.most, call.total))
            size = format_bytes(call.nbytes)
            lines.append(f"  {call.call:<16} {call.ranks:>6} {size:>12} {call.count:>8} {times}")
        lines += _more(len(item.calls), "kinds of calls")
    lines += ["#", f"# {'rank':>6} {'compute':>12} {'exposed':>12} {'idle':>12} {'end':>12}   critical path to its end"]
    for row in item.ranks[:SHOWN]:
        shares = ", ".join(
            f"{name} {value / row.end:.0%}"
            for name, value in zip(("compute", "communication", "other"), row.path, strict=True)
            if row.end and value
        )
        times = " ".join(f"{format_time(s):>12}" for s in (row.compute, row.exposed, row.idle, row.end))
        lines.append(f"  {row.rank:>6} {times}   {shares}")
    lines += _more(len(item.ranks), "ranks")
    return "\n".join(lines) + "\n"


MEANINGS = (
    ("compute", "compute", "the GPU computes"),
    ("exposed comm", "exposed", "transfers while it does not"),
    ("other", "other", "host and memory beside neither"),
    ("idle", "idle", "waits for other ranks"),
)
"""(name, column, what it is)"""


def _more(count: int, what: str) -> list[str]:
    return [f"# and {count - SHOWN} more {what}"] if count > SHOWN else []


def ranks_csv(items: Iterable[TraceItem]) -> str:
    """One row per item and rank."""
    return _csv([{"item": item.name, **row.record()} for item in items for row in item.ranks])


def calls_csv(items: Iterable[TraceItem]) -> str:
    """One row per item and kind of call."""
    return _csv([{"item": item.name, **row.record()} for item in items for row in item.calls])


def _csv(records: list[dict[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]) if records else ["item"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in r.items()} for r in records)
    return stream.getvalue()
