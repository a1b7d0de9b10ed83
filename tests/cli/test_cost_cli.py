"""``commsim cost``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fresh import fresh
from typer.testing import CliRunner

import commsim as cs
from commsim.cli import app
from commsim.errors import CommsimError
from commsim.units import format_time

ASKED = ["cost", "send_recv", "64MiB", "8 B .. 32 B x2", "--on", "hgx-h100-ndr400", "-n"]


def test_it_prints_a_line_for_each_size() -> None:
    done = CliRunner().invoke(app, [*ASKED, "16"])
    costs = {s: cs.cost("send_recv", s, 16, "hgx-h100-ndr400") for s in (64 << 20, 8, 16, 32)}
    shown = ["64MiB", "8 B", "16 B", "32 B"]  # as given; of a range as its sizes are
    expected = [f"{size} {format_time(seconds)}" for size, seconds in zip(shown, costs.values(), strict=True)]
    assert [" ".join(line.split()) for line in done.stdout.splitlines()[1:]] == expected
    assert done.stdout.startswith("# send_recv on 16 ranks: 2 nodes, hgx-h100-ndr400\n")
    assert "2.26.2 is assumed" in done.stderr


def test_it_says_what_is_outside_of_what_was_measured() -> None:
    done = CliRunner().invoke(app, ["cost", "all_reduce", "64MiB", "--on", "hgx-h100-ndr400", "-n", "33333"])
    assert done.stdout.startswith("# all_reduce on 33,333 ranks: 4,167 nodes, ")
    assert "outside what was measured: hopper over infiniband on up to " in done.stderr


def test_ranks_may_be_listed_and_the_answer_be_json() -> None:
    done = CliRunner().invoke(app, [*ASKED, "0 .. 8 +8", "--json"])
    document = json.loads(done.stdout)
    assert document["ranks"] == [0, 8]
    assert document["size_bytes"] == [64 << 20, 8, 16, 32]
    assert document["seconds"][0] == cs.cost("send_recv", 64 << 20, [0, 8], "hgx-h100-ndr400")


@pytest.mark.parametrize(
    ("text", "listed"), [("0,8", [0, 8]), ("0, 4 .. 6", [0, 4, 5, 6]), ("0 .. 8 +4", [0, 4, 8]), ("8", None)]
)
def test_ranks_are_written_as_in_python(text: str, listed: list[int] | None) -> None:
    done = CliRunner().invoke(app, ["cost", "send_recv", "1MB", "--on", "hgx-h100-ndr400", "--json", "-n", text])
    document = json.loads(done.stdout)
    table = cs.cost_table("send_recv", text, "hgx-h100-ndr400")
    assert document["seconds"] == [table(1_000_000)]
    assert document["seconds"] == [cs.cost("send_recv", 1_000_000, listed or 8, "hgx-h100-ndr400")]


def test_changes_are_those_of_run(checkout: Path) -> None:
    changes = ["library.version=2.29.2", "mode=single", "workload.0.redop=max", "topology.gpus_per_node=4"]
    done = CliRunner().invoke(app, ["cost", "all_reduce", "1MB", "--on", "hgx-h100", *changes, "--json"])
    document = json.loads(done.stdout)
    facts = ("library_version", "mode", "redop", "n_ranks")
    assert [document[key] for key in facts] == ["2.29.2", "single", "max", 4]
    item = {"collective": "all_reduce", "sizes": "1 MB"}
    run = cs.run({"name": "r", "topology": {"preset": "hgx-h100"}, "workload": [item]}, *changes)
    assert document["seconds"] == pytest.approx([float(run.to_frame()["time_us"][0]) / 1e6], rel=1e-12)


def test_a_shipped_scenario_is_asked_as_run_does() -> None:
    done = CliRunner().invoke(app, ["cost", "all_reduce", "1MB", "--on", "custom-all-reduce", "--json"])
    run = cs.run("custom-all-reduce", "workload.0.sizes=1 MB")
    assert json.loads(done.stdout)["seconds"] == pytest.approx([run.to_frame()["time_us"][0] / 1e6], rel=1e-12)


def test_tables_are_written_in_either_form(tmp_path: Path) -> None:
    asked = ["cost", "send_recv", "--on", "hgx-h100", "--out"]
    written = [tmp_path / "table.json", tmp_path / "table.csv"]
    for path in written:
        assert CliRunner().invoke(app, [*asked, str(path)]).stdout.startswith(f"# wrote {path}")
    table = cs.CostTable.from_json(written[0])
    assert table("1 MiB") == cs.cost("send_recv", "1 MiB", None, "hgx-h100")
    assert len(written[1].read_text().splitlines()) == len(table.knots()[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduce", "--on", "hgx-h100"], "found no sizes and no --out"),
        (["all_reduce", "8Q", "--on", "hgx-h100"], "found the unit 'Q'"),
        (["allreduce", "8B", "--on", "hgx-h100"], "did you mean 'all_reduce'"),
        (["all_reduce", "8B", "--on", "hgx-h101"], "did you mean 'hgx-h100'"),
        (["all_reduce", "8B", "--on", "hgx-h100", "-n", "x"], "ranks: found 'x'"),
        (["all_reduce", "8B", "--on", "hgx-h100", "-n", "0"], "ranks: found 0"),
        (["all_reduce", "8B", "--on", "hgx-h100", "--dtype", "float"], "did you mean 'float32'"),
        (["all_reduce", "8B", "--on", "hgx-h100", "--out", "t.txt"], "--out: found 't.txt'"),
        (["all_reduce", "8B", "--on", "hgx-h100", "--out", "none/t.csv"], "found no folder 'none'"),
        (["all_reduce", "-5MB", "--on", "hgx-h100"], "found '-5MB', expected a size that is not negative"),
        (["all_reduce", "8B", "--on", "hgx-h100", "--no-such"], "found the option '--no-such'"),
        (["all_reduce", "8B", "--on", "hgx-h100", "workload.0.sizes=1MB"], "expected sizes as arguments"),
        (["all_reduce", "8B", "--on", "hgx-h100", "librari.version=2"], "did you mean 'library'"),
        (["all_reduce", "8B", "--on", "hgx-h100", "workload.1.dtype=int8"], "expected an index 0..0"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["cost", *arguments])
    assert isinstance(done.exception, CommsimError)
    assert message in str(done.exception)
    assert done.stdout == ""


def test_bad_input_ends_in_status_2_without_a_traceback() -> None:
    done = fresh("cost", "all_reduce", "8B", "--on", "hgx-h101")
    assert (done.status, done.printed) == (2, "")
    assert "did you mean 'hgx-h100'" in done.said
    assert "Traceback" not in done.said


def test_the_machine_must_be_named() -> None:
    done = CliRunner().invoke(app, ["cost", "all_reduce", "8B"])
    assert done.exit_code == 2
    assert "Missing option '--on'" in done.stderr
