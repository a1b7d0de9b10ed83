"""Routes: by hand on real machines, and laws over random ones."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import TopologyError
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.presets import list_presets, load_preset


def names(topology: Topology, src: int, dst: int, nic: int | None = None) -> list[str]:
    """The vertices of a route without the node prefix of one-node machines."""
    links = topology.route(src, dst, nic)
    ends = [topology.link_src[links[0]], *topology.link_dst[links]] if len(links) else []
    return [topology.vertex_name[v] for v in ends]


def test_through_the_nvswitch() -> None:
    topology = load_preset("dgx-a100")
    route = topology.route(0, 7)
    assert names(topology, 0, 7) == ["node0.gpu0", "node0.nvswitch", "node0.gpu7"]
    assert topology.link_bandwidth[route].tolist() == [300e9, 300e9]
    assert topology.pair_links(0, 7) == 0


@pytest.mark.parametrize(("name", "links", "gigabytes"), [("hgx-a100-4", 4, 100), ("hgx-h100-4", 6, 150)])
def test_direct_mesh(name: str, links: int, gigabytes: float) -> None:
    topology = load_preset(name)
    for a in range(4):
        for b in range(4):
            if a != b:
                assert len(topology.route(a, b)) == 1
                assert topology.link_bandwidth[topology.route(a, b)].tolist() == [gigabytes * 1e9]
                assert topology.pair_links(a, b) == links


def test_cube_mesh_is_that_of_nvidia_smi() -> None:
    """`nvidia-smi topo -m` of a DGX-1V; pairs that it calls SYS have no NVLink, NCCL goes over one other GPU."""
    seen = """
    X 1 1 2 2 . . .
    1 X 2 1 . 2 . .
    1 2 X 2 . . 1 .
    2 1 2 X . . . 1
    2 . . . X 1 1 2
    . 2 . . 1 X 2 1
    . . 1 . 1 2 X 2
    . . . 1 2 1 2 X
    """
    topology = load_preset("dgx-1v")
    for a, row in enumerate(seen.split("\n")[1:9]):
        for b, cell in enumerate(row.split()):
            if cell == ".":
                assert topology.path_type(a, b) == "NVB"
            elif cell != "X":
                assert topology.path_type(a, b) == "NVL"
                assert topology.pair_links(a, b) == int(cell)


def test_over_one_gpu_takes_the_widest() -> None:
    topology = load_preset("dgx-1v")
    assert names(topology, 0, 7) == ["node0.gpu0", "node0.gpu4", "node0.gpu7"]  # 2 links and 2, by GPU 3 only 1


@pytest.mark.parametrize(
    ("a", "b", "kind", "hops"), [(0, 3, "PIX", 2), (0, 4, "SYS", 5), (5, 7, "PIX", 2), (2, 2, "LOC", 0)]
)
def test_pcie_distances(a: int, b: int, kind: str, hops: int) -> None:
    topology = load_preset("a100-pcie")
    assert topology.path_type(a, b) == kind
    assert len(topology.route(a, b)) == hops


def test_gpus_under_one_cpu() -> None:
    topology = load_preset("rtx4090")
    assert topology.path_type(0, 3) == "PHB"
    assert names(topology, 0, 4) == ["node0.gpu0", "node0.cpu0", "node0.cpu1", "node0.gpu4"]


def test_superchips() -> None:
    topology = load_preset("gh200x4-slingshot200", nodes=2)
    assert topology.path_type(0, 3) == "NVL"
    assert topology.nearest_nic(2) == 2
    assert topology.nic_path_type(2, 2) == "P2C"
    assert names(topology, 1, 5) == [
        *("node0.gpu1", "node0.cpu1", "node0.nic1"),
        "leaf0",
        *("node1.nic1", "node1.cpu1", "node1.gpu1"),
    ]
    assert topology.link_kind[topology.route(1, 5)][0] == LinkKind.C2C


def test_a_rack_reaches_foreign_nics_through_a_gpu_near_them() -> None:
    topology = load_preset("gb200-nvl72")
    assert topology.nic_path_type(0, 0) == "P2C"
    assert topology.nic_path_type(0, 2) == "SYS"
    assert topology.nic_path_type(0, 71) == "PXN"
    assert load_preset("gb200-nvl72", gpus_per_node=4).nics_per_node == 4


def test_rails_stay_on_their_leaf() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    assert names(topology, 3, 8 + 5) == [
        *("node0.gpu3", "node0.pcie3", "node0.nic3"),
        "leaf0.rail3",
        *("node1.nic3", "node1.pcie3", "node1.cpu0", "node1.cpu1", "node1.pcie5", "node1.gpu5"),
    ]
    assert names(topology, 3, 8 + 5, nic=5)[-3:] == ["node1.nic5", "node1.pcie5", "node1.gpu5"]


def test_another_leaf_group_is_reached_over_the_spine() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=64)
    near, far = topology.route(0, 8 * 31), topology.route(0, 8 * 32)
    assert LinkKind.FABRIC not in topology.link_kind[near]
    assert topology.link_kind[far].tolist().count(LinkKind.FABRIC) == 2
    assert names(topology, 0, 8 * 32)[3:6] == ["leaf0.rail0", "spine0", "leaf1.rail0"]


def test_latency_of_a_hop_between_nodes() -> None:
    """Two NICs and one switch below one leaf; two NICs, three switches and two cables over the spine."""
    topology = load_preset("hgx-h100-ndr400", nodes=64)
    wires = {LinkKind.NETWORK, LinkKind.FABRIC}

    def network(dst: int) -> float:
        links = topology.route(0, dst)
        outside = np.isin(topology.link_kind[links], list(wires))
        return float(topology.link_latency[links][outside].sum())

    assert network(8) == pytest.approx(2 * 0.35e-6 + 0.15e-6)
    assert network(8 * 40) == pytest.approx(2 * 0.35e-6 + 3 * 0.15e-6 + 2 * 0.1e-6)


@pytest.mark.parametrize(("nics", "nearest"), [(1, [0] * 8), (2, [0] * 4 + [1] * 4), (4, [0, 0, 1, 1, 2, 2, 3, 3])])
def test_nearest_nic_of_dgx_a100(nics: int, nearest: list[int]) -> None:
    topology = load_preset("dgx-a100", nics_per_node=nics, nic_bandwidth="200 Gb/s")
    assert [topology.nearest_nic(r) for r in range(8)] == nearest


def test_gpus_that_share_a_switch_take_turns_over_its_nics() -> None:
    topology = load_preset("dgx-a100-hdr200")
    assert [topology.nearest_nic(r) for r in range(8)] == list(range(8))
    assert topology.nic_path_type(0, 1) == "PIX"
    assert topology.nic_path_type(0, 2) == "PHB"


def test_table_deduplicates() -> None:
    topology = load_preset("dgx-1v")
    table = topology.routes([0, 0, 1, 0], [1, 7, 1, 7])
    assert len(table.ptr) == 4
    assert table.links(1).tolist() == table.links(3).tolist() == topology.route(0, 7).tolist()
    assert table.links(2).tolist() == []


def test_ranks_and_nics_outside() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    with pytest.raises(TopologyError, match="rank 16"):
        topology.route(0, 16)
    with pytest.raises(TopologyError, match=r"outside 0\.\.15"):
        topology.routes([0], [-1])
    with pytest.raises(TopologyError, match="NIC 8 is not one of the 8"):
        topology.route(0, 8, nic=8)
    with pytest.raises(TopologyError, match="NIC 9"):
        topology.nic_path_type(0, 9)


# -- laws -------------------------------------------------------------------

# A torus has no leaf, and rails are changed at the source only: both have tests of their own.
MACHINES = [
    p.name for p in list_presets() if p.gpus_per_node <= 16 and not {"torus", "ring", "only"} & {*p.name.split("-")}
]


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Small machines of every sort, with NICs of any number."""
    name = draw(st.sampled_from(MACHINES))
    base = load_preset(name)
    knobs: dict[str, object] = {
        "nodes": draw(st.integers(1, 5)),
        "gpus_per_node": draw(st.integers(1, base.ranks_per_node)),
    }
    if not base.nics_per_node or draw(st.booleans()):
        knobs |= {"nics_per_node": draw(st.integers(1, 8)), "nic_bandwidth": "100 Gb/s"}
    knobs["nodes_per_leaf"] = draw(st.integers(1, 3))
    return load_preset(name, **knobs)


