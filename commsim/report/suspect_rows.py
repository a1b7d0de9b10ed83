"""Suspects as rows: those of one kind of which the same is known are one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commsim.doctor.examination import Diagnosis, Suspicion
from commsim.doctor.suspect import PartKind, Suspects
from commsim.report.tables import ranges

SHOWN = 8
"""Rows at most."""

LEAST = 0.005
"""Probability from which on a suspect has a row."""

_MOST_HOSTS = 2


@dataclass(frozen=True)
class SuspectRow:
    """Suspects under one name: how many they are, and what is known of each of them."""

    name: str
    count: int
    probability: float
    share: float
    gain: float

    @property
    def percent(self) -> str:
        """The probability, and that it is of each where they are several."""
        text = f"{100 * self.probability:.1f} %"
        return text if self.count == 1 else f"each {text}"


def suspect_rows(d: Diagnosis) -> list[SuspectRow]:
    """Those suspects that the diagnosis ranks, the likeliest first; the first one whatever its probability."""
    alike: dict[tuple[int, ...], list[Suspicion]] = {}
    for i, each in enumerate(d.suspicions):
        if each.probability >= LEAST or not i:
            figures = (round(1000 * each.probability), round(100 * each.share), round(100 * each.gain))
            alike.setdefault((int(d.suspects.place[each.at]), *figures), []).append(each)
    return [_row(d, those) for those in alike.values()]


def shown_rows(d: Diagnosis) -> tuple[list[SuspectRow], int]:
    """The first rows of the least probability and above, and how many more suspects are so likely."""
    rows = [row for row in suspect_rows(d) if row.probability >= LEAST][:SHOWN]
    return rows, max(0, int((d.probability >= LEAST).sum()) - sum(row.count for row in rows))


def _row(d: Diagnosis, those: list[Suspicion]) -> SuspectRow:
    first, place = those[0], d.suspects.place
    # A diagnosis ranks some suspects only: others of the kind with the very same probability belong to these.
    same = np.isin(d.probability, [each.probability for each in those]) & (place == place[first.at])
    members = sorted({*(each.at for each in those), *np.flatnonzero(same).tolist()})
    name = first.name if len(members) == 1 else _name(d.suspects, members)
    return SuspectRow(name, len(members), first.probability, first.share, first.gain)


def _name(suspects: Suspects, members: Sequence[int]) -> str:
    """What a person would look for, of several suspects of one kind."""
    kind = PartKind(int(suspects.place[members[0]]))
    above = suspects.leaf if kind is PartKind.LEAF else suspects.host
    of: dict[int, list[int]] = {}
    for at in members:
        of.setdefault(int(above[at]), []).append(int(suspects.part[at]))
    every = {tuple(parts) for parts in of.values()}
    # The same parts of each, or only how many there are.
    parts = f" {ranges(*every)}" if len(every) == 1 else ""
    if kind is PartKind.LEAF:
        rails = "" if parts == " -1" or not parts else f" of rails{parts}"
        return f"leaf switches {ranges(of)}{rails}: their uplinks"
    names = [suspects.cluster.hosts[host] for host in of]
    more = f" and {len(names) - _MOST_HOSTS} more" if len(names) > _MOST_HOSTS else ""
    hosts = f"{', '.join(names[:_MOST_HOSTS])}{more}"
    if kind is PartKind.NODE:
        return f"{hosts}: their network{'' if suspects.cluster.nics > 1 else ' cards'}"
    count = "" if parts else f"{len(members)} "
    if kind is PartKind.NIC:
        return f"{hosts}: {count}network cards{parts}"
    return f"{hosts}: {count}GPUs{parts} or NVLinks"
