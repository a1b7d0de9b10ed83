"""`commsim doctor` end to end: answers, files, exit status, and rounds by a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from commsim.cli import app
from commsim.errors import MeasurementError

STAND_IN = """
import sys
hosts, gpus, split, size, slow = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
inside = "DIV" in split or len(hosts) == 1
busbw = 300 if inside else 15 if slow in hosts else 45
ranks = gpus if inside else len(hosts) if "MOD" in split or gpus == 1 else gpus * len(hosts)
algbw = busbw / (2 * (ranks - 1) / ranks)
print("#       size         count      type   redop    root     time   algbw   busbw #wrong")
print(size, size // 4, "float", "sum", -1, f"{size / algbw / 1e3:.2f} {algbw:.2f} {busbw:.2f} N/A")
"""


def doctor(*words: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, words)])


@pytest.fixture
def command(tmp_path: Path) -> str:
    """A command in the place of nccl-tests; its last word names the host whose network has a third of its rate."""
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return f"{sys.executable} {path} {{hosts}} {{per_host}} '{{split}}' {{size}}"


def test_rounds_by_a_command_end_at_the_slow_host(tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    done = doctor("--hosts", "n[1-6]", "--run", f"{command} n5", "--out", out)
    assert done.exit_code == 1, done.output
    assert "n5: its network:" in done.output
    document = json.loads((out / "diagnosis.json").read_text())
    assert document["sure"]
    assert document["answer"]["slow"] == ["n5: its network"]
    assert document["suspects"][0]["rate_left"] == pytest.approx(1 / 3, rel=0.1)
    assert document["tests"] <= 16
    assert (out / "suspects.png").stat().st_size > 5000
    again = doctor(out / "measurements.yaml", "--json")
    assert again.exit_code == 1
    answer = json.loads(again.stdout)["answer"]
    assert answer["slow"] == document["answer"]["slow"]
    assert answer["probability"] == pytest.approx(document["answer"]["probability"])


def test_what_was_measured_before_a_command_fails_is_kept(tmp_path: Path, command: str) -> None:
    once = tmp_path / "once"
    shell = tmp_path / "run.sh"
    shell.write_text(f'[ -e {once} ] && exit 3\ntouch {once}\nexec "$@"\n')
    done = doctor("--hosts", "n[1-6]", "--run", f"sh {shell} {command} n5", "--out", tmp_path / "out")
    assert isinstance(done.exception, MeasurementError)
    assert "ended with status 3" in str(done.exception)
    kept = yaml.safe_load((tmp_path / "out" / "measurements.yaml").read_text())
    assert len(kept["measurements"]) == 1


def test_a_healthy_cluster_ends_with_status_0(command: str) -> None:
    done = doctor("--hosts", "n[1-6]", "--run", f"{command} none", "--at-once", "2")
    assert done.exit_code == 0, done.output
    assert "Nothing is slow" in done.output


def test_a_plan_for_a_new_cluster_is_a_script(tmp_path: Path) -> None:
    done = doctor("--hosts", "n[1-4]", "--plan", tmp_path, "--launcher", "slurm")
    assert done.exit_code == 0, done.output
    assert "Nothing has been measured yet" in done.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["round-1-test-1.hosts", "round-1-test-2.hosts", "round-1.sbatch"]
    doctor("--hosts", "n[1-4]", "--plan", tmp_path, "--launcher", "slurm")
    assert (tmp_path / "round-2.sbatch").exists()  # nothing is written over


def test_measurements_that_tell_little_say_what_to_run_next(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("hosts,time_us,size_bytes\na b,40000,1073741824\nc d,80000,1073741824\n")
    done = doctor(path)
    assert done.exit_code == 0
    assert "No answer is likely yet" in done.output
    assert "next test (tells" in done.output
    assert "mpirun -np" in done.output
    assert doctor(path, "--fail-above", "0.1").exit_code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "found no host"),
        (("--hosts", "a"), "found one host, a, expected two at least"),
        (("--hosts", "a,b", "--machine", "nope"), "unknown preset 'nope'"),
        (("--hosts", "a,b", "--run", "x {hosts}", "--testbed", "y"), "found it beside --run"),
        (("--hosts", "a,b", "--testbed", "gloo-testbed-star"), "a testbed has hosts of its own"),
        (("--hosts", "a,b", "--launcher", "x"), "expected mpirun or slurm"),
        (("--hosts", "a,b", "--size", "3"), "expected 1 MiB at least"),
        (("/dev/zero",), "found no file"),
        (("empty.log",), "empty.log: found an empty file, expected the log of a run of nccl-tests"),
        (("binary.log",), "binary.log: found binary data, expected the log of a run of nccl-tests"),
    ],
)
def test_a_question_without_sense_ends_with_status_2(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.log").touch()
    Path("binary.log").write_bytes(bytes(range(256)))
    done = doctor(*words)
    text = done.output + str(done.exception or "")
    assert message in " ".join(text.replace("│", " ").split()), text


CONTRADICTION = "hosts,time_us\na b,100000\na b,300000\nc d,100000\na c,100000\nb d,100000\na d,900000\nb c,100\n"


def test_contradictions_are_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "contra.csv"
    path.write_text(CONTRADICTION)
    done = doctor(path, "--out", tmp_path / "out")
    assert done.exit_code == 1, done.output
    assert "The tests contradict each other after 7 tests" in done.stdout
    assert " sure" not in done.stdout
    document = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert not document["sure"]
    assert max(each["rate_left"] for each in document["suspects"]) == 1.0  # of one that is quicker than healthy
    assert doctor(path, "--fail-above", "1").exit_code == 1


CLUSTER = "hosts: [n0,n1,n2,n3]\ngpus: 8\nmachine: hgx-h100-ndr400\n"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            "n0 n1,535\nn2 n3,535\n",
            "All tests are faster than this machine allows (the middle one takes 11.4 times less)",
        ),
        ("n0 n1,535\n", "All tests are faster than this machine allows"),
        ("n0 n1,53560\nn2 n3,53560\nn0 n2,53000\nn1 n3,54000\n", "All tests take 8.8 times what this machine should"),
    ],
)
def test_all_tests_off_by_one_factor_are_said_first(tmp_path: Path, rows: str, says: str) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "t.csv").write_text("hosts,time_us\n" + rows)
    done = doctor(tmp_path / "c.yaml", tmp_path / "t.csv")
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith(says)
    assert ("suspect" in done.stdout) == ("faster" not in says)
    assert " sure" not in done.stdout


@pytest.mark.parametrize(
    "rows", ["n0 n1,53560\nn0 n2,53560\n", "n0 n1,5356\nn2 n3,53560\n", "n0 n1,5356\nn2 n3,5400\n"]
)
def test_a_part_that_may_be_to_blame_is_no_factor(tmp_path: Path, rows: str) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "t.csv").write_text("hosts,time_us\n" + rows)
    assert json.loads(doctor(tmp_path / "c.yaml", tmp_path / "t.csv", "--json").stdout)["factor"] is None


def test_healthy_tests_of_several_collectives_have_a_scale_each(tmp_path: Path) -> None:
    path = tmp_path / "three.csv"
    path.write_text(
        "hosts,time_us,collective\na b,5356,all_reduce\na b,14000,all_to_all\na b,9000,broadcast\n"
        "c d,5400,all_reduce\nc d,14100,all_to_all\nc d,9100,broadcast\n"
    )
    done = doctor(path, "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert document["fits"]
    assert document["healthy"] > 0.5
    assert document["assumed"] == ["8 GPUs a host (--gpus)", "8 network cards a host (--nics)"]
    assert "# nothing says it, so assumed: 8 GPUs a host (--gpus), 8 network cards" in doctor(path).stdout


def test_suspects_of_which_the_same_is_known_are_one_row(checkout: Path) -> None:
    pairs = checkout / "tests" / "data" / "doctor" / "pairs.csv"
    document, text = json.loads(doctor(pairs, "--json").stdout), doctor(pairs).stdout
    cards = [each for each in document["suspects"] if "network card" in each["suspect"]]
    assert len(cards) == 8
    assert len({round(each["probability"], 3) for each in cards}) == 1
    rows = [line for line in text.splitlines() if "network card" in line and "assumed" not in line]
    assert rows == [line for line in rows if "n5: network cards 0-7   each 6.2 %" in line]
    assert len(rows) == 1
    assert "more of 0.5 %" not in text


def test_suspects_that_are_not_shown_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    rows = [f"n{i} n{i + 1},{5000 * (1 + 0.05 * i):.0f}" for i in range(12)]
    path.write_text("\n".join(["hosts,time_us", *rows]) + "\n")
    words = (path, "--noise", "1", "--gpus", "1", "--nics", "1")
    likely = sum(each["probability"] >= 0.005 for each in json.loads(doctor(*words, "--json").stdout)["suspects"])
    text = doctor(*words).stdout
    assert text.count(": its network card, cable or port") == 8 < likely
    assert f"# and {likely - 8} more of 0.5 % and above" in text


@pytest.mark.parametrize("columns", [60, 80])
def test_lines_are_as_wide_as_the_terminal(checkout: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = doctor(checkout / "tests" / "data" / "doctor" / "pairs.csv").stdout
    assert max(len(line) for line in text.splitlines() if "mpirun" not in line) <= columns
    assert "probability" in text


def test_a_part_that_is_slow_for_sure_is_named_though_another_may_be_too(tmp_path: Path) -> None:
    path = tmp_path / "ranks.csv"
    path.write_text("host,gpu,time_us\nn0,0,100\nn0,1,101\nn1,0,99\nn1,1,300\n")
    found = doctor(path)
    assert found.exit_code == 1
    assert found.stdout.startswith("n1: GPU 1 or its NVLinks: 100.0 % sure after 4 tests.")


def test_the_page_has_the_answer_the_suspects_and_every_test(checkout: Path, tmp_path: Path) -> None:
    page, pairs = tmp_path / "doctor.html", checkout / "tests" / "data" / "doctor" / "pairs.csv"
    result = CliRunner().invoke(app, ["doctor", str(pairs), "--html", str(page)])
    assert result.exit_code == 1, result.output
    text = page.read_text(encoding="utf-8")
    assert result.stdout.splitlines()[0] in text
    assert all(words in text for words in ("n5: its network", "commsimChart", "all_reduce of", "9.88 ms"))
    assert "nothing says it, so assumed: 8 GPUs a host (--gpus), 8 network cards a host (--nics)" in text
    assert '"n5: cards 0-7"' in text  # a name that a narrow screen does not cut
