"""Why a log is off: where, by how much, and which of the possible causes the measured times speak for.

A cause is named only where it is seen in the figures: another algorithm or protocol, another launch, a spread between
logs of the same call, times that jump, a rate far from what the links carry. Otherwise it is said that none was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commsim.nccl.environment import POINT_TO_POINT
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.uncertainty import SIZE_BANDS, band_of
from commsim.processes import Pool
from commsim.units import format_bytes
from study.case import Case
from study.log import Log
from study.system import times

Float64 = npt.NDArray[np.float64]

_MOST_SIZES = 8
_CLEARER = 0.5
"""A cause is named where it leaves at most this share of the error."""

_SPREAD = 0.15
"""Logs of the same call that differ by more than this share."""

_JUMP = 4.0
"""A time that grows more than this, beyond the growth of the size, from one size to the next jumps."""

_BOTH_WAYS = 0.25
"""Share of a band's sizes from which on those that are off the other way are told."""

_VARIABLE = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvls_tree": "NVLSTree"}


@dataclass(frozen=True, eq=False)
class Miss:
    """A log, how it was predicted as shipped, and the sizes that are scored."""

    log: Log
    seconds: Float64
    scored: npt.NDArray[np.bool_]
    choices: Sequence[str]  # algorithm/protocol of each size

    @property
    def band(self) -> npt.NDArray[np.int64]:
        """The sizes of the band that holds most of the error."""
        error = np.where(self.scored, np.abs(self.seconds / self.log.time_s - 1), 0.0)
        of = np.array([band_of(n) for n in self.log.nbytes])
        worst = max((name for name, _ in SIZE_BANDS), key=lambda name: float(error[of == name].sum()))
        return np.flatnonzero((of == worst) & self.scored)


def explain(misses: Sequence[Miss], same: Sequence[Sequence[Log]], pool: Pool) -> list[str]:
    """A sentence for every log; `same` are other logs of the same call on the same system."""
    bands = [miss.band for miss in misses]
    some = [band[np.unique(np.linspace(0, len(band) - 1, _MOST_SIZES).astype(int))] for band in bands]
    asked = [
        (i, name, (other, miss.log.size[rows].tolist()))
        for i, (miss, rows) in enumerate(zip(misses, some, strict=True))
        for name, other in _others(miss.log.case)
    ]
    tried: list[dict[str, Float64]] = [{} for _ in misses]
    for (i, name, _), seconds in zip(asked, pool.map(_times, [job for _, _, job in asked]), strict=True):
        if not isinstance(seconds, str):
            tried[i][name] = seconds
    return [
        f"{_where(miss, band)}: {_cause(miss, band, rows, seconds_of, others)}"
        for miss, band, rows, seconds_of, others in zip(misses, bands, some, tried, same, strict=True)
    ]


def _times(job: tuple[Case, list[int]]) -> Float64 | str:
    return times(*job)


def _others(case: Case) -> list[tuple[str, Case]]:
    """The case under every other condition that may explain its times."""
    other = "process_per_gpu" if case.launch == "one_process" else "one_process"
    cases = [(other, replace(case, launch=other))]
    if case.collective in POINT_TO_POINT or case.env.keys() & {"NCCL_ALGO", "NCCL_PROTO"}:
        return cases  # nothing to choose, or stated
    for algorithm in _VARIABLE if case.collective == "all_reduce" else ("ring",):
        for protocol in PROTOCOLS if algorithm in ("ring", "tree") else ("Simple",):
            env = {**case.env, "NCCL_ALGO": _VARIABLE[algorithm], "NCCL_PROTO": protocol}
            cases.append((f"{algorithm}/{protocol}", replace(case, env=env)))
    return cases


def _where(miss: Miss, band: npt.NDArray[np.int64]) -> str:
    ratio = miss.seconds[band] / miss.log.time_s[band]
    middle = float(np.exp(np.median(np.log(ratio))))
    error = float(np.mean(np.abs(ratio - 1)))
    both = min((ratio > 1).mean(), (ratio < 1).mean()) > _BOTH_WAYS
    off = f"{100 * error:.0f} % off both ways" if both and abs(middle - 1) < error / 2 else off_by(middle)
    used = list(dict.fromkeys(miss.choices[i] for i in band))
    low, high = (format_bytes(miss.log.nbytes[i]) for i in (band[0], band[-1]))
    span = f"from {low} to {high}" if high != low else f"at {low}"
    return f"{off} {span} ({', '.join(used)})"


