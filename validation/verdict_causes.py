"""How often the true cause of a published degraded log is among the first that `commsim compare` names.

Logs and causes are those of `validation/degraded/PAIRS.csv`: the machine as it is when healthy, without the variables
by which the cause was set. Of a pair that its source gives as two bus bandwidths the degraded one stands for a log of
one size. How probable kinds are before a log is seen is counted over the systems of all rows, those that cannot be
predicted too, the system in question left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from verdict_spread import tail_of

from commsim.accuracy.healthy import LARGE_ABOVE, Healthy, Tail
from commsim.accuracy.posterior import AS_PREDICTED, NONE, band_of
from commsim.accuracy.whatif import indistinct, likely
from commsim.document import Document
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.nccl.version import format_version
from commsim.scenario.load import check_document
from commsim.scenario.schema import Scenario
from study.case import Case
from study.degraded import Pair, pairs_file, read_pairs
from study.index import index_rows
from study.paths import VALIDATION
from study.system import times

KINDS = (
    (r"one of the two nodes", ("node", "gdr")),
    (r"slow node", ("node",)),
    (r"virtual machines", (NONE,)),
    (r"GPUDirect|ACS", ("gdr",)),
    (r"TCP", ("tcp",)),
    (r"PCIe ways", ("rate", "nics", "pcie")),
    (r"one NIC", ("nics",)),
    (r"NVSwitches do not reduce", ("nvls", "algorithm")),
    (r"switches do not reduce", ("sharp",)),
)
"""Kinds of `commsim.accuracy.causes` by the words for a cause in the file of pairs; more than one where it is both:
NCCL_ALGO=Ring takes the NVSwitch out of it too."""


@dataclass(frozen=True)
class Named:
    """The kinds that were named for a degraded log, the most probable first, and those that are true."""

    pair: str
    system: str
    cause: str
    true: tuple[str, ...]
    named: tuple[str, ...]  # and that it is none of those tried, where that is as probable
    together: tuple[str, ...]  # the first, and those that the log cannot tell from it
    probability: float  # of the true ones

    def among(self, first: int) -> bool:
        """Whether a true kind is among the first."""
        return bool(set(self.named[:first]) & set(self.true))


Offs = Sequence[tuple[str, int, float]]
"""System, band of sizes and ln(measured / predicted with the cause), the median of a band of a degraded log."""


def degraded_offs() -> Offs:
    """Of every degraded log that the model can be told."""
    offs = []
    for pair in read_pairs(pairs_file()):
        seconds = times(pair.cases[1], pair.sizes) if pair.cases else ""
        if not isinstance(seconds, str):
            off, band = np.log(pair.degraded_s / seconds), band_of(np.array(pair.sizes))
            offs += [(pair.system, int(b), float(np.median(off[band == b]))) for b in np.unique(band)]
    return offs


def degraded_spread(offs: Offs, without: str | None = None) -> tuple[Tail, ...]:
    """In the bands above 1 MiB, one system left out."""
    bands = sorted({band for _, band, _ in offs if band >= band_of(np.array([LARGE_ABOVE + 1]))[0]})
    return tuple(tail_of([(s, off) for s, b, off in offs if b == band and s != without]) for band in bands)


def cause_counts(without: str | None = None) -> dict[str, float]:
    """How many systems have a cause of each kind, one system left out; kinds that are true at once share a system."""
    kinds: dict[str, list[str]] = {}
    for pair in read_pairs(pairs_file()):
        if pair.system != without:
            kinds.setdefault(pair.system, []).extend(true_kinds(pair.cause))
    counts: dict[str, float] = {}
    for listed in kinds.values():
        for kind in listed:
            counts[kind] = counts.get(kind, 0.0) + 1 / len(listed)
    return {kind: round(count, 4) for kind, count in sorted(counts.items())}


def true_kinds(cause: str) -> tuple[str, ...]:
    """The kinds of a cause in words."""
    return next(kinds for words, kinds in KINDS if re.search(words, cause))


def named_causes(known: Healthy, offs: Offs) -> Iterator[Named]:
    """What is named for each degraded log whose machine the model can be told, its system left out of the spreads."""
    rows = {row["slug"]: row for row in index_rows(pairs_file())}
    for pair in read_pairs(pairs_file()):
        if pair.cases is None:
            continue
        true = true_kinds(pair.cause)
        healthy, _ = pair.cases
        told = {"NCCL_NET_GDR_LEVEL", "NCCL_NET", "NCCL_CROSS_NIC"}  # of the healthy machine, whatever it falls back to
        scenario = _scenario(healthy, set(re.findall(r"([A-Z_0-9]+)=", rows[pair.name].get("set_env", ""))) - told)
        others = known.model_copy(
            update={"degraded": degraded_spread(offs, pair.system), "causes": cause_counts(pair.system)}
        )
        every = likely(scenario, degraded_curve(pair, rows[pair.name]), known=others)
        tried = [t for t in every if t.kind != AS_PREDICTED]
        chances = [(t.probability, t.kind) for t in tried] + [(1 - sum(t.probability for t in every), NONE)]
        kinds = tuple(dict.fromkeys(kind for _, kind in sorted(chances, key=lambda c: -c[0]))) if tried else ()
        chance = sum(t.probability for t in tried if t.kind in true)
        together = tuple(dict.fromkeys(t.kind for t in indistinct(tried))) if tried else ()
        yield Named(pair.name, pair.system, pair.cause, true, kinds, together, chance)


def _scenario(case: Case, without: set[str]) -> Scenario:
    env = {name: value for name, value in case.env.items() if name not in without}
    library = {"name": "nccl", "env": env, "launch_mode": case.launch or "process_per_gpu"}
    if case.version is not None:
        library["version"] = format_version(case.version)
    work = {"collective": case.collective, "sizes": "1 GiB"}
    plain = {"name": case.slug, "topology": case.machine, "library": library, "workload": [work]}
    scenario, faults = check_document(Document(file=case.slug, data=plain, marks={}), Path())
    if scenario is None or faults:
        raise ValueError(f"{case.slug}: {faults}")
    return scenario


def beside_healthy() -> Iterator[tuple[Pair, set[str], Curve, np.ndarray]]:
    """Of each degraded log that the model can be told: its logs' names, and ln(measured / predicted) when healthy."""
    rows = {row["slug"]: row for row in index_rows(pairs_file())}
    for pair in read_pairs(pairs_file()):
        if pair.cases is None:
            continue
        curve = degraded_curve(pair, rows[pair.name])
        seconds = times(pair.cases[0], curve.size_bytes.tolist())
        if not isinstance(seconds, str):
            names = {rows[pair.name]["healthy_log"], rows[pair.name]["degraded_log"]}
            yield pair, names, curve, np.log(curve.time_s / seconds)


