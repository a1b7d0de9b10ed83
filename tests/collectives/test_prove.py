"""The proof of everything: what it counts, what it leaves out and why, and what it says of a wrong schedule."""

import time
from typing import Any

import numpy as np
import pytest

from commsim.collectives import registry
from commsim.collectives.prove import prove, prove_one
from commsim.collectives.registry import Algorithm, names
from commsim.collectives.schedule import Schedule
from commsim.collectives.star import flat_broadcast
from commsim.errors import ScheduleError


def test_every_algorithm_rank_count_root_and_node_size_up_to_eight() -> None:
    rows = prove(range(1, 9), workers=1)
    assert [(row.collective, row.algorithm) for row in rows] == names()
    assert not [fault for row in rows for fault in row.faults]
    assert not [row for row in rows if row.not_applicable]
    proven = {(row.collective, row.algorithm): row.proven for row in rows}
    assert proven["all_reduce", "ring"] == 8
    assert proven["broadcast", "chain"] == sum(range(1, 9))
    divisors = [[d for d in range(1, n + 1) if n % d == 0] for n in range(1, 9)]
    assert proven["all_reduce", "hierarchical"] == sum(map(len, divisors))
    assert proven["broadcast", "hierarchical"] == sum(n * len(d) for n, d in enumerate(divisors, 1))


def test_rank_counts_that_are_no_power_of_two_and_other_roots_are_proven() -> None:
    rows = prove([7, 11], workers=1) + prove([37], [0, 17, 36], workers=1)
    assert all(row.proven and not row.faults for row in rows)
    takes = {key: registry.entry(*key).takes for key in names()}
    rooted = [row for row in rows if takes[row.collective, row.algorithm] == {"root", "channels", "chunks"}]
    assert {row.proven for row in rooted} == {7 + 11, 3}


def test_channels_and_pieces_are_proven_too() -> None:
    rows = prove([1, 6, 9], workers=1, channels=2, chunks=3, roots=[0])
    assert all(row.proven >= 3 and not row.faults for row in rows)


def test_what_does_not_exist_is_counted_with_its_reason() -> None:
    (row,) = prove([2, 3, 4], roots=[0, 3], collectives=["broadcast"], algorithms=["flat"], workers=1)
    assert row.proven == 4
    assert row.not_applicable == {"root 3 is not one of the ranks": 2}
    (row,) = prove([4, 6], collectives=["all_to_all"], algorithms=["hierarchical"], workers=1, ranks_per_node=4)
    assert row.proven == 1
    assert row.not_applicable == {"6 ranks are no whole number of nodes of 4 ranks": 1}


def test_a_wrong_schedule_is_a_fault_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_last(world_size: int, nbytes: int, *, root: int, itemsize: int, **_: Any) -> Schedule:
        s = flat_broadcast(world_size, nbytes, root, itemsize=itemsize)
        return s.take(np.arange(s.rows - 1))

    wrong = Algorithm("wrong", forgets_the_last, frozenset({"root"}))
    monkeypatch.setitem(registry.ALGORITHMS, ("broadcast", "flat"), wrong)
    row = prove_one("broadcast", "flat", 3)
    assert row.proven == 0
    assert len(row.faults) == 3
    assert row.faults[1].startswith("flat broadcast of 3 ranks, root 1: flat broadcast, after 1 steps: endpoint 2")


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    prove([2, 3], collectives=["scatter"], workers=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 8) for k in range(1, 9)]


def test_two_processes_give_what_one_gives() -> None:
    chosen: dict[str, Any] = {"collectives": ["gather"], "algorithms": ["chain", "binomial"]}
    one, two = prove([3, 5], workers=1, **chosen), prove([3, 5], workers=2, **chosen)
    assert [(r.algorithm, r.proven, r.faults) for r in one] == [(r.algorithm, r.proven, r.faults) for r in two]


def test_names_are_checked_and_aliases_known() -> None:
    assert [r.algorithm for r in prove([2], collectives=["broadcast"], algorithms=["ring"], workers=1)] == ["chain"]
    with pytest.raises(ScheduleError, match="unknown algorithm 'chian', did you mean 'chain'"):
        prove([2], algorithms=["chian"])
    with pytest.raises(ScheduleError, match="unknown collective 'bcast'"):
        prove([2], collectives=["bcast"])
    with pytest.raises(ScheduleError, match="expected at least one, each at least 1"):
        prove([])
    with pytest.raises(ScheduleError, match="roots are 'some', expected 'all' or numbers"):
        prove([2], roots="some")


def test_forty_ranks_with_all_roots_take_milliseconds_each() -> None:
    begin = time.process_time()
    row = prove_one("broadcast", "chain", 40)
    assert row.proven == 40
    assert time.process_time() - begin < 2.0
