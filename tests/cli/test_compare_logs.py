"""`commsim compare LOG...` without a scenario: machine and verdict, questions, several logs, pipes, JUnit, floods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from log_text import log_text
from typer.testing import CliRunner, Result

from commsim.accuracy.whatif import predicted_curve
from commsim.cli import app
from commsim.document.reading import parse_documents
from commsim.errors import CommsimError
from commsim.scenario.load import check_document

SCENARIO = """
name: One node
topology: {preset: hgx-h100}
library: {name: nccl, version: 2.26.2}
workload: [{collective: all_reduce, sizes: 1 KiB .. 1 GiB x16}]
"""
RELEASE = ("NCCL version 2.26.2+cuda12.8",)
SIZES = [1 << k for k in range(10, 31, 4)]


def compare(*words: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, words)], input=stdin)


def times(factor: float = 1.0) -> list[tuple[int, float]]:
    """Times of one H100 node as predicted, in us."""
    (document,) = parse_documents(SCENARIO, "one.yaml")
    scenario, _ = check_document(document, Path())
    assert scenario is not None
    curve = predicted_curve(scenario, "all_reduce", SIZES)
    return [(int(n), 1e6 * factor * t) for n, t in zip(curve.size_bytes, curve.time_s, strict=True)]


def written(folder: Path, name: str = "log", factor: float = 1.0, **said: object) -> Path:
    path = folder / f"{name}.log"
    path.write_text(log_text(times_us=times(factor), extra=RELEASE, **said))  # type: ignore[arg-type]
    return path


def test_a_log_alone_has_a_verdict_after_what_was_assumed(tmp_path: Path) -> None:
    done = compare(written(tmp_path))
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("# machine: hgx-h100, 1 node of 8 x H100 SXM5; ")
    assert second.startswith("log: as expected: 4 of 4 judged sizes within the band (2 cannot be judged), 1.00")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.log"]  # nothing is written unasked


def test_columns_of_a_prediction_are_a_log(tmp_path: Path) -> None:
    """Its heading says collective and ranks, which the columns of an all_gather do not."""
    words = ["run", "all_gather", "--on", "hgx-h100", "-b", "1M", "-e", "64M", "-f", "8", "--bytes", "--no-files"]
    path = tmp_path / "own.txt"
    path.write_text(CliRunner().invoke(app, words).stdout)
    done = compare(path, "--on", "hgx-h100")
    assert done.exit_code == 0, done.output
    assert "1.00 times the predicted time" in done.stdout


@pytest.mark.parametrize(("factor", "status", "state"), [(1.0, 0, "as expected"), (4.0, 1, "slower")])
def test_ci_gets_status_json_and_junit(tmp_path: Path, factor: float, status: int, state: str) -> None:
    report = tmp_path / "report.xml"
    words = (written(tmp_path, factor=factor), "--fail-on", "slower,wrong,unjudged", "--no-what-if", "--json")
    done = compare(*words, "--junit", report)
    assert done.exit_code == status
    verdict = json.loads(done.stdout)["comparisons"][0]["verdict"]
    assert verdict["state"] == state
    suite = ET.parse(report).getroot()
    assert (suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuite", "1", str(status))
    failure = suite.find("testcase/failure")
    assert (failure is not None) == bool(status)
    if failure is not None:
        assert failure.get("type") == "slower"
        assert failure.get("message") == verdict["answer"]


def test_wrong_results_fail_in_junit_by_themselves(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert compare(written(tmp_path, wrong=3), "--junit", report).exit_code == 0
    assert ET.parse(report).getroot().get("failures") == "1"


def test_without_a_terminal_the_question_is_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "two.log"
    path.write_text(log_text(hosts=("a", "b"), times_us=times()))
    done = subprocess.run(
        [sys.executable, "-m", "commsim", "compare", str(path)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 2
    assert "which machine is this? The log names NVIDIA H100 80GB HBM3 on 2 hosts, but not the network" in done.stderr
    assert f"commsim compare {path} --on hgx-h100-ndr400" in done.stderr
    assert done.stdout == ""
    assert compare(path, "--on", "hgx-h100-ndr400", "--no-what-if").exit_code == 0


@pytest.mark.parametrize(
    ("on", "message"),
    [("hgx-h200", "no NIC that joins several"), ("hgx-h10", "did you mean"), ("gone.yaml", "gone.yaml")],
)
def test_a_machine_that_cannot_be_is_refused(tmp_path: Path, on: str, message: str) -> None:
    path = tmp_path / "two.log"
    path.write_text(log_text(hosts=("a", "b"), times_us=times()))
    done = compare(path, "--on", on)
    assert isinstance(done.exception, CommsimError)
    assert message in str(done.exception)


def test_of_a_log_without_ranks_the_nodes_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.csv"
    path.write_text("size_bytes,time_us\n" + "".join(f"{n},{t:.2f}\n" for n, t in times()))
    silent, named = compare(path), compare(path, "--on", "hgx-h100-ndr400")
    for done, words in ((silent, "(--on MACHINE, which commsim topo list shows) and nodes (-n)"), (named, "(-n)")):
        assert isinstance(done.exception, CommsimError)
        assert str(done.exception).startswith(f"{path}: the log ")
        assert words in str(done.exception)
    one = compare(path, "--on", "hgx-h100", "--no-what-if")  # it joins no nodes: one
    assert "# taken: the log names no ranks: all GPUs of 1 node\n" in one.stdout
    assert "all_reduce: as expected: " in one.stdout
    two = compare(path, "--on", "hgx-h100-ndr400", "-n", "2", "--no-what-if")
    assert "2 nodes of 8 x H100 SXM5\n# taken: the log names no ranks: all GPUs of 2 nodes\n" in two.stdout


@pytest.mark.parametrize(("nodes", "message"), [("3", "found 3 nodes (-n)"), ("4", "but the log is of 2")])
def test_nodes_that_are_not_those_of_the_log_are_refused(tmp_path: Path, nodes: str, message: str) -> None:
    path = tmp_path / "two.log"
    path.write_text(log_text(hosts=("a", "b"), times_us=times()))
    done = compare(path, "--on", "hgx-h100-ndr400", "-n", nodes)
    assert isinstance(done.exception, CommsimError)
    assert message in str(done.exception)


@pytest.mark.parametrize(("columns", "left_out"), [(60, "busbw, expected busbw"), (80, "expected busbw"), (100, "")])
def test_a_narrow_terminal_keeps_times_error_and_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, left_out: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = compare(written(tmp_path, factor=3.0), "--on", "hgx-h100").stdout
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= columns
    head = next(line for line in text.splitlines() if line.split()[:2] == ["#", "size"])
    assert {"predicted", "measured", "error", "verdict"} <= set(head.split())
    assert (f"# left out, {columns} columns wide: {left_out}\n" in text) == bool(left_out)


def test_the_page_has_the_signs_of_the_table_and_what_none_of_the_causes_is(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = compare(written(tmp_path, factor=3.0), "--html", page).stdout
    assert "  -66.7  " in text
    assert "# none of these: " in text
    shown = page.read_text(encoding="utf-8")
    assert ">-66.7<" in shown
    assert "none of these" in shown


def test_wide_characters_of_names_keep_columns_straight_and_pictures_quiet(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    done = compare(written(tmp_path, "机器"), written(tmp_path, "machine"), "--no-what-if", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    rows = [line for line in done.stdout.splitlines() if line.startswith(("  机器 ", "  machine "))]
    assert [line.index("all_reduce") for line in rows] == [9, 11]  # two characters that take two columns
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_another_gpu_than_asked_for_is_said_first(tmp_path: Path) -> None:
    done = compare(written(tmp_path), "--on", "dgx-a100", "--no-what-if")
    first = done.stdout.splitlines()[0]
    assert first.startswith("# the log contradicts the machine: the log is of NVIDIA H100 80GB HBM3, ")
    assert first.endswith("the prediction of A100 SXM4")


@pytest.mark.parametrize(("factor", "hosts"), [(1.0, ("n0",)), (9.0, ("n0",)), (1.0, ("a", "b"))])
def test_of_another_machine_than_asked_for_nothing_is_judged(
    tmp_path: Path, factor: float, hosts: tuple[str, ...]
) -> None:
    path = tmp_path / "log.log"
    path.write_text(log_text(hosts=hosts, each=8 // len(hosts), times_us=times(factor)))
    scenario = tmp_path / "s.yaml"
    scenario.write_text(SCENARIO.replace("hgx-h100", "dgx-a100") if len(hosts) == 1 else SCENARIO)
    done = compare(scenario, path, "--no-plot", "--fail-on", "unjudged")
    assert done.exit_code == 1, done.output
    answer = next(line for line in done.stdout.splitlines() if line.startswith("log: "))
    assert answer.startswith("log: cannot judge: the log is of ")
    assert done.stdout.count("  cannot judge") == len(SIZES)
    assert "what if" not in done.stdout


@pytest.mark.parametrize("time", ["nan", "-60.00", "1e308", "0.00"])
def test_a_log_with_rows_that_cannot_be_read_is_not_as_expected(tmp_path: Path, time: str) -> None:
    path = written(tmp_path)
    *head, last = path.read_text().splitlines()
    words = last.split()
    path.write_text("\n".join([*head, " ".join([*words[:5], time, *words[6:]])]) + "\n")
    done = compare(path, "--fail-on", "unjudged", "--no-what-if")
    assert done.exit_code == 1, done.output
    answer = next(line for line in done.stdout.splitlines() if line.startswith("log: "))
    assert answer.startswith("log: cannot judge; 1 row of the log cannot be read; of the others: as expected: 3 of 3")


def test_wrong_results_have_no_causes(tmp_path: Path) -> None:
    done = compare(written(tmp_path, wrong=3, factor=4.0), "--fail-on", "wrong")
    assert done.exit_code == 1
    assert done.stdout.count("  wrong data") == len(SIZES)
    assert "what if" not in done.stdout
    assert "apart" not in done.stdout


def test_the_curves_of_one_log_are_called_so(tmp_path: Path) -> None:
    path = written(tmp_path)
    text = path.read_text()
    path.write_text(text * 2)
    lines = compare(path, path, "--no-what-if").stdout.splitlines()
    assert "overall: as expected: 2 of 2 curves of 1 log" in lines


def test_contradictions_with_a_scenario_are_said_first(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(SCENARIO.replace("2.26.2", "2.18.5"))
    done = compare(scenario, written(tmp_path, processes=False), "--no-plot", "--no-what-if")
    lines = done.stdout.splitlines()[:2]
    assert lines[0] == "# log contradicts One node: the log is of NCCL 2.26.2, the prediction of 2.18.5"
    assert "one process for all GPUs of a node" in lines[1]


def test_several_logs_are_one_table_and_an_overall_verdict(tmp_path: Path) -> None:
    logs = [written(tmp_path, name, factor) for name, factor in (("one", 1.0), ("two", 1.02), ("three", 4.0))]
    done = compare(*logs, "--no-what-if", "--fail-on", "slower")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert "overall: slower: 1 of 3 logs (2 as expected)" in lines
    rows = [line.split()[0] for line in lines if line.startswith("  ")]
    assert rows == ["one", "two", "three"]
    assert sum("machine: hgx-h100" in line for line in lines) == 1
    assert all(len(line) <= 100 for line in lines if line.startswith("  "))


def test_a_log_may_come_through_standard_input_or_a_pipe(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    done = compare("-", "--no-what-if", stdin=text)
    assert done.exit_code == 0, done.output
    assert any(line.startswith("stdin: as expected") for line in done.stdout.splitlines())
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    piped = compare(f"/dev/fd/{read}", "--no-what-if")
    os.close(read)
    assert piped.exit_code == 0, piped.output


def all_reduce_csv(folder: Path, rows: str) -> Path:
    path = folder / "all_reduce.csv"
    path.write_text(rows)
    return path


def test_rows_of_one_size_that_disagree_are_not_judged(tmp_path: Path) -> None:
    table = all_reduce_csv(tmp_path, "size_bytes,time_us\n1073741824,3000\n1073741824,9000\n")
    done = compare(table, "--on", "hgx-h100-ndr400", "-n", 4, "--fail-on", "unjudged", "--no-what-if")
    assert done.exit_code == 1
    assert "all_reduce: cannot judge: rows of one size disagree: x3.00 at 1 GiB\n" in done.stdout
    assert "note: rows of one size disagree: x3.00 at 1 GiB; such a size cannot be judged" in done.stdout


def test_times_below_what_the_links_can_carry_are_wrong(tmp_path: Path) -> None:
    table = all_reduce_csv(tmp_path, "size_bytes,time_us\n1024,0.000001\n1073741824,0.001\n")
    words = (table, "--on", "hgx-h100-ndr400", "-n", 2, "--junit", tmp_path / "j.xml")
    done = compare(*words, "--fail-on", "wrong", "--json")
    assert done.exit_code == 1
    said = json.loads(done.stdout)["comparisons"][0]["verdict"]
    assert said["state"] == "wrong"
    assert said["answer"].startswith("all_reduce: below what the links can carry: a wrong machine, size or time: 1 ns ")
    assert [size["verdict"] for size in said["sizes"]] == ["faster more than x1000", "below the links"]
    assert ET.parse(tmp_path / "j.xml").getroot().find(".//failure[@type='wrong']") is not None
    assert "> 100000 % over 2 sizes" in compare(*words).stdout


def test_a_port_faster_than_its_host_link_may_have_another(tmp_path: Path) -> None:
    """DGX Spark has two PCIe ways to its port, of which the preset has the one that NCCL used first."""
    rows = "size_bytes,time_us\n1073741824,27211\n2147483648,50573\n4294967296,96987\n"
    path = tmp_path / "all_gather.csv"
    path.write_text(rows)
    done = compare(path, "--on", "dgx-spark", "-n", 2, "--no-what-if")
    assert "all_gather: faster than expected: x2.1" in done.stdout


def test_bus_bandwidths_alone_take_the_ranks_of_the_machine(tmp_path: Path) -> None:
    table = all_reduce_csv(tmp_path, "size_bytes,busbw_GBps\n1073741824,450\n")
    done = compare(table, "--on", "hgx-h100-ndr400", "-n", 2, "--json")
    assert done.exit_code == 0, done.output
    (one,) = json.loads(done.stdout)["comparisons"]
    assert one["n_ranks"] == 16
    assert one["verdict"]["sizes"][0]["measured_us"] == pytest.approx(1e-3 * 2**30 * 30 / 16 / 450)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_log(device: str) -> None:
    done = compare(device)
    assert "found a device, expected a file or a pipe" in str(done.exception)


def test_a_flood_of_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.log"
    path.write_text(written(tmp_path).read_text() * 200)
    done = compare(path)
    assert "found 200 measured tables, expected at most 128" in str(done.exception)


def test_at_a_terminal_the_question_is_asked_until_it_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "two.log"
    path.write_text(log_text(hosts=("a", "b"), times_us=times()))
    said = at_a_terminal(["compare", str(path), "--no-what-if"], answers=["99", "x", "1"])
    assert said.count("Its number, 1 to ") == 3
    assert "machine: " in said
    assert "two: " in said


def at_a_terminal(words: list[str], answers: list[str]) -> str:
    """What a command prints at a terminal where a person answers."""
    pty = pytest.importorskip("pty")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = "400"
        os.execv(sys.executable, [sys.executable, "-m", "commsim", *words])
    said, left = b"", list(answers)
    try:
        while chunk := os.read(terminal, 4096):
            said += chunk
            while left and said.count(b"Its number, 1 to ") > len(answers) - len(left):
                os.write(terminal, f"{left.pop(0)}\n".encode())
    except OSError:  # the terminal is gone with the command
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return said.decode(errors="replace")
