"""What a prediction may have seen of the machine it is scored on: the modes, each with its fit and its scored sizes.

* ``zero-shot``: nothing of the system; the parameters as shipped;
* ``two``: the first and the last size of the curve itself, as `commsim calibrate --from` takes them; scored on its
  others;
* ``few``: the three sizes of the curve itself nearest 256 B, 1 MiB and 1 GiB; scored on its others;
* ``transfer``: one all_reduce log of the system, as `commsim calibrate` takes it; scored on its other logs;
* ``shapes``: all logs of the system on other numbers of nodes or of GPUs of a node; scored on those of the shape;
* ``calibrated``: every second size of all logs of the system, and from there those of the log itself (its allocation
  of nodes, library and plugin versions are its own); scored on the other sizes;
* ``forced``: nothing of the system, but the algorithm and protocol of each size that come nearest to the measured time:
  what of the error is NCCL's choice.

Where sizes of the scored curve itself were fitted (`DRAWN`), its prediction is drawn through them, beside what was
predicted without that and a straight line (`study.anchors`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commsim.accuracy.shapes import carried, copied, groups_of, interpolated
from commsim.errors import CalibrationError
from commsim.fitting.calibration import adapt, move_all
from commsim.units import GIB
from study.anchors import anchored
from study.log import Float64, Log
from study.system import System

MOST_NODES = 64
"""Logs of more nodes are fitted to by themselves only: their slopes cost minutes and say what those of fewer say."""

FEW = (256, 2**20, int(GIB))
"""Sizes whose nearest neighbours in a curve are taken as measured."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Predicted seconds of a log and which of its sizes are scored; `reason`: why none is.

    `beside`: the seconds of other roads by name, to be scored on the same sizes (`BESIDE`); `choices`: algorithm and
    protocol of each size where they are not NCCL's.
    """

    seconds: Float64
    scored: npt.NDArray[np.bool_]
    reason: str = ""
    beside: dict[str, Float64] = field(default_factory=dict)
    choices: tuple[str, ...] = ()


BESIDE = {
    "shipped": "as shipped, nothing of the system known",
    "alone": "the fitted parameters alone, not drawn through the sizes that were fitted",
    "line": "no model: the straight line through these sizes",
    "copied": "no model: the bus bandwidth of the nearest other shape of one node, or of several",
    "interpolated": "no model: the time interpolated over the ranks of two such shapes",
}


def outcomes(system: System, mode: str, wanted: Collection[int]) -> dict[int, Outcome]:
    """The outcome of a mode for the wanted logs of a system."""
    return {i: outcome for i, outcome in MODES[mode](system, wanted).items() if i in wanted}


def nothing_scored(log: Log, reason: str) -> Outcome:
    """The outcome of a log that a mode says nothing of."""
    return Outcome(np.full(log.size.size, np.nan), np.zeros(log.size.size, bool), reason)


def _zero_shot(system: System, wanted: Collection[int]) -> dict[int, Outcome]:
    return {i: Outcome(_shipped(system, i), np.ones(system.logs[i].size.size, bool)) for i in wanted}


def _forced(system: System, wanted: Collection[int]) -> dict[int, Outcome]:
    out = {}
    for i, shipped in _zero_shot(system, wanted).items():
        seconds, choices = system.best_choice(i)
        out[i] = Outcome(seconds, shipped.scored, beside={"shipped": shipped.seconds}, choices=choices)
    return out


def _two(system: System, wanted: Collection[int]) -> dict[int, Outcome]:
    out = {}
    for i in wanted:
        log, shipped = system.logs[i], _shipped(system, i)
        ends = [0, log.size.size - 1]
        try:
            x = adapt(system.model([(i, ends)]), [log.curve(ends)]).x
            seconds = system.model([(i, None)]).times(x)
        except CalibrationError:  # out of reach: whoever knows these numbers is told so, and keeps the shipped ones
            seconds = shipped
        scored = ~np.isin(np.arange(log.size.size), ends)
        out[i] = Outcome(seconds, scored, beside={"shipped": shipped})
    return out


def _few(system: System, wanted: Collection[int]) -> dict[int, Outcome]:
    out = {}
    for i in wanted:
        known = nearest(system.logs[i].nbytes, FEW)
        model = system.model([(i, known)])
        x = move_all(model, [system.logs[i].curve(known)]).x
        out[i] = _drawn(system, i, known, x)
    return out


def _transfer(system: System, wanted: Collection[int]) -> dict[int, Outcome]:
    known = reference(system.logs, system.known())
    if known is None:
        return {i: nothing_scored(system.logs[i], "the system has no all_reduce log to fit") for i in wanted}
    out = {known: nothing_scored(system.logs[known], "the log that the system was fitted on")}
    for i, (seconds, shipped) in _carried(system, [i for i in wanted if i != known], [known]).items():
        out[i] = Outcome(seconds, np.ones(shipped.size, bool), beside={"shipped": shipped})
    return out


def _shapes(system: System, wanted: Collection[int]) -> dict[int, Outcome]:
    logs = system.logs
    out = {i: nothing_scored(logs[i], "the system has logs of one shape only") for i in wanted}
    members = [i for i in system.known() if i in wanted or _fits(logs[i])]
    keys = [(logs[i].case.nodes, logs[i].case.gpus_per_node) for i in members]
    curves = [log.curve() for log in logs]
    for _, left, seen in groups_of(keys):
        scored, fitted = [members[k] for k in left if members[k] in wanted], [members[k] for k in seen]
        fitted = [i for i in fitted if _fits(logs[i])]
        if not fitted or not scored:
            continue
        for i, (seconds, shipped) in _carried(system, scored, fitted).items():
            alike = [k for k in fitted if (logs[k].case.nodes > 1) == (logs[i].case.nodes > 1)]
            others = [(curves[k], logs[k].case.n_ranks) for k in alike]
            beside = {"shipped": shipped}
            for name, rule in (("copied", copied), ("interpolated", interpolated)):
                if (by_rule := rule(curves[i], logs[i].case.n_ranks, others)) is not None:
                    beside[name] = by_rule
            out[i] = Outcome(seconds, np.ones(shipped.size, bool), beside=beside)
    return out


def _calibrated(system: System, wanted: Collection[int]) -> dict[int, Outcome]:
    logs = system.logs
    seen = [list(range(0, log.size.size, 2)) for log in logs]
    common = [(i, seen[i]) for i in system.known() if _fits(logs[i])]
    model = system.model(common) if common else None
    shared = move_all(model, [logs[i].curve(rows) for i, rows in common]).x if model else None
    out = {}
    for i in wanted:
        own = system.model([(i, seen[i])])
        if shared is not None:
            own.center = shared
        x = move_all(own, [logs[i].curve(seen[i])]).x if logs[i].case.healthy != "no" else own.center
        out[i] = _drawn(system, i, seen[i], x)
    return out


MODES: dict[str, Callable[[System, Collection[int]], dict[int, Outcome]]] = {
    "zero-shot": _zero_shot,
    "two": _two,
    "few": _few,
    "transfer": _transfer,
    "shapes": _shapes,
    "calibrated": _calibrated,
    "forced": _forced,
}


ALONE = ("zero-shot", "two", "few", "forced")
"""Modes that ask nothing of other logs of the system."""


def _shipped(system: System, i: int) -> Float64:
    seconds = system.facts(i).seconds
    assert seconds is not None
    return seconds


def _carried(system: System, left: Sequence[int], seen: Sequence[int]) -> dict[int, tuple[Float64, Float64]]:
    """Seconds of some logs under a fit to others, and as shipped."""
    if not left:
        return {}
    curves = [log.curve() for log in system.logs]
    both = carried(curves, left, seen, lambda some: system.model([(i, None) for i in some]))
    ends = np.cumsum([system.logs[i].size.size for i in left])[:-1]
    return dict(zip(left, zip(*(np.split(seconds, ends) for seconds in both), strict=True), strict=True))


def _drawn(system: System, i: int, known: Sequence[int], x: Float64) -> Outcome:
    """A prediction drawn through the known sizes of its curve, scored on the others."""
    log, shipped = system.logs[i], _shipped(system, i)
    alone = system.model([(i, None)]).times(x)
    beside = {"shipped": shipped, "alone": alone, "line": anchored(log.nbytes, [], known, log.undisturbed_s)}
    drawn = anchored(log.nbytes, [alone, shipped], known, log.undisturbed_s)
    return Outcome(drawn, ~np.isin(np.arange(log.size.size), known), beside=beside)


def _fits(log: Log) -> bool:
    """Whether a fit of several logs takes this one."""
    return log.case.healthy != "no" and log.case.nodes <= MOST_NODES


def nearest(nbytes: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Indices of the sizes nearest (in ratio) to the wanted ones, each once, ascending."""
    size = np.log(np.asarray(nbytes, np.float64))
    return sorted({int(np.argmin(np.abs(size - np.log(w)))) for w in wanted})


def reference(logs: Sequence[Log], members: Sequence[int]) -> int | None:
    """The all_reduce log that stands for a system.

    Not degraded, on at most `MOST_NODES`, its ranks nearest (in ratio) to the median of all such logs of the system,
    then most sizes, then the first slug: a fit to the smallest or the largest job would have to be carried farthest.
    """
    good = [i for i in members if _fits(logs[i])]
    if not good:
        return None
    middle = float(np.median([np.log(logs[i].case.n_ranks) for i in good]))

    def order(i: int) -> tuple[float, int, str]:
        away = round(abs(float(np.log(logs[i].case.n_ranks)) - middle), 6)
        return away, -len(logs[i].nbytes), logs[i].case.slug

    return min((i for i in good if logs[i].case.collective == "all_reduce"), key=order, default=None)
