"""Logs that look wrong beside the others: they contradict each other, stand apart from the fit, or are unsteady."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from commsim.fitting.models import CurveModel, Float64
from commsim.measure.records import APART, Curve
from commsim.units import format_bytes

UNSTEADY = 2.0


def suspects(curves: Sequence[Curve], fitted_s: npt.NDArray[np.float64]) -> list[str]:
    """A sentence for each finding; `fitted_s` are the predictions of a robust fit to all of them, (rows,)."""
    disturbed = [f"{c.name}: {text}, and the fit takes the lower time" for c in curves if (text := c.disturbance())]
    return [*_contradictions(curves), *disturbed, *_outliers(curves, fitted_s), *_unsteady(curves)]


def _contradictions(curves: Sequence[Curve]) -> list[str]:
    lines = []
    for a, b in combinations(curves, 2):
        if (a.collective, a.n_ranks) != (b.collective, b.n_ranks):
            continue
        size, at, other = np.intersect1d(a.size_bytes, b.size_bytes, return_indices=True)
        if not size.size:
            continue
        ratio = a.undisturbed_s()[at] / b.undisturbed_s()[other]
        typical = float(np.exp(np.median(np.log(ratio))))
        if max(typical, 1 / typical) > APART:
            worst = int(np.argmax(np.abs(np.log(ratio))))
            slower, faster = (a, b) if typical > 1 else (b, a)
            lines.append(
                f"{slower.name} and {faster.name} contradict each other: {slower.name} takes "
                f"{max(typical, 1 / typical):.2f} times as long at the median size, "
                f"{max(ratio[worst], 1 / ratio[worst]):.2f} times at {format_bytes(int(size[worst]))}"
            )
    return lines


def _outliers(curves: Sequence[Curve], fitted_s: npt.NDArray[np.float64]) -> list[str]:
    lines = []
    ends = np.cumsum([len(c) for c in curves])
    residuals = [np.log(c.undisturbed_s() / p) for c, p in zip(curves, np.split(fitted_s, ends[:-1]), strict=True)]
    for i, curve in enumerate(curves):
        own = float(np.median(residuals[i]))
        others = np.concatenate([r for j, r in enumerate(residuals) if j != i]) if len(curves) > 1 else np.zeros(0)
        usual = float(np.median(np.abs(others))) if others.size else 0.0
        if others.size and abs(own) > max(np.log(APART), 3 * usual):
            word = "slower" if own > 0 else "faster"
            lines.append(
                f"{curve.name} stands apart: {np.exp(abs(own)):.2f} times {word} than the fit of all logs; "
                "degraded, or measured under other conditions"
            )
        single = np.abs(residuals[i] - own)
        scatter = 1.4826 * float(np.median(single))
        for k in np.flatnonzero(single > max(np.log(1.5), 5 * scatter)):
            word = "slower" if residuals[i][k] > own else "faster"
            lines.append(
                f"{curve.name}: {format_bytes(int(curve.size_bytes[k]))} is {np.exp(single[k]):.2f} times {word} "
                "than its neighbours allow"
            )
    return lines


def _unsteady(curves: Sequence[Curve]) -> list[str]:
    lines = []
    for curve in curves:
        if curve.low_s is None or curve.high_s is None:
            continue
        spread = curve.high_s / curve.low_s
        if float(np.median(spread)) > UNSTEADY:
            lines.append(
                f"{curve.name} is unsteady: repeats differ by {np.median(spread):.2f} times at the median size"
            )
    return lines


MOST_TIMES = 100.0
"""A parameter that a fit moves further, either way, is absurd: of fits to one published log of NCCL each those to
machines that are not known degraded moved none by more than 4.5 times, one to a degraded machine one by 69, and gloo's
wait for a core that sleeps goes 55 times where a run has two states."""

NAMED_SIZES = 3
"""Sizes that are named with an absurd parameter: those of which it is the largest part."""


def absurd(
    model: CurveModel,
    curves: Sequence[Curve],
    x: Float64,
    moved: npt.NDArray[np.bool_],
    seconds: Float64,
) -> list[str]:
    """A sentence for every parameter that a fit at ``x`` moved further than `MOST_TIMES`, with the sizes behind it."""
    away = x - model.center
    far = np.flatnonzero(moved & (np.abs(away) > np.log(MOST_TIMES)))
    if not far.size:
        return []
    calls = [f"{curve.collective} of {format_bytes(int(n))}" for curve in curves for n in curve.size_bytes]
    factor = np.exp(model.fields.sign[far] * x[far])
    share = np.abs(model.contact(x).slope[:, far]) * factor / seconds[:, None]
    out = []
    for column, f in enumerate(far.tolist()):
        sizes = ", ".join(calls[i] for i in sorted(np.argsort(-share[:, column])[:NAMED_SIZES].tolist()))
        times = float(np.exp(abs(away[f])))
        word = f"{times:,.0f} times" if away[f] > 0 else f"a {times:,.0f}th of"
        out.append(
            f"{model.path(f)} would be {word} the shipped one, expected at most {MOST_TIMES:.0f} times: it comes from "
            f"{sizes}; look whether these times are of this machine, call and unit, or leave them out"
        )
    return out
