"""Counts how often `commsim compare LOG`, without a scenario, knows the machine, the ranks and the launch of a log.

    python validation/raw_logs.py            the table
    python validation/raw_logs.py --write    also docs/accuracy-raw-logs.md, with hostile logs (ten minutes)

Reads `nccl/raw/` and `nccl_debug/` of the shared data beside the checkout, or of COMMSIM_SHARED_DATA: logs as people
published them. What is true of each is the row of its index (validation/measured, nccl_debug/INDEX.csv), which no
parser of ours wrote.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from commsim.accuracy.from_log import LogMachine, source_of
from commsim.accuracy.gpu_name import is_gpu
from commsim.accuracy.log_facts import LogFacts, facts_of
from commsim.accuracy.which_machine import Question, machines_for
from commsim.errors import CommsimError
from commsim.files import write_atomically
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.scenario.setting import build_topology
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset
from study import log_hostile
from study.case import Case
from study.cases import load_cases
from study.dump_hostile import Hostile
from study.words import words_of

CHECKOUT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
PAGE = CHECKOUT / "docs" / "accuracy-raw-logs.md"
RATES_AGREE = 0.01
MUTANTS = 1_000


@dataclass(frozen=True)
class Truth:
    """What is known of a log; None where its index does not say."""

    ranks: int | None
    nodes: int | None
    launch: str | None
    gpu: str
    machine: Topology | None


@dataclass(frozen=True)
class Said:
    """What was said of a log: the word for it, and what was wrong of it; `place` of the true machine in a question."""

    log: str
    word: str  # settled, asked or refused
    wrong: tuple[str, ...]
    machine: str
    place: int | None = None


def raw_logs() -> Iterator[tuple[Path, Truth]]:
    """The logs with what is true of them."""
    cases = {case.slug: case for case in load_cases([CHECKOUT / "validation" / "measured"])}
    for path in sorted((SHARED / "nccl" / "raw").glob("*.log")):
        slugs = [slug for slug in cases if path.stem.startswith(slug)] or [
            slug for slug in cases if slug.startswith(re.sub(r"_\d+collectives$|_FAILED.*", "", path.stem))
        ]
        yield path, _of_case(cases[max(slugs, key=len)]) if slugs else Truth(None, None, None, "", None)
    folder = SHARED / "nccl_debug"
    with (folder / "INDEX.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if "algbw" in (folder / row["file"]).read_text(encoding="utf-8", errors="replace"):
                ranks, nodes = (int(row[name]) if row[name].isdigit() else None for name in ("n_ranks", "n_nodes"))
                yield folder / row["file"], Truth(ranks, nodes, None, row["gpu"], None)


def _of_case(case: Case) -> Truth:
    topology = case.topology()
    return Truth(case.n_ranks, case.nodes, case.launch, topology.gpu.model, topology)


def said_of(path: Path, truth: Truth) -> Said:
    """What is said of a log."""
    asked: list[Question] = []

    def ask(question: Question) -> None:
        asked.append(question)

    try:
        curve = read_measured(path)[0]
        facts = facts_of(curve)
        machine = machines_for([curve], None, ask)[0]
    except CommsimError as error:
        word = "asked" if asked else "refused"
        if not asked:
            return Said(path.name, word, (), str(error).splitlines()[0].split(": ", 1)[-1])
        question = asked[0]
        near = " ".join(c.name for c, _ in question.every[:1])
        return Said(path.name, word, tuple(_wrong_facts(question.facts, truth)), near, _place(question, truth))
    wrong = (*_wrong_facts(facts, truth), *_wrong_machine(machine, curve, truth))
    return Said(path.name, "settled", tuple(wrong), machine.name)


def _wrong_facts(facts: LogFacts, truth: Truth) -> Iterator[str]:
    """Facts that are not true; what was not read from the log is not wrong."""
    if None not in (facts.ranks, truth.ranks) and facts.ranks != truth.ranks:
        yield f"ranks {facts.ranks} for {truth.ranks}"
    if None not in (facts.nodes, truth.nodes) and facts.nodes != truth.nodes:
        yield f"hosts {facts.nodes} for {truth.nodes}"
    launch = "process_per_gpu" if facts.launch == "thread_per_gpu" else facts.launch
    if launch and truth.launch and launch != truth.launch and facts.ranks_per_node != 1:
        yield f"launch {facts.launch} for {truth.launch}"
    if facts.gpu and truth.gpu and not _same_chip(facts.gpu, truth.gpu):
        yield f"GPU {facts.gpu} for {truth.gpu}"


def _same_chip(logged: str, true: str) -> bool:
    return is_gpu(logged, true) or is_gpu(logged, true.split("(", maxsplit=1)[0]) or "Graphics Device" in logged


def _wrong_machine(machine: LogMachine, curve: Curve, truth: Truth) -> Iterator[str]:
    if truth.machine is None:
        return
    scenario = source_of(curve, machine)[0].scenario
    assert scenario is not None
    yield from unlike(build_topology(scenario), truth.machine)


def unlike(one: Topology, true: Topology) -> Iterator[str]:
    """In what a machine is another than the true one; the network counts where it is used."""
    pairs = [("GPU", one.gpu.model, true.gpu.model), ("nodes", one.nodes, true.nodes)]
    pairs += [("GPUs per node", one.ranks_per_node, true.ranks_per_node)]
    pairs += [("NVSwitch", one.has_nvswitch, true.has_nvswitch)]
    pairs += [("paths", [one.path_type(0, r) for r in _node(one)], [true.path_type(0, r) for r in _node(true)])]
    if true.nodes > 1:
        pairs += [("network", one.network, true.network), ("NICs", one.nics_per_node, true.nics_per_node)]
        if abs(one.nic_bandwidth / true.nic_bandwidth - 1) > RATES_AGREE:
            yield f"NICs of {one.nic_bandwidth / 1.25e8:.0f} Gb/s for {true.nic_bandwidth / 1.25e8:.0f}"
    yield from (f"{name} {said} for {truth}" for name, said, truth in pairs if said != truth)


def _node(topology: Topology) -> range:
    return range(1, topology.ranks_per_node)


def _place(question: Question, truth: Truth) -> int | None:
    """The place of the true machine among the candidates of a question, from 1; None where it is not there."""
    if truth.machine is None:
        return None
    for place, (candidate, _) in enumerate(question.every, start=1):
        for name in (candidate.name, *candidate.alike):
            built = load_preset(name, nodes=candidate.nodes, gpus_per_node=candidate.gpus_per_node)
            if not list(unlike(built, truth.machine)):
                return place
    return None


def hostile_files(count: int) -> list[Hostile]:
    """What becomes of so many mutants of each kind, and of floods."""
    logs = sorted((SHARED / "nccl" / "raw").glob("*.log"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            log_hostile.of_logs(logs, count // 4, folder / "logs"),
            log_hostile.of_tables(logs, count, folder / "tables"),
            *log_hostile.of_doctor(logs, count, folder / "doctor"),
            log_hostile.of_floods(logs[0], folder / "floods"),
        ]


def page(rows: Sequence[Said], hostile: Sequence[Hostile]) -> str:
    """The page of the documentation."""
    return f"""# What a raw log tells

