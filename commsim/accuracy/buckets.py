"""The calls of gradients of a dump in buckets of another size: which calls go together, and which are cut.

A bucket is torch's ``bucket_cap_mb`` or ZeRO's ``reduce_bucket_size`` in bytes: it is called once its last gradient is
there. A larger call is cut, and its parts follow one another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commsim.collectives.semantics import ITEM_BYTES, REDUCING, SCATTERING, TO_ROOT
from commsim.dumps.call import CallGroup
from commsim.dumps.finding import format_ranks
from commsim.dumps.waits import CallWait
from commsim.errors import ScenarioError
from commsim.units import format_bytes

GRADIENTS = sorted(REDUCING - TO_ROOT)
"""What sums gradients: all ranks need them."""

MOST_PARTS = 100_000
"""Of all calls that are cut."""

_DATA_PARALLEL = re.compile(r"data|replicate|fsdp|ddp|(^|[^a-z])h?dp([^a-z]|$)|default_pg", re.IGNORECASE)
"""In the title of a group whose calls are gradients; torch calls the group of all ranks default_pg."""

_MODEL_PARALLEL = re.compile(r"tensor|pipeline|model|expert|(^|[^a-z])(tp|pp|cp|sp|ep)([^a-z]|$)", re.IGNORECASE)
"""In the title of a group that splits a model."""


@dataclass(frozen=True, eq=False)
class Bucketed:
    """By the place of a call among the waits: the sizes that are called there, none where it went into a later bucket;
    and what was done, as a sentence."""

    sizes: Mapping[int, tuple[int, ...]]
    note: str


def bucketed(waits: Sequence[CallWait], bucket: int) -> Bucketed:
    """The calls of gradients in buckets of at most so many bytes; ScenarioError where that cannot be told.

    Calls go together that follow each other on every rank of their group, without another call between them, and are
    of one collective and type.
    """
    if bucket < 1:
        raise ScenarioError("--with bucket: found 0 bytes, expected a size such as 50MB")
    chosen = _gradients(waits)
    places = _places(waits)
    sizes: dict[int, tuple[int, ...]] = {}
    parts = 0
    for run in _runs(waits, chosen, places):
        filled = _filled(waits, run, bucket)
        sizes |= filled
        parts += sum(map(len, filled.values()))
        if parts > MOST_PARTS + len(chosen):
            text = f"found {format_bytes(bucket)}, which cuts the calls into over {MOST_PARTS:,} parts, expected more"
            raise ScenarioError(f"--with bucket: {text}")
    names = " and ".join(sorted({waits[i].match.any.operation for i in chosen}))
    note = (
        f"bucket: all calls of {names} in {_groups_of(waits, chosen)} are taken as those of gradients, {len(chosen):,} "
        f"become {parts:,}; a bucket starts after what its ranks did before its last call; steps are not told apart"
    )
    return Bucketed(sizes, note)


def _groups_of(waits: Sequence[CallWait], chosen: Sequence[int]) -> str:
    names = sorted({waits[i].match.group.name for i in chosen})
    return f"group {names[0]}" if len(names) == 1 else f"{len(names)} groups"


def _gradients(waits: Sequence[CallWait]) -> list[int]:
    """The places of the calls that sum gradients: those of groups of which each rank is in one."""
    calls = [
        i
        for i, wait in enumerate(waits)
        if wait.match.any.operation in GRADIENTS and not _of_activations(wait.match.group)
    ]
    if not calls:
        text = f"found no call of {' or '.join(GRADIENTS)} in a group that may sum gradients"
        raise ScenarioError(f"--with bucket: {text}, expected some, as data parallelism makes them")
    if _rank_of_several(waits, calls) is None:
        return calls
    named = [i for i in calls if _DATA_PARALLEL.search(waits[i].match.group.title)]
    rank = _rank_of_several(waits, named or calls)
    if rank is not None:
        groups = sorted(
            {waits[i].match.group.name for i in named or calls if rank in (waits[i].match.group.ranks or ())}
        )
        text = f"found such calls of rank {rank} in groups {', '.join(groups[:4])}{', ...' if len(groups) > 4 else ''}"
        raise ScenarioError(f"--with bucket: {text}, and the dump does not say which of them sum gradients")
    return named


def _of_activations(group: CallGroup) -> bool:
    """Whether the title of a group says that it splits a model, whose sums are needed one by one."""
    return bool(_MODEL_PARALLEL.search(group.title)) and not _DATA_PARALLEL.search(group.title)


def _rank_of_several(waits: Sequence[CallWait], calls: Sequence[int]) -> int | None:
    """A rank that makes calls among different ranks; None where there is none."""
    homes: dict[int, tuple[int, ...]] = {}
    for ranks in sorted({waits[i].match.group.ranks or () for i in calls}):
        for rank in ranks:
            if homes.setdefault(rank, ranks) != ranks:
                return rank
    return None


def _places(waits: Sequence[CallWait]) -> list[dict[int, int]]:
    """Of each call, by rank: the how-manieth of all calls of the rank it is."""
    by_rank: dict[int, list[int]] = defaultdict(list)
    for i, wait in enumerate(waits):
        for rank in wait.start_s:
            by_rank[rank].append(i)
    places: list[dict[int, int]] = [{} for _ in waits]
    for rank, mine in by_rank.items():
        for place, i in enumerate(sorted(mine, key=lambda i: waits[i].start_s[rank])):
            places[i][rank] = place
    return places


def _runs(waits: Sequence[CallWait], chosen: Sequence[int], places: Sequence[Mapping[int, int]]) -> list[list[int]]:
    """The calls, those together that follow each other on all their ranks."""
    runs: list[list[int]] = []
    last: dict[tuple[str, str, str], list[int]] = {}
    for i in sorted(chosen, key=lambda i: max(places[i].values())):
        call, group = waits[i].match.any, waits[i].match.group
        key = (group.name, call.operation, call.dtype)
        run = last.get(key)
        if run is not None and {rank: place + 1 for rank, place in places[run[-1]].items()} == places[i]:
            run.append(i)
        else:
            last[key] = [i]
            runs.append(last[key])
    return runs


def _filled(waits: Sequence[CallWait], run: Sequence[int], bucket: int) -> dict[int, tuple[int, ...]]:
    """The sizes that are called at each place of a run; they add up to those that were."""
    sizes: dict[int, tuple[int, ...]] = {}
    open_at, filled = -1, 0
    for i in run:
        nbytes = waits[i].match.any.nbytes
        if open_at >= 0 and filled + nbytes <= bucket:
            sizes[open_at] = ()
            filled += nbytes
        else:
            filled = nbytes
        open_at = i
        sizes[i] = _cut(waits[i], filled, bucket)
    return sizes


def _cut(wait: CallWait, nbytes: int, bucket: int) -> tuple[int, ...]:
    """Whole buckets of whole elements for each rank, and the rest."""
    if nbytes <= bucket:
        return (nbytes,)
    call, ranks = wait.match.any, wait.match.group.ranks or ()
    least = ITEM_BYTES.get(call.dtype, 1) * (len(ranks) if call.operation in SCATTERING else 1)
    part = bucket // least * least
    if not part:
        text = f"found {format_bytes(bucket)}, expected at least {format_bytes(least)}, an element of {call.operation}"
        raise ScenarioError(f"--with bucket: {text} of {format_ranks(ranks)}")
    whole, rest = divmod(nbytes, part)
    if whole > MOST_PARTS:
        return (part,) * (MOST_PARTS + 1)  # which is refused
    return (part,) * whole + ((rest,) if rest else ())
