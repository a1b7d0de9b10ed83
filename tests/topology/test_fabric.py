"""Fabrics: leaves, uplinks, bisection, and the check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import TopologyError
from commsim.topology.check import check
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.presets import load_preset, load_topology
from commsim.topology.spec import TopologySpec
from commsim.topology.tree import TreeRoutes


def uplinks(topology: Topology) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Bytes/s of all links that leave each leaf for a spine."""
    assert isinstance(topology.fabric_routes, TreeRoutes)
    return np.asarray(topology.link_bandwidth[topology.fabric_routes.up].sum(axis=1))


@pytest.mark.parametrize(("factor", "gigabytes"), [(1.0, 1600), (2.0, 800), (4.0, 400), (1.6, 1000)])
def test_uplinks_of_a_rail_leaf(factor: float, gigabytes: float) -> None:
    """32 nodes of one 50 GB/s NIC per rail, over the oversubscription."""
    topology = load_preset("hgx-h100-ndr400", nodes=64, oversubscription=factor)
    assert uplinks(topology) == pytest.approx(np.full(16, gigabytes * 1e9))
    assert topology.oversubscription == factor


def test_uplinks_of_a_leaf_that_holds_all_nics_of_its_nodes() -> None:
    topology = load_preset("gh200x4-slingshot200", nodes=16)
    assert uplinks(topology) == pytest.approx(np.full(4, 4 * 4 * 25e9))


def test_uplinks_are_shared_by_the_spines() -> None:
    spec = TopologySpec.model_validate({"preset": "hgx-h100-ndr400", "nodes": 64, "fabric": {"spines": 16}})
    topology = load_topology(spec, Path())
    assert topology.link_bandwidth[topology.link_kind == LinkKind.FABRIC].tolist() == [100e9] * (2 * 16 * 16)
    assert uplinks(topology) == pytest.approx(np.full(16, 1600e9))


def test_few_nodes_need_no_spine() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=32)
    assert LinkKind.FABRIC not in topology.link_kind
    assert (topology.vertex_kind == VertexKind.SWITCH).sum() == 8


@pytest.mark.parametrize(
    ("name", "knobs", "gigabytes"),
    [
        ("hgx-h100", {}, 4 * 450),
        ("dgx-a100", {}, 4 * 300),
        ("hgx-a100-4", {}, 2 * 2 * 100),  # each of two GPUs has four links to each of two
        ("dgx-1v", {}, 6 * 25),  # the halves {0,1,2,3} and {4,5,6,7}: 2 + 2 + 1 + 1 links
        ("rtx4090", {}, 96),  # between the sockets
        ("a100-pcie", {"gpus_per_node": 4}, 2 * 24),  # below one switch
        ("hgx-h100-ndr400", {"nodes": 2}, 8 * 48),  # the PCIe slot of a 400 Gb/s NIC gives 48
        ("hgx-h100-ndr400", {"nodes": 64, "oversubscription": 2.0}, 8 * 800),
        ("hgx-h100-ndr400", {"nodes": 64}, 8 * 32 * 48),
        ("dgx-1v-edr100", {"nodes": 4}, 2 * 4 * 12),
    ],
)
def test_bisection(name: str, knobs: dict[str, object], gigabytes: float) -> None:
    assert load_preset(name, **knobs).bisection_bandwidth() == pytest.approx(gigabytes * 1e9)


def test_one_rank_has_no_halves() -> None:
    assert load_preset("hgx-h100", gpus_per_node=1).bisection_bandwidth() == float("inf")


