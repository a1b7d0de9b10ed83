"""Writes the tables of ``validation/synthesis/``: schedules that a solver found, and all shipped machines.

    python validation/synthesis.py teccl TECCL_SCHEDULES.csv [TOPOLOGY ...]
    python validation/synthesis.py machines NODES[,NODES ...] [PRESET ...]

``teccl`` answers every case of a table of published schedules (microsoft/TE-CCL at c128bf2: topology, chassis,
collective, variant, total_bytes, finish_time_s, epoch_s); topologies are those of ``validation/networks``. ``machines``
synthesizes 1 GiB of five collectives on shipped machines of so many nodes. Rows that a table has already are kept, so
that a run that was stopped goes on; delete a table to make it anew. Every schedule is proven.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from commsim.cli.synthesize import prove
from commsim.errors import CommsimError
from commsim.files import write_atomically
from commsim.nccl.predict import Options, Predictor
from commsim.report.tables import csv_text
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.network_file import load_network
from commsim.synthesis.search import Question, Search, Synthesis
from commsim.topology.presets import load_preset, preset_names

HERE = Path(__file__).resolve().parent
TABLES = HERE / "synthesis"
NETWORKS = {("NDv2", "2"): "ndv2-2", ("NDv2", "4"): "ndv2-4", ("DGX2", "2"): "dgx2-2"}
AS_RUN = {("NDv2", "2"): "ndv2-2-as-run"}
COLLECTIVES = {"AllGather": "all_gather", "AlltoAll": "all_to_all"}
LARGE = 2**30
TECCL = (
    "network",
    "collective",
    "total_bytes",
    "ranks",
    "limit_us",
    "latency_us",
    "reached_us",
    "ratio",
    "trees",
    "depth",
    "pieces",
    "seconds",
)
MACHINES = (
    "machine",
    "nodes",
    "ranks",
    "collective",
    "limit_us",
    "limit_by",
    "reached_us",
    "ratio",
    "depth",
    "pieces",
    "nccl_us",
    "nccl_ratio",
    "seconds",
)


def kept(path: Path) -> list[dict[str, str]]:
    """The rows of a table that is there."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write(path: Path, columns: Iterable[str], rows: list[dict[str, Any]]) -> None:
    """The table with these rows."""
    path.parent.mkdir(exist_ok=True)
    names = list(columns)
    write_atomically(path, csv_text([names, *([row.get(name, "") for name in names] for row in rows)]))


def solved(network: FlowNetwork, collective: str, nbytes: int, itemsize: int) -> tuple[Synthesis, float]:
    """The schedule, proven, and the seconds that it took to find and prove."""
    started = time.monotonic()
    one = Search(Question(network, collective, nbytes, itemsize=itemsize)).run()
    prove(one)
    return one, time.monotonic() - started


def teccl(cases: Path, topologies: list[str]) -> None:
    """The table of TE-CCL's sizes on its topologies."""
    path = TABLES / "teccl.csv"
    rows: list[dict[str, Any]] = list(kept(path))
    done = {(row["network"], row["collective"], int(row["total_bytes"])) for row in rows}
    wanted: dict[tuple[str, str, int], None] = {}
    for case in kept(cases):
        place, collective = (case["topology"], case["chassis"]), COLLECTIVES[case["collective"]]
        for names in (NETWORKS, AS_RUN):
            if place in names:
                wanted[names[place], collective, int(case["total_bytes"])] = None
    for name, collective, total in wanted:
        if (name, collective, total) in done or (topologies and name not in topologies):
            continue
        network = load_network(HERE / "networks" / f"{name}.yaml")
        # With a rank less, as published with sizes of all: blocks stay as they are.
        nbytes = total if name not in AS_RUN.values() else total * network.n // (network.n + 1)
        one, seconds = solved(network, collective, nbytes, 1)
        rows.append(
            {
                "network": name,
                "collective": collective,
                "total_bytes": total,
                "ranks": network.n,
                "limit_us": 1e6 * one.limit.bandwidth_s(one.question.size),
                "latency_us": 1e6 * one.limit.latency_s,
                "reached_us": 1e6 * one.seconds,
                "ratio": one.ratio,
                "trees": len(one.forest.share),
                "depth": one.forest.depth,
                "pieces": one.pieces,
                "seconds": round(seconds, 2),
            }
        )
        write(path, TECCL, rows)
        print(name, collective, total, f"{rows[-1]['reached_us']:.4f} us {one.ratio:.4f} {seconds:.1f} s", flush=True)


def machines(nodes: list[int], names: list[str]) -> None:
    """The table of shipped machines."""
    path = TABLES / "machines.csv"
    rows: list[dict[str, Any]] = list(kept(path))
    done = {(row["machine"], int(row["nodes"]), row["collective"]) for row in rows}
    for count in nodes:
        for name in names or preset_names():
            try:
                topology = load_preset(name, nodes=count)
                network = machine_network(topology)
            except CommsimError as error:
                print(name, count, "left out:", error, flush=True)
                continue
            if network.n < 2:
                continue
            for collective in ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"):
                if (name, count, collective) in done:
                    continue
                try:
                    one, seconds = solved(network, collective, LARGE, 4)
                except CommsimError as error:
                    print(name, count, collective, "left out:", error, flush=True)
                    continue
                row = {
                    "machine": name,
                    "nodes": count,
                    "ranks": network.n,
                    "collective": collective,
                    "limit_us": 1e6 * one.limit_s,
                    "limit_by": one.limit.by,
                    "reached_us": 1e6 * one.seconds,
                    "ratio": one.ratio,
                    "depth": one.forest.depth,
                    "pieces": one.pieces,
                    "seconds": round(seconds, 2),
                }
                try:
                    theirs = Predictor(topology, Options()).predict(collective, LARGE).time_s
                    row |= {"nccl_us": 1e6 * theirs, "nccl_ratio": theirs / one.limit_s}
                except CommsimError:
                    pass
                rows.append(row)
                write(path, MACHINES, rows)
                print(name, count, collective, f"{one.ratio:.4f} {seconds:.1f} s", flush=True)


def main(arguments: list[str]) -> None:
    """The program."""
    if len(arguments) >= 2 and arguments[0] == "teccl":
        teccl(Path(arguments[1]), arguments[2:])
    elif len(arguments) >= 2 and arguments[0] == "machines":
        machines([int(k) for k in arguments[1].split(",")], arguments[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
