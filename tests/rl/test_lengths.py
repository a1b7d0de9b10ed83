"""Lengths of answers: the mean after the longest were cut, answers to one prompt, and who gets which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import ScenarioError
from commsim.generation.requests import Lengths
from commsim.rl.lengths import asked, capped_mean, lengths_of


@given(share=st.floats(0.05, 0.98), cv=st.floats(0.2, 2.0), most=st.integers(64, 32_768))
def test_the_mean_is_that_of_answers_that_were_cut(share: float, cv: float, most: int) -> None:
    mean = max(1.0, share * most)
    lengths = lengths_of(mean, most, cv)
    assert capped_mean(lengths.tokens, cv, most) == pytest.approx(mean, rel=0.05, abs=1.0)


def test_drawn_answers_have_the_mean() -> None:
    drawn = lengths_of(900, 4096).draw(100_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(900, rel=0.01)
    assert drawn.max() == 4096


@pytest.mark.parametrize(("mean", "cv"), [(256, 0.7), (200, 0.0)])
def test_answers_without_a_tail_are_alike(mean: float, cv: float) -> None:
    assert lengths_of(mean, 256, cv).cv == 0.0


def test_a_mean_above_the_limit_is_refused() -> None:
    with pytest.raises(ScenarioError, match="found a mean of 300 tokens, expected 1 to the most tokens, 256"):
        lengths_of(300, 256)


def test_blocks_keep_the_samples_of_a_prompt_on_an_engine() -> None:
    """With all of the spread between prompts, an engine that gets a block has answers of one length."""
    engines = 4
    of_blocks = asked(10, lengths_of(500, 8192, 1.0), engines, 8, blocks=engines, alike=1.0)
    each = of_blocks.answer.reshape(-1, engines)
    assert (each == each[0]).all()
    in_turns = asked(10, lengths_of(500, 8192, 1.0), engines, 8, alike=1.0).answer
    assert sorted(in_turns.tolist()) == sorted(of_blocks.answer.tolist())
    assert (in_turns.reshape(-1, engines) != in_turns[:engines]).any()


@given(prompts=st.integers(1, 20), samples=st.integers(1, 5), blocks=st.integers(0, 7))
def test_every_sample_is_asked_once(prompts: int, samples: int, blocks: int) -> None:
    requests = asked(7, Lengths(30, cv=0.5), prompts, samples, blocks=blocks)
    assert requests.count == prompts * samples
    assert (requests.prompt == 7).all()
