"""Quantities: what is read, what is refused and in which words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import UnitError
from commsim.units import (
    format_bandwidth,
    format_bytes,
    format_percent,
    format_time,
    gb_per_s,
    gbit_per_s,
    microseconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8 B", 8),
        ("64MiB", 64 * 2**20),
        ("1 GB", 10**9),
        ("1 GiB", 2**30),
        ("1_000 B", 1000),
        ("1.5 KiB", 1536),
        ("2.3 GB", 2_300_000_000),
        ("1e3 B", 1000),
        ("9007199254740993 B", 2**53 + 1),
        ("0 B", 0),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400 Gb/s", 50e9), ("400 Gbps", 50e9), ("50 GB/s", 50e9), ("1 GiB/s", 2.0**30), ("8 Gib/s", 2.0**30)],
)
def test_bandwidths(text: str, expected: float) -> None:
    assert parse_bandwidth(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2 us", 2e-6), ("2 µs", 2e-6), ("2 μs", 2e-6), ("1.5 ms", 1.5e-3), ("1 h", 3600.0)],
)
def test_times(text: str, expected: float) -> None:
    assert parse_time(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (7, "bare number 7"),
        ("7", "bare number '7'"),
        (True, "found True"),
        (None, "found None"),
        ("8K", "'KiB' (powers of 1024) or 'KB' (powers of 1000)"),
        ("1 Gb", "did you mean 'GB'?"),
        ("1 kib", "did you mean 'KiB'?"),
        ("1 GB/s", "a unit of bandwidth, expected a size"),
        ("1 us", "a unit of time, expected a size"),
        ("0.5 B", "a whole number of bytes"),
        ("1e400 GB", "finite"),
        ("1e-999999999 B", "a whole number of bytes"),
        ("9 PiB x", "expected a size such as"),
        ("5000 PiB", "at most 4 EiB"),
        ("-1 B", "not negative"),
        ("１ B", "expected a size such as"),
        ("B", "expected a size such as"),
        ("1 " + "B" * 100, "a text of 102 characters"),
    ],
)
def test_sizes_refused(text: object, message: str) -> None:
    with pytest.raises(UnitError) as info:
        parse_bytes(text)
    assert message in str(info.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("400 Gb", "did you mean 'Gb/s'? (b is a bit, B is a byte)"),
        ("50 GB", "did you mean 'GB/s'?"),
        ("50 GBps", "did you mean 'GB/s'?"),
        ("400 Gbit/s", "did you mean 'Gb/s'?"),
        ("400 gb/s", "did you mean 'GB/s' or 'Gb/s'?"),
        ("0 GB/s", "above zero"),
        ("-1 GB/s", "not negative"),
        ("1e-300 GB/s", "from 1 B/s"),
        ("1e30 GB/s", "to 1000 PB/s"),
        ("25 GT/s", "expected a bandwidth in one of"),
    ],
)
def test_bandwidths_refused(text: str, message: str) -> None:
    with pytest.raises(UnitError) as info:
        parse_bandwidth(text)
    assert message in str(info.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 usec", "did you mean 'us'?"),
        ("2 sec", "did you mean 's'?"),
        ("2 US", "did you mean 'us'?"),
        ("1e9 d", "10000 d"),
    ],
)
def test_times_refused(text: str, message: str) -> None:
    with pytest.raises(UnitError) as info:
        parse_time(text)
    assert message in str(info.value)


@given(st.integers(0, 2**62))
def test_bytes_are_exact(n: int) -> None:
    assert parse_bytes(f"{n} B") == n


@given(st.floats(1.0, 1e18))
def test_bandwidth_survives_its_repr(rate: float) -> None:
    assert parse_bandwidth(f"{rate!r} B/s") == rate


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_bandwidth, parse_time):
        try:
            value = parse(text)
        except UnitError:
            continue
        assert value >= 0


def test_formats() -> None:
    assert format_bytes(64 * 2**20) == "64 MiB"
    assert format_bytes(0) == "0 B"
    assert format_bytes(8e9) == "8 GB"
    assert format_bytes(1234567) == "1.177 MiB"
    assert format_bytes(np.int64(8 * 10**9)) == "8 GB"  # type: ignore[arg-type]
    assert format_bytes(0.5) == "0.5 B"
    assert format_bandwidth(50e9) == "50 GB/s"
    assert format_time(12.5e-6) == "12.5 us"
    assert [format_percent(share) for share in (0.0, 0.0174, 0.996, 16.04)] == ["0 %", "1.7 %", "100 %", "1,600 %"]
    assert gb_per_s(5e9) == 5
    assert gbit_per_s(50e9) == 400
    assert microseconds(1e-6) == 1


@pytest.mark.parametrize(("text", "number"), [("300B", 3e11), ("15T", 1.5e13), ("300e9", 3e11), ("1.5 M", 1.5e6)])
def test_many_tokens_are_as_people_say_them(text: str, number: float) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "B", "3x", "-3B", "0", "1e99999", "٣B"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="such as 300B or 15T"):
        parse_count(text)
