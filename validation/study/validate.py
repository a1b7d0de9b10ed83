"""The model against every measured curve of a folder: errors of each log, medians, baselines.

The error of a log is that of `commsim.accuracy.compare`: the mean of |predicted - measured| / measured over its sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commsim.accuracy.compare import BANDS
from commsim.accuracy.fields import space
from commsim.errors import CommsimError, ScenarioError
from commsim.measure.parsers import read_measured
from commsim.nccl.operation import Operation
from commsim.nccl.version import format_version
from study.anchors import anchored
from study.baselines import FREE_FIT, NAMES, three_lines
from study.case import Case
from study.case_planes import CasePlanes
from study.cases import CLASSES, fabric_class, load_cases
from study.modes import DRAWN, MOST_NODES, Plan, Study
from study.paths import VALIDATION
from study.pooled_fit import Log, stack
from study.reasons import Miss, explain, off_by
from study.workers import Workers

Float64 = npt.NDArray[np.float64]

LEAST_ROWS = 4
"""A log with fewer sizes is not scored."""

OFF = 0.05
"""Mean relative error of planes at a fit's result from which on new ones are made there."""

ROUNDS = 1

BAND_NAMES = ("small", "mid", "large")
FIGURES = ("mape", *(f"mape_{b}" for b in BAND_NAMES))


@dataclass(frozen=True, eq=False)
class Entry:
    """A log of the list; `log` is its place among those that can be predicted, None with a reason elsewhere."""

    case: Case
    log: int | None
    reason: str = ""
    note: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Validation:
    """Everything a validation needs, and what it found: per mode the predicted seconds of every log."""

    entries: Sequence[Entry]
    study: Study
    planes: Mapping[int, CasePlanes]
    zero: Mapping[str, Float64]
    whole: Float64  # the fit on all training logs
    modes: dict[str, tuple[Plan, list[Float64]]] = field(default_factory=dict)
    alone: dict[str, list[Float64]] = field(default_factory=dict)  # the same before they were drawn through any size
    line: dict[str, list[Float64]] = field(default_factory=dict)  # the straight line through these sizes, no model
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)  # by mode and slug, of the worst logs

    def fabric(self, entry: Entry) -> str:
        """The network of a log, ``one_node`` where there is none, blank where the machine is not known."""
        if entry.log is None:
            return "one_node" if entry.case.nodes == 1 else ""
        network = self.planes[entry.log].network
        return "one_node" if network == "none" else network

    def fabric_class(self, entry: Entry) -> str:
        """The class of `CLASSES`, blank where the machine is not known."""
        fabric = self.fabric(entry)
        return fabric_class(fabric, 1 if fabric == "one_node" else 2) if fabric else ""


def training_folder() -> Path:
    """The project's own measured curves."""
    return VALIDATION / "measured"


def prepare(
    workers: Workers,
    folders: Sequence[Path],
    case_files: Sequence[Path] = (),
    only: Sequence[str] | None = None,
) -> Validation:
    """Reads the logs, predicts them once with the slopes of all fitted fields, and refits for every system.

    The fits see the project's measured curves that are known to be healthy, whatever folders are scored; `only` limits
    what is scored to slugs that match one of the patterns.
    """
    scored = _chosen(load_cases(folders, case_files), folders, only)
    own = training_folder()
    entries, logs = _read(scored)
    at = {e.case.slug: e.log for e in entries if e.log is not None}
    project = set()  # indices of the logs that are the project's, under whatever folder they are scored
    more = load_cases([own]) if any(own.glob("INDEX_*.csv")) else []
    for log in _read(c for c in more if c.nodes <= MOST_NODES)[1]:
        twin = at.get(log.case.slug)
        if twin is None or not _same_curve(logs[twin], log):
            twin = len(logs)
            logs.append(log)
        project.add(twin)
    start = np.zeros(len(space().fields))
    first = workers.planes(logs, [start] * len(logs))
    good = [i for i in range(len(logs)) if not isinstance(first[i], str)]
    place = {i: k for k, i in enumerate(good)}
    planes = {k: p for k, i in enumerate(good) if isinstance(p := first[i], CasePlanes)}
    kept = [logs[i] for i in good]
    train = frozenset(
        k
        for k, i in enumerate(good)
        if logs[i].case.healthy == "yes" and logs[i].case.nodes <= MOST_NODES and (not more or i in project)
    )
    study = Study(kept, stack(kept, [planes]), train)
    whole = study.everything()
    zero = study.zero_shot(sorted({e.case.system for e in kept}))
    listed = []
    for entry in entries:
        if entry.log is None:
            listed.append(entry)
            continue
        made = first[entry.log]
        if isinstance(made, str):
            listed.append(Entry(entry.case, None, made))
        else:
            listed.append(Entry(entry.case, place[entry.log], note=(*entry.case.notes, *made.warnings)))
    return Validation(listed, study, planes, zero, whole)


