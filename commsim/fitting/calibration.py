"""Fits a library's physical parameters to measured curves of one machine, and says how far to trust them.

The objective is that of `commsim.fitting.curve_fit`: soft-L1 of ln(predicted / measured) / 0.1, every curve of equal
weight, with a weak prior round the shipped values. A fit on planes gives a point; where they are off there, planes of
that point join them and the fit is repeated; the best point counts. A field whose uncertainty the data do not reduce to
half of what the prior grants is kept as shipped, one after another, and the rest fitted again. The error is that of
sizes left out: four fits, each without every fourth size of each curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commsim.errors import CalibrationError, OutOfReachError
from commsim.fitting.curve_fit import LEAST_S, SCALE, Rows, cost, fit
from commsim.fitting.models import CurveModel, Float64
from commsim.fitting.planes import Planes
from commsim.fitting.suspects import absurd, suspects
from commsim.measure.records import Curve
from commsim.units import format_bytes, format_time

FOLDS = 4
ROUNDS = 8
SETTLED = 0.01
"""Mean relative error of a curve's planes at a fitted point below which the point counts as found."""

LATEST = 3
"""Points whose planes count. Queues make a predicted time not quite convex: planes of far points may lie above it."""

LARGE_BYTES = 64 << 10
"""Sizes above this have an error of their own: bandwidth decides there, and latency and the machine's load below."""

LEAST_ROWS = 4
OUT_OF_REACH = 2.0
"""Times that a known number may be missed by: hosts differ up to twofold (validation/evidence.md, Launch mode and
version), machines of one kind by less, so that beyond it the number is of another machine, call or unit."""

STATED = 4.0
"""Curves that a number or two which a person states weigh as much as: they are taken at their word. Eight
bytes on an H100 node stated as 1.3 times what is shipped are missed by 0.4 %, by 1.4 with the weight of one."""

FARTHEST = 10.0
"""Widths of its prior that a stated number moves a parameter by at most. With the ends of each of 462 published logs
stated, degraded ones included, none moves further than 9.5."""

LEAST_MOVED = 1e-3
"""Change of ln(value) from which on a number or two say something of a field."""

DETERMINED = 0.5
"""Largest part of the prior's width that may be left of a field's uncertainty for it to count as determined."""


