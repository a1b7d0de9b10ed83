"""Swaps with partners: recursive doubling and halving, Rabenseifner, Swing, and the folding of other rank counts."""

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.recursive import (
    doubling_partners,
    fold,
    rabenseifner_all_reduce,
    recursive_doubling_all_gather,
    recursive_doubling_all_reduce,
    recursive_halving_reduce_scatter,
    swap_reduce_scatter,
)
from commsim.collectives.swing import (
    swing_all_gather,
    swing_all_reduce,
    swing_latency_all_reduce,
    swing_partners,
    swing_reduce_scatter,
)
from commsim.errors import ScheduleError


def test_six_ranks_fold_two_into_their_neighbours() -> None:
    folded = fold(6)
    assert (folded.active.tolist(), folded.extra.tolist()) == ([1, 3, 4, 5], [0, 2])
    assert fold(8).extra.size == 0


@pytest.mark.parametrize("partners", [doubling_partners, swing_partners])
@pytest.mark.parametrize("p", [1, 2, 4, 8, 16, 32, 64])
def test_partners_swap_and_reach_everybody_once(partners: object, p: int) -> None:
    table = partners(p)  # type: ignore[operator]
    reached = np.eye(p, dtype=np.int64)
    for partner in table:
        assert np.array_equal(partner[partner], np.arange(p))
        assert (partner != np.arange(p)).all()
        reached = reached + reached[partner]
    assert (reached == 1).all()


def test_swing_partners_lie_a_third_nearer_than_those_of_doubling() -> None:
    ranks = np.arange(64)

    def hops(partners: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[int]:
        apart = (partners - ranks) % 64
        return np.minimum(apart, 64 - apart).max(axis=1).tolist()  # type: ignore[no-any-return]

    assert hops(swing_partners(64)) == [1, 1, 3, 5, 11, 21]
    assert hops(doubling_partners(64)) == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(
    ("build", "steps_of_8", "steps_of_11"),
    [
        (recursive_doubling_all_reduce, 3, 5),
        (rabenseifner_all_reduce, 6, 8),
        (recursive_halving_reduce_scatter, 3, 5),
        (recursive_doubling_all_gather, 3, 5),
        (swing_all_reduce, 6, 8),
        (swing_latency_all_reduce, 3, 5),
        (swing_reduce_scatter, 3, 5),
        (swing_all_gather, 3, 5),
    ],
)
def test_steps_are_log2_and_two_more_when_ranks_are_folded(build: object, steps_of_8: int, steps_of_11: int) -> None:
    for n, steps in ((8, steps_of_8), (11, steps_of_11), (1, 0)):
        s = build(n, 1001)  # type: ignore[operator]
        check(s)
        assert s.steps == steps


def test_recursive_halving_of_four_by_hand() -> None:
    s = recursive_halving_reduce_scatter(4, 4)
    rank_0 = sorted(zip(*(c[s.src == 0].tolist() for c in (s.step, s.dst, s.src_chunk)), strict=True))
    assert rank_0 == [(0, 2, 2), (0, 2, 3), (1, 1, 1)]


def test_the_farthest_partner_gets_half_of_the_array_and_swing_gives_it_to_the_nearest() -> None:
    halving, swing = recursive_halving_reduce_scatter(16, 1600), swing_reduce_scatter(16, 1600)
    apart = [np.minimum((s.dst - s.src) % 16, (s.src - s.dst) % 16) for s in (halving, swing)]
    assert (apart[0][halving.step == 0] == 8).all()
    assert (apart[1][swing.step == 0] == 1).all()
    assert (halving.step == 0).sum() == (swing.step == 0).sum() == 16 * 8


def test_partners_whose_blocks_overlap_are_caught_by_the_checker() -> None:
    same = np.array([[1, 0, 3, 2], [1, 0, 3, 2]])
    with pytest.raises(ScheduleError, match=r"already holds rank|without rank"):
        check(swap_reduce_scatter("wrong", lambda _: same, 4, 16))
