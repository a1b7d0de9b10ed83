"""`commsim compare` end to end: the answer in the first line, causes, files, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from commsim.accuracy.causes import what_ifs
from commsim.accuracy.whatif import indistinct, likely, predicted_curve
from commsim.cli import app
from commsim.errors import LogFormatError
from commsim.measure.records import Curve
from commsim.scenario.load import load_scenarios

SCENARIO = """
name: Two nodes
topology: {preset: hgx-h100-ndr400, nodes: 2}
library: {name: nccl, version: 2.26.2}
workload: [{collective: all_reduce, sizes: 64 KiB .. 1 GiB x16}]
"""
SIZES = [64 << 10 << 2 * k for k in range(8)]


def compare(*words: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, words)])


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def _measured(path: Path, curve: Curve, factor: float = 1.0) -> Path:
    rows = "\n".join(f"{n},{1e6 * t * factor:.3f}" for n, t in zip(curve.size_bytes, curve.time_s, strict=True))
    head = "slug,collective,n_ranks\n" + f"{path.stem},all_reduce,16\n"
    (path.parent / "INDEX_x.csv").write_text(head)
    path.write_text(f"size_bytes,oop_time_us\n{rows}\n")
    return path


def test_a_curve_as_predicted_is_as_expected(scenario: Path, tmp_path: Path) -> None:
    curve = predicted_curve(load_scenarios(scenario)[0], "all_reduce", SIZES)
    log = _measured(tmp_path / "log.csv", curve, 1.02)
    result = compare(scenario, log, "--out", tmp_path / "o")
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()[0]
    assert first == (
        "log: as expected: 3 of 3 judged sizes within the band (5 cannot be judged), 1.02 times the predicted time at "
        "the median size; above 64 MiB 31 % of healthy machines are as slow"
    )
    assert {p.name for p in (tmp_path / "o").iterdir()} == {"comparison.csv", "comparison.png", "comparison.svg"}


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (2.0, 1)])
def test_the_command_fails_where_it_is_asked_to(scenario: Path, tmp_path: Path, factor: float, status: int) -> None:
    log = _measured(tmp_path / "log.csv", predicted_curve(load_scenarios(scenario)[0], "all_reduce", SIZES), factor)
    words = (scenario, log, "--no-plot", "--no-what-if")
    assert compare(*words).exit_code == 0
    assert compare(*words, "--fail-on", "slower, wrong").exit_code == status
    assert compare(*words, "--fail-on", "unjudged").exit_code == 0
    refused = compare(*words, "--fail-on", "slow,wrong")
    assert (refused.exit_code, "'slow'" in refused.output) == (2, True)


@pytest.mark.slow
def test_small_messages_alone_cannot_be_judged_where_healthy_machines_differ_as_much(
    scenario: Path, tmp_path: Path
) -> None:
    few = predicted_curve(load_scenarios(scenario)[0], "all_reduce", [64 << 10, 256 << 10])
    done = compare(scenario, _measured(tmp_path / "log.csv", few, 1.5), "--no-plot", "--fail-on", "unjudged")
    assert done.exit_code == 1
    assert done.stdout.startswith("log: cannot judge: x1.50 up to 1 MiB")


def test_wrong_results_are_the_verdict(scenario: Path, tmp_path: Path) -> None:
    curve = predicted_curve(load_scenarios(scenario)[0], "all_reduce", SIZES)
    rows = "".join(
        f"{n:>12} {n // 4:>12} float sum -1 {1e6 * t:.1f} {n / t / 1e9:.2f} {1.875 * n / t / 1e9:.2f} {wrong}\n"
        for n, t, wrong in zip(curve.size_bytes, curve.time_s, [0, 0, 7, 0, 9, 0, 0, 0], strict=True)
    )
    ranks = "".join(f"#  Rank {r:2} Group 0 Pid {r} on h{r // 8} device {r % 8} [0x0] NVIDIA H100\n" for r in range(16))
    head = "# size count type redop root time algbw busbw #wrong\n"
    log = tmp_path / "all_reduce.log"
    log.write_text(ranks + head + rows)
    done = compare(scenario, log, "--no-plot", "--fail-on", "wrong")
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith("all_reduce: wrong data: results of 2 of 8 sizes were wrong")


def test_the_page_says_what_the_terminal_says(scenario: Path, tmp_path: Path) -> None:
    curve = predicted_curve(load_scenarios(scenario)[0], "all_reduce", SIZES)
    log = _measured(tmp_path / "log.csv", curve, 50.0)
    page = tmp_path / "deep" / "c.html"
    result = compare(scenario, log, "--no-plot", "--no-what-if", "--html", page)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    answer = result.stdout.splitlines()[0]
    assert answer.startswith("log: slower than expected: x50.00 above 64 MiB (fewer than 0.1 % of healthy machines")
    assert f"<p>{answer}</p>" in text[: text.index("<h2")]
    assert text.count(">slower x50.00</td>") == 8
    assert text.count("<svg xmlns") == 1
    assert "How sure this is" in text
    assert str(log) in text


def test_a_page_of_nothing_compared_is_refused(tmp_path: Path, checkout: Path) -> None:
    log = checkout / "tests" / "data" / "logs" / "all_reduce_one_process.log"
    result = compare("--parse-only", log, "--html", tmp_path / "c.html")
    assert result.exit_code == 2
    assert not (tmp_path / "c.html").exists()


def test_one_nic_in_use_is_found(scenario: Path, tmp_path: Path) -> None:
    one = load_scenarios(scenario)[0]
    cause = next(w for w in what_ifs(one) if w.cause == "one NIC of 8 in use")
    log = _measured(tmp_path / "log.csv", predicted_curve(cause.change(one), "all_reduce", SIZES))
    result = compare(scenario, log, "--json", "--no-plot")
    verdict = json.loads(result.stdout)["comparisons"][0]["verdict"]
    assert verdict["state"] == "slower"
    assert "likely cause: one NIC of 8 in use (" in verdict["answer"]
    assert verdict["sizes"][-1]["verdict"].startswith("slower x")


def test_a_plugin_that_sets_nothing_is_a_cause(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("hgx-h100-ndr400", "aws-p4d"))
    (one,), (bare,) = load_scenarios(path), load_scenarios(path, ["topology.fabric.plugin=none"])
    (cause,) = (w for w in what_ifs(one) if "plugin=" in w.cause)
    assert cause.cause == "aws-ofi-nccl does not set its variables (fabric.plugin=none)"
    curves = [predicted_curve(s, "all_reduce", [1 << 18]).time_s for s in (one, cause.change(one), bare)]
    assert curves[1] == curves[2] != curves[0]
    assert not any("plugin=" in option.cause for option in what_ifs(bare))


@pytest.mark.parametrize(
    ("mode", "other"),
    [
        ("process_per_gpu", "one_process"),
        ("one_process", "process_per_gpu"),
        ("thread_per_gpu", "one_process"),  # threads launch side by side, as processes do
    ],
)
@pytest.mark.parametrize("stated", [True, False])
def test_the_other_launch_mode_is_found(tmp_path: Path, mode: str, other: str, stated: bool) -> None:
    path = tmp_path / "s.yaml"
    words = SCENARIO.replace(", nodes: 2", "").replace("2.26.2", f"2.26.2, launch_mode: {mode}")
    path.write_text(words.replace("64 KiB .. 1 GiB x16", "8 B .. 8 MiB x8"))
    (one,) = load_scenarios(path)
    measured = dataclasses.replace(
        predicted_curve(load_scenarios(path, [f"library.launch_mode={other}"])[0], "all_reduce", [8, 4096, 1 << 20]),
        kind="measured",
        conditions={"launch": other} if stated else {},
    )
    best = likely(one, measured)[0]
    assert best.score == pytest.approx(0, abs=1e-9)
    assert best.cause.endswith(f"{', as the log says' if stated else ''} (library.launch_mode={other})")


def test_a_launch_mode_that_the_log_states_is_no_cause(scenario: Path) -> None:
    (one,) = load_scenarios(scenario)
    assert any("launch_mode" in option.cause for option in what_ifs(one))
    for launch in ("process_per_gpu", "thread_per_gpu"):
        assert not any("launch_mode" in option.cause for option in what_ifs(one, {"launch": launch}))
    (grouped,) = load_scenarios(scenario, ["library.launch_mode=one_process"])
    assert not any("launch_mode" in option.cause for option in what_ifs(grouped, {"launch": "process_per_node"}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "cause",
    [
        "Ring",
        "only Simple",
        "only LL ",
        "no GPUDirect",
        "half their rate",
        "TCP sockets",
        "PCIe instead",
        "P2P",
        "one process",
    ],
)
def test_every_cause_is_found_through_noise(scenario: Path, cause: str) -> None:
    # A launch shows where the kernel is shorter: on one node.
    one = load_scenarios(scenario, ["topology.nodes=1"] if cause == "one process" else [])[0]
    option = next(w for w in what_ifs(one) if cause in w.cause)
    curve = predicted_curve(option.change(one), "all_reduce", SIZES)
    noise = np.exp(0.02 * np.random.default_rng(1).standard_normal(len(curve)))
    measured = dataclasses.replace(
        curve, kind="measured", time_s=curve.time_s * noise, low_s=None, high_s=None, lower_bound_s=None
    )
    # Some cannot be told apart on this machine: without NVLink GPUs talk over PCIe, without peer to peer through their
    # host, by the same ports. What is nearly as probable as the first is named beside it. Rings look like NVLS off, and
    # published machines more often lacked GPUDirect than they ran another algorithm: Ring comes third.
    tried = likely(one, measured)
    named = {each.kind for each in indistinct(tried)} | set(list(dict.fromkeys(each.kind for each in tried))[:3])
    assert option.kind in named
    assert len(named) <= 6


def test_several_runs_and_logs_at_once(scenario: Path, tmp_path: Path) -> None:
    curve = predicted_curve(load_scenarios(scenario)[0], "all_reduce", SIZES)
    log = _measured(tmp_path / "log.csv", curve)
    run = CliRunner().invoke(app, ["run", str(scenario), "--out", str(tmp_path / "r")])
    assert run.exit_code == 0
    result = compare(log, tmp_path / "r", scenario, tmp_path / "log.csv", "--no-what-if")
    assert result.exit_code == 0, result.output
    answers = [line for line in result.stdout.splitlines() if line.startswith("log: ")]
    assert len(answers) == 2  # one log, given twice, with two predictions
    assert result.stdout.count("log.csv was given 2 times, and counts once") == 2
    assert (tmp_path / "r" / "comparison.png").is_file()


def test_small_messages_have_a_speed_too(scenario: Path, tmp_path: Path) -> None:
    curve = predicted_curve(load_scenarios(scenario)[0], "all_reduce", [8, 1024, 1 << 30])
    log = _measured(tmp_path / "log.csv", curve)
    lines = compare(scenario, log, "--no-plot", "--no-what-if", "--bytes").stdout.splitlines()
    head = next(line for line in lines if line.startswith("#       size"))
    rows = [line for line in lines if line.startswith(" ")]
    for row, seconds in zip(rows, curve.time_s, strict=True):
        nbytes, _, _, busbw, _, slow, _, fast, *_ = row.split()
        assert float(busbw) == pytest.approx(1e-9 * int(nbytes) * 1.875 / seconds, rel=0.05)
        assert float(slow) < float(busbw) < float(fast)
        # A band that reaches to half the speed holds a machine half as fast: nothing is judged by it.
        said = "cannot judge" if float(slow) < 0.5 * float(busbw) else "as expected"
        assert row.index(said) == head.index("verdict")


def test_a_shipped_scenario_goes_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "INDEX_x.csv").write_text("slug,collective,n_ranks\nlog,all_reduce,8\n")
    (tmp_path / "log.csv").write_text("size_bytes,oop_time_us\n1073741824,5300\n")
    said = compare("allreduce-8-h100", tmp_path / "log.csv", "--no-what-if", "--no-plot")
    assert said.exit_code == 0, said.exception
    assert "1 of 1 sizes" in said.stdout
    near = compare("allreduce-8-h10", "quickstrat", tmp_path / "log.csv")
    assert isinstance(near.exception, LogFormatError)
    first, second = str(near.exception).splitlines()
    assert first.startswith(
        "allreduce-8-h10: no such file or folder, and found no scenario file 'allreduce-8-h10'; did "
    )
    assert second.endswith("did you mean quickstart or gloo-quickstart?")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["log.csv"], "which machine is this? The log names no GPU, only 16 ranks"),
        (["s.yaml"], "found predictions only"),
        (["s.yaml", "other.csv"], "measures broadcast, but"),
        (["s.yaml", "gone.log"], "No such file"),
    ],
)
def test_what_cannot_be_compared_is_said(scenario: Path, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "INDEX_x.csv").write_text("slug,collective,n_ranks\nlog,all_reduce,16\nother,broadcast,16\n")
    for name in ("log.csv", "other.csv"):
        (tmp_path / name).write_text("size_bytes,oop_time_us\n1048576,50\n")
    result = compare(*(tmp_path / word for word in words))
    assert isinstance(result.exception, LogFormatError)
    assert message in str(result.exception)


def test_parse_only(tmp_path: Path, checkout: Path) -> None:
    log = next(p for p in sorted((checkout / "tests" / "data" / "logs").glob("*.log")) if "failed" not in p.name)
    result = compare("--parse-only", log, "--json")
    document = json.loads(result.stdout)
    assert set(document) == {"tables", "skipped_lines"}
    table = document["tables"][0]
    assert {"collective", "n_ranks", "conditions", "rows"} <= set(table)
    assert table["rows"][0].keys() >= {"size_bytes", "time_us", "algbw_GBps", "busbw_GBps"}
    assert "sizes" in compare("--parse-only", log).stdout


def test_parse_only_of_a_run_that_failed_and_of_what_is_no_log(tmp_path: Path, checkout: Path) -> None:
    logs = checkout / "tests" / "data" / "logs"
    failed = next(logs.glob("*failed*"))
    good = next(p for p in sorted(logs.glob("*.log")) if "failed" not in p.name)
    document = json.loads(compare("--parse-only", failed, good, "--json").stdout)
    empty, whole = document["tables"][:2]
    assert empty["rows"] == []
    assert "a table without rows: the run ended before its first result" in empty["notes"][-1]
    assert whole["rows"]
    (tmp_path / "letter.log").write_text("Dear reader,\n")
    result = compare("--parse-only", tmp_path / "letter.log", good, "--json")
    assert isinstance(result.exception, LogFormatError)
    assert len(json.loads(result.stdout)["tables"]) == len(document["tables"]) - 1


def test_a_reader_that_leaves_is_no_error(scenario: Path) -> None:
    run = f"{sys.executable} -m commsim run {scenario} --no-files"
    command = f"{run} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_log_that_does_not_say_its_ranks_is_drawn_as_of_the_predictions(scenario: Path, tmp_path: Path) -> None:
    """Times that its bandwidth columns contradict leave the number of ranks unknown."""
    curve = predicted_curve(load_scenarios(scenario)[0], "all_reduce", SIZES)
    log = tmp_path / "log.csv"
    rows = "".join(f"{n},{1e6 * t / 3:.3f}\n" for n, t in zip(curve.size_bytes, curve.time_s, strict=True))
    log.write_text(f"size_bytes,oop_time_us\n{rows}")
    (tmp_path / "INDEX_x.csv").write_text("slug,collective\nlog,all_reduce\n")
    done = compare(scenario, log, "--out", tmp_path / "o")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("log: below what the links can carry: a wrong machine, size or time: ")
    assert "does not say how many ranks" in done.stdout
    assert (tmp_path / "o" / "comparison.png").is_file()