def off_by(ratio: float) -> str:
    """What predicted / measured says, in words.

    >>> off_by(1.04), off_by(0.5)
    ('4 % too slow', '2 times too fast')
    """
    factor = max(ratio, 1 / max(ratio, 1e-9))
    how = f"{100 * (factor - 1):.0f} %" if factor < 1.1 else f"{factor:.2g} times"
    return f"{how} too {'slow' if ratio > 1 else 'fast'}"


def _cause(
    miss: Miss,
    band: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    tried: dict[str, Float64],
    same: Sequence[Log],
) -> str:
    measured = miss.log.time_s[rows]
    error = float(np.mean(np.abs(miss.seconds[rows] / measured - 1)))
    left = {name: float(np.mean(np.abs(seconds / measured - 1))) for name, seconds in tried.items()}
    causes = []
    in_place = float(np.mean(np.abs(miss.seconds[band] / miss.log.undisturbed_s[band] - 1)))
    whole = float(np.mean(np.abs(miss.seconds[band] / miss.log.time_s[band] - 1)))
    if in_place < _CLEARER * whole:
        causes.append(
            f"out of place was disturbed ({100 * in_place:.0f} % instead of {100 * whole:.0f} % by the in-place times "
            "there)"
        )
    best = min(left, key=lambda name: left[name], default="")
    if best and left[best] < _CLEARER * error:
        kept = f"{100 * left[best]:.0f} % instead of {100 * error:.0f} %"
        if best in ("one_process", "process_per_gpu"):
            causes.append(f"the times are those of launch {best} ({kept})")
        else:
            causes.append(f"the times are those of {best} ({kept}): NCCL seems to have chosen otherwise")
    differ = _spread(miss.log, band, same)
    if differ is not None and differ[0] > _SPREAD:
        causes.append(
            f"{differ[1]} logs of this call on this system differ by {100 * differ[0]:.0f} % among themselves"
        )
    jump = _jump(miss.log, band)
    if jump is not None:
        causes.append(jump)
    if not causes and float(np.std(np.log(miss.seconds[band] / miss.log.time_s[band]))) < 0.15:
        causes.append(
            "all of these sizes by about the same factor: a rate or latency unlike those of the other systems"
        )
    if (
        any("launch not stated" in note for note in miss.log.case.notes)
        and band_of(miss.log.nbytes[band[0]]) == "small"
    ):
        causes.append(f"the launch is not stated ({miss.log.case.launch} was assumed)")
    if any("version not stated" in note for note in miss.log.case.notes):
        causes.append("the NCCL version is not stated")
    return "; ".join(causes) or "no single cause was found in the times"


def _spread(log: Log, band: npt.NDArray[np.int64], same: Sequence[Log]) -> tuple[float, int] | None:
    """Median over sizes of (largest - smallest) / median time among logs of one call, and how many logs there are."""
    if not same:
        return None
    shares = []
    for i in band:
        times = [log.time_s[i]]
        times += [other.time_s[other.nbytes.index(log.nbytes[i])] for other in same if log.nbytes[i] in other.nbytes]
        if len(times) > 1:
            shares.append((max(times) - min(times)) / float(np.median(times)))
    return (float(np.median(shares)), len(same) + 1) if shares else None


def _jump(log: Log, band: npt.NDArray[np.int64]) -> str | None:
    """The largest jump of a band's times, if there is one."""
    size, time = np.array(log.nbytes, np.float64), log.time_s
    steps = [i for i in band if i > 0]
    growth = {i: time[i] / time[i - 1] / max(1.0, size[i] / size[i - 1]) for i in steps}
    drop = {i: time[i - 1] / time[i] for i in steps}
    up = max(growth, key=lambda i: growth[i], default=None)
    if up is not None and growth[up] > _JUMP / 2:
        factor = time[up] / time[up - 1]
        return f"the measured time jumps {factor:.2g}-fold from {format_bytes(log.nbytes[up - 1])} to " + format_bytes(
            log.nbytes[up]
        )
    down = max(drop, key=lambda i: drop[i], default=None)
    if down is not None and drop[down] > 1.2:
        return (
            f"the measured time falls from {format_bytes(log.nbytes[down - 1])} to {format_bytes(log.nbytes[down])} "
            f"(1/{drop[down]:.2g} of it)"
        )
    return None