@given(machines())
def test_every_pair_has_a_contiguous_route(topology: Topology) -> None:
    ranks = np.arange(topology.world_size)
    src, dst = (a.ravel() for a in np.meshgrid(ranks, ranks))
    table = topology.routes(src, dst)
    for k in range(len(src)):
        links = table.links(k)
        if src[k] == dst[k]:
            assert len(links) == 0
            continue
        assert topology.link_src[links[0]] == topology.rank_vertex[src[k]]
        assert topology.link_dst[links[-1]] == topology.rank_vertex[dst[k]]
        assert (topology.link_dst[links[:-1]] == topology.link_src[links[1:]]).all()
        visited = topology.link_dst[links].tolist()
        assert len(set(visited)) == len(visited)


@given(machines(), st.data())
def test_routes_are_alike_both_ways(topology: Topology, data: st.DataObject) -> None:
    rank = st.integers(0, topology.world_size - 1)
    a, b, nic = data.draw(rank), data.draw(rank), data.draw(st.integers(0, topology.nics_per_node - 1))
    there, back = topology.route(a, b, nic), topology.route(b, a, nic)
    assert topology.link_src[there].tolist() == topology.link_dst[back][::-1].tolist()
    assert topology.link_bandwidth[there].tolist() == topology.link_bandwidth[back][::-1].tolist()
    assert topology.path_type(a, b) == topology.path_type(b, a)
    assert topology.pair_links(a, b) == topology.pair_links(b, a)


