"""Schedules on arrays: by hand, against the reference, and what goes wrong."""

from typing import Any

import numpy as np
import pytest

from commsim.collectives.chain import chain_broadcast
from commsim.collectives.execute import block_bounds, execute, reference, verify
from commsim.collectives.pairwise import pairwise_all_to_all_v
from commsim.collectives.registry import build
from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Schedule
from commsim.collectives.semantics import COLLECTIVES
from commsim.errors import ScheduleError

NOTHING = np.iinfo(np.int32).min


def numbers(n: int, elements: int) -> Any:
    """Rank r has 100 r, 100 r + 1, ..."""
    return np.arange(n)[:, None].astype(np.int32) * 100 + np.arange(elements, dtype=np.int32)


def test_a_reduce_scatter_leaves_the_sum_in_the_own_block() -> None:
    got = execute(ring_reduce_scatter(3, 12, itemsize=4), numbers(3, 3))
    assert np.diag(got).tolist() == [300, 303, 306]


def test_places_that_nobody_wrote_say_so() -> None:
    s = ring_all_gather(2, 8, itemsize=4).take(np.array([0]))
    assert execute(s, numbers(2, 2)).tolist() in ([[0, NOTHING], [0, 101]], [[0, 101], [NOTHING, 101]])
    assert np.isnan(execute(s, numbers(2, 2).astype(np.float32))).sum() == 1


def test_rows_of_a_step_read_the_state_before_it() -> None:
    assert execute(build("all_reduce", "direct_one_shot", 3, 4), numbers(3, 1)).tolist() == [[300]] * 3


def test_max_starts_switches_with_the_smallest_number() -> None:
    s = build("all_reduce", "parameter_server", 3, 4, itemsize=4)
    assert execute(s, -1 - numbers(3, 1), "max").tolist() == [[-1]] * 3
    assert execute(s, (-1 - numbers(3, 1)).astype(np.float32), "max").tolist() == [[-1]] * 3


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ("all_reduce", [[100, 102], [100, 102]]),
        ("reduce", [[None, None], [100, 102]]),
        ("reduce_scatter", [[100, None], [None, 102]]),
        ("all_gather", [[0, 101], [0, 101]]),
        ("gather", [[None, None], [0, 101]]),
        ("broadcast", [[100, 101], [100, 101]]),
        ("scatter", [[100, None], [None, 101]]),
        ("all_to_all", [[0, 100], [1, 101]]),
        ("send_recv", [[100, 101], [0, 1]]),
    ],
)
def test_the_reference_by_hand(collective: str, expected: list[list[int | None]]) -> None:
    values, defined = reference(collective, numbers(2, 2), root=1)
    shown = [[int(v) if d else None for v, d in zip(*row, strict=True)] for row in zip(values, defined, strict=True)]
    assert shown == expected


def test_the_reference_of_all_to_all_v_by_hand() -> None:
    # Rank 0 sends one element to itself and two to rank 1; rank 1 sends three to rank 0 and none to itself.
    values, defined = reference("all_to_all_v", numbers(2, 6), bounds=[0, 1, 3, 6, 6])
    assert values[0][defined[0]].tolist() == [0, 103, 104, 105]
    assert values[1][defined[1]].tolist() == [1, 2]


def test_every_collective_has_a_reference() -> None:
    for name in COLLECTIVES:
        values, defined = reference(name, numbers(4, 16), "max" if name == "barrier" else "sum")
        assert values.shape == defined.shape == (4, 16)


@pytest.mark.parametrize("seed", range(5))
def test_all_to_all_v_with_random_counts(seed: int) -> None:
    source = np.random.default_rng(seed)
    n = int(source.integers(1, 7))
    counts = source.integers(0, 5, (n, n))
    total = int(counts.sum())
    s = pairwise_all_to_all_v(n, total * 8, counts=counts, itemsize=8)
    verify(s, source.normal(size=(n, total)))
    off = counts - np.diag(np.diag(counts))
    assert s.sent_bytes().tolist() == (off.sum(axis=1) * 8).tolist()
    assert s.received_bytes().tolist() == (off.sum(axis=0) * 8).tolist()
    assert block_bounds(s, 8)[-1] == total


def test_a_wrong_schedule_is_named_with_rank_and_element() -> None:
    s = ring_all_reduce(3, 12, itemsize=4)
    cut = s.take(np.arange(s.rows - 1))
    with pytest.raises(ScheduleError, match=r"ring all_reduce \(sum\): rank \d has .* at element \d, expected 30"):
        verify(cut, numbers(3, 3))


def test_sums_of_floats_may_differ_by_their_rounding_and_by_no_more() -> None:
    inputs = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32) * 1e6
    verify(ring_all_reduce(16, 256, itemsize=4), inputs)
    s = chain_broadcast(16, 256, itemsize=4)
    verify(s, inputs)
    assert (execute(s, inputs) == inputs[0]).all()


def other(change: dict[str, Any]) -> tuple[Schedule, Any, Any]:
    usual: dict[str, Any] = {"schedule": ring_all_reduce(2, 8), "inputs": numbers(2, 2), "op": "sum"}
    chosen = usual | change
    return chosen["schedule"], chosen["inputs"], chosen["op"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": np.zeros((2, 4), np.float16)}, "inputs are float16, expected float32"),
        ({"inputs": numbers(3, 2)}, "do not fit 2 ranks with 8 bytes each"),
        ({"inputs": numbers(2, 3)}, "do not fit 2 ranks with 8 bytes each"),
        ({"schedule": ring_all_reduce(2, 8, 3)}, "no whole elements of int32"),
        ({"op": "mean"}, "reduction is 'mean', expected one of sum, max"),
        ({"schedule": build("barrier", "flat", 2, 8)}, "run it with max"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        execute(*other(change))
