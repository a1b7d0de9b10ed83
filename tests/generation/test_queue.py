from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_generation import naive_run

from commsim.errors import InfeasibleError
from commsim.generation.batch import Batch
from commsim.generation.policy import Policy, policy_of
from commsim.generation.queue import EnginePool, simulate, simulate_split
from commsim.generation.replica import SERVING, Engine, Replica, ServingFramework
from commsim.generation.requests import Lengths, Requests, drawn
from commsim.generation.run_result import RunResult
from commsim.generation.scheduler import CacheRoom
from commsim.generation.step import StepModel
from commsim.training.accelerator import accelerator
from commsim.training.model import model

ROOM = CacheRoom(1e9)
FRAMEWORKS = {
    name: policy_of(Replica(model("llama-3-8b"), accelerator("H100"), Engine(name), tp=2)) for name in SERVING
}
BASE, EACH, CACHED, READ = 8e-3, 1e-5, 1e-8, 5e-5


def linear(batch: Batch) -> float:
    """A step in which all that grows does so in proportion."""
    own = batch.sequences * (EACH + CACHED * batch.cached)
    return BASE + own + batch.prompt_tokens * READ + CACHED * batch.prompt_sequences * batch.prompt_cached


def test_one_wave_of_a_closed_loop_has_a_closed_form() -> None:
    clients, prompt, answer, waves = 16, 256, 100, 3
    run = simulate(linear, ROOM, drawn(prompt, answer, clients * waves).closed(clients))
    first = BASE + clients * prompt * READ
    cached = sum(prompt + j for j in range(answer - 1))
    decode = (answer - 1) * (BASE + clients * EACH) + CACHED * clients * cached
    assert run.ttft == pytest.approx(np.full(run.count, first))
    assert run.tpot == pytest.approx(np.full(run.count, decode / (answer - 1)))
    assert run.duration_s == pytest.approx(waves * (first + decode))
    assert run.output_tokens_per_s == pytest.approx(clients * answer / (first + decode))


def test_a_prompt_longer_than_the_budget_is_read_in_chunks() -> None:
    run = simulate(linear, ROOM, drawn(2500, 2, 1), Policy(token_budget=1024))
    before = CACHED * (1024 + 2048)
    assert run.ttft_s == pytest.approx(3 * BASE + 2500 * READ + before, rel=1e-3)  # 452 of 2500 tokens are rounded


def exact(batch: Batch) -> float:
    """A step whose seconds lie on straight lines between what the table asks for."""
    return linear(replace(batch, prompt_cached=0.0))


lengths = st.lists(st.tuples(st.integers(1, 120), st.integers(1, 60)), min_size=1, max_size=25)
policies = st.builds(Policy, token_budget=st.integers(30, 128), most_sequences=st.integers(1, 30), mixed=st.booleans())


@settings(max_examples=60, deadline=None)
@given(lengths, policies, st.integers(1, 12))
def test_a_closed_loop_is_what_one_step_after_the_other_makes(
    tokens: list[tuple[int, int]], policy: Policy, clients: int
) -> None:
    _same_as_naive(_requests(tokens).closed(clients), policy)


@settings(max_examples=60, deadline=None)
@given(lengths, policies, st.floats(1.0, 200.0))
def test_an_open_queue_is_what_one_step_after_the_other_makes(
    tokens: list[tuple[int, int]], policy: Policy, rate: float
) -> None:
    _same_as_naive(_requests(tokens).poisson(rate), policy)


def _requests(tokens: list[tuple[int, int]]) -> Requests:
    prompt, answer = np.array(tokens, np.int64).T
    return Requests(prompt, answer)


