"""How often the true cause of a published degraded log is among the first that `commsim compare` names.

Logs and causes are those of `validation/degraded/PAIRS.csv`: the machine as it is when healthy, without the variables by
which the cause was set. Of a pair that its source gives as two bus bandwidths the degraded one stands for a log of one
size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commsim.accuracy.healthy import Healthy
from commsim.accuracy.posterior import AS_PREDICTED
from commsim.accuracy.whatif import likely
from commsim.document import Document
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.nccl.version import format_version
from commsim.scenario.load import check_document
from commsim.scenario.schema import Scenario
from study.case import Case
from study.degraded import Pair, outcomes, pairs_file, read_pairs
from study.index import index_rows
from study.paths import VALIDATION
from verdict_spread import tail_of

KINDS = (
    (r"one of the two nodes", ("node", "gdr")),
    (r"GPUDirect|ACS", ("gdr",)),
    (r"TCP", ("tcp",)),
    (r"PCIe ways", ("rate", "nics", "pcie")),
    (r"one NIC", ("nics",)),
    (r"NVSwitches do not reduce", ("nvls", "algorithm")),
    (r"switches do not reduce", ("sharp",)),
)
"""Kinds of `commsim.accuracy.causes` by the words for a cause in the file of pairs, which name more than one where it is
both: NCCL_ALGO=Ring takes the NVSwitch out of it too."""


@dataclass(frozen=True)
class Named:
    """The kinds that were named for a degraded log, the most probable first, and those that are true."""

    pair: str
    system: str
    cause: str
    true: tuple[str, ...]
    named: tuple[str, ...]
    probability: float  # of the true ones

    def among(self, first: int) -> bool:
        """Whether a true kind is among the first."""
        return bool(set(self.named[:first]) & set(self.true))


def degraded_offs() -> list[tuple[str, float]]:
    """System and ln(measured / predicted with the cause) of every degraded log that the model can be told."""
    all_of = outcomes(read_pairs(pairs_file()))
    return [(each.pair.system, -float(np.log(each.degraded))) for each in all_of if each.degraded is not None]


def named_causes(known: Healthy, offs: Sequence[tuple[str, float]]) -> Iterator[Named]:
    """What is named for each degraded log whose machine the model can be told, its system left out of the spreads."""
    rows = {row["slug"]: row for row in index_rows(pairs_file())}
    for pair in read_pairs(pairs_file()):
        if pair.cases is None:
            continue
        true = next(kinds for words, kinds in KINDS if re.search(words, pair.cause))
        healthy, _ = pair.cases
        told = {"NCCL_NET_GDR_LEVEL", "NCCL_NET", "NCCL_CROSS_NIC"}  # of the healthy machine, whatever it falls back to
        scenario = _scenario(healthy, set(re.findall(r"([A-Z_0-9]+)=", rows[pair.name].get("set_env", ""))) - told)
        others = known.model_copy(update={"degraded": tail_of([o for o in offs if o[0] != pair.system])})
        tried = [t for t in likely(scenario, _curve(pair, healthy, rows[pair.name]), known=others) if t.kind != AS_PREDICTED]
        kinds = tuple(dict.fromkeys(t.kind for t in tried))
        chance = sum(t.probability for t in tried if t.kind in true)
        yield Named(pair.name, pair.system, pair.cause, true, kinds, chance)


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


def _curve(pair: Pair, case: Case, cells: Mapping[str, str]) -> Curve:
    """The degraded log, or the size of the bus bandwidths that its source gives."""
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


def section(named: Sequence[Named]) -> str:
    """The section of the documentation's page."""
    systems = sorted({each.system for each in named})
    share = {n: np.mean([each.among(n) for each in named]) for n in (1, 2)}
    of_systems = {
        n: np.mean([np.mean([each.among(n) for each in named if each.system == system]) for system in systems])
        for n in (1, 2)
    }
    rows = "".join(
        f"| `{each.pair}` | {each.cause} | {', '.join(each.named[:3]) or '-'} | {100 * each.probability:.0f} |\n"
        for each in named
    )
    return f"""## Is the cause found?

Degraded logs whose source states the cause (`validation/degraded/PAIRS.csv`), on the machine as it is when healthy. "Mean
of systems" counts each system once.

| true cause | logs ({len(named)}) | mean of systems ({len(systems)}) |
|---|--:|--:|
| named first | {100 * share[1]:.0f} % | {100 * of_systems[1]:.0f} % |
| among the first two kinds | {100 * share[2]:.0f} % | {100 * of_systems[2]:.0f} % |

| log | cause, as its source says | kinds named, the most probable first | true one (%) |
|---|---|---|--:|
{rows}"""
