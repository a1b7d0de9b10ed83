"""What tuner rules decide, scored on pairs of published logs of one machine that ran different algorithms or protocols.

One log of a pair is what a user has: the model is fitted to it. At each size that both logs have, the fit says which of
the two choices is quicker and by how much; a rule is one that gains more than the margin of the other machines' pairs
and than the fit's own band. The other log, which the fit has not seen, confirms it or does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commsim.errors import CommsimError
from commsim.fitting.calibration import calibrate
from study.case import Case
from study.log import Entry, read_entries
from study.paths import VALIDATION
from study.system import System

Float64 = npt.NDArray[np.float64]

CHOICES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE")
"""Variables that say which algorithm or protocol runs."""

INSIDE = 0.8
"""Share of the errors of differences that the margin is to hold; gains have one side, so that nine of ten are real."""

NEAR = 0.4
"""Differences of predicted times, in ln, up to which their errors make the margin: beyond, the order is no question."""

LOSS = 0.05
"""A rule that makes a call slower by more does harm."""


@dataclass(frozen=True)
class Decision:
    """Two choices at one size: ln of the slower one's time over the quicker one's, as the fit to the first log says and
    as both logs do; `band`: of the fit, in ln."""

    system: str
    seen: str
    unseen: str
    nbytes: int
    quicker: str
    slower: str
    predicted: float
    measured: float
    band: float

    @property
    def error(self) -> float:
        """By how much the difference is off, in ln."""
        return abs(self.predicted - self.measured)


def chosen(case: Case) -> tuple[tuple[str, str], ...]:
    """The variables of a log that force a choice."""
    return tuple(sorted((k, v.lower()) for k, v in case.env.items() if k in CHOICES))


def pairs(entries: Iterable[Entry]) -> list[tuple[Entry, Entry]]:
    """Logs of one machine, publisher, version, collective and shape whose choices are forced unlike."""
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.log is not None:
            case = entry.case
            shape = case.collective, case.nodes, case.gpus_per_node, case.operation
            groups[case.system, case.version, _publisher(case), case.healthy, *shape].append(entry)
    return [
        pair for group in groups.values() for pair in combinations(group, 2) if len({chosen(e.case) for e in pair}) == 2
    ]


def _publisher(case: Case) -> str:
    """Host, owner and repository of a log's source."""
    return "/".join(case.row.get("source_url", "").split("/")[:5])


def folders() -> list[Path]:
    """The project's logs, and those that no parameter was chosen with."""
    return [VALIDATION / "measured", VALIDATION / "outside"]


def decisions(of: Iterable[tuple[Entry, Entry]] | None = None) -> list[Decision]:
    """Every size of every pair at which the two logs run different choices, either log being the one that is fitted."""
    out: list[Decision] = []
    for pair in pairs(read_entries(folders(), [])) if of is None else of:
        for seen, unseen in (pair, pair[::-1]):
            out += _of_pair(seen, unseen)
    return out


def _of_pair(seen: Entry, unseen: Entry) -> list[Decision]:
    assert seen.log is not None
    assert unseen.log is not None
    logs = [seen.log, unseen.log]
    system = System(logs)
    if len(system.known()) < 2:
        return []
    try:
        fit = calibrate(system.model([(0, None)]), [logs[0].curve()])
    except CommsimError:  # it determines nothing: the shipped parameters stand
        return []
    seconds = [system.model([(i, None)]).times(fit.x) for i in (0, 1)]
    band = float(np.log(max(fit.band[1], 1 / fit.band[0]))) if fit.band is not None else 0.0
    out = []
    for nbytes in sorted(set(logs[0].nbytes) & set(logs[1].nbytes)):
        at = [list(log.nbytes).index(nbytes) for log in logs]
        names = [system.facts(i).choices[at[i]] for i in (0, 1)]
        if names[0] == names[1]:
            continue
        predicted = float(np.log(seconds[0][at[0]] / seconds[1][at[1]]))
        measured = float(np.log(logs[0].undisturbed_s[at[0]] / logs[1].undisturbed_s[at[1]]))
        if predicted < 0:
            predicted, measured, names = -predicted, -measured, names[::-1]
        case = seen.case
        slugs = case.slug, unseen.case.slug
        out.append(Decision(case.system, *slugs, int(nbytes), names[1], names[0], predicted, measured, band))
    return out


def margin(some: Collection[Decision]) -> float:
    """The factor that a predicted difference must exceed: pairs count alike, however many sizes they share."""
    near = [d for d in some if d.predicted <= NEAR]
    count: dict[tuple[str, str], int] = defaultdict(int)
    for d in near:
        count[d.seen, d.unseen] += 1
    errors = np.array([d.error for d in near])
    weight = np.array([1.0 / count[d.seen, d.unseen] for d in near])
    order = np.argsort(errors)
    place = np.cumsum(weight[order]) - weight[order] / 2
    return float(np.exp(np.interp(INSIDE * weight.sum(), place, errors[order])))


def rules(some: Collection[Decision]) -> list[Decision]:
    """The decisions that `commsim tune` would write, each with the margin of other machines' pairs."""
    out = []
    for system in sorted({d.system for d in some}):
        least = float(np.log(margin([d for d in some if d.system != system])))
        out += [d for d in some if d.system == system and d.predicted > max(least, d.band)]
    return out
