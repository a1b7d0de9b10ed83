"""Runs on a machine with known faults: what the testbed is built as, which ranks sleep, jobs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import measure

from commsim.errors import CommsimError
from commsim.measure.operations import ReadyCollective
from commsim.measure.run import Run
from commsim.measure.side_by_side import JobSample, jobs_record
from commsim.measure.tasks import JobsTask, JobTask, Task
from commsim.measure.timing import late
from commsim.measure.wiring import commands, wiring
from commsim.scenario import measured
from commsim.scenario.load import load_scenarios
from commsim.scenario.measured import RunOptions, run_of

SCENARIO = """
name: Faulty
topology: {preset: testbed-ring, nodes: 4}
library: {name: gloo, one_host: true}
workload:
  - {collective: all_reduce, sizes: [1 MiB]}
  - jobs:
      - {name: a, ranks: [0, 2], collective: all_reduce, size: 1 MiB}
      - {ranks: [1, 3], collective: broadcast, root: 1, size: 2 MiB, start: 5 ms}
"""
RAW = "workload=[{collective: all_reduce, algorithm: ring, sizes: [1 MiB]}]"
LATE = "variation={stragglers: [{ranks: 1, delay: 20 ms}]}"


def _load(folder: Path, *overrides: str) -> Any:
    (folder / "s.yaml").write_text(SCENARIO)
    return load_scenarios(folder / "s.yaml", list(overrides))[0]


def _shapers(scenario: Any) -> list[str]:
    plan = wiring(measured.testbed_topology(scenario, "scenario", None))
    return [line for program, lines in commands(plan) for line in lines if program[0] == "tc"]


def test_the_shapers_of_a_slow_link_have_its_rate(tmp_path: Path) -> None:
    slow = _load(tmp_path, "topology.faults=[{link: [router0, router1], bandwidth_factor: 0.1}]")
    rates = [line.split(" rate ")[1].split()[0] for line in _shapers(slow)]
    assert sorted(rates) == ["200000000bit"] * 14 + ["20000000bit"] * 2  # 8 cables, both ends of one


def test_a_slow_card_is_slow_in_and_out(tmp_path: Path) -> None:
    slow = _load(tmp_path, "topology.faults=[{nic: [2, 0], bandwidth_factor: 0.5}]")
    assert sum("rate 100000000bit" in line for line in _shapers(slow)) == 2


def test_a_failed_link_is_not_built_and_frames_go_round(tmp_path: Path) -> None:
    gone = _load(tmp_path, "topology.faults=[{link: [router0, router1], failed: true}]")
    assert len(_shapers(gone)) == len(_shapers(_load(tmp_path))) - 2
    plan = wiring(measured.testbed_topology(gone, "scenario", None))
    to_node_1 = [port for port, node in plan.forwarding if node == 1]
    assert len(to_node_1) == 4  # a port of every bridge, the first of which sends the long way


@pytest.mark.parametrize(
    ("fault", "named", "says"),
    [
        ("{nic: [1, 0], failed: true}", "scenario", "node1 is cut off"),
        (
            "{link: [router0, router1], latency_factor: 2}",
            "scenario",
            "topology.faults.0.latency_factor: found latency",
        ),
        ("{link: [node0.gpu0, node0.cpu0], bandwidth_factor: 0.5}", "scenario", "found a link inside node 0"),
        ("{nic: [1, 0], bandwidth_factor: 0.5}", "testbed-star", "found faults, which --testbed testbed-star does not"),
    ],
)
def test_faults_that_cannot_be_built_are_refused(tmp_path: Path, fault: str, named: str, says: str) -> None:
    with pytest.raises(CommsimError) as refused:
        measured.testbed_topology(_load(tmp_path, f"topology.faults=[{fault}]"), named, None)
    assert says in str(refused.value)


def test_a_run_knows_its_late_ranks_and_its_jobs_after_a_journey(tmp_path: Path) -> None:
    made = run_of(_load(tmp_path, LATE), RunOptions(backend="gloo"))
    assert made.late_s == (0.0, 0.02, 0.0, 0.0)
    assert (made.late_of(1), made.late_of(3)) == (0.02, 0.0)
    (item,) = made.jobs
    assert [(job.name, job.ranks, job.size, job.start_s) for job in item.jobs] == [
        ("a", (0, 2), 1 << 20, 0.0),
        ("job 2", (1, 3), 2 << 20, 0.005),
    ]
    assert item.of_rank(3) == item.jobs[1]
    assert Run.from_json(made.to_json()) == made
    assert made.fingerprint() != run_of(_load(tmp_path), RunOptions(backend="gloo")).fingerprint()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["workload.1.jobs.1.ranks=[1, 2]"], "workload.1.jobs.1.ranks: found rank 2 in a too"),
        (["workload.1.jobs.1.ranks=[3, 1]"], "workload.1.jobs.1.ranks: found ranks out of order"),
        (
            ["workload.1.jobs.0.size=4 B", "workload.1.jobs.0.collective=all_gather"],
            "a: found 4 B, expected an element",
        ),
        (
            [RAW, "library=none", "variation={stragglers: [{ranks: 1, factor: 2}]}"],
            "variation.stragglers.0.factor: found a",
        ),
        ([RAW, "library=none", "variation={jitter: {mean: 1 us}}"], "variation.jitter: found jitter"),
        (["library=none"], "workload.1.jobs: found jobs with library none"),
    ],
)
def test_what_ranks_cannot_do_is_refused(tmp_path: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(CommsimError) as refused:
        run_of(_load(tmp_path, *overrides), RunOptions(backend="gloo"))
    assert says in str(refused.value)


def test_a_late_rank_sleeps_before_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr("time.sleep", done.append)
    op = ReadyCollective(lambda: None, lambda: done.append("call"), lambda: 0)
    late(op, 0.02).call()
    assert done == [0.02, "call"]
    assert late(op, 0.0) is op


def test_a_job_has_ended_when_its_slowest_rank_has() -> None:
    job = JobTask("a", Task("all_reduce", (1024,)), (0, 2))
    every = [JobSample([1.0, 2.0, 9.0], [4.0, 4.0, 4.0], 0), None, JobSample([2.0, 1.0, 1.0], [3.0, 6.0, 5.0], 7)]
    (record,) = jobs_record(JobsTask("jobs", (job,)), 0, every)["jobs"]
    assert (record["alone_us"], record["together_us"], record["slowdown"]) == (2e6, 5e6, 2.5)
    assert (record["together_max_us"], record["wrong"]) == (6e6, 7)


@pytest.mark.slow
def test_jobs_and_a_late_rank_over_loopback(tmp_path: Path) -> None:
    """No root needed: results are right in groups of their own, and a sleep shows in every call of its rank's job."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    out = tmp_path / "out"
    status, _, said = measure(str(tmp_path / "s.yaml"), LATE, "-i", "3", "-w", "1", "--out", str(out))
    assert status == 0, said
    first, second = json.loads((out / "jobs.json").read_text())["items"][0]["jobs"]
    assert (first["wrong"], second["wrong"]) == (0, 0)
    assert first["alone_min_us"] < 20e3 < second["alone_min_us"]
    assert second["together_min_us"] > 20e3
    row = dict(zip(*(line.split(",") for line in (out / "measured.csv").read_text().splitlines()[:2]), strict=True))
    assert float(row["ip_min_us"]) > 20e3
    again, shown, said = measure(str(tmp_path / "s.yaml"), LATE, "-i", "3", "-w", "1", "--out", str(out))
    assert (again, "jobs of item" in shown) == (0, False), said  # nothing is measured twice
