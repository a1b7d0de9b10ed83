"""GOAL text: by hand, and run by a small simulator that knows messages, rendezvous and both kinds of waiting."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives import registry
from commsim.collectives.actions import ActionKind, actions
from commsim.collectives.goal import goal_text
from commsim.collectives.ring import ring_all_reduce
from commsim.errors import ScheduleError

Label = tuple[int, int]


def run(text: str, *, rendezvous: bool) -> dict[tuple[int, int], int]:
    """Bytes by (sender, receiver); fails when not every action can be carried out."""
    what: dict[Label, list[str]] = {}
    after_end: dict[Label, set[Label]] = defaultdict(set)
    after_start: dict[Label, set[Label]] = defaultdict(set)
    rank = -1
    for line in text.splitlines():
        if found := re.fullmatch(r"rank (\d+) \{", line):
            rank = int(found[1])
        elif found := re.fullmatch(r"l(\d+): (.*)", line):
            what[rank, int(found[1])] = found[2].split()
        elif found := re.fullmatch(r"l(\d+) (i?)requires l(\d+)", line):
            (after_start if found[2] else after_end)[rank, int(found[1])].add((rank, int(found[3])))
        else:
            assert line in {"", "}"} or re.fullmatch(r"num_ranks \d+", line), line
    started: set[Label] = set()
    ended: set[Label] = set()
    senders: dict[tuple[int, int, str], Label] = {}
    posted: dict[tuple[int, int, str], Label] = {}
    arrived: dict[tuple[int, int, str], int] = {}
    moved: dict[tuple[int, int], int] = defaultdict(int)
    while len(ended) < len(what):
        before = len(started), len(ended)
        for label, words in what.items():
            if label not in started and after_end[label] <= ended and after_start[label] <= started:
                started.add(label)
            if label not in started or label in ended:
                continue
            key = (label[0], int(words[3]), words[5]) if words[0] == "send" else None
            if words[0] == "calc":
                ended.add(label)
            elif key is not None:
                assert senders.setdefault(key, label) == label, "two messages with one tag"
                arrived[key] = int(words[1].removesuffix("b"))
                if not rendezvous or key in posted:
                    ended.add(label)
            else:
                back = (int(words[3]), label[0], words[5])
                posted[back] = label
                if back in arrived:
                    assert arrived[back] == int(words[1].removesuffix("b"))
                    moved[back[:2]] += arrived[back]
                    ended.add(label)
        assert (len(started), len(ended)) != before, "a deadlock"
    return moved


def test_two_ranks_by_hand() -> None:
    text = goal_text(ring_all_reduce(2, 10))
    assert text.splitlines()[:9] == [
        "num_ranks 2",
        "",
        "rank 0 {",
        "l1: send 5b to 1 tag 0",
        "l2: recv 5b from 1 tag 0",
        "l3: send 5b to 1 tag 1",
        "l3 requires l2",
        "l4: recv 5b from 1 tag 1",
        "l4 irequires l1",
    ]


@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("key", registry.names(), ids="-".join)
def test_every_algorithm_runs_to_its_end(key: tuple[str, str], rendezvous: bool) -> None:
    s = registry.build(*key, 5, 2400)
    moved = run(goal_text(s), rendezvous=rendezvous)
    assert sum(moved.values()) == int(s.sent_bytes().sum())
    for rank, total in enumerate(s.received_bytes().tolist()):
        assert sum(size for (_, to), size in moved.items() if to == rank) == total


@given(st.sampled_from(registry.names()), st.integers(1, 6), st.integers(1, 2), st.integers(1, 2))
def test_channels_and_pieces_run_to_their_end(key: tuple[str, str], n: int, channels: int, chunks: int) -> None:
    s = registry.build(*key, n, 240 * n * n, channels=channels, chunks=chunks)
    assert sum(run(goal_text(s), rendezvous=True).values()) == int(s.sent_bytes().sum())


def test_switches_are_further_ranks() -> None:
    s = registry.build("all_reduce", "nvls", 4, 64)
    text = goal_text(s)
    assert text.startswith("num_ranks 5\n")
    assert "rank 4 {" in text


def test_lowered_schedules_have_wire_bytes() -> None:
    s = ring_all_reduce(2, 8)
    lowered = s.edit(wire_bytes=[16] * s.rows)
    assert "send 16b" in goal_text(lowered)


def test_reductions_wait_for_each_other_only_where_they_must() -> None:
    s = registry.build("reduce", "flat", 4, 8)
    assert not any(actions(s, commute=True).finished)
    chained = actions(s, commute=False)
    assert sorted(len(waits) for waits in chained.finished) == [0] * 4 + [1, 1]
    assert [ActionKind(k).name for k in chained.kind[chained.rank == 0]] == ["RECEIVE"] * 3


def test_extra_order_is_kept_where_ranks_meet() -> None:
    s = registry.build("all_gather", "ring", 4, 16)
    (a,) = [r for r in range(s.rows) if (s.step[r], s.src[r]) == (0, 0)]
    (b,) = [r for r in range(s.rows) if (s.step[r], s.src[r]) == (2, 1)]
    made = actions(s.edit(after=[(a, b)]), commute=True)
    send = next(i for i in range(len(made)) if made.row[i] == b and made.kind[i] == ActionKind.SEND)
    assert any(made.row[j] == a and made.kind[j] == ActionKind.RECEIVE for j in made.finished[send])


def test_extra_order_between_strangers_is_refused() -> None:
    s = registry.build("all_gather", "ring", 4, 16)
    (a,) = [r for r in range(s.rows) if (s.step[r], s.src[r]) == (0, 0)]
    (b,) = [r for r in range(s.rows) if (s.step[r], s.src[r]) == (2, 2)]
    with pytest.raises(ScheduleError, match="ends elsewhere: that order cannot be written"):
        goal_text(s.edit(after=[(a, b)]))


def test_a_swap_within_a_rank_is_refused() -> None:
    s = registry.build("all_reduce", "ring", 2, 8)
    swap = s.take(np.arange(2), step=[0, 0], src=[0, 0], dst=[0, 0], op=[0, 0], src_chunk=[0, 1], dst_chunk=[1, 0])
    with pytest.raises(ScheduleError, match="step 0: rank 0 swaps chunks with itself"):
        goal_text(swap)
