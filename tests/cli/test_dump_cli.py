"""`commsim dump` end to end: the answer in the first line, tables within 100 columns, JSON, pictures, exit statuses."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from commsim.cli import app
from commsim.errors import CommsimError
from study import dump_forms
from study.dump_forms import Timeline
from study.dump_hostile import of_bombs, of_mutants, of_pickles, sound_files
from study.dump_mutants import mutants

JOB = Timeline(8, ["all_reduce", "all_gather", "reduce_scatter"] * 4, {(5, 6): 0.2})


def dump(*words: object) -> Result:
    """What the command does; errors become exit statuses in `commsim.cli.main`, as for every command."""
    return CliRunner().invoke(app, ["dump", *map(str, words)])


def refused(*words: object) -> str:
    """The message of files that cannot be read."""
    result = dump(*words)
    assert isinstance(result.exception, CommsimError), result.exception
    assert result.stdout == ""
    return str(result.exception)


@pytest.fixture
def late(tmp_path: Path) -> Path:
    folder = tmp_path / "late"
    folder.mkdir()
    dump_forms.write_kineto(folder, JOB, host_of=lambda rank: f"node{rank // 4}")
    return folder


def test_the_answer_comes_first(late: Path) -> None:
    result = dump(late)
    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert first.startswith("Rank 5 on node1 came last into")
    assert "the worst is all_reduce #7 of 4 MiB of group 0 (default_pg), 200 ms late." in first
    tables = [line for line in result.stdout.split("\n\n", 1)[1].splitlines() if not line.startswith("# wrote")]
    assert max(map(len, tables)) <= 100


def test_against_a_machine(late: Path) -> None:
    result = dump(late, "--on", "hgx-h100")
    assert result.exit_code == 0
    assert "expected" in result.stdout
    assert "times the expected" in result.stdout
    tables = result.stdout.split("\n\n", 1)[1].splitlines()
    assert max(map(len, tables)) <= 100


def test_json_says_the_same(late: Path) -> None:
    document = json.loads(dump(late, "--json").stdout)
    assert document["kind"] == "Kineto trace"
    (finding,) = document["findings"]
    assert (finding["kind"], finding["ranks"], finding["collective"], finding["sequence"]) == (
        "late",
        [5],
        "all_reduce",
        7,
    )
    call = next(c for c in document["calls"] if c["sequence"] == 7)
    assert call["last_rank"] == 5
    true = JOB.waiting_s(6)
    assert call["waiting_us"] == {str(r): pytest.approx(1e6 * true[r], abs=50) for r in range(8)}


def test_what_fails(late: Path) -> None:
    assert dump(late, "--fail-on", "late").exit_code == 1
    assert dump(late, "--fail-on", "any").exit_code == 1
    assert dump(late, "--fail-on", "missing,stuck").exit_code == 0
    assert dump(late, "--fail-on", "late", "--late", "99").exit_code == 0
    assert dump(late, "--fail-on", "wrong").exit_code == 2
    assert dump(late, "--late", "nan").exit_code == 2
    assert dump(late, "--with", "nics=4").exit_code == 2


def test_pictures_and_page(late: Path, tmp_path: Path) -> None:
    result = dump(late, "--out", tmp_path / "out", "--html", tmp_path / "page.html")
    assert result.exit_code == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"dump.png", "dump.svg"}
    page = (tmp_path / "page.html").read_text()
    assert "Rank 5 on node1 came last into" in page
    assert "<svg" in page


def test_a_picture_of_durations_alone(tmp_path: Path) -> None:
    dump_forms.write_inspector(tmp_path, JOB)
    result = dump(tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert (tmp_path / "out" / "dump.png").stat().st_size > 1000


def test_names_of_strangers_stay_text(tmp_path: Path) -> None:
    """A group whose name is markup or terminal codes."""
    path = dump_forms.write_flight(tmp_path, JOB, form="json")[0]
    path.write_text(path.read_text().replace('"default_pg"', '"<script>\\u001b[31m"'))
    assert dump(path, "--html", tmp_path / "p.html").exit_code == 0
    assert "<script>\x1b" not in (tmp_path / "p.html").read_text()
    assert "\x1b" not in dump(path).stdout


def test_what_is_no_dump_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "nonsense"
    path.write_text("hello")
    command = [sys.executable, "-m", "commsim", "dump", str(path), "/dev/zero"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("commsim: error:")
    assert f"{path}: found a file that begins with 'hello'" in done.stderr
    assert "/dev/zero: is no file" in done.stderr


def test_a_recording_without_calls_is_not_sound(tmp_path: Path) -> None:
    for rank in range(2):
        text = json.dumps({"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": []})
        (tmp_path / f"flight_rank_{rank}.json").write_text(text)
    result = dump(tmp_path, "--fail-on", "any")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "Nothing was recorded: 2 files of ranks 0, 1 hold no call."
    assert "wrong" not in result.stdout
    assert dump(tmp_path, "--fail-on", "empty").exit_code == 1
    assert dump(tmp_path, "--fail-on", "late").exit_code == 0


def test_standard_input_is_refused() -> None:
    result = dump("-")
    assert result.exit_code == 2
    assert "standard input is not read" in " ".join(result.output.replace("│", " ").split())


def test_bytes_that_are_no_text_are_said_as_hex(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x82\x00\xff" * 40)
    assert "begins with the bytes 82 00 ff 82" in refused(path)


def test_an_unknown_machine(late: Path) -> None:
    assert "hgx-h100" in refused(late, "--on", "hgx-h1000")


def test_mutants_exit_with_a_message(tmp_path: Path) -> None:
    """A few of each kind through the command itself; the thousands go through `validation/dumps.py`."""
    for kind, files in sound_files(tmp_path / "sound").items():
        for data in mutants(files[0].read_bytes(), 12, len(kind)):
            path = tmp_path / "mutant_rank_3"
            path.write_bytes(data)
            result = dump(path)
            assert result.exit_code == 0 or isinstance(result.exception, CommsimError), (kind, result.exception)


@pytest.mark.slow
def test_thousands_of_mutants_and_every_bomb(tmp_path: Path) -> None:
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # of this process, which its forks begin with
    for kind, files in sound_files(tmp_path / "sound").items():
        row = of_mutants(kind, files, 2000, tmp_path / "mutants")
        assert (row.files, row.failed) == (2000, 0), kind
        assert row.peak_mib < held + 500
    row = of_bombs(tmp_path / "bombs")
    assert (row.failed, row.answered + row.refused) == (0, row.files)
    assert row.peak_mib < held + 500
    pickles, executed = of_pickles(tmp_path / "pickles")
    assert (pickles.failed, executed) == (0, False)
