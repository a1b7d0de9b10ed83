from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.generation.batch import Batch
from commsim.generation.step_table import StepTable, rounded, steps_done


@dataclass(frozen=True)
class Parts:
    total_s: float
    products_s: float
    attention_s: float


def model(batch: Batch) -> Parts:
    products, attention = 1e-3 + 1e-6 * (batch.sequences + batch.prompt_tokens), 1e-9 * batch.sequences * batch.cached
    attention += 1e-9 * batch.prompt_tokens * batch.prompt_cached
    return Parts(products + attention, products, attention)


@given(st.integers(1, 4000), st.floats(0, 1e5))
def test_what_is_linear_in_the_cache_is_read_exactly(sequences: int, cached: float) -> None:
    table = StepTable(model)
    exact = model(Batch(rounded(sequences), cached))
    assert table.decode(sequences, cached) == pytest.approx([exact.total_s, exact.products_s, exact.attention_s])
    assert table.parts == ("products", "attention")
    assert rounded(sequences) == pytest.approx(sequences, rel=1 / 128)


@given(st.integers(0, 128), st.floats(0, 1e5), st.integers(1, 128), st.floats(0, 1e5))
def test_a_step_with_prompts_is_the_models(sequences: int, cached: float, tokens: int, before: float) -> None:
    batch = Batch(sequences, cached if sequences else 0.0, tokens, 1, before)
    assert StepTable(model).mixed(batch)[0] == pytest.approx(model(batch).total_s)


def test_a_batch_is_asked_once() -> None:
    table = StepTable(model)
    for more in range(100):
        table.decode(64, 1024 + more)
    assert table.asked == 2


@given(st.floats(1e-4, 1.0), st.floats(0, 1e-2), st.integers(1, 200))
def test_steps_are_counted_by_their_time(first: float, more: float, steps: int) -> None:
    spent = steps * first + more * steps * (steps - 1) / 2
    assert steps_done(first, more, spent * (1 - 1e-6)) == steps
