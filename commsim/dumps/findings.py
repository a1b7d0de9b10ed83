"""What is wrong in a job: who did not enter which collective, whose calls differ, what did not end, who is late."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from commsim.collectives.semantics import DIVIDED, ROOTED
from commsim.dumps.call import RankCall, is_together
from commsim.dumps.counts import counted_findings
from commsim.dumps.finding import KINDS, DumpFinding, format_ranks
from commsim.dumps.job import DumpedJob, Match
from commsim.dumps.messages import message_findings
from commsim.dumps.waits import CallWait, RankTime
from commsim.units import format_size

LATE_SHARE = 0.05
"""Of the time that the dumps cover: what a rank must cost the others to be called late, unless told otherwise."""

_NO_SIZES = (ROOTED & DIVIDED) | {"all_to_all", "barrier"}
"""Collectives whose ranks may have sizes of their own (flight_recorder/components/types.py of torch)."""


def findings_of(job: DumpedJob) -> list[DumpFinding]:
    """What is wrong with the calls of a job, what explains the others first; nothing of time."""
    by_group = _by_group(job)
    findings = counted_findings(job.counts)
    for matches in by_group.values():
        different = _mismatch(matches)
        findings += different or (_missing(job, matches) if job.kind != "NCCL inspector" else [])
        if not different:
            findings += _stuck(matches)
    findings = _roots_first(findings, by_group)
    inside = {rank for m in job.matches for rank, call in m.calls.items() if call.state in ("scheduled", "started")}
    members = {name: group.ranks or () for name, group in job.groups.items()}
    return [*findings, *message_findings((m for dump in job.dumps for m in dump.open_messages), members, inside)]


def before_mismatch(waits: Sequence[CallWait], findings: Sequence[DumpFinding]) -> list[CallWait]:
    """Those whose calls are the same ones: from a mismatch on, numbers of a group say nothing."""
    limits = {f.group: f.sequence for f in findings if f.kind == "mismatch"}
    return [wait for wait in waits if wait.match.sequence < limits.get(wait.match.group.name, wait.match.sequence + 1)]


# -- calls that some ranks do not have ---------------------------------


def _missing(job: DumpedJob, matches: Sequence[Match]) -> list[DumpFinding]:
    """Ranks whose last call of a group is behind that of others, or that have none."""
    group = matches[0].group
    last: dict[int, int] = {}
    for match in matches:
        for rank in match.calls:
            last[rank] = max(last.get(rank, -1), match.sequence)
    front = max(last.values())
    behind: dict[int, list[int]] = defaultdict(list)
    members, here = frozenset(group.ranks or ()), frozenset(job.ranks)
    for rank in sorted(members & here):
        if last.get(rank, -1) < front:
            behind[last.get(rank, -1)].append(rank)
    open_calls = [m for m in matches if _unfinished(m.calls.values())]
    findings = []
    for past, ranks in sorted(behind.items()):
        at = _next(matches, past)
        assert at is not None, "a rank is behind another"
        if open_calls and open_calls[0].sequence < at.sequence and members <= open_calls[0].calls.keys():
            continue  # hosts ask for calls ahead of time: the one that hangs is before, and all are in it
        if _is_edge(at, matches):
            continue
        findings.append(_never_entered(job, at, ranks, past))
    absent = sorted(members - here)
    if absent and open_calls and not findings:
        at = open_calls[0]
        text = (
            f"{_of(at)} did not end, and there is no dump of {format_ranks(absent)}: it died, hangs outside of "
            "collectives, or its file was not given"
        )
        findings.append(DumpFinding("missing", tuple(absent), group.name, at.sequence, at.any.operation, text))
    return findings


UNUSUAL = 10.0
"""Times the usual time of a group's other calls: so long is a call that a timeout ends, not one that went well."""


def _is_edge(at: Match, matches: Sequence[Match]) -> bool:
    """Whether a call that some ranks lack was left by the others as calls are: then those were in it, too, and their
    recording ends before. Of the ranks that have it the last to enter counts, which waits for none of them."""
    if not is_together(at.any.operation) or any(call.end_ns is None for call in at.calls.values()):
        return False
    others = [least for match in matches if match is not at and (least := _least_s(match, at.calls)) is not None]
    return not others or (_least_s(at, at.calls) or 0.0) <= UNUSUAL * median(others)


def _least_s(match: Match, ranks: Iterable[int]) -> float | None:
    """The shortest time that some ranks were in a call, None where none is known."""
    calls = (match.calls[rank] for rank in ranks if rank in match.calls)
    return min((seconds for call in calls if (seconds := call.duration_s) is not None), default=None)


def cut_recordings(job: DumpedJob) -> list[str]:
    """Which recordings end before a call that the other ranks have, in words."""
    texts = []
    for matches in _by_group(job).values():
        last = {rank: match.sequence for match in matches for rank in match.calls}
        for rank in sorted(set(job.ranks).intersection(matches[0].group.ranks or ())):
            after = _next(matches, last.get(rank, -1))
            if after is not None and _is_edge(after, matches):
                texts.append(f"the recording of rank {rank} ends before {_of(after)}, which others left")
    return texts


