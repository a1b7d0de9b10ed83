"""Items 'generation:': what they answer, and what is refused where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commsim as cs
from commsim.errors import CommsimError, InfeasibleError, ScenarioError
from commsim.generation.queue import simulate
from commsim.generation.replica import Replica
from commsim.generation.requests import drawn
from commsim.generation.room import room_of
from commsim.generation.step import StepModel
from commsim.scenario.generation import GenerationSpec
from commsim.scenario.generation_result import CAUSES, GenerationItem
from commsim.scenario.load import load_scenarios, resolved_yaml
from commsim.training.accelerator import accelerator
from commsim.training.model import model

ITEM: dict[str, Any] = {"model": "llama-3-8b", "mesh": {"tp": 2}, "prompt": 512, "answer": 64, "batch": 8}


def _file(folder: Path, nodes: int = 1, machine: str = "hgx-h100-ndr400", **changes: Any) -> Path:
    item = {key: value for key, value in (ITEM | changes).items() if value is not None}
    scenario = {
        "name": "serve",
        "topology": {"preset": machine, "nodes": nodes},
        "library": {"name": "nccl", "version": "2.27.5"},
        "workload": [{"generation": item}],
    }
    path = folder / "serve.yaml"
    path.write_text(json.dumps(scenario))
    return path


def _run(folder: Path, nodes: int = 1, **changes: Any) -> GenerationItem:
    (item,) = cs.run(_file(folder, nodes, **changes)).answers
    assert isinstance(item, GenerationItem)
    return item


def test_replicas_share_the_clients_and_the_machine(tmp_path: Path) -> None:
    one, four = _run(tmp_path, mesh={"tp": 8}), _run(tmp_path)
    assert (one.replicas, one.clients, one.run.count) == (1, 8, 80)
    assert (four.replicas, four.clients, four.run.count) == (4, 32, 320)
    assert four.tokens_per_s_per_gpu > one.tokens_per_s_per_gpu  # fewer ranks wait less for each other
    assert four.run.tpot_s > one.run.tpot_s
    assert _run(tmp_path, concurrency=32, batch=None).run.tpot_s == pytest.approx(four.run.tpot_s)


def test_a_machine_and_the_shipped_one_of_its_gpus_take_the_same_time(tmp_path: Path) -> None:
    """Collectives of the scenario's machine, and those of the step model where nobody names one."""
    item = _run(tmp_path, mesh={"tp": 8})
    replica = Replica(model("llama-3-8b"), accelerator("H100"), tp=8)
    requests = drawn(512, 64, 80).closed(8)
    alone = simulate(StepModel(replica).seconds, room_of(replica, 576), requests, item.policy)
    assert item.run.tpot == pytest.approx(alone.tpot, rel=1e-3)
    assert item.run.ttft == pytest.approx(alone.ttft, rel=1e-3)


def test_the_causes_and_the_idle_time_are_the_run(tmp_path: Path) -> None:
    item = _run(tmp_path, batch=None, rate=20, requests=100)
    assert list(item.causes) == list(CAUSES)
    assert sum(item.causes.values()) + item.idle_s == pytest.approx(item.run.duration_s)
    assert item.idle_s > 0
    record = item.record()
    assert record["tokens_per_s_per_user"] == pytest.approx(1e3 / record["tpot_ms"])


def test_the_timeline_holds_all_tokens_of_prompts(tmp_path: Path) -> None:
    item = _run(tmp_path)
    timeline = item.timeline()
    span = item.run.duration_s / len(timeline["end_s"])
    assert sum(timeline["prompt_tokens_per_s"]) * span == pytest.approx(item.run.prompt.sum(), rel=1e-3)
    assert max(timeline["sequences"]) <= item.clients
    assert max(timeline["cache_share"]) <= item.cache_share <= 1


