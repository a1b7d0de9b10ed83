"""Nodes written out vertex by vertex, and described in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from commsim.errors import TopologyError
from commsim.topology.check import check
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

BLOCKS = {"gpu": {"model": "X", "generation": "ampere", "sm": 80}, "cpu": {"arch": "x86_64", "vendor": "amd"}}
VERTICES = {"nic0": "nic", "a": "gpu", "b": "gpu", "p": "pcie_switch", "q": "pcie_switch", "c0": "host"}


def link(a: str, b: str, kind: str = "pcie", **more: Any) -> dict[str, Any]:
    return {"ends": [a, b], "kind": kind, "bandwidth": "10 GB/s", "latency": "1 us", **more}


LINKS = [link("a", "p"), link("b", "q"), link("p", "c0"), link("q", "p"), link("nic0", "q")]


def build(vertices: dict[str, str], links: list[dict[str, Any]], **more: Any) -> Topology:
    data = {**BLOCKS, "node": {"vertices": vertices, "links": links, **more.pop("node", {})}, **more}
    return load_topology(TopologySpec.model_validate(data), Path())


def test_a_node_written_out() -> None:
    topology = build(VERTICES, LINKS, node={"nic": {"bandwidth": "100 Gb/s"}})
    assert topology.vertex_name[:2] == ("node0.a", "node0.b")
    assert topology.path_type(0, 1) == "PXB"
    assert topology.nvlink_links == 0
    assert topology.link_latency[topology.route(0, 1)].tolist() == [1e-6] * 3


def test_its_nics_and_fabric() -> None:
    topology = build(
        VERTICES, LINKS, node={"nic": {"bandwidth": "100 Gb/s"}}, nodes=3, fabric={"kind": "single_switch"}
    )
    assert check(topology) == []
    assert topology.nics_per_node == 1
    assert topology.nic_path_type(0, 0) == "PXB"
    assert topology.nic_path_type(1, 0) == "PIX"
    assert topology.bisection_bandwidth() == pytest.approx(10e9)  # the NIC could do 12.5, its slot 10


def test_parallel_nvlinks() -> None:
    topology = build({"a": "gpu", "b": "gpu"}, [link("a", "b", "nvlink", count=3)])
    assert topology.pair_links(0, 1) == topology.nvlink_links == 3
    assert topology.nvlink_link_bandwidth == 10e9
    assert topology.bisection_bandwidth() == 30e9


def test_two_nvswitch_levels() -> None:
    vertices = {"a": "gpu", "b": "gpu", "s": "nvswitch", "t": "nvswitch"}
    topology = build(vertices, [link(*ends, "nvlink") for ends in (("a", "s"), ("s", "t"), ("t", "b"))])
    assert topology.path_type(0, 1) == "NVL"
    assert len(topology.route(0, 1)) == 3


@pytest.mark.parametrize(
    ("vertices", "links", "match"),
    [
        (VERTICES, LINKS[1:], "a and b of a node are not connected"),
        (VERTICES, LINKS[:4], "a and nic0 of a node are not connected; a NIC needs a PCIe path"),
        (VERTICES, [*LINKS, link("a", "p")], "links.5: a and p are joined twice"),
        (VERTICES, [*LINKS, link("a", "a")], "found 'a' twice"),
        (VERTICES, [*LINKS, link("a", "z")], "'z' is not a vertex; the vertices are"),
        (VERTICES, [*LINKS, link("a", "c0", "nvlink")], "a nvlink link ends at gpu or nvswitch, found a host"),
        ({"c": "host", "d": "host"}, [link("c", "d", "host")], "the node has no GPU"),
    ],
)
def test_nodes_that_cannot_be(vertices: dict[str, str], links: list[dict[str, Any]], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        build(vertices, links, node={"nic": {"bandwidth": "100 Gb/s"}})


def test_a_written_node_keeps_its_nics() -> None:
    with pytest.raises(TopologyError, match="found 2, but 1 NICs are written out"):
        build(VERTICES, LINKS, nics_per_node=2, nic_bandwidth="100 Gb/s")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"preset": "dgx-1v", "path": "x.yaml"}, "found preset and path"),
        ({"nodes": 2}, "expected a preset, a path, or a machine"),
        ({"node": {"gpus": 2, "vertices": {"a": "gpu"}, "links": []}}, "not both"),
        ({"node": {"vertices": {"a": "gpu"}}}, "only one of them"),
        ({"preset": "dgx-1v", "oversubscription": "2"}, "oversubscription"),
        ({"preset": "dgx-1v", "oversubscription": float("nan")}, "oversubscription"),
    ],
)
def test_descriptions_that_make_no_sense(data: dict[str, Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        TopologySpec.model_validate(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"preset": "hgx-h100-ndr400", "nodes": 65536, "nodes_per_leaf": 1, "fabric": {"spines": 1024}}, "links"),
        ({"preset": "gb200-nvl72", "nodes": 65536}, "ranks, expected at most"),
    ],
)
def test_machines_beyond_all_bounds(data: dict[str, Any], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        load_topology(TopologySpec.model_validate(data), Path())


def test_a_pattern_does_not_mix_with_a_written_node(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        "gpu: {model: X, generation: ada, sm: 89}\ncpu: {arch: x86_64, vendor: amd}\n"
        "node: {vertices: {a: gpu}, links: []}\n"
    )
    assert load_topology(TopologySpec(path="w.yaml"), tmp_path).world_size == 1
    spec = TopologySpec.model_validate({"path": "w.yaml", "node": {"gpus": 4}})
    with pytest.raises(TopologyError, match="written out"):
        load_topology(spec, tmp_path)


def test_bridged_pairs() -> None:
    node = {"gpus": 4, "nvlink": {"kind": "pairs", "links": 12, "bandwidth": "25 GB/s"}}
    pcie = {"bandwidth": "24 GB/s", "sockets": 2, "socket_bandwidth": "10 GB/s"}
    spec = TopologySpec.model_validate({**BLOCKS, "node": {**node, "pcie": pcie}})
    topology = load_topology(spec, Path())
    assert topology.pair_links(0, 1) == 12
    assert topology.path_type(1, 2) == "SYS"
    assert topology.bisection_bandwidth() == pytest.approx(10e9)


def test_a_spec_survives_its_own_dump() -> None:
    spec = TopologySpec.model_validate({**BLOCKS, "node": {"gpus": 2, "pcie": {"bandwidth": "24 GB/s"}}})
    assert TopologySpec.model_validate(spec.model_dump(exclude_unset=True)) == spec
