"""What a sweep file means, and what is said about one that means nothing."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest

from commsim.errors import ScenarioError
from commsim.planner import sweep as sweep_module
from commsim.planner.sweep import Point, read_sweep

BASE = """\
name: small
topology: {preset: hgx-h100-ndr400, nodes: 1}
workload:
  - collective: all_reduce
    sizes: 1 MiB
"""


def written(folder: Path, text: str, base: str = BASE) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(base + text)
    return path


def test_the_grid_is_the_product_with_the_last_path_fastest(tmp_path: Path) -> None:
    sweep = read_sweep(
        written(tmp_path, "sweep: {topology.nodes: [1, 2], workload.0.collective: [all_reduce, broadcast, reduce]}")
    )
    product = itertools.product([1, 2], ["all_reduce", "broadcast", "reduce"])
    assert list(sweep.points()) == [
        Point(n, {"topology.nodes": nodes, "workload.0.collective": name}) for n, (nodes, name) in enumerate(product)
    ]


def test_excluded_combinations_are_left_out_and_included_points_come_last(tmp_path: Path) -> None:
    text = """\
sweep: {topology.nodes: [1, 2], workload.0.collective: [all_reduce, broadcast]}
exclude: [{topology.nodes: 2, workload.0.collective: [broadcast, reduce]}]
include: [{topology.nodes: 7}]
"""
    points = [p.values for p in read_sweep(written(tmp_path, text)).points()]
    assert points == [
        {"topology.nodes": 1, "workload.0.collective": "all_reduce"},
        {"topology.nodes": 1, "workload.0.collective": "broadcast"},
        {"topology.nodes": 2, "workload.0.collective": "all_reduce"},
        {"topology.nodes": 7},
    ]


def test_the_scenario_may_lie_in_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "base.yaml").write_text(BASE)
    sweep = read_sweep(written(tmp_path, "scenario: inner/base.yaml\nsweep: {topology.nodes: [1]}", base=""))
    assert (sweep.name, sweep.base_dir) == ("small", tmp_path / "inner")


def test_identity_changes_with_values_and_overrides_only(tmp_path: Path) -> None:
    path = written(tmp_path, "sweep: {topology.nodes: [1, 2]}")
    same = read_sweep(path).identity
    assert read_sweep(path).identity == same
    assert read_sweep(path, ["workload.0.sizes=2 MiB"]).identity != same
    assert read_sweep(written(tmp_path, "sweep: {topology.nodes: [1, 3]}")).identity != same


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "found no key 'sweep'"),
        ("sweep: {topology.nods: [1]}", "6:25", "did you mean 'nodes'?"),
        ("sweep: {topology.nodes: 4}", "6:25", "expected a list of at least one value"),
        ("sweep: {topology.nodes: [1, 1]}", "6:25", "expected each value once"),
        ("sweep: {topology.nodes: [1, two]}", "6:29", "found 'two', expected a whole number"),
        ("sweep: {topology.nodes: [1]}\nexclude: [{topology.nods: 1}]", "7:12", "did you mean 'topology.nodes'?"),
        ("sweep: {topology.nodes: [1]}\nreplicates: 0", "7:13", "expected a whole number from 1"),
        (
            "sweep: {variation.seed: [1, 2]}\nreplicates: 2",
            "7:13",
            "expected it only where variation.seed does not vary",
        ),
        ("sweep: {topology.nodes: [1]}\nexclude: [{topology.nodes: 1}]", "1:1", "found no point left"),
        ("sweep: {topology.nodes: [1]}\ncompar: []", "7:1", "did you mean 'compare'?"),
        ("sweep: {workload.3.sizes: [1 MiB]}", "6:28", "an index 0..0 of workload"),
        ("scenario: other.yaml\nsweep: {topology.nodes: [1]}", "1:1", "beside 'scenario'"),
    ],
)
def test_faults_sit_at_their_place(tmp_path: Path, text: str, place: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ScenarioError) as caught:
        read_sweep(path)
    assert f"{path}:{place}" in str(caught.value)
    assert message in str(caught.value)


def test_too_many_points_are_refused_before_any_is_made(tmp_path: Path) -> None:
    many = list(range(1, 1002))
    with pytest.raises(ScenarioError, match="1,002,001 points"):
        read_sweep(written(tmp_path, f"sweep: {{topology.nodes: {many}, topology.nodes_per_leaf: {many}}}"))


@pytest.mark.parametrize(("most", "taken"), [(5, False), (6, True), (7, True)])
def test_a_sweep_may_have_as_many_points_as_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, taken: bool
) -> None:
    monkeypatch.setattr(sweep_module, "MOST_POINTS", most)
    path = written(tmp_path, "sweep: {topology.nodes: [1, 2], workload.0.dtype: [float16, float32, float64]}")
    with nullcontext() if taken else pytest.raises(ScenarioError, match=f"found 6 points, expected at most {most};"):
        read_sweep(path)


@pytest.mark.parametrize(("before", "taken"), [(63, True), (64, False)])
def test_a_value_is_wrong_once_64_points_refuse_it(tmp_path: Path, before: int, taken: bool) -> None:
    """A ring is refused with library nccl, which so many points have before the first with library none."""
    nodes = list(range(1, before + 1))
    text = f"sweep: {{library: [nccl, none], topology.nodes: {nodes}, workload.0.algorithm: [ring]}}"
    with nullcontext() if taken else pytest.raises(ScenarioError, match=r"algorithm"):
        read_sweep(written(tmp_path, text))


def test_a_value_that_only_fits_with_another_is_no_fault_of_the_file(tmp_path: Path) -> None:
    """`algorithm` is refused with library nccl, and taken with none."""
    text = "sweep: {library: [nccl, none], workload.0.algorithm: [ring]}"
    assert len(list(read_sweep(written(tmp_path, text)).points())) == 2


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "scenarios" / "sweep").glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_sweeps_load(path: Path) -> None:
    assert list(read_sweep(path).points())


def test_a_change_that_no_point_can_take_is_said_before(tmp_path: Path) -> None:
    path = written(tmp_path, "sweep: {topology.nodes: [1, 2]}")
    with pytest.raises(
        ScenarioError, match=r"override 'topology.preset=foo' topology.preset: found the unknown preset"
    ):
        read_sweep(path, ["topology.preset=foo"])
    assert read_sweep(path, ["topology.preset=hgx-h100-roce400"])
    swept = written(tmp_path, "sweep: {topology.preset: [hgx-h100-ndr400, hgx-h100-roce400]}")
    assert read_sweep(swept, ["topology.preset=foo"])  # every point has its own


def test_replicates_need_a_seed_that_does_not_vary_already(tmp_path: Path) -> None:
    text = "variation: {jitter: 0.1}\nreplicates: 3\nsweep: {variation.seed: [1, 2]}\n"
    with pytest.raises(ScenarioError, match=r"expected it only where variation\.seed does not vary already"):
        read_sweep(written(tmp_path, text))
