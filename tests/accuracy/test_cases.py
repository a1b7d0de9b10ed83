"""What a log does not say follows from its index row by one rule."""

from __future__ import annotations

import csv
import shutil
from datetime import date
from pathlib import Path

import pytest

from commsim.accuracy.cases import (
    CaseRow,
    case_of,
    environment,
    fabric_class,
    iterations_of,
    launch_of,
    load_cases,
    nic_apart,
)
from commsim.accuracy.machines import base_machine, full_node, network_kind, peer_to_peer, wire
from commsim.accuracy.releases import RELEASES, current_release, log_date, stated_version, version_of
from commsim.errors import LogFormatError, ScenarioError, TopologyError
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.tuner import ll128_enabled
from commsim.resources import data_root

ROW = {
    "slug": "new_h100_n4x8_all_reduce",
    "collective": "all_reduce",
    "n_ranks": "32",
    "n_nodes": "4",
    "gpus_per_node": "8",
    "gpu_model": "H100 80GB HBM3 SXM",
    "intra_link": "NVLink4/NVSwitch (HGX H100)",
    "inter_link": "8x NDR 400Gb/s InfiniBand (ConnectX-7)",
    "nccl_version": "2.26.2+cuda12.8",
    "env": "NCCL_IB_HCA=mlx5_0",
    "healthy": "yes",
    "source_url": "https://github.com/someone/logs/blob/main/x.log",
    "date": "2025-05-21",
}


def test_a_row_never_seen_becomes_a_machine(tmp_path: Path) -> None:
    case = case_of(ROW, tmp_path)
    topology = case.topology()
    assert (topology.nodes, topology.ranks_per_node, topology.nics_per_node) == (4, 8, 8)
    assert (topology.network, topology.nic_bandwidth) == ("infiniband", 50e9)
    assert (case.version, case.launch, case.env) == ((2, 26, 2), "process_per_gpu", {"NCCL_IB_HCA": "mlx5_0"})
    assert case.system == "someone:hgx-h100:infiniband"
    assert case.notes == ("launch not stated: taken as process_per_gpu",)
    assert (case.iterations, case_of(ROW | {"notes": "5 iters"}, tmp_path).iterations) == (20, 5)


def test_a_case_row_replaces_the_rule(tmp_path: Path) -> None:
    stated = CaseRow(slugs=["new_*"], system="mine", preset="dgx-a100-hdr200", launch="one_process", version="2.18.1")
    case = case_of(ROW, tmp_path, [stated])
    assert (case.system, case.launch, case.version) == ("mine", "one_process", (2, 18, 1))
    assert case.topology().gpu.generation == "ampere"


@pytest.mark.parametrize("gpu", ["MI300X", "AMD Instinct MI250", "Gaudi 3", "TPU v5p", "P100-SXM2", "Tesla K80"])
def test_an_unknown_gpu_is_a_reason_not_an_end(gpu: str, tmp_path: Path) -> None:
    case = case_of(ROW | {"gpu_model": gpu}, tmp_path)
    assert gpu in case.fault
    assert "add a case" in case.fault
    with pytest.raises(TopologyError, match=gpu):
        case.topology()


def test_a_broken_preset_is_the_fault_of_its_own_logs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data_root() / "topologies", tmp_path / "topologies")
    (tmp_path / "topologies" / "h800.yaml").write_text("node: [", encoding="utf-8")
    monkeypatch.setattr("commsim.topology.presets.data_root", lambda: tmp_path)
    full_node.cache_clear()
    try:
        assert case_of(ROW, tmp_path).fault == ""
        assert "h800.yaml" in case_of(ROW | {"gpu_model": "H800"}, tmp_path).fault
    finally:
        full_node.cache_clear()


def test_what_a_row_says_of_the_path_to_the_network_counts(tmp_path: Path) -> None:
    row = ROW | {"gpu_model": "A100 SXM4", "inter_link": "1x 100Gb/s RoCE, no GPUDirect RDMA"}
    assert case_of(row, tmp_path).machine["node"]["nic"]["attach"] == "host"  # type: ignore[index]
    sharp = case_of(ROW | {"inter_link": "8x NDR 400Gb/s InfiniBand, SHARP"}, tmp_path)
    assert sharp.topology().in_network_reduction
    assert sharp.env["NCCL_COLLNET_ENABLE"] == "1"
    assert not case_of(ROW, tmp_path).topology().in_network_reduction