def _same_as_naive(requests: Requests, policy: Policy) -> None:
    run = simulate(exact, ROOM, requests, policy)
    naive = naive_run(exact, requests, policy)
    for ours, theirs in zip((run.arrival_s, run.first_s, run.end_s), naive, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(
    lengths,
    st.sampled_from(list(FRAMEWORKS)),
    st.integers(200, 2000),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_every_token_is_made_once_whatever_is_preempted(
    tokens: list[tuple[int, int]], framework: ServingFramework, room: int, clients: int, replicas: int
) -> None:
    requests = _requests(tokens).closed(clients)
    run = simulate(linear, CacheRoom(room), requests, FRAMEWORKS[framework], replicas)
    assert run.steps[0].tokens == requests.answer.sum()
    assert (run.first_s > run.arrival_s).all()
    assert (run.end_s >= run.first_s).all()
    assert run.steps[0].cached.max() <= room
    alone = [simulate(linear, ROOM, _requests([pair])) for pair in tokens]
    assert (run.ttft >= 0.99 * np.array([one.ttft_s for one in alone])).all()
    assert (run.latency >= 0.99 * np.array([one.latency[0] for one in alone])).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100), st.integers(2, 60), st.integers(1, 20), st.integers(1, 4))
def test_more_clients_make_more_tokens_a_second_up_to_the_bound(
    prompt: int, answer: int, clients: int, replicas: int
) -> None:
    few, many = (
        simulate(linear, ROOM, drawn(prompt, answer, 8 * n).closed(n), Policy(), replicas)
        for n in (clients, 2 * clients)
    )
    assert many.output_tokens_per_s >= few.output_tokens_per_s * (1 - 1e-9)
    assert many.output_tokens_per_s <= replicas / (EACH + prompt / answer * READ)


def test_rare_requests_do_not_wait() -> None:
    requests = replace(drawn(100, 10, 50), arrival_s=10.0 * np.arange(50, dtype=np.float64))
    run = simulate(linear, ROOM, requests)
    assert run.ttft == pytest.approx(np.full(50, BASE + 100 * READ))


def test_a_full_cache_preempts_the_last_and_reserved_answers_do_not() -> None:
    requests = drawn(100, 100, 40).closed(20)
    tight = CacheRoom(2500)
    preempted = simulate(linear, tight, requests)
    reserved = simulate(linear, tight, requests, Policy(reserve_answer=True))
    assert preempted.preemptions > 0
    assert reserved.preemptions == 0
    assert reserved.steps[0].mean_sequences <= 12.5
    assert simulate(linear, ROOM, requests).duration_s < min(preempted.duration_s, reserved.duration_s)


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"found a request of 200 tokens.*expected at most 150"):
        simulate(linear, CacheRoom(150), drawn(100, 100, 1))


def test_a_static_batch_lasts_as_long_as_its_longest_answer() -> None:
    run = simulate(lambda _: 1.0, ROOM, _requests([(10, 2), (20, 5), (10, 3)]).at_once(), Policy(static=True))
    assert run.first_s.tolist() == [1.0] * 3
    assert run.end_s.tolist() == [2.0, 5.0, 3.0]
    assert run.steps[0].sequences.tolist()[1:] == [3, 3, 3]
    next_one = simulate(lambda _: 1.0, ROOM, _requests([(10, 2), (20, 5), (10, 3)]).closed(2), Policy(static=True))
    assert next_one.first_s[2] == 6.0


def test_ranks_of_attention_wait_for_the_one_that_reads_most() -> None:
    asked: list[Batch] = []

    def model(batch: Batch) -> float:
        asked.append(batch)
        return 1.0

    simulate(model, ROOM, drawn(64, 2, 5).at_once(), Policy(ranks=4))
    assert (asked[0].prompt_tokens, asked[0].prompt_sequences, asked[0].prompt_groups) == (5 * 64, 5, 2.5)


def test_long_tails_leave_few_sequences_at_the_end() -> None:
    run = simulate(linear, ROOM, drawn(100, Lengths(500, cv=1.0, most=4000), 64).at_once())
    steps = run.steps[0]
    assert steps.sequences[-1] == 1
    assert steps.sequences.max() == 64
    assert run.duration_s > 2 * run.latency.mean()


# -- prefill and decode apart ---------------------------------


def _split(requests: Requests, seconds: float, readers: int = 1, decoders: int = 1) -> RunResult:
    def send(env, reader, decoder, tokens):  # type: ignore[no-untyped-def]
        del reader, decoder, tokens
        yield env.timeout(seconds)

    reader, decoder = (EnginePool(linear, CacheRoom(5000), Policy(), many) for many in (readers, decoders))
    return simulate_split(reader, decoder, send, requests)


