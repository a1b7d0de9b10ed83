"""The conditions of a log are the columns of its index row; what they leave blank follows by one rule."""

from __future__ import annotations

import csv
import shutil
from datetime import date
from pathlib import Path

import pytest

from commsim.errors import LogFormatError, ScenarioError, TopologyError
from commsim.files import data_root
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.tuner import whole_lines
from study.cases import CaseRow, case_of, fabric_class, load_cases
from study.index import REQUIRED
from study.machines import host_of
from study.releases import RELEASES, current_release, log_date

ROW = {
    "slug": "new_h100_n4x8_all_reduce",
    "collective": "all_reduce",
    "n_ranks": "32",
    "machine": "hgx-h100",
    "nodes": "4",
    "gpus_per_node": "8",
    "network": "infiniband",
    "nics_per_node": "8",
    "nic_gbps": "400",
    "nccl_version": "2.26.2+cuda12.8",
    "launch": "process_per_gpu",
    "env": "NCCL_IB_HCA=mlx5_0",
    "healthy": "yes",
    "source_url": "https://github.com/someone/logs/blob/main/x.log",
    "date": "2025-05-21",
}
TWO = {"nodes": "2", "gpus_per_node": "8", "n_ranks": "16"}
ONE = {"nodes": "1", "gpus_per_node": "8", "n_ranks": "8", "network": "", "nics_per_node": "", "nic_gbps": ""}


def test_a_row_never_seen_becomes_a_machine(tmp_path: Path) -> None:
    case = case_of(ROW, tmp_path)
    topology = case.topology()
    assert (topology.nodes, topology.ranks_per_node, topology.nics_per_node) == (4, 8, 8)
    assert (topology.network, topology.nic_bandwidth) == ("infiniband", 50e9)
    assert (case.version, case.launch, case.env) == ((2, 26, 2), "process_per_gpu", {"NCCL_IB_HCA": "mlx5_0"})
    assert case.system == "someone:hgx-h100:infiniband"
    assert case.notes == ()
    assert (case.iterations, case_of(ROW | {"iterations": "5"}, tmp_path).iterations) == (20, 5)
    assert case_of(ROW | {"system": "mine"}, tmp_path).system == "mine"


@pytest.mark.parametrize("column", REQUIRED)
def test_a_row_without_a_required_column_is_refused_by_its_place(column: str, tmp_path: Path) -> None:
    fault = case_of(ROW | {column: "", "place": "INDEX_a.csv:7"}, tmp_path).fault
    assert fault == f"INDEX_a.csv:7 {column}: found a blank cell, expected a value (docs/guides/validate.md)"
    (tmp_path / "INDEX_a.csv").write_text(",".join(name for name in ROW if name != column) + "\nx\n")
    with pytest.raises(LogFormatError, match=rf"INDEX_a\.csv:1: found the columns .*, expected {column} as well"):
        load_cases([tmp_path])


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ({"launch": "srun"}, "launch: found 'srun', expected one of process_per_gpu, thread_per_gpu, one_process"),
        ({"network": "NDR"}, "network: found 'NDR', expected one of infiniband, roce, slingshot, efa, efa_v1, tcpx,"),
        ({"nic_gbps": "400 Gb/s"}, "nic_gbps: found '400 Gb/s', expected Gb/s of one NIC, such as 400"),
        ({"nic_gbps": "0"}, "nic_gbps: found '0', expected Gb/s of one NIC"),
        ({"nccl_version": "new"}, "nccl_version: found 'new', expected a release such as 2.26.2"),
        ({"env": "NCCL_ALGO=Ring NCCL"}, ""),  # a value may hold blanks
        ({"env": "defaults"}, "env: found 'defaults', expected NAME=value separated by semicolons"),
        ({"n_ranks": "16"}, "n_ranks: found '16', expected 32, nodes times gpus_per_node"),
        ({"iterations": "1e9"}, "iterations: found '1e9', expected 1 to 7 digits above 0"),
        ({"machine": "hgx-h10"}, "machine: unknown preset 'hgx-h10'; did you mean hgx-h100"),
        ({"machine": "none.yaml"}, "machine: "),
    ],
)
def test_a_cell_at_fault_is_named(cells: dict[str, str], fault: str, tmp_path: Path) -> None:
    shown = case_of(ROW | cells | {"place": "INDEX_a.csv:7"}, tmp_path).fault
    assert shown.startswith(f"INDEX_a.csv:7 {fault}" if fault else "")
    assert bool(shown) == bool(fault)


