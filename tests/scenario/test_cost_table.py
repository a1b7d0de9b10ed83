"""Tables of costs: their knots, the lines between them, what they write and read."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commsim as cs
from commsim.errors import CommsimError, LogFormatError, UnitError
from commsim.scenario.cost_table import ASKED_ALONE, LAST_KNOT, MOST_KNOTS, CostTable, _cell_of

MACHINES: dict[str, tuple[str, int, str]] = {
    "ring and NVLS in a node": ("hgx-h100", 1, "all_reduce"),
    "chains": ("hgx-b200", 1, "broadcast"),
    "sends": ("v100-pcie", 1, "all_to_all"),
    "trees over nodes": ("dgx-a100-hdr200", 2, "all_reduce"),
    "PAT over nodes": ("hgx-h100-ndr400", 4, "reduce_scatter"),
}
LONG = ("trees over nodes", "PAT over nodes")


@dataclass
class Steps:
    """A source with a jump of `by` at `at`: 10 us and a byte a nanosecond; counts what it is asked."""

    at: int
    by: float = 2e-6
    step_bytes: int = 4
    warnings: tuple[str, ...] = ()
    asked: list[int] = field(default_factory=list)

    def seconds(self, nbytes: int) -> float:
        self.asked.append(nbytes)
        return 10e-6 + 1e-9 * nbytes + (self.by if nbytes >= self.at else 0.0)


def of_run(preset: str, nodes: int, collective: str, sizes: list[int]) -> list[float]:
    """The seconds of `run` at some sizes."""
    item = {"collective": collective, "sizes": [f"{size} B" for size in sizes]}
    result = cs.run({"name": "run", "topology": {"preset": preset, "nodes": nodes}, "workload": [item]})
    return [us / 1e6 for us in result.to_frame()["time_us"]]


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in MACHINES]
)
def known(request: pytest.FixtureRequest) -> tuple[CostTable, tuple[str, int, str]]:
    """A table, and what it is of."""
    preset, nodes, collective = MACHINES[request.param]
    return cs.cost_table(collective, None, {"preset": preset, "nodes": nodes}), (preset, nodes, collective)


@settings(max_examples=8)
@given(exponents=st.lists(st.floats(2, 35), min_size=3, max_size=3))
def test_between_knots_it_is_within_one_percent_of_run(
    known: tuple[CostTable, tuple[str, int, str]], exponents: list[float]
) -> None:
    table, machine = known
    sizes = sorted({int(2**exponent) // 4 * 4 for exponent in exponents})
    for size in sizes:
        if size < LAST_KNOT:
            table._cell(_cell_of(size))
    assert [table(size) for size in sizes] == pytest.approx(of_run(*machine, sizes), rel=0.01)


def test_at_a_knot_it_is_what_run_says() -> None:
    table = cs.cost_table("all_reduce", 8, "hgx-h100")
    sizes, seconds = table._cell(4 * 19 + 2)
    some = [size for size in sizes if size % 4 == 0]
    assert (some[0], some[-1]) == (3 << 20, 7 << 19)
    assert [table(size) for size in some] == [seconds[sizes.index(size)] for size in some]
    assert [table(size) for size in some] == pytest.approx(of_run("hgx-h100", 1, "all_reduce", some), rel=1e-12)


@pytest.mark.parametrize("at", [4096, 4100, 5000, 6004, 7000, 7164])
def test_a_jump_has_a_knot_on_either_side(at: int) -> None:
    table = CostTable({}, Steps(at))
    table._cell(_cell_of(at))
    for size in (at - 4, at, at + 4, at - 1000, at + 1000):
        assert table(size) == pytest.approx(Steps(at).seconds(size), rel=1e-12)


def test_where_the_model_is_straight_there_are_few_knots() -> None:
    source = Steps(1 << 50)
    sizes, seconds = CostTable({}, source).knots()
    assert (sizes[:3], sizes[-1], len(sizes)) == ([0, 1, 4], LAST_KNOT, 131)
    assert seconds[2:] == [10e-6 + 1e-9 * (-(-size // 4) * 4) for size in sizes[2:]]
    assert len(source.asked) < 10 * len(sizes)


def test_a_jump_of_half_a_percent_is_not_missed_however_narrow() -> None:
    table = CostTable({}, Steps(5 << 20, by=50e-6))
    for size in ((5 << 20) - 4, 5 << 20):
        table._cell(_cell_of(size))
    assert [table(size) for size in ((5 << 20) - 4, 5 << 20)] == [
        pytest.approx(Steps(5 << 20, by=50e-6).seconds(size), rel=1e-12) for size in ((5 << 20) - 4, 5 << 20)
    ]


def test_a_model_that_jumps_at_every_other_size_ends_and_says_so() -> None:
    class Comb(Steps):
        def seconds(self, nbytes: int) -> float:
            return 1e-6 if nbytes % 8 else 2e-6

    table = CostTable({}, Comb(0))
    table._cell(4 * 20)
    assert table(5_000_000) in (pytest.approx(1e-6), pytest.approx(2e-6))
    assert table.warnings == ("from 4 MiB to 5 MiB the time jumps too often for a table",)
    assert MOST_KNOTS < len(table._cell(4 * 20)[0]) < 2 * MOST_KNOTS
    assert not CostTable({}, Steps(5000)).warnings


@settings(max_examples=30)
@given(part=st.floats(0, 1), at=st.integers(0, 10_000))
def test_between_two_knots_it_lies_between_them(
    known: tuple[CostTable, tuple[str, int, str]], part: float, at: int
) -> None:
    table, _ = known
    sizes, seconds = table._cell(4 * (at % 4) + 41)
    first = at % (len(sizes) - 1)
    size = sizes[first] + part * (sizes[first + 1] - sizes[first])
    ends = sorted(seconds[first : first + 2])
    assert ends[0] * (1 - 1e-12) <= table(size) <= ends[1] * (1 + 1e-12)


def test_the_first_sizes_are_asked_one_by_one_and_then_the_quarter_is_filled() -> None:
    source = Steps(1 << 50)
    table = CostTable({}, source)
    sizes = [(5 << 20) + 4004 * at for at in range(ASKED_ALONE)]
    first = [table(size) for size in (*sizes, *sizes)]
    assert source.asked == sizes
    assert first == 2 * [Steps(1 << 50).seconds(size) for size in sizes]
    table(5_500_000)
    count = len(source.asked)
    assert len(sizes) < count < 2 * len(sizes)
    assert (min(source.asked), max(source.asked)) == (5 << 20, 6 << 20)
    assert [table(size) for size in (*sizes, *sizes)] == first  # what was answered stays
    assert len(source.asked) == count


def test_one_size_of_many_ranks_takes_one_prediction() -> None:
    table = cs.cost_table("all_reduce", 1024, "hgx-h100-ndr400")
    assert table("1000 kB") == pytest.approx(of_run("hgx-h100-ndr400", 128, "all_reduce", [1_000_000])[0], rel=1e-12)
    assert table._cells == {}


def test_beyond_the_last_knot_a_byte_takes_what_it_took() -> None:
    table = CostTable({}, Steps(1 << 50))
    assert table(LAST_KNOT + 1000) == pytest.approx(10e-6 + 1e-9 * (LAST_KNOT + 1000), rel=1e-12)
    ours = cs.cost("all_gather", 3 * LAST_KNOT, 16, "hgx-h100-ndr400")
    assert ours == pytest.approx(of_run("hgx-h100-ndr400", 2, "all_gather", [3 * LAST_KNOT])[0], rel=0.01)


def test_no_byte_takes_what_run_says_and_one_byte_what_an_element_takes() -> None:
    table = cs.cost_table("all_reduce", 16, "hgx-h100-ndr400")
    none, one = of_run("hgx-h100-ndr400", 2, "all_reduce", [0, 4])
    assert none < one
    assert (table(0), table(1), table(3), table(4)) == pytest.approx((none, one, one, one), rel=1e-12)


@pytest.mark.parametrize(
    "nbytes", [64 << 20, float(64 << 20), "64 MiB", "64M", np.int64(64 << 20), np.float64(64 << 20)]
)
def test_sizes_may_be_of_any_number(nbytes: Any) -> None:
    assert CostTable({}, Steps(1 << 50))(nbytes) == pytest.approx(10e-6 + 1e-9 * (64 << 20), rel=1e-12)


@pytest.mark.parametrize("nbytes", [-1, -0.5, float("nan"), float("inf"), True, None, [8], "64 GB/s", 1 + 1j])
def test_what_is_no_size_is_refused(nbytes: Any) -> None:
    with pytest.raises(UnitError, match=r"found .*(expected|which is)") as caught:
        CostTable({}, Steps(1 << 50))(nbytes)
    assert isinstance(caught.value, (CommsimError, ValueError))


def test_it_pickles_with_what_it_has_and_fills_the_rest_where_it_arrives() -> None:
    table = cs.cost_table("all_gather", [0, 8], "hgx-h100-ndr400")
    before = table(1 << 20)
    there = pickle.loads(pickle.dumps(table))
    assert there._alone == table._alone != {}
    assert (there(1 << 20), there(77_777_776)) == (before, table(77_777_776))
    assert (there.facts, there.warnings) == (table.facts, table.warnings)


def test_json_reads_back_to_the_same_costs_without_a_model(tmp_path: Path) -> None:
    table = cs.cost_table("send_recv", 16, "hgx-h100-ndr400")
    read = CostTable.from_json(table.to_json(str(tmp_path / "cost.json")))
    sizes = [0, 1, 3, 4, 8, 1000, 1 << 20, 77_777_777, LAST_KNOT, 3 * LAST_KNOT]
    assert [read(size) for size in sizes] == [table(size) for size in sizes]
    assert read.knots() == table.knots()
    assert (read.facts, read.warnings) == (table.facts, ())
    assert pickle.loads(pickle.dumps(read))(1000) == table(1000)
    assert all(a < b for a, b in pairwise(read.knots()[0]))


def test_csv_reads_as_a_predicted_curve(tmp_path: Path) -> None:
    from commsim.measure.parsers import read_measured

    table = cs.cost_table("send_recv", 16, "hgx-h100-ndr400")
    (curve,) = read_measured(table.to_csv(tmp_path / "cost.csv"))
    assert (curve.collective, curve.n_ranks) == ("send_recv", 16)
    assert curve.time_s.tolist() == pytest.approx([table(int(size)) for size in curve.size_bytes], rel=1e-12)
    assert LAST_KNOT in curve.size_bytes


def _document(**changes: object) -> dict[str, object]:
    return CostTable({"collective": "all_reduce", "n_ranks": 2}, Steps(1 << 50)).to_dict() | changes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "found no JSON"),
        ("[1]", "found the format a list of 1, expected 'commsim cost table 1'"),
        (json.dumps(_document(format="other")), "found the format 'other'"),
        (json.dumps(_document(seconds=[1.0])), "expected a list of each"),
        (json.dumps({"format": "commsim cost table 1"}), "no knot at 0 B"),
        (json.dumps(_document(size_bytes=["a"], seconds=[1.0])), "no ascending whole numbers"),
        (json.dumps(_document(size_bytes=[4, 1], seconds=[1.0, 1.0])), "no ascending whole numbers"),
        (json.dumps(_document(size_bytes=[1], seconds=[-1.0])), "no numbers from 0 on"),
        (json.dumps(_document(size_bytes=[1], seconds=[float("nan")])), "no numbers from 0 on"),
        (json.dumps(_document(size_bytes=[0, 4], seconds=[1.0, 1.0])), "no knot at 5 B"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(LogFormatError, match=message) as caught:
        CostTable.from_json(path)
    assert str(path) in str(caught.value)


def test_what_names_no_file_is_refused(tmp_path: Path) -> None:
    table = CostTable({}, Steps(1 << 50))
    text = table.to_json(tmp_path / "cost.json").read_text()
    for wrong in (text, "[1]", "", None, 5, "a\0b"):
        with pytest.raises(LogFormatError, match="expected the path of a file"):
            CostTable.from_json(wrong)  # type: ignore[arg-type]
    for path in (tmp_path / "none.json", tmp_path, "x" * 5000):
        with pytest.raises(LogFormatError, match=r"cannot be read: .*expected a file of CostTable.to_json"):
            CostTable.from_json(path)


def test_nothing_is_written_into_a_folder_that_is_missing(tmp_path: Path) -> None:
    table = CostTable({}, Steps(1 << 50))
    for write in (table.to_json, table.to_csv):
        with pytest.raises(CommsimError, match=r"found no folder .*/none', expected one that is there"):
            write(tmp_path / "none" / "cost.x")
    assert list(tmp_path.iterdir()) == []
