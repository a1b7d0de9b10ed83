"""Logs of NCCL_DEBUG=INFO: a small one of our own, and tables and choices of published ones reproduced."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import pytest

from commsim.errors import LogFormatError
from commsim.nccl.channels import split, traffic
from commsim.nccl.debug_log import DebugLog, read_debug_log
from commsim.nccl.graph import discover
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.system import Graph, System
from commsim.nccl.tuner import TuningEntry, candidates, choose, max_threads, table
from commsim.nccl.version import Version
from commsim.topology.importing import checked, import_file

HERE = Path(__file__).parents[1] / "data" / "nccl_debug"
SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
shared = pytest.mark.skipif(not (SHARED / "nccl_debug").is_dir(), reason="the published logs are not at hand")


def test_what_a_log_says_of_its_communicator() -> None:
    log = read_debug_log(HERE / "pair.log")
    assert (log.version, log.ranks, log.nodes) == ((2, 27, 3), 2, 1)
    assert (log.coll_channels, log.p2p_channels) == (24, 32)


def test_ranks_agree_on_the_least_of_their_graphs() -> None:
    log = read_debug_log(HERE / "pair.log")
    assert log.graph("ring") == Graph(12, 20.0, 20.0, "RING", "NVL", "PXB")
    assert log.graph("tree") == Graph(10, 40.0, 40.0, "BALANCED_TREE", "NVL", "PIX", same_channels=False)
    assert log.graph("nvls") is None


def test_cut_rows_are_counted_and_their_whole_cells_kept() -> None:
    log = read_debug_log(HERE / "pair.log")
    assert log.skipped == [12]
    assert log.entries["all_reduce", "tree", "LL128"] == TuningEntry(16.5, 112.0)
    assert ("all_reduce", "tree", "Simple") not in log.entries


def test_choices_of_every_spelling() -> None:
    found = [(s.collective, s.nbytes, s.algorithm, s.protocol, s.channels, s.time_us) for s in _pair().selections]
    assert found == [
        ("all_reduce", 8388608, "ring", "Simple", 24, None),
        ("all_gather", 1024, "nvls_tree", "LL", None, None),
        (None, 64, "tree", "Simple", None, 49.675526),
    ]


def _pair() -> DebugLog:
    return read_debug_log(HERE / "pair.log")


def test_a_file_without_a_line_of_nccl_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.log").write_text("hello\n")
    with pytest.raises(LogFormatError, match="no line of NCCL_DEBUG=INFO"):
        read_debug_log(tmp_path / "no.log")


# -- published logs ---------------------------------


def system_of(log: DebugLog, sm: int, cpu_vendor: str) -> System:
    """The communicator of a log on one kind of GPU and host."""
    ring, tree, nvls = (log.graph(name) for name in ("ring", "tree", "nvls"))
    assert ring is not None
    assert tree is not None
    assert log.ranks is not None
    assert log.nodes is not None
    return System(
        log.ranks, log.nodes, sm, cpu_vendor, "x86_64", ring.intra_type, ring.inter_type, 0.0, ring, tree, nvls,
        log.coll_channels or 2 * ring.channels, collnet_direct=log.graph("collnet_direct"), nvswitch=nvls is not None,
    )  # fmt: skip


def differing_entries(log: DebugLog, system: System, version: Version) -> list[str]:
    """The printed entries that the replica prints otherwise."""
    found = []
    for (collective, algorithm, protocol), printed in log.entries.items():
        ours = table(system, collective, version)[algorithm, protocol]
        if f"{ours.latency_us:.1f}/{ours.algbw_gbps:.1f}" != f"{printed.latency_us:.1f}/{printed.algbw_gbps:.1f}":
            found.append(f"{collective} {algorithm}/{protocol}: {printed} printed, {ours} here")
    return found


def differing_choices(log: DebugLog, system: System, version: Version, default: str = "all_reduce") -> list[str]:
    """The logged choices, and numbers of channels where they are logged, that the replica makes otherwise."""
    found = []
    for logged in log.selections:
        collective = logged.collective or default
        whole = logged.nbytes * (system.ranks if collective in ("all_gather", "reduce_scatter") else 1)
        best = choose(candidates(system, collective, whole, version))
        assert best is not None
        threads = max_threads(system, best.algorithm, best.protocol)
        protocol = PROTOCOLS[best.protocol]
        used = split(
            system.coll_channels, whole, best.algorithm, protocol, system.ranks, version,
            traffic(collective, whole, system.ranks), max_threads=threads,
        ).channels  # fmt: skip
        same_time = logged.time_us is None or abs(best.time_us - logged.time_us) <= 1e-4 * logged.time_us
        if (
            (best.algorithm, best.protocol) != (logged.algorithm, logged.protocol)
            or logged.channels not in (None, used)
            or not same_time
        ):
            found.append(f"{logged} logged, {best} on {used} channels here")
    return found


@shared
@pytest.mark.parametrize(
    ("name", "version", "sm", "vendor", "entries", "choices"),
    [
        ("a100pcie_n1x2_timez_nccl2.27.7.log", (2, 27, 7), 80, "intel", 105, 11),
        ("v100_n2x2_ssbandjl_nccl2.26.log", (2, 26, 6), 70, "intel", 105, 26),
    ],
)
def test_tables_and_choices_of_logs_that_print_their_graphs(
    name: str, version: Version, sm: int, vendor: str, entries: int, choices: int
) -> None:
    log = read_debug_log(SHARED / "nccl_debug" / name)
    system = system_of(log, sm, vendor)
    assert (len(log.entries), len(log.selections)) == (entries, choices)
    assert differing_entries(log, system, version) == []
    assert differing_choices(log, system, version) == []


LOOPBACK = Graph(2, 1.2, 1.2, "RING", "LOC", "PHB")
FAKED_NODES = System(
    2, 2, 120, "intel", "x86_64", "LOC", "PHB", 0.0, LOOPBACK, Graph(2, 2.4, 1.2, "TREE", "LOC", "PHB"), None, 4
)
"""Two ranks on one GPU that count as two nodes over sockets; the graph follows from the printed table."""


@shared
@pytest.mark.parametrize(("name", "choices"), [("bcast", 18), ("ag_rs", 23)])
def test_two_ranks_that_are_nodes_of_their_own(name: str, choices: int) -> None:
    log = read_debug_log(SHARED / "nccl_debug" / f"rtx5090_n2x1_eunomia_nccl2.29.7_{name}.log")
    assert len(log.selections) == choices
    assert differing_entries(log, FAKED_NODES, (2, 29, 7)) == []
    assert differing_choices(log, FAKED_NODES, (2, 29, 7)) == []


@shared
def test_times_that_nccl_2_12_expected_on_four_boxes_of_eight() -> None:
    # 56 Gb/s InfiniBand is 7 GB/s in NCCL's count: one ring of 7.
    log = read_debug_log(SHARED / "nccl_debug" / "rtx3090_n4x8_panlichen_nccl2.12.12.log")
    ring = Graph(1, 7.0, 7.0, "RING", "SYS", "SYS")
    boxes = System(
        32, 4, 86, "intel", "x86_64", "SYS", "SYS", 0.0, ring, replace(ring, pattern="BALANCED_TREE"), None, 2
    )
    assert len(log.selections) == 25
    assert differing_choices(log, boxes, (2, 12, 12)) == []


@shared
def test_selections_of_eight_h100_and_h200() -> None:
    with (SHARED / "nccl_debug" / "selection_map_h100_h200_nccl2.30.7.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["n_nodes"] == "1"]
    assert len(rows) == 4
    ring = Graph(12, 30.0, 30.0, "RING", "NVL", "PIX")
    nvls = Graph(8, 40.0, 60.0, "NVLS", "NVL", "PIX")
    system = System(
        8, 1, 90, "intel", "x86_64", "NVL", "PIX", 0.0, ring, replace(ring, pattern="BALANCED_TREE"), nvls, 24
    )
    for row in rows:
        nbytes = int(row["size_from"])
        while nbytes <= int(row["size_to"]):
            best = choose(candidates(system, "all_reduce", nbytes, (2, 30, 7)))
            assert best is not None
            assert (best.algorithm, best.protocol.upper()) == (row["algo"].lower(), row["proto"]), nbytes
            nbytes *= 2


@shared
def test_every_published_log_is_read() -> None:
    logs = {p.name: read_debug_log(p) for p in sorted((SHARED / "nccl_debug").glob("*.log"))}
    assert len(logs) == 20
    assert logs["h100_issue1519_table_TRUNCATED.log"].skipped == [3, 4, 5, 6, 7]
    assert logs["unknown_issue754_table_TRUNCATED.log"].skipped == [5]
    with (SHARED / "nccl_debug" / "INDEX.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["n_ranks"].isdecimal() and row["file"].endswith(".log") and logs[row["file"]].ranks:
                assert logs[row["file"]].ranks == int(row["n_ranks"]), row["file"]
            if row["algo_lines"].isdecimal() and row["file"].endswith(".log"):
                assert len(logs[row["file"]].selections) == int(row["algo_lines"]), row["file"]


@shared
@pytest.mark.parametrize(
    ("name", "nodes", "version", "ring", "tree"),
    [
        # The graphs that logs or graph dumps of the same machines print.
        ("dump_a100pcie_x2_normal_nccl2.27.xml", 1, (2, 27, 7), (12, 20.0, 20.0), (12, 40.0, 40.0)),
        ("dump_dgx1_v100.xml", 1, (2, 12, 12), (6, 22.0, 22.0), (6, 22.0, 22.0)),
        ("dump_rtx3090_x8_ib56.xml", 4, (2, 12, 12), (1, 7.0, 7.0), (1, 10.0, 7.0)),
    ],
)
def test_the_search_finds_the_graphs_of_machines_described_by_themselves(
    name: str, nodes: int, version: Version, ring: tuple[int, float, float], tree: tuple[int, float, float]
) -> None:
    path = SHARED / "topo" / name
    system = discover(checked(import_file(path), path, nodes), version)
    assert (system.ring.channels, system.ring.intra_gbps, system.ring.inter_gbps) == ring
    assert (system.tree.channels, system.tree.intra_gbps, system.tree.inter_gbps) == tree
    assert system.tree.pattern == "BALANCED_TREE"
