"""Dumps as tables, JSON and a picture: what is wrong first, then each kind of call, then the ranks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from textwrap import shorten
from typing import Any

from commsim.accuracy.diagnosis import JobDiagnosis
from commsim.accuracy.expected import CallKind
from commsim.dumps.job import Match
from commsim.dumps.waits import CallWait
from commsim.report.dump_chart import dump_chart
from commsim.report.page import Facts, Page, Section, plot, size_cell, table
from commsim.report.tables import aligned, format_time_us, width
from commsim.units import format_bytes, microseconds

MOST_KINDS = 40
MOST_CALLS = 10
MOST_RANKS = 16


def dump_tables(found: JobDiagnosis) -> str:
    """The tables of the terminal; ends with a newline."""
    lines = _kinds_table(found)
    if found.waits:
        lines += ["", *_worst_table(found), "", *_ranks_table(found)]
    return "\n".join(lines) + "\n" if lines else ""


def _group(match: Match) -> str:
    """The group's name in 12 characters, cut between words; the collective beside it is not said twice."""
    name = match.group.name.removesuffix(f"/{match.any.operation}")
    return name if len(name) <= 12 else shorten(name, 12, placeholder="...") if " " in name[:9] else name[:9] + "..."


def _marked(rows: Sequence[Sequence[str]], left: Container[int], spare: Iterable[int]) -> list[str]:
    """A table whose first two lines, names and units, begin with ``#``."""
    lines = aligned(rows, left, width() - 2, spare)
    return [f"{'' if line[:1] == '#' else '# ' if i < 2 else '  '}{line}".rstrip() for i, line in enumerate(lines)]


def _kinds_table(found: JobDiagnosis) -> list[str]:
    """Each kind of call; beside what is expected of it there is no room for its type and waiting."""
    if not found.kinds:
        return []
    expected = found.machine is not None
    head = ["collective", "group", "ranks", "size", "calls", "transfer"]
    head += ["expected", "ratio", "choice"] if expected else ["waiting", "type"]
    units = ["(us)" if name in ("transfer", "expected", "waiting") else "" for name in head]
    rows = [_kind_cells(kind, expected) for kind in found.kinds[:MOST_KINDS]]
    lines = _marked([head, units, *rows], (0, 1, len(head) - 1), (2, 4, 8, 1))
    if len(found.kinds) > MOST_KINDS:
        lines.append(f"# and {len(found.kinds) - MOST_KINDS} more kinds of calls (--json has all)")
    words = "" if expected else "; waiting: the longest of each call; medians"
    return [f"# Calls: transfer: once all ranks are in it{words}", *lines]


def _kind_cells(kind: CallKind, expected: bool) -> list[str]:
    call, group = kind.match.any, kind.match.group
    cells = [
        call.operation[:14], _group(kind.match), str(len(group.ranks or kind.match.calls)),
        format_bytes(call.nbytes) if call.nbytes else "-", str(kind.calls), format_time_us(kind.transfer_s),
    ]  # fmt: skip
    if not expected:
        return [*cells, format_time_us(kind.waiting_s), call.dtype or "-"]
    ratio = "-" if kind.ratio is None else f"{kind.ratio:.2f}"
    return [*cells, format_time_us(kind.expected_s), ratio, kind.choice or "-"]


def _worst_table(found: JobDiagnosis) -> list[str]:
    worst = sorted(found.judged, key=lambda w: -max(w.waiting_s.values()))[:MOST_CALLS]
    head = ["call", "group", "size", "last rank", "longest waiting", "transfer"]
    rows = [
        [
            w.match.name[:32], _group(w.match), format_bytes(w.match.any.nbytes) if w.match.any.nbytes else "-",
            _last(w), format_time_us(max(w.waiting_s.values())), format_time_us(w.transfer_s),
        ]
        for w in worst
    ]  # fmt: skip
    lines = _marked([head, ["", "", "", "", "(us)", "(us)"], *rows], (0, 1), (5, 2, 1))
    return [f"# The {len(rows)} calls most waited for", *lines]


def _last(wait: CallWait) -> str:
    return ", ".join(map(str, wait.latest[:3])) + ("..." if len(wait.latest) > 3 else "") or "-"


def _ranks_table(found: JobDiagnosis) -> list[str]:
    ranks = sorted(found.ranks, key=lambda r: -r.cost_s)
    head = ["rank", "calls", "waiting", "transfer", "came last", "cost the others"]
    rows = [
        [str(r.rank), str(r.calls), *map(format_time_us, (r.waiting_s, r.transfer_s)), str(r.times_last),
         format_time_us(r.cost_s)]
        for r in ranks[:MOST_RANKS]
    ]  # fmt: skip
    lines = _marked([head, ["", "", "(us)", "(us)", "", "(us)"], *rows], (0,), (3, 1))
    text = [
        f"# Ranks, the costliest first: sums over {len(found.judged)} calls, those that overlap each in full",
        "# waiting: until the last rank came; cost: how much later than the middle rank, where it came last",
    ]
    return (
        text + lines + ([f"# and {len(ranks) - MOST_RANKS} more (--json has all)"] if len(ranks) > MOST_RANKS else [])
    )


