"""`commsim synthesize`: figures, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from commsim.cli import app
from commsim.collectives.check import check
from commsim.collectives.json_table import load_json
from commsim.collectives.msccl import load_msccl

RING = """
ranks: 4
links:
  - {ends: [gpu0, gpu1], bandwidth: 10 GB/s, latency: 1 us}
  - {ends: [gpu1, gpu2], bandwidth: 10 GB/s, latency: 1 us}
  - {ends: [gpu2, gpu3], bandwidth: 10 GB/s, latency: 1 us}
  - {ends: [gpu3, gpu0], bandwidth: 10 GB/s, latency: 1 us}
"""


def synthesize(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["synthesize", *arguments])


@pytest.fixture
def ring(tmp_path: Path) -> str:
    path = tmp_path / "ring.yaml"
    path.write_text(RING)
    return str(path)


def test_one_document_with_limit_reached_and_ratio(ring: str) -> None:
    result = synthesize(ring, "-c", "all_gather", "--bytes", "64MB", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["limit_us"] == pytest.approx(64e6 * 3 / 4 / 20e9 * 1e6)
    assert 1 <= document["ratio"] < 1.01
    assert document["reached_us"] == pytest.approx(document["ratio"] * document["limit_us"])
    assert document["proven"] is True
    assert "must take in 3/4 of the array" in document["why"]


def test_a_machine_has_nccl_beside_it() -> None:
    document = json.loads(synthesize("hgx-a100-4", "-c", "all_gather", "--bytes", "1MiB", "--json").stdout)
    assert document["nccl_us"] > document["reached_us"]
    assert document["as_a_library"]["time_us"] > document["reached_us"]
    text = synthesize("hgx-a100-4", "-c", "all_gather", "--bytes", "1MiB").stdout
    assert "NCCL" in text
    assert "as a library would run it" in text


def test_the_bound_of_run_stands_beside_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    asked = ["all_gather", "--on", "hgx-h100-ndr400", "-n", "2", "-b", "1G", "-e", "1G", "--json"]
    ran = json.loads(CliRunner().invoke(app, ["run", *asked]).stdout)
    machine = ("hgx-h100-ndr400", "-n", "2", "-c", "all_gather", "--bytes", "1GiB", "--budget", "1")
    document = json.loads(synthesize(*machine, "--json").stdout)
    assert document["bound_us"] == pytest.approx(ran["results"][0]["items"][0]["rows"][0]["lower_bound_us"])
    assert document["bound_us"] < document["limit_us"]
    text = synthesize(*machine).stdout
    assert "bound" in text
    assert max(map(len, text.splitlines())) <= 60


def test_the_front_over_sizes(ring: str) -> None:
    document = json.loads(synthesize(ring, "-c", "broadcast", "--budget", "5", "--json").stdout)
    sizes = [one["size_bytes"] for one in document["front"]]
    assert sizes == sorted(sizes)
    assert document["front"][-1]["ratio"] == document["ratio"]
    assert [one["reached_us"] for one in document["front"]] == sorted(one["reached_us"] for one in document["front"])


def test_a_search_that_its_budget_ends_says_so_and_is_no_disaster() -> None:
    """The first pieces of so many trees take long: not one piece, but as many as are likely right."""
    asked = ["dgx-a100-hdr200", "-n", "2", "-c", "all_reduce", "--bytes", "64MiB", "--json"]
    short, whole = (synthesize(*asked, "--budget", seconds) for seconds in ("0.1", "60"))
    documents = [json.loads(result.stdout) for result in (short, whole)]
    assert documents[0]["ratio"] < 1.5
    assert documents[0]["budget_spent"] == ("ended with its budget" in short.stderr)
    assert not documents[1]["budget_spent"]
    assert "budget" not in whole.stderr


@pytest.mark.parametrize(("aim", "size"), [("latency", 2**13), ("bandwidth", 2**30)])
def test_aims_are_sizes(ring: str, aim: str, size: int) -> None:
    assert json.loads(synthesize(ring, "--for", aim, "--json").stdout)["size_bytes"] == size


def test_schedules_are_written(ring: str, tmp_path: Path) -> None:
    for ending, load in (("json", load_json), ("xml", load_msccl)):
        out = tmp_path / f"one.{ending}"
        result = synthesize(ring, "-c", "reduce_scatter", "--bytes", "1MiB", "-o", str(out))
        assert result.exit_code == 0, result.output
        schedule = load(out)
        check(schedule)
        assert (schedule.collective, schedule.world_size) == ("reduce_scatter", 4)


def test_some_ranks(ring: str) -> None:
    document = json.loads(synthesize(ring, "-c", "broadcast", "--ranks", "0,2", "--bytes", "10MB", "--json").stdout)
    assert document["ranks"] == 2
    assert document["limit_us"] == pytest.approx(500)


def test_a_scenario_names_machine_and_collective(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "name: one\ntopology: {preset: hgx-a100-4}\nworkload:\n  - {collective: all_gather, sizes: 1 MiB}\n"
    )
    document = json.loads(synthesize(str(path), "--bytes", "1MiB", "--json").stdout)
    assert (document["collective"], document["ranks"]) == ("all_gather", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "barrier"], "expected one of all_reduce"),
        (["--ranks", "0-9"], "within 0..3"),
        (["--ranks", "a"], "expected ranks such as"),
        (["--for", "speed"], "expected latency, bandwidth or both"),
        (["--bytes", "1Q"], "unit"),
        (["--bytes", "0"], "above zero"),
        (["--bytes", "0 B"], "above zero"),
        (["--bytes", "-5"], "above zero"),
        (["--root", "9", "-c", "broadcast", "--bytes", "1kB"], "root 9"),
        (["-o", "x.txt"], "expected .json"),
        (["--nodes", "2"], "a network is all there is"),
        (["--ranks", "0"], "expected 2 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(ring: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["synthesize", ring, *arguments])
    assert result.exit_code != 0
    assert message in (result.output + str(result.exception))


def test_ranks_that_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("ranks: 3\nlinks: [{ends: [gpu0, gpu1], bandwidth: 1 GB/s}]\n")
    result = synthesize(str(path))
    assert result.exit_code != 0
    assert "no way" in (result.output + str(result.exception))


def test_switches_that_copy_are_refused_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commsim.synthesis.search.TreeSearch.run", lambda *_: pytest.fail("a search was begun"))
    out = tmp_path / "x.xml"
    result = synthesize("hgx-h100", "--in-network", "-c", "all_gather", "--bytes", "1KiB", "-o", str(out))
    assert result.exit_code != 0
    assert "no switches that copy or add" in (result.output + str(result.exception))
    assert not out.exists()


def test_nccl_is_compared_with_the_time_of_a_library() -> None:
    result = synthesize("hgx-h100", "-c", "all_reduce", "--bytes", "1KiB")
    assert "on ideal links" in result.stdout
    assert "as a library would run it this is" in result.stdout


def test_a_limit_without_sums_in_switches_says_so() -> None:
    arguments = ["hgx-h100", "-c", "all_reduce", "--bytes", "256MiB", "--budget", "2"]
    document = json.loads(synthesize(*arguments, "--json").stdout)
    assert document["nccl_choice"].startswith("nvls")
    assert document["in_network_limit_us"] < document["nccl_us"]
    assert document["in_network_limit_us"] < document["limit_us"]
    assert "without sums in switches" in synthesize(*arguments).stdout
