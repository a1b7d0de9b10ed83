"""Jobs of NCCL beside each other against a fluid model of every stream, written here anew in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pytest
from machines import machine

from commsim.engine.sharing import CallTraffic, beside, meetings
from commsim.nccl.machine import nic_efficiency
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.streams import stream_ways
from commsim.nccl.traffic import call_of, flow_of
from commsim.topology.graph import Topology
from commsim.topology.kinds import LinkKind

GIB = 1 << 30
RING = Options(version=(2, 26, 2), algorithm="ring")


@dataclass
class Flow:
    """A stream of a job: its links, its connections, the bytes/s of one at the job's pace alone."""

    job: int
    links: list[int]
    lines: float
    each: float


@dataclass
class Job:
    """A call of a communicator, and its streams between nodes."""

    call: CallTraffic
    flows: list[Flow]


def job_of(number: int, topology: Topology, collective: str, ranks: list[int], start_s: float) -> Job:
    """A ring of a job and what each of its channels sends from node to node: (n-1)/n of all, twice of an all_reduce."""
    model = Predictor(topology, RING, ranks=ranks)
    call, alone = call_of(model, collective, GIB, start_s)
    n, edges = len(ranks), model.nodes.ways.ring
    sent = (2 if collective == "all_reduce" else 1) * (n - 1) / n * GIB * PROTOCOLS[alone.protocol].wire_factor
    if model.nodes.count == 1:
        return Job(call, [])
    ways = stream_ways(model.nodes.comm, [kind.system.ring for kind in model.nodes.kinds], edges.src, edges.dst)
    each = sent / ways.of.shape[1] / alone.time_s
    rows = zip(ways.links.tolist(), ways.weight.tolist(), strict=True)
    return Job(call, [Flow(number, [i for i in links if i >= 0], lines, each) for links, lines in rows])


def filled(flows: list[Flow], most: list[float], room: dict[int, float]) -> list[float]:
    """Bytes/s of one connection of each flow, none above its `most`: all rise together until a link is full."""
    rate, rising = [0.0] * len(flows), set(range(len(flows)))
    left = dict(room)
    while rising:
        lines: dict[int, float] = defaultdict(float)
        for f in rising:
            for link in flows[f].links:
                lines[link] += flows[f].lines
        step = min(*(most[f] - rate[f] for f in rising), *(left[link] / n for link, n in lines.items()))
        for f in rising:
            rate[f] += step
        for link, n in lines.items():
            left[link] -= step * n
        full = {link for link in lines if left[link] <= 1e-9 * room[link]}
        rising = {f for f in rising if rate[f] < most[f] * (1 - 1e-12) and not full.intersection(flows[f].links)}
    return rate


def paces(jobs: dict[int, Job], room: dict[int, float]) -> dict[int, float]:
    """How fast each job goes on beside the others, of its pace alone: that of its slowest flow.

    Each job in turn takes what it can while the others ask for no more than they use, until nothing moves.
    """
    pace = dict.fromkeys(jobs, 1.0)
    flows = [flow for job in jobs.values() for flow in job.flows]
    for _ in range(200):
        before = dict(pace)
        for number, job in jobs.items():
            most = [f.each * (1.0 if f.job == number else pace[f.job]) for f in flows]
            got = filled(flows, most, room)
            own = [rate / f.each for rate, f in zip(got, flows, strict=True) if f.job == number]
            pace[number] = min(own, default=1.0) if job.flows else 1.0
        if all(abs(pace[k] - before[k]) <= 1e-9 for k in pace):
            return pace
    raise AssertionError("the paces do not settle")


def fluid(jobs: list[Job], topology: Topology, efficiency: float) -> list[float]:
    """Seconds of each job from its start to its end."""
    room = dict(enumerate((topology.link_bandwidth * efficiency).tolist()))
    left, now, ends = dict.fromkeys(range(len(jobs)), 1.0), 0.0, dict[int, float]()
    while left:
        here = {k: jobs[k] for k in left if jobs[k].call.start_s <= now}
        begins = min((jobs[k].call.start_s for k in left if k not in here), default=inf)
        if not here:
            now = begins
            continue
        pace = paces(here, room)
        needs = {k: left[k] * jobs[k].call.alone_s / pace[k] for k in here}
        first = min(needs, key=lambda k: needs[k])
        span = min(needs[first], begins - now)
        now += span
        for k in here:
            left[k] -= span * pace[k] / jobs[k].call.alone_s
        if span == needs[first]:
            ends[first] = now
            del left[first]
            for k in [k for k in left if left[k] <= 1e-12]:
                ends[k] = now
                del left[k]
    return [ends[k] - job.call.start_s for k, job in enumerate(jobs)]


