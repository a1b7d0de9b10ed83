"""gloo on a machine that is not as it should be: slow or missing links, ranks that come late, other jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CommsimError
from commsim.gloo.predict import GlooPredictor
from commsim.scenario.jobs_result import JobRow
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run
from commsim.topology.faults import degraded
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset
from commsim.topology.spec import FaultSpec

COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "reduce", "all_to_all", "send_recv")
MIB = 1 << 20


def _with(topology: Topology, **fault: Any) -> Topology:
    return degraded(topology, [FaultSpec.model_validate(fault)])


def _time(topology: Topology, collective: str, **knobs: Any) -> float:
    return GlooPredictor(topology, one_host=True, **knobs).predict(collective, MIB).time_s


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("preset", "nodes", "place"),
    [
        ("testbed-star", 4, {"nic": (1, 0)}),
        ("testbed-star", 4, {"node": 0}),
        ("testbed-tree", 8, {"link": ("leaf0", "spine0")}),
        ("testbed-ring", 6, {"link": ("router0", "router1")}),
    ],
)
def test_a_slower_link_never_makes_it_faster(preset: str, nodes: int, place: dict[str, Any], collective: str) -> None:
    healthy = load_preset(preset, nodes=nodes)
    times = [_time(healthy, collective)]
    times += [_time(_with(healthy, **place, bandwidth_factor=factor), collective) for factor in (0.5, 0.1, 0.02)]
    assert times == pytest.approx(sorted(times), rel=1e-9)
    assert times[-1] > 4 * times[0]


def test_a_message_takes_as_long_as_its_slowest_link() -> None:
    star = load_preset("testbed-star", nodes=2)
    slow = _time(_with(star, nic=(1, 0), bandwidth_factor=0.1), "send_recv")
    assert slow == pytest.approx(10 * _time(star, "send_recv"), rel=0.02)


def test_without_a_link_of_a_ring_the_others_carry_its_bytes() -> None:
    """An all_reduce goes round one way, so the long way back is free; an all_to_all goes both ways."""
    ring = load_preset("testbed-ring", nodes=6)
    gone = _with(ring, link=("router0", "router1"), failed=True)
    assert _time(gone, "all_reduce") == pytest.approx(_time(ring, "all_reduce"), rel=0.01)
    assert _time(gone, "all_to_all") > 1.05 * _time(ring, "all_to_all")


def test_an_all_to_all_waits_for_a_slow_card_whosever_it_is() -> None:
    """Whose card is slow comes last, and sends before it lets the others send."""
    star = load_preset("testbed-star", nodes=4)
    times = [_time(_with(star, nic=(node, 0), bandwidth_factor=0.1), "all_to_all") for node in range(4)]
    assert times == pytest.approx([times[0]] * 4, rel=0.01)
    one_way = 3 / 4 * MIB / (0.1 * star.nic_bandwidth)
    assert 1.2 * one_way < times[0] < 2.2 * one_way


@pytest.mark.parametrize("mode", ["back_to_back", "single"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_late_rank_costs_at_most_its_delay(collective: str, mode: str) -> None:
    """Of a broadcast and an all_to_all it decides too in which order messages meet, which may cost more."""
    star = load_preset("testbed-star", nodes=4)
    prompt = _time(star, collective, mode=mode)
    assert _time(star, collective, mode=mode, late_s={}) == prompt
    for delay in (1e-3, 50e-3, 1.0):
        late = _time(star, collective, mode=mode, late_s={1: delay})
        assert late > delay
        assert late >= prompt * (1 - 1e-9)
        if collective not in ("broadcast", "all_to_all"):
            assert late <= (prompt + delay) * (1 + 1e-9)


def test_all_wait_for_a_receiver_that_is_late() -> None:
    pair = load_preset("testbed-star", nodes=2)
    single = [GlooPredictor(pair, mode="single", late_s=late).predict("broadcast", 8).time_s for late in ({}, {1: 0.5})]
    assert single[1] - single[0] == pytest.approx(0.5, rel=1e-3)


SCENARIO = """
name: Jobs
topology: {{preset: {preset}, nodes: {nodes}, cpu: {{cores: 64}}}}
library: {{name: gloo, one_host: true}}
workload:
  - jobs:
      - {{name: a, ranks: [0, 2], collective: {collective}, size: 1 MiB}}
      - {{name: b, ranks: [1, 3], collective: {collective}, size: 1 MiB}}
