"""When two schedules are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives import registry
from commsim.collectives.canonical import canonical, earliest_steps, same_schedule
from commsim.collectives.check import check
from commsim.collectives.ring import ring_all_reduce


def test_a_ring_has_its_steps_already() -> None:
    s = ring_all_reduce(4, 16)
    assert earliest_steps(s).tolist() == s.step.tolist()


def test_numbers_of_steps_and_order_of_rows_do_not_count() -> None:
    s = ring_all_reduce(4, 16)
    backwards = np.lexsort((-np.arange(s.rows), s.step))
    other = s.take(backwards, step=5 * s.step[backwards] + 3, after=[(0, 9)])
    assert same_schedule(s, other)


def test_what_moves_counts() -> None:
    s = ring_all_reduce(4, 16)
    swapped = s.dst_chunk.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert not same_schedule(s, s.edit(dst_chunk=swapped))
    assert not same_schedule(s, ring_all_reduce(4, 32))
    assert not same_schedule(s, s.edit(root=1))
    assert not same_schedule(s, ring_all_reduce(4, 16, order=[0, 2, 1, 3]))


@given(st.sampled_from(registry.names()), st.integers(1, 6))
def test_the_canonical_form_is_correct_and_its_own(key: tuple[str, str], n: int) -> None:
    s = registry.build(*key, n, 24 * n * n)
    one = canonical(s)
    check(one)
    assert same_schedule(s, one)
    assert one.steps <= s.steps
    assert np.array_equal(canonical(one).step, one.step)