def drawn(seed: int) -> tuple[Topology, list[Job], float]:
    """Two or three jobs on an oversubscribed fabric, on whole nodes or on some GPUs of the same nodes."""
    rng = random.Random(seed)
    nodes = rng.choice([6, 8])
    fabric: dict[str, Any] = {"kind": rng.choice(["fat_tree", "rail_fat_tree"])}
    fabric |= {"nodes_per_leaf": rng.choice([1, 2, 3]), "oversubscription": rng.choice([2.0, 4.0])}
    fabric |= rng.choice([{"routing": "ecmp", "spines": 2, "hash_seed": seed}, {"spines": 1}])
    topology = machine(preset="hgx-h100-4-ndr400", nodes=nodes, fabric=fabric)
    count, ppn = rng.choice([2, 3]), topology.ranks_per_node
    if rng.random() < 0.7:
        order = rng.sample(range(nodes), nodes)
        parts = [sorted(order[k::count]) for k in range(count)]
        ranks = [[ppn * node + g for node in part for g in range(ppn)] for part in parts]
    else:
        ranks = [[ppn * node + g for node in range(nodes) for g in range(k, ppn, count)] for k in range(count)]
    names = ["all_reduce", "all_gather", "reduce_scatter"]
    jobs = [
        job_of(k, topology, rng.choice(names), of, rng.choice([0.0, 0.0, 1e-3, 10e-3])) for k, of in enumerate(ranks)
    ]
    model = Predictor(topology, RING)
    return topology, jobs, nic_efficiency(model.machine, model.parameters)


def test_jobs_slow_each_other_as_a_fluid_of_all_their_streams_does() -> None:
    slowed = 0
    for seed in range(60):
        topology, jobs, efficiency = drawn(seed)
        together = beside([job.call for job in jobs]).seconds
        expected = fluid(jobs, topology, efficiency)
        for got, seconds, job in zip(together, expected, jobs, strict=True):
            assert got / job.call.alone_s == pytest.approx(seconds / job.call.alone_s, rel=0.03), f"seed {seed}"
            slowed += seconds > 1.2 * job.call.alone_s
    assert slowed >= 30


def spine(nodes: int = 8) -> Topology:
    """Nodes of eight GPUs and NICs, four to a leaf, over a spine with a fourth of what the leaves take."""
    return machine(preset="hgx-h100-ndr400", nodes=nodes, nodes_per_leaf=4, oversubscription=4.0)


HALVES = [[*range(16), *range(32, 48)], [*range(16, 32), *range(48, 64)]]
"""Two jobs of 32 ranks, each on two nodes under either leaf."""


def test_two_jobs_over_one_thin_spine_meet_on_its_uplinks() -> None:
    topology = spine()
    jobs = [job_of(k, topology, "all_reduce", ranks, 0.0) for k, ranks in enumerate(HALVES)]
    calls = [job.call for job in jobs]
    together = beside(calls)
    expected = fluid(
        jobs, topology, float(calls[0].load.capacity[-1] / topology.link_bandwidth[calls[0].load.link[-1]])
    )
    for got, seconds, job in zip(together.seconds, expected, jobs, strict=True):
        assert got / job.call.alone_s == pytest.approx(seconds / job.call.alone_s, rel=0.03)
        assert got > 1.5 * job.call.alone_s
    for links, busiest in meetings(calls, together.seconds):
        assert links == 2 * 2 * 8  # up and down between either leaf of eight rails and the spine
        assert topology.link_kind[busiest] == LinkKind.FABRIC
    assert all("spine0" in topology.link_name(link) for link in together.link)


def test_jobs_under_leaves_of_their_own_take_as_long_as_alone() -> None:
    topology = spine()
    calls = [job_of(k, topology, "all_reduce", [*range(32 * k, 32 * k + 32)], 0.0).call for k in range(2)]
    assert beside(calls).seconds == tuple(call.alone_s for call in calls)
    assert meetings(calls, beside(calls).seconds) == [(0, -1), (0, -1)]