@dataclass(frozen=True)
class Value:
    """A fitted field: shipped and fitted value and its 95 % interval, in SI units."""

    path: str
    is_time: bool
    shipped: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result: values by path, why others were kept, errors as fractions, and logs that look wrong."""

    curves: tuple[Curve, ...]
    x: Float64  # ln(value / shipped) of the model's fields
    values: tuple[Value, ...]
    kept: dict[str, str]
    before_s: Float64  # (rows,) predicted as shipped
    fitted_s: Float64  # (rows,) predicted with the fitted values
    held_out_s: Float64  # (rows,) each predicted by the fit that had not seen it; NaN of `adapt`
    band: tuple[float, float] | None  # 10 % and 90 % quantile of measured / held-out prediction, 1 between them
    suspects: tuple[str, ...]

    @property
    def measured_s(self) -> Float64:
        """All measured times, curve by curve, undisturbed (`Curve.undisturbed_s`)."""
        return _measured(self.curves)

    def error(self, predicted_s: Float64, above: int = 0) -> float:
        """Mean over the curves of their mean absolute relative error at sizes above so many bytes; NaN without any."""
        return mean_error(self.curves, predicted_s, above)

    def spread(self, above: int = 0) -> float | None:
        """Median over all repeated sizes of half their range over their median, as a fraction; None without repeats."""
        parts = [
            ((curve.high_s - curve.low_s) / 2 / curve.time_s)[curve.size_bytes > above]
            for curve in self.curves
            if curve.low_s is not None and curve.high_s is not None
        ]
        spreads = np.concatenate(parts) if parts else np.zeros(0)
        return float(np.median(spreads)) if spreads.size else None


def mean_error(curves: Sequence[Curve], predicted_s: Float64, above: int = 0) -> float:
    """Mean over curves of their mean absolute relative error at sizes above so many bytes; NaN without any."""
    ends = np.cumsum([len(c) for c in curves])[:-1]
    pairs = zip(np.split(predicted_s, ends), curves, strict=True)
    parts = [np.abs(p / c.undisturbed_s() - 1)[c.size_bytes > above] for p, c in pairs]
    means = [float(part.mean()) for part in parts if part.size]
    return float(np.mean(means)) if means else float("nan")


@dataclass(frozen=True, eq=False)
class FittedPoint:
    """A fitted point: x, the fields that moved, why others did not, and seconds and planes of all rows there."""

    x: Float64
    moved: npt.NDArray[np.bool_]
    kept: dict[str, str]
    seconds: Float64
    contacts: list[Planes]


def fit_curves(
    model: CurveModel, curves: Sequence[Curve], progress: Callable[[str], None] = lambda text: None
) -> FittedPoint:
    """The fit of a model to curves; CalibrationError where they determine none of its fields."""
    measured = _measured(curves)
    if measured.size < LEAST_ROWS:
        raise CalibrationError(f"found {measured.size} measured sizes in all, expected {LEAST_ROWS} or more to fit")
    all_free = move_all(model, curves, progress)
    free = all_free.moved
    determined, kept = _determined(model, _rows(model, curves, all_free.contacts, free), all_free.x, free)
    if not determined.any():
        raise CalibrationError("the measured sizes determine none of the parameters; expected more sizes or curves")
    begin = np.where(determined, all_free.x, model.center)
    return replace(_settle(model, curves, all_free.contacts, determined, progress, begin), kept=kept)


def calibrate(
    model: CurveModel, curves: Sequence[Curve], progress: Callable[[str], None] = lambda text: None
) -> Calibration:
    """The calibration of a model to curves; CalibrationError where they determine none of its fields."""
    fitted = fit_curves(model, curves, progress)
    if lines := absurd(model, curves, fitted.x, fitted.moved, fitted.seconds):
        raise CalibrationError("\n".join(lines))
    rows = _rows(model, curves, fitted.contacts, fitted.moved)
    at = np.flatnonzero(fitted.moved)
    sd = _deviations(_information(model, rows, fitted.x), at)
    progress("fitting without every fourth size")
    held_out = _held_out(model, curves, rows, fitted.x)
    ratio = _measured(curves) / held_out
    return Calibration(
        curves=tuple(curves),
        x=fitted.x,
        values=tuple(_value(model, int(f), fitted.x, float(d)) for f, d in zip(at, sd, strict=True)),
        kept=fitted.kept,
        before_s=model.times(model.center),
        fitted_s=fitted.seconds,
        held_out_s=held_out,
        band=(min(1.0, float(np.quantile(ratio, 0.1))), max(1.0, float(np.quantile(ratio, 0.9)))),
        suspects=tuple(suspects(curves, fitted.seconds)),
    )


def move_all(
    model: CurveModel,
    curves: Sequence[Curve],
    progress: Callable[[str], None] = lambda text: None,
    trust: float = 1.0,
) -> FittedPoint:
    """The most likely parameters: all that the curves touch move together, each as far as its prior lets it.

    `trust`: how many curves each one weighs as much as.
    """
    progress("predicting with the shipped parameters")
    contact = model.contact(model.center)
    return _settle(model, curves, [contact], np.any(contact.slope != 0, axis=0), progress, model.center, trust)


def adapt(model: CurveModel, curves: Sequence[Curve]) -> Calibration:
    """`move_all` where only a number or two are known, too few to determine any parameter, or to say the error.

    OutOfReachError for numbers that the parameters come no nearer to than `OUT_OF_REACH` times.
    """
    fitted, measured = move_all(model, curves, trust=STATED), _measured(curves)
    most = FARTHEST * np.sqrt(np.diag(model.fields.covariance))
    if (np.abs(fitted.x - model.center) > most).any():
        x = np.clip(fitted.x, model.center - most, model.center + most)
        fitted = replace(fitted, x=x, seconds=model.times(x))
    calls = [(curve.collective, int(n)) for curve in curves for n in curve.size_bytes]
    misses = [
        (
            collective,
            nbytes,
            f"{format_bytes(nbytes)} is taken to last {format_time(known)}: no parameters near the shipped ones, no "
            f"share above 1, come nearer than {format_time(nearest)}",
        )
        for (collective, nbytes), known, nearest in zip(calls, measured.tolist(), fitted.seconds.tolist(), strict=True)
        if max(known / nearest, nearest / known) > OUT_OF_REACH
    ]
    if misses:
        raise OutOfReachError(misses)
    information = _information(model, _rows(model, curves, fitted.contacts, fitted.moved), fitted.x)
    moved = np.flatnonzero(fitted.moved & (np.abs(fitted.x - model.center) > LEAST_MOVED))
    values = tuple(
        _value(model, int(f), fitted.x, float(d)) for f, d in zip(moved, _deviations(information, moved), strict=True)
    )
    unknown = np.full(measured.size, np.nan)
    return Calibration(
        tuple(curves), fitted.x, values, {}, model.times(model.center), fitted.seconds, unknown, None, ()
    )


def _determined(
    model: CurveModel, rows: Rows, x: Float64, free: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], dict[str, str]]:
    """The fields that the data determine, and why not the others.

    The one that the data say the least of is kept as shipped, then the rest is judged anew: of fields that only
    together are determined (a launch and a latency that each call pays once) one remains and takes the difference.
    """
    left, kept = free.copy(), dict[str, str]()
    information = _information(model, rows, x)
    width = np.sqrt(np.diag(model.fields.covariance))
    while left.any():
        at = np.flatnonzero(left)
        sd = _deviations(information, at)
        worst = int(np.argmax(sd / width[at]))
        if sd[worst] < DETERMINED * width[at[worst]]:
            break
        left[at[worst]] = False
        factor = np.exp(min(1.96 * sd[worst], 20))
        kept[model.path(int(at[worst]))] = f"the data leave it uncertain by a factor of {factor:.3g}"
    return left, kept


def _settle(
    model: CurveModel,
    curves: Sequence[Curve],
    contacts: list[Planes],
    free: npt.NDArray[np.bool_],
    progress: Callable[[str], None],
    begin: Float64,
    trust: float = 1.0,
) -> FittedPoint:
    """The fit of some fields, from some planes on and a point near where these touch.

    Of all points on the way the one is taken that the model itself finds best: planes of a time that is not quite
    convex lead past it now and then, and a search that only went down would end in the first hollow.
    """
    measured = _measured(curves)
    weight = trust * _weight(_rows(model, curves, contacts, free))

    def point(x: Float64, seconds: Float64) -> tuple[float, FittedPoint]:
        value = cost(seconds, measured, weight, model.fields, model.center, x)
        return value, FittedPoint(x, free, {}, seconds, contacts)

    x, points = begin, [point(begin, model.times(begin))]
    for number in range(ROUNDS):
        rows = _rows(model, curves, contacts, free)
        before, x = x, np.where(free, fit(rows, np.arange(measured.size), weight, model.fields, model.center, x), begin)
        progress(f"round {number + 1}: parameters moved by up to {100 * np.expm1(np.abs(x - before).max()):.0f} %")
        seconds = model.times(x)
        on_planes, _ = rows.predicted(x, model.fields.sign, np.arange(measured.size))
        points.append(point(x, seconds))
        if (np.bincount(rows.log, np.abs(on_planes / seconds - 1)) / np.bincount(rows.log)).max() < SETTLED:
            break
        contacts = [*contacts[1 - LATEST :], model.contact(x)]
    return min(points, key=lambda each: each[0])[1]


def _rows(model: CurveModel, curves: Sequence[Curve], contacts: Sequence[Planes], free: npt.NDArray[np.bool_]) -> Rows:
    """All rows with the planes of all contacts; fields that are not free are part of the constant."""
    factor = np.exp(model.fields.sign * model.center)
    # A field that is kept stays where the planes touch: what it contributes there is part of the constant.
    return Rows(
        np.concatenate([np.full(len(c), i) for i, c in enumerate(curves)]),
        _measured(curves),
        np.stack([c.constant + c.slope[:, ~free] @ factor[~free] for c in contacts]),
        np.stack([np.where(free, c.slope, 0.0) for c in contacts]),
    )


def _measured(curves: Sequence[Curve]) -> Float64:
    return np.concatenate([c.undisturbed_s() for c in curves])


def _weight(rows: Rows) -> Float64:
    """Every curve counts the same, however many sizes it has."""
    count = np.bincount(rows.log)
    return np.asarray(1.0 / count[rows.log])


def _information(model: CurveModel, rows: Rows, x: Float64) -> Float64:
    """What rows and prior say of x: the inverse of its covariance, (fields, fields)."""
    seconds, slope = rows.predicted(x, model.fields.sign, np.arange(rows.measured.size))
    seconds = np.maximum(seconds, LEAST_S)
    jacobian, residual = slope / seconds[:, None], np.log(seconds / rows.measured)
    # The rows' own scatter, robustly; never below a third of the scale, since sizes of one run err together.
    noise = max(SCALE / 3, 1.4826 * float(np.median(np.abs(residual))))
    prior = np.diag(1.0 / np.diag(model.fields.covariance))
    return np.asarray(jacobian.T @ jacobian / noise**2 + prior)


def _deviations(information: Float64, fields: npt.NDArray[np.int64]) -> Float64:
    """Standard deviations of some fields' x while all others stay where they are."""
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(information[np.ix_(fields, fields)]))))


def _held_out(model: CurveModel, curves: Sequence[Curve], rows: Rows, x: Float64) -> Float64:
    """Every row predicted by a fit to the rows of the other folds."""
    place = np.concatenate([np.arange(len(c)) for c in curves])
    fold = (place + rows.log) % FOLDS  # not the same sizes of every curve
    free = np.any(rows.slope != 0, axis=(0, 1))
    out = np.zeros(rows.measured.size)
    weight = _weight(rows)
    for k in range(FOLDS):
        left, use = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
        if left.size and use.size:
            there = fit(rows, use, weight[use], model.fields, model.center, begin=x)
            # Predicted anew: a plane says little of a point as far off as a fold's may be.
            out[left] = model.times(np.where(free, there, x))[left]
    return out


def _value(model: CurveModel, f: int, x: Float64, sd: float) -> Value:
    shipped, value = (model.fields.values(at)[model.fields.fields[f]] for at in (model.center, x))
    spread = float(np.exp(1.96 * sd))
    return Value(model.path(f), bool(model.fields.is_time[f]), shipped, value, value / spread, value * spread)
