"""A question in one line: the scenario that it means, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from commsim.errors import CommsimError, ScenarioError
from commsim.scenario.asked import collective_named, kind_of, nccl_size, without_effect
from commsim.scenario.question import OneLine, assumed, document_of, mapping_of, scenario_of
from commsim.scenario.question_command import command_of, question_of
from commsim.units import nccl_bytes

ON = "hgx-h100-ndr400"


def _step(**said: Any) -> dict[str, Any]:
    item: dict[str, Any] = mapping_of(OneLine("llama-3-8b", ON, **said))["workload"][0]["training"]
    return item


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8),
        ("64K", 65536),
        ("64k", 65536),
        ("8G", 2**33),
        ("1T", 2**40),
        ("64 MiB", 2**26),
        ("1GB", 10**9),
        ("1.5M", 3 * 2**19),
        ("1e6", 10**6),
    ],
)
def test_sizes_are_those_of_nccl_tests(text: str, nbytes: int) -> None:
    assert nccl_bytes(text) == nbytes
    assert nccl_bytes(nccl_size(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "8x", "-8", "1.3K", "1.5", "9" * 40, "G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(CommsimError):
        nccl_bytes(text)


@pytest.mark.parametrize("name", ["all_reduce", "AllReduce", "all-reduce", "all_reduce_perf", "allreduce"])
def test_a_collective_has_the_names_of_others_too(name: str) -> None:
    assert collective_named(name) == "all_reduce"
    assert collective_named("llama-3-8b") is None


def test_a_collective_is_asked_over_the_sizes_that_are_given_or_all() -> None:
    scenario = scenario_of(OneLine("all_reduce", ON, nodes=4, minbytes=8, maxbytes=2**33, stepfactor=4))
    assert scenario.collectives[0].sizes == tuple(8 * 4**i for i in range(16))
    assert scenario.topology.nodes == 4
    every = scenario_of(OneLine("all_reduce", ON)).collectives[0].sizes
    assert every is not None
    assert (every[0], every[-1], len(every)) == (8, 2**33, 31)
    added = (
        scenario_of(OneLine("all_gather", ON, minbytes=2**20, maxbytes=3 * 2**20, stepbytes=2**20)).collectives[0].sizes
    )
    assert added == (2**20, 2 * 2**20, 3 * 2**20)
    assert scenario_of(OneLine("all_gather", ON, minbytes=100, maxbytes=100)).collectives[0].sizes == (100,)


def test_processes_without_a_gpu_are_asked_of_gloo_unless_something_else_is_said() -> None:
    assert scenario_of(OneLine("all_reduce", "testbed-star")).library.name == "gloo"
    raw = OneLine("all_reduce", "testbed-star", overrides=("library=none",))
    assert scenario_of(raw).library.name == "none"


def test_a_model_trains_unless_something_of_generation_is_said() -> None:
    assert kind_of(OneLine("llama-3-8b", ON, tp=8, batch=4, precision="fp8")) == "training"
    every: list[dict[str, Any]] = [
        {"generate": "8:8"},
        {"rate": 1.0},
        {"requests": 2},
        {"attention_dp": 2},
        {"framework": "vllm"},
    ]
    for said in every:
        assert kind_of(OneLine("llama-3-8b", ON, **said)) == "generation"


@pytest.mark.parametrize(
    ("said", "batch", "micro"),
    [
        ({"nodes": 4, "tp": 8}, 4 * 4, 1),
        ({"nodes": 4, "tp": 8, "pp": 2}, 2 * 8, 1),
        ({"nodes": 4, "tp": 8, "micro_batches": 3}, 4 * 3, 1),
        ({"nodes": 4, "tp": 8, "micro_batch": 2}, 4 * 4 * 2, 2),
        ({"nodes": 4, "tp": 8, "batch": 32, "micro_batches": 4}, 32, 2),
        ({"tp": 8, "overrides": ("topology.nodes=2", "workload.0.training.micro_batch_size=2")}, 2 * 4 * 2, 2),
    ],
)
def test_the_batch_is_four_micro_batches_per_stage_or_as_given(said: dict[str, Any], batch: int, micro: int) -> None:
    item = _step(**said)
    assert (item["global_batch_size"], item["micro_batch_size"]) == (batch, micro)


def test_batches_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(
        ScenarioError,
        match=r"--micro-batches 4: found 4 micro-batches .* a batch of 30 sequences, expected a batch of 16",
    ):
        _step(nodes=4, tp=8, batch=30, micro_batches=4)


def test_what_recipes_do_is_filled_in_and_said() -> None:
    document = document_of(OneLine("llama-3-8b", ON, nodes=2, tp=8))
    item = document.data["workload"][0]["training"]
    assert (item["zero_stage"], item["sequence_parallel"], item["precision"]) == (1, True, "bf16")
    assert assumed(document) == (
        "a batch of 8 sequences (2 x 4 micro-batches of 1), zero_stage 1, sequence_parallel, bf16"
    )
    assert _step(nodes=2, tp=8, framework="fsdp2")["zero_stage"] == 3
    assert _step(tp=8)["zero_stage"] == 0
    assert "zero_stage" not in assumed(document_of(OneLine("llama-3-8b", ON, zero=2)))
    v100 = mapping_of(OneLine("gpt2", "dgx-1v"))["workload"][0]["training"]
    assert v100["precision"] == "fp16"
    assert assumed(document_of(OneLine("all_reduce", ON))) == ""


@pytest.mark.parametrize(
    ("question", "nodes"),
    [
        (OneLine("llama-3-8b", ON, tp=8, pp=4), 4),
        (OneLine("llama-3-8b", ON, tp=8, dp=2), 2),
        (OneLine("llama-3-8b", ON, tp=8), 1),
        (OneLine("llama-3-8b", ON, tp=8, pp=2, generate="8:8"), 2),
        (OneLine("llama-3-8b", ON, tp=8, overrides=("workload.0.training.mesh.pp=2",)), 2),
    ],
)
def test_a_machine_has_the_nodes_that_the_mesh_needs(question: OneLine, nodes: int) -> None:
    assert scenario_of(question).topology.nodes == nodes


def test_what_changes_nothing_is_said() -> None:
    (line,) = without_effect(OneLine("all_reduce", ON, nodes=2, tp=8))
    assert line == "--tp 8 changes nothing: a collective has no such thing"
    assert len(without_effect(OneLine("llama-3-8b", ON, minbytes=8, maxbytes=2**33))) == 2
    assert without_effect(OneLine("llama-3-8b", ON, tp=8, batch=8)) == ()
    (line,) = without_effect(OneLine("all_reduce", ON, nodes=2, overrides=("topology.nodes=4",)))
    assert line == "-n 2 changes nothing beside topology.nodes=4"
    assert "generation has no such" in without_effect(OneLine("llama-3-8b", ON, generate="8:8", cp=2))[0]


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (OneLine("all_redcue", ON), "found 'all_redcue', which is no collective and no model; did you mean 'all_red"),
        (OneLine("lama-3-70b", ON), "did you mean 'llama3-70b'"),
        (OneLine("x", ON), "expected a collective .*, a model such as llama-3-70b, or its config.json"),
        (OneLine("all_reduce", "hgx-h10"), "--on: found 'hgx-h10', which is no file; of presets, did you mean"),
        (OneLine("x.yaml", ON), "found the file 'x.yaml' beside --on"),
        (OneLine("all_reduce", ON, minbytes=8, maxbytes=4), "-b 8 -e 4 workload.0.sizes: found the range"),
        (OneLine("all_reduce", ON, stepfactor=1), "-f 1 workload.0.sizes: found the factor"),
        (OneLine("all_reduce", ON, stepfactor=2, stepbytes=8), "found -f 2 beside -i 8, expected one of them"),
        (OneLine("all_reduce", "hgx-h100", nodes=2), "--on hgx-h100 topology: .* without a NIC"),
        (OneLine("llama-3-8b", ON, tp=3), "--tp 3 workload.0.training.mesh: tp"),
        (OneLine("llama-3-8b", ON, recompute="ful"), "--recompute ful workload.0.training.recompute: .*'full'"),
        (OneLine("llama-3-8b", ON, framework="vlm"), "did you mean|expected one of|expected 'megatron'"),
        (OneLine("llama-3-8b", ON, overrides=("workload=3",)), "override 'workload=3'"),
        (OneLine("llama-3-8b", ON, overrides=("topology=3",)), "override 'topology=3'"),
        (OneLine("llama-3-8b", ON, overrides=("workload.0.training=3",)), "override 'workload.0.training=3'"),
        (OneLine("nowhere/config.json", ON), "config.json"),
    ],
)
def test_what_is_wrong_is_said_at_its_option(question: OneLine, text: str) -> None:
    from commsim.scenario.run import prepare

    with pytest.raises(CommsimError, match=text):
        prepare(scenario_of(question))


@pytest.mark.parametrize(
    "question",
    [
        OneLine("all_reduce", ON, nodes=4, minbytes=8, maxbytes=2**33, stepfactor=2),
        OneLine(
            "all_gather", ON, nodes=1, minbytes=2**20, maxbytes=8 * 2**20, stepbytes=2**20, overrides=("mode=single",)
        ),
        OneLine("llama-3-70b", ON, nodes=64, tp=8, pp=4, batch=512, zero=1, overrides=("library.version=2.26.2",)),
        OneLine("llama-3-8b", ON, nodes=1, tp=8, generate="1024:512", batch=4),
    ],
)
def test_the_way_back_leads_to_the_same_scenario(question: OneLine) -> None:
    again = question_of(mapping_of(question))
    assert again is not None
    assert scenario_of(again).model_dump(exclude={"name"}) == scenario_of(question).model_dump(exclude={"name"})


def test_a_scenario_says_its_command() -> None:
    scenario = {
        "name": "mine",
        "topology": {"preset": ON, "nodes": 4, "oversubscription": 2.0},
        "library": {"name": "nccl", "env": {"NCCL_ALGO": "Ring"}},
        "workload": [{"collective": "all_reduce", "sizes": "8 B .. 8 GiB x2", "dtype": "bfloat16"}],
    }
    question = question_of(scenario)
    assert question is not None
    assert command_of(question) == (
        "commsim run all_reduce --on hgx-h100-ndr400 -n 4 -b 8 -e 8G -f 2 topology.oversubscription=2.0 "
        'workload.0.dtype=bfloat16 library.name=nccl \'library.env={"NCCL_ALGO": "Ring"}\''
    )


def test_a_step_whose_scenario_leaves_out_what_a_question_fills_in_keeps_it_out() -> None:
    step = {"model": "llama-3-8b", "global_batch_size": 8, "mesh": {"tp": 8}}
    question = question_of({"name": "s", "topology": {"preset": ON}, "workload": [{"training": step}]})
    assert question is not None
    assert (question.zero, question.micro_batch, question.nodes) == (0, 1, 1)
    assert not scenario_of(question).trainings[0].training.sequence_parallel


@pytest.mark.parametrize(
    "scenario",
    [
        {},
        {"topology": {"preset": ON}, "workload": []},
        {"topology": {"preset": ON}, "workload": [{"collective": "all_reduce", "sizes": "1 MiB"}] * 2},
        {"topology": {"groups": []}, "workload": [{"collective": "all_reduce", "sizes": "1 MiB"}]},
        {"topology": {"preset": ON}, "workload": [{"collective": "all_reduce"}], "compare": ["x.csv"]},
        {"topology": {"preset": ON}, "workload": [{"training": 3}]},
    ],
)
def test_what_no_line_says_has_no_question(scenario: dict[str, Any]) -> None:
    assert question_of(scenario) is None


def test_sizes_without_a_step_are_an_override() -> None:
    scenario = {
        "topology": {"preset": ON},
        "workload": [{"collective": "reduce", "sizes": ["1 KiB", "3 KiB", "4 KiB"]}],
    }
    question = question_of(scenario)
    assert question is not None
    assert scenario_of(question).collectives[0].sizes == (1024, 3072, 4096)


def test_tokens_to_train_on_are_a_task() -> None:
    assert _step(tp=8, tokens=3e11)["task"] == {"kind": "pretrain", "tokens": 3e11}
    assert command_of(OneLine("llama-3-8b", ON, tokens=3e11)).endswith("--tokens 300B")
    assert scenario_of(OneLine("llama-3-8b", ON, tp=8, overrides=("workload.0.training.task.tokens=300e9",)))