def test_a_machine_may_be_a_file_beside_the_index(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: hgx-h100\nfabric: {in_network_reduction: true}\n")
    case = case_of(ROW | {"machine": "mine.yaml"}, tmp_path)
    assert case.fault == ""
    assert case.topology().in_network_reduction
    assert (case.topology().nics_per_node, case.topology().nic_bandwidth) == (8, 50e9)
    assert not case_of(ROW, tmp_path).topology().in_network_reduction


def test_what_a_row_fills_in_without_a_source_is_said(tmp_path: Path) -> None:
    notes = case_of(ROW | {"assumed": "launch nic_gbps"}, tmp_path).notes
    assert notes == ("launch not stated: taken as process_per_gpu", "NIC rate not stated: taken as 400 Gb/s")


@pytest.mark.parametrize(
    ("launch", "predicted"),
    [("one_process", "one_process"), ("process_per_gpu", "process_per_gpu"), ("thread_per_gpu", "process_per_gpu")],
)
def test_threads_launch_side_by_side(launch: str, predicted: str, tmp_path: Path) -> None:
    assert case_of(ROW | {"launch": launch}, tmp_path).launch == predicted


def test_a_case_row_replaces_the_rule(tmp_path: Path) -> None:
    stated = CaseRow(slugs=["new_*"], system="mine", preset="dgx-a100-hdr200", launch="one_process", version="2.18.1")
    case = case_of(ROW, tmp_path, [stated])
    assert (case.system, case.launch, case.version) == ("mine", "one_process", (2, 18, 1))
    assert case.topology().gpu.generation == "ampere"


@pytest.mark.parametrize("machine", ["MI300X", "Gaudi 3", "Tesla K80"])
def test_an_unknown_machine_is_a_reason_not_an_end(machine: str, tmp_path: Path) -> None:
    case = case_of(ROW | {"machine": machine}, tmp_path)
    assert machine in case.fault
    with pytest.raises(TopologyError, match=machine):
        case.topology()


def test_a_broken_preset_is_the_fault_of_its_own_logs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data_root() / "topologies", tmp_path / "topologies")
    (tmp_path / "topologies" / "h800.yaml").write_text("node: [", encoding="utf-8")
    monkeypatch.setattr("commsim.topology.presets.data_root", lambda: tmp_path)
    host_of.cache_clear()
    try:
        assert case_of(ROW, tmp_path).fault == ""
        assert "h800.yaml" in case_of(ROW | {"machine": "h800"}, tmp_path).fault
    finally:
        host_of.cache_clear()


