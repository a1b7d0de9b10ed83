"""The model against every measured curve of a folder: errors of each log, medians, baselines.

The error of a log is that of `commsim.accuracy.compare`: the mean of |predicted - measured| / measured over its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.accuracy.compare import BANDS
from commsim.nccl.version import format_version
from commsim.processes import Pool
from study.baselines import FREE_FIT, NAMES, three_lines
from study.case import Case
from study.cases import CLASSES, fabric_class, load_cases
from study.log import Entry, Float64, Log, chosen, read_cases
from study.modes import ALONE, BESIDE, Outcome, nothing_scored, outcomes
from study.paths import VALIDATION
from study.reasons import Miss, explain, off_by
from study.system import Facts, System

BAND_NAMES = ("small", "mid", "large")
FIGURES = ("mape", *(f"mape_{b}" for b in BAND_NAMES))

Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]


@dataclass(frozen=True, eq=False)
class Scored:
    """A listed case: its log, what is said of its machine, and the outcome of every mode; `reason`: why it has none."""

    case: Case
    log: Log | None
    reason: str = ""
    facts: Facts = field(default_factory=Facts)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def fabric(self) -> str:
        """The network, ``one_node`` where there is none, blank where the machine is not known."""
        if self.log is None:
            return "one_node" if self.case.nodes == 1 else ""
        return "one_node" if self.facts.network == "none" else self.facts.network

    @property
    def fabric_class(self) -> str:
        """The class of `CLASSES`, blank where the machine is not known."""
        return fabric_class(self.fabric, 1 if self.fabric == "one_node" else 2) if self.fabric else ""

    @property
    def degraded(self) -> bool:
        """Whether it is known to be: in no median."""
        return self.case.healthy == "no"


@dataclass(frozen=True, eq=False)
class Validation:
    """The listed cases with all outcomes, and why the worst ones as shipped are off, by slug."""

    listed: Sequence[Scored]
    modes: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def scored(self, mode: str) -> list[Scored]:
        """The cases that are predicted and not known degraded, in a mode."""
        return [each for each in self.listed if mode in each.outcomes and not each.degraded]


def training_folder() -> Path:
    """The project's own measured curves."""
    return VALIDATION / "measured"


