"""The order of what is measured: a curve has both ends from the first portion on, and nothing is measured twice."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.lab.stages import (
    LARGEST_BYTES,
    SMALLEST_BYTES,
    collective_tasks,
    forced,
    largest_bytes,
    registration,
    sizes,
    step_tasks,
    variant_tasks,
)

GIB = 1 << 30


@given(st.integers(4, 33))
def test_the_portions_hold_every_power_of_two_once(exponent: int) -> None:
    largest = 1 << exponent
    portions = sizes(largest)
    every = [size for portion in portions for size in portion]
    assert sorted(every) == [1 << k for k in range(3, exponent + 1)]
    assert {SMALLEST_BYTES, largest} <= set(portions[0])


def test_all_reduce_is_whole_before_any_other_collective_is_finer_than_coarse() -> None:
    largest = GIB
    seen: dict[str, int] = defaultdict(int)
    for task in collective_tasks(largest):
        seen[task.collective] += len(task.sizes)
        if seen["all_reduce"] < 28:
            assert all(count <= len(sizes(largest)[0]) for name, count in seen.items() if name != "all_reduce")
    assert seen["all_reduce"] == 28  # 8 B .. 1 GiB


@given(st.integers(1, 1 << 40))
def test_the_largest_message_fits_thrice_into_the_memory(memory: int) -> None:
    largest = largest_bytes(memory)
    assert SMALLEST_BYTES <= largest <= LARGEST_BYTES
    assert 3 * largest <= max(memory, 3 * SMALLEST_BYTES)


def test_only_what_nccls_own_table_has_is_forced() -> None:
    pairs = [("nvls_tree", "Simple"), ("ring", "LL"), ("ring", "Simple"), ("pat", "Simple")]
    assert [(f.algorithm, f.protocol) for f in forced(pairs)] == [
        ("Ring", "Simple"),
        ("Ring", "LL"),
        ("NVLSTree", "Simple"),
    ]
    assert forced(pairs)[0].env == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}


@pytest.mark.parametrize(("ranks", "memory"), [(1, 80 * GIB), (8, 80 * GIB), (4, 16 * GIB), (8, GIB // 4), (3, GIB)])
def test_steps_are_possible_and_leave_half_of_the_memory(ranks: int, memory: int) -> None:
    tasks = step_tasks(ranks, memory)
    assert {task.scheme for task in tasks} <= {"ddp", "zero3", "tp", "pp"}
    assert tasks
    for task in tasks:
        assert not list(task.faults())
        assert 16 * task.layers * 12 * task.hidden**2 <= memory / 2 or task.scheme == "pp"


@given(st.integers(10, 33))
def test_no_layer_of_a_step_is_larger_than_the_largest_message(exponent: int) -> None:
    largest = 1 << exponent
    for task in step_tasks(8, 80 * GIB, largest):
        assert 2 * 12 * task.hidden**2 <= largest or task.hidden == 32


def test_steps_of_a_large_gpu_are_those_of_a_large_model() -> None:
    task = step_tasks(8, 80 * GIB)[0]
    assert (task.hidden, task.seq_len, task.vocab) == (4096, 2048, 8192)


def test_graphs_and_registered_memory_are_measured_where_there_are_plain_rows_to_compare() -> None:
    plain = {(task.collective, size) for task in collective_tasks(GIB) for size in task.sizes}
    assert {(task.collective, size) for task in variant_tasks(GIB) for size in task.sizes} <= plain


@pytest.mark.parametrize(("version", "how"), [("2.26.2", "buffer"), ("2.27.3", "window"), ("2.28.9", "window")])
def test_windows_are_registered_where_nccl_has_them(version: str, how: str) -> None:
    assert registration(version) == how
