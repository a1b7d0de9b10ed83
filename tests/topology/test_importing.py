"""Machines described by NCCL and by nvidia-smi: read whole, completed by flags, or refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from nccl_machines import Node

from commsim.errors import TopologyError
from commsim.nccl.graph import discover
from commsim.nccl.view import cpu_link_gbps
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.imported import Given
from commsim.topology.importing import checked, import_file

SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")) / "topo"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not at hand")

PAIR = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0:1" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0:2" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="1" gdr="1"><nvlink target="0:3" count="12" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0:3" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="0">
        <gpu dev="1" sm="80" rank="0" gdr="1"><nvlink target="0:2" count="12" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0:4" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" speed="200000"/></nic>
      </pci>
    </pci>
    <nic><net name="veth1" speed="10000"/></nic>
  </cpu>
</system>
"""

MATRIX = """        \x1b[4mGPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity\x1b[0m
GPU0     X      NV4     NV4     NV4     PIX     0-31    0
GPU1    NV4      X      NV4     NV4     PXB     0-31    0
GPU2    NV4     NV4      X      NV4     SYS     32-63   1
GPU3    NV4     NV4     NV4      X      SYS     32-63   1
NIC0    PIX     PXB     SYS
"""

FLAGS = Given(sm=80, pcie_bandwidth="24 GB/s", cpu_vendor="intel", nic_bandwidth="200 Gb/s")


def test_a_whole_topology_file(tmp_path: Path) -> None:
    (tmp_path / "pair.xml").write_text(PAIR)
    imported = import_file(tmp_path / "pair.xml")
    topology = checked(imported, tmp_path / "pair.xml", nodes=2)
    assert (topology.world_size, topology.nics_per_node, topology.nic_bandwidth) == (4, 1, 25e9)
    assert (topology.pair_links(0, 1), topology.gpu.sm, topology.cpu.vendor) == (12, 80, "amd")
    assert topology.nic_path_type(0, 0) == "PIX"
    assert imported.notes == ["of 2 interfaces the 1 fastest that are devices are kept"]


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ('count="12"', 'count="3"', ":8:1 nvlink", "found 12 NVLinks from gpu0 to gpu1, but 3"),
        (' class="0x020700"', ' class="0x020700" extra="&bad;"', ":10:", "not well-formed|undefined entity"),
        ('link_width="0"', 'link_width="wide"', ":7:1 link_width", "found 'wide', expected lanes"),
        ('speed="200000"', 'speed="fast"', ":11:1 speed", "expected a number"),
        ('vendor="AuthenticAMD"', "", ":2:1 vendor", "give --cpu-vendor"),
        ('version="1"', 'version="2"', ":1:1 version", "expected 1"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path: Path, old: str, new: str, place: str, message: str) -> None:
    path = tmp_path / "pair.xml"
    path.write_text(PAIR.replace(old, new, 1))
    with pytest.raises(TopologyError, match=message) as error:
        import_file(path)
    assert place in str(error.value)


def test_a_partial_file_asks_for_flags_and_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "part.xml"
    devices = [f'<pci busid="0:{i}" class="{kind}"/>' for i, kind in enumerate(["0x030200"] * 4 + ["0x020700"] * 2)]
    path.write_text(f'<system version="1"><cpu arch="x86_64" vendor="GenuineIntel">{"".join(devices)}</cpu></system>')
    with pytest.raises(TopologyError) as error:
        import_file(path)
    for flag in ("--sm", "--nvlink-links", "--nic-bandwidth"):
        assert flag in str(error.value)
    topology = checked(import_file(path, Given(sm=90, nvlink_links=18, nic_bandwidth="400 Gb/s")), path)
    assert (topology.has_nvswitch, topology.nvlink_links, topology.nics_per_node) == (True, 18, 2)


def test_a_matrix_of_bundles(tmp_path: Path) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(MATRIX)
    imported = import_file(path, FLAGS)
    topology = checked(imported, path)
    assert (topology.pair_links(0, 3), topology.has_nvswitch) == (4, False)
    assert [topology.nic_path_type(g, 0) for g in range(4)] == ["PIX", "PXB", "SYS", "SYS"]
    assert imported.notes == ["line 6: the row of NIC0 is cut; the rows of the GPUs say enough"]


