"""The bisection against maximum flow by networkx, from all GPUs of one half to all of the other, over every link."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine

from commsim.errors import TopologyError
from commsim.topology.bisection import maximum_flow
from commsim.topology.graph import Topology
from commsim.topology.kinds import LinkKind
from commsim.topology.presets import load_preset

PRESETS = [
    "hgx-h100-ndr400",
    "hgx-h100-rail-only",
    "hgx-h100-4-ndr400",
    "hgx-h100-efa3200",
    "hgx-a100-4-hdr200",
    "oci-a100",
    "abci-a100",
    "dgx-1v-edr100",
    "gcp-a3-mega",
    "gh200x4-slingshot200",
    "dgx-spark",
]
FABRICS: list[dict[str, Any]] = [
    {},
    {"kind": "single_switch"},
    {"kind": "fat_tree", "nodes_per_leaf": 1},
    {"kind": "rail_fat_tree", "nodes_per_leaf": 2},
    {"kind": "rail_only"},
    {"kind": "torus"},
    {"kind": "dragonfly", "nodes_per_leaf": 1},
]


def flow(topology: Topology, give: set[int], take: set[int], kinds: set[LinkKind] | None = None) -> float:
    """Bytes/s between two sets of ranks."""
    graph: Any = nx.DiGraph()
    works = np.ones(topology.link_src.size, bool) if topology.link_failed is None else ~topology.link_failed
    for i in np.flatnonzero(works):
        if kinds is None or topology.link_kind[i] in kinds:
            a, b = int(topology.link_src[i]), int(topology.link_dst[i])
            more = graph[a][b]["capacity"] if graph.has_edge(a, b) else 0.0
            graph.add_edge(a, b, capacity=more + float(topology.link_bandwidth[i]))
    graph.add_edges_from([("give", int(topology.rank_vertex[r])) for r in give])
    graph.add_edges_from([(int(topology.rank_vertex[r]), "take") for r in take])
    return float(nx.maximum_flow_value(graph, "give", "take"))


def halves_of_nodes(topology: Topology) -> tuple[set[int], set[int]]:
    first = {r for r in range(topology.world_size) if topology.node_of(r) < topology.nodes // 2}
    return first, set(range(topology.world_size)) - first


node = st.fixed_dictionaries(
    {"preset": st.sampled_from(PRESETS)},
    optional={
        "gpus_per_node": st.sampled_from([1, 2, 3, 4, 6, 8]),
        "nics_per_node": st.sampled_from([1, 2, 3, 4, 8]),
        "nic_bandwidth": st.sampled_from(["100 Gb/s", "200 Gb/s", "400 Gb/s", "800 Gb/s"]),
    },
)
fabric = st.fixed_dictionaries(
    {}, optional={"oversubscription": st.sampled_from([1.5, 2.0, 3.0]), "nodes_per_leaf": st.integers(1, 3)}
)


@settings(max_examples=60)
@given(node, st.integers(2, 5), fabric)
def test_of_nodes_that_are_alike(node: dict[str, Any], nodes: int, fabric: dict[str, Any]) -> None:
    try:
        topology = machine(**node, nodes=nodes, **fabric)
    except TopologyError:
        return
    assert topology.bisection_bandwidth() == pytest.approx(flow(topology, *halves_of_nodes(topology)))


@settings(max_examples=40)
@given(st.lists(st.tuples(node, st.integers(1, 2)), min_size=2, max_size=3), st.sampled_from(FABRICS[1:]))
def test_of_nodes_that_differ(nodes: list[tuple[dict[str, Any], int]], fabric: dict[str, Any]) -> None:
    try:
        topology = machine(groups=[one | {"nodes": count} for one, count in nodes], fabric=fabric)
    except TopologyError:
        return
    assert topology.bisection_bandwidth() == pytest.approx(flow(topology, *halves_of_nodes(topology)))


@settings(max_examples=40)
@given(node, st.integers(2, 4), st.sampled_from(FABRICS), st.data())
def test_with_links_that_have_failed(
    node: dict[str, Any], nodes: int, fabric: dict[str, Any], data: st.DataObject
) -> None:
    more = {"fabric": fabric} if fabric else {}
    try:
        whole = machine(**node, nodes=nodes, **more)
        ends = [
            [whole.vertex_name[whole.link_src[i]], whole.vertex_name[whole.link_dst[i]]]
            for i in data.draw(st.lists(st.integers(0, whole.link_src.size - 1), min_size=1, max_size=4, unique=True))
        ]
        topology = machine(**node, nodes=nodes, **more, faults=[{"link": pair, "failed": True} for pair in ends])
    except TopologyError:
        return
    assert topology.bisection_bandwidth() == pytest.approx(flow(topology, *halves_of_nodes(topology)))


@settings(max_examples=30)
@given(st.sampled_from(["dgx-1v", "rtx4090", "a100-pcie", "h100-nvl", "hgx-a100-4", "gh200x4", "rtx2080ti"]), st.data())
def test_of_one_node(preset: str, data: st.DataObject) -> None:
    """The worst of all halvings."""
    gpus = data.draw(st.integers(2, 6))
    try:
        topology = load_preset(preset, gpus_per_node=gpus)
    except TopologyError:
        return
    nvlink = all(topology.path_type(0, r) in {"NVL", "NVB"} for r in range(1, gpus))
    kinds = {LinkKind.NVLINK} if nvlink else None
    sides = [set(side) for side in combinations(range(gpus), gpus // 2)]
    worst = min(flow(topology, side, set(range(gpus)) - side, kinds) for side in sides)
    assert topology.bisection_bandwidth() == pytest.approx(worst)


def test_fewer_gpus_than_nics() -> None:
    """One H100 and eight 400 Gb/s NICs: what leaves the node is what the GPU's own slot takes."""
    topology = load_preset("hgx-h100-ndr400", nodes=2, gpus_per_node=1, nics_per_node=8)
    slot = topology.link_bandwidth[
        (topology.link_src == topology.rank_vertex[0]) & (topology.link_kind == LinkKind.PCIE)
    ]
    assert slot.tolist() == [48e9]
    assert topology.bisection_bandwidth() == 48e9


