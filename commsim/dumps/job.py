"""The dumps of a job put together: which calls of different ranks are one collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from commsim.dumps.call import MOST_CALLS_OF_A_JOB, MOST_GROUPS, CallGroup, Count, Dump, RankCall, fault
from commsim.dumps.finding import format_ranks
from commsim.errors import LogFormatError

DEFAULT_GROUP = "default_pg"
"""What torch calls the group of all ranks (distributed_c10d.py)."""


@dataclass(frozen=True, eq=False)
class Match:
    """One collective: the call of every rank of its group that has it, by rank."""

    group: CallGroup
    sequence: int
    calls: Mapping[int, RankCall]

    @property
    def any(self) -> RankCall:
        """The call of the lowest rank."""
        return self.calls[min(self.calls)]

    @property
    def name(self) -> str:
        """Collective and number, as messages have it."""
        return f"{self.any.operation} #{self.sequence}"


@dataclass(frozen=True, eq=False)
class DumpedJob:
    """Dumps of one kind, a file for each rank or fewer, and the collectives in them."""

    dumps: Sequence[Dump]
    groups: Mapping[str, CallGroup]
    matches: Sequence[Match]
    notes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Of its files."""
        return self.dumps[0].kind

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Those that there are dumps of."""
        return tuple(sorted({rank for dump in self.dumps for rank in dump.ranks}))

    @cached_property
    def hosts(self) -> dict[int, str]:
        """By rank; empty where the dump does not say."""
        return {rank: dump.host for dump in self.dumps for rank in dump.ranks}

    @cached_property
    def counts(self) -> tuple[Count, ...]:
        """Of all reports."""
        return tuple(count for dump in self.dumps for count in dump.counts)

    @property
    def enqueued(self) -> bool:
        """Whether starts are those of hosts that asked GPUs for calls."""
        return any(dump.starts == "enqueued" for dump in self.dumps)

    @cached_property
    def libraries(self) -> set[str]:
        """What made its calls, such as ``gloo``; the empty text where a dump does not say."""
        return {call.library for match in self.matches for call in match.calls.values()}

    @cached_property
    def origin_ns(self) -> int:
        """When the first call of all began; 0 where no dump has times."""
        return min((c.start_ns for m in self.matches for c in m.calls.values() if c.start_ns is not None), default=0)


def job_of(dumps: Sequence[Dump]) -> DumpedJob:
    """The job of some dumps; LogFormatError where they are not those of one job."""
    _check(dumps)
    dumps = _apart(dumps)
    calls = [call for dump in dumps for call in dump.calls]
    if len(calls) > MOST_CALLS_OF_A_JOB:
        raise LogFormatError(
            f"found {len(calls):,} calls in {len(dumps)} files, expected at most {MOST_CALLS_OF_A_JOB:,}"
        )
    groups, notes = _groups(dumps), list(dict.fromkeys(note for dump in dumps for note in dump.notes))
    if not all(dump.named_groups for dump in dumps):
        calls, more = _numbered(calls, groups)
        notes += more
    together: dict[tuple[str, int], dict[int, RankCall]] = defaultdict(dict)
    for call in calls:
        together[call.group, call.sequence][call.rank] = call
        groups.setdefault(call.group, CallGroup(call.group))
    if len(groups) > MOST_GROUPS:
        raise LogFormatError(f"found {len(groups):,} groups of ranks, expected at most {MOST_GROUPS:,}")
    _fill(groups, together, dumps)
    matches = [Match(groups[g], s, dict(sorted(by.items()))) for (g, s), by in together.items()]
    matches.sort(key=lambda m: (min((c.start_ns or 0 for c in m.calls.values()), default=0), m.group.name, m.sequence))
    if messages := sum(dump.messages for dump in dumps):
        notes.append(f"{messages:,} sends and receives: judged is whether they ended, not their time")
    return DumpedJob(dumps, groups, matches, tuple(notes))


def _check(dumps: Sequence[Dump]) -> None:
    kinds: dict[str, list[str]] = defaultdict(list)
    for dump in dumps:
        kinds[dump.kind].append(str(dump.path))
    if len(kinds) > 1:
        lines = [
            f"  {kind}: {', '.join(files[:3])}{f' and {len(files) - 3} more' if len(files) > 3 else ''}"
            for kind, files in kinds.items()
        ]
        raise LogFormatError("\n".join(["found files of several kinds, expected one kind at once:", *lines]))
    owners: dict[int, Dump] = {}
    for dump in dumps:
        for rank in dump.ranks if dump.kind != "NCCL inspector" else ():  # whose files may share ranks
            if rank in owners:
                raise fault(
                    dump.path, f"found rank {rank}, which {owners[rank].path} has too; expected one file for each"
                )
            owners[rank] = dump


def _apart(dumps: Sequence[Dump]) -> list[Dump]:
    """The dumps with other names for groups of one name that are of different ranks, as torch's split_group makes."""
    members: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps:
        for group in dump.groups:
            members[group.name].add(group.ranks or ())
    return [
        _renamed(dump, {name for name, ranks in members.items() if len(ranks - {()}) > 1 and name}) for dump in dumps
    ]