def test_a_matrix_of_a_switch_shows_every_link_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(MATRIX.replace("NV4 ", "NV12"))
    topology = checked(import_file(path, FLAGS), path)
    assert (topology.has_nvswitch, topology.nvlink_links) == (True, 12)


def test_a_matrix_asks_for_every_flag(tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text(MATRIX)
    with pytest.raises(TopologyError) as error:
        import_file(tmp_path / "smi.txt")
    for flag in ("--sm", "--pcie-bandwidth", "--cpu-vendor", "--nic-bandwidth"):
        assert flag in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MATRIX.replace("NV4     PXB     0-31    0", ""), "smi.txt:3:1 GPU1: found 3 of 5 cells"),
        (
            MATRIX.replace("GPU3    NV4     NV4     NV4      X      SYS     32-63   1\n", ""),
            "GPU3: the heading names it",
        ),
        (MATRIX.replace("X      NV4", "X      NV3", 1), "found NV3 from GPU0 to GPU1, but NV4"),
        ("hello\n", "found no matrix"),
    ],
)
def test_broken_matrices(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "smi.txt").write_text(text)
    with pytest.raises(TopologyError, match=message):
        import_file(tmp_path / "smi.txt", FLAGS)


# -- published files ---------------------------------

A100 = Given(sm=80, nvlink_links=12, nic_bandwidth="200 Gb/s")
LOADED = {  # file: flags; (ranks, NICs, NVLinks of a GPU, NVSwitch)
    "aws_p4d-24xl-topo.xml": (Given(nvlink_links=12, nic_bandwidth="100 Gb/s"), (8, 4, 12, True)),
    "azure_ncv4-topo.xml": (Given(), (4, 1, 0, False)),
    "azure_ndv2-topo.xml": (Given(70, 6, "cube_mesh", "100 Gb/s"), (8, 1, 6, False)),
    "azure_ndv4-topo.xml": (A100, (8, 8, 12, True)),
    "azurehpc_nc48v4-topo.xml": (Given(), (2, 1, 12, False)),
    "dump_a100pcie_x2_normal_nccl2.27.xml": (Given(), (2, 2, 12, False)),
    "dump_a6000_x4_pcie_veth.xml": (Given(), (4, 2, 0, False)),
    "dump_dgx1_v100.xml": (Given(), (8, 1, 6, False)),
    "dump_gb10_c2c.xml": (Given(), (1, 0, 0, False)),
    "dump_rtx3090_x4_pcie_devgap.xml": (Given(), (4, 1, 0, False)),
    "dump_rtx3090_x8_ib56.xml": (Given(), (8, 1, 0, False)),
    "dump_rtx4090_x4_calico.xml": (Given(), (4, 1, 0, False)),
    "oci_bm_gpu_b4_flattened.xml": (A100, (8, 8, 12, True)),
    "oci_h100_topology.xml": (Given(), (8, 16, 18, True)),
    "smi_a100_x8_nic10.txt": (FLAGS, (8, 10, 12, True)),
    "smi_a10_x4_sys.txt": (FLAGS, (4, 2, 0, False)),
    "smi_aws_g5.48xlarge.txt": (FLAGS, (8, 0, 0, False)),
    "smi_aws_g5.8xlarge.txt": (FLAGS, (1, 0, 0, False)),
    "smi_aws_p3.16xlarge.txt": (FLAGS, (8, 0, 6, False)),
    "smi_aws_p5.48xlarge.txt": (FLAGS, (8, 0, 18, True)),
    "smi_dgx1_v100_mlx5.txt": (FLAGS, (8, 4, 6, False)),
    "smi_gb200_x4.txt": (FLAGS, (4, 0, 18, True)),
    "smi_gke_a4_b200_x8_nic8.txt": (FLAGS, (8, 8, 18, True)),
    "smi_hgx_h100_x8_nic10_TRUNCATED.txt": (FLAGS, (8, 10, 18, True)),
    "smi_rtx4090_x5_mixed.txt": (FLAGS, (5, 0, 0, False)),
    "smi_rtx5090_x2_plus_p2p.txt": (FLAGS, (2, 0, 0, False)),
    "smi_threadripper_x2_phb.txt": (FLAGS, (2, 2, 0, False)),
    "smi_v100_2hosts_concat.txt": (FLAGS, (2, 4, 0, False)),
}
REFUSED = {
    "aws_g5.48xl-topo.xml": ":14:1 class: is missing",
    "azure_ncv4-graph.xml": "this is a graph file",
    "dump_a100pcie_x2_linkfault_BROKEN.xml": ":5:1 nvlink: found 1 NVLinks from gpu0 to gpu1, but 12",
    "dump_a100pcie_x4_TRUNCATED.xml": ":18:5: not well-formed",
    "dump_h100_x8_fragment_BROKEN.xml": ":9:6: not well-formed",
    "graph_dgx1_v100_dump.xml": "this is a graph file",
    "graph_msccl_2020_no_latency.xml": "this is a graph file",
    "rccl_mi250_16p1h.xml": ":11:1: this is the dialect of RCCL",
    "rccl_mi300x_8p_940.xml": ":7:1: this is the dialect of RCCL",
    "smi_dgxa100_x8_nic12_TRUNCATED.txt": ":6:1 GPU4: found 20 of 20 cells|GPU5: the heading names it",
}