@pytest.mark.parametrize(
    ("machine", "cells", "network", "nics", "gbps"),
    [
        ("hgx-h100", {"nics_per_node": "", "nic_gbps": ""}, "infiniband", 8, 400),
        ("dgx-a100", {"nics_per_node": "", "nic_gbps": ""}, "infiniband", 8, 200),
        ("dgx-a100", {"nics_per_node": "4", "nic_gbps": ""}, "infiniband", 4, 200),
        ("dgx-a100", {"network": "", "nics_per_node": "", "nic_gbps": "50"}, "infiniband", 1, 50),
        ("hgx-b300", {"network": "roce", "nics_per_node": "", "nic_gbps": ""}, "roce", 8, 800),
        ("hgx-h100", {"network": "ethernet", "nics_per_node": "", "nic_gbps": ""}, "ethernet", 1, 25),
        ("hgx-h100", {"network": "efa", "nics_per_node": "32", "nic_gbps": "100"}, "efa", 8, 400),
        ("dgx-a100", {"network": "efa", "nics_per_node": "4", "nic_gbps": "100"}, "efa_v1", 4, 100),
        ("dgx-a100", {"network": "efa", "nics_per_node": "", "nic_gbps": ""}, "efa_v1", 4, 100),
        ("dgx-1v", {"network": "efa", "nics_per_node": "", "nic_gbps": ""}, "efa_v1", 1, 100),
        # machines with a network of their own
        ("hgx-h100-ndr400", {"network": "", "nics_per_node": "", "nic_gbps": ""}, "infiniband", 8, 400),
        ("hgx-h100-ndr400", {"nics_per_node": "4", "nic_gbps": "200"}, "infiniband", 4, 200),
        ("hgx-h100-ndr400", {"network": "ethernet", "nics_per_node": "", "nic_gbps": ""}, "ethernet", 8, 400),
        ("hgx-h100-ndr400", {"network": "roce", "nics_per_node": "4", "nic_gbps": "200"}, "roce", 4, 200),
    ],
)
def test_the_network_of_a_row(
    machine: str, cells: dict[str, str], network: str, nics: int, gbps: int, tmp_path: Path
) -> None:
    case = case_of(ROW | {"machine": machine} | cells, tmp_path)
    topology = case.topology()
    assert (topology.network, topology.nics_per_node, topology.nic_bandwidth) == (network, nics, gbps * 1e9 / 8)
    open_left = host_of(machine, tmp_path).figures.nics_per_node == 0 and not all((ROW | cells)[c] for c in cells)
    assert any(note.startswith(("NIC", "network not named")) for note in case.notes) == open_left


def test_a_network_that_is_the_machines_own_changes_nothing(tmp_path: Path) -> None:
    row = ROW | {"machine": "hgx-h100-ndr400"}
    blank = {"network": "", "nics_per_node": "", "nic_gbps": ""}
    assert case_of(row, tmp_path).machine == case_of(row | blank, tmp_path).machine


def test_a_nic_on_another_root_forbids_ll128(tmp_path: Path) -> None:
    # NCCL trusts 128-byte stores as far as a switch (src/graph/tuning.cc); a published pair of nodes changes from LL to
    # Simple at 452 kB, where NCCL 2.16's figures for 24 GB/s cross.
    (tmp_path / "host.yaml").write_text("extends: a100-pcie\nnode: {nic: {attach: host}}\n")
    row = ROW | {"nodes": "2", "gpus_per_node": "1", "n_ranks": "2", "nics_per_node": "1", "nic_gbps": "200"}
    row |= {"env": "NCCL_NET_GDR_LEVEL=SYS", "nccl_version": "2.16.5"}
    for machine, ll128 in (("a100-pcie", True), ("host.yaml", False)):
        case = case_of(row | {"machine": machine}, tmp_path)
        model = Predictor(case.topology(), Options(case.version, case.env))
        assert whole_lines(model.system, "ring", (2, 16, 5)) is ll128
        assert model.machine.through_host is not ll128


def test_a_node_without_shared_memory_falls_apart_at_an_intel_host(tmp_path: Path) -> None:
    row = ROW | TWO | {"machine": "a100-pcie", "nic_gbps": "200", "env": "NCCL_SHM_DISABLE=1"}
    topology = case_of(row, tmp_path).topology()
    assert (topology.nodes, topology.ranks_per_node) == (4, 4)  # four GPUs below the switch of each socket


def test_parts_of_a_node_share_its_nics(tmp_path: Path) -> None:
    row = ROW | TWO | {"machine": "dgx-a100", "network": "roce", "nics_per_node": "1", "nic_gbps": "100"}
    topology = case_of(row | {"env": "NCCL_SHM_DISABLE=1;NCCL_P2P_DISABLE=1"}, tmp_path).topology()
    assert (topology.nodes, topology.nics_per_node) == (16, 1)
    assert topology.nic_bandwidth == pytest.approx(12.5e9 / 8)