def test_more_clients_give_a_gpu_more_and_a_user_less(tmp_path: Path) -> None:
    loads = _run(tmp_path).loads
    assert [point.clients for point in loads][:3] == [4, 8, 16]
    assert (np.diff([point.tokens_per_s_per_gpu for point in loads]) > 0).all()
    assert (np.diff([point.tokens_per_s_per_user for point in loads]) < 0).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "sglang"},
        {"framework": "tensorrt_llm", "release": "1.0"},
        {"framework": "hf", "cuda_graphs": False},
        {"precision": "fp8", "cache_precision": "fp8"},
        {"prompt": {"tokens": 700, "range_ratio": 0.2}, "answer": {"tokens": 60, "cv": 1.5, "most": 300}},
        {"scheduler": {"token_budget": 256, "most_sequences": 3, "mixed": False}},
        {"model": "qwen3-30b-a3b", "mesh": {"attention_dp": 4, "ep": 4}},
        {"mesh": {"tp": 2, "pp": 2}},
    ],
)
def test_what_may_be_said_changes_the_answer_and_comes_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    item, plain = _run(tmp_path, **changes), _run(tmp_path)
    assert item.run.latency.mean() != pytest.approx(plain.run.latency.mean(), rel=1e-4)
    (scenario,) = load_scenarios(_file(tmp_path, **changes))
    (tmp_path / "again.yaml").write_text(resolved_yaml(scenario))
    assert load_scenarios(tmp_path / "again.yaml")[0] == scenario
    assert json.loads(json.dumps(item.to_dict())) == item.to_dict()


