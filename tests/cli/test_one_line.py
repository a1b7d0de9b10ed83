"""``commsim run all_reduce --on MACHINE``, ``init``, ``topo new``, and what they say on the screen."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from commsim.cli import app, complete
from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios
from commsim.topology.presets import load_file

ON = ["--on", "hgx-h100-ndr400"]


def said(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=typed)


def refused(*words: str, typed: str | None = None) -> str:
    result = said(*words, typed=typed)
    assert isinstance(result.exception, CommsimError), result.output
    return str(result.exception)


def test_a_collective_is_asked_as_nccl_tests_asks_it() -> None:
    done = said("run", "all_reduce", *ON, "-n", "2", "-b", "1M", "-e", "4M", "-f", "2", "--no-files", "--json")
    (item,) = json.loads(done.stdout)["results"][0]["items"]
    assert [row["size_bytes"] for row in item["rows"]] == [2**20, 2**21, 2**22]
    assert item["n_ranks"] == 16


def test_a_model_is_a_training_step_and_says_what_was_taken() -> None:
    done = said("run", "llama-3-8b", *ON, "-n", "2", "--tp", "8", "--no-files")
    assert done.stdout.startswith("# taken where nothing is said: a batch of 8 sequences (2 x 4 micro-batches of 1), ")
    assert "  step  " in done.stdout


def test_an_option_without_effect_is_told() -> None:
    done = said("run", "all_reduce", *ON, "-b", "8", "-e", "8", "--tp", "8", "--no-files")
    assert "warning: --tp 8 changes nothing: a collective has no such thing" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["all_reduce"], "found the collective 'all_reduce', expected a scenario, or a machine beside it, such as"),
        (["llama-3-70b"], "such as commsim run llama-3-70b --on hgx-h100-ndr400 --tp 8"),
        (["all_reduce", "-n", "4"], "found -n 4 without --on, expected a machine for 'all_reduce'"),
        (["quickstart", "-n", "4"], "of a scenario it is a change, such as topology.nodes=4"),
        (["all_reduce", *ON, "-b", "8x"], "-b: found the unit 'x'"),
        (["llama-3-8b", *ON, "--tp", "3"], "--tp 3 workload.0.training.mesh: "),
        (["llama-3-8b", *ON, "--rate", "nan"], "found nan, expected a finite number > 0"),
        (["all_reduce", *ON, "library.version=2.30"], "found the number 2.3, which 2.30 would be, too;"),
        (
            ["all_reduce", *ON, "topology.faults=[{node: 7, failed: true}]"],
            "override 'topology.faults=[{node: 7, failed: true}]' topology.faults.0.node: node 7 is not one of",
        ),
        (
            ["llama-3-8b", *ON, "-n", "2", "--micro-batches", "3", "--batch", "100"],
            "found 3 micro-batches on each of 16 replicas beside a batch of 100 sequences, expected a batch of 48",
        ),
    ],
)
def test_what_is_wrong_is_said_at_its_option(words: list[str], text: str) -> None:
    assert text in refused("run", *words, "--no-files")


def test_explain_takes_the_same_question() -> None:
    done = said("explain", "all_reduce", *ON, "-b", "1M", "-e", "1M", "--no-what-if")
    assert "all_reduce of 1 MiB on 8 ranks" in done.stdout


def test_tables_are_narrow_with_sizes_as_people_say_them_or_in_bytes() -> None:
    words = ["run", "all_reduce", *ON, "-n", "2", "-b", "8", "-e", "8G", "-f", "32", "--no-files"]
    narrow = said(*words).stdout.splitlines()
    assert max(map(len, narrow)) <= 100
    assert [line.split()[:2] for line in narrow if not line.startswith("#")][1] == ["256", "B"]
    wide = said(*words, "--bytes").stdout
    assert re.search(r"^ +256 +64 +float32 +sum +-1", wide, re.MULTILINE)


def test_the_quick_start_is_short_and_says_where_the_rest_is() -> None:
    short = said("run", "quickstart", "--no-files").stdout.splitlines()
    assert len(short) <= 12
    assert "# all tables here: commsim run quickstart --full" in short


def test_init_writes_what_run_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert said("init", str(file), "--yes").exit_code == 0
    (scenario,) = load_scenarios(file)
    assert (scenario.topology.nodes, scenario.collectives[0].collective) == (2, "all_reduce")
    assert "expected another name, or --force to overwrite it" in refused("init", str(file), "--yes")
    assert said("init", str(file), "--yes", "--force", "-n", "3").exit_code == 0
    assert load_scenarios(file)[0].topology.nodes == 3


def test_init_asks(tmp_path: Path) -> None:
    file = tmp_path / "step.yaml"
    done = said("init", str(file), typed="llama-3-8b\nhgx-h100-ndr400\ntraining\n8\n2\n4\n")
    assert done.exit_code == 0, done.output
    (scenario,) = load_scenarios(file)
    assert scenario.trainings[0].training.mesh.pp == 2
    assert scenario.topology.nodes == 4
    assert "did you mean 'all_reduce'?" in refused("init", str(tmp_path / "x.yaml"), typed="all_redcue\n")
    assert "found no answer to" in refused("init", str(tmp_path / "x.yaml"), typed="all_reduce\n")
    assert not (tmp_path / "x.yaml").exists()


def test_init_names_files_from_where_the_scenario_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("machine.yaml").write_text("extends: hgx-h100-ndr400\n")
    Path("questions").mkdir()
    assert said("init", "questions/a.yaml", "--yes", "--on", "machine.yaml").exit_code == 0
    assert load_scenarios(Path("questions/a.yaml"))[0].topology.path == "../machine.yaml"


def test_topo_new_writes_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    assert said("topo", "new", str(file), "--yes", "--gpu", "H100", "--nics", "4").exit_code == 0
    topology = load_file(file, nodes=2)
    assert (topology.gpu.model, topology.ranks_per_node, topology.nics_per_node) == ("H100 SXM5", 8, 4)
    assert "--force" in refused("topo", "new", str(file), "--yes", "--gpu", "H100")


def test_topo_new_says_all_that_is_missing_at_once(tmp_path: Path) -> None:
    text = refused("topo", "new", str(tmp_path / "m.yaml"), "--yes", "--gpu", "X900", "--nics", "0")
    assert "--generation: found none, expected it, such as 'hopper'" in text
    assert "--pcie-bandwidth: found none" in text
    assert "--nic-bandwidth" not in text


def test_a_machine_says_all_that_it_misses(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("gpu: {model: X}\nnode:\n  gpus: 8\n  nic: {count: 8}\n")
    text = refused("topo", "check", str(file))
    assert len(text.splitlines()) == 6
    assert "m.yaml:4:8 node.nic.bandwidth: found no key 'bandwidth', expected it, such as bandwidth: 400 Gb/s" in text


def test_names_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("")
    assert complete.presets("hgx-h100-n") == ["hgx-h100-ndr400"]
    assert complete.presets("mi") == ["mine.yaml"]
    assert "all_reduce" in complete.subjects("all_")
    assert "quickstart" in complete.subjects("quick")
    assert "topology.nodes=" in complete.overrides("topology.n")
    assert complete.overrides("topology.preset=dgx-1v-e") == ["topology.preset=dgx-1v-edr100"]
    assert "workload.0.training.mesh.tp=" in complete.overrides("workload.0.training.mesh")


@pytest.mark.parametrize(
    ("gpu", "nics"), [("A100", 8), ("A100 SXM4", 8), ("V100", 4), ("H100", 8), ("GB200", 72), ("4090", 0)]
)
def test_a_machine_of_every_gpu_is_written_with_yes(gpu: str, nics: int, tmp_path: Path) -> None:
    done = said("topo", "new", str(tmp_path / "m.yaml"), "--yes", "--gpu", gpu)
    assert done.exit_code == 0, done.exception
    assert f" and {nics} NICs a node" in done.stdout


def test_a_network_of_any_preset_is_an_answer(tmp_path: Path) -> None:
    assert said("topo", "new", str(tmp_path / "m.yaml"), "--yes", "--gpu", "A100", "--network", "efa_v1").exit_code == 0


def test_nvlink_none_takes_the_gpu_that_has_none(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    said("topo", "new", str(file), "--yes", "--gpu", "A100", "--nvlink", "none")
    assert "A100 PCIe" in file.read_text()
    done = said("topo", "new", str(file), "--yes", "--force", "--gpu", "A100 SXM4", "--nvlink", "none")
    assert "A100 SXM4 has NVLink switch where we ship it, here none" in done.output


def test_faults_name_the_option_and_the_unknown_gpu(tmp_path: Path) -> None:
    new = ["topo", "new", str(tmp_path / "m.yaml"), "--yes", "--gpu"]
    assert "--gpu: found the GPU 'Foo', which is none that we ship" in refused(*new, "Foo")
    assert refused(*new, "A100", "--nic-bandwidth", "400").startswith("--nic-bandwidth: found the bare number")
    scenario = ["init", str(tmp_path / "s.yaml"), "--yes"]
    assert "--nodes: found '0', expected a whole number from 1 up" in refused(*scenario, "-n", "0")


def test_piped_answers_stand_behind_their_prompts(tmp_path: Path) -> None:
    done = said("init", str(tmp_path / "s.yaml"), typed="all_reduce\n\n")
    assert "Which collective or model [all_reduce]: all_reduce\nOn which machine" in done.stderr
    assert done.stderr.endswith("How many nodes [2]: \n")


def test_init_writes_only_what_can_run(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    assert "--tp 3" in refused("init", str(file), "--yes", "--subject", "llama-3-70b", "--tp", "3")
    assert not file.exists()
    done = said("init", str(file), "--yes", "--subject", "llama-33b", "--on", "dgx-a100-hdr200", "-n", "8")
    assert done.exit_code == 0, done.exception
    assert "tp: 4\n" in file.read_text()  # of 52 heads


def test_a_plan_is_asked_in_one_line() -> None:
    done = said("plan", "llama-33b", "--on", "dgx-a100-hdr200", "-n", "8", "--no-simulate", "--no-files", "plan.best=1")
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith("# taken where nothing is said: a batch of 256 sequences\nllama-33b on 8 x dgx-a100-")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["plan", "llama-33b"], "such as commsim plan llama-33b --on hgx-h100-ndr400 -n 8"),
        (["run", "llama-33b"], "such as commsim run llama-33b --on hgx-h100-ndr400 --tp 4"),
        (["plan", "llama-33b", "-n", "8"], "found no --on, expected a machine for 'llama-33b'"),
        (["plan", "all_reduce", *ON], "found 'all_reduce', expected a model and a framework that trains it"),
        (["plan", "llama-33b", *ON, "--framework", "vllm"], "found 'llama-33b with vllm'"),
        (["run", "quickstart", *ON], "found the scenario 'quickstart' beside --on"),
        (["run", "all_reduce", *ON, "library.algorithm=ring"], "did you mean library.env.NCCL_ALGO=Ring?"),
        (["sweep", "all_reduce"], "such as commsim sweep all_reduce --on hgx-h100-ndr400 'topology.nodes=1..8 x2'"),
    ],
)
def test_hints_name_what_runs(words: list[str], text: str) -> None:
    assert text in refused(*words)


def test_a_sweep_is_asked_in_one_line_and_plotted(tmp_path: Path) -> None:
    asked = ["sweep", "all_reduce", *ON, "-b", "1M", "-e", "2M", "topology.nodes=1..2 x2", "-j", "1"]
    done = said(*asked, "--out", str(tmp_path), "--html")
    table = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert table[0] == ["nodes", "of", "size", "time", "(us)", "bus", "bandwidth", "(GB/s)"]
    assert [line[:4] for line in table[1:]] == [[n, "all_reduce", size, "MiB"] for n in "12" for size in "12"]
    drawn = said("plot", str(tmp_path))
    assert (tmp_path / "bandwidth.png").is_file()
    assert "# drawn: bandwidth; --kind takes " in drawn.stdout


def test_two_sweeps_of_a_question_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["sweep", "all_reduce", *ON, "topology.nodes=1..2 x2", "-j", "1", "-b", "1M", "-e"]
    first = said(*asked, "1M")
    assert "no NCCL version given: 2.26.2 is assumed" in first.stderr
    said(*asked, "2M")
    versions = said(*asked, "1M", "library.version=2.29.2")
    assert "is assumed" not in versions.stderr
    of = "all-reduce-on-hgx-h100-ndr400-over-nodes-1-2-x2-1-mib"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        of,
        f"{of}-2-mib-x2",
        f"{of}-with-version-2-29-2",
    ]


def test_an_empty_variable_is_the_choice_of_nccl(tmp_path: Path) -> None:
    asked = ["sweep", "all_reduce", *ON, "-n", "2", "-b", "1M", "-e", "1M", "-j", "1", "--out", str(tmp_path)]
    done = said(*asked, 'library.env.NCCL_ALGO=["", Ring]', "topology.node.pcie.bandwidth=[48 GB/s, 96 GB/s]")
    head, *lines = [line.strip() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert head.startswith("NCCL_ALGO  pcie bandwidth ")
    assert [line.split("  ")[0] for line in lines] == ["NCCL's own", "NCCL's own", "Ring", "Ring"]
    own = said("run", "all_reduce", *ON, "-n", "2", "-b", "1M", "-e", "1M", "--no-files").stdout
    assert next(line.split()[2] for line in own.splitlines() if line.lstrip().startswith("1 MiB")) in lines[0]


def test_explain_repeats_the_question() -> None:
    asked = ["explain", "all_reduce", *ON, "-n", "2", "-b", "1G", "-e", "1G"]
    repeat = next(line for line in said(*asked).stdout.splitlines() if "to repeat the best" in line)
    assert "commsim run all_reduce --on hgx-h100-ndr400 -n 2 -b 1G -e 1G " in repeat


@pytest.mark.parametrize(("size", "repeated"), [("3GB", "'workload.0.sizes=[3GB]' "), ("1GiB", "")])
def test_explain_repeats_a_size_that_the_scenario_lacks(size: str, repeated: str) -> None:
    *_, last = said("explain", "allreduce-8-h100", "--size", size).stdout.splitlines()
    assert last.startswith(
        f"  to repeat the best: commsim run allreduce-8-h100 {repeated}'topology.node.nvlink.bandwidth"
    )


def test_the_head_of_a_narrow_table_is_whole() -> None:
    assert "\n#size   time " in said("run", "all_reduce", *ON, "-b", "8", "-e", "12", "--no-files").stdout


def test_steps_of_a_sweep_have_the_batch_of_the_most_nodes(tmp_path: Path) -> None:
    done = said("sweep", "llama-3-8b", *ON, "topology.nodes=2..4 x2", "-j", "1", "--out", str(tmp_path))
    assert "failed" not in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[-3:-1]] == [["2", "llama3-8b"], ["4", "llama3-8b"]]
