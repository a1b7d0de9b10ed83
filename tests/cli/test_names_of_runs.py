"""Overrides in titles and folders, folders that hold another run, folders of a shipped name, steps that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import ScenarioError
from commsim.files import MOST_CHARACTERS, slug
from commsim.planner.question import read_plan
from commsim.scenario.load import LONGEST_NAME, find_scenario, load_scenarios
from commsim.scenario.setting import build_topology

SCENARIO = """
name: All-reduce on one node
topology: {preset: hgx-h100}
library: {name: nccl, version: 2.26.2}
workload: [{collective: all_reduce, sizes: 1 MiB}]
"""
TOO_LARGE = """
name: too large
topology: {preset: hgx-h100-ndr400, nodes: 2}
workload:
  - training: {model: llama-3-70b, global_batch_size: 16, micro_batch_size: 1, mesh: {tp: 8, dp: 2}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def test_overrides_are_in_the_title_and_the_folder(file: Path) -> None:
    shown = CliRunner().invoke(app, ["run", str(file), "topology.gpus_per_node=4"], catch_exceptions=False).stdout
    assert "All-reduce on one node, with gpus_per_node=4 [4 x H100 SXM5] (scenario" in shown
    assert (file.parent / "out" / "all-reduce-on-one-node-with-gpus-per-node-4" / "result.json").is_file()
    assert load_scenarios(file, ["name=mine", "topology.gpus_per_node=4"])[0].name == "mine"
    several = ["workload.0.sizes=2 MiB", "report.plot=true", "library.env.NCCL_ALGO=Ring"]
    assert load_scenarios(file, several)[0].name.endswith(", with sizes=2 MiB, plot=true, NCCL_ALGO=Ring")
    assert load_scenarios(file)[0].name == "All-reduce on one node"


@pytest.mark.parametrize(
    ("changes", "machine"),
    [
        (["topology={preset: hgx-h100-ndr400, nodes: 16}"], " [128 x H100 SXM5]"),
        (["topology={preset: dgx-a100-hdr200, nodes: 4}", "topology.gpus_per_node=2"], " [8 x A100 SXM4]"),
        (["topology={preset: hgx-h100-ndr400, nodes: 200}"], " [1,600 x H100 SXM5]"),
        (["workload.0.sizes=2 MiB"], ""),
        (["topology.gpus_per_node=4", "name=mine"], ""),
    ],
)
def test_a_title_says_what_machine_an_override_makes(changes: list[str], machine: str, file: Path) -> None:
    one = load_scenarios(file, changes)[0]
    assert one.name.endswith(machine)
    assert ("[" in one.name) is bool(machine)
    assert one.slug == slug(one.name.removesuffix(machine), "scenario")
    if machine:
        topology = build_topology(one)
        assert machine == f" [{topology.world_size:,} x {topology.gpu.model}]"


def test_a_plans_title_says_what_machine_an_override_makes(file: Path) -> None:
    file.write_text(
        "name: eight GPUs\nplan: {model: llama3.1-8b, global_batch_size: 64, "
        "clusters: [{topology: {preset: hgx-h100-ndr400, nodes: 1}}]}\n"
    )
    name = read_plan(file, ["plan.clusters.0.topology.nodes=2"])[0].name
    assert name == "eight GPUs, with nodes=2 [16 x H100 SXM5]"
    assert slug(name, "plan") == "eight-gpus-with-nodes-2"
    assert read_plan(file)[0].name == "eight GPUs"


def test_long_names_keep_apart(file: Path) -> None:
    many = [f"library.env.NCCL_DEBUG_FILE={'x' * 300}{k}" for k in (1, 2)]
    first, second = (load_scenarios(file, [one])[0] for one in many)
    assert len(first.name) <= LONGEST_NAME
    assert first.name != second.name
    assert first.slug != second.slug


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_slugs_are_short_names_of_files(one: str, other: str) -> None:
    for text in (one, other):
        assert 1 <= len(slug(text, "unnamed")) <= MOST_CHARACTERS
        assert set(slug(text, "unnamed")) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_another_run_is_not_replaced_silently(file: Path) -> None:
    words = ["run", str(file), "-o", "here"]
    assert "held another run" not in CliRunner().invoke(app, words, catch_exceptions=False).stderr
    assert "held another run" not in CliRunner().invoke(app, words, catch_exceptions=False).stderr
    other = CliRunner().invoke(app, [*words, "topology.gpus_per_node=4"], catch_exceptions=False)
    assert "note: here held another run, 'All-reduce on one node' (scenario " in other.stderr
    (file.parent / "here" / "result.json").write_text("{")
    broken = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "held another run, of another program or version" in broken.stderr


def test_a_folder_does_not_hide_a_shipped_scenario(file: Path) -> None:
    (file.parent / "quickstart").mkdir()
    (file.parent / "mine").mkdir()
    assert find_scenario("quickstart").is_file()
    with pytest.raises(ScenarioError, match="found a folder, expected a file"):
        load_scenarios(find_scenario("mine"))


def test_a_step_that_does_not_fit_says_so_first_and_fails(file: Path) -> None:
    file.write_text(TOO_LARGE)
    result = CliRunner().invoke(app, ["run", str(file), "--no-files"], catch_exceptions=False)
    assert result.exit_code == 1
    first = result.stdout.splitlines()[0]
    assert first.startswith("does not fit: stage 0 needs ")
    assert "; the cheapest change that makes it fit: " in first
    printed = CliRunner().invoke(app, ["run", str(file), "--no-files", "--json"], catch_exceptions=False)
    assert printed.exit_code == 1
    (item,) = json.loads(printed.stdout)["results"][0]["trainings"]
    assert item["fits"] is False
    assert item["step_low_s"] < item["step_s"] < item["step_high_s"]