@pytest.mark.parametrize(
    ("gpu", "intra", "per_node", "machine"),
    [
        ("H100 80GB HBM3 SXM", "NVSwitch, NVLink4 18 links, 450 GB/s per direction", 8, "hgx-h100"),
        ("A100-SXM4-80GB", "NVSwitch, NVLink3 12 links, 300 GB/s per direction (4 of 8 GPUs)", 4, "dgx-a100"),
        ("A100 40GB SXM", "NVLink3 all-to-all (4x A100, no NVSwitch)", 4, "hgx-a100-4"),
        ("A100-SXM4-40GB", "NVLink3 (4 GPUs, no switch)", 4, "hgx-a100-4"),
        ("H100 80GB HBM3 SXM", "NVLink4 (4x H100)", 4, "hgx-h100-4"),
        ("H100 80GB HBM3 SXM", "NVSwitch, NVLink4 (4x H100)", 4, "hgx-h100"),
        ("H100 80GB HBM3 SXM", "NVLink4 (8x H100)", 8, "hgx-h100"),
        ("A100-PCIE-40GB", "PCIe Gen4 across two sockets, no NVLink bridge", 4, "a100-pcie"),
        ("A100 80GB PCIe", "PCIe Gen4 + NVLink bridge pairs", 4, "a100-pcie-bridge"),
        ("V100 32GB SXM2 (DGX-1)", "NVLink2 hybrid cube mesh", 8, "dgx-1v"),
        ("V100 16GB SXM2", "NVLink2 all-to-all (4x V100)", 4, "v100-sxm2-4"),
        ("V100-SXM3-32GB", "NVSwitch (DGX-2), NVLink2 6 links", 12, "dgx-2"),
        ("GH200 120GB (4 per node)", "NVLink4 all-to-all (4x GH200)", 4, "gh200x4"),
        ("GB200 (4 GPUs per tray)", "NVLink5 NVL72 (MNNVL)", 4, "gb200-nvl72"),
        ("B200 SXM", "NVLink5/NVSwitch (HGX B200)", 8, "hgx-b200"),
        ("H20-3e SXM", "NVLink4/NVSwitch", 2, "h20"),
        ("GeForce RTX 2080 Ti", "PCIe Gen3", 8, "rtx2080ti"),
        ("NVIDIA H100 80GB HBM3", "", 8, "hgx-h100"),
        ("h100-sxm5", "nvswitch", 8, "hgx-h100"),
        ("NVIDIA H100 NVL", "NVLink bridge", 2, "h100-pcie-bridge"),
        ("H100-PCIE-80GB", "", 4, "h100-pcie-bridge"),
        ("H100-PCIE-80GB", "PCIe Gen5", 4, "h100-pcie"),
        ("H100-PCIE-80GB", "NVLink bridges", 8, "h100-nvl"),
        ("H100 PCIe 80GB", "", 8, "h100-pcie"),  # and not the board with NVSwitch, though that has eight as well
        ("H200 NVL", "", 8, "h100-nvl"),
        ("H100 80GB", "PCIe Gen5 x16, no NVLink", 8, "h100-pcie"),
        ("H100 80GB HBM3 SXM", "PCIe (NVLink off)", 8, "hgx-h100"),
        ("A100 80GB", "PCIe Gen4", 8, "a100-pcie"),
        ("A100 80GB", "NVSwitch; PCIe Gen4 to the host", 8, "dgx-a100"),
        ("A100-SXM4-40GB", "PCIe, no NVLink", 8, "dgx-a100"),
        ("A800", "PCIe/SHM (NCCL_P2P_DISABLE=1)", 8, "a800"),
        ("H100 PCIe", "PCIe Gen5, without NVLink bridges", 8, "h100-pcie"),
        ("H100 NVL", "PCIe, no NVLink", 8, "h100-pcie"),
        ("H200", "PCIe Gen5, no NVLink", 8, "h100-pcie"),
        ("H100", "NVSwitch; no NVLink between nodes", 8, "hgx-h100"),
        ("H100", "NVSwitch, no NVLink SHARP", 8, "hgx-h100"),
        ("A100", "NV12 mesh; no NVLink to host", 4, "hgx-a100-4"),
        ("A100", "SXM4, PCIe Gen4", 8, "dgx-a100"),
        ("H100", "HGX board, PCIe Gen5 to host", 8, "hgx-h100"),
        ("H100 80GB HBM3", "PCIe", 8, "hgx-h100"),
        ("NVIDIA DGX A100", "PCIe Gen4 switches", 8, "dgx-a100"),
        ("V100", "nv-link, PCIe", 8, "dgx-1v"),
        ("V100", "PCIe Gen3", 8, "v100-pcie-8"),
        ("V100", "PCIe, SHM", 8, "dgx-1v"),
        ("V100-PCIE-32GB", "", 8, "v100-pcie-8"),
        ("V100", "PCIe Gen3", 4, "v100-pcie"),
        ("NVIDIA H200", "NVSwitch", 8, "hgx-h200"),
        ("GB300", "NVL72", 4, "gb300-nvl72"),
        ("GB300 NVL72", "", 4, "gb300-nvl72"),
        ("B300 SXM", "NVSwitch", 8, "hgx-b300"),
        ("NVIDIA L40S", "PCIe Gen4 x16", 4, "rtx4090"),
        ("L4", "PCIe", 8, "rtx4090"),
        ("RTX 6000D (PCIe)", "PCIe, ConnectX-8 attached", 8, "rtx6000d"),
        ("RTX PRO 6000 Blackwell", "PCIe Gen5", 8, "rtx5090"),
        ("NVIDIA A10G", "PCIe", 4, "rtx3090"),
        ("A10", "PCIe", 2, "rtx3090"),
        ("NVIDIA RTX A6000", "PCIe", 4, "rtx3090"),
        ("Tesla T4", "PCIe", 4, "rtx2080ti"),
        ("Tesla V100-SXM2-32GB", "hybrid cube mesh", 8, "dgx-1v"),
        ("NVIDIA A100-SXM4-40GB", "", 8, "dgx-a100"),
    ],
)
def test_words_pick_a_machine(gpu: str, intra: str, per_node: int, machine: str) -> None:
    assert base_machine(gpu, intra, per_node) == machine


@pytest.mark.parametrize(
    ("inter", "gpus", "network", "nics", "gbps"),
    [
        ("4x HDR 200Gb/s InfiniBand (ABCI compute node A)", 8, "infiniband", 4, 200),
        ("32x 100Gb/s EFA (3200 Gb/s per node)", 8, "efa", 8, 400),
        ("4x 100Gb/s EFA (400 Gb/s per node)", 8, "efa", 4, 100),
        ("16x 100Gb/s RoCEv2 (1600 Gb/s per node)", 8, "roce", 16, 100),
        ("4x 200Gb/s HPE Slingshot 11 (Cassini)", 4, "slingshot", 4, 200),
        ("8x 200Gb/s Ethernet, GPUDirect-TCPXO (a3-megagpu)", 8, "tcpx", 8, 200),
        ("10GbE TCP sockets", 8, "ethernet", 1, 10),
        ("8x NDR InfiniBand", 8, "infiniband", 8, 400),
        ("not stated (1 NIC used)", 8, "infiniband", 1, 400),
        ("EFA 3200 Gbps", 8, "efa", 8, 400),
        ("3.2 Tb/s EFAv2", 8, "efa", 8, 400),
        ("AWS EFA (3200 Gb/s per node)", 8, "efa", 8, 400),
        ("8\u00d7400 Gbps RoCE v2", 8, "roce", 8, 400),
        ("8xNDR", 8, "infiniband", 8, 400),
        ("4xHDR200 InfiniBand", 8, "infiniband", 4, 200),
        ("8 NICs, NDR400", 8, "infiniband", 8, 400),
        ("ConnectX-7 x8 InfiniBand, 8 HCAs", 8, "infiniband", 8, 400),
        ("400G IB", 8, "infiniband", 8, 400),
        ("NDR InfiniBand, 50 GB/s per NIC", 8, "infiniband", 8, 400),
        ("8x 50 GB/s InfiniBand", 8, "infiniband", 8, 400),
        ("100GbE RoCE", 8, "roce", 8, 100),
        ("25GbE", 8, "ethernet", 1, 25),
        ("HDR-100", 4, "infiniband", 4, 100),
        ("Slingshot-11 200Gbps, 4 NICs", 4, "slingshot", 4, 200),
        ("dual-port 2x100G RoCE", 8, "roce", 2, 100),
        ("Slingshot-10 100Gb/s x2", 8, "slingshot", 2, 100),
        ("4x Cassini", 4, "slingshot", 4, 200),
        ("EDR InfiniBand x4 (400 Gb/s per node)", 8, "infiniband", 4, 100),
        ("400 Gb/s per node (4x HDR100)", 8, "infiniband", 4, 100),
        ("4x NDR, GPUs on PCIe Gen5 x16", 8, "infiniband", 4, 400),
        ("4 ConnectX-6, HDR", 8, "infiniband", 4, 200),
        ("NDR (NET/IB), 2 threads x 8 sockets", 4, "infiniband", 4, 400),
        ("400 Gb/s per node InfiniBand", 8, "infiniband", 1, 400),
        ("4x RoCE (800 Gb/s per node)", 8, "roce", 4, 200),
        ("RoCE 400 GB/s per node", 8, "roce", 8, 400),
        ("3200 Gb/s aggregate over 8 NICs, RoCE", 8, "roce", 8, 400),
        ("EFAv3 16x200", 8, "efa", 8, 400),
        ("32x EFA", 8, "efa", 8, 400),
        ("GPUDirect-TCPXO", 8, "tcpx", 8, 200),
        ("Omni-Path 100", 1, "infiniband", 1, 100),
        ("QDR InfiniBand", 1, "infiniband", 1, 40),
        ("100 Gbps ENA, TCP", 8, "ethernet", 1, 100),
        ("HDR InfiniBand, PCIe 4.0 x16", 8, "infiniband", 8, 200),
        ("ConnectX-7 PCIe5 x16", 8, "infiniband", 8, 400),
        ("HDR x16 (Gen4)", 8, "infiniband", 8, 200),
        ("PCIe Gen 5 ConnectX-7", 8, "infiniband", 8, 400),
        ("DGX A100 x 2, HDR", 8, "infiniband", 8, 200),
        ("100 Gb/s x2, RoCE", 8, "roce", 2, 100),
        ("1x EFA", 8, "efa", 1, 400),
        ("800 Gb/s injection bandwidth per node, InfiniBand", 8, "infiniband", 8, 100),
        ("per node: 1600 Gb/s IB", 8, "infiniband", 8, 200),
        ("400 Gb/s InfiniBand (per node)", 8, "infiniband", 1, 400),
        ("total 400 Gb/s RoCE", 8, "roce", 1, 400),
        ("400 Gb/s InfiniBand per NIC and 8 per node", 8, "infiniband", 8, 400),
        ("8x 400Gb/s RoCE (3.2 Tb/s per node)", 8, "roce", 8, 400),
        ("Slingshot-10", 4, "slingshot", 4, 100),
        ("A100 80GB, HDR", 8, "infiniband", 8, 200),
        ("IB", 8, "infiniband", 8, 400),
        ("", 8, "infiniband", 8, 400),
    ],
)
def test_words_become_a_network(inter: str, gpus: int, network: str, nics: int, gbps: int) -> None:
    found = wire(inter, "", gpus, "hopper")
    assert (found.network, found.nics, found.bandwidth) == (network, nics, gbps * 1e9 / 8)