def _next(matches: Sequence[Match], past: int) -> Match | None:
    """The first call of a group after a number."""
    at = bisect_right(matches, past, key=lambda match: match.sequence)
    return matches[at] if at < len(matches) else None


def _by_group(job: DumpedJob) -> dict[str, list[Match]]:
    """The matches of each group in their order."""
    by_group: dict[str, list[Match]] = defaultdict(list)
    for match in job.matches:
        by_group[match.group.name].append(match)
    for matches in by_group.values():
        matches.sort(key=lambda m: m.sequence)
    return by_group


def _never_entered(job: DumpedJob, at: Match, ranks: list[int], past: int) -> DumpFinding:
    others = [rank for rank in at.calls if rank not in ranks]
    before = "it has no call of this group" if past < 0 else f"the last it entered is #{past}"
    if len(ranks) > 1:
        before = before.replace("it ", "they ").replace("has", "have")
    text = (
        f"{format_ranks(ranks)} never entered {_of(at)}, in which {format_ranks(others)} wait{'s' * (len(others) == 1)}"
    )
    if all(call.end_ns is not None for call in at.calls.values()):
        verb = "has" if len(ranks) == 1 else "have"
        text = (
            f"{format_ranks(ranks)} {verb} no {_of(at)}, which {format_ranks(others)} left: skipped, "
            "or the trace ends before"
        )
    return DumpFinding("missing", tuple(ranks), at.group.name, at.sequence, at.any.operation, f"{text}; {before}")


def _unfinished(calls: Iterable[RankCall]) -> bool:
    return any(call.state in ("scheduled", "started") for call in calls)


def _of(match: Match) -> str:
    """The call as sentences name it."""
    call, group = match.any, match.group
    title = f"{group.name} ({group.title})" if group.title and group.title not in group.name else group.name
    size = f" of {format_size(call.nbytes)}" if call.nbytes else ""
    place = next((f" at {c.place}" for c in match.calls.values() if c.place), "")
    return f"{match.name}{size} of group {title}{place}"


# -- calls that differ ---------------------------------


def _signature(call: RankCall) -> tuple[str, str, int]:
    return call.operation, call.dtype, 0 if call.operation in _NO_SIZES else call.nbytes


def _mismatch(matches: Sequence[Match]) -> list[DumpFinding]:
    """The first call of a group in which ranks do different things; later ones follow from it."""
    for at, match in enumerate(matches):
        kinds = Counter(_signature(call) for call in match.calls.values())
        if len(kinds) > 1:
            most = max(kinds.values())
            tied = [signature for signature, count in kinds.items() if count == most]
            # Where as many ranks do one thing as another, the odd ones give a call what none has given it before.
            before = {_signature(call) for earlier in matches[:at] for call in earlier.calls.values()}
            alike = len({operation for operation, _, _ in tied}) == 1
            known = [signature for signature in tied if alike and signature in before]
            common = known[0] if len(known) == 1 else tied[0]
            tie = len(tied) > 1 and len(known) != 1
            other = [rank for rank, call in match.calls.items() if _signature(call) != common]
            return [_different(matches[at:], match, other, common, tie)]
    return []


def _different(
    matches: Sequence[Match], match: Match, ranks: list[int], common: tuple[str, str, int], tie: bool
) -> DumpFinding:
    odd = match.calls[ranks[0]]
    rest = [rank for rank in match.calls if rank not in ranks]
    operation, dtype, nbytes = common
    if odd.operation != operation:
        said, expected = odd.operation, operation
    elif odd.dtype != dtype:
        said, expected = f"{odd.operation} of {odd.dtype or 'no type'}", dtype or "no type"
    else:
        said, expected = f"{odd.operation} of {format_size(odd.nbytes)}", format_size(nbytes)
    title = match.group.title and f" ({match.group.title})"
    verb = "calls" if len(ranks) == 1 else "call"
    text = (
        f"{format_ranks(ranks)} {verb} {said} as #{match.sequence} of group {match.group.name}{title}, where "
        f"{format_ranks(rest)} {'calls' if len(rest) == 1 else 'call'} {expected}"
    )
    if odd.place:
        text += f" ({odd.place} against {match.calls[rest[0]].place})"
    if not tie and odd.operation != operation:
        text += _shifted(matches, ranks[0], rest[0])
    blamed = tuple(sorted(match.calls)) if tie else tuple(ranks)
    return DumpFinding("mismatch", blamed, match.group.name, match.sequence, odd.operation, text)


