"""Several jobs on one network: what they take beside each other, by hand and by law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.chain import chain_broadcast
from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import Schedule
from commsim.engine import jobs as module
from commsim.engine.jobs import BackgroundFlow, Job, run_together
from commsim.engine.simulate import simulate
from commsim.engine.variation import Jitter, Straggler, Variation
from commsim.errors import InfeasibleError
from commsim.scenario.load import load_scenarios
from commsim.scenario.setting import build_topology
from commsim.topology.graph import Topology

_FLAT = """
name: flat
topology:
  gpu: {{model: host, generation: hopper, sm: 90}}
  cpu: {{arch: x86_64, vendor: intel}}
  node:
    vertices: {{gpu0: gpu, nic0: nic}}
    links: [{{ends: [gpu0, nic0], kind: pcie, bandwidth: 50 GB/s}}]
    nic: {{bandwidth: 50 GB/s, latency: {latency}}}
  fabric: {{kind: single_switch, network: ethernet, switch_latency: 0 us, cable_latency: 0 us}}
  nodes: 8
library: none
workload: [{{collective: all_reduce, sizes: 1 MiB}}]
"""
VIEWS = pytest.mark.parametrize("contention", ["fifo", "fair"])


def _flat(tmp_path: Path, latency: str = "1 us") -> Topology:
    """Eight hosts, each with a private link of 50 GB/s into an ideal switch."""
    (tmp_path / "flat.yaml").write_text(_FLAT.format(latency=latency))
    return build_topology(load_scenarios(tmp_path / "flat.yaml")[0])


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    return _flat(tmp_path_factory.mktemp("flat"))


@pytest.fixture(scope="module")
def without_latency(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    return _flat(tmp_path_factory.mktemp("bare"), "0 us")


def _job(schedule: Schedule, ranks: Any, start_s: float = 0.0) -> Job:
    return Job("job", schedule, np.array(list(ranks), np.int64), start_s)


def _send(nbytes: int) -> Schedule:
    return chain_broadcast(2, nbytes)


@VIEWS
def test_disjoint_jobs_on_a_switch_that_never_blocks_do_not_slow_each_other(flat: Topology, contention: Any) -> None:
    ring = ring_all_reduce(4, 4 << 20)
    found = run_together([_job(ring, range(4)), _job(ring, range(4, 8), 3e-6)], [], flat, contention)
    assert found.slowdown.tolist() == [1.0, 1.0]
    assert [meeting.links for meeting in found.meetings] == [0, 0]
    assert found.alone_s[0] == pytest.approx(6 * (2**20 / 50e9 + 2e-6), rel=1e-9)


def test_two_jobs_on_one_link_take_twice_as_long_by_fair_sharing(without_latency: Topology) -> None:
    """Two messages of equal size from two sources into one host: the link into it is shared, 2.0."""
    both = [_job(_send(1 << 20), [0, 2]), _job(_send(1 << 20), [1, 2])]
    found = run_together(both, [], without_latency, "fair")
    assert found.slowdown == pytest.approx([2.0, 2.0], rel=1e-12)
    assert {m.links for m in found.meetings} == {2}  # from the switch to the NIC, from the NIC to the host
    in_turn = run_together(both, [], without_latency, "fifo")
    assert in_turn.slowdown == pytest.approx([1.0, 2.0], rel=1e-12)


@VIEWS
def test_a_job_that_starts_after_the_other_has_ended_meets_nobody(flat: Topology, contention: Any) -> None:
    ring = ring_all_reduce(8, 8 << 20)
    found = run_together([_job(ring, range(8)), _job(ring, range(8), 1.0)], [], flat, contention)
    assert found.slowdown == pytest.approx([1.0, 1.0], rel=1e-9)
    if contention == "fifo":
        assert found.slowdown.tolist() == [1.0, 1.0]


def test_an_offset_of_half_a_message_costs_half_by_fair_sharing(without_latency: Topology) -> None:
    """From t = 1/2 both share: the first has half left at half the rate, 1.5; so has the second then, alone: 1.5."""
    alone = 2**20 / 50e9
    both = [_job(_send(1 << 20), [0, 2]), _job(_send(1 << 20), [1, 2], alone / 2)]
    assert run_together(both, [], without_latency, "fair").slowdown == pytest.approx([1.5, 1.5], rel=1e-9)


def test_a_paced_flow_leaves_the_rest_of_the_link(without_latency: Topology) -> None:
    """10 of 50 GB/s taken by fair sharing: 50/40. A FIFO link serves as they arrive, 50 to 10: 60/50."""
    job, flow = _job(_send(64 << 20), [0, 2]), BackgroundFlow(1, 2, rate=10e9)
    assert run_together([job], [flow], without_latency, "fair").slowdown[0] == pytest.approx(1.25, rel=1e-9)
    many = _job(chain_broadcast(2, 64 << 20, chunks=512), [0, 2])
    assert run_together([many], [flow], without_latency, "fifo").slowdown[0] == pytest.approx(1.2, rel=0.001)


@VIEWS
def test_a_flow_of_some_bytes_ends(without_latency: Topology, contention: Any) -> None:
    """A quarter of the job's bytes: the job waits for them at most once; in a FIFO queue they stand far behind."""
    job, flow = _job(chain_broadcast(2, 64 << 20, chunks=512), [0, 2]), BackgroundFlow(1, 2, nbytes=16 << 20)
    found = run_together([job], [flow], without_latency, contention)
    assert (
        found.slowdown[0] == pytest.approx(1.25, rel=1e-9) if contention == "fair" else 1.1 < found.slowdown[0] < 1.25
    )
    assert found.messages == 512 + (1 if contention == "fair" else (16 << 20) // module.PIECE_BYTES)


@pytest.mark.parametrize(("nbytes", "last"), [(1 << 20, 65_536), ((1 << 20) - 65_535, 1), ((1 << 20) - 65_536, 65_536)])
def test_with_fifo_links_a_flow_is_cut_into_pieces_of_64_kib(flat: Topology, nbytes: int, last: int) -> None:
    sizes = module._flow_part(BackgroundFlow(0, 2, nbytes=nbytes), flat, "fifo", nbytes).program.nbytes.tolist()
    assert sizes == [65_536] * ((nbytes - last) // 65_536) + [last]


def test_a_flow_alone_reaches_the_whole_bandwidth(flat: Topology) -> None:
    """The window of pieces covers the way there: a flow of 16 MiB takes its bytes over 50 GB/s and the latency once."""
    part = module._flow_part(BackgroundFlow(0, 2, nbytes=16 << 20), flat, "fifo", 16 << 20)
    assert simulate(part.program).makespan_s == pytest.approx((16 << 20) / 50e9 + 2e-6, rel=1e-9)


def test_flows_that_leave_no_room_are_refused(without_latency: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    """120 GB/s into a host with 50: whoever comes at t waits for 1.4 t; the run grows until the jobs end in it."""
    flows = [BackgroundFlow(i, 2, rate=40e9) for i in (1, 3, 4)]
    send = _job(_send(64 << 20), [0, 2], 1e-3)
    found = run_together([send], flows, without_latency, "fifo")
    assert found.together_s[0] == pytest.approx(1.4 * 1e-3 + 2**26 / 50e9, rel=0.05)
    monkeypatch.setattr(module, "_MOST_SPANS", 1)
    with pytest.raises(InfeasibleError, match="so little room that they do not end"):
        run_together([send], [BackgroundFlow(i, 2, rate=49e9) for i in (1, 3, 4, 5, 6)], without_latency, "fifo")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3))
def test_under_fair_sharing_equal_jobs_slow_down_alike(flat: Topology, seed: int, count: int) -> None:
    """k equal jobs on the same ranks: each takes k times the transfer, and the latency once."""
    ranks = np.random.default_rng(seed).permutation(8)[:4]
    ring = ring_all_reduce(4, 4 << 20)
    found = run_together([_job(ring, ranks)] * count, [], flat, "fair")
    assert found.together_s == pytest.approx(6 * (count * 2**20 / 50e9 + 2e-6), rel=1e-9)


def test_stragglers_and_jitter_are_the_same_alone_and_together(flat: Topology) -> None:
    ring = ring_all_reduce(4, 4 << 20)
    vary = Variation(3, 1, Jitter(2e-6), (Straggler((1,), factor=2.0), Straggler((5,), delay_s=40e-6)))
    apart = [_job(ring, range(4)), _job(ring, range(4, 8), 10e-6)]
    found = run_together(apart, [], flat, variation=vary)
    assert found.slowdown.tolist() == [1.0, 1.0]
    plain = run_together(apart, [], flat)
    assert found.alone_s[0] > plain.alone_s[0] * 1.5
    assert found.alone_s[1] > plain.alone_s[1] + 40e-6
    assert run_together(apart, [], flat, variation=vary, run=1).alone_s[0] != found.alone_s[0]


def test_bytes_are_those_of_all_parts(flat: Topology) -> None:
    """What the merged program carries is the sum of what its parts carry, link by link."""
    ring = ring_all_reduce(8, 8 << 20)
    parts = [
        module.job_program(_job(ring, range(8)), flat, None, (0,)),
        module._flow_part(BackgroundFlow(0, 5, rate=1e9), flat, "fair", 12345),
        module._flow_part(BackgroundFlow(2, 3, rate=2e9), flat, "fair", 777),
    ]
    whole, conn = module._side_by_side(parts)
    links = flat.link_bandwidth.size
    assert whole.links == links + 2
    assert whole.link_bandwidth[links:].tolist() == [1e9, 2e9]
    assert np.array_equal(whole.link_bytes()[:links], sum(p.program.link_bytes()[:links] for p in parts))
    assert whole.link_bytes()[links:].tolist() == [12345, 777]
    assert np.unique(conn).size == 8 + 2
