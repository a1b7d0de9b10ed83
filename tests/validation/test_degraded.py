"""Pairs of measurements of one machine, healthy and degraded by a stated cause."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from commsim.cli import app, main
from commsim.errors import LogFormatError
from study.degraded import Outcome, Pair, document, outcomes, pairs_file, read_pairs
from study.degraded_report import PAGE, page, summary
from study.index import index_rows
from study.paths import VALIDATION

HALVED = {
    "slug": "halved",
    "collective": "all_reduce",
    "n_ranks": "16",
    "machine": "hgx-h100",
    "system": "mine",
    "nodes": "2",
    "gpus_per_node": "8",
    "network": "infiniband",
    "nics_per_node": "8",
    "nic_gbps": "200",
    "nccl_version": "2.26.2",
    "launch": "process_per_gpu",
    "env": "NCCL_ALGO=Ring",
    "healthy_log": "",
    "degraded_log": "",
    "healthy_busbw_gbps": "180",
    "degraded_busbw_gbps": "90",
    "size": "8 GiB",
    "cause": "cards at half their rate",
    "set_nic_gbps": "100",
    "set_env": "",
    "set_faults": "",
    "not_expressed": "",
    "source_url": "https://example.org",
}


def _write(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "PAIRS.csv"
    with path.open("w", newline="") as stream:
        lines = csv.DictWriter(stream, list(rows[0]))
        lines.writeheader()
        lines.writerows(rows)
    return path


def _outcome(folder: Path, **cells: str) -> Outcome:
    return outcomes(read_pairs(_write(folder, HALVED | cells)))[0]


def test_cards_at_half_rate_halve_a_ring(tmp_path: Path) -> None:
    found = _outcome(tmp_path)
    assert found.measured == pytest.approx(2)
    assert found.predicted == pytest.approx(2, rel=0.03)
    assert found.direction == "right"
    assert found.healthy == pytest.approx(1, rel=0.1)


def test_variables_of_the_cause_replace_those_of_the_machine(tmp_path: Path) -> None:
    """What leaves the times as they are is no change, which counts as no right direction."""
    same = _outcome(tmp_path, set_nic_gbps="", set_env="NCCL_ALGO=ring")
    assert (same.predicted, same.direction) == (1.0, "no change")
    channels = _outcome(tmp_path, set_nic_gbps="", set_env="NCCL_ALGO=Ring;NCCL_MAX_NCHANNELS=1")
    assert channels.predicted is not None
    assert channels.predicted > 4


def test_faults_of_a_cause_are_those_of_a_scenario(tmp_path: Path) -> None:
    faults = "[{node: 0, bandwidth_factor: 0.5}, {node: 1, bandwidth_factor: 0.5}]"
    assert _outcome(tmp_path, set_nic_gbps="", set_faults=faults).predicted == pytest.approx(2, rel=0.03)


def test_a_fault_that_is_not_there_is_told_and_not_predicted(tmp_path: Path) -> None:
    found = _outcome(tmp_path, set_nic_gbps="", set_faults="[{node: 7, bandwidth_factor: 0.5}]")
    assert found.predicted is None
    assert "node 7 is not one of the 2 nodes" in found.reason


def test_curves_give_the_median_over_their_common_sizes_from_one_mebibyte_on(tmp_path: Path) -> None:
    for name, times in (("good", (9, 10, 20, 40, 80)), ("bad", (90, 20, 60, 160, 1))):
        rows = zip((2**19, 2**20, 2**21, 2**22, 2**23 if name == "good" else 2**24), times, strict=True)
        (tmp_path / f"{name}.csv").write_text("size_bytes,oop_time_us\n" + "".join(f"{n},{t}\n" for n, t in rows))
    logs = {"healthy_log": "good", "degraded_log": "bad", "healthy_busbw_gbps": "", "degraded_busbw_gbps": ""}
    found = _outcome(tmp_path, **logs)
    assert found.pair.sizes == (2**20, 2**21, 2**22)
    assert found.measured == pytest.approx(3)


def test_what_cannot_be_said_is_listed_with_its_ratio(tmp_path: Path) -> None:
    found = _outcome(tmp_path, set_nic_gbps="", machine="", nodes="", n_ranks="", not_expressed="virtual machines")
    assert found.measured == pytest.approx(2)
    assert (found.predicted, found.direction) == (None, None)
    text = summary(document([found]))
    assert "not predicted: halved (measured 2.00): cannot be told to the model: virtual machines" in text
    assert text.endswith("No pair could be predicted.\n")


def _made(system: str, predicted: float) -> Outcome:
    pair = Pair("x", system, "why", "url", (2**20,), np.ones(1), np.full(1, 2.0), None)
    return Outcome(pair, 2.0, predicted, 1.0, 1.0)


def test_machines_weigh_alike_however_many_pairs_they_have() -> None:
    found = document([_made("a", 2.2), _made("a", 2.6), _made("a", 3.0), _made("b", 2.0), _made("c", 1.0)])
    assert found["by_system"] == pytest.approx({"a": 30, "b": 0, "c": 50})
    assert found["median_error_pct"] == pytest.approx(30)
    assert (found["n_predicted"], found["n_right"]) == (5, 4)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"healthy_log": "one"}, r"PAIRS.csv:2 healthy_log: found 'one', expected two logs, or two bus bandwidths"),
        ({"degraded_busbw_gbps": ""}, r"PAIRS.csv:2 healthy_log: found a blank cell, expected two logs"),
        ({"degraded_busbw_gbps": "slow"}, r"PAIRS.csv:2 size: found '8 GiB', expected a size .* and bus bandwidths"),
        ({"healthy_busbw_gbps": "nan"}, r"PAIRS.csv:2 healthy_busbw_gbps: found 'nan', expected GB/s above 0"),
        ({"collective": "gossip"}, r"PAIRS.csv:2 collective: found 'gossip', expected a name such as all_reduce"),
        ({"n_ranks": "many"}, r"PAIRS.csv:2 n_ranks: found 'many', expected 1 to 7 digits"),
        ({"set_nic_gbps": ""}, r"PAIRS.csv:2 set_env: found a blank cell, expected one of the set_ columns"),
        ({"set_env": "fast"}, r"PAIRS.csv:2 env: found '.*fast', expected NAME=value"),
        ({"set_faults": "[{"}, r"PAIRS.csv:2 set_faults: found '\[\{', expected a list of faults"),
    ],
)
def test_a_cell_at_fault_is_told_with_its_line(tmp_path: Path, cells: dict[str, str], message: str) -> None:
    with pytest.raises(LogFormatError, match=message):
        read_pairs(_write(tmp_path, HALVED | cells))


def test_a_log_that_is_nowhere_is_told(tmp_path: Path) -> None:
    logs = {"healthy_log": "a", "degraded_log": "b", "healthy_busbw_gbps": "", "degraded_busbw_gbps": ""}
    with pytest.raises(LogFormatError, match=r"PAIRS.csv:2 healthy_log: found no log 'a'"):
        read_pairs(_write(tmp_path, HALVED | logs))


def test_the_command(tmp_path: Path) -> None:
    arguments = ["validate", "degraded", "--pairs", str(_write(tmp_path, HALVED)), "--json", "-"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    (row,) = json.loads(result.stdout)["pairs"]
    assert (row["pair"], row["direction"], row["sizes"]) == ("halved", "right", 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--pairs", "none.csv"], "none.csv: found no such file, expected pairs"),
        (["--pairs", "log.csv"], "log.csv:1: found the columns size, time, expected slug"),
        (["--pairs", "log.csv", "--report"], "--report: the page is about the project's pairs; leave --pairs out"),
    ],
)
def test_the_command_refuses_what_is_no_table_of_pairs(
    more: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "log.csv").write_text("size,time\n8,1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["commsim", "validate", "degraded", *more])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_is_what_the_command_writes_and_the_ratios_are_near() -> None:
    figures = document(outcomes(read_pairs(pairs_file())))
    assert page(figures) == PAGE.read_text(encoding="utf-8")
    assert figures["n_predicted"] >= 12
    assert len(figures["by_system"]) >= 5
    assert figures["median_error_pct"] <= 15
    assert figures["n_right"] == figures["n_predicted"]
    assert all(row["source_url"].startswith("https://") and " " not in row["source_url"] for row in figures["pairs"])


def test_both_curves_of_a_pair_are_of_one_publication_and_one_day() -> None:
    """What else changed between two campaigns no column can say (validation/degraded/README.md)."""
    folders = [VALIDATION / name for name in ("measured", "outside")]
    logs = {row["slug"]: row for folder in folders for index in folder.glob("INDEX_*.csv") for row in index_rows(index)}
    compared = [row for row in index_rows(pairs_file()) if row["healthy_log"]]
    apart = []
    for row in compared:
        sides = [logs[row[name]] for name in ("healthy_log", "degraded_log")]
        published = {(side["date"], side["source_url"].rpartition("/")[0]) for side in sides}
        apart += [row] if len(published) > 1 else []
    assert len(compared) >= 15
    assert [row["slug"] for row in apart if not row["not_expressed"]] == []
    assert len(apart) == 1  # the rule tells some apart