@pytest.mark.parametrize(
    ("gpu", "per_node", "inter", "preset"),
    [
        ("A100 SXM4 40GB", 4, "4x 200Gb/s Slingshot 11", "hgx-a100-4"),
        ("H100 SXM", 4, "HPE Slingshot", "hgx-h100-4"),
        ("H100 SXM", 8, "HPE Slingshot", "hgx-h100"),
        ("A100 SXM, 4 of 8 on an NVSwitch", 4, "HPE Slingshot", "hgx-a100-4"),
        ("H100 SXM", 4, "4x NDR InfiniBand", "hgx-h100"),
    ],
)
def test_boards_of_machines_with_slingshot_hold_four_gpus(
    gpu: str, per_node: int, inter: str, preset: str, tmp_path: Path
) -> None:
    row = ROW | {"gpu_model": gpu, "intra_link": "NVLink", "n_nodes": "2", "gpus_per_node": str(per_node)}
    case = case_of(row | {"n_ranks": str(2 * per_node), "inter_link": inter}, tmp_path)
    assert case.machine["preset"] == preset


@pytest.mark.parametrize(
    ("inter", "gpu", "board", "generation", "network", "nics", "gbps"),
    [
        # 80 is the memory of a card in a machine's name, no rate
        ("InfiniBand (h100-80gb-sxm-ib.8x)", "H100", "hgx-h100", "hopper", "infiniband", 8, 400),
        ("100Gb RoCE", "H100", "hgx-h100", "hopper", "roce", 8, 100),
        ("RoCE", "GB300", "gb300-nvl72", "blackwell", "roce", 8, 800),
        ("8x InfiniBand", "B300", "hgx-b300", "blackwell", "infiniband", 8, 800),
        ("8x 400G InfiniBand", "B300", "hgx-b300", "blackwell", "infiniband", 8, 400),
        ("1x EFA (g4dn.8xlarge)", "T4", "", "turing", "efa_v1", 1, 50),
        ("1x EFA", "T4 (g4dn.metal)", "", "turing", "efa_v1", 1, 100),
        ("TCP sockets", "A10G, g5.8xlarge", "", "ampere", "ethernet", 1, 25),
        ("EFA", "L40S (g6e.48xlarge)", "", "ada", "efa", 4, 100),
        ("EFA 100 Gb/s", "L40S (g6e.48xlarge)", "", "ada", "efa", 4, 100),
        ("EFA 400 Gb/s", "L40S (g6e.48xlarge)", "", "ada", "efa", 1, 400),
        ("2x EFA", "L40S (g6e.24xlarge)", "", "ada", "efa", 2, 100),
        ("8x EFA", "B300", "hgx-b300", "blackwell", "efa", 8, 800),
        ("ENA", "V100 (p3.16xlarge)", "", "volta", "ethernet", 1, 25),
        ("up to 10 Gb/s, p3.2xlarge", "V100", "", "volta", "ethernet", 1, 10),
        ("InfiniBand", "H100; head node g4dn.xlarge", "hgx-h100", "hopper", "infiniband", 8, 400),
        ("CX7-200Gb/s RoCE", "H100", "", "hopper", "roce", 8, 200),
        ("100-200 Gb/s InfiniBand", "H100", "", "hopper", "infiniband", 8, 200),
        ("InfiniBand (h100-80g)", "H100", "", "hopper", "infiniband", 8, 400),
        ("IB, 80gb-h100 nodes", "H100", "", "hopper", "infiniband", 8, 400),
        ("IB (a100_80gb)", "A100", "", "ampere", "infiniband", 8, 200),
        ("IB l40s_48gb", "L40S", "", "ada", "infiniband", 8, 200),
    ],
)
def test_machines_of_known_rates(
    inter: str, gpu: str, board: str, generation: str, network: str, nics: int, gbps: int
) -> None:
    found = wire(inter, "", 8, generation, board=board, gpu_model=gpu)
    assert (found.network, found.nics, found.bandwidth) == (network, nics, gbps * 1e9 / 8)


