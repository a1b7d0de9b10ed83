"""Cells of CSV: no spreadsheet takes them for formulas, and what is written reads back."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.files import plain_cell, safe_cell
from commsim.measure.parsers import read_measured
from commsim.planner.results import as_csv
from commsim.report.tables import csv_text, records_csv, result_csv
from commsim.scenario.item import Item, Row

FORMULA = ("=", "+", "-", "@", "\t", "\r")
WORDS = st.text(st.characters(exclude_characters="\r"), max_size=8)  # which csv leaves unquoted: a line of its own
TEXTS = st.one_of(WORDS, st.builds(str.__add__, st.sampled_from(("=", "+", "-", "@", "\t", "'", "'=")), WORDS))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@given(TEXTS)
def test_no_text_is_a_formula_and_all_of_it_reads_back(text: str) -> None:
    (line,) = csv.reader(io.StringIO(csv_text([(text, 1)]), newline=""))
    assert not line[0].startswith(FORMULA) or is_number(line[0])
    assert plain_cell(line[0]) == text


@given(st.floats(allow_nan=False) | st.integers())
def test_numbers_stay_numbers(value: float) -> None:
    assert safe_cell(value) == value
    assert safe_cell(str(value)) == str(value)


def test_every_table_of_records_is_safe() -> None:
    assert records_csv([{"name": "=cmd()", "x": -1.5}]) == "name,x\n'=cmd(),-1.5\n"
    point = {"number": 0, "values": {"name": "=cmd()"}, "rows": [{"x": -1.5}], "error": "\rno"}
    assert as_csv([point]) == "point,name,x,error\n0,'=cmd(),-1.5,'\rno\n"


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "@x", "\ty", "'=z", "plain"])
def test_a_name_reads_back_from_a_result(tmp_path: Path, name: str) -> None:
    row = Row(8, 2, "float", "sum", -1, 12.35e-6, 8 / 12.35e-6, 14 / 12.35e-6, "ring", "LL", 2, "launch", 1e-6)
    item = replace(Item("x", "all_reduce", 8, [row]), name=name)
    path = tmp_path / "result.csv"
    path.write_text(result_csv([item]))
    (curve,) = read_measured(path)
    assert (curve.name, curve.kind) == (name, "predicted")
