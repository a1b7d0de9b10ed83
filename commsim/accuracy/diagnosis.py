"""What the dumps of a job say: what is wrong, who waited for whom, and what each kind of call took and should take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from commsim.accuracy.expected import CallKind, kinds_of, slow_findings
from commsim.accuracy.replay import Replayed, replay
from commsim.dumps.finding import DumpFinding, format_ranks
from commsim.dumps.findings import LATE_SHARE, before_mismatch, covered_s, cut_recordings, findings_of, late_findings
from commsim.dumps.job import DumpedJob, job_of
from commsim.dumps.reading import dumps_of
from commsim.dumps.waits import CallWait, HostClock, RankTime, rank_times, waits_of, without_start
from commsim.units import format_time


@dataclass(frozen=True, eq=False)
class JobDiagnosis:
    """A job, its collectives as their ranks lived through them, and what is wrong, the cause of the rest first."""

    job: DumpedJob
    waits: Sequence[CallWait]
    judged: Sequence[CallWait]  # those of `waits` in which somebody may be called late
    clocks: Sequence[HostClock]
    kinds: Sequence[CallKind]
    findings: Sequence[DumpFinding]
    machine: str | None
    notes: tuple[str, ...]
    replayed: Replayed | None = None

    @cached_property
    def ranks(self) -> list[RankTime]:
        """What each rank did in all collectives that are judged."""
        return rank_times(self.judged)

    @property
    def answer(self) -> tuple[str, ...]:
        """What is wrong, one sentence each; else that nothing is, and what the dump cannot tell; then the replay."""
        return (*self._verdict(), *((self.replayed.answer,) if self.replayed else ()))

    def _verdict(self) -> tuple[str, ...]:
        if self.findings:
            return tuple(_sentence(finding.text) for finding in self.findings)
        counted = f"{len(self.job.matches):,} collectives of {format_ranks(self.job.ranks)}"
        if not self.job.matches:
            return (f"Nothing is wrong that these files tell of {format_ranks(self.job.ranks)}.",)
        if len(self.job.ranks) == 1:
            return (f"Nothing is wrong that one rank can tell: {counted}, none of them unfinished.", _ALONE)
        return (f"Nothing is wrong: {counted}, each entered by all its ranks with the same call.", *self._latest())

    def _latest(self) -> tuple[str, ...]:
        if not any(rank.cost_s for rank in self.ranks):
            return ()
        worst = max(self.ranks, key=lambda rank: rank.cost_s)
        share = worst.cost_s / covered_s(self.judged) if covered_s(self.judged) else 0.0
        text = f"Rank {worst.rank} cost the others most: {format_time(worst.cost_s)}, {100 * share:.1f} % of the time."
        return (text,)


def _empty(job: DumpedJob) -> list[DumpFinding]:
    """That nothing was recorded, where it was not."""
    if job.matches or job.counts or any(dump.messages for dump in job.dumps):
        return []
    files = "the file" if len(job.dumps) == 1 else f"{len(job.dumps)} files"
    text = f"nothing was recorded: {files} of {format_ranks(job.ranks)} hold{'s' * (len(job.dumps) == 1)} no call"
    return [DumpFinding("empty", tuple(job.ranks), "", 0, "", text)]


MOST_CUT = 4
"""Recordings that end early, by name."""

_ALONE = (
    "Who was waited for needs the files of the other ranks; what a call took beyond the quickest of its kind is "
    "waiting, or a slower transfer."
)


def _sentence(text: str) -> str:
    named = "_" in text.split(" ", 1)[0]  # a sentence may begin with a collective, which keeps its name
    return f"{text if named else text[0].upper() + text[1:]}."


def diagnose(
    paths: Sequence[Path],
    machine: str | None = None,
    changes: Sequence[str] = (),
    late_share: float = LATE_SHARE,
    progress: Callable[[int], None] = lambda count: None,
) -> JobDiagnosis:
    """What files and folders of dumps say, against a machine if one is named; CommsimError where they cannot be read.

    With ``changes`` (``key=value``) the calls are replayed on the machine as it is and as it is then.

    ``progress`` is called with the number of files read. A rank is late that cost the others more than ``late_share``
    of the time that the dumps cover, the first collective of a recording apart.
    """
    job = job_of(dumps_of(paths, progress))
    findings = [*_empty(job), *findings_of(job)]
    waits, clocks = waits_of(job)
    waits = before_mismatch(waits, findings)
    kinds, warnings = kinds_of(job, waits, machine)
    judged = without_start(waits)
    findings += late_findings(job, judged, rank_times(judged), late_share) + slow_findings(kinds)
    replayed = replay(job, waits, machine, changes) if changes and machine is not None else None
    notes = (*_notes(job, waits, judged, clocks, findings), *warnings, *(replayed.notes if replayed else ()))
    return JobDiagnosis(job, waits, judged, clocks, kinds, findings, machine, notes, replayed)


def _notes(
    job: DumpedJob,
    waits: Sequence[CallWait],
    judged: Sequence[CallWait],
    clocks: Sequence[HostClock],
    findings: Sequence[DumpFinding],
) -> list[str]:
    """What of the dumps limits what is said."""
    notes = list(job.notes)
    if job.kind != "NCCL inspector":  # which leaves calls out
        notes += cut_recordings(job)[:MOST_CUT]
    absent = sorted({rank for group in job.groups.values() for rank in group.ranks or ()} - set(job.ranks))
    if absent and job.matches:
        notes.append(f"there is no file of {format_ranks(absent)}: whether they entered a call is not known")
    if any(finding.kind == "missing" for finding in findings) and not job.counts:
        notes.append(
            "calls are counted on each rank: one that skipped one of several equal calls lacks the last of them"
        )
    if len(judged) < len(waits):
        names = " and ".join(wait.match.name for wait in waits[: len(waits) - len(judged)][-2:])
        notes.append(f"the recording starts in {names}: nobody is called late for it, and no sum of ranks holds it")
    if any(wait.start_s for wait in waits) and job.enqueued:
        notes.append(
            "starts are when hosts asked for calls, by their own clocks: a GPU may have begun later, and clocks differ"
        )
    if waits and not any(wait.start_s for wait in waits):
        notes.append(
            "waiting is told from durations: all ranks leave a collective together, the last is in it shortest"
        )
    if job.kind == "NCCL inspector":
        notes.append("the inspector writes finished calls only, and not all of them: a hang is not in its files")
    notes += [
        f"the clock of {clock.host} is {format_time(abs(clock.ahead_s))} {'ahead' if clock.ahead_s > 0 else 'behind'} "
        f"by {clock.ends} ends of collectives (spread {format_time(clock.spread_s)}), and is put right"
        for clock in clocks
        if clock.ends
    ]
    hosts = set(job.hosts.values())
    if len(job.ranks) > 1 and len(hosts) > 1 and not clocks and any(wait.start_s for wait in waits):
        notes.append(
            "the clocks of several hosts are taken as they are: too few ends of collectives to put them together"
        )
    return notes