@pytest.mark.parametrize(
    ("cells", "shape"),
    [
        ({"nodes": "18", "n_ranks": "72"}, (1, 72)),
        ({"nodes": "18", "n_ranks": "72", "network": "nvlink"}, (1, 72)),
        ({"nodes": "32", "n_ranks": "128", "network": "nvlink"}, (2, 64)),  # more than a rack: evenly over two
        ({"nodes": "1", "gpus_per_node": "72", "n_ranks": "72"}, (1, 72)),
        ({"nodes": "2", "n_ranks": "8"}, (1, 8)),
        ({"nodes": "2", "n_ranks": "8", "network": "roce", "nics_per_node": "4", "nic_gbps": "400"}, (2, 4)),
        ({"nodes": "2", "n_ranks": "8", "network": "infiniband", "nics_per_node": "2"}, (2, 4)),
        ({"nodes": "2", "n_ranks": "8", "network": "roce"}, (2, 4)),
        ({"nodes": "2", "n_ranks": "8", "env": "NCCL_MNNVL_ENABLE=0"}, (2, 4)),
    ],
)
def test_trays_are_nodes_where_nvlink_does_not_join_them(
    cells: dict[str, str], shape: tuple[int, int], tmp_path: Path
) -> None:
    blank = {"network": "", "nics_per_node": "", "nic_gbps": "", "env": ""}
    case = case_of(ROW | blank | {"machine": "gb200-nvl72", "gpus_per_node": "4"} | cells, tmp_path)
    topology = case.topology()
    assert (topology.nodes, topology.ranks_per_node) == shape
    assert (case.nodes, case.n_ranks) == (int(cells["nodes"]), int(cells["n_ranks"]))
    if shape == (2, 4):  # a NIC for each GPU of a tray, or as many as the row says
        assert (topology.nics_per_node, topology.nic_bandwidth) == (int(cells.get("nics_per_node", 4)), 50e9)


def test_racks_that_ranks_do_not_fill_evenly_are_refused(tmp_path: Path) -> None:
    cells = {"machine": "gb200-nvl72", "network": "nvlink", "nodes": "73", "gpus_per_node": "1", "n_ranks": "73"}
    assert "do not spread evenly over 2 racks" in case_of(ROW | cells, tmp_path).fault


@pytest.mark.parametrize(
    ("machine", "env", "shape"),
    [
        ("rtx6000d", "NCCL_SHM_DISABLE=1;NCCL_P2P_LEVEL=PHB", (4, 4)),  # two sockets a node
        ("rtx6000d", "NCCL_SHM_DISABLE=1;NCCL_P2P_LEVEL=SYS", (2, 8)),
        ("rtx6000d", "NCCL_P2P_LEVEL=PHB", (2, 8)),
        ("rtx6000d", "NCCL_SHM_DISABLE=1;NCCL_P2P_DISABLE=1", (16, 1)),
        ("rtx6000d", "NCCL_SHM_DISABLE=1", (16, 1)),  # each is below a switch of its own
        ("rtx6000d", "NCCL_SHM_DISABLE=0;NCCL_P2P_DISABLE=1", (2, 8)),
        ("dgx-a100", "NCCL_SHM_DISABLE=1;NCCL_P2P_LEVEL=NVL", (2, 8)),
    ],
)
def test_gpus_that_may_not_talk_are_nodes_apart(machine: str, env: str, shape: tuple[int, int], tmp_path: Path) -> None:
    case = case_of(ROW | TWO | {"machine": machine, "network": "roce", "env": env}, tmp_path)
    topology = case.topology()
    assert (topology.nodes, topology.ranks_per_node) == shape
    assert topology.nics_per_node == 8  # those of the other part are there too, but far
    assert any("keeps GPUs" in note for note in case.notes) == (shape != (2, 8))


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("NCCL_ALGO=Ring;NCCL_PROTO=Simple", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}),
        ("NCCL_NET=AWS Libfabric; FI_X=1;", {"NCCL_NET": "AWS Libfabric", "FI_X": "1"}),
        ("NCCL_ALGO=allreduce:Tree", {"NCCL_ALGO": "allreduce:Tree"}),
    ],
)
def test_environment_of_a_row(text: str, variables: dict[str, str], tmp_path: Path) -> None:
    assert case_of(ROW | {"env": text}, tmp_path).env == variables


