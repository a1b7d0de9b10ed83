"""What an algorithm of the registry does step by step: which chunk goes where, and what every rank holds after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.collectives.registry import build, entry, names
from commsim.collectives.schedule import Op, Schedule
from commsim.collectives.semantics import ALL_RANKS, PAIRWISE, REDUCING, postcondition, precondition
from commsim.document.types import show
from commsim.errors import ScheduleError

if TYPE_CHECKING:
    from commsim.explorer.state import State
    from commsim.scenario.predictors import Cache

MOST_RANKS, MOST_MOVES, MOST_DATA = 64, 20_000, 256
"""Of what a person can look at, and a browser draws."""

RANKS = 8
BYTES = 1 << 20


def animation_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """Steps of moves ``[src, dst, chunk, adds]``, and after each the cells that changed: ``[rank, datum, count]``.

    A cell says how many ranks' contributions of a datum an endpoint holds; `goal` how many it must end with.
    """
    del base_dir, cache
    kind, ranks = state["collective"] or "all_reduce", _ranks(state)
    algorithm = state["schedule"] or names(kind)[0][1]
    own = entry(kind, algorithm)
    nodes = _per_node(ranks) if "ranks_per_node" in own.takes else None
    item = 1 if kind == "barrier" else 4
    schedule = build(kind, algorithm, ranks, BYTES, itemsize=item, ranks_per_node=nodes)
    if schedule.rows > MOST_MOVES:
        raise ScheduleError(
            f"found {schedule.rows:,} moves, expected at most {MOST_MOVES:,} to look at; take fewer ranks"
        )
    apart = ranks if kind in PAIRWISE else 0  # blocks of one number from several ranks have cells of their own
    steps, first = _replayed(schedule, apart)
    goal = postcondition(schedule)
    wanted = [
        [int(e), int(d) * apart + int(r) if apart else int(d), ranks if r == ALL_RANKS else 1]
        for e, d, r in zip(goal.endpoint, goal.datum, goal.rank, strict=True)
    ]
    data = max(d for _, d, _ in [*wanted, *first]) + 1
    return {
        "title": f"{kind} by {algorithm}: {own.summary}",
        "facts": _facts(schedule, nodes),
        "ranks": ranks,
        "per_node": nodes or ranks,
        "endpoints": schedule.endpoints,
        "data": data if data <= MOST_DATA else 0,
        "chunks": int(schedule.chunk_bytes.size),
        "reduces": kind in REDUCING,
        "first": first,
        "steps": steps,
        "goal": wanted,
        "algorithm": algorithm,
        "warnings": [],
    }


def command_words(state: State) -> list[str]:
    """The command that prints the same schedule."""
    kind, ranks = state["collective"] or "all_reduce", _ranks(state)
    algorithm = state["schedule"] or names(kind)[0][1]
    words = ["commsim", "schedule", "show", algorithm, "-c", kind, "-n", str(ranks)]
    apart = "ranks_per_node" in entry(kind, algorithm).takes
    return [*words, *(("--ranks-per-node", str(_per_node(ranks))) if apart else ())]


def _ranks(state: State) -> int:
    text = state["ranks"] or str(RANKS)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MOST_RANKS):
        raise ScheduleError(f"ranks: found {show(text)}, expected 1 to {MOST_RANKS} to look at")
    return int(text)


def _per_node(ranks: int) -> int:
    """Ranks of a node, so that there are two nodes or more: half of the ranks, at most eight, that divides them."""
    return next((n for n in range(min(8, max(1, ranks // 2)), 0, -1) if ranks % n == 0), 1)


def _facts(s: Schedule, nodes: int | None) -> str:
    words = [_count(s.world_size, "rank")]
    words += [f"{_count(s.world_size // nodes, 'node')} of {nodes}"] if nodes else []
    more = s.endpoints - s.world_size
    words += (
        [f"{_count(more, 'more endpoint')} that {'adds or copies' if more == 1 else 'add or copy'}"] if more else []
    )
    sent = s.sent_bytes()[: s.world_size] / BYTES
    words.append(f"{_count(s.steps, 'step')}, {_count(s.rows, 'move')}")
    least, most = f"{sent.min():.3g}", f"{sent.max():.3g}"
    words.append(f"a rank sends {most if least == most else f'{least} to {most}'} times the array")
    return "; ".join(words)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _replayed(s: Schedule, apart: int) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """The steps with what they change, and what is held at the start; `apart`: ranks whose data have own cells."""
    held: dict[tuple[int, int, int], tuple[int, int]] = {}  # (endpoint, buffer, chunk): (datum, mask of ranks)
    start = precondition(s)
    for e, b, c, d, r in zip(start.endpoint, start.buffer, start.chunk, start.datum, start.rank, strict=True):
        held[int(e), int(b), int(c)] = (int(d) * apart + int(r) if apart else int(d), 1 << int(r))
    seen = _cells(held, None)
    first = [[e, d, n] for (e, d), n in sorted(seen.items())]
    steps: list[dict[str, Any]] = []
    bounds = np.searchsorted(s.step, np.arange(s.steps + 1))
    columns = [c.tolist() for c in (s.src, s.dst, s.src_buffer, s.src_chunk, s.dst_buffer, s.dst_chunk, s.op)]
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        moves, writes = [], []
        for src, dst, from_buffer, from_chunk, to_buffer, to_chunk, op in zip(
            *(c[begin:end] for c in columns), strict=True
        ):
            what = held.get((src, from_buffer, from_chunk))
            if what is not None:
                writes.append(((dst, to_buffer, to_chunk), what, op == Op.REDUCE))
            moves.append([src, dst, what[0] if what is not None else from_chunk, int(op == Op.REDUCE)])
        for place, (datum, mask), adds in writes:
            before = held.get(place)
            held[place] = (datum, mask | before[1]) if adds and before is not None else (datum, mask)
        touched = {place[0] for place, _, _ in writes}
        now = _cells(held, touched)
        old = {cell: n for cell, n in seen.items() if cell[0] in touched}
        changed = [
            [e, d, now.get((e, d), 0)] for e, d in sorted({*now, *old}) if now.get((e, d), 0) != old.get((e, d), 0)
        ]
        seen = {cell: n for cell, n in seen.items() if cell[0] not in touched} | now
        steps.append({"moves": moves, "cells": changed})
    return steps, first


def _cells(held: dict[tuple[int, int, int], tuple[int, int]], endpoints: set[int] | None) -> dict[tuple[int, int], int]:
    """By (endpoint, datum), the most contributions that one of its slots holds."""
    cells: dict[tuple[int, int], int] = {}
    for (endpoint, _, _), (datum, mask) in held.items():
        if endpoints is None or endpoint in endpoints:
            cells[endpoint, datum] = max(cells.get((endpoint, datum), 0), mask.bit_count())
    return cells