@given(machines(), st.data())
def test_pairs_of_one_node_stay_in_it(topology: Topology, data: st.DataObject) -> None:
    p = topology.ranks_per_node
    node = data.draw(st.integers(0, topology.nodes - 1))
    a, b = data.draw(st.integers(0, p - 1)), data.draw(st.integers(0, p - 1))
    links = topology.route(node * p + a, node * p + b)
    assert set(topology.vertex_node[topology.link_dst[links]].tolist()) <= {node}
    first = topology.route(a, b)
    assert (links - node * topology.node_routes.links).tolist() == first.tolist()


@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_routes_are_unmoved_by_shifting_leaf_groups(spines: int, per_leaf: int, data: st.DataObject) -> None:
    """What folding a ring over nodes relies on: the same kinds and bandwidths, and the same spine."""
    from pathlib import Path

    from commsim.topology.presets import load_topology
    from commsim.topology.spec import FabricSpec, TopologySpec

    spec = TopologySpec(
        preset="hgx-h100-ndr400", nodes=4 * per_leaf, nodes_per_leaf=per_leaf, fabric=FabricSpec(spines=spines)
    )
    topology = load_topology(spec, Path())
    half = topology.world_size // 2
    a, b = data.draw(st.integers(0, half - 1)), data.draw(st.integers(0, half - 1))
    one, other = topology.route(a, b), topology.route(a + half, b + half)
    assert topology.link_kind[one].tolist() == topology.link_kind[other].tolist()
    assert topology.link_latency[one].tolist() == topology.link_latency[other].tolist()
    switches = topology.vertex_kind == VertexKind.SWITCH
    spine = [n for n in topology.link_dst[one] if switches[n] and topology.vertex_name[n].startswith("spine")]
    shifted = [n for n in topology.link_dst[other] if switches[n] and topology.vertex_name[n].startswith("spine")]
    assert spine == shifted


def test_a_ring_of_512_ranks_routes_in_milliseconds() -> None:
    start = time.perf_counter()
    topology = load_preset("hgx-h100-ndr400", nodes=64, oversubscription=2.0)
    built = time.perf_counter()
    ranks = np.arange(512)
    table = topology.routes(ranks, (ranks + 1) % 512)
    routed = time.perf_counter()
    assert len(table.index) == 512
    assert built - start < 1.0  # 5 ms here, 0.25 s asked; the rest is for a busy machine
    assert routed - built < 0.2  # 1 ms here, 20 ms asked
