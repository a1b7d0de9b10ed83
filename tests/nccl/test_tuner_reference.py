"""The tuner against what NCCL's own tuning.cc computes, release by release (tests/data/nccl_tuner/README.md)."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from commsim.nccl.system import Graph, System
from commsim.nccl.tuner import expected, table
from commsim.nccl.version import parse_version

SAMPLE = Path(__file__).parents[1] / "data" / "nccl_tuner"
_CHECKOUT = Path(__file__).parents[2]
ALL = Path(os.environ.get("COMMSIM_SHARED_DATA", _CHECKOUT.parent / "shared" / "data")) / "nccl_tuner"
EXACT = 1e-4  # NCCL counts in single precision

Row = dict[str, str]


@lru_cache
def _tables(folder: Path) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    with (folder / "tables.csv").open() as file:
        for row in csv.DictReader(file):
            found[row["case"]].append(row)
    return found


@lru_cache
def _cases(folder: Path) -> dict[str, list[Row]]:
    """By release."""
    found: dict[str, list[Row]] = defaultdict(list)
    with (folder / "cases.csv").open() as file:
        for row in csv.DictReader(file):
            found[row["nccl_version"]].append(row)
    return found


def _graph(row: Row, name: str) -> Graph | None:
    if not row[f"{name}_pattern"]:
        return None
    return Graph(
        channels=int(row[f"{name}_channels"]),
        intra_gbps=float(row[f"{name}_intra_gbps"]),
        inter_gbps=float(row[f"{name}_inter_gbps"]),
        pattern=row[f"{name}_pattern"],
        intra_type=row[f"{name}_intra_type"],
        inter_type=row[f"{name}_inter_type"],
        same_channels=row[f"{name}_same_channels"] == "1",
    )


def _system(row: Row) -> System:
    ring, tree = _graph(row, "ring"), _graph(row, "tree")
    assert ring is not None
    assert tree is not None
    return System(
        ranks=int(row["ranks"]),
        nodes=int(row["nodes"]),
        sm=int(row["sm"]),
        cpu_vendor=row["cpu_vendor"],
        cpu_arch=row["cpu_arch"],
        intra_type=ring.intra_type,
        inter_type=ring.inter_type,
        nic_latency_us=float(row["nic_latency_us"]),
        ring=ring,
        tree=tree,
        nvls=_graph(row, "nvls"),
        coll_channels=int(row["coll_channels"]),
        collnet_direct=_graph(row, "collnet_direct"),
        collnet_chain=_graph(row, "collnet_chain"),
        collnet=row["collnet"] == "1",
        collnet_gathers=row.get("collnet_gathers") == "1",
        nvswitch=row["nvswitch"] == "1",
    )


def _differences(folder: Path, release: str) -> Iterator[str]:
    """What of a release's cases is not as NCCL has it: entries, latencies, bandwidths, times."""
    version = parse_version(release)
    for row in _cases(folder)[release]:
        system, sizes = _system(row), [int(size) for size in row["sizes_bytes"].split()]
        theirs: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(dict)
        for entry in _tables(folder)[row["case"]]:
            figures = [entry["latency_us"], entry["algbw_gbps"], *(entry[f"time_us_{i}"] for i in range(len(sizes)))]
            theirs[entry["collective"]][entry["algorithm"], entry["protocol"]] = list(map(float, figures))
        for collective, entries in theirs.items():
            held = table(system, collective, version)
            times = [
                {(c.algorithm, c.protocol): c.time_us for c in expected(system, collective, size, version)}
                for size in sizes
            ]
            for key in sorted({*entries, *(k for k, e in held.items() if e.algbw_gbps > 0.0)}):
                ours = [held[key].latency_us, held[key].algbw_gbps, *(t.get(key, -1.0) for t in times)]
                nccl = entries.get(key, [])
                if len(ours) != len(nccl) or any(abs(a - b) > EXACT * abs(b) for a, b in zip(ours, nccl, strict=True)):
                    yield f"{row['case']} {collective} {'/'.join(key)}: {ours}, NCCL: {nccl}"


@pytest.mark.parametrize("release", _cases(SAMPLE))
def test_tables_and_times_are_those_of_nccl(release: str) -> None:
    assert not list(_differences(SAMPLE, release))


@pytest.mark.slow
@pytest.mark.skipif(not ALL.is_dir(), reason="no shared data beside the checkout: the sample alone is compared")
@pytest.mark.parametrize("release", _cases(ALL) if ALL.is_dir() else ["none"])
def test_all_tables_and_times_are_those_of_nccl(release: str) -> None:
    assert not list(_differences(ALL, release))