def read_logs(folders: Sequence[Path], only: Sequence[str] | None = None) -> list[Log]:
    """The logs of folders that can be read, of slugs that match one of the patterns where there are any."""
    return _read(_chosen(load_cases(folders), folders, only))[1]


def _chosen(cases: list[Case], folders: Sequence[Path], only: Sequence[str] | None) -> list[Case]:
    if only is None:
        return cases
    chosen = [c for c in cases if any(fnmatchcase(c.slug, p) for p in only)]
    if not chosen:
        raise ScenarioError(f"no log of {', '.join(map(str, folders))} matches {', '.join(only)}")
    return chosen


def _same_curve(one: Log, other: Log) -> bool:
    return one.nbytes == other.nbytes and np.allclose(one.time_s, other.time_s, rtol=1e-3)


def _read(cases: Iterable[Case]) -> tuple[list[Entry], list[Log]]:
    entries: list[Entry] = []
    logs: list[Log] = []
    for case in cases:
        reason = case.fault
        if not reason:
            try:
                curve = next(
                    (c for c in read_measured(case.path, collective=case.collective, n_ranks=case.n_ranks)), None
                )
            except CommsimError as error:
                reason = str(error).splitlines()[0]
            else:
                if curve is None or len(curve) < LEAST_ROWS:
                    reason = f"fewer than {LEAST_ROWS} sizes"
                else:
                    measured = replace(case, operation=Operation.named(curve.dtype, curve.redop))
                    entries.append(Entry(measured, len(logs)))
                    sizes = tuple(int(n) for n in curve.size_bytes)
                    logs.append(Log(measured, sizes, curve.time_s, curve.undisturbed_s()))
                    continue
        entries.append(Entry(case, None, reason))
    return entries, logs


def score(validation: Validation, mode: str, workers: Workers) -> None:
    """Predict every listed log in a mode; `validation.modes` holds the result.

    Where the planes were off by more than `OFF` at what a fit of the mode has found, the planes there join them and
    the fit is repeated, `ROUNDS` times at most (on up to `MOST_NODES`).
    """
    study, zero = validation.study, dict(validation.zero)
    listed = {e.log for e in validation.entries if e.log is not None}
    plan = study.plan(mode, zero, listed)
    seconds = _predicted(study, listed | plan.fitted, plan, workers, mode)
    more: list[dict[int, CasePlanes]] = []
    for _ in range(ROUNDS):
        few = [i for i in sorted(plan.fitted) if study.logs[i].case.nodes <= MOST_NODES]
        far = [i for i in few if _off(study, plan, seconds, i) > OFF]
        if not far:
            break
        points = [x for i in far if (x := plan.at[i]) is not None]
        made = workers.planes([study.logs[i] for i in far], points, f"{mode}, slopes")
        more.append({i: p for i, p in zip(far, made, strict=True) if isinstance(p, CasePlanes)})
        study = replace(study, rows=stack(study.logs, [validation.planes, *more]))
        before, plan = plan, study.plan(mode, zero, listed)
        seconds = _predicted(study, listed | plan.fitted, plan, workers, mode, (before, seconds))
    if mode in DRAWN:
        validation.alone[mode] = seconds
        validation.line[mode], seconds = _through_known(validation, plan, seconds, workers)
    validation.modes[mode] = (plan, seconds)


