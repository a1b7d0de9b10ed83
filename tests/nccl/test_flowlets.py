"""Flowlets that draw their paths: a closed queueing network by hand, the engine, and the laws between the routings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import small

import commsim as cs
from commsim.collectives.schedule import Schedule
from commsim.engine.evaluate import evaluate
from commsim.engine.fair import connections
from commsim.engine.program import build_program
from commsim.errors import InfeasibleError, ScenarioError, TopologyError
from commsim.nccl.communicator import communicator
from commsim.nccl.flowlets import mean_share, window_of
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.streams import streams
from commsim.nccl.system import Graph
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset

SETTINGS = settings(max_examples=20, deadline=None)
MESSAGE = 1 << 20


def leaves(nodes: int, spines: int, routing: str, seed: int = 0, flowlet: str = "1 MiB", nics: int = 1) -> Topology:
    """Two leaves of so many nodes with so many NICs each; links of spines are as fast as a NIC, if there are few."""
    fabric: dict[str, Any] = {
        "nodes_per_leaf": nodes,
        "spines": spines,
        "oversubscription": max(1.0, nics * nodes / spines),
    }
    fabric["routing"] = routing
    if routing in ("ecmp", "flowlet"):
        fabric["hash_seed"] = seed
    if routing == "flowlet":
        fabric["flowlet_size"] = flowlet
    made: Topology = small(2 * nodes, kind="fat_tree", nics=nics, **fabric)
    return made


def across(nodes: int, count: int) -> Schedule:
    """Each node under the first leaf sends so many messages to one under the second, one after the other."""
    rows = np.arange(nodes * count, dtype=np.int32)
    step, pair = np.divmod(rows, nodes)
    return Schedule(
        "send_recv",
        "in turn",
        4 * nodes,
        4 * nodes,
        op=np.zeros(rows.size, np.uint8),
        src=2 * pair,
        dst=2 * (nodes + pair),
        src_buffer=np.zeros(rows.size, np.uint8),
        src_chunk=rows,
        dst_buffer=np.ones(rows.size, np.uint8),
        dst_chunk=rows,
        step=step,
        channel=np.zeros(rows.size, np.int32),
        chunk_bytes=np.full(rows.size, MESSAGE),
        after=np.stack([rows[:-nodes], rows[nodes:]], axis=1),
    )


@pytest.mark.parametrize(("nodes", "spines"), [(4, 4), (8, 4), (9, 9)])
def test_the_engine_is_a_closed_network_of_queues(nodes: int, spines: int) -> None:
    """N flows that go from one of P equal servers, which share what they have, to another at random have P N / (N + P -
    1) of the P at work in the mean (Baskett, Chandy, Muntz, Palacios 1975): a message takes 1 + (N - 1) / P times."""
    count = 400
    topology = leaves(nodes, spines, "flowlet")
    got = evaluate(across(nodes, count), topology, contention="fair").makespan_s
    alone = count * (MESSAGE / topology.nic_bandwidth + topology.link_latency[topology.route(0, 2 * nodes)].sum())
    assert got / alone == pytest.approx(1 + (nodes - 1) / spines, rel=0.08)  # of the last of the flows


@pytest.mark.parametrize(("nodes", "spines"), [(4, 4), (8, 4), (9, 9)])
def test_streams_take_what_the_engine_and_the_queues_say(nodes: int, spines: int) -> None:
    topology = leaves(nodes, spines, "flowlet", flowlet="8 KiB")
    topology = replace(topology, link_latency=np.zeros_like(topology.link_latency))  # one flowlet at a time
    here = np.arange(nodes)
    ring = Graph(1, 20.0, 20.0, "RING", "NVL", "PIX", nics=((0, 0),))
    share = streams(communicator(topology), [ring], here, here + nodes).share
    assert share == pytest.approx(1 / (1 + (nodes - 1) / spines), rel=0.08)
    assert (share == share[0]).all()


def test_of_one_flowlet_in_a_window_the_slowest_counts_and_of_many_the_mean() -> None:
    draws = np.array([[1.0, 0.5], [0.25, 1.0]])
    of, link = np.array([[0], [1]]), np.array([3, 4])

    def share_of(flowlet: int) -> tuple[np.ndarray, np.ndarray]:
        return draws[flowlet % 2], link

    each, place = mean_share(share_of, of, 1, 2)
    assert each[:, 0] == pytest.approx([2 / (2 + 4)] * 2)
    assert place[:, 0].tolist() == [3, 4]
    together, _ = mean_share(share_of, of, 2, 2)
    assert together[:, 0] == pytest.approx([1 / 2.5] * 2)  # the first stream takes 1 and 4, the second 2 and 1
    assert mean_share(lambda _: (np.ones(2), link), of, 4, 2)[0].tolist() == [[1.0], [1.0]]


def test_a_window_is_what_the_slots_of_a_stream_hold() -> None:
    assert window_of(np.array([2.0, 3.0]), 512 << 10) == 16
    assert window_of(np.array([1.0]), 1 << 30) == 1


def _longer(nodes: int, spines: int, routing: str, seeds: int, flowlet: str = "512 KiB") -> np.ndarray:
    """How many times as long the slowest channel takes where all nodes send to the other leaf, of each seed."""
    here = np.arange(2 * nodes)
    ring = Graph(2, 20.0, 20.0, "RING", "NVL", "PIX", nics=((0, 0), (1, 1)))
    out = []
    for seed in range(seeds):
        topology = leaves(nodes, spines, routing, seed, flowlet, nics=2)
        out.append(1 / streams(communicator(topology), [ring], here, (here + nodes) % (2 * nodes)).share.min())
    return np.array(out)


@settings(max_examples=4, deadline=None)
@given(st.integers(2, 4), st.integers(1, 6), st.sampled_from(["64 KiB", "512 KiB", "16 MiB"]))
def test_flowlets_are_between_a_hash_and_even_ways(nodes: int, spines: int, flowlet: str) -> None:
    spray, flowlets = _longer(nodes, spines, "spray", 1)[0], _longer(nodes, spines, "flowlet", 2, flowlet)
    hashed = _longer(nodes, spines, "ecmp", 32)
    assert (flowlets >= spray * (1 - 1e-9)).all()
    assert flowlets.mean() <= hashed.mean() + 4 * (hashed.std() + 0.1) / 32**0.5  # a mean of 32 draws is not sharper
    assert (flowlets == _longer(nodes, spines, "flowlet", 2, flowlet)).all()


def _across(routing: str, flowlet: str = "512 KiB") -> float:
    """How many times as long a channel takes where four nodes of each of two leaves send to the other leaf."""
    here, ring = np.arange(8), Graph(1, 20.0, 20.0, "RING", "NVL", "PIX", nics=((0, 0),))
    comm = communicator(leaves(4, 4, routing, 0, flowlet))
    return float(1 / streams(comm, [ring], here, (here + 4) % 8).share.min())


def test_the_smallest_flowlets_are_spray_and_the_largest_the_slowest_of_each_draw() -> None:
    draws = np.random.default_rng(0).integers(0, 4, (20_000, 2, 4))  # of both leaves the path of each stream
    crowd = (draws[..., :, None] == draws[..., None, :]).sum(axis=-1)
    assert _across("flowlet", "1 TiB") == pytest.approx(crowd.max(axis=(1, 2)).mean(), rel=0.05)
    assert _across("flowlet", "1 TiB") == _across("flowlet", "8 MiB")
    assert _across("flowlet", "1 B") == pytest.approx(_across("spray"), rel=0.08)
    sizes = ("1 B", "8 KiB", "64 KiB", "512 KiB", "2 MiB", "4 MiB")
    longer = [_across("flowlet", size) for size in sizes]
    assert (np.diff(longer) > 0.05).all()


@SETTINGS
@given(st.integers(2, 4), st.integers(2, 6), st.integers(0, 99))
def test_smaller_flowlets_are_never_slower(nodes: int, spines: int, seed: int) -> None:
    """Within the same draws: a window's mean is no slower than its slowest."""
    topology = leaves(nodes, spines, "flowlet", seed)
    draws = np.random.default_rng(seed).uniform(0.1, 1.0, (512, 2 * nodes))
    of = np.arange(2 * nodes).reshape(-1, 1)
    least = [mean_share(lambda k: (draws[k], of[:, 0]), of, window, 1)[0].min() for window in (1, 2, 8, 32)]
    assert (np.diff(least) >= -1e-12).all()
    assert topology.draws_flowlets