def validate(
    folders: Sequence[Path],
    modes: Sequence[str],
    case_files: Sequence[Path] = (),
    only: Sequence[str] | None = None,
    workers: int = 2,
    progress: Progress | None = None,
    *,
    reasons: bool = False,
) -> Validation:
    """Predict the logs of folders in some modes; `only` limits what is scored to slugs that match one of the patterns.

    Fits see the logs of the same system in these folders, also those that are not scored. A system is predicted by one
    process, which keeps the graphs that it has searched.
    """
    cases = load_cases(folders, case_files)
    scored = chosen(cases, folders, only)
    slugs = {case.slug for case in scored}
    entries = read_cases(case for case in cases if case.slug in slugs or _needed(case, scored, modes))
    wanted = {id(entry) for entry in entries if entry.case.slug in slugs}
    systems: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.log is not None:
            systems.setdefault(entry.case.system, []).append(entry)
    jobs = [
        _Job(tuple(e.log for e in members if e.log), tuple(k for k, e in enumerate(members) if id(e) in wanted), modes)
        for members in systems.values()
    ]
    order = sorted((k for k, job in enumerate(jobs) if job.wanted), key=lambda k: -jobs[k].cost)
    made: dict[int, tuple[Facts, dict[str, Outcome]]] = {}
    with Pool(min(workers, 1 + len(wanted) // _LOGS_OF_A_PROCESS)) as pool:
        results = pool.map(_predict, [jobs[k] for k in order])
        shown = results if progress is None else progress(results, "systems", len(order))
        for k, result in zip(order, shown, strict=True):
            members = list(systems.values())[k]
            made |= {id(members[i]): each for i, each in result.items()}
        listed = [_scored(entry, made.get(id(entry))) for entry in entries if id(entry) in wanted]
        validation = Validation(listed, tuple(modes))
        if reasons and "zero-shot" in modes:
            return Validation(listed, tuple(modes), _reasons(validation, entries, pool))
    return validation


_LOGS_OF_A_PROCESS = 16
"""Logs for which another process is started: it takes as long to begin as some of them."""


def _needed(case: Case, scored: Sequence[Case], modes: Sequence[str]) -> bool:
    """Whether a log is needed beside those that are scored: to fit their system, or to say why they are off."""
    alone = set(modes) <= set(ALONE)
    return any(_same_call(case, one) if alone else case.system == one.system for one in scored)


@dataclass(frozen=True, eq=False)
class _Job:
    logs: tuple[Log, ...]
    wanted: tuple[int, ...]
    modes: Sequence[str]

    @property
    def cost(self) -> int:
        """What orders the jobs: many ranks begin first."""
        return sum(log.case.n_ranks for log in self.logs)


def _predict(job: _Job) -> dict[int, tuple[Facts, dict[str, Outcome]]]:
    system = System(job.logs)
    wanted = set(system.known(job.wanted))
    made = {mode: outcomes(system, mode, wanted) for mode in job.modes}
    return {i: (system.facts(i), {mode: made[mode][i] for mode in made if i in made[mode]}) for i in job.wanted}


def _scored(entry: Entry, made: tuple[Facts, dict[str, Outcome]] | None) -> Scored:
    if made is None:
        return Scored(entry.case, None, entry.reason)
    facts, by_mode = made
    if facts.fault:
        return Scored(entry.case, None, facts.fault)
    return Scored(entry.case, entry.log, "", facts, by_mode)


def _reasons(validation: Validation, entries: Sequence[Entry], pool: Pool) -> dict[str, str]:
    """Why the worst logs as shipped are off (`study.reasons`), by slug."""
    place = {each.case.slug: each for each in validation.listed}
    misses: list[Miss] = []
    same: list[list[Log]] = []
    for row in _worst([_row(validation, each, "zero-shot") for each in validation.listed]):
        each = place[str(row["slug"])]
        assert each.log is not None
        outcome = each.outcomes["zero-shot"]
        misses.append(Miss(each.log, outcome.seconds, outcome.scored, each.facts.choices))
        alike = (e.log for e in entries if e.case.slug != each.case.slug and _same_call(e.case, each.case))
        same.append([log for log in alike if log is not None])
    texts = explain(misses, same, pool)
    return {miss.log.case.slug: text for miss, text in zip(misses, texts, strict=True)}


def _same_call(a: Case, b: Case) -> bool:
    return (a.system, a.collective, a.n_ranks, a.nodes) == (b.system, b.collective, b.n_ranks, b.nodes) and (
        a.healthy != "no"
    )


def record(validation: Validation, mode: str) -> dict[str, object]:
    """The figures of one mode as plain values: ``per_log``, ``medians``, ``worst``; errors in percent.

    ``beside``: by the names of `study.modes.BESIDE`, the medians of another road and of the mode on the same logs.
    ``worse``: by how many points logs are worse than as shipped by what the mode has seen, the worst first.
    """
    per_log = [_row(validation, each, mode) for each in validation.listed]
    keys = ("slug", "mape", "worst_pct", "worst_bytes", "reason")
    out: dict[str, object] = {
        "mode": mode,
        "per_log": per_log,
        "medians": medians(_healthy(per_log)),
        "worst": [{k: r[k] for k in keys} for r in _worst(per_log)],
    }
    beside = {}
    for name in BESIDE:
        some = [each for each in validation.scored(mode) if name in each.outcomes[mode].beside]
        theirs = _healthy([_row(validation, each, mode, name) for each in some])
        if theirs:
            listed = {r["slug"] for r in theirs}
            beside[name] = {
                "per_log": [{"slug": r["slug"], "mape": r["mape"]} for r in theirs],
                "theirs": medians(theirs),
                "ours": medians([r for r in _healthy(per_log) if r["slug"] in listed]),
            }
        if name == "shipped" and theirs:
            before = {r["slug"]: float(str(r["mape"])) for r in theirs}
            points = {r["slug"]: float(str(r["mape"])) - before[r["slug"]] for r in _healthy(per_log)}
            out["worse"] = {
                str(slug): _rounded(by) for slug, by in sorted(points.items(), key=lambda pair: -pair[1]) if by > 0
            }
    return out | ({"beside": beside} if beside else {})


def _healthy(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return [r for r in rows if r["healthy"] != "no" and r["mape"] is not None]


def _worst(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(_healthy(rows), key=lambda r: -float(str(r["mape"])))[:10]


def _row(validation: Validation, each: Scored, mode: str, road: str = "") -> dict[str, object]:
    """The figures of a log in a mode, or of another road beside it."""
    case = each.case
    row: dict[str, object] = {
        "slug": case.slug,
        "collective": case.collective,
        "system": case.system,
        "fabric": each.fabric,
        "class": each.fabric_class,
        "healthy": case.healthy,
        "n_ranks": case.n_ranks,
        "n_nodes": case.nodes,
        "rows": 0,
        **dict.fromkeys(FIGURES),
        "bias_pct": None,
        "worst_pct": None,
        "worst_bytes": None,
        "version": format_version(case.version) if case.version else "",
        "launch": case.launch,
        "choice": "",
        "warnings": [*case.notes, *each.facts.warnings],
        "reason": each.reason,
    }
    if each.log is None:
        return row
    log, outcome = each.log, each.outcomes.get(mode) or nothing_scored(each.log, "not scored")
    seconds = outcome.beside[road] if road else outcome.seconds
    keep = outcome.scored & np.isfinite(seconds)
    if not keep.any():
        return row | {"reason": outcome.reason or "no size is left to score"}
    size = log.size[keep]
    ratio = seconds[keep] / log.time_s[keep]
    worst = int(np.argmax(np.abs(ratio - 1)))
    choices = np.array(outcome.choices or each.facts.choices)[keep].tolist()
    reason = f"{off_by(float(ratio[worst]))} at {size[worst]} B, predicted with {choices[worst]}"
    return row | {
        "rows": int(keep.sum()),
        **figures(size, np.abs(ratio - 1)),
        "bias_pct": _rounded(100 * float(np.expm1(np.median(np.log(ratio))))),
        "worst_pct": _rounded(100 * float(ratio[worst] - 1)),
        "worst_bytes": int(size[worst]),
        "choice": _spans(size.tolist(), choices),
        "reason": validation.reasons.get(case.slug, reason) if mode == "zero-shot" else reason,
    }


def figures(size: npt.NDArray[np.int64], error: Float64) -> dict[str, float | None]:
    """MAPE in percent, overall and by band; None where a band has no size."""
    out: dict[str, float | None] = {"mape": _rounded(100 * float(error.mean())) if error.size else None}
    for name, above, up_to in BANDS:
        if name in BAND_NAMES:
            rows = (size > above) & (size <= up_to)
            out[f"mape_{name}"] = _rounded(100 * float(error[rows].mean())) if rows.any() else None
    return out


def medians(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Medians over logs, and over systems of the median over their logs: by class, collective and system."""

    def over(picked: Sequence[Mapping[str, object]]) -> dict[str, object]:
        by: dict[str, list[Mapping[str, object]]] = {}
        for r in picked:
            by.setdefault(str(r["system"]), []).append(r)
        logs = {f: _median([r[f] for r in picked]) for f in FIGURES}
        systems = {f: _median([_median([r[f] for r in members]) for members in by.values()]) for f in FIGURES}
        return {"n_logs": len(picked), "n_systems": len(by), "logs": logs, "systems": systems}

    def split(key: str, names: Iterable[str]) -> dict[str, object]:
        return {name: over(chosen) for name in names if (chosen := [r for r in rows if r[key] == name])}

    return {
        "all": over(rows),
        "by_class": split("class", CLASSES),
        "by_collective": split("collective", sorted({str(r["collective"]) for r in rows})),
        "by_system": split("system", sorted({str(r["system"]) for r in rows})),
    }


def baseline_record(validation: Validation) -> dict[str, object]:
    """The medians of the models that a prediction has to beat, on the same logs."""
    baselines: dict[str, object] = {}
    for name in (*NAMES, FREE_FIT):
        rows: list[dict[str, object]] = []
        for each in validation.listed:
            log, simple = each.log, each.facts.baselines
            if log is None or simple is None or each.degraded:
                continue
            seconds = three_lines(log.nbytes, log.time_s) if name == FREE_FIT else simple[name]
            conditions: dict[str, object] = {
                "system": each.case.system,
                "collective": each.case.collective,
                "class": each.fabric_class,
            }
            rows.append(conditions | figures(log.size, np.abs(seconds / log.time_s - 1)))
        summary = medians(rows)
        baselines[name] = {"all": summary["all"], "by_class": summary["by_class"]}
    return baselines


def _spans(sizes: Sequence[int], choices: Sequence[str]) -> str:
    spans: list[str] = []
    last = ""
    for n, choice in zip(sizes, choices, strict=True):
        if choice != last:
            spans.append(f"{choice} from {n} B" if spans else choice)
            last = choice
    return ", ".join(spans)


def _median(values: Iterable[object]) -> float | None:
    known = [float(str(v)) for v in values if v is not None]
    return _rounded(float(np.median(known))) if known else None


def _rounded(value: float) -> float:
    return round(value, 2)