@pytest.mark.parametrize(
    ("more", "protocol"),
    [
        ({"date": "2023-05-01"}, "Simple"),
        ({"date": "2022-06-11"}, None),  # before aws-ofi-nccl 1.6.0
        ({"date": "2023-05-01", "env": "NCCL_PROTO=LL128"}, "LL128"),
        ({"date": "2023-05-01", "machine": "hgx-h100", "nics_per_node": "32", "nic_gbps": "100"}, None),
        ({"date": "2023-05-01", "network": "infiniband"}, None),
        ({"date": "2023-05-01", "nodes": "1", "n_ranks": "8"}, None),
    ],
)
def test_the_plugin_of_old_efa_allows_simple_only(more: dict[str, str], protocol: str | None, tmp_path: Path) -> None:
    row = ROW | {"machine": "dgx-a100", "network": "efa", "nics_per_node": "4", "nic_gbps": "100", "env": ""}
    assert case_of(row | more, tmp_path).env.get("NCCL_PROTO") == protocol


TCPXO = {"NCCL_MIN_NCHANNELS": "4", "NCCL_BUFFSIZE": "8388608", "NCCL_NVLS_ENABLE": "0"}
TREE_CHUNK = {"NCCL_NVLSTREE_MAX_CHUNKSIZE": "524288"}
CHUNKS = TREE_CHUNK | {"NCCL_NVLS_CHUNKSIZE": "524288"}
OFI = CHUNKS | {"NCCL_BUFFSIZE": "8388608"}
TUNER = {"NCCL_TUNER_PLUGIN": "libnccl-ofi-tuner.so"}
BESIDE = {"NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX"}


MEGA = {"machine": "gcp-a3-mega", "network": "", "nics_per_node": "", "nic_gbps": ""}
TCPX = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
EFA = {"network": "efa", "nics_per_node": "32", "nic_gbps": "100"}


