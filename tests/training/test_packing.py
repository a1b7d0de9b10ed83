"""Documents packed into sequences, by hand and by drawing them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import step

from commsim.errors import ScenarioError
from commsim.training.operators import dense_layer
from commsim.training.packing import attended_length, busiest, expected_maximum
from commsim.training.parameters import shipped_values
from commsim.training.step_time import step_time
from commsim.training.utilisation import attention_flops, model_flops


def test_attention_of_packed_documents_by_hand() -> None:
    """4096 tokens as 3 x 1024 and 2 x 512: sum l (l + 1) / 2 scores of each head."""
    one = step(packed=(1024, 1024, 1024, 512, 512), dp=1)
    scores = sum(n * (n + 1) / 2 for n in one.packed)
    core = dense_layer(replace(one, packed=one.packed, dp=1)).attention
    assert float(core.flops) == pytest.approx(2 * scores * 32 * 256)
    assert float(core.keys) == sum(n * n for n in one.packed) / 4096
    assert float(core.nbytes) == float(dense_layer(step()).attention.nbytes)


@given(length=st.integers(1, 4096), dp=st.sampled_from([1, 8, 64]))
def test_documents_of_one_length_leave_no_replica_behind(length: int, dp: int) -> None:
    assert attended_length((length,)) == length
    assert float(busiest((length,), 4096.0, dp)) == 1.0
    whole, packed = (step_time(step(dp=dp, packed=p), shipped_values()).total for p in ((), (4096,)))
    assert packed == pytest.approx(whole)


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_the_busiest_replica_is_that_of_documents_drawn_at_random(ranks: int) -> None:
    """Each replica gets 512 Ki tokens of documents between 64 and 8192, as often as each comes."""
    lengths, tokens = (64, 256, 1024, 1024, 4096, 8192), 2**19
    random = np.random.default_rng(1)
    drawn = random.choice(lengths, size=(150, ranks, 2 * tokens // 2442))
    inside = drawn.cumsum(axis=2) <= tokens
    work = (drawn.astype(float) ** 2 * inside).sum(axis=2) / (drawn * inside).sum(axis=2)
    assert float(busiest(lengths, tokens, ranks)) == pytest.approx(work.max(axis=1).mean() / work.mean(), rel=0.01)


@pytest.mark.parametrize(("count", "expected"), [(1, 0.0), (2, np.pi**-0.5), (4, 1.02938), (1024, 3.2447)])
def test_the_largest_of_normal_numbers(count: int, expected: float) -> None:
    """Harter 1961, table 1; of two 1 / sqrt(pi)."""
    assert float(expected_maximum(count)) == pytest.approx(expected, abs=4e-3)


def test_replicas_that_meet_in_every_micro_batch_wait_longer() -> None:
    one = step(packed=(512, 1024), dp=8)
    sharded = replace(one, zero_stage=3)
    assert one.num_microbatches == 8
    assert sharded.busiest_attention - 1 == pytest.approx((one.busiest_attention - 1) * 8**0.5)


@given(lengths=st.lists(st.integers(1, 4096), min_size=1, max_size=40), dp=st.sampled_from([1, 8, 512]))
def test_no_replica_has_more_than_whole_sequences(lengths: list[int], dp: int) -> None:
    one = step(packed=tuple(lengths), dp=dp, global_batch_size=dp, zero_stage=3)
    assert 1 <= float(one.busiest_attention) * attended_length(lengths) <= 4096 * (1 + 1e-12) + attended_length(lengths)
    assert float(one.busiest_attention) <= max(1.0, 4096 / attended_length(lengths))


def test_flops_of_a_step_count_documents() -> None:
    one, lengths = step(), (512, 2048)
    fewer = model_flops(one) - model_flops(replace(one, packed=lengths))
    short = attended_length(lengths)
    assert fewer == pytest.approx(
        3 * one.tokens * 32 * (attention_flops(one.model, 4096) - attention_flops(one.model, short))
    )


def test_documents_are_no_longer_than_the_sequence() -> None:
    with pytest.raises(ScenarioError, match="packed = 5000, expected lengths up to seq_len = 4096"):
        step(packed=(100, 5000))