def _through_known(
    validation: Validation, plan: Plan, seconds: Sequence[Float64], workers: Workers
) -> tuple[list[Float64], list[Float64]]:
    """The line through the known sizes of each curve, and the predictions drawn through them: of a fit and of none."""
    study = validation.study
    if "zero-shot" in validation.modes:
        unfitted = validation.modes["zero-shot"][1]
    else:
        unfitted = _predicted(study, plan.fitted, study.plan("zero-shot", dict(validation.zero)), workers, "zero-shot")
    lines, drawn = list(seconds), list(seconds)
    for i in plan.fitted:
        log = study.logs[i]
        known = np.flatnonzero(~plan.scored[i]).tolist()
        lines[i] = anchored(log.nbytes, [], known, log.undisturbed_s)
        drawn[i] = anchored(log.nbytes, [seconds[i], unfitted[i]], known, log.undisturbed_s)
    return lines, drawn


def _off(study: Study, plan: Plan, seconds: Sequence[Float64], log: int) -> float:
    """Mean relative distance of a log's planes from its prediction."""
    x = plan.at[log]
    if x is None or not np.isfinite(seconds[log]).all():
        return 0.0
    planes, _ = study.rows.predicted(x, space().sign, study.rows.of_logs([log]))
    return float(np.mean(np.abs(planes / seconds[log] - 1)))


def _predicted(
    study: Study,
    wanted: Iterable[int],
    plan: Plan,
    workers: Workers,
    label: str,
    before: tuple[Plan, list[Float64]] | None = None,
) -> list[Float64]:
    """Seconds of the wanted logs; those of a plan before where a log's point has not moved."""
    logs = study.logs
    seconds = [np.full(len(entry.nbytes), np.nan) for entry in logs]
    moved: list[tuple[int, Float64]] = []
    for i in sorted(wanted):
        x = plan.at[i]
        if x is None:
            continue
        if before is not None and (last := before[0].at[i]) is not None and np.array_equal(last, x):
            seconds[i] = before[1][i]
        else:
            moved.append((i, x))
    predicted = workers.times([logs[i] for i, _ in moved], [x for _, x in moved], label)
    for (i, _), values in zip(moved, predicted, strict=True):
        seconds[i] = values
    return seconds


def find_reasons(validation: Validation, mode: str, workers: Workers) -> None:
    """Say why the worst logs of a mode are off (`study.reasons`); `validation.reasons` holds it."""
    plan, seconds = validation.modes[mode]
    logs = validation.study.logs
    place = {e.case.slug: e.log for e in validation.entries}
    misses: list[Miss] = []
    same: list[list[Log]] = []
    for row in _worst([_row(validation, entry, plan, seconds) for entry in validation.entries]):
        i = place[str(row["slug"])]
        assert i is not None
        x = plan.at[i]
        assert x is not None
        at = {n: k for k, n in enumerate(validation.planes[i].nbytes)}
        choices = [validation.planes[i].choices[at[n]] for n in logs[i].nbytes]
        misses.append(Miss(logs[i], x, seconds[i], plan.scored[i], choices))
        same.append([other for k, other in enumerate(logs) if k != i and _same_call(logs[i].case, other.case)])
    texts = explain(misses, same, workers)
    validation.reasons[mode] = {miss.log.case.slug: text for miss, text in zip(misses, texts, strict=True)}


def _same_call(a: Case, b: Case) -> bool:
    return (a.system, a.collective, a.n_ranks, a.nodes) == (b.system, b.collective, b.n_ranks, b.nodes) and (
        b.healthy != "no"
    )


