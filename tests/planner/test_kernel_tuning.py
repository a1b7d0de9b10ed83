"""`commsim tune --kernels`: winners and thresholds of all-reduce kernels, against the shipped ones."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.bounds import lower_bound_s
from commsim.cli import app
from commsim.errors import CommsimError, InfeasibleError, ScenarioError
from commsim.kernels.choice import FRAMEWORKS, KernelCall, choose
from commsim.kernels.device import kernel_device
from commsim.kernels.predict import kernel_time, kernel_values
from commsim.nccl.operation import Operation
from commsim.nccl.predict import Options, Predictor
from commsim.planner.kernels import SIZES, KernelTuning, kernel_tuning, notes_of, tuning_document
from commsim.report.kernel_tables import kernel_map, kernel_tables
from commsim.scenario.load import load_scenarios
from commsim.topology.presets import load_preset
from commsim.training.accelerator import accelerator

TEXT = "name: n\ntopology: {topology}\nworkload: [{{collective: all_reduce, sizes: 1 MiB}}]\n"


def tuned(folder: Path, topology: str = "{preset: hgx-h100}") -> tuple[KernelTuning, ...]:
    path = folder / "s.yaml"
    path.write_text(TEXT.format(topology=topology))
    return kernel_tuning(load_scenarios(path)[0])


def tuned_with(folder: Path, *overrides: str) -> tuple[KernelTuning, ...]:
    path = folder / "s.yaml"
    path.write_text(TEXT.format(topology="{preset: hgx-h100}"))
    return kernel_tuning(load_scenarios(path, list(overrides))[0])


def at(stretches: tuple[object, ...], size: int) -> object:
    return [s for s in stretches if s.low <= size][-1]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> tuple[KernelTuning, ...]:
    return tuned(tmp_path_factory.mktemp("h100"))


def test_every_number_of_gpus_of_a_host_has_its_thresholds(h100: tuple[KernelTuning, ...], tmp_path: Path) -> None:
    assert [t.ranks for t in h100] == [2, 4, 8]
    assert [t.ranks for t in tuned(tmp_path, "{preset: gb200-nvl72}")] == [2, 4]  # of a tray
    assert [t.ranks for t in tuned(tmp_path, "{preset: hgx-h100-ndr400, nodes: 4}")] == [2, 4, 8]


def test_small_messages_are_not_nccl_s_and_large_ones_are(h100: tuple[KernelTuning, ...]) -> None:
    for t in h100:
        assert t.winners[0].framework
        assert t.winners[-1].kernel == "nccl"
        assert t.seconds[SIZES[0]]["winner"] < 0.5 * t.seconds[SIZES[0]]["nccl"]
        assert all(of["winner"] <= of["nccl"] for of in t.seconds.values())


def test_the_winner_is_the_quickest_of_the_best(h100: tuple[KernelTuning, ...]) -> None:
    """Two roads: the winner of all, and the quickest of what is best for each framework."""
    device = kernel_device(accelerator("H100"))
    for t in h100:
        for size in SIZES:
            times = []
            for name in FRAMEWORKS:
                stretch = at(t.best[name], size)
                kernel = stretch.kernel  # type: ignore[attr-defined]
                call = KernelCall(name, (0, 0, 0), device, t.ranks, size)
                of = t.seconds[size]["nccl"] if kernel == "nccl" else None
                times.append(of or kernel_time(call, kernel, cuda_graph=True).time_s)
            assert min(times) == pytest.approx(t.seconds[size]["winner"], rel=1e-9)


def test_what_is_shipped_is_what_the_rules_say_and_never_beats_the_best(h100: tuple[KernelTuning, ...]) -> None:
    device = kernel_device(accelerator("H100"))
    for t in h100:
        for size in SIZES:
            rule = choose(KernelCall("vllm", (0, 24, 0), device, t.ranks, size)).kernel
            assert at(t.shipped["vllm"], size).kernel == rule  # type: ignore[attr-defined]
        assert all(lost >= 0.0 for lost in t.lost.values())
        for name in FRAMEWORKS:
            assert (t.lost[name] == 0.0) == (t.best[name] == t.shipped[name])


def test_thresholds_ascend_and_differ_from_their_neighbours(h100: tuple[KernelTuning, ...]) -> None:
    document = tuning_document(h100)
    assert json.loads(json.dumps(document)) == document
    for of in document["by_number_of_gpus"].values():
        lists = [of["winners"], *(f[key] for f in of["frameworks"].values() for key in ("shipped", "best"))]
        for rules in lists:
            assert rules[0]["from_bytes"] == document["smallest_bytes"]
            pairs = list(pairwise(rules))
            assert all(a["from_bytes"] < b["from_bytes"] for a, b in pairs)
            assert all((a["framework"], a["kernel"]) != (b["framework"], b["kernel"]) for a, b in pairs)


def test_the_table_names_the_losses(h100: tuple[KernelTuning, ...]) -> None:
    text = kernel_tables(h100)
    assert text.startswith("# all_reduce of bfloat16 on hgx-h100")
    assert text.count("vllm ships:") == 3
    assert f"{100 * h100[2].lost['vllm']:.1f} % lost on average" in text.replace("\n#  ", "")


def test_the_command_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["tune", "custom-all-reduce", "--kernels"])
    assert done.exit_code == 0
    assert done.output.endswith("# wrote kernels.json\n")
    document = json.loads((tmp_path / "kernels.json").read_text())
    assert document["machine"] == "hgx-h100"
    printed = CliRunner().invoke(app, ["tune", "custom-all-reduce", "--kernels", "--json", "-o", "other.json"])
    assert json.loads(printed.stdout) == document
    assert "kernels of flashinfer are outside what was measured" in printed.stderr


def test_the_map_has_a_field_for_every_size_and_number_of_gpus(h100: tuple[KernelTuning, ...]) -> None:
    figure = kernel_map(h100)
    (mesh,) = figure.axes[0].collections
    assert mesh.get_array().shape == (3, len(SIZES))  # type: ignore[union-attr]
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {stretch.name for t in h100 for stretch in t.winners}


def test_a_picture_is_drawn_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["tune", "custom-all-reduce", "--kernels", "--plot", "map.svg"])
    assert done.output.endswith("# wrote kernels.json and map.svg\n")
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    for words in (["--kernels", "--plot", "map.gif", "-o", "new.json"], ["--plot", "map.png"]):
        with pytest.raises(CommsimError, match="expected"):
            CliRunner().invoke(app, ["tune", "custom-all-reduce", *words], catch_exceptions=False)
    assert not (tmp_path / "new.json").exists()


def test_machines_without_such_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="without NVLink"):
        tuned(tmp_path, "{preset: h100-pcie}")
    with pytest.raises(ScenarioError, match="volta"):
        tuned(tmp_path, "{preset: dgx-2}")
    with pytest.raises(InfeasibleError, match="fewer than two GPUs"):
        tuned(tmp_path, "{preset: hgx-h100, gpus_per_node: 1}")


def test_where_nvlink_does_not_join_all_only_nccl_runs_as_in_a_run(tmp_path: Path) -> None:
    """NVLink joins pairs of these boards, PCIe the pairs; nothing is quicker than the bound of that."""
    two, *more = tuned(tmp_path, "{preset: h100-nvl}")
    assert two.ranks == 2
    assert two.winners[0].framework
    assert [t.ranks for t in more] == [4, 8]
    for t in more:
        assert [stretch.name for stretch in t.winners] == ["nccl"]
        assert all([s.kernel for s in t.shipped[name]] == ["nccl"] for name in FRAMEWORKS)
        assert all(of["winner"] == of["nccl"] for of in t.seconds.values())
        assert f"{t.ranks} GPUs: no kernel of a framework runs: NVLink does not join all" in kernel_tables([two, t])


def test_no_kernel_is_below_the_lower_bound(h100: tuple[KernelTuning, ...]) -> None:
    for t in h100:
        topology = load_preset("hgx-h100", nodes=1, gpus_per_node=t.ranks)
        for size, of in t.seconds.items():
            assert of["winner"] >= lower_bound_s("all_reduce", size, topology, in_network=True).seconds


def test_nccl_of_a_named_release_runs_on_registered_buffers_and_windows(tmp_path: Path) -> None:
    """Two roads: the candidate, and NCCL's model with the buffers registered as windows."""
    tunings = tuned_with(tmp_path, "library.name=nccl", "library.version=2.28.9", "library.registered=window")
    eight = tunings[-1]
    assert eight.contest.candidates == ("nccl", "nccl registered", "nccl symmetric")
    topology = load_preset("hgx-h100", nodes=1)
    options = Options((2, 28, 9), registered="window", operation=Operation("bfloat16"))
    by_window = Predictor(topology, options).predict("all_reduce", 1 << 20)
    assert by_window.algorithm == "symmetric"
    assert eight.seconds[1 << 20]["nccl symmetric"] == by_window.time_s < eight.seconds[1 << 20]["nccl"]
    assert "nccl symmetric" in [stretch.name for stretch in eight.winners]
    document = tuning_document(tunings)
    assert document["nccl"] == "2.28.9"
    assert document["nccl_candidates"] == ["nccl", "nccl registered", "nccl symmetric"]
    before = tuned_with(tmp_path, "library.version=2.26.2", "library.registered=window")
    assert before[0].contest.candidates == ("nccl", "nccl registered")
    assert any("window, which NCCL 2.26.2 makes nothing of" in text for text in notes_of(before))