def test_requests_of_a_file_come_at_their_times(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("prompt,answer,arrival_s\n512,4,0\n100,3,9.5\n")
    item = _run(tmp_path, batch=None, prompt=None, answer=None, file="r.csv")
    assert item.run.arrival_s.tolist() == [0.0, 9.5]
    assert item.run.answer.tolist() == [4, 3]
    assert item.said.startswith("2 requests of about 306 tokens in")


def test_apart_caches_cross_the_network_and_answers_do_not_wait_for_prompts(tmp_path: Path) -> None:
    long = {"prompt": 8000, "answer": 32, "batch": None, "rate": 6, "requests": 60}
    together = _run(tmp_path, 2, mesh={"tp": 4}, **long)
    apart = _run(tmp_path, 2, mesh={"tp": 4}, prefill={"replicas": 2, "mesh": {"tp": 4}}, **long)
    assert (apart.replicas, apart.readers, together.replicas) == (2, 2, 4)
    # 131,072 bytes a token of the model, a quarter of it over each of four NICs of 50 GB/s
    least = 8000 * 131072 / 4 / 50e9
    assert least < apart.run.sent_s.min() < 2 * least
    p99 = (float(np.quantile(item.run.tpot, 0.99)) for item in (apart, together))
    assert next(p99) < next(p99)


@pytest.mark.parametrize(
    ("changes", "place", "text"),
    [
        ({"model": "lama-3-8b"}, "generation.model", "lama-3-8b"),
        ({"mesh": {"tp": 3}}, "generation.mesh.tp", "found tp 3, expected a divisor of 32"),
        ({"mesh": {"tp": 16}}, "generation.mesh", "expected at most 8, the GPUs of the machine"),
        ({"mesh": {"tp": 2, "pp": 3}}, "generation.mesh", "replicas of 6, which leave 2 without work"),
        ({"mesh": {"tp": 4, "ep": 2}}, "generation.mesh.ep", "has no experts"),
        ({"mesh": {"attention_dp": 2}}, "generation.mesh.attention_dp", "has no experts"),
        ({"precision": "fp7"}, "generation.precision", "expected one of bf16"),
        ({"cache_precision": "int3"}, "generation.cache_precision", "expected one of bf16"),
        ({"batch": None}, "generation", "expected one of batch, concurrency, rate"),
        ({"rate": 3}, "generation.rate", "found batch and rate"),
        ({"prompt": None}, "generation", "found neither prompt nor file"),
        ({"prompt": 0}, "generation.prompt", "expected a whole number >= 1"),
        ({"prompt": "many"}, "generation.prompt", "expected tokens such as 1024"),
        ({"answer": {"tokens": 9, "cv": 1, "range_ratio": 0.5}}, "generation.answer.cv", "expected one of them"),
        (
            {"prompt": {"tokens": 2000, "cv": 1.0, "most": 10}},
            "generation.prompt.tokens",
            "found a mean of 2000, expected at most 10",
        ),
        (
            {"answer": {"tokens": 100, "range_ratio": 0.5, "most": 40}},
            "generation.answer.tokens",
            "found lengths from 50 up, expected at most 40",
        ),
        (
            {"model": "mixtral-8x7b", "mesh": {"ep": 8}},
            "generation.mesh.ep",
            "1 * 1 = 1, the ranks that share the experts; say attention_dp 8 (--attention-dp 8) or tp 8 (--tp 8)",
        ),
        (
            {"model": "mixtral-8x7b", "mesh": {"tp": 8, "ep": 3}},
            "generation.mesh.ep",
            "found ep 3, expected a divisor of tp * attention_dp = 8 * 1 = 8",
        ),
        (
            {"model": "mixtral-8x7b", "mesh": {"ep": 16}},
            "generation.mesh.ep",
            "found ep 16, expected at most 8, the experts of mixtral-8x7b",
        ),
        ({"requests": 0}, "generation.requests", "expected a whole number >= 1"),
        ({"release": "new"}, "generation.release", "found 'new'"),
        ({"file": "no.csv"}, "generation.prompt", "found it beside file"),
        ({"file": "no.csv", "prompt": None, "answer": None}, "generation.file", "no.csv"),
        ({"prefill": {"replicas": 5}}, "generation.mesh", "of which 5 read prompts"),
        ({"prefill": {"replicas": 8}}, "generation.prefill.replicas", "expected one that decodes at least"),
        ({"framework": "hf", "prefill": {}}, "generation.prefill", "which has no pools"),
        ({"batch": 2**20}, "generation.batch", "found 4,194,304 clients, expected at most 500,000"),
        ({"framework": "vlm"}, "generation.framework", "did you mean 'vllm'"),
        ({"mesh": {"tp": 2, "dp": 4}}, "generation.mesh.dp", "unknown key 'dp'"),
    ],
)
def test_what_does_not_go_is_refused_at_its_place(
    tmp_path: Path, changes: dict[str, Any], place: str, text: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        _run(tmp_path, **changes)
    assert "serve.yaml:1:" in str(error.value)
    assert f"workload.0.{place}: " in str(error.value)
    assert text in str(error.value)


def test_weights_or_requests_without_room_are_infeasible(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match=r"llama3-70b does not fit on 1 H100.*expected more tp or pp"):
        _run(tmp_path, model="llama-3-70b", mesh={"tp": 1})
    with pytest.raises(InfeasibleError, match="found a request of 10,000,064 tokens"):
        _run(tmp_path, prompt=10_000_000)


def test_what_the_gpu_or_the_model_was_not_made_for_is_warned_of(tmp_path: Path) -> None:
    warnings = cs.run(_file(tmp_path, precision="nvfp4", prompt=9000)).warnings
    text = "H100-SXM5-80GB has no units for nvfp4: only weights have that type, products run in 16 bit"
    assert [one for one in warnings if "units" in one or "made for" in one] == [text]  # that of Llama's is not known
    warnings = cs.run(_file(tmp_path, model="gpt2-124m", mesh={"tp": 1}, prompt=1000)).warnings
    assert list(warnings) == ["the longest request has 1,064 tokens, but gpt2-124m was made for 1,024"]
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
              "intermediate_size": 1024, "vocab_size": 1000}  # fmt: skip
    for known, said in (({}, 0), ({"max_position_embeddings": 576}, 0), ({"max_position_embeddings": 575}, 1)):
        (tmp_path / "config.json").write_text(json.dumps(config | known))
        warnings = cs.run(_file(tmp_path, model="config.json")).warnings
        assert sum("was made for 575" in one for one in warnings) == len(warnings) == said


def test_other_libraries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommsimError, match="found generation with library gloo, expected library nccl"):
        cs.run(_file(tmp_path), "library=gloo")


