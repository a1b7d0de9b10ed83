"""Scenarios from files, their checks across fields, and the resolved form."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from commsim.collectives.semantics import ITEM_BYTES
from commsim.errors import CommsimError, ScenarioError, TopologyError
from commsim.scenario.load import load_scenarios, resolved_yaml, scenario_hash, scenario_warnings
from commsim.scenario.setting import Library, build_topology
from commsim.scenario.workload.collective import CollectiveWork

OK = sorted((Path(__file__).parent.parent / "data" / "ok").glob("*.yaml"))
SCENARIOS = Path(__file__).parent.parent.parent / "scenarios"
SHIPPED = [path for folder in (SCENARIOS, SCENARIOS / "training") for path in sorted(folder.glob("*.yaml"))]

BASE = """\
name: test
topology: {preset: hgx-h100}
workload:
  - collective: all_reduce
    sizes: 8 B .. 64 B x2
"""

TRAINING = """\
name: test
topology: {preset: hgx-h100}
workload:
  - training: {model: config.json, seq_len: 1024, global_batch_size: 8, micro_batch_size: 1}
"""
GPT2_CONFIG = """\
{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_ctx": 1024, "n_positions": 1024, "vocab_size": 512}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(CommsimError) as info:
        load_scenarios(write(tmp_path, text), overrides)
    return str(info.value)


def test_defaults(tmp_path: Path) -> None:
    (scenario,) = load_scenarios(write(tmp_path, BASE))
    (work,) = scenario.collectives
    assert work.sizes == (8, 16, 32, 64)
    assert (work.dtype, work.redop, work.item_bytes) == ("float32", "sum", 4)
    assert scenario.library == Library(name="nccl", version="2.26.2")
    assert (scenario.engine, scenario.mode, scenario.report.plot) == ("auto", "back_to_back", False)
    assert scenario.base_dir == tmp_path
    assert scenario.source == str(tmp_path / "s.yaml")


def test_every_dtype_has_a_size() -> None:
    for dtype, nbytes in ITEM_BYTES.items():
        work = CollectiveWork.model_validate({"collective": "all_reduce", "dtype": dtype})
        assert work.item_bytes == nbytes


@pytest.mark.parametrize("path", [*OK, *SHIPPED], ids=lambda p: p.stem)
def test_what_is_shipped_loads_and_survives_its_resolved_form(path: Path, tmp_path: Path) -> None:
    scenarios = load_scenarios(path)
    saved = write(tmp_path, "---\n".join(resolved_yaml(s, tmp_path) for s in scenarios))
    for before, after in zip(scenarios, load_scenarios(saved), strict=True):
        assert build_topology(before).world_size == build_topology(after).world_size
        assert [p.resolve() for p in after.compare_paths()] == [p.resolve() for p in before.compare_paths()]
        assert scenario_hash(after) == scenario_hash(before)
        if not before.compare and before.topology.path is None:
            assert after == before


def test_the_resolved_form_says_everything_and_is_plain_yaml(tmp_path: Path) -> None:
    (scenario,) = load_scenarios(write(tmp_path, BASE.replace("name: test", "name: '1e9'")))
    data = yaml.safe_load(resolved_yaml(scenario))
    assert data["name"] == "1e9"
    assert data["library"]["version"] == "2.26.2"
    assert data["workload"][0]["sizes"] == ["8 B", "16 B", "32 B", "64 B"]


def test_the_hash_follows_the_meaning(tmp_path: Path) -> None:
    (plain,) = load_scenarios(write(tmp_path, BASE))
    (same,) = load_scenarios(write(tmp_path, "# comment\n" + BASE + "engine: auto\n"))
    (other,) = load_scenarios(write(tmp_path, BASE), ["workload.0.dtype=bfloat16"])
    assert scenario_hash(plain) == scenario_hash(same)
    assert scenario_hash(plain) != scenario_hash(other)
    assert plain == same
    assert plain != other
    assert len(scenario_hash(plain)) == 12


def test_the_hash_follows_what_files_hold(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("size_bytes,time_us\n8,1\n")
    (before,) = load_scenarios(write(tmp_path, BASE + f"compare: [{log.name}]\n"))
    once = scenario_hash(before)
    log.write_text("size_bytes,time_us\n8,2\n")
    assert scenario_hash(before) != once


def test_files_of_a_training_step_are_found_from_the_saved_form(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(GPT2_CONFIG)
    (before,) = load_scenarios(write(tmp_path, TRAINING))
    away = tmp_path / "out" / "deep"
    away.mkdir(parents=True)
    (after,) = load_scenarios(write(away, resolved_yaml(before, away)))
    assert scenario_hash(after) == scenario_hash(before)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("topology.nodes=0", "override 'topology.nodes=0' topology.nodes: found 0, expected a whole number >= 1"),
        ("workload.0.colective=all_reduce", "found the unknown key 'colective', did you mean 'collective'?"),
        ("workload.0.dtype=float", "found 'float', did you mean 'float32'?"),
        ("workload.0.sizes=1 GiB .. 8 B", "its first size not above its last"),
        ("workload.0.channels=65", "found 65, expected a whole number <= 64"),
        ("topology.preset=hgx-h1000", "did you mean 'hgx-h100'?"),
        ("library=ncll", "override 'library=ncll' library: found 'ncll', did you mean 'nccl'?"),
        ("library={name: nccl, launch_mode: one_proces}", "library.launch_mode: found 'one_proces', did you mean"),
        ("library={name: none, env: {NCCL_ALGO: Ring}}", "library.env: found env with library none"),
        ("library={version: 2.26}", "found 2.26, expected an NCCL version"),
        ("library={env: {NCCL_PROTO: LL12}}", "library.env.NCCL_PROTO: found 'LL12', did you mean 'LL128'?"),
        ("compare=[nothing.csv]", "override 'compare=[nothing.csv]' compare.0: found no file"),
        ("mode=singel", "mode: found 'singel', did you mean 'single'?"),
    ],
)
def test_overrides_are_checked_like_the_file(tmp_path: Path, override: str, message: str) -> None:
    assert message in refusal(tmp_path, BASE, override)


def test_faults_of_reading_values_and_files_come_together(tmp_path: Path) -> None:
    text = BASE + "report: {plot: no}\nengine: evnet\ncompare: [gone.csv]\ntopology: {}\n"
    lines = refusal(tmp_path, text).splitlines()
    assert [line.split(" ")[1].rstrip(":") for line in lines] == ["report.plot", "engine", "compare.0", "topology"]


def test_faults_of_all_documents_come_together(tmp_path: Path) -> None:
    second = BASE.replace("test", "second")
    text = refusal(tmp_path, BASE + "x: 1\n---\n" + second + "y: 2\n")
    assert "s.yaml:6:1 x:" in text
    assert "s.yaml:13:1 y:" in text


def test_sizes_may_come_from_the_measured_files(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("size\n")
    text = BASE.replace("    sizes: 8 B .. 64 B x2\n", "")
    assert "workload.0: found no key 'sizes'" in refusal(tmp_path, text)
    (scenario,) = load_scenarios(write(tmp_path, text + "compare: [m.csv]\n"))
    assert scenario.collectives[0].sizes is None
    assert scenario.compare_paths() == [tmp_path / "m.csv"]


def test_what_an_item_fixes_becomes_nccl_environment(tmp_path: Path) -> None:
    overrides = ["workload.0.protocol=Simple", "workload.0.channels=4", "library={env: {NCCL_ALGO: Ring}}"]
    (scenario,) = load_scenarios(write(tmp_path, BASE), overrides)
    assert scenario.nccl_env(scenario.collectives[0]) == {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_NCHANNELS": "4",
        "NCCL_MAX_NCHANNELS": "4",
    }
    text = refusal(tmp_path, BASE, "workload.0.protocol=LL", "library.env.NCCL_PROTO=LL")
    assert "workload.0.protocol: found protocol here and NCCL_PROTO in library.env" in text


def test_one_rank_is_allowed(tmp_path: Path) -> None:
    (scenario,) = load_scenarios(write(tmp_path, BASE), ["topology.gpus_per_node=1"])
    assert build_topology(scenario).world_size == 1


def test_unknown_variables_are_warnings(tmp_path: Path) -> None:
    text = (
        BASE + "library:\n  env:\n    NCCL_AGLO: Ring\n    HOME: x\n    NCCL_DEBUG: INFO\n    NCCL_MAX_NCHANNELS: 16\n"
    )
    (scenario,) = load_scenarios(write(tmp_path, text))
    aglo, home = scenario_warnings(scenario)
    assert "s.yaml:8:5 library.env.NCCL_AGLO" in aglo
    assert "did you mean 'NCCL_ALGO'?" in aglo
    assert "ignored" in home


def test_topology_faults_are_at_the_key_of_the_scenario(tmp_path: Path) -> None:
    (scenario,) = load_scenarios(write(tmp_path, BASE), ["topology.gpus_per_node=9"])
    with pytest.raises(TopologyError, match=r"topology\.gpus_per_node: found 9, but a node has 8 GPUs"):
        build_topology(scenario)


def test_faults_of_a_topology_file_name_that_file(tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_text("gpu: {model: X, generaton: ada}\n")
    text = BASE.replace("preset: hgx-h100", "path: machine.yaml")
    (scenario,) = load_scenarios(write(tmp_path, text))
    with pytest.raises(TopologyError, match=r"machine\.yaml:1:17 gpu\.generaton: .* did you mean 'generation'"):
        build_topology(scenario)


@pytest.mark.parametrize(
    ("name", "slug"), [("AllReduce on 2 nodes", "allreduce-on-2-nodes"), ("../../etc", "etc"), ("\u6f22", "scenario")]
)
def test_slugs_are_plain_file_names(tmp_path: Path, name: str, slug: str) -> None:
    (scenario,) = load_scenarios(write(tmp_path, BASE.replace("name: test", f"name: '{name}'")))
    assert scenario.slug == slug


def test_a_missing_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="found no such file"):
        load_scenarios(tmp_path / "gone.yaml")
