"""Writes the tables of ``validation/synthesis/``: schedules that a solver found, and all shipped machines.

    python validation/synthesis.py teccl TECCL_SCHEDULES.csv [TOPOLOGY ...]
    python validation/synthesis.py machines NODES[,NODES ...] [PRESET ...]
    python validation/synthesis.py page TECCL_SCHEDULES.csv

``teccl`` answers every case of a table of published schedules (microsoft/TE-CCL at c128bf2: topology, chassis,
collective, variant, total_bytes, finish_time_s, epoch_s); topologies are those of ``validation/networks``. ``machines``
synthesizes 1 GiB of five collectives on shipped machines of so many nodes. Rows that a table has already are kept, so
that a run that was stopped goes on; delete a table to make it anew. Every schedule is proven. ``page`` sets each
published case beside ours (``teccl_cases.csv``) and writes the tables of ``docs/guides/synthesis.md``.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from commsim.cli.synthesize import prove
from commsim.cli.synthesize_levels import LEVELS_FROM
from commsim.collectives.check import check
from commsim.errors import CommsimError
from commsim.files import write_atomically
from commsim.nccl.predict import Options, Predictor
from commsim.report.tables import csv_text
from commsim.synthesis.aim import Aim
from commsim.synthesis.level_search import COLLECTIVES_BY_LEVELS, LevelPlan, plan_by_levels
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.network_file import load_network
from commsim.synthesis.search import Synthesis, TreeSearch
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset, preset_names

HERE = Path(__file__).resolve().parent
TABLES = HERE / "synthesis"
NETWORKS = {("NDv2", "2"): "ndv2-2", ("NDv2", "4"): "ndv2-4", ("DGX2", "2"): "dgx2-2"}
AS_RUN = {("NDv2", "2"): "ndv2-2-as-run"}
COLLECTIVES = {"AllGather": "all_gather", "AlltoAll": "all_to_all"}
LARGE = 2**30
NEAR = 1.02
"""Of the limit: where a plan by levels comes so near, no trees are looked for."""
BUDGET_S = 90.0
"""Seconds of the processor that a search may take: racks of 72 on several nodes are cut into millions of rows."""
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
    """The schedule, proven, and the seconds of the processor that it took to find and prove."""
    started = time.process_time()
    one = TreeSearch(Aim(network, collective, nbytes, itemsize=itemsize), budget_s=BUDGET_S).run()
    prove(one)
    return one, time.process_time() - started


def best_of(topology: Topology, network: FlowNetwork, collective: str) -> tuple[Synthesis | LevelPlan, float]:
    """What `commsim synthesize` gives: a plan by levels of a large machine where it comes near enough, else trees."""
    started, plan = time.process_time(), None
    if network.n >= LEVELS_FROM and topology.nodes > 1 and collective in COLLECTIVES_BY_LEVELS:
        plan = plan_by_levels(topology, collective, LARGE, budget_s=BUDGET_S / 3)
    if plan is None or plan.ratio > NEAR:
        one, _ = solved(network, collective, LARGE, 4)
        if plan is None or one.ratio < plan.ratio:
            return one, time.process_time() - started
    assert plan.laid is not None
    check(plan.laid.schedule)
    return plan, time.process_time() - started


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
                "trees": 0 if one.known else len(one.forest.share),
                "depth": one.depth,
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
                    one, seconds = best_of(topology, network, collective)
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
                    "depth": one.depth if isinstance(one, Synthesis) else "",
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


def cases_of(path: Path) -> list[dict[str, Any]]:
    """Every published case beside our schedule, of all ranks and, where TE-CCL's code has one less, of those."""
    ours = {(r["network"], r["collective"], int(r["total_bytes"])): r for r in kept(TABLES / "teccl.csv")}
    out: list[dict[str, Any]] = []
    for case in kept(path):
        place, collective = (case["topology"], case["chassis"]), COLLECTIVES[case["collective"]]
        total = int(case["total_bytes"])
        finish, epoch = 1e6 * float(case["finish_time_s"]), 1e6 * float(case["epoch_s"])
        one = ours[NETWORKS[place], collective, total]
        other = ours.get((AS_RUN.get(place, ""), collective, total))
        reached, limit = float(one["reached_us"]), float(one["limit_us"])
        out.append(
            {
                "network": NETWORKS[place],
                "collective": collective,
                "variant": case["variant"],
                "total_bytes": total,
                "teccl_us": finish,
                "epoch_us": epoch,
                "limit_us": limit,
                "latency_us": float(one["latency_us"]),
                "reached_us": reached,
                "not_slower": "yes" if reached <= (finish + epoch) * (1 + 1e-12) else "no",
                "reached_as_run_us": "" if other is None else float(other["reached_us"]),
                "not_slower_as_run": ""
                if other is None
                else ("yes" if float(other["reached_us"]) <= (finish + epoch) * (1 + 1e-12) else "no"),
                "within_1_percent": "" if total < 16_000_000 else ("yes" if reached <= 1.01 * limit else "no"),
                "solver_s": float(case["solver_s"]),
                "seconds": float(one["seconds"]),
            }
        )
    return out