@pytest.mark.parametrize(
    ("more", "env"),
    [
        (MEGA | {"date": "2024-10-01"}, {"NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple"} | TCPXO | BESIDE),
        (MEGA | {"date": "2026-04-16"}, {"NCCL_PROTO": "Simple,LL128"} | TCPXO | BESIDE),
        (
            MEGA | {"date": "2026", "env": "NCCL_BUFFSIZE=4194304"},
            {"NCCL_PROTO": "Simple,LL128"} | TCPXO | BESIDE | {"NCCL_BUFFSIZE": "4194304"},
        ),
        (  # without a date the plugin is as old as NCCL, and that as the release a scenario assumes
            MEGA | {"date": "", "nccl_version": ""},
            {"NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple"} | TCPXO | BESIDE,
        ),
        (MEGA | {"date": "", "nccl_version": "2.28.3"}, {"NCCL_PROTO": "Simple,LL128"} | TCPXO | BESIDE),
        ({"network": "tcpx", "nics_per_node": "4", "nic_gbps": "200"}, TCPX | BESIDE),
        (EFA | {"date": "2025-06-01"}, OFI | TUNER),
        (EFA | {"date": "2026-01-01", "nodes": "3", "n_ranks": "24"}, OFI | TUNER),
        (EFA | TWO | {"date": "2026-01-01"}, OFI),
        (EFA | TWO | {"date": ""}, CHUNKS),
        (EFA | {"date": "", "nccl_version": "2.19.3"}, {}),
        (EFA | {"date": "2025-05-31"}, CHUNKS),
        (EFA | {"date": "2024-08-01"}, CHUNKS),
        (EFA | {"date": "2024-07-31"}, TREE_CHUNK),
        (EFA | {"date": "2024-04-01"}, TREE_CHUNK),
        (EFA | {"date": "2024-03-31"}, {}),
        ({"network": "ethernet", "date": ""}, {}),
        (ONE | {"network": "efa", "date": "2026"}, OFI),
        (ONE | {"machine": "hgx-h100-efa3200", "date": "2026"}, OFI),
        (ONE | {"machine": "aws-p4d", "date": ""}, {}),
        (ONE | {"machine": "gcp-a4"}, {"NCCL_NVLS_CHUNKSIZE": "524288"}),
        (ONE | {"machine": "gcp-a3-mega"}, {}),
        ({"machine": "hgx-h100-efa3200", "network": "ethernet", "nics_per_node": "", "nic_gbps": ""}, {}),
        ({}, {}),
    ],
)
def test_what_plugins_of_clouds_set(more: dict[str, str], env: dict[str, str], tmp_path: Path) -> None:
    case = case_of(ROW | {"env": ""} | more, tmp_path)
    assert case.env == env
    assert any("not stated, as" in note for note in case.notes) == bool(env)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2026-05-05", date(2026, 5, 5)),
        ("2026-05-05 (repo HEAD)", date(2026, 5, 5)),
        ("2025-02", date(2025, 2, 1)),
        ("2025-02..2025-04", date(2025, 2, 1)),
        ("2019-2021", date(2019, 7, 1)),
        ("2020 (approx.)", date(2020, 7, 1)),
        ("2023-02-30", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_date_of_a_log(text: str, day: date | None) -> None:
    assert log_date(text) == day


def test_blank_version_is_the_release_of_the_day(tmp_path: Path) -> None:
    case = case_of(ROW | {"nccl_version": "", "date": "2023-06-21"}, tmp_path)
    assert case.version == (2, 18, 3)
    assert case.notes == ("version not stated: the release current on 2023-06-21",)
    case = case_of(ROW | {"nccl_version": "", "date": ""}, tmp_path)
    assert (case.version, case.notes) == (None, ("neither version nor date stated",))
    assert current_release(date(2000, 1, 1)) == RELEASES[0][1]


def test_releases_ascend() -> None:
    assert list(RELEASES) == sorted(RELEASES)
    assert [v for _, v in RELEASES] == sorted(v for _, v in RELEASES)


def test_fabric_classes() -> None:
    assert fabric_class("none", 1) == "one node"
    assert fabric_class("roce", 2) == "IB/RoCE"
    assert fabric_class("efa", 2) == "Slingshot/EFA/cloud plugin"


@pytest.mark.parametrize(("folder", "logs", "unknown"), [("measured", 279, 0), ("outside", 63, 1), ("silicon", 136, 0)])
def test_every_log_of_the_project_has_a_machine_of_its_ranks(
    folder: str, logs: int, unknown: int, checkout: Path
) -> None:
    cases = load_cases([checkout / "validation" / folder])
    assert (len(cases), sum(bool(c.fault) for c in cases)) == (logs, unknown)
    assert [c.slug for c in cases if not c.fault and c.topology().world_size != c.n_ranks] == []


def test_every_machine_file_of_the_project_is_some_log_s(checkout: Path) -> None:
    folders = [checkout / "validation" / name for name in ("measured", "outside")]
    named = {(f / c.row["machine"]).resolve() for f in folders for c in load_cases([f]) if "/" in c.row["machine"]}
    assert named == {path.resolve() for path in (checkout / "validation" / "machines").glob("*.yaml")}


@pytest.mark.parametrize(
    ("slug", "nodes", "gpus", "nics", "gbps", "env", "launch"),
    [
        # what the page that each row names prints or links
        ("oci_gb200_n32x4_allreduce_2racks", 2, 64, 64, 400, {"NCCL_NVLS_ENABLE": "0"}, "process_per_gpu"),
        ("coreweave_gb200_20racks_n1440_allreduce", 20, 72, 72, 400, {}, "process_per_gpu"),
        ("rtx6000d_n2x8_allreduce_spcx", 4, 4, 8, 800, {"NCCL_SHM_DISABLE": "1"}, "process_per_gpu"),
        ("coreweave_a100_n4x8_allreduce", 4, 8, 8, 200, {"NCCL_COLLNET_ENABLE": "1"}, "process_per_gpu"),
        ("a800_10gbe_n2x8_allreduce_torch", 2, 8, 1, 10, {"NCCL_P2P_DISABLE": "1"}, "process_per_gpu"),
    ],
)
def test_conditions_of_published_logs(
    slug: str, nodes: int, gpus: int, nics: int, gbps: int, env: dict[str, str], launch: str, checkout: Path
) -> None:
    case = next(c for c in load_cases([checkout / "validation" / "measured"]) if c.slug == slug)
    topology = case.topology()
    assert (topology.nodes, topology.ranks_per_node, topology.nics_per_node) == (nodes, gpus, nics)
    assert topology.nic_bandwidth == gbps * 1e9 / 8
    assert env.items() <= case.env.items()
    assert case.launch == launch


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
    odd = {"nic_gbps": "9" * 60_000, "env": "NCCL_ALGO=Ring;" * 6_000, "notes": "2024 " * 9_000}
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
        [" Slug", "COLLECTIVE", "n ranks", "Machine", "nodes", "gpus_per_node", "launch"],
        ["one.csv", "AllReduce", "16", "hgx-h100", "2.0", "8", "process_per_gpu"],
        ["one.csv", "AllReduce", "32", "hgx-h100", "4", "8", "process_per_gpu"],
        ["../../etc/passwd", "alltoall", "8", "hgx-h100", "1", "8", "process_per_gpu"],
        ["short"],
        ["", "all_reduce", "8", "hgx-h100", "1", "8", "process_per_gpu"],
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
    assert cases["short"].fault.startswith("INDEX_a.csv:5 collective: found a blank cell")


def test_an_index_without_slugs_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "INDEX_a.csv").write_text("name,collective\nx,all_reduce\n")
    with pytest.raises(LogFormatError, match=r"INDEX_a\.csv:1: found the columns name, collective"):
        load_cases([tmp_path])