@shared
@pytest.mark.parametrize("name", LOADED)
def test_published_files_load(name: str) -> None:
    given, expected = LOADED[name]
    topology = checked(import_file(SHARED / name, given), SHARED / name)
    found = (topology.world_size, topology.nics_per_node, topology.nvlink_links, topology.has_nvswitch)
    assert found == expected


@shared
@pytest.mark.parametrize("name", REFUSED)
def test_published_files_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(TopologyError, match=REFUSED[name]):
        import_file(SHARED / name, FLAGS)


@shared
def test_no_published_file_is_forgotten() -> None:
    assert {p.name for p in SHARED.iterdir()} - {"INDEX.csv"} == LOADED.keys() | REFUSED.keys()


TWO_SOCKETS = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="{model}">
    <pci busid="0:1" class="0x030200" link_speed="{speed}" link_width="16"><gpu dev="0" sm="80" rank="0"/></pci>
    <pci busid="0:3" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" port="1" speed="100000"/><net name="mlx5_1" port="2" speed="100000"/></nic>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="{model}">
    <pci busid="0:2" class="0x030200" link_speed="{speed}" link_width="16"><gpu dev="1" sm="80" rank="1"/></pci>
  </cpu>
</system>
"""


def _two_sockets(tmp_path: Path, model: int = 143, speed: str = "16.0 GT/s PCIe", nodes: int = 1) -> Topology:
    path = tmp_path / "two.xml"
    path.write_text(TWO_SOCKETS.format(model=model, speed=speed))
    return checked(import_file(path), path, nodes)


@pytest.mark.parametrize(
    ("model", "version", "gbps"),
    [  # src/graph/topo.h and topo.cc: Emerald Rapids, Sapphire Rapids, Ice Lake, Broadwell
        (207, (2, 26, 2), 40.0), (143, (2, 26, 2), 22.0), (106, (2, 26, 2), 10.0), (79, (2, 26, 2), 6.0),
        (207, (2, 24, 3), 10.0), (143, (2, 24, 3), 10.0), (79, (2, 24, 3), 6.0),
    ],
)  # fmt: skip
def test_the_processor_model_is_kept_and_rates_the_sockets(
    tmp_path: Path, model: int, version: tuple[int, int, int], gbps: float
) -> None:
    topology = _two_sockets(tmp_path, model)
    assert topology.cpu.model == f"family 6 model {model}"
    assert cpu_link_gbps(topology, version) == gbps
    if version >= (2, 26, 0):  # rings at the fastest speed of NCCL's table that 16 lanes and the sockets carry
        ring = discover(topology, version).ring
        assert ring.channels * ring.intra_gbps == {40.0: 24.0, 22.0: 20.0, 10.0: 10.0, 6.0: 6.0}[gbps]


def test_ports_of_one_device_are_nics_of_full_speed_that_share_its_link(tmp_path: Path) -> None:
    topology = _two_sockets(tmp_path, nodes=2)
    assert (topology.nics_per_node, topology.nic_bandwidth) == (2, 12.5e9)
    names = [topology.vertex_name[int(v)] for v in np.flatnonzero(topology.vertex_kind == VertexKind.CARD)]
    assert names == ["node0.card0", "node1.card0"]
    links = {
        (topology.vertex_name[int(a)], topology.vertex_name[int(b)]): float(rate)
        for a, b, rate in zip(topology.link_src, topology.link_dst, topology.link_bandwidth, strict=True)
    }
    assert {links["node0.card0", f"node0.nic{i}"] for i in range(2)} == {24e9}
    assert links["node0.cpu0", "node0.card0"] == 24e9
    assert topology.nic_path_type(0, 0) == topology.nic_path_type(0, 1) == "PHB"  # a card is no switch


@pytest.mark.parametrize(("speed", "said"), [("", "is empty"), ("Unknown speed", "is 'Unknown speed'")])
def test_a_link_speed_that_says_nothing_is_told(tmp_path: Path, speed: str, said: str) -> None:
    path = tmp_path / "two.xml"
    path.write_text(TWO_SOCKETS.format(model=143, speed=speed))
    (note,) = (note for note in import_file(path).notes if "link_speed" in note)
    assert note.startswith(f"line 3 and 1 more devices: link_speed {said}, so 8 GT/s a lane is taken")
    assert float(checked(import_file(path), path).link_bandwidth.min()) == 12e9  # 22e9 between the sockets


@pytest.mark.parametrize(
    ("vendor", "family", "model", "gbps"),
    [  # src/graph/topo.cc, kvDictCpuVendor and ncclTopoGetInterCpuBw: KH-50000 and older ones
        ("  Shanghai  ", 7, 91, 9.0),
        ("  Shanghai  ", 7, 59, 6.0),
        ("CentaurHauls", 7, 91, 9.0),
    ],
)
def test_zhaoxins_processors_are_no_intels(tmp_path: Path, vendor: str, family: int, model: int, gbps: float) -> None:
    path = tmp_path / "two.xml"
    text = TWO_SOCKETS.format(model=model, speed="16.0 GT/s PCIe").replace("GenuineIntel", vendor)
    path.write_text(text.replace('familyid="6"', f'familyid="{family}"'))
    topology = checked(import_file(path), path)
    assert topology.cpu.vendor == "zhaoxin"
    assert cpu_link_gbps(topology, (2, 26, 2)) == gbps
    assert discover(topology, (2, 26, 2)).ring.intra_gbps == {9.0: 9.0, 6.0: 6.0}[gbps]


def _links(topology: Topology) -> dict[tuple[str, str], tuple[str, float]]:
    """(kind, GB/s) of the links between vertices, by the names inside the first node."""
    names = [name.removeprefix("node0.") for name in topology.vertex_name]
    columns = (topology.link_src, topology.link_dst, topology.link_kind, topology.link_bandwidth)
    return {
        (names[int(a)], names[int(b)]): (LinkKind(int(kind)).name, float(rate) / 1e9)
        for a, b, kind, rate in zip(*columns, strict=True)
    }


def test_nvlinks_to_the_cpu_are_no_nvswitch(tmp_path: Path) -> None:
    # A half of a POWER9 node: two GPUs, three links between them, three of each to the processor.
    path = tmp_path / "power.xml"
    path.write_text(Node(70, 4, "ibm", 2, "1", "8x16", "power:3", "", "host").xml())
    topology = checked(import_file(path), path)
    links = _links(topology)
    assert not topology.has_nvswitch
    assert links["gpu0", "gpu1"] == ("NVLINK", 75.0)
    assert links["gpu0", "cpu0"] == ("C2C", 75.0)
    assert links["gpu0", "pcie0"] == ("PCIE", 12.0)


def test_a_superchip_keeps_the_pcie_to_a_switch_with_a_nic(tmp_path: Path) -> None:
    path = tmp_path / "chip.xml"
    path.write_text(Node(90, 2, "arm", 2, "1", "32x16", "c2c:450000:18", "2x400", "switch").xml())
    topology = checked(import_file(path, Given(network="infiniband")), path, 2)
    links = _links(topology)
    assert links["gpu1", "cpu1"] == ("C2C", 450.0)
    assert links["gpu1", "pcie1"] == ("PCIE", 48.0)
    assert topology.nic_path_type(1, 1) == "PIX"
