"""``commsim run MODEL --on MACHINE --generate IN:OUT``: what it asks, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CommsimError

ASKED = ["run", "llama-3-8b", "--on", "hgx-h100-ndr400", "--generate", "256:32", "--no-files"]


def _json(*words: str) -> dict[str, object]:
    done = CliRunner().invoke(app, [*ASKED, "--json", *words])
    assert done.exception is None, done.output
    (result,) = json.loads(done.stdout)["results"]
    (answer,) = result["generations"]
    return dict(answer)


def test_a_models_name_and_a_machine_are_a_scenario() -> None:
    answer = _json("--tp", "2", "--batch", "16", "--requests", "40", "--framework", "sglang", "--precision", "fp8")
    asked = {"gpus": 8, "replicas": 4, "tp": 2, "clients": 64, "requests": 40, "framework": "sglang"}
    assert {name: answer[name] for name in asked} == asked
    assert (answer["prompt_tokens"], answer["answer_tokens"]) == (256, 32)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--tp", "16", "--requests", "2"], "gpus", 16),
        (["--tp", "8", "-n", "2", "--requests", "4"], "replicas", 2),
        (["--tp", "8"], "clients", 1),
        (["--rate", "40", "--requests", "20"], "clients", 0),
    ],
)
def test_a_machine_has_as_many_nodes_as_a_replica_needs_or_as_are_asked_for(
    words: list[str], key: str, value: int
) -> None:
    assert _json(*words)[key] == value


def test_lengths_may_be_drawn() -> None:
    drawn = _json("--tp", "8", "--batch", "4", "--range-ratio", "0.5")
    assert 128 < float(str(drawn["prompt_tokens"])) < 256
    assert 16 < float(str(drawn["answer_tokens"])) < 32


def test_overrides_go_on_top(tmp_path: Path) -> None:
    answer = _json("--tp", "8", "workload.0.generation.scheduler.most_sequences=1", "--batch", "4")
    assert answer["mean_batch"] == 1.0


def test_a_file_of_a_topology_is_a_machine(tmp_path: Path) -> None:
    machine = tmp_path / "mine.yaml"
    machine.write_text("extends: hgx-h100\n")
    done = CliRunner().invoke(
        app, ["run", "llama-3-8b", "--on", str(machine), "--tp", "8", "--framework", "vllm", "--no-files"]
    )
    assert "8 x H100 SXM5" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--generate", "1024"], "--generate: found '1024', expected tokens in"),
        (["--requests", "1", "--tp", "3"], "--tp 3 workload.0.generation.mesh.tp: found"),
        (["--requests", "1"], "does not fit on 1 H100"),
        (["--batch", "2", "--rate", "1"], "found batch and rate"),
        (["--range-ratio", "2"], "--range-ratio 2 workload.0.generation"),
    ],
)
def test_what_is_wrong_is_said_at_its_option(words: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["run", "llama-3-70b", "--on", "hgx-h100", *words, "--no-files"])
    assert isinstance(done.exception, CommsimError), done.output
    assert text in str(done.exception)