def test_who_measures_several_nodes_starts_a_process_per_gpu_on_one_too(tmp_path: Path) -> None:
    columns = "slug,collective,n_ranks,n_nodes,gpus_per_node,gpu_model,intra_link,source_url\n"
    rows = [
        "alone,all_reduce,8,1,8,H100 SXM,NVSwitch,https://example.org/a",
        "one,all_reduce,8,1,8,H100 SXM,NVSwitch,https://example.org/b#one",
        "two,all_reduce,16,2,8,H100 SXM,NVSwitch,https://example.org/b#two",
        "blank,all_reduce,8,1,8,H100 SXM,NVSwitch,",
        "blank_2,all_reduce,16,2,8,H100 SXM,NVSwitch,",
    ]
    (tmp_path / "INDEX_x.csv").write_text(columns + "\n".join(rows) + "\n")
    launch = {case.slug: case.launch for case in load_cases([tmp_path])}
    assert [slug for slug, how in launch.items() if how == "one_process"] == ["alone", "blank"]


@pytest.mark.parametrize(
    ("inter", "notes", "through"),
    [
        ("1x HDR InfiniBand", "GPU and NIC on different PCIe roots; one CSV", True),
        ("1x HDR InfiniBand", "NIC is attached to another socket than the GPU", True),
        ("1x ConnectX-6 on the other NUMA domain than its GPU", "", True),
        ("8x NDR InfiniBand, GPUs and HCAs on separate NUMA nodes", "", True),
        ("8x NDR InfiniBand, no GPUDirect", "", True),
        ("8x NDR InfiniBand", "GPU and NIC are not on different PCIe roots", False),
        ("8x NDR InfiniBand", "NICs on different sockets, each beside its GPUs", False),
        ("8x NDR InfiniBand", "broadcast over all GPUs with another root than the NIC test", False),
        ("8x NDR InfiniBand", "2 GPUs on different sockets, one HDR NIC", False),
        ("8x NDR InfiniBand", "GPUs run on different NUMA nodes with numactl", False),
        ("8x NDR InfiniBand, NICs beside their GPU", "runs on different nodes", False),
    ],
)
def test_a_nic_on_another_root_is_behind_the_host(inter: str, notes: str, through: bool) -> None:
    row = {"inter_link": inter, "notes": notes}
    assert wire(inter, "", 8, "ampere", apart=nic_apart(row)).through_host is through
    assert [nic_apart(row | {"nic_apart": said}) for said in ("yes", "no", "n/a")] == [True, False, nic_apart(row)]


def test_a_nic_on_another_root_forbids_ll128(tmp_path: Path) -> None:
    # NCCL trusts 128-byte stores as far as a switch (src/graph/tuning.cc); a published pair of nodes changes from LL to
    # Simple at 452 kB, where NCCL 2.16's figures for 24 GB/s cross.
    row = ROW | {"gpu_model": "A100 PCIe", "intra_link": "", "n_nodes": "2", "gpus_per_node": "1", "n_ranks": "2"}
    row |= {"inter_link": "1x HDR InfiniBand", "env": "NCCL_NET_GDR_LEVEL=SYS", "nccl_version": "2.16.5"}
    for notes, ll128 in (("", True), ("GPU and NIC on different PCIe roots", False)):
        case = case_of(row | {"notes": notes}, tmp_path)
        model = Predictor(case.topology(), Options(case.version, case.env))
        assert ll128_enabled(model.system, (2, 16, 5)) is ll128
        assert model.machine.through_host is not ll128


def test_efa_of_old_gpus_is_its_first_generation() -> None:
    assert [wire("4x 100Gb/s EFA", "", 8, g).network for g in ("volta", "ampere", "hopper")] == [
        "efa_v1",
        "efa_v1",
        "efa",
    ]


@pytest.mark.parametrize(
    ("words", "generation", "gpus", "nics"),
    [
        ("EFA", "ampere", 8, 4),
        ("EFA 100 Gb/s", "ampere", 8, 4),
        ("400 Gb/s EFA", "ampere", 8, 4),
        ("EFA", "volta", 8, 1),
        ("EFA", "ampere", 1, 1),
        ("2x EFA", "ampere", 8, 2),
    ],
)
def test_devices_of_old_efa(words: str, generation: str, gpus: int, nics: int) -> None:
    found = wire(words, "", gpus, generation)
    assert (found.network, found.nics, found.bandwidth) == ("efa_v1", nics, 12.5e9)


def test_the_environment_can_turn_a_network_to_tcp() -> None:
    assert network_kind("8x NDR 400Gb/s InfiniBand", "NCCL_IB_DISABLE=1") == "ethernet"
    assert network_kind("2x 200Gb/s HPE Slingshot 11", "default (TCP sockets, no plugin)") == "ethernet"


@pytest.mark.parametrize(
    ("words", "network"),
    [
        ("1x HDR InfiniBand, GPU and NIC on different sockets", "infiniband"),
        ("8x NDR InfiniBand, NICs spread over sockets", "infiniband"),
        ("100 Gb/s (sockets)", "ethernet"),
        ("InfiniBand HDR (IPoIB sockets)", "ethernet"),
        ("plain sockets", "ethernet"),
    ],
)
def test_sockets_of_hosts_are_no_network(words: str, network: str) -> None:
    assert network_kind(words) == network


@pytest.mark.parametrize(
    ("words", "nics", "rate"),
    [
        ("1 RDMA NIC per node, 100 Gb/s RoCE", 1, 100),
        ("1 SR-IOV VF of a RoCE NIC, 200 Gb/s", 1, 200),
        ("ConnectX-7 Ethernet NIC, RoCE", 8, 400),  # seven is no number of NICs
        ("Ethernet", 1, 25),
    ],
)
def test_numbers_of_nics_and_rates(words: str, nics: int, rate: int) -> None:
    found = wire(words, "", 8, "hopper")
    assert (found.nics, found.bandwidth) == (nics, rate * 1e9 / 8)


@pytest.mark.parametrize(
    ("words", "peers"),
    [
        ("PCIe Gen4, no GPU P2P (GeForce): host shared memory", False),
        ("PCIe, P2P-patched driver", True),
        ("PCIe Gen4 x16, P2P enabled by a modified driver", True),
        ("PCIe, P2P between GPUs is possible only with a modified driver (not installed)", False),
        ("PCIe, P2P over BAR1 (patched driver)", True),
        ("PCIe Gen3 behind one switch, P2P disabled by driver", False),
        ("PCIe Gen3, dual socket, P2P state not stated", None),
        ("PCIe, P2P between GPUs is disabled", False),
        ("PCIe, P2P over BAR1 disabled", False),
        ("PCIe; P2P: disabled", False),
        ("PCIe (P2P was disabled)", False),
        ("PCIe, no NVLink or P2P", False),
        ("PCIe, P2P not supported", False),
        ("PCIe, peer-to-peer enabled", True),
        ("PCIe, no P2P problems", None),
        ("PCIe, P2P not disabled", None),
        ("NVLink P2P between GPUs", None),
        ("NVSwitch", None),
    ],
)
def test_words_for_peer_to_peer(tmp_path: Path, words: str, peers: bool | None) -> None:
    row = ROW | {"gpu_model": "RTX 4090", "intra_link": words, "n_nodes": "1", "gpus_per_node": "8", "n_ranks": "8"}
    topology = case_of(row, tmp_path).topology()
    assert peer_to_peer(words) is peers
    assert topology.gpu.peer_to_peer is bool(peers)  # a GeForce's driver denies it unless somebody says otherwise