def degraded_curve(pair: Pair, cells: Mapping[str, str]) -> Curve:
    """The degraded log, or the size of the bus bandwidths that its source gives."""
    assert pair.cases is not None
    case = pair.cases[0]
    for folder in (pairs_file().parent, VALIDATION / "measured", VALIDATION / "outside"):
        if (path := folder / f"{cells['degraded_log']}.csv").is_file():
            return read_measured(path, collective=case.collective, n_ranks=case.n_ranks)[0]
    return Curve(
        name=pair.name,
        collective=case.collective,
        n_ranks=case.n_ranks,
        kind="measured",
        size_bytes=np.array(pair.sizes, np.int64),
        time_s=pair.degraded_s,
    )


def shares(of: Sequence[tuple[str, bool]]) -> str:
    """Cells of a table: the share of logs, by system, for which something holds; the mean and the median of systems."""
    logs: dict[str, list[bool]] = {}
    for system, holds in of:
        logs.setdefault(system, []).append(holds)
    systems = [float(np.mean(each)) for each in logs.values()]
    figures = (np.mean([holds for _, holds in of]), np.mean(systems), np.median(systems))
    return " | ".join(f"{100 * float(figure):.0f} %" for figure in figures)


def section(named: Sequence[Named], caught: Sequence[tuple[str, bool]]) -> str:
    """The section of the documentation's page; `caught`: by system, whether a degraded log is called slower."""
    systems = {each.system for each in named}
    together = [(each.system, bool(set(each.together) & set(each.true))) for each in named]
    rows = "".join(
        f"| `{each.pair}` | {each.cause} | {', '.join(each.named[:3]) or '-'} | {100 * each.probability:.0f} |\n"
        for each in named
    )
    return f"""## Is the cause found?

Degraded logs whose source states the cause (`validation/degraded/PAIRS.csv`), on the machine as it is when healthy,
the spreads without their system. Before a log is seen, kinds of causes are as probable as they are among the published
degraded systems, their own left out, each kind once more; that it is none of those tried is a kind, and takes a place
among the first two. Systems count once; of their shares the mean and the median. Kinds are named together where one is
at least a third as probable as the first. How spreads become probabilities was chosen with this table in view.

| | logs ({len(named)}) | mean of systems ({len(systems)}) | median of systems |
|---|--:|--:|--:|
| caught: called slower | {shares(caught)} |
| true cause named first | {shares([(each.system, each.among(1)) for each in named])} |
| true cause among the first two kinds | {shares([(each.system, each.among(2)) for each in named])} |
| true cause among those that are named together | {shares(together)} |

| log | cause, as its source says | kinds named, the most probable first | true one (%) |
|---|---|---|--:|
{rows}"""