def test_a_job_that_begins_when_the_other_has_ended_is_alone() -> None:
    topology = spine()
    first, second = (job_of(k, topology, "all_reduce", ranks, 0.0).call for k, ranks in enumerate(HALVES))
    after = replace(second, start_s=first.alone_s)
    assert beside([first, after]).seconds == pytest.approx((first.alone_s, second.alone_s))
    # Half of the way beside each other at half the pace, then each alone: as long as both need of the uplinks.
    half = replace(second, start_s=first.alone_s / 2)
    slow = beside([first, second]).seconds[0] / first.alone_s
    got = beside([first, half]).seconds
    assert got[0] / first.alone_s == pytest.approx(0.5 + 0.5 * slow)
    assert got[1] == pytest.approx(got[0])


def test_who_is_late_sends_nothing_before() -> None:
    topology = spine()
    first, second = (job_of(k, topology, "all_reduce", ranks, 0.0).call for k, ranks in enumerate(HALVES))
    late = replace(second, late_s=2 * first.alone_s)
    assert beside([first, late]).seconds == pytest.approx((first.alone_s, second.alone_s + 2 * first.alone_s))


def test_a_paced_flow_takes_what_it_asks_for() -> None:
    """A flow of 10 of a NIC's 25 GB/s leaves what is left to the channels of that NIC, which all others keep."""
    topology = machine(preset="hgx-a100-4-hdr200", nodes=2)
    call = job_of(0, topology, "all_gather", list(range(8)), 0.0).call
    flow = flow_of(topology, 0, 4, None, 10e9, 0.0)
    (port,) = np.flatnonzero(np.isin(call.load.link, flow.load.link))[:1]
    need = call.rate[port]
    slow = beside([call, flow]).seconds[0] / call.alone_s
    assert slow == pytest.approx(need / (call.load.capacity[port] - 10e9))
    assert slow > 1.1


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_what_a_call_lays_on_the_ports_goes_out_as_it_comes_in(algorithm: str) -> None:
    topology = spine()
    model = Predictor(topology, replace(RING, algorithm=algorithm))
    call, _ = call_of(model, "all_reduce", GIB)
    assert_conserved(topology, call)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "scatter"])
def test_so_does_every_other_collective(collective: str) -> None:
    topology = spine()
    call, got = call_of(Predictor(topology, Options(version=(2, 26, 2))), collective, GIB)
    assert_conserved(topology, call)
    into = by_node(topology, call, topology.fabric.port_down)
    wire = PROTOCOLS[got.protocol].wire_factor
    if collective == "all_to_all":  # each rank brings its 56 ranks elsewhere a 64th each
        assert into == pytest.approx([8 * 56 / 64 * GIB] * 8)
    elif collective == "scatter":
        assert into == pytest.approx([0.0, *[8 / 64 * GIB] * 7])
    elif collective == "gather":
        assert into == pytest.approx([56 / 64 * GIB, *[0.0] * 7])
    elif collective != "broadcast":
        assert into == pytest.approx([63 / 64 * GIB * wire] * 8)


def by_node(topology: Topology, call: CallTraffic, ports: Any) -> list[float]:
    nbytes = on_links(topology, call)
    return [float(nbytes[ports[node]].sum()) for node in range(topology.nodes)]


def on_links(topology: Topology, call: CallTraffic) -> Any:
    """The bytes on every link of the machine."""
    nbytes = np.zeros(topology.link_bandwidth.size)
    nbytes[call.load.link] = call.load.nbytes
    return nbytes


def assert_conserved(topology: Topology, call: CallTraffic) -> None:
    """As much leaves the nodes as enters them, and leaves the leaves upward as comes down again."""
    out, into = (by_node(topology, call, ports) for ports in (topology.fabric.port_up, topology.fabric.port_down))
    assert sum(out) == pytest.approx(sum(into))
    assert sum(out) > 0
    fabric = topology.link_kind == LinkKind.FABRIC
    up = fabric & (topology.link_dst > topology.link_src)
    nbytes = on_links(topology, call)
    assert nbytes[up].sum() == pytest.approx(nbytes[fabric & ~up].sum())
    assert (call.load.lines > 0).all()