@pytest.mark.parametrize(
    ("words", "env", "level"),
    [
        ("PCIe, P2P-patched driver", "", "SYS"),
        ("PCIe, P2P over BAR1 (patched driver)", "NCCL_P2P_LEVEL=PHB", "PHB"),
        ("PCIe, P2P between GPUs", "", None),  # they could; nobody says that NCCL was told to
        ("PCIe, P2P driver disabled", "", None),
    ],
)
def test_a_patched_driver_is_there_to_be_used(tmp_path: Path, words: str, env: str, level: str | None) -> None:
    row = ROW | {"gpu_model": "RTX 4090", "intra_link": words, "env": env}
    assert case_of(row, tmp_path).env.get("NCCL_P2P_LEVEL") == level


def test_a_node_without_shared_memory_falls_apart_at_an_intel_host(tmp_path: Path) -> None:
    row = ROW | {"gpu_model": "A100 PCIe", "intra_link": "PCIe", "inter_link": "8x 200Gb/s HDR InfiniBand"}
    row |= {"n_nodes": "2", "gpus_per_node": "8", "n_ranks": "16", "env": "NCCL_SHM_DISABLE=1"}
    topology = case_of(row, tmp_path).topology()
    assert (topology.nodes, topology.ranks_per_node) == (4, 4)  # four GPUs below the switch of each socket


def test_parts_of_a_node_share_its_nics(tmp_path: Path) -> None:
    row = ROW | {"gpu_model": "A100 SXM", "intra_link": "NVSwitch", "inter_link": "1x 100Gb/s RoCE"}
    row |= {"n_nodes": "2", "gpus_per_node": "8", "n_ranks": "16"}
    topology = case_of(row | {"env": "NCCL_SHM_DISABLE=1 NCCL_P2P_DISABLE=1"}, tmp_path).topology()
    assert (topology.nodes, topology.nics_per_node) == (16, 1)
    assert topology.nic_bandwidth == pytest.approx(12.5e9 / 8)


def test_trays_of_a_rack_are_one_node(tmp_path: Path) -> None:
    row = ROW | {"gpu_model": "GB200", "intra_link": "NVL72", "n_nodes": "18", "gpus_per_node": "4", "n_ranks": "72"}
    topology = case_of(row, tmp_path).topology()
    assert (topology.nodes, topology.ranks_per_node) == (1, 72)


@pytest.mark.parametrize(
    ("intra", "inter", "shape"),
    [
        ("NVLink 5 (GB200 NVL72)", "4x 400Gb/s RoCE", (2, 4)),  # another network is named, and NVLink is not
        ("NVLink 5 (GB200 NVL72)", "NVLink 5 between the nodes; 4x 400Gb/s RoCE also present", (1, 8)),
        ("NVL72 (MNNVL)", "4x 400Gb/s NDR InfiniBand per tray", (1, 8)),
        ("NVL72 (MNNVL)", "4x 400Gb/s RoCE, nodes of different NVLink domains", (2, 4)),
        ("NVL72", "", (1, 8)),
        ("NVL72", "4x 400Gb/s RoCE, no NVLink between nodes", (2, 4)),
        ("NVL72", "MNNVL disabled; 4x 400Gb/s RoCE", (2, 4)),
        ("NVL72", "4x 400 Gb/s ConnectX-7", (2, 4)),
        ("NVL72", "2x 400 Gb/s ConnectX-7", (2, 4)),
    ],
)
def test_trays_are_nodes_where_nvlink_does_not_join_them(
    tmp_path: Path, intra: str, inter: str, shape: tuple[int, int]
) -> None:
    row = ROW | {"gpu_model": "GB200", "n_nodes": "2", "gpus_per_node": "4", "n_ranks": "8"}
    topology = case_of(row | {"intra_link": intra, "inter_link": inter}, tmp_path).topology()
    assert (topology.nodes, topology.ranks_per_node) == shape
    if topology.nodes > 1:  # a NIC for each GPU of a tray, or as many as the row says
        assert (topology.nics_per_node, topology.nic_bandwidth) == (2 if inter.startswith("2x") else 4, 50e9)


@pytest.mark.parametrize(
    ("gpu", "env", "shape"),
    [
        ("RTX 6000D (PCIe)", "NCCL_SHM_DISABLE=1 NCCL_P2P_LEVEL=PHB", (4, 4)),  # two sockets a node
        ("RTX 6000D (PCIe)", "NCCL_SHM_DISABLE=1 NCCL_P2P_LEVEL=SYS", (2, 8)),
        ("RTX 6000D (PCIe)", "NCCL_SHM_DISABLE=1 NCCL_P2P_LEVEL=GPUDirect", (16, 1)),  # no level, so as if not stated
        ("RTX 6000D (PCIe)", "NCCL_P2P_LEVEL=PHB", (2, 8)),
        ("RTX 6000D (PCIe)", "NCCL_SHM_DISABLE=1 NCCL_P2P_DISABLE=1", (16, 1)),
        ("RTX 6000D (PCIe)", "NCCL_SHM_DISABLE=1", (16, 1)),  # each is below a switch of its own
        ("RTX 6000D (PCIe)", "NCCL_SHM_DISABLE=0 NCCL_P2P_DISABLE=1", (2, 8)),
        ("A100 SXM", "NCCL_SHM_DISABLE=1 NCCL_P2P_LEVEL=NVL", (2, 8)),
    ],
)
def test_gpus_that_may_not_talk_are_nodes_apart(tmp_path: Path, gpu: str, env: str, shape: tuple[int, int]) -> None:
    row = ROW | {"gpu_model": gpu, "intra_link": "ConnectX-8 attached", "inter_link": "8x 400Gb/s RoCE", "env": env}
    case = case_of(row | {"n_nodes": "2", "gpus_per_node": "8", "n_ranks": "16"}, tmp_path)
    topology = case.topology()
    assert (topology.nodes, topology.ranks_per_node) == shape
    assert topology.nics_per_node == 8  # those of the other part are there too, but far
    assert any("keeps GPUs" in note for note in case.notes) == (shape != (2, 8))


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("(defaults)", {}),
        ("NCCL_ALGO=Ring NCCL_PROTO=Simple", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}),
        ('NCCL_NET="AWS Libfabric" FI_X=1; aws-ofi-nccl 1.9.2', {"NCCL_NET": "AWS Libfabric"}),
        ("NCCL_TREE_THRESHOLD=0 (ring forced)", {"NCCL_ALGO": "Ring"}),
        ("NCCL_NET_GDR_LEVEL=GPUDirect RDMA off", {}),
        (
            "NCCL_ALGO=allreduce:Tree, NCCL_BUFFSIZE=8388608;",
            {"NCCL_ALGO": "allreduce:Tree", "NCCL_BUFFSIZE": "8388608"},
        ),
    ],
)
def test_environment_of_words(text: str, variables: dict[str, str]) -> None:
    assert environment(text) == variables