def _renamed(dump: Dump, names: set[str]) -> Dump:
    new = {g.name: f"{g.name} of {format_ranks(g.ranks)}" for g in dump.groups if g.name in names and g.ranks}
    if not new:
        return dump
    groups = [replace(group, name=new.get(group.name, group.name)) for group in dump.groups]
    calls = [replace(call, group=new[call.group]) if call.group in new else call for call in dump.calls]
    messages = tuple(replace(m, group=new.get(m.group, m.group)) for m in dump.open_messages)
    return replace(dump, groups=groups, calls=calls, open_messages=messages)


def _groups(dumps: Sequence[Dump]) -> dict[str, CallGroup]:
    """What the dumps list, by name; one that gloo leaves nameless is that of all ranks (torch 2.13)."""
    groups: dict[str, CallGroup] = {}
    for dump in dumps:
        for group in dump.groups:
            name = group.name or ("0" if any(call.group == "0" for call in dump.calls[:1]) else "")
            if name and (name not in groups or groups[name].ranks is None):
                groups[name] = replace(group, name=name, title=group.title or (DEFAULT_GROUP if not group.name else ""))
    return groups


def _numbered(calls: Sequence[RankCall], groups: dict[str, CallGroup]) -> tuple[list[RankCall], list[str]]:
    """Calls without groups, each the n-th of its operation on its rank; (calls, what to say of it).

    An operation that all ranks call is taken as one of the group of all; another one as that of the ranks that call it.
    """
    callers: dict[str, set[int]] = defaultdict(set)
    for call in calls:
        callers[call.operation].add(call.rank)
    listed = {g.ranks: g for g in reversed(groups.values()) if g.ranks}
    homes = {}
    for operation, ranks in callers.items():
        members = tuple(sorted(ranks))
        known = listed.get(members) or next(
            (g for r, g in listed.items() if set(r) > ranks and len(callers) == 1), None
        )
        name = known.name if known else f"of {len(members)} rank{'s' * (len(members) != 1)}"
        homes[operation] = CallGroup(
            f"{name}/{operation}", known.title if known else "", (known and known.ranks) or members
        )
    groups.clear()
    groups |= {group.name: group for group in homes.values()}
    numbered, counts = [], defaultdict[tuple[int, str], int](int)
    for call in calls:
        counts[call.rank, call.operation] += 1
        home = homes[call.operation]
        # Such calls state what a rank puts in; the nccl-tests size of an all_gather is what all put in together.
        nbytes = call.nbytes * len(home.ranks or ()) if call.operation == "all_gather" else call.nbytes
        numbered.append(replace(call, group=home.name, sequence=counts[call.rank, call.operation], nbytes=nbytes))
    text = (
        "calls name no group: the n-th of a collective on each rank is taken as one call of the ranks that make it, "
        "which is wrong where several groups make the same one"
    )
    return numbered, [text]


def _fill(
    groups: dict[str, CallGroup], together: Mapping[tuple[str, int], Mapping[int, RankCall]], dumps: Sequence[Dump]
) -> None:
    """Ranks of the groups that no dump lists: those that call in them."""
    seen: dict[str, set[int]] = defaultdict(set)
    for (name, _), by in together.items():
        seen[name] |= by.keys()
    everyone = {rank for dump in dumps for rank in dump.ranks}
    for name, ranks in seen.items():
        if groups[name].ranks is None:
            whole = everyone if groups[name].title == DEFAULT_GROUP else ranks
            groups[name] = replace(groups[name], ranks=tuple(sorted(whole)))