def test_engines_agree_and_a_seed_is_another_draw() -> None:
    ranks = [4 * (k // 4) // 2 + k % 2 + 6 * (k // 2 % 2) for k in range(12)]  # from leaf to leaf and back
    topology, options = leaves(3, 3, "flowlet", nics=2), Options(algorithm="ring", protocol="Simple")
    one, two = (Predictor(topology, replace(options, engine=engine), ranks=ranks) for engine in ("wavefront", "event"))
    assert one.nodes.ways.ring.share(1)[0].max() < 1.0
    first, second = (model.predict("all_gather", 1 << 22).time_s for model in (one, two))
    assert first == pytest.approx(second, rel=1e-9)
    other = Predictor(leaves(3, 3, "flowlet", seed=1, nics=2), options, ranks=ranks)
    assert other.predict("all_gather", 1 << 28).time_s != one.predict("all_gather", 1 << 28).time_s


def test_messages_of_one_flowlet_keep_their_path_and_are_one_connection() -> None:
    schedule = across(4, 12)
    program = build_program(schedule, leaves(4, 16, "flowlet", flowlet="3 MiB"))
    route = program.route.reshape(12, 4)
    assert (route.reshape(4, 3, 4) == route.reshape(4, 3, 4)[:, :1]).all()
    assert any(len(set(route[:, pair].tolist())) > 1 for pair in range(4))
    conn = connections(schedule, program)
    assert len(set(zip(conn.tolist(), program.route.tolist(), strict=True))) == len(set(conn.tolist()))
    whole = build_program(schedule, leaves(4, 16, "flowlet", flowlet="1 TiB"))
    assert (whole.route.reshape(12, 4) == whole.route.reshape(12, 4)[:1]).all()
    assert (connections(schedule, whole) == connections(schedule)).all()


@cache
def _one_leaf(routing: str) -> Topology:
    return load_preset("hgx-h100-ndr400", nodes=4, fabric={"routing": routing})


def test_where_there_is_one_path_nothing_is_drawn() -> None:
    plain, drawn = (
        Predictor(_one_leaf(routing), Options()).predict("all_reduce", 1 << 30) for routing in ("shortest", "flowlet")
    )
    assert plain == drawn


def test_what_knows_no_flowlets_says_so() -> None:
    with pytest.raises(TopologyError, match="flowlet_size belongs to routing: flowlet; found routing ecmp"):
        small(4, kind="fat_tree", nodes_per_leaf=1, routing="ecmp", flowlet_size="1 MiB")
    scenario: dict[str, Any] = {
        "name": "x",
        "library": "none",
        "workload": [{"collective": "all_gather", "sizes": "64 MiB"}],
    }
    fabric = {"kind": "fat_tree", "nodes_per_leaf": 2, "spines": 8, "routing": "flowlet"}
    scenario["topology"] = {"preset": "hgx-h100-ndr400", "nodes": 4, "fabric": fabric}
    with pytest.raises((InfeasibleError, ScenarioError), match="wavefront"):
        cs.run(scenario, "engine=wavefront", "workload.0.algorithm=ring")
    (row,) = cs.run(scenario, "workload.0.algorithm=ring").items[0].rows
    assert row.level == "event"


def test_one_path_is_said() -> None:
    scenario: dict[str, Any] = {
        "name": "x",
        "library": "nccl",
        "workload": [{"collective": "all_gather", "sizes": "64 MiB"}],
    }
    fabric = {"nodes_per_leaf": 2, "spines": 1, "routing": "flowlet", "flowlet_size": "1 MiB"}
    scenario["topology"] = {"preset": "hgx-h100-ndr400", "nodes": 4, "fabric": fabric}
    said = [text for text in cs.run(scenario).warnings if "one path between two leaves" in text]
    assert len(said) == 2
    hung = cs.run(scenario, "topology.fabric.nodes_per_leaf=4").warnings
    assert sum("all 4 nodes hang on one leaf" in text for text in hung if "routing" in text or "flowlet" in text) == 2


def test_what_drawn_paths_do_not_change_is_said() -> None:
    scenario: dict[str, Any] = {
        "name": "x",
        "library": "nccl",
        "workload": [{"collective": "all_gather", "sizes": "1 MiB"}],
    }
    fabric = {"kind": "fat_tree", "nodes_per_leaf": 2, "spines": 16, "routing": "flowlet", "flowlet_size": "8 MiB"}
    scenario["topology"] = {"preset": "hgx-h100-ndr400", "nodes": 4, "fabric": fabric}

    def said(*overrides: str) -> list[str]:
        return [text for text in cs.run(scenario, *overrides).warnings if "has no effect" in text]

    (large,) = said()
    assert large.startswith("flowlet_size: 8 MiB has no effect beyond")
    assert said("topology.fabric.flowlet_size=4MiB") == []
    (sends,) = said("workload.0.collective=all_to_all")
    assert sends.startswith("routing: flowlet has no effect on these sends")