@pytest.mark.parametrize(
    ("row", "launch"),
    [
        ({"launch": "one_process", "notes": "srun"}, "one_process"),
        ({"notes": "single process -g 8"}, "one_process"),
        ({"notes": "8 threads x 1 GPU", "n_nodes": "1"}, "process_per_gpu"),  # which launch side by side
        ({"notes": "single process, -t 8 -g 1", "n_nodes": "1"}, "process_per_gpu"),
        ({"notes": "single process, -t 1 -g 8"}, "one_process"),
        ({"notes": "one process per GPU (srun)"}, "process_per_gpu"),
        ({"notes": "mpirun -np 8", "n_nodes": "1", "n_ranks": "8", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "mpirun -np 16 -g 1", "n_nodes": "2", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "mpiexec -n 2", "n_nodes": "2", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "all_reduce_perf -n 8", "n_nodes": "1", "gpus_per_node": "8"}, "one_process"),  # 8 iterations
        ({"notes": "srun, one process per node", "n_nodes": "2", "gpus_per_node": "4"}, "one_process"),
        ({"notes": "srun, one process per node", "n_nodes": "2", "gpus_per_node": "1"}, "process_per_gpu"),
        ({"notes": "one rank per process", "n_nodes": "1", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "8 GPU per process", "n_nodes": "1", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "8 processes per node", "n_nodes": "1", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "2 processes per node, -g 4", "n_nodes": "2", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "mpirun -np 2 to -np 8", "n_nodes": "1", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "mpirun -np 2 to -np 8", "n_nodes": "2", "n_ranks": "16", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "MPIJob", "n_nodes": "1", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "MPIJob, -g 8", "n_nodes": "1", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "MPIJob yaml in repo; ./all_reduce_perf -g8", "n_nodes": "1", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "no mpirun, plain binary", "n_nodes": "1", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "later also with mpirun over 2 nodes", "n_nodes": "1", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "OpenMPI mpirun available", "n_nodes": "1", "gpus_per_node": "8"}, "one_process"),
        ({"notes": "# nThread 8 nGpus 1", "n_nodes": "1", "gpus_per_node": "8"}, "process_per_gpu"),
        ({"notes": "# nThread 1 nGpus 8", "n_nodes": "2", "gpus_per_node": "8"}, "one_process"),
        ({"n_nodes": "1", "inter_link": ""}, "one_process"),
        ({"n_nodes": "1", "inter_link": "4x HDR"}, "process_per_gpu"),
        ({"n_nodes": "2", "inter_link": "4x HDR"}, "process_per_gpu"),
    ],
)
def test_launch_of_a_row(row: dict[str, str], launch: str) -> None:
    assert launch_of(row)[0] == launch


@pytest.mark.parametrize(
    ("row", "iterations"),
    [
        ({"notes": "2 warmups + 5 iterations, 8 threads x 1 GPU"}, 5),
        ({"env": "NCCL_BUFFSIZE=8388608; 100 iters", "notes": "full sweep"}, 100),
        ({"iterations": "24.0", "notes": "5 iters"}, 24),
        ({"iterations": "1e9", "notes": "5 iters"}, 5),
        ({"iterations": "-5"}, None),
        ({"notes": "0 iters, version 1.20 iters"}, None),
        ({"notes": "warmup 5 iters, 100 iters"}, 100),
        ({"notes": "20 iterations of warmup"}, None),
        ({"notes": "1,000 iters at 100 iters/s"}, None),
        ({}, None),
    ],
)
def test_iterations_of_a_row(row: dict[str, str], iterations: int | None) -> None:
    assert iterations_of(row) == iterations


@pytest.mark.parametrize(
    ("more", "protocol"),
    [
        ({"date": "2023-05-01"}, "Simple"),
        ({"date": "2022-06-11"}, None),  # before aws-ofi-nccl 1.6.0
        ({"date": "2023-05-01", "env": "NCCL_PROTO=LL128"}, "LL128"),
        ({"date": "2023-05-01", "gpu_model": "H100 80GB HBM3 SXM", "inter_link": "32x 100Gb/s EFA"}, None),
        ({"date": "2023-05-01", "inter_link": "8x HDR InfiniBand"}, None),
        ({"date": "2023-05-01", "n_nodes": "1", "n_ranks": "8"}, None),
    ],
)
def test_the_plugin_of_old_efa_allows_simple_only(more: dict[str, str], protocol: str | None, tmp_path: Path) -> None:
    row = ROW | {"gpu_model": "A100 40GB SXM", "intra_link": "NVSwitch", "inter_link": "4x 100Gb/s EFA", "env": ""}
    assert case_of(row | more, tmp_path).env.get("NCCL_PROTO") == protocol


TCPXO = {"NCCL_MIN_NCHANNELS": "4", "NCCL_BUFFSIZE": "8388608", "NCCL_NVLS_ENABLE": "0"}
TREE_CHUNK = {"NCCL_NVLSTREE_MAX_CHUNKSIZE": "524288"}
CHUNKS = TREE_CHUNK | {"NCCL_NVLS_CHUNKSIZE": "524288"}
OFI = CHUNKS | {"NCCL_BUFFSIZE": "8388608"}
TUNER = {"NCCL_TUNER_PLUGIN": "libnccl-ofi-tuner.so"}
BESIDE = {"NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX"}


