"""The checker against every single-row change of correct schedules, judged by running them on numbers.

Dropping or doubling a row, and changing its op, chunks or buffers, is detected without exception: in these
schedules every row is the only one to bring what it brings. Changes that can be harmless, as the oracle says:
``src`` where the other rank holds the same value at that time, ``dst`` of a reduction where the other rank's
partial sum comes by later, ``step`` where nobody is waiting. ``channel`` carries no meaning for the result.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from commsim.collectives.chain import chain_broadcast, chain_reduce
from commsim.collectives.check import check
from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Schedule
from commsim.collectives.semantics import postcondition, precondition
from commsim.collectives.tree import tree_all_reduce
from commsim.errors import ScheduleError

ROW_COLUMNS = ("op", "src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "step", "channel")
NEVER_HARMLESS = {"drop", "double", "op", "src_chunk", "dst_chunk", "src_buffer", "dst_buffer"}

CASES = {
    "ring 2": ring_all_reduce(2, 8),
    "ring 3": ring_all_reduce(3, 12),
    "ring 3 uneven": ring_all_reduce(3, 10, 2),
    "ring 4 in another order": ring_all_reduce(4, 16, order=[2, 0, 3, 1]),
    "reduce_scatter 4": ring_reduce_scatter(4, 16),
    "all_gather 4": ring_all_gather(4, 16),
    "tree 5": tree_all_reduce(5, 20, 2, 1),
    "tree 2x2, two pieces": tree_all_reduce(4, 16, 2, 2, 2),
    "broadcast 4": chain_broadcast(4, 8, root=2, chunks=2),
    "reduce 4": chain_reduce(4, 8, root=1, chunks=2),
}


def with_rows(s: Schedule, columns: dict[str, Any]) -> Schedule:
    order = np.argsort(columns["step"], kind="stable")
    return s.edit(**{name: np.asarray(column)[order] for name, column in columns.items()})


def mutants(s: Schedule) -> Iterator[tuple[str, int, Schedule]]:
    columns = {name: getattr(s, name) for name in ROW_COLUMNS}
    limits = {"op": 2, "src": s.endpoints, "dst": s.endpoints, "src_buffer": 3, "dst_buffer": 3}
    limits |= {"src_chunk": s.chunk_bytes.size, "dst_chunk": s.chunk_bytes.size, "step": s.steps + 1}
    for row in range(s.rows):
        yield "drop", row, with_rows(s, {k: np.delete(v, row) for k, v in columns.items()})
        yield "double", row, with_rows(s, {k: np.insert(v, row, v[row]) for k, v in columns.items()})
        for name, limit in limits.items():
            for value in set(range(limit)) - {int(columns[name][row])}:
                changed = columns[name].copy()
                changed[row] = value
                yield name, row, with_rows(s, columns | {name: changed})


def refusal(s: Schedule) -> str:
    """The checker's message, empty when it finds no fault."""
    try:
        check(s)
    except ScheduleError as error:
        return str(error)
    return ""


def works_on_numbers(s: Schedule) -> bool:
    """Run on random integers, the writers of a step in every direction; garbage where nothing was stored."""
    source = random.Random(1)
    rank_datum = {(r, d): source.getrandbits(60) for r in range(s.world_size) for d in range(s.data_chunks)}
    if (s.chunk_bytes[s.src_chunk] != s.chunk_bytes[s.dst_chunk]).any():
        return False
    goal = postcondition(s)
    for direction in (1, -1):
        garbage = itertools.count(2**70, 2**63 + 12345)
        state: dict[tuple[int, int, int], int] = {}
        begin = precondition(s)
        for e, b, c, d, r in zip(
            begin.endpoint, begin.buffer, begin.chunk, begin.datum, begin.rank, strict=True
        ):
            state[e, b, c] = rank_datum[r, d]
        rows = list(zip(*(getattr(s, k).tolist() for k in ROW_COLUMNS), strict=True))
        for _, group in itertools.groupby(rows, key=lambda row: row[7]):
            step = list(group)
            values = [state.setdefault((r[1], r[3], r[4]), next(garbage)) for r in step]
            for (op, _, dst, _, _, buffer, chunk, *_), value in list(zip(step, values, strict=True))[
                ::direction
            ]:
                place = (dst, buffer, chunk)
                state[place] = state.setdefault(place, next(garbage)) + value if op else value
        for e, b, c, d, r in zip(goal.endpoint, goal.buffer, goal.chunk, goal.datum, goal.rank, strict=True):
            ranks = range(s.world_size) if r < 0 else [r]
            if state.get((e, b, c)) != sum(rank_datum[k, d] for k in ranks):
                return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_the_oracle_and_the_checker_agree_on_the_unchanged_schedule(name: str) -> None:
    check(CASES[name])
    assert works_on_numbers(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_every_harmful_change_of_a_row_is_detected(name: str) -> None:
    harmless: list[tuple[str, int]] = []
    seen: set[str] = set()
    for kind, row, mutant in mutants(CASES[name]):
        seen.add(kind)
        if refusal(mutant):
            continue
        assert works_on_numbers(mutant), (kind, row)
        harmless.append((kind, row))
    assert seen >= {"drop", "double", "op", "src", "dst", "src_buffer", "dst_buffer", "step"}
    assert not {kind for kind, _ in harmless} & NEVER_HARMLESS


@pytest.mark.parametrize("name", ["ring 3", "tree 5", "broadcast 4", "reduce 4"])
def test_what_the_checker_refuses_beyond_wrong_results_follows_its_stated_rules(name: str) -> None:
    for _, _, mutant in mutants(CASES[name]):
        if works_on_numbers(mutant):
            fault = refusal(mutant)
            assert not fault or "a race" in fault or "holds nothing yet" in fault
