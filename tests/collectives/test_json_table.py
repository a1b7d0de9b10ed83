"""Schedules as JSON: the way there and back, every fault named, mutated text never worse than an error."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives import registry
from commsim.collectives.check import check
from commsim.collectives.json_table import json_text, load_json, parse_json
from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import Schedule
from commsim.errors import ScheduleError

RING = json_text(ring_all_reduce(3, 12))
_FIELDS = ("collective", "algorithm", "world_size", "endpoints", "root", "in_place", "scratch_chunks")
_COLUMNS = ("op", "src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "step", "channel", "after")
_LOWERED = ("wire_bytes", "connection")


def same(a: Schedule, b: Schedule) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in (*_COLUMNS, *_LOWERED, "chunk_bytes")]
    fields = all(getattr(a, name) == getattr(b, name) for name in _FIELDS)
    return fields and all((x is y) if x is None or y is None else np.array_equal(x, y) for x, y in pairs)


@given(st.sampled_from(registry.names()), st.integers(1, 7))
def test_there_and_back(key: tuple[str, str], n: int) -> None:
    s = registry.build(*key, n, 24 * n * n)
    back = parse_json(json_text(s))
    check(back)
    assert same(s, back)


def test_lowered_columns_and_extra_order_are_kept() -> None:
    s = ring_all_reduce(3, 12)
    s = s.edit(wire_bytes=np.arange(s.rows), connection=[0] * s.rows, after=[(0, 5), (1, 7)])
    assert same(s, parse_json(json_text(s)))


def test_a_file_of_an_earlier_version_is_read_without_its_unused_column() -> None:
    s = ring_all_reduce(3, 12)
    earlier = json.loads(json_text(s))
    earlier["rows"]["alpha_kind"] = [2] * s.rows
    assert same(s, parse_json(json.dumps(earlier)))


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    path.write_text(RING, encoding="utf-8")
    assert same(load_json(path), ring_all_reduce(3, 12))


def changed(**values: Any) -> str:
    data = json.loads(RING)
    rows = {name.removeprefix("rows_"): value for name, value in values.items() if name.startswith("rows_")}
    data |= {name: value for name, value in values.items() if not name.startswith("rows_")}
    if isinstance(data["rows"], dict):
        data["rows"] |= rows
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"f.json:1:1: no JSON"),
        ("{", r"f.json:1:2: no JSON"),
        ("[" * 100_000, "no JSON that could be a schedule"),
        ("[]", "expected an object with"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        (RING.replace("[4,4,4]", "[4,NaN,4]"), "NaN"),
        (RING.replace('"root": 0', '"root": ' + "9" * 5000), "no JSON that could be"),
        (changed(format="other"), "commsim schedule"),
        (changed(version=2), "version is 2, expected 1"),
        (changed(collective="allreduce"), 'collective is "allreduce", expected one of all_reduce'),
        (changed(algorithm=""), 'algorithm is "", expected a name'),
        (changed(in_place=1), "in_place is 1, expected true or false"),
        (changed(world_size=True), "world_size is true, expected a whole number"),
        (changed(world_size=7), "found 7 ranks and 3 endpoints"),
        (changed(root=3), "root 3 is not one of the ranks"),
        (changed(endpoints=2**30), "endpoints is 1073741824, expected at most"),
        (changed(extra=1), "unknown key 'extra'"),
        (changed(chunk_bytes=[4, -4, 4]), r"chunk_bytes\[1\] is -4"),
        (changed(chunk_bytes=[2**62, 2**62, 2**62]), "more than 4 EiB"),
        (changed(chunk_bytes="4"), 'chunk_bytes is "4", expected a list'),
        (changed(rows=[]), "rows is no object"),
        (changed(rows={}), "rows has no column op"),
        (changed(rows_time=[1]), "unknown column 'time'"),
        (changed(rows_op=[2] + [0] * 11), r"rows.op\[0\] is 2, expected 0..1"),
        (changed(rows_src=[3] + [0] * 11), r"rows.src\[0\] is 3, expected 0..2"),
        (changed(rows_src=[1.5] + [0] * 11), r"rows.src\[0\] is 1.5, expected a whole number"),
        (changed(rows_src=[10**400] + [0] * 11), "a number of more than 20 digits"),
        (changed(rows_src_chunk=[9] * 12), r"rows.src_chunk\[0\] is 9"),
        (changed(rows_dst_buffer=[3] * 12), r"rows.dst_buffer\[0\] is 3, expected 0..2"),
        (changed(rows_op=[0]), "columns differ in length: op 1, src 12"),
        (changed(rows_step=[3] + [0] * 11), "sort rows by step"),
        (changed(after=[[0]]), "after is no list of pairs"),
        (changed(after=[[0, 1]], rows={name: [] for name in _COLUMNS[:-1]}), r"after\[0\] is 0, expected no number"),
        (changed(after=[[0, 12]]), r"after\[1\] is 12, expected 0..11"),
    ],
)
def test_a_fault_is_named(text: str, match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        parse_json(text, file="f.json")


def test_faults_come_together() -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_json(changed(collective="x", in_place=None, rows_op=[7] * 12), file="f.json")
    assert len(str(caught.value).splitlines()) == 3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="cannot be read"):
        load_json(tmp_path / "absent.json")
    (tmp_path / "latin.json").write_bytes(b'{"format": "\xe9"}')
    with pytest.raises(ScheduleError, match="no UTF-8 at byte 12"):
        load_json(tmp_path / "latin.json")
    with (tmp_path / "huge.json").open("wb") as stream:
        stream.truncate(2**28 + 1)
    with pytest.raises(ScheduleError, match="larger than 256 MiB"):
        load_json(tmp_path / "huge.json")


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_mutated_text_gives_a_schedule_or_an_error(seed: int, changes: int) -> None:
    rng = random.Random(seed)
    text = RING
    for _ in range(changes):
        at, length = rng.randrange(len(text)), rng.choice((0, 1, 1, 2, 20))
        extra = rng.choice(("", "9", "-", "[", "]", "{", "}", ",", '"', "null", "1e9", "true", "\0", "99999999999"))
        text = text[:at] + extra + text[at + length :]
    try:
        schedule = parse_json(text)
    except ScheduleError:
        return
    schedule.dependencies()
    try:
        check(schedule)
    except ScheduleError:
        return