@pytest.mark.parametrize(
    ("more", "env"),
    [
        (
            {"inter_link": "8x 200Gb/s Ethernet, GPUDirect-TCPXO", "date": "2024-10-01"},
            {"NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple"} | TCPXO | BESIDE,
        ),
        (
            {"inter_link": "8x 200Gb/s, FasTrak", "date": "2026-04-16"},
            {"NCCL_PROTO": "Simple,LL128"} | TCPXO | BESIDE,
        ),
        (
            {"inter_link": "8x 200Gb/s, GPUDirect-TCPXO", "date": "2026", "env": "NCCL_BUFFSIZE=4194304"},
            {"NCCL_PROTO": "Simple,LL128"} | TCPXO | BESIDE | {"NCCL_BUFFSIZE": "4194304"},
        ),
        (  # without a date the plugin is as old as NCCL, and that as the release a scenario assumes
            {"inter_link": "8x 200Gb/s, GPUDirect-TCPXO", "date": "", "nccl_version": ""},
            {"NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple"} | TCPXO | BESIDE,
        ),
        (
            {"inter_link": "8x 200Gb/s, GPUDirect-TCPXO", "date": "", "nccl_version": "2.28.3"},
            {"NCCL_PROTO": "Simple,LL128"} | TCPXO | BESIDE,
        ),
        (
            {"inter_link": "4x 200Gb/s, GPUDirect-TCPX"},
            {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
            | BESIDE,
        ),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2025-06-01"}, OFI | TUNER),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2026-01-01", "n_nodes": "3", "n_ranks": "24"}, OFI | TUNER),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2026-01-01", "n_nodes": "2", "n_ranks": "16"}, OFI),
        ({"inter_link": "32x 100Gb/s EFA", "date": "", "n_nodes": "2", "n_ranks": "16"}, CHUNKS),
        ({"inter_link": "32x 100Gb/s EFA", "date": "", "nccl_version": "2.19.3"}, {}),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2025-05-31"}, CHUNKS),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2024-08-01"}, CHUNKS),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2024-07-31"}, TREE_CHUNK),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2024-04-01"}, TREE_CHUNK),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2024-03-31"}, {}),
        ({"gpu_model": "H100 (p5.48xlarge)", "inter_link": "TCP sockets", "date": ""}, {}),
        ({"inter_link": "32x 100Gb/s EFA", "date": "2026", "n_nodes": "1", "n_ranks": "8"}, OFI),
        ({"gpu_model": "H100 (p5.48xlarge)", "inter_link": "", "date": "2026", "n_nodes": "1", "n_ranks": "8"}, OFI),
        ({"gpu_model": "A100 (p4d.24xlarge)", "inter_link": "", "date": "", "n_nodes": "1", "n_ranks": "8"}, {}),
        ({"inter_link": "8x 400Gb/s RoCE (gib)"}, {"NCCL_NVLS_CHUNKSIZE": "524288"}),
        (
            {"inter_link": "", "env": "NCCL_NET=gIB", "n_nodes": "1", "n_ranks": "8"},
            {"NCCL_NVLS_CHUNKSIZE": "524288", "NCCL_NET": "gIB"},
        ),
        ({"inter_link": "8x 200Gb/s, GPUDirect-TCPXO", "n_nodes": "1", "n_ranks": "8"}, {}),
        ({}, {}),
    ],
)
def test_what_plugins_of_clouds_set(more: dict[str, str], env: dict[str, str], tmp_path: Path) -> None:
    case = case_of(ROW | {"env": ""} | more, tmp_path)
    assert case.env == env
    assert any("not stated, as" in note for note in case.notes) == bool(env)


@pytest.mark.parametrize(
    ("sharp", "words", "asked"), [(True, "", "1"), (False, ", SHARP", None), (None, ", SHARP", "1")]
)
def test_a_case_can_say_that_the_network_reduces(
    sharp: bool | None, words: str, asked: str | None, tmp_path: Path
) -> None:
    row = ROW | {"inter_link": ROW["inter_link"] + words}
    case = case_of(row, tmp_path, [CaseRow(slugs=["new_*"], sharp=sharp)])
    assert case.env.get("NCCL_COLLNET_ENABLE") == asked
    assert case.topology().in_network_reduction == (asked is not None)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("March 2024", date(2024, 3, 1)),
        ("Mar 5, 2024 (blog)", date(2024, 3, 5)),
        ("2024/05/06", date(2024, 5, 6)),
        ("06.05.2024", date(2024, 5, 6)),
        ("20240506_1200", date(2024, 5, 6)),
        ("20240506", date(2024, 5, 6)),
        ("2024_05_06", date(2024, 5, 6)),
        ("6 May 2024", date(2024, 5, 6)),
        ("March 5th, 2024", date(2024, 3, 5)),
        ("Mar-2024", date(2024, 3, 1)),
        ("Marketing 2024", date(2024, 7, 1)),
        ("2023-24", date(2023, 7, 1)),
        ("2023, read 2024-05-06", date(2023, 7, 1)),
        ("2026-05-05 (repo HEAD)", date(2026, 5, 5)),
        ("2025-02..2025-04", date(2025, 2, 1)),
        ("2019-2021", date(2019, 7, 1)),
        ("2020 (approx.)", date(2020, 7, 1)),
        ("unknown", None),
        ("2025-13-40", None),
    ],
)
def test_date_of_a_log(text: str, day: date | None) -> None:
    assert log_date(text) == day


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.22.3+cuda12.6 (from NCCL_HOME)", (2, 22, 3)),
        ("2.18 (directory name)", (2, 18, 0)),
        ("v2.26.2-1", (2, 26, 2)),
        ("NCCL version 2.21.5+cuda12.4", (2, 21, 5)),
        ("nccl_2_19_3", (2, 19, 3)),
        ("22703", (2, 27, 3)),
        ("2.20.5 (PyTorch 2.3.0)", (2, 20, 5)),
        ("PyTorch 2.3.0", None),
        ("pytorch:24.03-py3", None),
        ("12.8", None),
        ("(NCCL of the authors' tree, not stated)", None),
        ("", None),
    ],
)
def test_stated_version(text: str, version: tuple[int, int, int] | None) -> None:
    assert stated_version(text) == version


def test_blank_version_is_the_release_of_the_day() -> None:
    assert version_of("", "2023-06-21") == ((2, 18, 3), "version not stated: the release current on 2023-06-21")
    assert version_of("", "")[0] is None
    assert current_release(date(2000, 1, 1)) == RELEASES[0][1]


@pytest.mark.parametrize(
    ("text", "notes", "version"),
    [
        ("PyTorch 2.3.1", "", (2, 20, 5)),
        ("", "torch==2.7.0+cu128 in a pod", (2, 26, 2)),
        ("torch 1.9", "", (2, 22, 3)),  # not in the table: by the date
        ("", "nvcr.io/nvidia/pytorch:23.10-py3; GPUs 0 and 1", (2, 19, 3)),
        ("NGC 24.03", "", (2, 20, 5)),
        ("", "h100-24.12-py3", (2, 23, 4)),
        ("PyTorch (2.3.0)", "", (2, 20, 5)),
        ("pytorch_2.9", "", (2, 27, 5)),
        ("torch>=2.3", "", (2, 20, 5)),
        ("NGC PyTorch 24.03", "", (2, 20, 5)),
        ("PyTorch 2.6", "pytorch:23.10-py3", (2, 21, 5)),
        ("2.21.5", "pytorch:23.10-py3", (2, 21, 5)),
        ("", "Ubuntu 22.04, kernel 24.11", (2, 22, 3)),
    ],
)
def test_a_version_that_pytorch_or_a_container_brings(text: str, notes: str, version: tuple[int, int, int]) -> None:
    found, note = version_of(text, "2024", notes)
    assert found == version
    assert bool(note) == (text != "2.21.5")


