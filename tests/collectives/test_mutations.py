"""The checker against every single-row change of correct schedules, judged by running them on numbers.

Dropping or doubling a row, and changing its op, chunks or buffers, is detected without exception: in these
schedules every row is the only one to bring what it brings. Changes that can be harmless, as the oracle says:
``src`` where the other rank holds the same value at that time, ``dst`` of a reduction where the other rank's
partial sum comes by later, ``step`` where nobody is waiting. ``channel`` carries no meaning for the result.
"""

import itertools
import operator
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from commsim.collectives.chain import chain_broadcast, chain_reduce
from commsim.collectives.check import check
from commsim.collectives.pairwise import pairwise_all_to_all_v
from commsim.collectives.registry import build
from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Schedule
from commsim.collectives.semantics import collective, postcondition, precondition
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
    "binomial broadcast 5": build("broadcast", "binomial", 5, 8, root=3),
    "4-nomial reduce 5": build("reduce", "knomial", 5, 8, root=4),
    "binomial gather 4": build("gather", "binomial", 4, 8, root=1),
    "double tree broadcast 4": build("broadcast", "double_binary_tree", 4, 8, root=2),
    "chain scatter 4": build("scatter", "chain", 4, 8, root=1),
    "scatter and all-gather 3": build("broadcast", "scatter_all_gather", 3, 9),
    "flat 3": build("all_reduce", "flat", 3, 8, root=1),
    "parameter server 3": build("all_reduce", "parameter_server", 3, 8),
    "recursive doubling 4": build("all_reduce", "recursive_doubling", 4, 8),
    "recursive doubling 3, folded": build("all_reduce", "recursive_doubling", 3, 8),
    "rabenseifner 4": build("all_reduce", "rabenseifner", 4, 8),
    "rabenseifner 3, folded": build("all_reduce", "rabenseifner", 3, 8),
    "recursive halving 3, folded": build("reduce_scatter", "recursive_halving", 3, 9),
    "swing 4": build("reduce_scatter", "swing", 4, 8),
    "bruck all_gather 3": build("all_gather", "bruck", 3, 9),
    "bruck all_to_all 3": build("all_to_all", "bruck", 3, 9),
    "one shot 3": build("all_reduce", "direct_one_shot", 3, 8),
    "two shots 3": build("all_reduce", "direct_two_shot", 3, 9),
    "hierarchical 2x2": build("reduce_scatter", "hierarchical", 4, 8, ranks_per_node=2),
    "torus 2x2": build("all_gather", "torus_2d", 4, 16),
    "nvls 2": build("all_reduce", "nvls", 2, 8),
    "nvls tree 2x1": build("all_reduce", "nvls_tree", 2, 8, ranks_per_node=1),
    "collnet direct 2x2": build("all_reduce", "collnet_direct", 4, 8, ranks_per_node=2),
    "collnet chain 2x2": build("all_reduce", "collnet_chain", 4, 8, ranks_per_node=2),
    "sharp 3": build("reduce", "sharp", 3, 8, root=1),
    "pat 5": build("all_gather", "pat", 5, 10),
    "pairwise 3": build("all_to_all", "pairwise", 3, 9),
    "pairwise v 2": pairwise_all_to_all_v(2, 8, counts=[[2, 2], [2, 2]]),
    "rails 2x2": build("all_to_all", "hierarchical", 4, 8, ranks_per_node=2),
    "send_recv 3": build("send_recv", "direct", 3, 8),
    "dissemination 3": build("barrier", "dissemination", 3, 8),
}
# Here some rows bring what is there already, or a rank may count twice: dropping or changing them can be harmless.
REDUNDANT = {"scatter and all-gather 3", "nvls 2", "nvls tree 2x1", "dissemination 3"}


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
    """Run on random integers, the writers of a step in every direction; garbage where nothing was stored.

    Where a rank may count twice, on sets: a bit per contribution, and none for garbage.
    """
    source = random.Random(1)
    pairs = [(r, d) for r in range(s.world_size) for d in range(s.data_chunks)]
    sets = collective(s.collective).idempotent
    combine = operator.or_ if sets else operator.add
    rank_datum = {pair: 1 << i if sets else source.getrandbits(60) for i, pair in enumerate(pairs)}
    if (s.chunk_bytes[s.src_chunk] != s.chunk_bytes[s.dst_chunk]).any():
        return False
    goal = postcondition(s)
    chunks = range(s.chunk_bytes.size)
    switch_slots = [(e, b, c) for e in range(s.world_size, s.endpoints) for b in range(3) for c in chunks]
    for direction in (1, -1):
        garbage = itertools.count(2**70, 2**63 + 12345)
        state: dict[tuple[int, int, int], int] = dict.fromkeys(switch_slots, 0)
        begin = precondition(s)
        for e, b, c, d, r in zip(begin.endpoint, begin.buffer, begin.chunk, begin.datum, begin.rank, strict=True):
            state[e, b, c] = rank_datum[r, d]
        rows = list(zip(*(getattr(s, k).tolist() for k in ROW_COLUMNS), strict=True))
        for _, group in itertools.groupby(rows, key=lambda row: row[7]):
            step = list(group)
            values = [state.setdefault((r[1], r[3], r[4]), next(garbage)) for r in step]
            for (op, _, dst, _, _, buffer, chunk, *_), value in list(zip(step, values, strict=True))[::direction]:
                place = (dst, buffer, chunk)
                state[place] = combine(state.setdefault(place, next(garbage)), value) if op else value
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
    if name not in REDUNDANT:
        assert not {kind for kind, _ in harmless} & NEVER_HARMLESS


@pytest.mark.parametrize("name", ["ring 3", "tree 5", "broadcast 4", "reduce 4"])
def test_what_the_checker_refuses_beyond_wrong_results_follows_its_stated_rules(name: str) -> None:
    for _, _, mutant in mutants(CASES[name]):
        if works_on_numbers(mutant):
            fault = refusal(mutant)
            assert not fault or "a race" in fault or "holds nothing yet" in fault