# -- JSON ---------------------------------


def dump_dict(found: JobDiagnosis) -> dict[str, Any]:
    """All of it as plain values, times in microseconds."""
    job, by_match = found.job, {id(wait.match): wait for wait in found.waits}
    return {
        "kind": job.kind,
        "files": [str(dump.path) for dump in job.dumps],
        "ranks": list(job.ranks),
        "groups": [{"name": g.name, "title": g.title, "ranks": list(g.ranks or ())} for g in job.groups.values()],
        "answer": list(found.answer),
        "findings": [
            {
                "kind": f.kind, "ranks": list(f.ranks), "group": f.group, "sequence": f.sequence,
                "collective": f.operation, "text": f.text,
            }
            for f in found.findings
        ],
        "notes": list(found.notes),
        "machine": found.machine,
        "replayed": None
        if found.replayed is None
        else {
            "measured_us": microseconds(found.replayed.measured_s),
            "machine_us": microseconds(found.replayed.machine_s),
            "changed_us": microseconds(found.replayed.changed_s),
            "changes": list(found.replayed.changes),
        },
        "calls_by_kind": [_kind_dict(kind) for kind in found.kinds],
        "calls": [_call_dict(match, by_match.get(id(match))) for match in job.matches],
        "ranks_time": [
            {
                "rank": r.rank, "calls": r.calls, "waiting_us": microseconds(r.waiting_s),
                "transfer_us": _us(r.transfer_s), "times_last": r.times_last,
                "cost_us": microseconds(r.cost_s),
            }
            for r in found.ranks
        ],
    }  # fmt: skip


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else microseconds(seconds)


def _kind_dict(kind: CallKind) -> dict[str, Any]:
    call, group = kind.match.any, kind.match.group
    return {
        "collective": call.operation, "group": group.name, "n_ranks": len(group.ranks or kind.match.calls),
        "size_bytes": call.nbytes or None, "dtype": call.dtype or None, "calls": kind.calls,
        "waiting_us": _us(kind.waiting_s), "longest_waiting_us": _us(kind.most_waiting_s),
        "transfer_us": _us(kind.transfer_s), "expected_us": _us(kind.expected_s), "low_us": _us(kind.low_s),
        "high_us": _us(kind.high_s), "ratio": kind.ratio, "choice": kind.choice or None,
    }  # fmt: skip


def _call_dict(match: Match, wait: CallWait | None) -> dict[str, Any]:
    call = match.any
    return {
        "collective": call.operation, "group": match.group.name, "sequence": match.sequence,
        "size_bytes": call.nbytes or None, "dtype": call.dtype or None, "place": call.place or None,
        "ranks": list(match.calls), "states": {str(rank): c.state for rank, c in match.calls.items()},
        "last_rank": wait.last if wait and wait.latest else None,
        "last_ranks": list(wait.latest) if wait else None,
        "waiting_us": _by_rank(wait.waiting_s) if wait else None,
        "start_us": _by_rank(wait.start_s) if wait and wait.start_s else None,
        "transfer_us": _us(wait.transfer_s) if wait else None,
    }  # fmt: skip


def _by_rank(seconds: Mapping[int, float]) -> dict[str, float]:
    return {str(rank): microseconds(value) for rank, value in seconds.items()}


# -- the page ---------------------------------


def _filled(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """The columns in which some row has a value: a recorder without ends leaves some empty."""
    kept = [i for i, column in enumerate(zip(*rows, strict=True)) if any(cell not in (None, "") for cell in column)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def dump_page(found: JobDiagnosis) -> Page:
    """The same as a page to mail."""
    chart = dump_chart(found)
    sections = []
    if chart is not None:
        sections.append(Section("Ranks over time", (plot(chart, "Waiting for the last rank, and transfer."),)))
    rows = [
        (
            k.match.any.operation, k.match.group.name, len(k.match.group.ranks or k.match.calls),
            size_cell(k.match.any.nbytes), k.match.any.dtype, k.calls, _us(k.waiting_s), _us(k.transfer_s),
            _us(k.expected_s), k.ratio,
        )
        for k in found.kinds
    ]  # fmt: skip
    head = ["collective", "group", "ranks", "size", "type", "calls", "waiting (us)", "transfer (us)", "expected (us)",
            "measured over expected"]  # fmt: skip
    if rows:
        sections.append(Section("Calls", (table(*_filled(head, rows)),)))
    ranks = [
        (r.rank, r.calls, microseconds(r.waiting_s), _us(r.transfer_s), r.times_last, microseconds(r.cost_s))
        for r in found.ranks
    ]
    if ranks:
        head = ["rank", "calls", "waiting (us)", "transfer (us)", "came last", "cost the others (us)"]
        sections.append(Section("Ranks", (table(*_filled(head, ranks)),)))
    files = tuple((found.job.kind, str(dump.path)) for dump in found.job.dumps)
    sections.append(Section("Where the figures come from", (Facts(files),)))
    return Page("Dumps of a job", "What was wrong?", found.answer, tuple(sections), found.notes, found.job.kind)
