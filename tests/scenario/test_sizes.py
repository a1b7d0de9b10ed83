"""Size ranges and lists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import UnitError
from commsim.scenario.collective import MAX_SIZES, parse_size_list, parse_sizes

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64 MiB", (64 * MIB,)),
        ("8 B .. 64 B x2", (8, 16, 32, 64)),
        ("8 B .. 64 B", (8, 16, 32, 64)),
        ("8 B..100 B x4", (8, 32)),
        ("8 B .. 64 B * 2", (8, 16, 32, 64)),
        ("1 MiB .. 4 MiB +1 MiB", (MIB, 2 * MIB, 3 * MIB, 4 * MIB)),
        ("1 KiB .. 3000 B + 1 KiB", (KIB, 2 * KIB)),
        ("0 B .. 2 B +1 B", (0, 1, 2)),
        ("8 B .. 8 B x2", (8,)),
    ],
)
def test_ranges(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (8, "bare number 8"),
        ("8 B .. 8", "bare number '8'"),
        ("8 B ..", "a range such as"),
        (".. 8 B", "a range such as"),
        ("8 B .. 16 B .. 32 B", "a range such as"),
        ("16 B .. 8 B", "its first size not above its last"),
        ("8 B .. 16 B x1", "a whole factor above 1"),
        ("8 B .. 16 B x1.5", "a whole factor above 1"),
        ("8 B .. 16 B x-2", "a whole factor above 1"),
        ("0 B .. 16 B x2", "one above zero"),
        ("8 B .. 16 B +0 B", "a step above zero"),
        ("8 B .. 16 B +8", "bare number '8'"),
        ("4 B .. 1 GiB +4 B", "at most 1,000"),
        ("8 B .. 16 B x2 please", "a whole factor above 1"),
        ("8 B .. " + "x" * 200, "a range such as"),
        ([], "found an empty list"),
        (["8 B"] * (MAX_SIZES + 1), "at most 1,000"),
        (["8 B", "8 B"], "found the size 8 B twice"),
        (["8 B", 16], "bare number 16"),
        ({"from": "8 B"}, "found {'from': '8 B'}"),
    ],
)
def test_refused(value: object, message: str) -> None:
    with pytest.raises(UnitError) as info:
        parse_size_list(value)
    assert message in str(info.value)


@given(st.integers(1, 2**30), st.integers(0, 2**40), st.integers(2, 100))
def test_a_multiplying_range_is_as_long_as_it_can_be(first: int, more: int, factor: int) -> None:
    last = first + more
    sizes = parse_sizes(f"{first} B .. {last} B x{factor}")
    assert sizes[0] == first
    assert all(b == factor * a for a, b in itertools.pairwise(sizes))
    assert sizes[-1] <= last < sizes[-1] * factor


@given(st.text(alphabet="0123456789 .xXKMGiB+*-", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        sizes = parse_sizes(text)
    except UnitError:
        return
    assert 1 <= len(sizes) <= MAX_SIZES
