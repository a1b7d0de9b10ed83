"""Muon's update: products of Newton-Schulz, what is gathered, and moments, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import stage_weights, step

from commsim.training.memory import software, states, step_memory
from commsim.training.model import model
from commsim.training.muon import Matrix, gathered_bytes, matrices, orthogonalise_seconds
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step, StepPlan
from commsim.training.step_run import step_program
from commsim.training.step_time import optimizer_seconds, step_time
from commsim.training.step_traffic import step_traffic
from commsim.training.work import compute_time, optimizer_time


def _flops(matrix: Matrix) -> float:
    return sum(float(2 * g.m * g.n * g.k) for g in matrix.products)


@given(a=st.integers(1, 9000), b=st.integers(1, 9000))
def test_an_iteration_takes_jordans_flops(a: int, b: int) -> None:
    """2 (2 n m^2 + m^3) with m <= n, Jordan et al. 2024, section on runtime; of a matrix or its transpose."""
    m, n = min(a, b), max(a, b)
    assert _flops(Matrix(a, b, 1)) == 2 * (2 * n * m**2 + m**3) == _flops(Matrix(b, a, 1))


def test_the_overhead_over_a_steps_flops_is_at_most_jordans() -> None:
    """T m / B of a matrix's 6 n m B: with 5 iterations, m = 4096 and 64 x 4096 tokens 7.8 % of a square one."""
    square, tokens = Matrix(4096, 4096, 1), 64 * 4096
    assert 5 * _flops(square) / (6 * 4096**2 * tokens) == pytest.approx(5 * 4096 / tokens)
    wide = Matrix(4096, 14336, 1)
    assert 5 * _flops(wide) / (6 * 4096 * 14336 * tokens) < 5 * 4096 / tokens


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v2", "qwen3-next-80b-a3b"])
def test_matrices_are_all_weights_but_words_and_vectors(name: str) -> None:
    one = step(model=model(name), ep=2 if model(name).moe else 1, dp=2)
    (dense, experts), (weights,) = matrices(one), stage_weights(one)
    elements = [float(sum(m.rows * m.columns * m.count for m in some)) for some in (dense, experts)]
    assert elements[1] == pytest.approx(float(weights.expert))
    assert elements[0] == pytest.approx(float(weights.dense - weights.words), rel=2e-3)  # norms, convolutions


def test_ranks_of_zero_1_do_their_share_and_a_matrix_more() -> None:
    one = step(optimizer="muon", dp=8, zero_stage=1)
    alone, v = replace(one, zero_stage=0), shipped_values()
    dense, _ = matrices(one)
    count, total = sum(float(m.count) for m in dense), float(orthogonalise_seconds(alone, v))
    assert count == 4 * 32
    assert float(orthogonalise_seconds(one, v)) == pytest.approx(total / 8 + total / count)
    sharded = replace(one, zero_stage=3)
    assert float(orthogonalise_seconds(sharded, v)) == pytest.approx(total / 8)


def test_small_experts_are_bound_by_launches() -> None:
    one, v = step(model=model("qwen3-30b-a3b"), optimizer="muon", dp=8, ep=8), shipped_values()
    launched = 48 * (16 * 2 + 3) * 19 * v["host"]
    assert float(orthogonalise_seconds(one, v)) == pytest.approx(launched)


def test_what_is_gathered_by_hand() -> None:
    """ZeRO-1: bf16 of a rank's part and of one matrix more, at most of all, so that traffic is at most 1.25 of AdamW's
    with fp32 gradients and parameters (Moonlight, section 2.3). FSDP: its share there and back."""
    one = step(optimizer="muon", dp=8, zero_stage=1)
    dense, _ = matrices(one)
    elements = sum(float(m.rows * m.columns * m.count) for m in dense)
    count = sum(float(m.count) for m in dense)
    assert [float(n) for n in gathered_bytes(one)] == [pytest.approx(2 * (elements / 8 + elements / count)), 0.0]
    assert float(gathered_bytes(one)[0]) <= 0.25 * 8 * elements
    assert float(gathered_bytes(replace(one, zero_stage=3))[0]) == pytest.approx(4 * elements / 8)
    assert gathered_bytes(replace(one, zero_stage=0)) == (0.0, 0.0)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_moments_are_one_of_matrices_and_two_of_words(zero: int) -> None:
    one = step(optimizer="muon", dp=8, zero_stage=zero)
    (weights,) = stage_weights(one)
    kept = states(one, software(one, "megatron"), weights)["optimizer"]
    master = 4.0
    words = 2 * 128256 * 4096 + 4096
    cut = 8 if zero else 1
    assert kept == pytest.approx(((master + 4) * (float(weights.dense) - words) + (master + 8) * words) / cut)
    adam = step_memory(replace(one, optimizer="adamw")).peak
    assert step_memory(one).peak < adam


@pytest.mark.parametrize("changes", [{"zero_stage": 1}, {"zero_stage": 3}, {"pp": 2, "zero_stage": 1, "dp": 4}])
def test_simulation_and_closed_form_agree_on_the_update(changes: dict[str, int]) -> None:
    one, v = step(**{"optimizer": "muon", "dp": 8, **changes}), shipped_values()
    assert optimizer_time(one, v)[0] == float(optimizer_seconds(one, v))

    def run(of: Step) -> float:
        update, plan = optimizer_time(of, v), StepPlan(values=v)
        program = step_program(of, compute_time(of, v), lambda *call: call[1] / 400e9, optimizer_s=update, plan=plan)
        return program.run().step_s

    adam = replace(one, optimizer="adamw")
    simulated, closed = run(one) - run(adam), float(step_time(one, v).total - step_time(adam, v).total)
    assert simulated == pytest.approx(closed, rel=0.1)


def test_traffic_counts_momenta() -> None:
    one = step(optimizer="muon", dp=8, zero_stage=1)
    more = step_traffic(one, StepPlan())[0]["dp"] - step_traffic(replace(one, optimizer="adam"), StepPlan())[0]["dp"]
    assert more == pytest.approx(float(gathered_bytes(one)[0]) * 7 / 8)


def test_a_table_takes_the_time_of_each() -> None:
    v = shipped_values()
    one = step(optimizer="muon", model=model("mixtral-8x7b"), dp=4, zero_stage=1)
    columns: dict[str, Any] = {"tp": np.array([1, 2]), "zero_stage": np.array([0, 1]), "pp": np.array([1, 1])}
    table = replace(one, **columns)
    each = [step_time(replace(one, tp=tp, zero_stage=zero), v).total for tp, zero in ((1, 0), (2, 1))]
    assert step_time(table, v).total == pytest.approx(each)