@given(st.integers(2, 12), st.integers(1, 5), st.sampled_from([1.0, 1.5, 2.0, 4.0]), st.integers(1, 4))
def test_bisection_is_the_maximum_flow(nodes: int, per_leaf: int, factor: float, nics: int) -> None:
    """The closed form against networkx on the NICs, leaves and spines of both halves."""
    topology = load_preset(
        "hgx-h100-ndr400",
        nodes=nodes,
        nodes_per_leaf=per_leaf,
        oversubscription=factor,
        nics_per_node=nics,
        nic_bandwidth="200 Gb/s",
    )
    graph: Any = nx.DiGraph()
    for i in np.flatnonzero(topology.link_kind >= LinkKind.NETWORK):
        graph.add_edge(int(topology.link_src[i]), int(topology.link_dst[i]), capacity=float(topology.link_bandwidth[i]))
    for v in np.flatnonzero(topology.vertex_kind == VertexKind.NIC):
        first = topology.vertex_node[v] < nodes // 2
        graph.add_edge("a" if first else int(v), int(v) if first else "b")
    assert topology.bisection_bandwidth() == pytest.approx(nx.maximum_flow_value(graph, "a", "b"))


def test_scaling() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=4)
    twice = topology.scaled(bandwidth=2, latency=0.5)
    assert (twice.link_bandwidth == 2 * topology.link_bandwidth).all()
    assert (twice.link_latency == topology.link_latency / 2).all()
    assert twice.nic_bandwidth == 100e9
    assert twice.bisection_bandwidth() == 2 * topology.bisection_bandwidth()
    with pytest.raises(TopologyError, match="scale factors"):
        topology.scaled(bandwidth=0)


def test_networkx_form() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=3)
    graph = topology.to_networkx()
    assert graph.number_of_nodes() == len(topology.vertex_name)
    assert graph.number_of_edges() == len(topology.link_src)
    assert nx.is_strongly_connected(graph)
    assert graph.edges["node0.gpu0", "node0.nvswitch"]["bandwidth"] == 450e9
    assert set(dict(topology.to_networkx([1]).nodes(data="node")).values()) == {1, -1}


# -- check ------------------------------------------------------------------


def test_check_finds_a_link_without_bandwidth() -> None:
    topology = load_preset("hgx-h100")
    broken = replace(topology, link_bandwidth=np.where(np.arange(len(topology.link_src)) == 0, 0.0, 1.0))
    assert check(broken) == ["the link node0.gpu0 -> node0.nvswitch has bandwidth 0"]


def test_check_finds_a_negative_latency() -> None:
    topology = load_preset("hgx-h100")
    assert "has latency -1" in check(replace(topology, link_latency=topology.link_latency * 0 - 1))[0]


def test_check_finds_a_rank_that_is_not_on_a_gpu() -> None:
    topology = load_preset("hgx-h100")
    ranks = topology.rank_vertex.copy()
    ranks[3] = topology.vertex_name.index("node0.nvswitch")
    assert check(replace(topology, rank_vertex=ranks)) == ["rank 3 is not on a GPU but on node0.nvswitch"]


def test_check_finds_islands_and_cut_nics() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    keep = topology.link_kind != LinkKind.NETWORK
    columns = {n: getattr(topology, n)[keep] for n in ("link_src", "link_dst", "link_bandwidth", "link_latency")}
    faults = check(replace(topology, link_kind=topology.link_kind[keep], **columns))
    assert "node1.nic7 is not cabled to a switch" in faults
    assert "rank 8 (and 7 more) cannot be reached from rank 0" in faults


def test_check_finds_a_nic_without_pcie() -> None:
    topology = load_preset("dgx-1v-edr100")
    nic = topology.vertex_name.index("node0.nic2")
    keep = (topology.link_src != nic) & (topology.link_dst != nic)
    columns = {
        n: getattr(topology, n)[keep] for n in ("link_src", "link_dst", "link_bandwidth", "link_latency", "link_kind")
    }
    assert check(replace(topology, **columns)) == ["node0.nic2 has no PCIe path"]


def test_check_finds_columns_of_different_length() -> None:
    topology = load_preset("hgx-h100")
    assert "link_dst has 1 rows" in check(replace(topology, link_dst=topology.link_dst[:1]))[0]
    assert "outside" in check(replace(topology, link_dst=topology.link_dst + 99))[0]
