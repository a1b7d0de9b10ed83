"""Every shipped machine loads, is sound, and says where its figures come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.errors import TopologyError
from commsim.topology.check import check
from commsim.topology.graph import Topology
from commsim.topology.presets import list_presets, load_file, load_preset, load_topology, preset_names
from commsim.topology.spec import NicSpec, NodeSpec, NvlinkSpec, TopologySpec

WITH_NETWORK = [p.name for p in list_presets() if p.nics_per_node]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_sound(name: str) -> None:
    assert check(load_preset(name)) == []


@pytest.mark.parametrize("name", WITH_NETWORK)
def test_every_preset_with_nics_joins_nodes(name: str) -> None:
    topology = load_preset(name, nodes=3)
    assert check(topology) == []
    assert topology.path_type(0, topology.world_size - 1) == "NET"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_names_its_sources(name: str, checkout: Path) -> None:
    text = (checkout / "topologies" / f"{name}.yaml").read_text()
    assert "source:" in text
    figures = [line for line in text.splitlines() if any(u in line for u in (" GB/s", " Gb/s", " us "))]
    unsourced = [line for line in figures if "#" not in line and not line.startswith(("description", "source", "  - "))]
    assert unsourced == []


@pytest.mark.parametrize(
    ("name", "links", "gigabytes", "switch"),
    [
        ("dgx-1v", 6, 25, False),
        ("dgx-2", 6, 25, True),
        ("dgx-a100", 12, 25, True),
        ("hgx-a100-4", 12, 25, False),
        ("a800", 8, 25, True),
        ("hgx-h100", 18, 25, True),
        ("hgx-h100-4", 18, 25, False),
        ("hgx-h200", 18, 25, True),
        ("h800", 8, 25, True),
        ("h20", 18, 25, True),
        ("hgx-b200", 18, 50, True),
        ("gh200x4", 18, 25, False),
        ("gb200-nvl72", 18, 50, True),
        ("gb200-nvl4", 18, 50, False),
        ("rtx4090", 0, 0, False),
    ],
)
def test_nvlink_as_in_the_datasheets(name: str, links: int, gigabytes: float, switch: bool) -> None:
    topology = load_preset(name)
    assert topology.nvlink_links == links
    assert topology.nvlink_link_bandwidth == gigabytes * 1e9
    assert topology.has_nvswitch == switch


def test_fewer_gpus_keep_the_links_of_each() -> None:
    topology = load_preset("hgx-a100-4", gpus_per_node=2)
    assert topology.world_size == 2
    assert topology.nvlink_links == 12
    assert topology.pair_links(0, 1) == 4


@pytest.mark.parametrize(
    ("nics", "bandwidth"), [(1, "25 Gb/s"), (2, "100 Gb/s"), (3, "200 Gb/s"), (4, "400 Gb/s"), (8, "800 Gb/s")]
)
def test_nics_from_25_to_800_gbit(nics: int, bandwidth: str) -> None:
    topology = load_preset("hgx-h100", nodes=2, nics_per_node=nics, nic_bandwidth=bandwidth)
    assert topology.nics_per_node == nics
    assert topology.nic_bandwidth == float(bandwidth.split(maxsplit=1)[0]) * 1e9 / 8
    assert check(topology) == []


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({"gpus_per_node": 9}, "found 9, but a node has 8 GPUs"),
        ({"nodes": 0}, "nodes: found 0"),
        ({"nodes": 2}, "2 nodes without a NIC"),
        ({"nodes": 2, "nics_per_node": 1}, "nic_bandwidth is missing"),
        ({"nics_per_node": 1, "nic_bandwidth": "0 Gb/s"}, "above zero"),
        ({"oversubscription": 0.5}, "oversubscription"),
        ({"nodes": 65536, "nics_per_node": 1, "nic_bandwidth": "1 Gb/s", "gpus_per_node": 0}, "gpus_per_node"),
    ],
)
def test_knobs_that_make_no_sense(knobs: dict[str, object], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        load_preset("hgx-h100", **knobs)


def test_an_unknown_preset_is_met_with_a_near_name() -> None:
    with pytest.raises(TopologyError, match="did you mean hgx-h100"):
        load_preset("hgx-h10")
    with pytest.raises(TopologyError, match="unknown preset"):
        load_preset("../dgx-1v")


def test_a_preset_with_one_field_replaced() -> None:
    spec = TopologySpec(preset="hgx-h100", node=NodeSpec(nvlink=NvlinkSpec(links=8)))
    changed, shipped = load_topology(spec, Path()), load_preset("h800")
    assert changed.link_bandwidth.tolist() == shipped.link_bandwidth.tolist()


def test_nics_added_in_place() -> None:
    nic = NicSpec.model_validate({"count": 4, "bandwidth": "100 Gb/s"})
    topology = load_topology(TopologySpec(preset="hgx-h100", node=NodeSpec(nic=nic), nodes=2), Path())
    assert topology.network == "infiniband"
    assert topology.nic_bandwidth == 12.5e9


def test_a_file_extends_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: hgx-h100\ngpu: {model: H100 mine}\nnode: {nic: {count: 2, bandwidth: 200 Gb/s}}\n")
    topology = load_file(file, nodes=2)
    assert topology.name == "mine"
    assert topology.gpu.model == "H100 mine"
    assert topology.nics_per_node == 2
    assert topology.nvlink_links == 18


def test_a_relative_path_starts_at_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: rtx4090\nname: box\n")
    assert load_topology(TopologySpec(path="mine.yaml"), tmp_path).name == "box"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("extends: hgx-h10\n", r"mine.yaml:1:\d+ extends: unknown preset 'hgx-h10'; did you mean"),
        ("extends: hgx-h100\nnode: {nvlink: {bandwith: 1 GB/s}}\n", r"mine.yaml:2:.*bandwith.*did you mean"),
        ("extends: hgx-h100\nnode: {nvlink: {bandwidth: 25}}\n", r"mine.yaml:2:.*bare number"),
        ("gpu: {model: X}\n", r"mine.yaml:1:1 node.gpus: found no key 'gpus', expected it, such as gpus: 8"),
        ("node: {gpus: 2}\n", r"mine.yaml:1:7 node.pcie.bandwidth: found no key"),
        (
            "node: {gpus: 2, pcie: {bandwidth: 1 GB/s}}\n",
            r"(?s)cpu.vendor: .* gpu.generation: .* gpu.model: .* gpu.sm: ",
        ),
        ("a: 1\n---\nb: 2\n", "expected one topology, found 2 documents"),
        ("extends: rtx4090\nnode: {nvlink: {kind: mesh, links: 4, bandwidth: 1 GB/s}}\n", "shared evenly by 7 peers"),
        ("extends: rtx4090\nnode: {nvlink: {kind: cube_mesh, links: 4, bandwidth: 1 GB/s}}\n", "cube mesh has 8 GPUs"),
        ("extends: rtx4090\nnode: {gpus: 3, nvlink: {kind: pairs, links: 4, bandwidth: 1 GB/s}}\n", "join pairs"),
        ("extends: rtx4090\nnode: {pcie: {sockets: 9}}\n", "9 sockets for 8 GPUs"),
        ("extends: rtx4090\nnode: {pcie: {gpus_per_switch: 9}}\n", "gpus_per_switch"),
        ("extends: hgx-h100-ndr400\nfabric: {kind: single_switch, oversubscription: 2.0}\n", "never oversubscribed"),
    ],
)
def test_files_that_cannot_be_built(text: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(TopologyError, match=match):
        load_file(file)


def test_names_of_vertices() -> None:
    topology: Topology = load_preset("hgx-h100-ndr400", nodes=33)
    assert topology.vertex_name[0] == "node0.gpu0"
    assert {"leaf1.rail7", "spine0", "node32.nic7"} <= set(topology.vertex_name)
