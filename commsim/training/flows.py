"""Transfers of a step: what they take alone, and what they put on the links that they share with others.

A transfer is a call of all groups of a stage at once. Beside others it goes on at the pace that its tightest link
leaves it (`commsim.engine.sharing`); where no link is short the library's model alone says what it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from commsim.engine.sharing import CallTraffic, LinkLoad, Sharing
from commsim.training.communicators import SEND, CommTime, Ranks

if TYPE_CHECKING:
    from commsim.training.communicators import GroupCalls


Axes: TypeAlias = tuple[tuple[str, ...], int, int]
"""Groups by the axes that they span, and of the ranks along these how many make one (0: all), and every how many
(`commsim.training.mesh.parts_of`)."""

NamedCall: TypeAlias = tuple[str, Axes]


@dataclass(frozen=True, eq=False)
class Flow:
    """One transfer: ``seconds`` alone; ``nbytes`` of one rank.

    ``shared``: its number among the calls that share links, -1 where it shares none. ``call``: of a collective its
    name and its groups. ``then_s``: of the gather among the ranks
    of a stage that a message is followed by.
    """

    nbytes: float
    seconds: float
    shared: int = -1
    call: NamedCall = ("send_recv", ((), 0, 1))
    then_s: float = 0.0


class GroupCall(NamedTuple):
    """A call of a transfer: how often a collective is called, its bytes, and the groups that call, (groups, ranks)."""

    times: float
    collective: str
    nbytes: float
    groups: Ranks


class FlowBuilder:
    """Makes the flows of a step and keeps what they put on links; ``calls`` None: no two of them meet."""

    def __init__(self, comm: CommTime, calls: GroupCalls | None = None) -> None:
        self.comm, self._calls = comm, calls
        self._made: list[CallTraffic] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._loads: dict[tuple[str, int, int], LinkLoad] = {}
        self._kept: list[Ranks] = []  # their ids stay theirs

    def send(self, pairs: Ranks, nbytes: float, then_s: float = 0.0) -> Flow:
        """As many bytes from the first to the second rank of each pair (pairs, 2), all at once."""
        sent = self.of(nbytes, self.comm("send_recv", nbytes, pairs), [GroupCall(1.0, SEND, nbytes, pairs)])
        return replace(sent, then_s=then_s)

    def collective(self, name: str, nbytes: float, groups: Ranks, call: NamedCall) -> Flow:
        """A collective of all groups (groups, ranks) at once; nbytes as in nccl-tests."""
        return self.of(nbytes, self.comm(name, nbytes, groups), [GroupCall(1.0, name, nbytes, groups)], call)

    def of(
        self,
        nbytes: float,
        seconds: float,
        parts: Sequence[GroupCall],
        call: NamedCall = ("send_recv", ((), 0, 1)),
    ) -> Flow:
        """A flow that alone takes so long for some calls, one after the other."""
        parts = [part for part in parts if part.groups.shape[1] > 1 and part.times * part.nbytes >= 1]
        if self._calls is None or seconds <= 0 or not parts:
            return Flow(nbytes, seconds, call=call)
        key = (seconds, *((part.times, part.collective, part.nbytes, self._ident(part.groups)) for part in parts))
        if key not in self._numbers:
            self._numbers[key] = len(self._made)
            load = LinkLoad.joined([self._load(part).times(part.times) for part in parts])
            self._made.append(CallTraffic(0.0, seconds, load))
        return Flow(nbytes, seconds, self._numbers[key], call)

    def sharing(self) -> Sharing | None:
        """How all flows made share links; None where none meets another."""
        sharing = Sharing(self._made)
        return sharing if any(map(sharing.meets, range(len(self._made)))) else None

    def _load(self, part: GroupCall) -> LinkLoad:
        assert self._calls is not None
        key = part.collective, round(part.nbytes), self._ident(part.groups)
        if key not in self._loads:
            self._loads[key] = self._calls.load(part.collective, part.nbytes, part.groups)
        return self._loads[key]

    def _ident(self, groups: Ranks) -> int:
        """A number for an array of groups: one object, one number."""
        if not any(kept is groups for kept in self._kept):
            self._kept.append(groups)
        return id(groups)
