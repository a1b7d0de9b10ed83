"""Damaged logs: rows that were there, or a LogFormatError; never another exception, never a row that was not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import LogFormatError
from commsim.measure.parsers import read_measured

_LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
_WHOLE = {path.name: path.read_bytes() for path in sorted(_LOGS.glob("*.log")) if "failed" not in path.name}


def _no_digit(code: int) -> int:
    """Noise that cannot turn one number into another: a digit overwritten by a blank is beyond any reader."""
    return code | 0x80 if bytes([code]) in b"0123456789.-+eE \t\n\v\f\r\x1c\x1d\x1e\x1f" else code


_NOISE = st.binary(min_size=1, max_size=6).map(lambda data: bytes(_no_digit(code) for code in data))


def _rows(path: Path) -> set[tuple[str, int, float]]:
    return {
        (c.collective, int(size), float(time))
        for c in read_measured(path)
        for size, time in zip(c.size_bytes, c.time_s, strict=True)
    }


@pytest.fixture(scope="module")
def original() -> dict[str, set[tuple[str, int, float]]]:
    return {name: _rows(_LOGS / name) for name in _WHOLE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants")


def _check(folder: Path, name: str, mutant: bytes, original: dict[str, set[tuple[str, int, float]]]) -> None:
    path = folder / name
    path.write_bytes(mutant)
    try:
        found = _rows(path)
    except LogFormatError:
        return
    # A table cut short can lose what tells its collective apart; its sizes and times stay.
    assert {row[1:] for row in found} <= {row[1:] for row in original[name]}


@given(name=st.sampled_from(sorted(_WHOLE)), at=st.floats(0, 1))
def test_a_log_cut_at_the_end(
    folder: Path, original: dict[str, set[tuple[str, int, float]]], name: str, at: float
) -> None:
    whole = _WHOLE[name]
    _check(folder, name, whole[: int(at * len(whole))], original)


@given(name=st.sampled_from(sorted(_WHOLE)), columns=st.lists(st.integers(0, 130), min_size=1, max_size=40))
def test_lines_cut_at_the_end(
    folder: Path, original: dict[str, set[tuple[str, int, float]]], name: str, columns: list[int]
) -> None:
    lines = _WHOLE[name].splitlines()
    cut = [line[: columns[i % len(columns)]] if i % 3 == 0 else line for i, line in enumerate(lines)]
    _check(folder, name, b"\n".join(cut), original)


@given(name=st.sampled_from(sorted(_WHOLE)), at=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_another_writer_between_and_inside_lines(
    folder: Path, original: dict[str, set[tuple[str, int, float]]], name: str, at: list[float]
) -> None:
    text = _WHOLE[name]
    for place in sorted(at, reverse=True):
        i = int(place * len(text))
        text = text[:i] + b"host:12:34 NCCL INFO ready\n" + text[i:]
    _check(folder, name, text, original)


@given(
    name=st.sampled_from(sorted(_WHOLE)),
    noise=st.lists(st.tuples(st.floats(0, 0.9999), _NOISE), min_size=1, max_size=30),
)
def test_binary_noise(
    folder: Path,
    original: dict[str, set[tuple[str, int, float]]],
    name: str,
    noise: list[tuple[float, bytes]],
) -> None:
    text = bytearray(_WHOLE[name])
    for place, data in noise:
        i = int(place * len(text))
        text[i : i + len(data)] = data
    _check(folder, name, bytes(text), original)


@given(st.binary(max_size=2000))
def test_garbage(folder: Path, data: bytes) -> None:
    path = folder / "garbage.log"
    path.write_bytes(data)
    with pytest.raises(LogFormatError):
        read_measured(path)


@given(st.text(alphabet="0123456789.,-# \nsizecounttypealgbwfloat_bytes", max_size=600))
def test_garbage_behind_a_header(folder: Path, text: str) -> None:
    path = folder / "garbage.csv"
    for header in ("# size count type time algbw busbw\n", "size_bytes,count,oop_time_us,ip_busbw_GBps\n"):
        path.write_text(header + text)
        try:
            read_measured(path)
        except LogFormatError:
            continue
