"""`jobs`, `background` and `variation` in a scenario: what runs, what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CommsimError
from commsim.report.jobs import JobsView
from commsim.scenario.load import load_scenarios, resolved_yaml
from commsim.scenario.run import prepare, run

_JOBS = """
name: Jobs
topology: {preset: hgx-h100-ndr400, nodes: 4, nodes_per_leaf: 2, oversubscription: 2}
library: none
workload:
  - jobs:
      - {name: a, ranks: [0 .. 7, 16 .. 23], collective: all_reduce, algorithm: hierarchical, size: 16 MiB}
      - {ranks: [8 .. 15, 24 .. 31], collective: all_reduce, algorithm: hierarchical, size: 16 MiB, start: 1 us}
    background:
      - {src: 0, dst: 30, rate: 1 GB/s}
"""
_NOISE = """
name: Noise
topology: {preset: hgx-h100}
library: none
workload: [{collective: all_reduce, algorithm: ring, sizes: 1 MiB .. 4 MiB x2}]
variation: {seed: 1, repeats: 20, jitter: {mean: 1 us}, stragglers: [{ranks: 3, factor: 2, delay: 5 us}]}
"""


def _load(tmp_path: Path, text: str, *overrides: str) -> Any:
    (tmp_path / "s.yaml").write_text(text)
    return load_scenarios(tmp_path / "s.yaml", list(overrides))[0]


def test_jobs_of_a_scenario(tmp_path: Path) -> None:
    result = run(_load(tmp_path, _JOBS))
    assert not result.items
    (item,) = result.jobs
    assert [row.job for row in item.rows] == ["a", "job 2"]
    for row in item.rows:
        assert 1.0 < row.slowdown < 2.5
        assert row.slowdown == pytest.approx(row.together_s / row.alone_s)
        assert row.meets_on.endswith("(fabric)")
    (said,) = [w for w in result.warnings if "with FIFO links and" in w]
    assert said.startswith("a: ")
    assert "17% apart; slowdown 1.19 and 1.38" in said


def test_what_is_printed_and_written(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(_JOBS)
    out = tmp_path / "out"
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "alone  together  slowdown\n" in shown.output
    assert sorted(p.name for p in out.iterdir()) == ["jobs.csv", "result.json", "scenario.yaml"]
    data = json.loads((out / "result.json").read_text())
    assert [row["job"] for row in data["jobs"][0]["rows"]] == ["a", "job 2"]
    again = run(load_scenarios(out / "scenario.yaml")[0])
    assert again.jobs[0].rows == run(load_scenarios(tmp_path / "s.yaml")[0]).jobs[0].rows


def test_jobs_and_collectives_may_stand_beside_each_other(tmp_path: Path) -> None:
    result = run(_load(tmp_path, _JOBS + "  - {collective: all_reduce, sizes: 1 MiB}\n"))
    assert len(result.items) == len(result.jobs) == 1


def test_variation_gives_median_and_p99_and_is_repeatable(tmp_path: Path) -> None:
    (first,), (again,) = run(_load(tmp_path, _NOISE)).items, run(_load(tmp_path, _NOISE)).items
    assert first.rows == again.rows
    (other,) = run(_load(tmp_path, _NOISE, "variation.seed=2")).items
    (plain,) = run(_load(tmp_path, _NOISE.split("variation", maxsplit=1)[0])).items
    for row, another, still in zip(first.rows, other.rows, plain.rows, strict=True):
        assert row.p99_s is not None
        assert still.p99_s is None
        assert row.time_s < row.p99_s
        assert row.time_s > still.time_s + 5e-6
        assert row.time_s != another.time_s
        assert row.level == "event"
    # Every size draws for itself: what is asked beside it does not matter.
    (alone,) = run(_load(tmp_path, _NOISE, "workload.0.sizes=2 MiB")).items
    assert alone.rows[0] == first.rows[1]


def test_variation_of_jobs(tmp_path: Path) -> None:
    text = _JOBS + "variation: {repeats: 5, jitter: {mean: 1 us, distribution: lognormal, sigma: 2}}\n"
    (item,) = run(_load(tmp_path, text)).jobs
    assert item.repeats == 5
    assert all(row.p99_s is not None and row.p99_s > row.together_s for row in item.rows)


@pytest.mark.parametrize("text", [_JOBS, _NOISE])
def test_the_resolved_scenario_says_the_same(tmp_path: Path, text: str) -> None:
    scenario = _load(tmp_path, text)
    assert _load(tmp_path, resolved_yaml(scenario)) == scenario


REFUSED = {
    "workload.0.jobs=[]": "workload.0.jobs: found an empty list, expected at least 1 items",
    "workload.0.jobs.0.ranks=0 .. 40": "workload.0.jobs.0.ranks: found rank 32, expected one of the 32 ranks 0..31",
    "workload.0.jobs.0.ranks=3": "workload.0.jobs.0.ranks: found 1 rank for a collective, expected at least 2",
    "workload.0.jobs.0.ranks=[1, 2, 1]": "found rank 1 twice, expected each rank once",
    "workload.0.jobs.0.ranks=8 .. 0": "expected its first rank not above its last",
    "workload.0.jobs.0.ranks=0 .. 7 +0": "expected a step above zero",
    "workload.0.jobs.0.ranks=-1": "found -1, expected ranks such as 5, '0 .. 31'",
    "workload.0.jobs.0.ranks=[]": "found an empty list, expected ranks such as",
    "workload.0.jobs.0.start=-1 us": "found '-1 us', expected a time that is not negative",
    "workload.0.jobs.0.size=0.5 B": "workload.0.jobs.0.size: found '0.5 B'",
    "workload.0.jobs.0.algorithm=rign": "found the unknown algorithm 'rign', did you mean 'ring'?",
    "workload.0.jobs.0.algorithm=sharp": "workload.0.jobs.0.algorithm: sharp reduces in switches",
    "workload.0.jobs.0.root=1": "found a root for all_reduce",
    "workload.0.jobs.1.name=a": "workload.0.jobs.1.name: found the name 'a' again (first at job 1)",
    "workload.0.jobs.0.strat=1 us": "found the unknown key 'strat', did you mean 'start'?",
    "workload.0.background.0.src=32": "workload.0.background.0.src: found rank 32",
    "workload.0.background.0.dst=0": "found rank 0 as source and destination",
    "workload.0.background.0.size=1 MiB": "found both of size and rate, expected one",
    "workload.0.background.0.rate=0 GB/s": "found '0 GB/s', expected a bandwidth above zero",
    "workload.0.background.0.rate=60 GB/s": "expected at most what the narrowest link of the way carries",
    "library=nccl": "workload.0.jobs.0.algorithm: found hierarchical, expected one of tree, ring",
    "engine=wavefront": "engine: found engine wavefront with jobs, expected auto or event",
}


@pytest.mark.parametrize(("override", "message"), list(REFUSED.items()))
def test_what_makes_no_sense_is_refused_at_its_place(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(CommsimError) as found:
        run(_load(tmp_path, _JOBS, override))
    assert message in str(found.value)


def test_a_flow_beside_nccl_is_no_faster_than_its_way(tmp_path: Path) -> None:
    work = "{jobs: [{collective: all_reduce, size: 1 MiB}], background: [{src: 0, dst: 30, rate: 60 GB/s}]}"
    with pytest.raises(CommsimError, match=r"background\.0\.rate: found 60 GB/s, expected at most what the narrowest"):
        run(_load(tmp_path, _JOBS, "library=nccl", f"workload=[{work}]"))


def test_a_job_that_others_do_not_slow_takes_as_long_as_alone(tmp_path: Path) -> None:
    jobs = "{collective: broadcast, size: 8 B}, {collective: broadcast, size: 8 B, start: 1 s}"
    answer = run(_load(tmp_path, _JOBS, "library=nccl", f"workload=[{{jobs: [{jobs}]}}]")).jobs[0]
    assert all(", as long as alone; " in line for line in JobsView().words(answer))


NOISE_REFUSED = {
    "variation.repeats=0": "variation.repeats: found 0, expected a whole number >= 1",
    "variation.jitter.mean=-1 us": "found '-1 us', expected a time that is not negative",
    "variation.jitter.mean=0 us": "variation.jitter.mean: found 0 s, expected a mean above zero",
    "variation.jitter.distribution=normal": "variation.jitter.distribution: found 'normal', did you mean 'lognormal'?",
    "variation.jitter.sigma=1": "found sigma with exponential, expected it only with lognormal",
    "variation={repeats: 20, stragglers: [{ranks: 1, factor: 2}]}": "found 20 repeats without jitter",
    "variation.seed=-1": "variation.seed: found -1",
    "variation.stragglers.0.ranks=8": "variation.stragglers.0.ranks: found rank 8, expected one of the ranks 0..7",
    "variation.stragglers.0.factor=0.5": "variation.stragglers.0.factor: found 0.5, expected a number >= 1",
    "variation.stragglers=[{ranks: 1}]": "found neither factor nor delay",
    "variation.stragglers=[{ranks: 1, factor: 2}, {ranks: 0 .. 3, delay: 1 us}]": "found rank 1 again (first at",
    "variation={}": "variation: found neither jitter, node_spread nor stragglers",
    "library=nccl": "found algorithm ring with library nccl",
    "library=gloo": "variation.jitter: found jitter with library gloo, expected it only with library none",
    "variation.node_spread=3": "variation.node_spread: found 3",
    "engine=closed_form": "engine: found engine closed_form with variation, expected auto or event",
}


@pytest.mark.parametrize(("override", "message"), list(NOISE_REFUSED.items()))
def test_noise_that_makes_no_sense_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(CommsimError) as found:
        prepare(_load(tmp_path, _NOISE, override))
    assert message in str(found.value)


def test_the_shipped_scenarios(checkout: Path) -> None:
    """Two jobs that start 50 us apart on one bottleneck take nearly twice as long each."""
    folder = checkout / "scenarios" / "contention"
    two = run(load_scenarios(folder / "two-jobs-one-spine.yaml")[0]).jobs[0]
    assert [row.slowdown for row in two.rows] == pytest.approx([1.95, 1.98], abs=0.02)
    noise = run(load_scenarios(folder / "jitter-and-stragglers.yaml", ["variation.repeats=9"])[0])
    assert all(row.p99_s is not None and row.p99_s > row.time_s for row in noise.items[0].rows)