def _shifted(matches: Sequence[Match], rank: int, other: int) -> str:
    """Whether a rank's calls are those of another one call earlier or later, in words."""
    own = [_signature(m.calls[rank]) for m in matches if rank in m.calls][:16]
    theirs = [_signature(m.calls[other]) for m in matches if other in m.calls][:16]
    ahead, back = min(len(own), len(theirs) - 1), min(len(own) - 1, len(theirs))
    if ahead > 0 and own[:ahead] == theirs[1 : ahead + 1]:
        return f"; it skipped that {theirs[0][0]}: what it calls from there on is what the others call one later"
    if back > 0 and own[1 : back + 1] == theirs[:back]:
        return f"; that {own[0][0]} is one too many: what it calls after it is what the others call one earlier"
    return ""


# -- calls that did not end ---------------------------------


def _stuck(matches: Sequence[Match]) -> list[DumpFinding]:
    """The first call that all ranks entered and some did not leave."""
    members = frozenset(matches[0].group.ranks or ())
    for match in matches:
        if not members <= match.calls.keys():
            continue
        states = {rank: call.state for rank, call in match.calls.items()}
        inside = [rank for rank, state in states.items() if state in ("scheduled", "started")]
        if not inside:
            continue
        queued = [rank for rank in inside if states[rank] == "scheduled"]
        if queued and len(queued) < len(states) and any(state == "started" for state in states.values()):
            text = (
                f"the GPU of {format_ranks(queued)} has not begun {_of(match)}, in which others wait: work queued "
                "before it on that GPU does not end"
            )
            return [DumpFinding("stuck", tuple(queued), match.group.name, match.sequence, match.any.operation, text)]
        running = [rank for rank in inside if states[rank] == "started"]
        if running and len(inside) < len(states) and is_together(match.any.operation):
            text = f"{format_ranks(running)} did not leave {_of(match)}, which others left"
            inside = running
        elif len(inside) < len(states):
            continue
        else:
            text = (
                f"all ranks entered {_of(match)} and none left it: no rank is missing, so a link, a NIC or a GPU "
                "is the cause, or the dump was taken while it ran"
            )
        return [DumpFinding("stuck", tuple(inside), match.group.name, match.sequence, match.any.operation, text)]
    return []


def _roots_first(findings: list[DumpFinding], by_group: Mapping[str, Sequence[Match]]) -> list[DumpFinding]:
    """Ranks that are missing since they wait elsewhere come after those that do not."""
    waits_in: dict[int, DumpFinding] = {}
    for finding in findings:
        if finding.kind == "missing":
            for match in by_group.get(finding.group, ()):
                if match.sequence == finding.sequence:
                    waits_in |= dict.fromkeys(match.calls, finding)
    ordered = []
    for finding in findings:
        inner = next((waits_in[r] for r in finding.ranks if r in waits_in and waits_in[r] is not finding), None)
        if finding.kind == "missing" and inner is not None:
            who = "it waits itself" if len(finding.ranks) == 1 else "they wait themselves"
            text = f"{finding.text}; {who} in {inner.operation} #{inner.sequence} of group {inner.group}"
            finding = DumpFinding(finding.kind, finding.ranks, finding.group, finding.sequence, finding.operation, text)  # noqa: PLW2901
        ordered.append((KINDS.index(finding.kind), inner is not None, len(finding.ranks), finding))
    ordered.sort(key=lambda one: one[:3])  # of ranks that wait for each other the fewer are the odd ones
    return [finding for *_, finding in ordered]


# -- late ranks ---------------------------------


def late_findings(
    job: DumpedJob, waits: Sequence[CallWait], times: Sequence[RankTime], share: float
) -> list[DumpFinding]:
    """The ranks for which the others waited more than a share of the time that the dumps cover, the worst first."""
    span = covered_s(waits)
    findings = []
    for time in sorted(times, key=lambda t: -t.cost_s):
        if not waits or time.cost_s <= share * span or not time.cost_s:
            continue
        worst = max((w for w in waits if time.rank in w.latest), key=lambda w: w.cost_s)
        host = f" on {job.hosts[time.rank]}" if job.hosts.get(time.rank) and len(set(job.hosts.values())) > 1 else ""
        text = (
            f"rank {time.rank}{host} came last into {time.times_last} of {len(waits)} collectives and cost the others "
            f"{_ms(time.cost_s)} of {_ms(span)}; the worst is {_of(worst.match)}, {_ms(worst.cost_s)} late"
        )
        match = worst.match
        findings.append(DumpFinding("late", (time.rank,), match.group.name, match.sequence, match.any.operation, text))
    return findings


def covered_s(waits: Sequence[CallWait]) -> float:
    """Seconds from the first call to the last one's end; of durations alone, of all collectives one after another."""
    starts = [start for wait in waits for start in wait.start_s.values()]
    if not starts:
        return sum(max(wait.waiting_s.values()) + (wait.transfer_s or 0) for wait in waits)
    ends = (wait.start_s[wait.last] + (wait.transfer_s or 0) for wait in waits if wait.start_s)
    return max(ends) - min(starts)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"
