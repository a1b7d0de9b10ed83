"""Ranks over time, from their dumps: waiting for the last rank, then transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commsim.accuracy.diagnosis import JobDiagnosis
from commsim.dumps.finding import format_ranks
from commsim.dumps.waits import CallWait
from commsim.report.chart import MOST_SPANS, Axis, Chart, Span
from commsim.units import format_size

_MOST_RANKS = 64
_WAITING, _TRANSFER, _MISSING = "#E69F00", "#0072B2", "#D55E00"
_KEY = (("waiting for the last rank", _WAITING), ("transfer", _TRANSFER), ("did not enter", _MISSING))


def dump_chart(job: JobDiagnosis) -> Chart | None:
    """A row for each rank: its calls over time, those that cost most; sums where starts are not known.

    None where no collective is held by two ranks, or none takes any time.
    """
    if not job.waits:
        return None
    known = [wait for wait in job.waits if wait.start_s]
    timed = _counted(job, known)
    every = sorted({rank for wait in timed or job.waits for rank in wait.waiting_s})
    ranks = every[:_MOST_RANKS]
    notes = [f"{len(every) - len(ranks):,} more ranks are not drawn"] if len(every) > len(ranks) else []
    if timed:
        shown = sorted(timed, key=lambda w: -w.cost_s)[: max(1, MOST_SPANS // (3 * len(ranks)))]
        notes += [f"of {len(timed):,} calls the {len(shown):,} costliest"] if len(shown) < len(timed) else []
        left = len(known) - len(timed)
        notes += [f"not drawn: {left:,} in which the recording starts"] if left else []
        spans, axis = tuple(_calls(job, ranks, shown)), Axis("time since the first call drawn", unit="s")
    else:
        spans, axis = tuple(_sums(job, ranks)), Axis(f"time in {len(job.judged):,} collectives", unit="s")
    if not spans:
        return None
    drawn = {span.colour for span in spans}
    return Chart(
        _title(job),
        axis,
        rows=tuple(f"rank {rank}" for rank in ranks),
        spans=spans,
        key=tuple((name, colour) for name, colour in _KEY if colour in drawn),
        note="; ".join(notes),
    )


def _counted(job: JobDiagnosis, timed: Sequence[CallWait]) -> list[CallWait]:
    """The calls without those in which the recording starts: ranks wait so long there that of the rest nothing shows.

    What a finding names is drawn all the same.
    """
    judged = {id(wait) for wait in job.judged}
    named = {(finding.group, finding.sequence) for finding in job.findings}
    return [w for w in timed if id(w) in judged or (w.match.group.name, w.match.sequence) in named]


def _title(job: JobDiagnosis) -> str:
    first = next(iter(job.findings), None)
    if first is None:
        return "Nothing is wrong"
    who = format_ranks(first.ranks).capitalize() if first.ranks else "All ranks"
    words = {"missing": "not in", "mismatch": "another call as", "late": "late into", "stuck": "stuck in"}
    call = f" {first.operation} #{first.sequence}" if first.sequence else f" {first.operation}"
    return f"{who}: {words.get(first.kind, first.kind)}{call}".rstrip()


def _calls(job: JobDiagnosis, ranks: Sequence[int], waits: Sequence[CallWait]) -> Iterator[Span]:
    row = {rank: i for i, rank in enumerate(ranks)}
    first = min(min(wait.start_s.values()) for wait in waits)
    end = 0.0
    for wait in waits:
        size = f" of {format_size(wait.match.any.nbytes)}" if wait.match.any.nbytes else ""
        note = f"{wait.match.name}{size}"
        for rank, start in wait.start_s.items():
            if rank not in row:
                continue
            begin = start - first
            ready = begin + wait.waiting_s[rank]
            done = ready + (wait.transfer_s or 0.0)
            end = max(end, done)
            if ready > begin:
                yield Span(row[rank], begin, ready, "waiting", _WAITING, note)
            if done > ready:
                yield Span(row[rank], ready, done, "transfer", _TRANSFER, note)
    yield from _missing(job, row, first, end)


def _missing(job: JobDiagnosis, row: dict[int, int], first: float, end: float) -> Iterator[Span]:
    """From when the last of the others came into a call, the ranks that did not, to the end."""
    by = {(wait.match.group.name, wait.match.sequence): wait for wait in job.waits}
    for finding in job.findings:
        wait = by.get((finding.group, finding.sequence))
        if finding.kind == "missing" and wait is not None and wait.start_s:
            begin = wait.start_s[wait.last] - first
            for rank in finding.ranks:
                if rank in row:
                    yield Span(row[rank], begin, max(end, begin * 1.02), "did not enter", _MISSING, wait.match.name)


def _sums(job: JobDiagnosis, ranks: Sequence[int]) -> Iterator[Span]:
    times = {r.rank: r for r in job.ranks}
    for row, rank in enumerate(ranks):
        transfer = times[rank].transfer_s or 0.0
        for begin, end, text, colour in (
            (0.0, transfer, "transfer", _TRANSFER),
            (transfer, transfer + times[rank].waiting_s, "waiting", _WAITING),
        ):
            if end > begin:
                yield Span(row, begin, end, text, colour)
