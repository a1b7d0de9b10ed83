"""Algorithms by shifts: Bruck, PAT, and direct exchange."""

import numpy as np
import pytest

from commsim.collectives.bruck import bruck_all_gather, bruck_all_to_all, bruck_reduce_scatter
from commsim.collectives.check import check
from commsim.collectives.direct import direct_send_recv, one_shot_all_reduce, two_shot_all_reduce
from commsim.collectives.pat import pat_aggregation, pat_all_gather, pat_reduce_scatter
from commsim.errors import ScheduleError


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 40])
def test_bruck_takes_ceil_log2_steps_for_any_rank_count(n: int) -> None:
    for build in (bruck_all_gather, bruck_reduce_scatter):
        assert build(n, 10 * n).steps == (n - 1).bit_length()
    assert bruck_all_to_all(n, 10 * n).steps == max((n - 1).bit_length(), 1)


def test_bruck_all_gather_of_five_by_hand() -> None:
    s = bruck_all_gather(5, 5)
    rank_0 = sorted(zip(*(c[s.src == 0].tolist() for c in (s.step, s.dst, s.src_chunk)), strict=True))
    assert rank_0 == [(0, 4, 0), (1, 3, 0), (1, 3, 1), (2, 1, 0)]


def test_bruck_all_to_all_sends_one_message_per_step() -> None:
    s = bruck_all_to_all(11, 110)
    moves = s.src != s.dst
    apart = (s.dst - s.src) % 11
    assert all(set(apart[moves & (s.step == t)].tolist()) == {1 << t} for t in range(4))


def pat_rounds(n: int, aggregation: int) -> list[list[int]]:
    """Distances of the blocks that rank 0 gets in each round."""
    s = pat_all_gather(n, n, aggregation)
    return [sorted(((-s.src_chunk[(s.step == t) & (s.dst == 0)]) % n).tolist()) for t in range(s.steps)]


def test_pat_rounds_by_hand() -> None:
    assert pat_rounds(8, 4) == [[4], [2, 6], [1, 3, 5, 7]]
    assert pat_rounds(8, 2) == [[4], [1, 5], [2, 6], [3, 7]]
    assert pat_rounds(8, 1) == [[1], [2], [3], [4], [5], [6], [7]]
    assert pat_rounds(6, 2) == [[4], [1, 5], [2], [3]]


@pytest.mark.parametrize("n", [1, 2, 3, 6, 16, 23, 33])
def test_pat_is_correct_with_every_aggregation_and_sends_one_message_per_round(n: int) -> None:
    power = 1 << (n - 1).bit_length()
    for factor in (1 << k for k in range(max(power.bit_length() - 1, 1))):
        forth, down = pat_all_gather(n, 3 * n + 1, factor), pat_reduce_scatter(n, 3 * n + 1, factor)
        check(forth)
        check(down)
        assert forth.steps == factor.bit_length() - 1 + min(power // factor, n) - 1
        pairs = np.unique(np.stack([forth.step, forth.src, forth.dst], axis=1), axis=0)
        assert len(pairs) == len(np.unique(pairs[:, :2], axis=0))


@pytest.mark.parametrize(
    ("n", "block", "factor"), [(2, 8, 1), (8, 8, 4), (64, 1 << 20, 8), (64, 1 << 18, 16), (64, 0, 32), (1, 8, 1)]
)
def test_pat_aggregation_follows_nccls_rule(n: int, block: int, factor: int) -> None:
    assert pat_aggregation(n, block) == factor


@pytest.mark.parametrize("factor", [0, 3, 8])
def test_impossible_aggregations_are_refused(factor: int) -> None:
    with pytest.raises(ScheduleError, match=f"aggregation is {factor}, expected a power of two up to 4"):
        pat_all_gather(8, 64, factor)


def test_direct_forms_take_one_or_two_steps() -> None:
    assert one_shot_all_reduce(5, 50).steps == 1
    assert two_shot_all_reduce(5, 50).steps == 2
    assert direct_send_recv(1, 50).rows == 0
    assert direct_send_recv(4, 50).dst.tolist() == [1, 2, 3, 0]