def test_nics_that_share_a_slot_with_their_gpu() -> None:
    """Two 12.5 GB/s NICs for each A100, whose slot takes 24 GB/s; eight GPUs."""
    assert load_preset("oci-a100", nodes=2).bisection_bandwidth() == pytest.approx(8 * 24e9)


def test_two_levels_of_nvswitches_with_a_thin_link_between() -> None:
    """The link between the switches decides, not the ports of the GPUs."""
    links = [
        {"ends": ends, "kind": "nvlink", "bandwidth": f"{rate} GB/s", "latency": "1 us"}
        for ends, rate in ((["a", "s"], 100), (["s", "t"], 30), (["t", "b"], 100))
    ]
    vertices = {"a": "gpu", "b": "gpu", "s": "nvswitch", "t": "nvswitch"}
    chips = {"gpu": {"model": "X", "generation": "ampere", "sm": 80}, "cpu": {"arch": "x86_64", "vendor": "amd"}}
    topology = machine(**chips, node={"vertices": vertices, "links": links})
    assert topology.bisection_bandwidth() == 30e9


graphs = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 50)), min_size=1, max_size=40)


@given(graphs, st.integers(1, 7), st.floats(0.5, 3))
def test_flow_of_small_and_large_graphs(edges: list[tuple[int, int, int]], takers: int, scale: float) -> None:
    """With as many further vertices as make the graph a large one; networkx is the referee."""
    used = [(a, b, scale * c) for a, b, c in edges if a != b]
    src, dst = (np.array([edge[k] for edge in used], np.int64) for k in (0, 1))
    capacity = np.array([c for *_, c in used])
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(["give", "take"])
    for a, b, c in [*used, *[("give", v, 40.0) for v in range(takers)], *[(v, "take", 30.0) for v in range(takers, 8)]]:
        graph.add_edge(a, b, capacity=c + (graph[a][b]["capacity"] if graph.has_edge(a, b) else 0.0))
    expected = nx.maximum_flow_value(graph, "give", "take")
    for count in (8, 400):
        give, take = np.zeros(count), np.zeros(count)
        give[:takers], take[takers:8] = 40.0, 30.0
        assert maximum_flow(src, dst, capacity, give, take) == pytest.approx(expected, rel=1e-6)
