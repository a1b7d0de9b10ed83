"""Calls that share links: how fast each goes on beside the others, as a fluid.

A call goes on at the pace of its tightest link, which all its connections keep; a link that has not enough for all is
shared evenly by the connections that cross it (max-min fair: Bertsekas & Gallager, Data Networks, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commsim.topology.fabric_routes import mixed
from commsim.topology.kinds import Float64, Int64

_MOST_ROUNDS, _SETTLED = 100, 1e-9
"""Rounds in which calls find their paces beside each other, and the relative change of a pace that counts as none."""

_SEED = 0
"""Of the hashes by which links alike are known."""


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """What is put on links of a topology: of each `link` (k,) bytes, connections, and bytes/s that it carries of such.

    No link stands twice.
    """

    link: Int64
    nbytes: Float64
    lines: Float64
    capacity: Float64

    @staticmethod
    def of(nbytes: Float64, lines: Float64, capacity: Float64) -> LinkLoad:
        """From bytes, connections and bytes/s of all links of a topology, (links,)."""
        link = np.flatnonzero(nbytes > 0)
        return LinkLoad(link, nbytes[link], lines[link], capacity[link])

    def times(self, factor: float) -> LinkLoad:
        """So many times the bytes, over the same connections."""
        return replace(self, nbytes=self.nbytes * factor)

    @staticmethod
    def joined(loads: Sequence[LinkLoad]) -> LinkLoad:
        """All of several at once."""
        if len(loads) == 1:
            return loads[0]
        link, index = np.unique(np.concatenate([load.link for load in loads]), return_inverse=True)
        nbytes, lines = (
            np.bincount(index, np.concatenate([getattr(load, name) for load in loads]), link.size)
            for name in ("nbytes", "lines")
        )
        capacity = np.full(link.size, np.inf)
        np.minimum.at(capacity, index, np.concatenate([load.capacity for load in loads]))
        return LinkLoad(link, nbytes.astype(np.float64), lines.astype(np.float64), capacity)

    @property
    def busiest_s(self) -> float:
        """Seconds that its busiest link needs for it."""
        return float((self.nbytes / self.capacity).max(initial=0.0))


@dataclass(frozen=True, eq=False)
class CallTraffic:
    """One call: when it begins, how long it takes alone, what it puts on links.

    Alone for ever is what flows at a rate; its bytes are those of a second.
    """

    start_s: float
    alone_s: float
    load: LinkLoad
    late_s: float = 0.0  # of its slowest rank, before which nothing is sent; it counts as time of the call

    @property
    def rate(self) -> Float64:
        """Bytes/s that it puts on each of its links at its pace alone, (k,)."""
        return self.load.nbytes / (self.alone_s if np.isfinite(self.alone_s) else 1.0)


@dataclass(frozen=True)
class Together:
    """Of each call the seconds from its start to its end beside the others, and the link that kept it longest (-1)."""

    seconds: tuple[float, ...]
    link: tuple[int, ...]


class Sharing:
    """How fast some calls go on beside each other; what is found for a set of them is kept.

    Of links that all calls together would fill, and of which more than one takes part: those alike count once.
    """

    def __init__(self, calls: Sequence[CallTraffic]) -> None:
        self._columns = _Columns.of(calls)
        self._users = self._columns.users(len(calls))
        self._near: dict[int, int] = {}
        self._known: dict[tuple[int, ...], tuple[Float64, Int64]] = {}

    def near(self, call: int) -> int:
        """A bit for each call with which one shares such a link, itself among them."""
        if call not in self._near:
            bits = 0
            for column in self._columns.of_call(call)[0].tolist():
                bits |= self._users[column]
            self._near[call] = bits
        return self._near[call]

    def meets(self, call: int) -> bool:
        """Whether a call may be held up by others."""
        return bool(self.near(call) & ~(1 << call))

    def pace(self, some: tuple[int, ...]) -> tuple[Float64, Int64]:
        """How fast each of some calls goes on, of its pace alone, and the link that keeps it (-1: none), (some,).

        A connection gets on each link what the others leave, evenly; a call goes at the pace of its slowest link. Each
        in turn takes what it can beside what the others use, until nothing moves.
        """
        if some not in self._known:
            self._known[some] = self._paces(some)
        return self._known[some]

    def _paces(self, some: tuple[int, ...]) -> tuple[Float64, Int64]:
        pace, tight = np.ones(len(some)), np.full(len(some), -1, np.int64)
        if len(some) < 2:
            return pace, tight
        own = [self._columns.of_call(call) for call in some]
        here = np.unique(np.concatenate([columns for columns, _, _ in own]))
        rate, lines = np.zeros((len(some), here.size)), np.zeros((len(some), here.size))
        for i, (columns, rates, connections) in enumerate(own):
            at = np.searchsorted(here, columns)
            rate[i, at], lines[i, at] = rates, connections
        room, links = self._columns.room[here], self._columns.link[here]
        if (rate.sum(axis=0) <= room).all():
            return pace, tight
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(lines > 0, rate / lines, 0.0)
        for _ in range(_MOST_ROUNDS):
            before = pace.copy()
            for i, own in enumerate(each):
                wants = each * pace[:, None]
                wants[i] = own
                with np.errstate(divide="ignore", invalid="ignore"):
                    got = np.where(own > 0, np.minimum(1.0, _levels(lines, wants, room) / own), 1.0)
                place = int(got.argmin())
                pace[i], tight[i] = got[place], links[place] if got[place] < 1.0 else -1
            if (abs(pace - before) <= _SETTLED * before).all():
                break
        return pace, tight


def beside(calls: Sequence[CallTraffic]) -> Together:
    """What each of several calls takes beside the others, from its start to its end."""
    sharing = Sharing(calls)
    work, at = np.ones(len(calls)), 0.0
    begun = np.array([c.start_s for c in calls])
    start, alone = begun + np.array([c.late_s for c in calls]), np.array([c.alone_s for c in calls])
    end, worst, link = np.zeros(len(calls)), np.ones(len(calls)), np.full(len(calls), -1, np.int64)
    ends = np.isfinite(alone)  # what flows at a rate does so until all others have ended
    while (work[ends] > 0).any():
        here = np.flatnonzero((work > 0) & (start <= at))
        later = start[(work > 0) & (start > at)]
        if not here.size:
            at = float(later.min())
            continue
        pace, tight = sharing.pace(tuple(here.tolist()))
        slower = pace < worst[here]
        worst[here], link[here] = np.minimum(worst[here], pace), np.where(slower, tight, link[here])
        left = work[here] * alone[here] / pace
        span = min(float(left.min()), float(later.min(initial=np.inf)) - at)
        done = left <= span * (1 + 1e-12)
        work[here] = np.where(done, 0.0, work[here] - np.where(ends[here], span * pace / alone[here], 0.0))
        at += span
        end[here[done]] = at
    return Together(tuple((end - begun).tolist()), tuple(link.tolist()))


def meetings(calls: Sequence[CallTraffic], seconds: Sequence[float]) -> list[tuple[int, int]]:
    """Of each call the number of links that it shares with others while both run, and the busiest of them (-1: none).

    `seconds` are those of `beside`, from each start; what flows at a rate runs until all have ended.
    """
    size = 1 + max((int(c.load.link.max(initial=-1)) for c in calls), default=-1)
    used, busy = np.zeros((len(calls), size), bool), np.zeros(size)
    for i, call in enumerate(calls):
        used[i, call.load.link] = True
        busy[call.load.link] += call.rate / call.load.capacity
    start = np.array([c.start_s for c in calls])
    end = np.where([np.isfinite(c.alone_s) for c in calls], start + np.resize(seconds, len(calls)), np.inf)
    out = []
    for i, own in enumerate(used):
        beside_it = (start < end[i]) & (end > start[i])
        links = np.flatnonzero(own & (used[beside_it].sum(axis=0) > 1))
        out.append((links.size, int(links[np.argmax(busy[links])]) if links.size else -1))
    return out


@dataclass(frozen=True, eq=False)
class _Columns:
    """Links (columns,) with what they carry, and of each call its columns, bytes/s and connections there, one after
    the other from `first` (calls + 1,) on."""

    link: Int64
    room: Float64
    first: Int64
    column: Int64
    rate: Float64
    lines: Float64

    def of_call(self, call: int) -> tuple[Int64, Float64, Float64]:
        """The columns of a call, its bytes/s and its connections there."""
        its = slice(int(self.first[call]), int(self.first[call + 1]))
        return self.column[its], self.rate[its], self.lines[its]

    def users(self, calls: int) -> list[int]:
        """Of each column a bit for every call that takes it."""
        used = np.zeros((self.link.size, calls), bool)
        used[self.column, np.repeat(np.arange(calls), np.diff(self.first))] = True
        return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(used, axis=1, bitorder="little")]

    @staticmethod
    def of(calls: Sequence[CallTraffic]) -> _Columns:
        """The links that all calls together would fill, of which more than one takes part; of links alike the first."""
        sizes = np.array([c.load.link.size for c in calls], np.int64)
        if not sizes.sum():
            none, nothing = np.zeros(0, np.int64), np.zeros(0)
            return _Columns(none, nothing, np.zeros(sizes.size + 1, np.int64), none, nothing, nothing)
        call, link = np.repeat(np.arange(sizes.size), sizes), np.concatenate([c.load.link for c in calls])
        rate, lines = np.concatenate([c.rate for c in calls]), np.concatenate([c.load.lines for c in calls])
        carries = np.concatenate([c.load.capacity for c in calls])
        busy = (np.bincount(link) > 1) & (np.bincount(link, rate / carries) > 1.0)
        room = np.full(busy.size, np.inf)
        np.minimum.at(room, link, carries)
        kept = busy[link]
        call, link, rate, lines = call[kept], link[kept], rate[kept], lines[kept]
        alike = np.zeros(busy.size, np.int64)  # a sum of hashes: equal where the same calls put the same there
        put = [call, np.rint(rate / room[link] / _SETTLED).astype(np.int64), np.rint(lines / _SETTLED).astype(np.int64)]
        np.add.at(alike, link, mixed(put, _SEED))
        links = np.flatnonzero(busy)
        _, one = np.unique(np.stack([alike[links], room[links].view(np.int64)]), axis=1, return_index=True)
        few = np.sort(links[one])
        column = np.full(busy.size, -1, np.int64)
        column[few] = np.arange(few.size)
        kept = column[link] >= 0
        first = np.concatenate([[0], np.cumsum(np.bincount(call[kept], minlength=sizes.size))])
        return _Columns(few, room[few], first, column[link[kept]], rate[kept], lines[kept])


def _levels(lines: Float64, each: Float64, room: Float64) -> Float64:
    """The bytes/s that no connection may exceed on each link, so that all of them fill its room, (links,)."""
    order = np.argsort(each, axis=0)
    wants, count = np.take_along_axis(each, order, axis=0), np.take_along_axis(lines, order, axis=0)
    below = np.cumsum(wants * count, axis=0) - wants * count  # what those that want less take
    beyond = count.sum(axis=0)[None, :] - (np.cumsum(count, axis=0) - count)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(beyond > 0, (room[None, :] - below) / beyond, np.inf)
    fits = level < wants
    first = np.where(fits.any(axis=0), fits.argmax(axis=0), -1)
    return np.where(first >= 0, level[np.maximum(first, 0), np.arange(room.size)], np.inf)
