"""The explained choice is NCCL's own text: what is printed is read back as a log."""

from __future__ import annotations

from dataclasses import replace

from commsim.nccl.debug_log import parse_debug_log
from commsim.nccl.environment import FUNCTIONS
from commsim.nccl.operation import Operation
from commsim.nccl.system import Graph, System
from commsim.nccl.tuner import table
from commsim.report.choice import choice_lines, graph_lines, operation_lines, table_lines

RING = Graph(12, 30.0, 30.0, "RING", "NVL", "PIX")
H100 = System(
    8, 1, 90, "intel", "x86_64", "NVL", "PIX", 0.0, RING, replace(RING, pattern="BALANCED_TREE"),
    Graph(8, 40.0, 60.0, "NVLS", "NVL", "PIX", same_channels=False), 24,
)  # fmt: skip
VERSION = (2, 30, 7)


def test_tables_and_graphs_read_back_as_they_were() -> None:
    lines = [*graph_lines(H100), *table_lines(H100, VERSION)]
    log = parse_debug_log("\n".join(f"box:1:2 [0] NCCL INFO {line}" for line in lines))
    assert (log.graph("ring"), log.graph("tree"), log.graph("nvls")) == (H100.ring, H100.tree, H100.nvls)
    assert len(log.entries) == 7 * 3 * 5
    for collective in FUNCTIONS:
        for (algorithm, protocol), entry in table(H100, collective, VERSION).items():
            read = log.entries[collective, algorithm, protocol]
            assert abs(read.latency_us - entry.latency_us) <= 0.051
            assert abs(read.algbw_gbps - entry.algbw_gbps) <= 0.051


def test_a_line_per_size_as_nccl_logs_it() -> None:
    assert choice_lines(H100, "all_reduce", [4096, 1 << 20, 1 << 21], VERSION) == [
        "AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0} time 15.1",
        "AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..23} time 28.0",
        "AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15} time 32.7",
    ]
    assert choice_lines(H100, "all_gather", [8192], VERSION)[0].startswith("AllGather: 1024 Bytes -> Algo RING")


def test_what_an_operation_takes_away_is_said_once_for_each_algorithm() -> None:
    def said(version: tuple[int, int, int], ranks: int, dtype: str, redop: str) -> list[str]:
        system = replace(H100, ranks=ranks, nodes=ranks // 8)
        return operation_lines(system, "all_reduce", version, {}, Operation(dtype, redop))

    assert said(VERSION, 8, "float16", "sum") == []
    assert said(VERSION, 8, "int8", "avg") == ["# all_reduce not by NVLS: no NVSwitch does an avg of int8 (SumPostDiv)"]
    assert said(VERSION, 16, "float8_e5m2", "max") == [
        "# all_reduce not by NVLSTree: no NVSwitch does a max of float8_e5m2",
        "# all_reduce by Ring counts 1024 times its time: float8_e5m2 above eight ranks loses digits in a ring",
    ]
