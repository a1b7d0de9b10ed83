"""nccl-tests text logs: every variant of the format that we know, in small logs of our own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from commsim.errors import LogFormatError
from commsim.measure.nccl_log import read_header
from commsim.measure.parsers import read_measured


@pytest.fixture
def logs(checkout: Path) -> Path:
    return checkout / "tests" / "data" / "logs"


HEADER = (
    "#       size         count      type   redop    root"
    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
)
ROW = (
    "     1048576        262144     float     sum      -1"
    "    35.66   29.40   51.46      0    34.90   30.04   52.58      0\n"
)
NEXT = (
    "     2097152        524288     float     sum      -1"
    "    38.34   54.70   95.73      0    38.11   55.03   96.31      0\n"
)


def write(tmp_path: Path, text: str, name: str = "run.log") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    return path


@pytest.mark.parametrize(
    ("name", "collective", "n_ranks", "rows"),
    [
        ("all_reduce_one_process", "all_reduce", 8, 14),
        ("all_gather_old_columns", "all_gather", 12, 8),
        ("broadcast_tagged_output", "broadcast", 8, 10),
        ("all_reduce_srun_interleaved", "all_reduce", 16, 9),
        ("all_reduce_quoted_cut", "all_reduce", 4, 12),
        ("one_size_per_run_all_gather", "all_gather", 8, 6),
    ],
)
def test_a_variant_becomes_one_curve(logs: Path, name: str, collective: str, n_ranks: int, rows: int) -> None:
    (curve,) = read_measured(logs / f"{name}.log")
    assert (curve.collective, curve.n_ranks, len(curve)) == (collective, n_ranks, rows)
    assert (curve.name, curve.kind, curve.skipped_lines) == (name, "measured", 0)


def test_times_are_seconds_out_of_place(logs: Path) -> None:
    (curve,) = read_measured(logs / "all_reduce_one_process.log")
    assert curve.size_bytes[0] == 8
    assert curve.time_s[0] == pytest.approx(30.0e-6)
    assert curve.in_place_time_s is not None
    assert curve.in_place_time_s[0] == pytest.approx(29.0e-6)
    assert (curve.dtype, curve.redop, curve.root, curve.time_from) == ("float", "sum", None, "out_of_place")


def test_conditions_come_from_the_lines_around_the_table(logs: Path) -> None:
    (one,) = read_measured(logs / "all_reduce_one_process.log")
    assert one.conditions["nccl_tests_version"] == "2.17.1"
    assert one.conditions["nccl_version"] == "2.26.6"
    assert one.conditions["launch"] == "one_process"
    assert one.conditions["gpu_model"] == "NVIDIA H100 80GB HBM3"
    (two,) = read_measured(logs / "all_reduce_srun_interleaved.log")
    assert two.conditions["env"] == "NCCL_ALGO=Ring"
    assert two.conditions["n_nodes"] == "2"
    assert two.conditions["launch"] == "process_per_gpu"


def test_old_convention_leaves_times_alone(logs: Path) -> None:
    (curve,) = read_measured(logs / "all_gather_old_columns.log")
    assert curve.conditions["old_convention"] == "yes"
    assert curve.busbw()[-1] == pytest.approx(11 / 12 * curve.size_bytes[-1] / curve.time_s[-1])


def test_two_tests_in_one_file_with_per_iteration_columns(logs: Path) -> None:
    gather, exchange = read_measured(logs / "two_tests_per_iteration.log")
    assert (gather.collective, exchange.collective) == ("all_gather", "all_to_all")
    assert gather.name != exchange.name
    assert gather.in_place_time_s is not None
    assert np.all(gather.in_place_time_s < gather.time_s)
    (only,) = read_measured(logs / "two_tests_per_iteration.log", collective="all_to_all")
    assert only.collective == "all_to_all"


def test_a_group_cut_at_the_end_of_the_file_is_blank(logs: Path) -> None:
    (curve,) = read_measured(logs / "all_reduce_quoted_cut.log")
    assert curve.in_place_time_s is not None
    assert np.isnan(curve.in_place_time_s[-1])
    assert np.isfinite(curve.time_s[-1])


def test_a_run_that_failed_is_an_error_that_says_why(logs: Path) -> None:
    with pytest.raises(LogFormatError, match=r"without_rows.log:9:1: a table without rows.*unhandled cuda error"):
        read_measured(logs / "failed_without_rows.log")


def test_rows_that_contradict_themselves_are_counted_not_read(tmp_path: Path) -> None:
    wrong_size = ROW.replace("1048576", " 48576 ", 1)
    wrong_time = ROW.replace("35.66", "15.66")
    (curve,) = read_measured(write(tmp_path, HEADER + wrong_size + wrong_time + NEXT + "   4194304   10485\n"))
    assert curve.size_bytes.tolist() == [2097152]
    assert curve.skipped_lines == 3


def test_two_rows_glued_into_one_line(tmp_path: Path) -> None:
    (curve,) = read_measured(write(tmp_path, HEADER + ROW.rstrip() + NEXT))
    assert curve.size_bytes.tolist() == [1048576, 2097152]


def test_a_row_cut_inside_its_first_group_is_not_a_row(tmp_path: Path) -> None:
    (curve,) = read_measured(write(tmp_path, HEADER + ROW + NEXT[:70] + "\n"))
    assert (len(curve), curve.skipped_lines) == (1, 1)


def test_repeated_sizes_become_a_median_with_a_band(tmp_path: Path) -> None:
    slower = ROW.replace("35.66   29.40   51.46", "37.66   27.84   48.73")
    (curve,) = read_measured(write(tmp_path, HEADER + ROW + slower + NEXT))
    assert curve.time_s[0] == pytest.approx(36.66e-6)
    assert curve.low_s is not None
    assert curve.high_s is not None
    assert (curve.low_s[0], curve.high_s[0]) == (pytest.approx(35.66e-6), pytest.approx(37.66e-6))


def test_the_same_sizes_in_two_tables_stay_two_curves(tmp_path: Path) -> None:
    first, second = read_measured(write(tmp_path, HEADER + ROW + NEXT + HEADER + ROW + NEXT))
    assert first.name == "run"
    assert second.name == "run #2"


def test_a_row_under_the_second_group_only_is_in_place(tmp_path: Path) -> None:
    words = ROW.split()
    row = f"{words[0]:>12}{words[1]:>14}{'float':>10}{'sum':>8}{'-1':>8}" + " " * 36 + "34.90   30.04   52.58      0\n"
    (curve,) = read_measured(write(tmp_path, HEADER + row))
    assert curve.time_from == "in_place"
    assert curve.time_s[0] == pytest.approx(34.9e-6)


def test_wrong_results_are_told_and_their_time_in_place_is_not_used(tmp_path: Path) -> None:
    bad = NEXT.replace("      0\n", "   1200\n")
    (curve,) = read_measured(write(tmp_path, HEADER + ROW + bad))
    assert curve.notes[-1] == "wrong results in 1 of 2 rows: the log counts 1,200 elements at 2 MiB"
    assert curve.in_place_time_s is not None
    assert np.isnan(curve.in_place_time_s).tolist() == [False, True]
    for right in (NEXT, NEXT.replace("      0\n", "    N/A\n")):
        assert not any("wrong" in note for note in read_measured(write(tmp_path, HEADER + ROW + right))[0].notes)


def test_a_blank_operation_under_its_heading_is_none(tmp_path: Path) -> None:
    """As old nccl-tests print it of all_gather."""
    path = tmp_path / "old.log"
    path.write_text(
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "     1048576         32768   float            60.00   17.48   15.29  0e+00    59.00   17.77   15.55  0e+00\n"
        "    16777216        524288   float           200.00   83.89   73.40  0e+00   199.00   84.31   73.77  0e+00\n"
    )
    (curve,) = read_measured(path)
    assert (curve.collective, curve.n_ranks, curve.redop, curve.skipped_lines) == ("all_gather", 8, "", 0)
    assert curve.time_s.tolist() == pytest.approx([60e-6, 200e-6])


@pytest.mark.parametrize(
    ("text", "message"),
    [("\n" * 1_000_002, "no header line (size count type ...) in the first 1,000,000 lines"),
     ("#  size  count  type  redop  root  time  algbw  busbw\n" * 1_100, "more than 1,024 tables"),
     ("#  size  count  type  redop  root  time  algbw  busbw\n" + "8 2 float sum -1 8.00 0.00 0.00\n" * 100_001,
      "more than 100,000 rows")],
)  # fmt: skip
def test_floods_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "flood.log"
    path.write_text(text)
    with pytest.raises(LogFormatError, match=re.escape(message)):
        read_measured(path)


def test_windows_line_ends_and_utf16(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes((HEADER + ROW).replace("\n", "\r\n").encode("utf-16"))
    assert len(read_measured(path)[0]) == 1


def test_what_a_log_does_not_say_is_asked_for(tmp_path: Path) -> None:
    gather = (
        HEADER + ROW.replace("262144", " 32768").replace(" sum", "none").replace("51.46      0", "25.73    N/A")
    ).replace("52.58      0", "26.28    N/A")
    with pytest.raises(LogFormatError, match=r"all_gather or all_to_all.*its name in the file"):
        read_measured(write(tmp_path, gather))
    (curve,) = read_measured(write(tmp_path, gather), collective="alltoall")
    assert (curve.collective, curve.n_ranks) == ("all_to_all", 8)


def test_what_the_caller_states_must_not_contradict_the_log(logs: Path) -> None:
    with pytest.raises(LogFormatError, match="found 8 ranks, but 16 ranks"):
        read_measured(logs / "all_reduce_one_process.log", n_ranks=16)
    with pytest.raises(LogFormatError, match="found all_reduce, expected broadcast"):
        read_measured(logs / "all_reduce_one_process.log", collective="broadcast")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"hello\nworld\n", "found 2 lines and no header line"),
        (ROW.encode(), "1 lines that look like rows but no readable header line"),
        (bytes(range(256)) * 40, "binary data"),
        (b"\x1f\x8b\x08" + bytes(50), "gzip data"),
        (b'{"version": 2}', "JSON"),
    ],
)
def test_what_is_no_log_is_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(content)
    with pytest.raises(LogFormatError, match=message):
        read_measured(path)


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="No such file"):
        read_measured(tmp_path / "absent.log")
    with pytest.raises(LogFormatError, match=r"folder without result\.csv"):
        read_measured(tmp_path)


def test_one_endless_line_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"x" * 5_000_000 + b"\n" + (HEADER + ROW).encode())
    assert len(read_measured(path)[0]) == 1


@pytest.mark.parametrize(
    "header",
    [
        "# size count type time algbw busbw",
        "# size count type redop time algbw busbw error time algbw busbw error",
        "# size count type root cputime algbw busbw #wrong",
    ],
)
def test_headers_that_are_read(header: str) -> None:
    assert read_header(header) is not None


@pytest.mark.parametrize(
    "header",
    ["# size count type redop root algbw busbw", "# size count type what time algbw busbw", "# time algbw busbw"],
)
def test_damaged_headers_are_not_guessed(header: str) -> None:
    assert read_header(header) is None