def page(path: Path) -> None:
    """The tables of the guide."""
    cases = cases_of(path)
    write(TABLES / "teccl_cases.csv", cases[0], cases)
    slower = [case for case in cases if case["not_slower"] == "no"]
    as_run = [case for case in slower if case["not_slower_as_run"] == "yes"]
    large = [case for case in cases if case["within_1_percent"]]
    seconds = sorted(float(row["seconds"]) for row in kept(TABLES / "teccl.csv"))
    within = sum(case["within_1_percent"] == "yes" for case in large)
    lines = [
        f"Of the {len(cases)} published cases {len(cases) - len(slower)} are not slower than TE-CCL's finish time plus "
        f"one of its epochs; of the {len(large)} of 16 MB and more {within} are within 1 % of the exact limit. "
        "A search took "
        f"{seconds[len(seconds) // 2]:.1f} s in the median and {seconds[-1]:.0f} s at most, with the proof, on a busy "
        "machine of two cores.",
        f"The other {len(slower)} are all_to_all on two NDv2 chassis, where TE-CCL's figures lie below what 16 ranks "
        f"can reach: its code makes GPU 0 a switch there. Of 15 ranks, as it ran, {len(as_run)} of these "
        f"{len(slower)} are not slower.",
        "",
        "| network | collective | size | TE-CCL's best | limit | latency | ours |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    shown = (1_000, 64_000, 1_000_000, 16_000_000, 1_000_000_000)
    for name, collective in dict.fromkeys((c["network"], c["collective"]) for c in cases):
        for size in shown:
            own = [c for c in cases if (c["network"], c["collective"], c["total_bytes"]) == (name, collective, size)]
            best = min(float(c["teccl_us"]) for c in own)
            cells = (best, own[0]["limit_us"], own[0]["latency_us"], own[0]["reached_us"])
            lines.append(
                f"| {name} | {collective} | {size // 1000:,} kB | " + " | ".join(f"{x:,.3f} us" for x in cells) + " |"
            )
    _between("teccl", lines)
    rows = kept(TABLES / "machines.csv")
    ratios = sorted(float(row["ratio"]) for row in rows)
    over = [row for row in rows if float(row["ratio"]) > 1.02]
    lines = [
        f"Of {len(rows)} rows (1 GiB, ideal links) {len(rows) - len(over)} are within 2 % of the limit; the median is "
        f"{ratios[len(ratios) // 2]:.4f}, the largest {ratios[-1]:.4f}. All are in "
        "`validation/synthesis/machines.csv`.",
        "",
        "| machine | nodes | collective | limit | synthesized | NCCL |",
        "|---|--:|---|--:|--:|--:|",
    ]
    told = {"dgx-1v-edr100", "dgx-2-edr100", "dgx-a100-hdr200", "hgx-h100-ndr400", "gh200x4-ndr200", "hgx-b200-ndr400"}
    for row in [*(row for row in rows if row["machine"] in told), *(row for row in over if row["machine"] not in told)]:
        nccl = f"{float(row['nccl_ratio']):.2f}" if row["nccl_ratio"] else "-"
        lines.append(
            f"| {row['machine']} | {row['nodes']} | {row['collective']} | {float(row['limit_us']) / 1e3:,.2f} ms | "
            f"{float(row['ratio']):.3f} | {nccl} |"
        )
    _between("machines", lines)


def _between(name: str, lines: list[str]) -> None:
    """Writes lines between the markers of a name in the guide."""
    guide = HERE.parent / "docs" / "guides" / "synthesis.md"
    text = guide.read_text(encoding="utf-8")
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
    first, rest = text.split(begin)
    write_atomically(guide, first + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1])


def main(arguments: list[str]) -> None:
    """The program."""
    if len(arguments) >= 2 and arguments[0] == "teccl":
        teccl(Path(arguments[1]), arguments[2:])
    elif len(arguments) >= 2 and arguments[0] == "machines":
        machines([int(k) for k in arguments[1].split(",")], arguments[2:])
    elif len(arguments) == 2 and arguments[0] == "page":
        page(Path(arguments[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
