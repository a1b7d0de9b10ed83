"""gloo's schedules are correct for any rank count, and send the bytes that were counted on a real interface."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives.check import check
from commsim.errors import ScheduleError
from commsim.gloo.schedules import gloo_schedule, messages, segments

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "broadcast",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "send_recv",
)
ROOTED = ("reduce", "broadcast", "gather", "scatter")


@given(
    collective=st.sampled_from(COLLECTIVES),
    n=st.integers(2, 9),
    elements=st.integers(1, 5000),
    root=st.integers(0, 8),
)
def test_every_schedule_is_correct(collective: str, n: int, elements: int, root: int) -> None:
    check(gloo_schedule(collective, n, 4 * n * elements, root=root % n if collective in ROOTED else 0))


@pytest.mark.parametrize("collective", ["all_reduce", "reduce"])
def test_large_arrays_are_correct(collective: str) -> None:
    check(gloo_schedule(collective, 4, 30 << 20, root=0))


# Counted on the loopback interface of a network namespace of its own, torch 2.13, 4 ranks: bytes sent by all / size,
# which hold headers of about 0.2 %.
COUNTED = {
    ("all_reduce", 4): 6.0122,
    ("all_reduce", 64): 6.0069,
    ("reduce_scatter", 16): 6.0074,
    ("reduce", 4): 3.7567,
    ("reduce", 16): 4.2552,
    ("reduce", 64): 4.6301,
    ("all_gather", 16): 3.0038,
    ("broadcast", 16): 3.0034,
    ("all_to_all", 16): 3.0037,
    ("gather", 16): 0.7513,
}


@pytest.mark.parametrize(("collective", "mib"), COUNTED)
def test_bytes_are_those_counted_on_an_interface(collective: str, mib: int) -> None:
    sent = gloo_schedule(collective, 4, mib << 20).sent_bytes().sum() / (mib << 20)
    assert sent == pytest.approx(COUNTED[collective, mib], rel=0.004)
    assert sent <= COUNTED[collective, mib]


@given(nbytes=st.integers(1, 1 << 28), n=st.integers(1, 64), itemsize=st.sampled_from([1, 2, 4, 8]))
def test_segments_hold_the_array(nbytes: int, n: int, itemsize: int) -> None:
    nbytes = nbytes // itemsize * itemsize or itemsize
    sizes, each = segments(nbytes, n, itemsize)
    assert sizes.sum() == nbytes
    assert sizes.size == n * each
    assert each >= 2
    assert sizes.max() <= 1 << 20
    assert (np.diff(sizes) <= 0).all()
    assert (sizes % itemsize == 0).all()


def test_a_collective_that_gloo_lacks_is_an_error() -> None:
    with pytest.raises(ScheduleError, match="gloo has no barrier"):
        gloo_schedule("barrier", 4, 64)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("collective", ["all_to_all", "all_to_all_v"])
def test_two_ranks_exchange_blocks_one_after_the_other(collective: str, n: int) -> None:
    found = gloo_schedule(collective, n, 4 * n * n)
    pairs = list(zip(found.src.tolist(), found.dst.tolist(), strict=True))
    waits = {(pairs[a], pairs[b]) for a, b in found.after.tolist()}
    assert len(waits) == n * (n - 1) // 2  # every pair of ranks once
    assert all(first == second[::-1] for first, second in waits)
    assert all(a > b for (a, b), _ in waits)  # who calls last sends first


@given(
    st.sampled_from(
        [
            "all_reduce",
            "reduce_scatter",
            "reduce",
            "all_gather",
            "broadcast",
            "all_to_all",
            "all_to_all_v",
            "gather",
            "scatter",
            "send_recv",
        ]
    ),
    st.integers(2, 8),
    st.integers(0, 1 << 20),
)
def test_messages_are_counted_without_being_built(collective: str, n: int, elements: int) -> None:
    """At least as many and as large as there are, and no more than a few times as many."""
    nbytes = 4 * n * n * elements
    schedule = gloo_schedule(collective, n, nbytes)
    rows, largest = messages(collective, n, nbytes)
    assert schedule.rows <= rows <= 2 * schedule.rows + 2 * n * n
    assert schedule.payload_bytes().max(initial=0) <= largest <= nbytes + 4