def test_a_cache_is_on_its_way_between_the_first_two_tokens() -> None:
    requests = drawn(100, 11, 1)
    near, far = _split(requests, 0.0), _split(requests, 0.5)
    assert near.ttft_s == far.ttft_s == pytest.approx(BASE + 100 * READ)
    assert far.tpot_s - near.tpot_s == pytest.approx(0.05)
    assert far.sent_s.tolist() == [0.5]
    one_pool = simulate(linear, ROOM, requests)
    assert near.tpot_s == pytest.approx(one_pool.tpot_s)


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 20), st.integers(1, 3), st.integers(1, 3))
def test_apart_every_token_is_made_once_and_prompts_do_not_slow_answers(
    tokens: list[tuple[int, int]], clients: int, readers: int, decoders: int
) -> None:
    requests = _requests(tokens).closed(clients)
    run = _split(requests, 0.001, readers, decoders)
    assert sum(pool.tokens for pool in run.steps) == requests.answer.sum()
    assert run.steps[0].sequences.max() == 0
    assert np.isfinite(run.end_s).all()


def test_a_decode_pool_without_room_lets_the_prefill_pool_wait() -> None:
    def send(env, reader, decoder, tokens):  # type: ignore[no-untyped-def]
        del reader, decoder, tokens
        yield env.timeout(0.0)

    requests = drawn(100, 50, 30).at_once()
    small = simulate_split(EnginePool(linear, CacheRoom(1000)), EnginePool(linear, CacheRoom(300)), send, requests)
    large = simulate_split(EnginePool(linear, CacheRoom(1000)), EnginePool(linear, CacheRoom(30_000)), send, requests)
    assert small.ttft_s > 5 * large.ttft_s
    assert sum(pool.tokens for pool in small.steps) == requests.answer.sum()


def test_a_server_prepares_requests_of_a_closed_loop_beside_the_ones_before() -> None:
    requests = drawn(100, 11, 6).closed(2)
    at_once, later = (simulate(linear, ROOM, requests, Policy(before_s=s)) for s in (0.0, 0.25))
    assert later.ttft == pytest.approx(at_once.ttft + 0.25)
    assert later.tpot == pytest.approx(at_once.tpot)
    assert later.duration_s == pytest.approx(at_once.duration_s + 0.25)
    assert later.arrival_s.min() == 0.0


def test_an_engine_that_looks_every_so_many_steps_lets_requests_wait_for_its_next_look() -> None:
    requests = drawn(100, Lengths(200, 0.5), 40).closed(8)
    often, seldom = (simulate(linear, ROOM, requests, Policy(intake_steps=n)) for n in (1, 30))
    assert seldom.ttft_s > 2 * often.ttft_s
    assert seldom.answer.sum() == sum(pool.tokens for pool in seldom.steps)
    alone = drawn(100, 50, 3).closed(1)  # an idle engine looks at once
    first, second = (simulate(linear, ROOM, alone, Policy(intake_steps=n)) for n in (1, 30))
    assert second.ttft == pytest.approx(first.ttft)


@pytest.mark.parametrize("framework", ["vllm", "sglang"])
def test_a_model_read_by_table_is_a_model_asked_at_every_step(framework: ServingFramework) -> None:
    step = StepModel(Replica(model("llama-3-8b"), accelerator("H100"), Engine(framework)))
    policy = replace(policy_of(step.replica), before_s=0.0)
    requests = drawn(Lengths(1500, 0.3), Lengths(60, 0.3), 60).closed(30)
    run = simulate(step.seconds, ROOM, requests, policy)
    arrival, first, end = map(np.array, naive_run(lambda batch: step.seconds(batch).total_s, requests, policy))
    assert run.ttft_s == pytest.approx((first - arrival).mean(), rel=0.01)
    assert run.tpot_s == pytest.approx(((end - first) / (requests.answer - 1)).mean(), rel=0.005)
