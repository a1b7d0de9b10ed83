"""The table of a run: rows that stay, whatever cuts the run short."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from commsim.errors import LogFormatError, MeasurementError
from commsim.measure.parsers import read_measured
from commsim.measure.run_folder import COLUMNS, RunFolder, discard, read_conditions

ROW = {
    "collective": "all_gather",
    "n_ranks": 4,
    "size_bytes": 1024,
    "count": 64,
    "dtype": "float32",
    "redop": "none",
    "root": -1,
    "oop_time_us": 12.5,
    "oop_algbw_GBps": 0.08192,
    "oop_busbw_GBps": 0.06144,
    "oop_wrong": 0,
    "iterations": 20,
    "repeat": 0,
    "sent_bytes": "768 768 768 768",
}
KEY = ("all_gather", "float32", "none", -1, 1024, 0, "")


def _run(folder: Path, *sizes: int, fingerprint: str = "abc") -> None:
    rows = RunFolder(folder, fingerprint)
    rows.write_conditions({"fingerprint": fingerprint, "name": "a run", "backend": "gloo"})
    for size in sizes:
        rows.add(ROW | {"size_bytes": size})
    rows.close()


def test_rows_are_read_back(tmp_path: Path) -> None:
    _run(tmp_path, 1024, 4096)
    (curve,) = read_measured(tmp_path)
    assert (curve.collective, curve.n_ranks, curve.kind) == ("all_gather", 4, "measured")
    assert curve.size_bytes.tolist() == [1024, 4096]
    assert curve.time_s.tolist() == pytest.approx([12.5e-6, 12.5e-6])
    assert curve.conditions["backend"] == "gloo"


def test_repeats_become_a_band(tmp_path: Path) -> None:
    rows = RunFolder(tmp_path, "abc")
    for repeat, time in enumerate((10.0, 30.0, 20.0)):
        rows.add(ROW | {"oop_time_us": time, "repeat": repeat})
    rows.close()
    (curve,) = read_measured(tmp_path / "measured.csv")
    assert curve.low_s is not None
    assert curve.high_s is not None
    assert (curve.low_s[0], curve.time_s[0], curve.high_s[0]) == pytest.approx((10e-6, 20e-6, 30e-6))


def test_a_rerun_knows_what_is_finished(tmp_path: Path) -> None:
    _run(tmp_path, 1024)
    again = RunFolder(tmp_path, "abc")
    assert again.finished == {KEY}
    again.close()


def test_half_a_row_is_cut_off(tmp_path: Path) -> None:
    _run(tmp_path, 1024)
    table = tmp_path / "measured.csv"
    whole = table.read_bytes()
    table.write_bytes(whole + b"all_gather,4,20")
    again = RunFolder(tmp_path, "abc")
    again.close()
    assert again.finished == {KEY}
    assert table.read_bytes() == whole


def test_a_folder_of_another_run_is_refused_until_it_is_discarded(tmp_path: Path) -> None:
    _run(tmp_path, 1024)
    with pytest.raises(MeasurementError, match="holds another run"):
        RunFolder(tmp_path, "other")
    discard(tmp_path)
    fresh = RunFolder(tmp_path, "other")
    assert fresh.finished == set()
    fresh.close()


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, "abc")
    with pytest.raises(MeasurementError, match="another run is writing it"):
        RunFolder(tmp_path, "abc")
    first.close()


def test_a_full_disk_leaves_whole_rows(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a disk that has room for one more row only in part."""
    rows = RunFolder(tmp_path, "abc")
    rows.add(ROW)
    size = (tmp_path / "measured.csv").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
    try:
        with pytest.raises(MeasurementError, match="cannot be written: File too large; the 1 finished rows are in it"):
            rows.add(ROW | {"size_bytes": 2048})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    rows.close()
    assert (tmp_path / "measured.csv").stat().st_size == size
    assert len(read_measured(tmp_path)[0]) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasurementError, match="cannot be written"):
        RunFolder(tmp_path / "file" / "below", "abc")


@pytest.mark.parametrize("line", ["all_gather,4", "all_gather,x" + "," * (len(COLUMNS) - 2), "a,b,c" + ",1" * 40])
def test_a_table_that_was_spoilt_is_no_measurement(tmp_path: Path, line: str) -> None:
    (tmp_path / "measured.csv").write_text(",".join(COLUMNS) + "\n" + line + "\n")
    with pytest.raises(LogFormatError, match=r"measured\.csv"):
        read_measured(tmp_path)


def test_conditions_that_are_no_json_are_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    assert read_conditions(tmp_path) == {}


NOW = {"gpu": "H100", "nccl": "2.27.7", "env": {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}, "load_average": 1.0}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nccl": "2.28.9"}, "nccl was 2.27.7, is 2.28.9"),
        ({"gpu": ["H100", "A100"]}, r"gpu was H100, is \['H100', 'A100'\]"),
        ({"env": {"NCCL_ALGO": "Tree"}}, "NCCL_ALGO was Ring, is Tree"),
        ({"env": {}}, "NCCL_ALGO was Ring, is not set"),
        ({"env": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}}, "NCCL_PROTO was not set, is LL"),
        ({"driver": "570"}, "driver was not set, is 570"),
    ],
)
def test_rows_of_other_conditions_are_not_gone_on_with(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    _under(tmp_path, NOW)
    with pytest.raises(MeasurementError, match=said):
        RunFolder(tmp_path, "abc", NOW | changed)


def test_what_changes_no_time_may_change(tmp_path: Path) -> None:
    _under(tmp_path, NOW)
    quiet = {"env": {"NCCL_ALGO": "Ring"}, "load_average": 9.0}
    rows = RunFolder(tmp_path, "abc", NOW | quiet)
    assert rows.finished == {KEY}
    rows.close()


def _under(folder: Path, conditions: dict[str, Any]) -> None:
    rows = RunFolder(folder, "abc", conditions)
    rows.write_conditions({"fingerprint": "abc"} | conditions)
    rows.add(ROW)
    rows.close()