@pytest.mark.parametrize(("text", "nodes"), [("4", 4), ("4.0", 4)])
def test_counts_of_cells(text: str, nodes: int, tmp_path: Path) -> None:
    assert case_of(ROW | {"nodes": text}, tmp_path).nodes == nodes


@pytest.mark.parametrize("text", ["0", "00", "0.0", "123456789", "2 nodes", "-1", "1.5", "x"])
def test_no_ranks_and_too_many_are_the_fault_of_their_row(text: str, tmp_path: Path) -> None:
    fault = case_of(ROW | {"n_ranks": text, "place": "INDEX_a.csv:7"}, tmp_path).fault
    assert fault == f"INDEX_a.csv:7 n_ranks: found {text!r}, expected 1 to 7 digits above 0"


def test_a_slug_in_two_folders_is_said(tmp_path: Path) -> None:
    """The first folder counts, whether the name is written with or without its ending."""
    for folder, slug in (("a", "one"), ("b", "one.csv")):
        (tmp_path / folder).mkdir()
        cells = [slug, *((ROW | ONE)[column] for column in REQUIRED)]
        index = f"slug,{','.join(REQUIRED)}\n{','.join(cells)}\n"
        (tmp_path / folder / "INDEX_a.csv").write_text(index)
    (case,) = load_cases([tmp_path / "a", tmp_path / "b"])
    assert case.path == tmp_path / "a" / "one.csv"
    assert "the slug is listed more than once (again in b); its first row in a counts" in case.notes
