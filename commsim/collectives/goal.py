"""Schedules as GOAL text, the input of LogGOPSim (Hoefler, Schneider, Lumsdaine 2010)."""

from __future__ import annotations

from commsim.collectives.actions import ActionKind, actions
from commsim.collectives.schedule import Schedule


def goal_text(schedule: Schedule) -> str:
    """Sends, receives and local moves of every endpoint with what they require, as GOAL.

    ``requires`` is a wait until the other has finished, ``irequires`` until it has started: a receive that
    overwrites a chunk waits for its send to start. Waiting for its end would make two large (rendezvous)
    messages in opposite directions wait for each other. Local moves are ``calc 0``, since GOAL knows their
    time only as a number. Switches follow the ranks as further ranks. A message has its wire bytes in a
    lowered schedule and its payload otherwise; tags count the messages of a pair of ranks.

    >>> from commsim.collectives.chain import chain_broadcast
    >>> print(goal_text(chain_broadcast(2, nbytes=64)), end="")
    num_ranks 2
    <BLANKLINE>
    rank 0 {
    l1: send 64b to 1 tag 0
    }
    <BLANKLINE>
    rank 1 {
    l1: recv 64b from 0 tag 0
    }
    """
    s = schedule
    made = actions(s, commute=True)
    size = (s.payload_bytes() if s.wire_bytes is None else s.wire_bytes).tolist()
    src, dst, rank, rows = s.src.tolist(), s.dst.tolist(), made.rank.tolist(), made.row.tolist()
    tags: dict[tuple[int, int], int] = {}
    tag: dict[int, int] = {}
    for row in range(s.rows):
        tag[row] = tags[src[row], dst[row]] = tags.get((src[row], dst[row]), -1) + 1
    lines: list[list[str]] = [[] for _ in range(s.endpoints)]
    label = [0] * len(made)
    count = [0] * s.endpoints
    for i, (kind, row) in enumerate(zip(made.kind.tolist(), rows, strict=True)):
        r = rank[i]
        count[r] += 1
        label[i] = count[r]
        fields = {
            ActionKind.SEND: f"send {size[row]}b to {dst[row]} tag {tag[row]}",
            ActionKind.RECEIVE: f"recv {size[row]}b from {src[row]} tag {tag[row]}",
            ActionKind.LOCAL: "calc 0",
        }[ActionKind(kind)]
        lines[r].append(f"l{label[i]}: {fields}")
        lines[r] += [f"l{label[i]} requires l{label[j]}" for j in sorted(made.finished[i])]
        lines[r] += [f"l{label[i]} irequires l{label[j]}" for j in sorted(made.started[i] - made.finished[i])]
    ranks = ["\n".join([f"rank {r} {{", *own, "}"]) for r, own in enumerate(lines)]
    return "\n\n".join([f"num_ranks {s.endpoints}", *ranks]) + "\n"