"""


def _load(
    folder: Path, *overrides: str, preset: str = "testbed-tree", nodes: int = 4, collective: str = "send_recv"
) -> Any:
    (folder / "s.yaml").write_text(SCENARIO.format(preset=preset, nodes=nodes, collective=collective))
    return load_scenarios(folder / "s.yaml", list(overrides))[0]


def _rows(scenario: Any) -> tuple[JobRow, ...]:
    (item,) = run(scenario).jobs
    rows: tuple[JobRow, ...] = item.rows
    return rows


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_jobs_that_share_an_uplink_have_half_of_it_each(tmp_path: Path, collective: str) -> None:
    for row in _rows(_load(tmp_path, collective=collective)):
        assert 1.9 < row.slowdown < 2.01
        assert "(fabric)" in row.meets_on
        assert row.algorithm.startswith(("gloo_", "direct"))


def test_jobs_that_meet_nobody_take_as_long_as_alone(tmp_path: Path) -> None:
    for row in _rows(_load(tmp_path, "library.one_host=false", preset="testbed-star", collective="all_reduce")):
        assert row.together_s == row.alone_s
        assert row.meets_on == ""


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "reduce"])
def test_a_job_alone_is_a_single_call_on_its_own_hosts(tmp_path: Path, collective: str) -> None:
    """The hosts between count for nothing; a switch away, two hosts stand as on a star of two."""
    star = load_preset("testbed-star", nodes=2, cpu={"cores": 64})
    alone = GlooPredictor(star, one_host=True, mode="single").predict(collective, MIB).time_s
    assert _rows(_load(tmp_path, preset="testbed-star", collective=collective))[0].alone_s == pytest.approx(
        alone, rel=0.01
    )


def test_a_later_job_meets_the_first_for_a_part_of_its_time(tmp_path: Path) -> None:
    first, second = _rows(_load(tmp_path, "workload.0.jobs.1.start=20 ms"))
    assert 1.4 < first.slowdown < 1.7
    assert second.slowdown == pytest.approx(first.slowdown, rel=0.02)


def test_a_late_rank_delays_its_job_alone(tmp_path: Path) -> None:
    rows = _rows(_load(tmp_path, "variation={stragglers: [{ranks: 1, delay: 1 s}]}"))
    prompt = _rows(_load(tmp_path))
    assert rows[1].together_s == pytest.approx(1.0 + prompt[1].alone_s, rel=0.01)
    assert rows[0].together_s == pytest.approx(prompt[0].alone_s, rel=0.01)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("workload.0.jobs.0.algorithm=direct", "workload.0.jobs.0.algorithm: found algorithm with library gloo"),
        ("workload.0.jobs.1.channels=2", "workload.0.jobs.1.channels: found channels with library gloo"),
        ("workload.0.background=[{src: 0, dst: 1, size: 1 MiB}]", "found background with library gloo"),
        ("variation={stragglers: [{ranks: 1, factor: 2}]}", "variation.stragglers.0.factor: found factor with library"),
        ("variation={jitter: {mean: 1 us}}", "variation.jitter: found jitter with library gloo"),
        ("contention=fair", "found contention fair with library gloo"),
    ],
)
def test_what_gloo_does_not_know_is_refused(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(CommsimError) as refused:
        _load(tmp_path, override)
    assert says in str(refused.value)


def test_a_late_rank_is_no_part_of_a_calibration(tmp_path: Path) -> None:
    late = "variation={stragglers: [{ranks: 1, delay: 1 ms}]}"
    log = Path(__file__).resolve().parents[2] / "validation" / "runs" / "testbed" / "star"
    done = CliRunner().invoke(app, ["calibrate", "gloo-testbed-star", str(log), late, "-o", str(tmp_path / "p.yaml")])
    assert done.exit_code != 0
    assert "variation: found variation, expected none to calibrate" in str(done.exception or done.output)
