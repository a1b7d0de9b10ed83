"""Sends and receives that did not end, as flight recorders hold them: who waits for whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commsim.dumps.finding import DumpFinding

MOST_OPEN = 1_000
"""Of one file; the first ones are the cause."""

_NAME = re.compile(r"(send|recv) [0-9]{1,7}(?:->|<-)([0-9]{1,7})$")


@dataclass(frozen=True)
class OpenMessage:
    """A send or recv of a rank that did not end; ``peer`` is a place in the group's ranks."""

    rank: int
    group: str
    operation: str
    peer: int
    place: str = ""


def open_message(rank: int, group: str, name: str, place: str) -> OpenMessage | None:
    """Of a name such as ``send 1->2`` or ``recv 3<-0``, own place first (ProcessGroupNCCL.cpp); None for others."""
    parts = _NAME.match(name)
    return None if parts is None else OpenMessage(rank, group, parts[1], int(parts[2]), place)


def message_findings(
    messages: Iterable[OpenMessage], members: Mapping[str, tuple[int, ...]], elsewhere: Iterable[int]
) -> list[DumpFinding]:
    """Whom the first open message of each rank waits for; first those who wait for nobody themselves.

    ``members``: the ranks of groups; of another one places are taken as ranks. ``elsewhere``: ranks in a collective
    that did not end.
    """
    first: dict[int, OpenMessage] = {}
    partners = set()
    for message in messages:
        first.setdefault(message.rank, message)
        partners.add((message.rank, message.operation, _peer(message, members)))
    waiting, findings = first.keys() | set(elsewhere), []
    for rank, message in sorted(first.items()):
        peer, verb = _peer(message, members), "send to" if message.operation == "send" else "recv from"
        other = "recv" if message.operation == "send" else "send"
        at = f" at {message.place}" if message.place else ""
        text = f"rank {rank} waits in a {verb} rank {peer} of group {message.group}{at}, which does not end"
        if (peer, other, rank) in partners:
            if rank < peer:
                text += f"; rank {peer} is in its {other}: no rank is missing, so a link, a NIC or a GPU is the cause"
                findings.append((0, DumpFinding("stuck", (rank, peer), message.group, 0, message.operation, text)))
            continue
        text += f"; rank {peer} has no {other} under way" + (", it waits elsewhere" if peer in waiting else "")
        findings.append((1 + (peer in waiting), DumpFinding("missing", (peer,), message.group, 0, other, text)))
    return [finding for _, finding in sorted(findings, key=lambda one: one[0])]


def _peer(message: OpenMessage, members: Mapping[str, tuple[int, ...]]) -> int:
    ranks = members.get(message.group, ())
    return ranks[message.peer] if message.peer < len(ranks) else message.peer
