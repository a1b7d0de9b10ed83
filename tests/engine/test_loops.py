"""The compiled loops against their own Python text and against the simpy reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import naive
import numba
import numpy as np
import pytest
from hypothesis import given
from interpreted import interpret
from programs import on_switch, random_programs

from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.loops import compiled
from commsim.engine.merging import Routes
from commsim.engine.program import Program
from commsim.engine.simulate import _run, simulate


def _same(a: Any, b: Any, names: tuple[str, ...] = ("ready_s", "end_s", "link_bytes")) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def _everything(p: Program, *, interpreted: bool, run: Callable[..., Any] = simulate, **options: Any) -> Any:
    if not interpreted:
        return run(p, **options)
    with pytest.MonkeyPatch.context() as patch:
        interpret(patch)
        return run(p, **options)


@given(random_programs())
def test_compiled_equals_interpreted_bit_for_bit(p: Program) -> None:
    for in_order in (False, True):
        a = _everything(p, interpreted=False, in_order=in_order)
        b = _everything(p, interpreted=True, in_order=in_order)
        assert _same(a, b, ("ready_s", "start_s", "end_s", "link_bytes", "link_busy_s"))
        assert a.method == b.method


@given(random_programs(15))
def test_recording_is_the_same_compiled_and_interpreted(p: Program) -> None:
    options: dict[str, Any] = {"run": _run, "routes": Routes.of(p), "record": True}
    (_, a), (_, b) = (_everything(p, interpreted=i, **options) for i in (False, True))
    assert _same(a, b, ("hop_start_s", "hop_before", "cause"))


@given(random_programs())
def test_heap_equals_simpy_bit_for_bit(p: Program) -> None:
    """Random sizes leave no two events at one time on one link, so the order of ties plays no part."""
    assert _same(simulate(p, in_order=False), naive.simulate(p))


@given(random_programs())
def test_store_and_forward_equals_simpy_bit_for_bit(p: Program) -> None:
    assert _same(simulate(p, store_and_forward=True), naive.simulate(p, store_and_forward=True))


@pytest.mark.parametrize("n", [2, 3, 8, 16])
@pytest.mark.parametrize("channels", [1, 2])
def test_rings_equal_simpy(n: int, channels: int) -> None:
    schedule = ring_all_reduce(n, 65536 * n, channels)
    random = np.random.default_rng(n).integers(1, 65536, schedule.rows)
    for sizes in (None, list(random)):
        p = on_switch(schedule, nbytes=sizes)
        assert _same(simulate(p), naive.simulate(p))


@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize("chunks", [1, 7])
def test_trees_equal_simpy(n: int, chunks: int) -> None:
    """Equal chunks of a tree tie: whoever goes first, the makespan is the same; random times agree in every op."""
    schedule = tree_all_reduce(n, 1 << 20, channels=2, ranks_per_node=1, chunks=chunks)
    p = on_switch(schedule)
    assert simulate(p).makespan_s == pytest.approx(naive.simulate(p).end_s.max(), rel=1e-9)
    random = np.random.default_rng(n)
    p = on_switch(schedule, nbytes=list(random.integers(1, 65536, schedule.rows)))
    p = dataclasses.replace(p, delay_s=random.uniform(0, 1e-6, schedule.rows))  # or all leaves tie at time 0
    assert _same(simulate(p), naive.simulate(p))


@given(random_programs())
def test_in_order_pass_is_the_heap_or_nothing(p: Program) -> None:
    a, b = simulate(p), simulate(p, in_order=False)
    assert b.method == "heap"
    assert _same(a, b, ("ready_s", "start_s", "end_s", "link_bytes", "link_busy_s"))


def test_in_order_pass_succeeds_on_rings_and_gives_up_on_trees() -> None:
    assert simulate(on_switch(ring_all_reduce(16, 1 << 20, 4, pipeline=2))).method == "in_order"
    assert simulate(on_switch(tree_all_reduce(16, 1 << 20, ranks_per_node=1, chunks=8))).method == "heap"


def test_compiled_code_is_kept_under_a_name_that_changes_with_any_file(tmp_path: Path) -> None:
    """numba looks at the file of a function alone, not at those of its callees."""
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a = 1")
    before = compiled.digest([one, two])
    two.write_text("b = 2")
    assert compiled.digest([one, two]) != before
    assert {path.stem for path in compiled._SOURCES} >= {"heap", "links", "events", "program"}


def test_without_a_folder_to_write_to_loops_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any, function: Any) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(numba.core.caching.FunctionCache, "__init__", refuse)
    assert compiled.compiled(lambda x: x + 1)(41) == 42