def record(validation: Validation, mode: str) -> dict[str, object]:
    """The figures of one mode as plain values: ``per_log``, ``medians``, ``worst``; errors in percent.

    ``medians_alone`` and ``medians_line``, of modes that draw predictions through measured sizes: those of the fitted
    parameters alone, and of a straight line through the sizes.
    """
    plan, seconds = validation.modes[mode]
    why = validation.reasons.get(mode, {})
    per_log = [_row(validation, entry, plan, seconds) for entry in validation.entries]
    for row in per_log:
        row["reason"] = why.get(str(row["slug"]), row["reason"])
    keys = ("slug", "mape", "worst_pct", "worst_bytes", "reason")
    beside = {}
    for key, several in (("medians_alone", validation.alone), ("medians_line", validation.line)):
        if mode in several:
            rows = [_row(validation, entry, plan, several[mode]) for entry in validation.entries]
            beside[key] = medians(_healthy(rows))
    return {
        "mode": mode,
        "per_log": per_log,
        "medians": medians(_healthy(per_log)),
        **beside,
        "worst": [{k: r[k] for k in keys} for r in _worst(per_log)],
    }


def _healthy(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return [r for r in rows if r["healthy"] != "no" and r["mape"] is not None]


def _worst(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(_healthy(rows), key=lambda r: -float(str(r["mape"])))[:10]


def _row(validation: Validation, entry: Entry, plan: Plan, seconds: Sequence[Float64]) -> dict[str, object]:
    case = entry.case
    row: dict[str, object] = {
        "slug": case.slug,
        "collective": case.collective,
        "system": case.system,
        "fabric": validation.fabric(entry),
        "class": validation.fabric_class(entry),
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
        "warnings": list(entry.note),
        "reason": entry.reason,
    }
    if entry.log is None:
        return row
    log, planes = validation.study.logs[entry.log], validation.planes[entry.log]
    keep = plan.scored[entry.log] & np.isfinite(seconds[entry.log])
    if not keep.any():
        return row | {"reason": plan.reason[entry.log] or "no size is left to score"}
    size = np.array(log.nbytes)[keep]
    ratio = seconds[entry.log][keep] / log.time_s[keep]
    worst = int(np.argmax(np.abs(ratio - 1)))
    at = planes.nbytes.index(int(size[worst]))
    return row | {
        "rows": int(keep.sum()),
        **figures(size, np.abs(ratio - 1)),
        "bias_pct": _rounded(100 * float(np.expm1(np.median(np.log(ratio))))),
        "worst_pct": _rounded(100 * float(ratio[worst] - 1)),
        "worst_bytes": int(size[worst]),
        "choice": _spans(planes, size),
        "reason": f"{off_by(float(ratio[worst]))} at {size[worst]} B, predicted with {planes.choices[at]}",
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
        for entry in validation.entries:
            if entry.log is None or entry.case.healthy == "no":
                continue
            log, planes = validation.study.logs[entry.log], validation.planes[entry.log]
            if name == FREE_FIT:
                seconds = three_lines(log.nbytes, log.time_s)
            else:
                at = {n: i for i, n in enumerate(planes.nbytes)}
                seconds = planes.baselines[name][[at[n] for n in log.nbytes]]
            error = np.abs(seconds / log.time_s - 1)
            conditions: dict[str, object] = {
                "system": entry.case.system,
                "collective": entry.case.collective,
                "class": validation.fabric_class(entry),
            }
            rows.append(conditions | figures(np.array(log.nbytes), error))
        summary = medians(rows)
        baselines[name] = {"all": summary["all"], "by_class": summary["by_class"]}
    return baselines


def _spans(planes: CasePlanes, size: npt.NDArray[np.int64]) -> str:
    spans: list[str] = []
    last = ""
    wanted = set(size.tolist())
    for n, choice in zip(planes.nbytes, planes.choices, strict=True):
        if n in wanted and choice != last:
            spans.append(f"{choice} from {n} B" if spans else choice)
            last = choice
    return ", ".join(spans)


def _median(values: Iterable[object]) -> float | None:
    known = [float(str(v)) for v in values if v is not None]
    return _rounded(float(np.median(known))) if known else None


def _rounded(value: float) -> float:
    return round(value, 2)