def test_what_is_saved_is_the_same_run(tmp_path: Path) -> None:
    scenario = json.loads(_file(tmp_path, 2, mesh={"tp": 16}).read_text())
    del scenario["library"]
    (tmp_path / "s.yaml").write_text(json.dumps(scenario))
    (one,) = load_scenarios(tmp_path / "s.yaml")
    (tmp_path / "again.yaml").write_text(resolved_yaml(one))
    first, again = (cs.run(tmp_path / name).answers[0].to_dict() for name in ("s.yaml", "again.yaml"))
    assert first == again


def test_an_engine_without_work_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("prompt,answer,arrival_s\n512,400,0\n512,400,100\n")
    item = _run(tmp_path, mesh={"tp": 8}, batch=None, prompt=None, answer=None, file="r.csv")
    share = item.timeline()["cache_share"]
    assert share[0] > 0
    assert share[-1] > 0
    assert not any(share[20:-20])


def test_a_trace_has_every_second_of_every_engine(tmp_path: Path) -> None:
    from commsim.report.perfetto import chrome_trace
    from commsim.scenario.run import prepare, traced

    (scenario,) = load_scenarios(_file(tmp_path, mesh={"tp": 4}, prefill={"replicas": 1, "mesh": {"tp": 4}}))
    shown = traced(prepare(scenario))
    (item,) = cs.run(tmp_path / "serve.yaml").answers
    assert isinstance(item, GenerationItem)
    busy = sum(pool.busy_s for pool in item.run.steps)
    assert float((shown.timeline.end_s - shown.timeline.start_s).sum()) == pytest.approx(busy)
    assert set(shown.timeline.endpoint.tolist()) == {0, 1}
    assert '"engine 1"' in chrome_trace(shown)


_ODD: tuple[Any, ...] = (
    None, 0, -1, 1, 3, 8, 1.5, "", "x", "1024", True, [], [1], {}, {"tokens": 5}, {"tokens": 5, "cv": 3.0}, {"tp": 2},
    {"tp": 1, "pp": 2}, {"attention_dp": 8, "ep": 8}, {"replicas": 1, "mesh": {"tp": 4}}, "fp8", "nvfp4", "sglang",
    "hf", "tensorrt_llm", "qwen3-30b-a3b", "gpt-oss-20b", "bert-large", "H100", "2.3.4", {"token_budget": 1},
    {"token_budget": 100, "chunked": False}, {"mixed": False, "chunked": False}, {"most_sequences": 1},
)  # fmt: skip


@pytest.mark.slow  # a hundred runs
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*GenerationSpec.model_fields, "colour"]), st.sampled_from(_ODD), st.sampled_from([1, 7, 600]))
def test_whatever_stands_there_is_answered_or_refused(tmp_path: Path, key: str, value: Any, prompt: int) -> None:
    try:
        item = _run(tmp_path, **({"prompt": prompt, "answer": 3} | {key: value}))
    except CommsimError:
        return
    json.dumps(item.to_dict(), allow_nan=False)


def test_experts_and_sums_cross_the_network_of_the_machine(tmp_path: Path) -> None:
    """Half the NICs make experts' exchanges longer; sums of ranks on two nodes are NCCL's."""
    spread: dict[str, Any] = {"model": "qwen3-30b-a3b", "mesh": {"attention_dp": 16, "ep": 16}}

    def dispatch(*changes: str) -> float:
        (item,) = cs.run(_file(tmp_path, 2, **spread), *changes).answers
        assert isinstance(item, GenerationItem)
        return item.causes["dispatch"]

    assert dispatch("topology.nic_bandwidth=100 Gb/s") > 1.2 * dispatch()
    one, two = (_run(tmp_path, n, machine=f"hgx-h100{m}-ndr400", mesh={"tp": 8}) for n, m in ((1, ""), (2, "-4")))
    assert two.causes["collectives"] > 2 * one.causes["collectives"]
