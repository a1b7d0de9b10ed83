"""What `commsim measure` says before any rank is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpus import FakeGpus
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import ScenarioError
from commsim.measure import gpu
from commsim.scenario.load import load_scenarios
from commsim.scenario.measured import RunOptions, run_of
from commsim.scenario.setting import build_topology


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["measure", *words])
    return result.exit_code, " ".join(f"{result.output} {result.exception or ''}".split())


def test_three_machines_are_not_measured_on_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, text = said("quickstart", "--backend", "nccl", "--out", str(tmp_path))
    assert status != 0
    assert "found scenarios of 3 machines, and this is one: name those of this one with --only" in text
    status, text = said("quickstart", "--backend", "nccl", "--only", "B200", "--out", str(tmp_path))
    assert "found no scenario with --only 'B200' in its name" in text


def test_two_nodes_of_gpus_are_not_started_on_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("commsim.measure.seat.gpus", lambda: FakeGpus(8))
    assert gpu.gpus is not None
    status, text = said("allreduce-2-nodes-a100", "--backend", "nccl", "--out", str(tmp_path))
    assert status != 0
    assert "found 8 GPUs here, expected 16 for 16 ranks" in text


def test_a_rank_has_one_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    status, text = said("quickstart", "--backend", "gloo", "--out", str(tmp_path))
    assert status != 0
    assert "found 3 scenarios, expected one for a rank: name it with --only" in text


def test_the_guide_starts_as_many_ranks_as_its_scenarios_have(checkout: Path) -> None:
    """On GPUs: one machine's scenarios, on one machine those of one node, under torchrun nodes times ranks of one."""
    text = (checkout / "docs" / "guides" / "measure.md").read_text(encoding="utf-8")
    section = text.split("## On GPUs: NCCL")[1].split("\n## ")[0]
    on_gpus = [line.split() for line in section.splitlines() if line.startswith(("commsim measure ", "torchrun --"))]
    assert len(on_gpus) >= 3
    for words in on_gpus:
        path = next(word for word in words if word.startswith("scenarios/"))
        sizes = {build_topology(one).world_size for one in load_scenarios(checkout / path)}
        assert len(sizes) == 1, words
        given = {name: int(words[words.index(name) + 1]) for name in ("--nnodes", "--nproc-per-node") if name in words}
        if "torchrun" in words:
            assert given.get("--nnodes", 1) * given["--nproc-per-node"] == sizes.pop(), words
        elif "--emit-sbatch" not in words:
            assert sizes.pop() <= 8, words


@pytest.mark.parametrize("words", [("--arrival", "9"), ("--port", "29500"), ("--testbed", "testbed-star")])
def test_what_nccl_tests_cannot_be_told_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    status, text = said(
        "allreduce-8-h100", "--backend", "nccl", "--runner", "nccl-tests", "--out", str(tmp_path / "out"), *words
    )
    assert status != 0
    assert f"{words[0]} has no effect with --runner nccl-tests" in text
    assert not (tmp_path / "out").exists()


def test_environment_of_the_scenario_is_handed_to_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(STEP.replace("TEXT", "precision: bf16, framework: ddp"))
    (scenario,) = load_scenarios(tmp_path / "one.yaml")
    assert '"NCCL_ALGO":"Ring"' in run_of(scenario, RunOptions(backend="nccl")).to_json()


STEP = """
name: a step
topology: {preset: hgx-h100}
library: {name: nccl, version: 2.27.7, env: {NCCL_ALGO: Ring}}
workload:
  - training: {model: llama-3-8b, global_batch_size: 8, micro_batch_size: 1, mesh: {dp: 8}, TEXT}
"""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("precision: fp8, framework: fsdp2", "found fp8-bf16-fp32, expected one of fp32, tf32, bf16-fp32, pure-bf16"),
        ("precision: bf16, framework: megatron", "found gradients in fp32, expected those of 16 bits"),
    ],
)
def test_a_precision_that_steps_do_not_have_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "step.yaml").write_text(STEP.replace("TEXT", text))
    (scenario,) = load_scenarios(tmp_path / "step.yaml")
    with pytest.raises(ScenarioError, match=fault):
        run_of(scenario, RunOptions(backend="nccl"))


def test_the_scenario_decides_precision_environment_and_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_text(STEP.replace("TEXT", "precision: tf32, framework: ddp"))
    (scenario,) = load_scenarios(tmp_path / "step.yaml")
    run = run_of(scenario, RunOptions(backend="nccl"))
    assert run.training[0].precision == "tf32"
    assert run.env == {"NCCL_ALGO": "Ring"}
    assert (run.expects["ranks"], run.expects["sm"], run.expects["nccl"]) == (8, 90, "2.27.7")
    assert run_of(scenario, RunOptions(backend="gloo")).env == {}