def test_a_version_in_the_notes() -> None:
    assert version_of("", "2024", "PyTorch 2.3 with NCCL 2.18.5") == ((2, 18, 5), "")
    assert version_of("", "2024", "an issue in NCCL before 2.27")[0] == (2, 22, 3)


def test_releases_ascend() -> None:
    assert list(RELEASES) == sorted(RELEASES)
    assert [v for _, v in RELEASES] == sorted(v for _, v in RELEASES)


def test_fabric_classes() -> None:
    assert fabric_class("none", 1) == "one node"
    assert fabric_class("roce", 2) == "IB/RoCE"
    assert fabric_class("efa", 2) == "Slingshot/EFA/cloud plugin"


def test_every_log_of_the_project_has_a_machine_of_its_ranks(checkout: Path) -> None:
    cases = load_cases([checkout / "validation" / "measured"])
    assert len(cases) > 270
    wrong = [c.slug for c in cases if c.fault or c.topology().world_size != c.n_ranks]
    assert wrong == []


def test_a_folder_without_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="nowhere: found no such folder"):
        load_cases([tmp_path / "nowhere"])
    with pytest.raises(LogFormatError, match="INDEX"):
        load_cases([tmp_path])


def test_faults_of_a_case_file_are_located(tmp_path: Path) -> None:
    with (tmp_path / "INDEX_x.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(ROW))
        writer.writeheader()
        writer.writerow(ROW)
    for text, message in (
        ("{slugs: [a], presett: x}", r"cases.yaml:2:18.*'presett'.*"),
        ("{slugs: [a], preset: hgx-h10}", r"cases.yaml:2:26.*unknown preset 'hgx-h10', did you mean 'hgx-h100'"),
        ("{slugs: [a], preset: '???'}", r"cases.yaml:2:26.*unknown preset '\?\?\?', expected one of"),
        ("{slugs: [a], version: banana}", r"cases.yaml:2:27.*NCCL version 'banana'"),
    ):
        (tmp_path / "cases.yaml").write_text(f"systems:\n  - {text}\n")
        with pytest.raises(ScenarioError, match=message):
            load_cases([tmp_path], [tmp_path / "cases.yaml"])
    assert [c.slug for c in load_cases([tmp_path])] == [ROW["slug"]]


def test_cells_of_any_length_are_read_in_bounded_time(tmp_path: Path) -> None:
    odd = {
        "inter_link": "9" * 60_000 + " Gb/s InfiniBand",
        "gpu_model": "PCIe " * 12_000 + "H100",
        "notes": "2024 " * 9_000,
    }
    with (tmp_path / "INDEX_x.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*ROW, "notes"])
        writer.writeheader()
        writer.writerows(ROW | {"slug": name, name: value} for name, value in odd.items())
    cases = load_cases([tmp_path])
    assert len(cases) == 3
    assert all(len(cell) <= 4096 for case in cases for cell in case.row.values())


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_an_index_of_other_people(separator: str, tmp_path: Path) -> None:
    """Other separators, spaces, missing columns, counts written as decimals, a slug listed twice, and odd slugs."""
    rows = [
        [" Slug", "COLLECTIVE", "n nodes", "gpus_per_node", "gpu_model"],
        ["one.csv", "AllReduce", "2.0", "8 GPUs", "H100 SXM"],
        ["one.csv", "AllReduce", "4", "8", "H100 SXM"],
        ["../../etc/passwd", "alltoall", "1", "8", "H100"],
        ["short"],
        ["", "all_reduce", "1", "8", "H100"],
    ]
    text = "\r\n".join(separator.join(row) for row in rows) + "\r\n"
    (tmp_path / "INDEX_a.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    cases = {c.slug: c for c in load_cases([tmp_path])}
    assert set(cases) == {"one", "../../etc/passwd", "short", "INDEX_a.csv:6"}
    assert cases["INDEX_a.csv:6"].fault == "the row has no slug"
    one = cases["one"]
    assert (one.collective, one.nodes, one.gpus_per_node, one.n_ranks) == ("all_reduce", 2, 8, 16)
    assert one.path == tmp_path / "one.csv"
    assert any("listed more than once" in note for note in one.notes)
    assert one.topology().world_size == 16
    assert cases["../../etc/passwd"].fault == "the slug is no file name"
    assert cases["short"].fault


def test_an_index_without_slugs_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "INDEX_a.csv").write_text("name,collective\nx,all_reduce\n")
    with pytest.raises(LogFormatError, match=r"INDEX_a\.csv:1: found the columns name, collective"):
        load_cases([tmp_path])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8),
        (" 16 ", 16),
        ("16.0", 16),
        ("2 nodes", 2),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("x", None),
    ],
)
def test_counts_of_cells(text: str, number: int | None, tmp_path: Path) -> None:
    case = case_of(ROW | {"n_nodes": text, "n_ranks": "", "gpus_per_node": "8"}, tmp_path)
    assert case.nodes == (number or 1)


@pytest.mark.parametrize("text", ["0", "00", "0.0", "123456789"])
def test_no_ranks_and_too_many_are_the_fault_of_their_row(text: str, tmp_path: Path) -> None:
    fault = case_of(ROW | {"n_ranks": text, "place": "INDEX_a.csv:7"}, tmp_path).fault
    assert fault == f"INDEX_a.csv:7 n_ranks: found {text!r}, expected 1 to 7 digits above 0"
    assert not case_of(ROW | {"n_ranks": "", "place": "INDEX_a.csv:7"}, tmp_path).fault


def test_a_slug_in_two_folders_is_said(tmp_path: Path) -> None:
    """The first folder counts, whether the name is written with or without its ending."""
    for folder, slug in (("a", "one"), ("b", "one.csv")):
        (tmp_path / folder).mkdir()
        index = f"slug,collective,n_nodes,gpus_per_node,gpu_model\n{slug},all_reduce,1,8,H100 SXM\n"
        (tmp_path / folder / "INDEX_a.csv").write_text(index)
    (case,) = load_cases([tmp_path / "a", tmp_path / "b"])
    assert case.path == tmp_path / "a" / "one.csv"
    assert "the slug is listed more than once (again in b); its first row in a counts" in case.notes