Written by `python validation/raw_logs.py --write`; do not edit by hand.

{words_of("accuracy-raw-logs")}

`commsim compare LOG` takes the ranks, the hosts, the launch and the GPU from a log, and with them the machine. Where
several machines fit it asks, and where none does it refuses. The logs below are published ones as their authors left
them, many cut or edited. What is true of each stands in the index beside it: GPU, nodes, GPUs per node, and between
nodes the kind, number and rate of the NICs.

{summary(rows)}

"At place": where the true machine stands among the candidates of a question, which are ranked by how near their
predicted times are; a dash where its index does not name one that a preset could be, or no preset is it.

| log | said | machine, or the first candidate, or why not | at place | wrong |
|---|---|---|--:|---|
{"".join(_row(said) for said in rows)}
{hostile_table(hostile)}"""


def hostile_table(rows: Sequence[Hostile]) -> str:
    """The section on files that were damaged on purpose."""
    lines = [
        "## Hostile logs",
        "",
        f"{sum(row.files for row in rows):,} files: mutants of the logs above, of tables and of files for the doctor, "
        "and floods: long, deep, or thousands of tables. A file is refused with a message (exit 2) or answered with "
        "what is left of it; *failed* is anything else. Seconds are of the processor.",
        "",
        "| files | n | refused | answered | failed | slowest (s) | memory at most (MiB) |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.kind} | {row.files:,} | {row.refused:,} | {row.answered:,} | {row.failed} | {row.longest_s:.1f} | "
        f"{row.peak_mib} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _row(said: Said) -> str:
    place = "" if said.word != "asked" else said.place or "-"
    return f"| `{said.log}` | {said.word} | {said.machine} | {place} | {', '.join(said.wrong) or '-'} |\n"


def summary(rows: Sequence[Said]) -> str:
    """How many were settled, asked or refused, and how many of them wrong."""
    lines = ["| said | logs | something wrong |", "|---|--:|--:|"]
    for word in ("settled", "asked", "refused"):
        those = [said for said in rows if said.word == word]
        lines.append(f"| {word} | {len(those)} | {sum(bool(said.wrong) for said in those)} |")
    right = sum(not said.wrong for said in rows)
    lines.append(f"| all | {len(rows)} | {len(rows) - right} ({100 * right / len(rows):.0f} % right or asked) |")
    return "\n".join(lines)


def main(words: Iterable[str]) -> int:
    """Prints the table, and writes the page where asked to."""
    write = "--write" in words
    rows = [said_of(path, truth) for path, truth in raw_logs()]
    text = page(rows, hostile_files(MUTANTS if write else MUTANTS // 100))
    print(text)
    if write:
        write_atomically(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
