"""CSV tables: a log with its index row, and our own result.csv."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commsim.errors import LogFormatError
from commsim.measure.parsers import read_measured

HEADER = (
    "size_bytes,count,dtype,redop,root,oop_time_us,oop_algbw_GBps,oop_busbw_GBps,ip_time_us,ip_algbw_GBps,ip_busbw_GBps"
)
FULL = "1048576,262144,float,sum,-1,35.66,29.40,51.46,34.90,30.04,52.58"
INDEX = "slug,collective,n_ranks,nccl_version,healthy,source_url\n"


def write(folder: Path, *rows: str, index: str = "", name: str = "one") -> Path:
    if index:
        (folder / "INDEX_test.csv").write_text(INDEX + index + "\n")
    path = folder / f"{name}.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_the_index_row_of_the_slug_is_used(tmp_path: Path) -> None:
    path = write(tmp_path, FULL, index="two,all_gather,2,,,\none,all_reduce,8,2.20.5,yes,https://example.org/log")
    (curve,) = read_measured(path)
    assert (curve.collective, curve.n_ranks) == ("all_reduce", 8)
    assert curve.conditions == {"nccl_version": "2.20.5", "healthy": "yes", "source_url": "https://example.org/log"}
    assert curve.notes == ()


def test_what_the_index_assumes_is_not_a_condition_that_the_source_states(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    head, row = "slug,collective,n_ranks,nodes,launch,nccl_version,assumed", "one,all_reduce,8,1,one_process,2.20.5"
    for assumed, launch in (("", {"launch": "one_process"}), ("launch nic_gbps", {})):
        (tmp_path / "INDEX_test.csv").write_text(f"{head}\n{row},{assumed}\n")
        (curve,) = read_measured(path)
        assert curve.conditions == {"n_nodes": "1", "nccl_version": "2.20.5"} | launch


@pytest.mark.parametrize("nothing", ["nan", "NaN", "N/A", "null", "-", ""])
def test_cells_where_nothing_was_measured(nothing: str, tmp_path: Path) -> None:
    rows = (
        FULL,
        f"2097152.0,524288,float,sum,-1,{nothing},,,50,41.94,73.40",
        "4194304,1048576,float,sum,-1,80,52.43,91.75,79,53.09,92.91",
    )
    (curve,) = read_measured(write(tmp_path, *rows))
    assert curve.size_bytes.tolist() == [1 << 20, 1 << 21, 1 << 22]
    np.testing.assert_allclose(curve.time_s * 1e6, [35.66, 50.0, 80.0])  # in place where it is all there is


def test_without_an_index_the_columns_speak_and_say_so(tmp_path: Path) -> None:
    (curve,) = read_measured(write(tmp_path, FULL))
    assert (curve.collective, curve.n_ranks) == ("all_reduce", 8)
    assert any("deduced" in note for note in curve.notes)


def test_bus_bandwidth_alone_becomes_a_time(tmp_path: Path) -> None:
    (curve,) = read_measured(write(tmp_path, "1000000,,float,sum,-1,,,50,,,"), collective="all_reduce", n_ranks=8)
    assert curve.time_from == "busbw"
    assert curve.time_s[0] == pytest.approx(1e6 * 1.75 / 50e9)


def test_in_place_alone_is_used_and_named(tmp_path: Path) -> None:
    (curve,) = read_measured(
        write(tmp_path, "1024,256,float,sum,-1,,,,20,0.05,0.09"), n_ranks=8, collective="all_reduce"
    )
    assert (curve.time_from, curve.time_s[0]) == ("in_place", pytest.approx(20e-6))


def test_bus_bandwidth_without_ranks_asks_for_them(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="a time needs the number of ranks"):
        read_measured(write(tmp_path, "1000000,,float,sum,-1,,,50,,,"), collective="all_reduce")


def test_rows_of_size_zero_and_of_zero_bandwidth(tmp_path: Path) -> None:
    rows = ["0,0,float,sum,-1,12,0,0,,,", "64,16,float,sum,-1,,,0.00,,,", "1000000,,float,sum,-1,,,50,,,"]
    path = write(tmp_path, *rows)
    curves = read_measured(path, collective="all_reduce", n_ranks=8)
    assert [int(s) for c in curves for s in c.size_bytes] == [1000000]
    assert sum(c.skipped_lines for c in curves) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("eight,2,float,sum,-1,1,1,1,,,", r"one.csv:2:1: size_bytes: found 'eight'"),
        ("8,2,float,sum,-1,fast,1,1,,,", r"one.csv:2:18: oop_time_us: found 'fast'"),
        ("8,2,float,sum,-1,-3,1,1,,,", r"oop_time_us: found '-3'"),
        ("8,2,float,sum,-1,inf,1,1,,,", r"oop_time_us: found 'inf', expected 0 or a number from 1e-09 to 1e\+15"),
        ("8,2,float,sum,-1,1e-300,1,1,,,", r"oop_time_us: found '1e-300', expected 0 or a number from 1e-09"),
        (
            "-8,2,float,sum,-1,1,1,1,,,",
            r"size_bytes: found '-8', expected a whole number of at most 18 digits, not neg",
        ),
        ("8, 2,float,sum,-1,1,1,1,x,,", r"one.csv:2:25: ip_time_us: found 'x'"),
        ("8,2,float,sum,-1,1,1,1,1,1,1,1,1", r"one.csv:2:1: more fields than the 11 columns"),
    ],
)
def test_faults_name_line_and_column(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(LogFormatError, match=message):
        read_measured(write(tmp_path, row))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_other_separators_and_blank_lines_above_the_header(tmp_path: Path, separator: str) -> None:
    text = "\n\n" + "\n".join([HEADER, FULL, FULL.replace("1048576", "2097152").replace("35.66", "71.32")]) + "\n"
    (tmp_path / "all_reduce.csv").write_text(text.replace(",", separator))
    (curve,) = read_measured(tmp_path / "all_reduce.csv", collective="all_reduce", n_ranks=8)
    assert curve.time_s == pytest.approx([35.66e-6, 71.32e-6])


def test_every_fault_is_told_at_once_as_far_as_a_screen_holds(tmp_path: Path) -> None:
    bad = FULL.replace("35.66", "fast")
    with pytest.raises(LogFormatError) as two:
        list(read_measured(write(tmp_path, bad, FULL, FULL.replace("34.90", "-1"))))
    assert [(f.line, f.message.split(":")[0]) for f in two.value.faults] == [(2, "oop_time_us"), (4, "ip_time_us")]
    with pytest.raises(LogFormatError, match="reading ended here") as many:
        list(read_measured(write(tmp_path, *[bad] * 100)))
    assert len(many.value.faults) == 21


def test_a_table_without_rows(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="without rows"):
        read_measured(write(tmp_path))


def test_size_alone_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("size_bytes,count\n8,2\n")
    with pytest.raises(LogFormatError, match="but none of time_us"):
        read_measured(path)


def test_a_result_with_unsorted_sizes_and_without_bands(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    path.write_text(
        "curve,collective,n_ranks,size_bytes,count,dtype,redop,root,time_us,algbw_GBps,busbw_GBps,low_us,high_us,"
        "lower_bound_us,algorithm,protocol,channels,bottleneck\n"
        "a,all_reduce,8,64,16,float,sum,-1,30,,,,,2,ring,LL,1,\n"
        "a,all_reduce,8,8,2,float,sum,-1,20,,,,,1,ring,LL,1,\n"
    )
    (curve,) = read_measured(tmp_path)
    assert curve.kind == "predicted"
    assert curve.size_bytes.tolist() == [8, 64]
    assert np.allclose(curve.time_s, [20e-6, 30e-6])
    assert curve.low_s is None
    assert curve.lower_bound_s is not None


@pytest.mark.parametrize(
    "row", ["a,nothing,8,8,2,,,,1,,,,,,,,,", "a,all_reduce,,8,2,,,,1,,,,,,,,,", "a,all_reduce,8,8,2,,,,,,,,,,,,,"]
)
def test_a_damaged_result_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "result.csv"
    header = (
        "curve,collective,n_ranks,size_bytes,count,dtype,redop,root,time_us,algbw_GBps,busbw_GBps,low_us,high_us,"
        "lower_bound_us,algorithm,protocol,channels,bottleneck"
    )
    path.write_text(f"{header}\n{row}\n")
    with pytest.raises(LogFormatError, match=r"result.csv:2"):
        read_measured(path)


def test_what_is_missing_is_asked_for_in_words_that_a_user_can_follow(tmp_path: Path) -> None:
    table = "size_bytes,oop_busbw_GBps\n1024,0.1\n1048576,10\n"
    (tmp_path / "mine.csv").write_text(table)
    with pytest.raises(LogFormatError, match=r"does not say which collective .* such as all_reduce\.log$"):
        read_measured(tmp_path / "mine.csv")
    (tmp_path / "all_gather.csv").write_text(table)  # now the file's name says it
    with pytest.raises(LogFormatError, match="a time needs the number of ranks; expected a column n_ranks"):
        read_measured(tmp_path / "all_gather.csv")


def test_a_column_says_the_ranks_of_each_row(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.csv"
    path.write_text("n_ranks,size_bytes,busbw_GBps\n8,1048576,10\n16,1048576,10\n")
    curves = read_measured(path)
    assert [curve.n_ranks for curve in curves] == [8, 16]
    assert [float(c.time_s[0]) for c in curves] == pytest.approx([1048576 * k / 10e9 for k in (1.75, 1.875)])
    path.write_text("n_ranks,size_bytes,busbw_GBps\n0,1048576,10\n")
    with pytest.raises(LogFormatError, match=r"all_reduce.csv:2.*found '0', expected a whole number from 1"):
        read_measured(path)


def test_a_table_of_plain_columns_takes_the_collective_from_its_name(tmp_path: Path) -> None:
    path = tmp_path / "my_all_reduce.csv"
    path.write_text("size_bytes,time_us,busbw_GBps\n1024,12,\n1048576,,10\n")
    (curve,) = read_measured(path, n_ranks=8)
    assert curve.collective == "all_reduce"
    assert curve.time_s.tolist() == pytest.approx([12e-6, 1048576 * 1.75 / 10e9])
    assert any("name of the file" in note for note in curve.notes)
    path = tmp_path / "mine.csv"
    path.write_text("size_bytes,time_us\n1024,12\n")
    with pytest.raises(LogFormatError, match="does not say which collective"):
        read_measured(path)
    path.write_text("size_bytes,seconds\n1024,12\n")
    with pytest.raises(LogFormatError, match="none of time_us, algbw_GBps, busbw_GBps, oop_time_us"):
        read_measured(path)


def test_columns_of_one_kind_of_buffers_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.csv"
    path.write_text("size_bytes,time_us,oop_time_us\n1024,99,12\n")  # the more exact name counts
    assert read_measured(path)[0].time_s.tolist() == pytest.approx([12e-6])