def test_the_type_the_release_and_the_graph_are_those_of_the_scenario(tmp_path: Path) -> None:
    lib = ("library.name=custom_all_reduce", "library.framework=sglang", "library.version=0.5.10")
    eight = tuned_with(tmp_path, *lib, "library.cuda_graph=false", "workload.0.dtype=float16")[-1]
    names = {stretch.kernel for stretch in eight.best["sglang"]}
    assert names <= {"peer.one_shot", "peer.two_shot", "nccl"}
    assert [s.kernel for s in eight.shipped["sglang"]] == ["peer.one_shot", "peer.two_shot", "nccl"]
    assert not any(s.kernel.startswith("symmetric") for s in (*eight.shipped["vllm"], *eight.best["vllm"]))
    host = kernel_values()["host.call"]  # from Python nothing is quicker than the host
    assert min(of["winner"] for of in eight.seconds.values()) == pytest.approx(host)
    document = tuning_document([eight])
    assert (document["dtype"], document["cuda_graph"]) == ("float16", False)
    assert document["releases"]["sglang"] == "0.5.10"
    assert "all_reduce of float16 on hgx-h100, calls from Python" in kernel_tables([eight])


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    tunings = tuned_with(tmp_path, "mode=single", "workload.0.redop=max", "workload.0.dtype=int8")
    notes = notes_of(tunings)
    assert any("mode" in text and "has no effect on --kernels" in text for text in notes)
    assert any("redop has no effect" in text for text in notes)
    assert all(s.kernel == "nccl" for t in tunings for name in FRAMEWORKS for s in t.best[name])  # no kernels of int8


def test_variables_of_nccl_count_and_are_shown(tmp_path: Path) -> None:
    slow = tuned_with(tmp_path, "library={name: nccl, version: 2.27.5, env: {NCCL_ALGO: Ring}}")
    usual = tuned_with(tmp_path, "library={name: nccl, version: 2.27.5}")
    assert slow[-1].seconds[1 << 28]["nccl"] > usual[-1].seconds[1 << 28]["nccl"]  # NVLS is quicker
    assert "# NCCL 2.27.5 with NCCL_ALGO=Ring: nccl, nccl registered, nccl symmetric" in kernel_tables(slow)
    assert tuning_document(slow)["nccl_env"] == {"NCCL_ALGO": "Ring"}
