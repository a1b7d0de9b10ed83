"""Text tables: the shape of nccl-tests, and CSV that reads back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import commsim as cs
from commsim.accuracy.compare import compare
from commsim.cli import app
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.report.tables import aligned, falls_note, format_time_us, result_csv, result_table, slowest_note
from commsim.report.verdict import comparison_csv, comparison_table
from commsim.scenario.item import Item, Row
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

ROWS = [
    Row(8, 2, "float", "sum", -1, 12.35e-6, 8 / 12.35e-6, 14 / 12.35e-6, "ring", "LL", 2, "launch", 1e-6),
    Row(
        2**30, 2**28, "float", "sum", -1, 5.1e-3, 2**30 / 5.1e-3, 1.75 * 2**30 / 5.1e-3, "ring", "Simple", 24, "nvlink"
    ),
]
TABLE = Item("hgx-h100 all_reduce", "all_reduce", 8, ROWS)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5.29e-6, "5.29"),
        (99.99e-6, "99.99"),
        (99.996e-6, "100.0"),
        (150.64e-6, "150.6"),
        (9999.96e-6, "10000"),
        (2.8, "2800000"),
    ],
)
def test_times_as_nccl_tests_prints_them(seconds: float, text: str) -> None:
    assert format_time_us(seconds) == text


def test_the_result_table_has_the_columns_of_nccl_tests() -> None:
    lines = result_table(TABLE, ["commsim"], raw=True).splitlines()
    assert lines[0] == "# commsim"
    header = "# size count type redop root time algbw busbw algorithm protocol channels bound bottleneck"
    assert " ".join(lines[1].split()) == header
    assert " ".join(lines[3].split()) == "8 2 float sum -1 12.35 0.00 0.00 ring LL 2 1.00 launch"
    assert lines[4].split()[5:8] == ["5100.0", "210.54", "368.44"]
    assert lines[1].index("time") + len("time") == lines[3].index("12.35") + len("12.35")


def _choosing(*choices: tuple[float, str, int], library: str = "nccl") -> Item:
    rows = [
        Row(2**20 << i, 2**18, "float", "", 0, seconds, 1e9, 1e9, "ring", protocol, channels)
        for i, (seconds, protocol, channels) in enumerate(choices)
    ]
    return Item("x", "broadcast", 8, rows, library)


def test_a_time_that_falls_is_explained_in_one_line_under_the_table() -> None:
    item = _choosing((47e-6, "LL", 4), (30e-6, "LL128", 16), (50e-6, "LL128", 16))
    *_, first, last = result_table(item).splitlines()
    assert f"{first} {last.removeprefix('#   ')}" == (
        "# the time falls at 2 MiB (ring LL on 4 channels, then ring LL128 on 16 channels): NCCL changes its choice "
        "there by an estimate of its own, not by these times"
    )
    often = _choosing(*[(1e-6 / (i + 1), "LL", i + 1) for i in range(7)])
    assert falls_note(often).count("channel") == 6
    assert "then ring LL on 4 channels) and at 3 more sizes: NCCL" in falls_note(often)


def test_a_bandwidth_that_falls_is_explained_too() -> None:
    # Twice the bytes in 2.3 times the time are 13 % less bandwidth; in 2.2 times 9 %, which is not worth a word.
    item = _choosing((1e-3, "Simple", 16), (2.3e-3, "LL128", 16), (5.06e-3, "Simple", 16))
    assert falls_note(item) == (
        "the bandwidth falls at 2 MiB (ring Simple on 16 channels, then ring LL128 on 16 channels): NCCL changes its "
        "choice there by an estimate of its own, not by these times"
    )


@pytest.mark.parametrize(
    "item",
    [
        _choosing((47e-6, "LL", 4), (48e-6, "LL128", 16)),
        _choosing((47e-6, "LL", 4), (300e-6, "LL", 4)),
        _choosing((47e-6, "LL", 4), (46.9e-6, "LL128", 16)),
        _choosing((47e-6, "LL", 4), (30e-6, "LL", 4)),
        _choosing((47e-6, "LL", 4), (30e-6, "LL", 8), library="none"),
    ],
)
def test_a_time_that_rises_or_falls_for_another_reason_has_no_note(item: Item) -> None:
    assert falls_note(item) == ""


@pytest.mark.parametrize(
    ("bottleneck", "busiest", "named"),
    [("NIC", "NIC", True), ("latency", "NIC", False), ("messages of the NIC", "messages of the NIC", False)],
)
def test_a_slow_place_is_the_limit_only_where_the_rate_of_links_is(bottleneck: str, busiest: str, named: bool) -> None:
    row = Row(
        8, 2, "float32", "sum", -1, 1e-5, 1.0, 1.0, bottleneck=bottleneck, busiest_link=busiest, slow_place="node3"
    )
    assert slowest_note(Item("x", "all_reduce", 16, [row])).endswith("from 8 B on: node3") == named


def test_the_printed_table_is_itself_a_log_that_we_read(tmp_path: Path) -> None:
    path = tmp_path / "printed.log"
    path.write_text(result_table(TABLE, raw=True))
    (curve,) = read_measured(path)
    assert (curve.collective, curve.n_ranks) == ("all_reduce", 8)
    assert curve.size_bytes.tolist() == [8, 2**30]


def test_the_csv_reads_back_to_the_same_times(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    path.write_text(result_csv([TABLE]))
    (curve,) = read_measured(path)
    assert (curve.name, curve.kind, curve.n_ranks) == ("hgx-h100 all_reduce", "predicted", 8)
    assert curve.time_s == pytest.approx([row.time_s for row in ROWS], rel=1e-8)


def test_the_comparison_table_has_a_row_per_size_and_the_summary() -> None:
    size = np.array([1024, 2**20, 2**27], np.int64)
    measured = Curve("m", "all_reduce", 8, "measured", size, np.array([1e-5, 2e-5, 1e-3]), skipped_lines=2)
    predicted = Curve("p", "all_reduce", 8, "predicted", size[[0, 2]], np.array([1.1e-5, 9e-4]))
    c = compare(predicted, measured)
    assert "     1 KiB       11.00" in comparison_table(c)
    text = comparison_table(c, raw=True)
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert rows[0] == ["1024", "11.00", "10.00", "+10.0"]
    assert rows[1][-1] == "interpolated"
    assert "MAPE" in text
    assert "> 64 MiB: 10.0 %" in text
    assert "not read: 2 lines" in text
    assert comparison_csv([c]).splitlines()[1] == "p,m,1024,11,10,10,0"


@pytest.mark.parametrize(
    ("collective", "redop", "root"),
    [("all_reduce", "sum", -1), ("reduce", "sum", 0), ("broadcast", "none", 0), ("all_gather", "none", -1)],
)
def test_operation_and_root_are_named_where_nccl_tests_names_them(
    tmp_path: Path, collective: str, redop: str, root: int
) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: Names\ntopology: {preset: hgx-h100}\nlibrary: {name: nccl, version: 2.26.2}\n"
        f"workload: [{{collective: {collective}, sizes: 1 MiB}}]\n"
    )
    (row,) = run(load_scenarios(tmp_path / "s.yaml", [])[0]).items[0].rows
    assert (row.redop, row.root) == (redop, root)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_tables_are_as_wide_as_the_terminal_and_keep_what_decides(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    item = cs.run("all_reduce", on="hgx-h100-ndr400", nodes=4, minbytes="64K", maxbytes="1G", stepfactor=64).items[0]
    lines = result_table(item, ["a heading of so many words that it does not stand on a line of sixty"]).splitlines()
    assert max(map(len, lines)) <= columns
    head = next(line for line in lines if "size" in line).split()
    assert {"size", "time", "busbw", "bottleneck"} <= set(head)
    out = [line for line in lines if line.startswith("# left out")]
    assert bool(out) == ("channels" not in head)
    assert columns > 60 or out


@pytest.mark.parametrize(
    "words",
    [
        "schedule list",
        "tune custom-all-reduce --kernels --out {folder}/kernels.json",
        "run llama-3-8b --on hgx-h100-ndr400 -n 2 --tp 8 --no-files",
    ],
)
def test_what_is_printed_fits_sixty_columns(words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words.format(folder=tmp_path).split(), env={"COLUMNS": "60"})
    assert done.exit_code == 0, done.output
    wide = [line for line in done.stdout.splitlines() if len(line) > 60 and str(tmp_path) not in line]
    assert not wide


def test_columns_are_left_out_in_their_order_and_named() -> None:
    rows = [("name", "less", "least", "end"), ("a" * 20, "b" * 20, "c" * 20, "d" * 20)]
    assert aligned(rows, (0,), 100, (2, 1)) == aligned(rows, (0,), 100)
    assert aligned(rows, (0,), 70, (2, 1))[2:] == ["# left out, 70 columns wide: least"]
    assert aligned(rows, (0,), 60, (2, 1))[2:] == ["# left out, 60 columns wide: less, least"]
