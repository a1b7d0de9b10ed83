"""Phases of a step: one after the other, beside each other, and a step ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.rl.step import ENGINES, TRAINER, RlStep, StepPhase

PHASES = (
    StepPhase("rollout", "rollout", 10.0, ENGINES),
    StepPhase("old log probs", "scoring", 3.0),
    StepPhase("reference", "scoring", 2.0, "reference"),
    StepPhase("actor update", "update", 5.0),
    StepPhase("critic update", "update", 6.0, "critic"),
    StepPhase("weights to engines", "sync", 1.0),
)


def test_a_synchronous_step_adds_up() -> None:
    step = RlStep(PHASES)
    assert step.step_s == 10 + 3 + 6 + 1
    assert step.shown() == {
        "rollout": 10.0,
        "old log probs": 3.0,
        "reference": 0.0,
        "actor update": 0.0,
        "critic update": 6.0,
        "weights to engines": 1.0,
    }


@pytest.mark.parametrize(("rollout", "step_s", "shown"), [(10.0, 11.0, 10.0), (4.0, 10.0, 0.0)])
def test_one_step_ahead_the_longer_side_counts(rollout: float, step_s: float, shown: float) -> None:
    step = RlStep((StepPhase("rollout", "rollout", rollout, ENGINES), *PHASES[1:]), behind=True)
    assert step.step_s == step_s
    assert step.shown()["rollout"] == shown
    assert sum(step.shown().values()) == pytest.approx(step.step_s)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rollout", "scoring", "update", "sync", "transfer"]),
            st.floats(0.1, 100),
            st.sampled_from([TRAINER, "critic", "reference"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_shown_parts_add_up(drawn: list[tuple[str, float, str]]) -> None:
    order = ["rollout", "scoring", "update", "sync", "transfer"]
    drawn.sort(key=lambda one: order.index(one[0]))
    phases = tuple(StepPhase(f"{i}", stage, seconds, place) for i, (stage, seconds, place) in enumerate(drawn))
    for behind in (False, True):
        step = RlStep(phases, behind)
        assert sum(step.shown().values()) == pytest.approx(step.step_s)
        assert step.step_s <= sum(p.seconds for p in phases) * (1 + 1e-12)
