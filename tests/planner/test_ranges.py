"""Ranges of a sweep: their values, and where they may stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.errors import ScenarioError, UnitError
from commsim.planner.ranges import is_range, values_of
from commsim.planner.sweep import read_sweep
from commsim.scenario.load import find_scenario

SCENARIO = """name: s
topology: {preset: hgx-h100-ndr400}
library: {name: nccl, version: 2.26.2}
workload: [{collective: all_reduce, sizes: 1 MiB}]
"""


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1..64 x2", [1, 2, 4, 8, 16, 32, 64]),
        ("1..8", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("1 .. 9 +4", [1, 5, 9]),
        ("1..10 +4", [1, 5, 9]),
        ("1..2 +0.5", [1, 1.5, 2]),
        ("1..5 x1.5", [1, 1.5, 2.25, 3.375]),
        ("3..3", [3]),
        ("400..1600 x2 Gb/s", ["400 Gb/s", "800 Gb/s", "1600 Gb/s"]),
        ("400 Gb/s .. 800 Gb/s +200", ["400 Gb/s", "600 Gb/s", "800 Gb/s"]),
        ("1..3 us", ["1 us", "2 us", "3 us"]),
        ("0.5..2 x2 us", ["0.5 us", "1.0 us", "2.0 us"]),
        ("64 KiB .. 1 MiB x4", ["64 KiB", "256 KiB", "1 MiB"]),
        ("1..4 x2 MiB", ["1 MiB", "2 MiB", "4 MiB"]),
        ("1 MiB .. 4 MiB", ["1 MiB", "2 MiB", "4 MiB"]),
        ("1 MiB .. 3 MiB +1 MiB", ["1 MiB", "2 MiB", "3 MiB"]),
        ("3 B .. 12 B x2", ["3 B", "6 B", "12 B"]),
    ],
)
def test_a_range_has_the_values_that_sizes_would_have(text: str, values: list[object]) -> None:
    assert is_range(text)
    assert values_of(text) == values


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8..1", "expected its first value not above its last"),
        ("1..8 x1", "found the factor 'x1'"),
        ("0..8 x2", "expected one above zero to multiply"),
        ("1..8 +0", "found the step '+0'"),
        ("1..99999", "found 99,999 values"),
        ("1..2 x1.000001", "found over 1,000 values"),
        ("1..", "expected a range such as"),
        ("1..8 /2", "expected a range such as"),
        ("400 Gb/s .. 1 Tb/s x2", "found the units Gb/s and Tb/s"),
        ("1..1e99", "expected numbers below"),
        ("1..." + "9" * 200, "expected a range"),
    ],
)
def test_what_is_no_range_says_what_is(text: str, says: str) -> None:
    with pytest.raises(UnitError, match=says.replace("+", r"\+")):
        values_of(text)


@pytest.mark.parametrize("value", ["ring", "../x.csv", "a..b", 3, ["1..2"], "hgx..h100"])
def test_other_values_are_no_ranges(value: object) -> None:
    assert not is_range(value)


def test_a_sweep_file_may_say_a_range(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO + "sweep: {topology.nodes: 1..8 x2, topology.nic_bandwidth: 200..400 x2 Gb/s}\n")
    assert read_sweep(file).axes == {
        "topology.nodes": [1, 2, 4, 8],
        "topology.nic_bandwidth": ["200 Gb/s", "400 Gb/s"],
    }


def test_a_range_of_a_change_is_a_path_of_the_sweep(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO)
    sweep = read_sweep(file, ["topology.nodes=1..4 x2", "mode=single", "topology.oversubscription=[1, 2]"])
    assert sweep.axes == {"topology.nodes": [1, 2, 4], "topology.oversubscription": [1, 2]}
    assert sweep.base.data["mode"] == "single"
    message = read_sweep(find_scenario("sweep/message-size"), ["topology.nodes=2..4"])
    assert message.axes["topology.nodes"] == [2, 3, 4]


def test_what_the_scenario_takes_stays_its_value_unless_the_file_varies_it(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO + "sweep: {topology.nodes: [1, 2]}\n")
    sweep = read_sweep(file, ["workload.0.sizes=1 MiB .. 4 MiB"])
    assert sweep.axes == {"topology.nodes": [1, 2]}
    assert sweep.base.data["workload"][0]["sizes"] == "1 MiB .. 4 MiB"
    varied = read_sweep(find_scenario("sweep/message-size"), ["workload.0.sizes=1 MiB .. 4 MiB"])
    assert varied.axes["workload.0.sizes"] == ["1 MiB", "2 MiB", "4 MiB"]


@pytest.mark.parametrize(
    ("line", "overrides", "says"),
    [
        ("sweep: {topology.nodes: 8..1}", [], r"s\.yaml:5:25 sweep\..*: found the range '8\.\.1'"),
        ("sweep: {topology.nodes: 0..2}", [], r"s\.yaml:5:25 sweep\..*: found 0, expected a whole number >= 1"),
        ("", ["topology.nodes=8..1"], r"override 'topology.nodes=8\.\.1' sweep.*: found the range"),
        ("", ["topology.nodes=0..2"], r"override 'topology.nodes=0\.\.2' sweep.*: found 0, expected a whole number"),
        ("", ["nodes=1..2"], r"override 'nodes=1\.\.2' .*found the unknown key 'nodes', did you mean 'topology.nodes'"),
        ("sweep: {topology.nodes: 4}", [], "expected a list of at least one value, or a range such as 1..64 x2"),
        ("", [], "found no key 'sweep', expected it"),
    ],
)
def test_a_fault_names_its_place(tmp_path: Path, line: str, overrides: list[str], says: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"{SCENARIO}{line}\n")
    with pytest.raises(ScenarioError, match=says):
        read_sweep(file, overrides)
