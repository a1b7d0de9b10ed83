"""What people try first, and what goes wrong with it."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim import __main__ as program
from commsim.cli import app
from commsim.document.types import suggest
from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

TRAINING = """name: step
topology: {preset: hgx-h100-ndr400}
library: {name: nccl, version: 2.26.2}
workload:
  - training: {model: llama-2-7b, seq_len: 4096, global_batch_size: 8}
"""


def _said(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, CommsimError), result.output
    return str(result.exception)


def test_what_cannot_be_traced_is_said_before_files_are_written(tmp_path: Path) -> None:
    said = _said("run", "allreduce-8-h100", "--trace", str(tmp_path / "t.json"), "--out", str(tmp_path / "out"))
    assert "found the library nccl, expected none for a trace of moves (library=none)" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("bucket_size=1 B", "training.bucket_size: found 1 B, which makes over 10,000 buckets"),
        (
            "accelerator=V100",
            "training.precision: precision = 'bf16-fp32': V100-SXM2-32GB (volta) has no bf16 rate, it",
        ),
        ("model=nowhere.json", "workload.0.training.model: "),
    ],
)
def test_faults_of_a_step_stand_at_their_key(tmp_path: Path, change: str, says: str) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(TRAINING)
    said = _said("run", str(file), f"workload.0.training.{change}", "--no-files")
    assert says in said
    assert len(said.splitlines()) == 1


def test_the_smallest_bucket_that_is_said_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(TRAINING)
    least = _said("run", str(file), "workload.0.training.bucket_size=1 B").split("at least ")[1].removesuffix(" here")
    assert load_scenarios(file, [f"workload.0.training.bucket_size={least}"])
    assert "trainings" in run(load_scenarios(file, [f"workload.0.training.bucket_size={least}"])[0]).to_dict()


@pytest.mark.parametrize(
    ("command", "file", "says"),
    [
        ("run", "plan/gpt3-175b-1024-a100", " plan: found a plan, expected a scenario; commsim plan FILE takes it"),
        ("run", "sweep/rails", " sweep: found a sweep, expected a scenario; commsim sweep FILE takes it"),
        ("explain", "sweep/rails", " sweep: found a sweep, expected a scenario; commsim sweep FILE takes it"),
        ("plan", "allreduce-8-h100", "found a scenario, expected a plan; commsim run FILE takes it"),
        ("tune", "hgx-h100", "found the preset 'hgx-h100', expected a scenario, which names it as topology: {preset: "),
        ("run", "nowhere.yaml", "shipped scenarios are allreduce-2-nodes-a100, "),
        ("run", "nowhere.yaml", ", quickstart, ring-without-library, and those of benchmarks/ (8), contention/ (3), "),
    ],
)
def test_a_file_for_another_command_says_so(command: str, file: str, says: str) -> None:
    said = _said(command, file)
    assert says in said
    assert len(said.splitlines()) == 1


def test_a_topology_is_no_scenario(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("name: mine\nextends: hgx-h100\n")
    assert "found a topology, expected a scenario, which names it as topology: {path: FILE}" in _said("run", str(file))


def test_a_picture_of_another_form_is_refused(tmp_path: Path) -> None:
    said = _said("plot", "allreduce-8-h100", "--kind", "crossover", "--out", str(tmp_path / "x.pdf"))
    assert said.endswith("x.pdf: found the ending '.pdf', expected .png, .svg or a folder")
    assert list(tmp_path.iterdir()) == []


def test_all_to_all_v_is_sends_and_receives(tmp_path: Path) -> None:
    """Its size is that of all ranks together: 16 ranks and 16 MiB take what an all_to_all of 1 MiB takes."""
    times = {}
    for name, size in (("all_to_all", "1 MiB"), ("all_to_all_v", "16 MiB")):
        file = tmp_path / f"{name}.yaml"
        file.write_text(
            "name: x\ntopology: {preset: hgx-h100-ndr400, nodes: 2}\nlibrary: {name: nccl, version: 2.26.2}\n"
            f"workload:\n  - {{collective: {name}, sizes: {size}}}\n"
        )
        (times[name],) = run(load_scenarios(file)[0]).items[0].rows
    assert times["all_to_all_v"].time_s == times["all_to_all"].time_s
    assert times["all_to_all_v"].algorithm == "send_recv"
    assert times["all_to_all_v"].busbw == pytest.approx(times["all_to_all"].busbw)


def test_a_part_of_a_name_is_understood() -> None:
    assert suggest("h100", ["h800", "azure-h100", "hgx-h100"]) == "did you mean 'hgx-h100' or 'azure-h100'?"
    assert suggest("rign", ["ring", "tree"]) == "did you mean 'ring'?"


def test_a_collective_where_an_algorithm_is_meant() -> None:
    assert "all_reduce is a collective, expected one of its algorithms, such as ring" in _said(
        "schedule", "show", "all_reduce"
    )


def test_interrupted_while_it_loads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    load = builtins.__import__

    def interrupted(name: str, *rest: Any, **more: Any) -> Any:
        if name == "commsim.cli":
            raise KeyboardInterrupt
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as left:
        program.main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "commsim: error: interrupted\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "jobs"], "did you mean contention/two-jobs-one-spine or faults/two-jobs?"),
        (
            ["run", "all_reduce", "--on", "hgx-h100-ndr400", "topology.faults=nic1"],
            "found 'nic1', expected a list: degraded or failed parts, such as `[{nic: [1, 0], failed: true}]`",
        ),
        (
            ["run", "all_reduce", "--on", "hgx-h100-ndr400", "topology.faults=[{nic: 1, failed: true}]"],
            "found 1, expected a list: `[node, index]`, its port, such as `[1, 0]`",
        ),
        (["plan", "llama-3-8b", "--on", "hgx-h100-ndr400", "--tokens", "many"], "--tokens: found 'many', expected how"),
    ],
)
def test_what_is_nearly_right_is_answered_with_an_example(words: list[str], says: str) -> None:
    assert says in _said(*words)


def test_a_debug_log_without_a_table_is_called_so(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("node1:1:1 [0] NCCL INFO Bootstrap : Using eth0\n")
    assert "found NCCL's debug log and no table" in _said("compare", str(log), "--on", "hgx-h100-ndr400")


def test_a_plan_in_one_line_says_what_its_tokens_take() -> None:
    words = ["plan", "llama-3-8b", "--on", "hgx-h100-ndr400", "--no-simulate", "--no-files", "--tokens", "300B"]
    answer = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "The tokens take " in answer
    assert "days" in answer
