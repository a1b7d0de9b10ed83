"""What makes a machine slower or faster than predicted: what-if simulations, and how probable each makes a curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.accuracy.causes import what_ifs
from commsim.accuracy.healthy import LARGE_ABOVE, Healthy, healthy
from commsim.accuracy.posterior import AS_PREDICTED, posterior
from commsim.errors import CommsimError
from commsim.measure.records import Curve

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario

Float64 = npt.NDArray[np.float64]

MOST_SIZES = 12

NAMED = 0.05
"""Least probability of a cause that is named."""

_APART = 3.0
"""A curve tells apart what it makes so many times as probable."""

FITS = 0.34
"""Mean |ln(measured / time)| up to which an explanation fits: 95 % of healthy logs are as near to their prediction
(docs/accuracy-verdicts.md)."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A what-if's times at the sizes tried, its mean |ln(measured / time)|, and its probability among all tried."""

    cause: str
    kind: str
    size_bytes: npt.NDArray[np.int64]
    time_s: Float64
    score: float
    probability: float = 0.0


def predicted_curve(
    scenario: Scenario, collective: str, sizes: Sequence[int], like: Curve | None = None, *, times_only: bool = False
) -> Curve:
    """The scenario's prediction of one of its collectives at other sizes; CommsimError where it cannot be had.

    Type and reduction are those of the curve that it shall be `like`, where the scenario states none. `times_only`
    leaves band and bound out where that is quicker.
    """
    from commsim.scenario.predictors import Cache, row_predictor
    from commsim.scenario.run import Prepared, run
    from commsim.scenario.setting import build_topology

    work = next((w for w in scenario.collectives if w.collective == collective), None)
    if work is None:
        held = ", ".join(sorted({w.collective for w in scenario.collectives})) or "nothing"
        raise CommsimError(f"{scenario.name!r} predicts {held}, not {collective}")
    if like is not None and scenario.library.name == "nccl":
        work = work.as_logged(like.dtype, like.redop)
    item = work.item_bytes
    whole = sorted({max(item, int(n) // item * item) for n in sizes})
    one = scenario.model_copy(update={"workload": (work.model_copy(update={"sizes": tuple(whole)}),), "compare": ()})
    one._document, one._base_dir = scenario.document, scenario.base_dir
    ready = Prepared(one, build_topology(one), ())
    if times_only and scenario.library.name == "nccl":
        predictor = row_predictor(one, ready.topology, one.collectives[0], Cache())
        times = np.array([predictor.seconds(n) for n in whole])
        return Curve(one.name, collective, predictor.n_ranks, "predicted", np.array(whole, np.int64), times)
    return run(ready, notes=False).items[0].curve()


def likely(
    scenario: Scenario,
    measured: Curve,
    progress: Callable[[int, int], None] = lambda done, of: None,
    known: Healthy | None = None,
) -> list[Tried]:
    """What-ifs that make a measured curve probable, the most probable first, then the prediction (`AS_PREDICTED`).

    Empty where the prediction itself is more probable than each of them, or a cause that is none of those tried is more
    than three times as probable: then they cannot be told from it.
    `progress` is told how many of how many simulations are done; `known`: how far machines are from predictions, as
    shipped where left out.
    """
    few = np.linspace(0, len(measured) - 1, min(MOST_SIZES, len(measured)))
    sizes = np.unique(np.round(few).astype(np.int64))
    chosen = measured.size_bytes[sizes]
    time = measured.time_s[sizes]
    own = _try(scenario, measured, chosen, time, AS_PREDICTED, AS_PREDICTED)
    if own is None:
        return []
    attempts: list[Tried] = []
    options = what_ifs(scenario, measured.conditions)
    for i, option in enumerate(options):
        progress(i, len(options))
        tried = _try(option.change(scenario), measured, chosen, time, option.cause, option.kind)
        # What changes nothing here explains nothing, and a form of a cause that does what another does is none.
        like = [own, *(t for t in attempts if t.kind == option.kind)]
        if tried is not None and not any(np.allclose(tried.time_s, t.time_s, rtol=_SAME) for t in like):
            attempts.append(tried)
    progress(len(options), len(options))
    every = [own, *attempts]
    known = known or healthy()
    rows = _telling(chosen, np.log(time / own.time_s), known)
    chances = posterior(chosen[rows], np.log(time[rows]), [(t.kind, np.log(t.time_s[rows])) for t in every], known)
    own, *judged = (replace(t, probability=p) for t, p in zip(every, chances, strict=False))
    by_kind: dict[str, float] = {}
    for each in judged:
        by_kind[each.kind] = by_kind.get(each.kind, 0.0) + each.probability
    likeliest = max(by_kind.values(), default=0.0)
    if likeliest <= own.probability or _APART * likeliest < 1.0 - sum(chances):
        return []
    named = [t for t in judged if t.probability >= NAMED]
    return [*sorted(named, key=lambda t: -t.probability), own] if named else []


def indistinct(tried: Sequence[Tried]) -> list[Tried]:
    """The most probable cause, and those that a curve cannot tell from it: at least a third as probable."""
    return [t for t in tried if t.cause != AS_PREDICTED and _APART * t.probability >= tried[0].probability]


def named(tried: Sequence[Tried]) -> list[Tried]:
    """Those of `indistinct` that explain a curve: nearer to it than the prediction, and as near as healthy machines."""
    own = next((t.score for t in tried if t.cause == AS_PREDICTED), np.inf)
    return [t for t in indistinct(tried) if t.score < own and t.score <= FITS]


def _telling(size_bytes: npt.NDArray[np.int64], off: Float64, known: Healthy) -> npt.NDArray[np.bool_]:
    """The sizes that tell causes apart: those above 1 MiB, where a curve is off there, else all.

    Below, time is latency, of which a degraded path says little (validation/degraded).
    """
    large = size_bytes > LARGE_ABOVE
    if not large.any():
        return ~large
    slow = known.large.above(float(np.median(off[large])))
    return large if min(slow, 1.0 - slow) < _OFF else np.ones_like(large)


_OFF = 0.05
"""Share of healthy machines as slow, or as fast, from which down a curve is off."""

_SAME = 0.01
"""Relative change of a time that is none: nccl-tests prints three or four digits."""


def _try(
    scenario: Scenario, measured: Curve, sizes: npt.NDArray[np.int64], time: Float64, cause: str, kind: str
) -> Tried | None:
    try:
        curve = predicted_curve(scenario, measured.collective, [int(n) for n in sizes], measured, times_only=True)
    except CommsimError:
        return None  # this machine cannot be changed so
    predicted = curve.seconds_at(sizes)
    return Tried(cause, kind, sizes, predicted, float(np.mean(np.abs(np.log(time / predicted)))))
