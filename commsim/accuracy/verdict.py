"""Is a measured curve what it should be? Size by size against the prediction's band, and in one sentence.

A prediction as shipped is of any machine of the kind: the curve as a whole is held against all healthy machines
(`commsim.accuracy.healthy`). One whose parameters are this machine's own has a band that holds its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commsim.accuracy.compare import Comparison
from commsim.accuracy.healthy import LARGE_ABOVE, Sizes, parts, state_of
from commsim.measure.records import Curve
from commsim.units import factor_text, format_bytes, format_time

Float64 = npt.NDArray[np.float64]

DEFAULT_BAND = 0.15
"""Either way, of a prediction that comes without a band."""

WIDE = 2.0
"""A band that reaches up to here holds a machine twice as slow as predicted: within it nothing is judged."""

MOST = 0.75
"""Share of sizes within the band from which on a curve is as expected: the band itself holds eight of ten."""

UNDER = 0.99
"""Share of the bound under which a time is below what the links can carry: logs print their times rounded."""

BOUND_FROM = 1 << 20
"""Bytes from which on a time is held against the bound: below, what is printed of it has too few digits."""

FAR = 0.15
"""Mean |ln(measured / predicted)| from which on a cause is looked for even within the band."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """Measured over predicted time per size, (rows,), and the band of that ratio."""

    comparison: Comparison
    low: Float64
    high: Float64
    assumed: bool  # the prediction came without a band
    parts: tuple[Sizes, ...] = ()  # large and small sizes against healthy machines, where it is one as shipped
    bound_s: Float64 | None = None  # (rows,): no call of the library is quicker on these links
    other_machine: str = ""  # that the log is of another one than was predicted, in words

    @property
    def ratio(self) -> Float64:
        """Measured over predicted time: above 1 where the machine is slower."""
        return self.comparison.measured_s / self.comparison.predicted_s

    @property
    def within(self) -> npt.NDArray[np.bool_]:
        """Which sizes are as expected."""
        return (self.ratio >= self.low) & (self.ratio <= self.high)

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        """Which sizes can be: those beyond their band, and those whose band holds no machine twice as slow."""
        return (~self.within | (self.high < WIDE)) & ~self.comparison.torn

    @property
    def below_links(self) -> npt.NDArray[np.bool_]:
        """Which sizes took less than the links need; nowhere, where rows of a size disagree or no bound is known."""
        c = self.comparison
        if self.bound_s is None:
            return np.zeros(c.n, np.bool_)
        return (c.measured_s < UNDER * self.bound_s) & (c.size_bytes >= BOUND_FROM) & ~c.torn

    @property
    def is_torn(self) -> bool:
        """Whether at half or more of the large sizes, or of all where none is large, rows disagree."""
        c = self.comparison
        large = c.size_bytes > LARGE_ABOVE
        rows = c.torn[large] if large.any() else c.torn
        return bool(rows.any() and 2 * np.count_nonzero(rows) >= rows.size)

    @property
    def state(self) -> str:
        """``wrong``: results or times are; ``slower``, ``faster``, ``as expected``, or ``unjudged``."""
        if self.comparison.measured.wrong_rows:
            return "wrong"
        if self.other_machine:
            return "unjudged"
        if self.below_links.any():
            return "wrong"
        if self.is_torn or not self.judged.any():
            return "unjudged"
        state = self._of_rows()
        return "unjudged" if self.comparison.measured.skipped_lines and state != "slower" else state

    def _of_rows(self) -> str:
        if self.parts:
            return state_of(self.parts)
        slow, fast = (np.count_nonzero(side & self.judged) for side in (self.ratio > self.high, self.ratio < self.low))
        if np.count_nonzero(self.within & self.judged) >= MOST * np.count_nonzero(self.judged):
            return "unjudged" if np.median(self.high) >= WIDE else "as expected"
        return "slower" if slow >= fast else "faster"

    @property
    def distance(self) -> float:
        """Mean |ln(measured / predicted)| over the sizes."""
        return float(np.mean(np.abs(np.log(self.ratio))))

    def of_size(self, i: int) -> str:
        """The verdict of one size."""
        if self.comparison.size_bytes[i] in self.comparison.measured.wrong_bytes:
            return "wrong data"
        if self.other_machine:
            return "cannot judge"
        if self.below_links[i]:
            return "below the links"
        if self.comparison.torn[i]:
            return "cannot judge"
        if self.within[i]:
            return "as expected" if self.judged[i] else "cannot judge"
        factor = float(self.ratio[i])
        return f"slower {factor_text(factor)}" if factor > 1 else f"faster {factor_text(1 / factor)}"

    def sentence(self, cause: str = "") -> str:
        """The answer in one line."""
        state, name = self.state, self.comparison.measured.name
        if state == "wrong":
            wrong = self._wrong() if self.comparison.measured.wrong_rows else self._below_links()
            return f"{name}: {wrong}{self._unread()}"
        if self.other_machine:
            return f"{name}: cannot judge: {self.other_machine}"
        if self.is_torn:
            return f"{name}: cannot judge: {self.comparison.measured.torn_words()}{self._unread()}"
        if self.comparison.measured.skipped_lines and state == "unjudged":
            return f"{name}: cannot judge{self._unread()}; of the others: {self._of_readable(cause)}"
        return f"{name}: {self._of_readable(cause)}{self._unread()}"

    def _unread(self) -> str:
        n = self.comparison.measured.skipped_lines
        return f"; {n} row{'s' * (n > 1)} of the log cannot be read" if n else ""

    def _of_readable(self, cause: str) -> str:
        state = self._of_rows() if self.judged.any() else "unjudged"
        if state == "unjudged":
            return self._unjudged() + (f"; nearer to: {cause}" if cause else "")
        if state == "as expected":
            return self._expected() + (f"; nearer to: {cause}" if cause else "")
        return self._off(state) + (f"; likely cause: {cause}" if cause else "")

    def _wrong(self) -> str:
        n = self.comparison.measured.wrong_rows
        return (
            f"wrong data: results of {n} of {len(self.comparison.measured)} sizes were wrong; their times mean nothing"
        )

    def _below_links(self) -> str:
        c, rows = self.comparison, np.flatnonzero(self.below_links)
        assert self.bound_s is not None
        worst = rows[np.argmin(c.measured_s[rows] / self.bound_s[rows])]
        at = f"{format_time(float(c.measured_s[worst]))} at {format_bytes(int(c.size_bytes[worst]))}"
        return (
            f"below what the links can carry: a wrong machine, size or time: {at}, where the links need "
            f"{format_time(float(self.bound_s[worst]))} ({rows.size} of {c.n} sizes)"
        )

    def _unjudged(self) -> str:
        doubtful = [part for part in self.parts if part.state == "unjudged"]
        if not doubtful:
            return f"cannot judge: {_WIDE_BAND}; give one number of this machine (library.measured), or other sizes"
        texts = [f"{_factor(p.middle)} {p.words}, {_TWICE if p.told else _WIDE_BAND}" for p in doubtful]
        texts += self._others("unjudged")
        large = "sizes above 1 MiB or " if all(part.name == "small" for part in self.parts) else ""
        return f"cannot judge: {'; '.join(texts)}; expected {large}one number of this machine (library.measured)"

    def _expected(self) -> str:
        inside, n = int(np.count_nonzero(self.within & self.judged)), int(np.count_nonzero(self.judged))
        middle = f"{np.median(self.ratio):.2f} times the predicted time at the median size"
        of = f"; {self.parts[0].words} {_share(self.parts[0])}" if self.parts else ""
        if 2 * inside < n:
            return f"as healthy machines may be, yet beyond the band of most: {self._counted(inside)}, {middle}{of}"
        return f"as expected: {self._counted(inside)}, {middle}{of}"

    def _counted(self, inside: int) -> str:
        """How many of the sizes that can be judged are within the band, on which side others are; how many cannot."""
        judged, n = int(np.count_nonzero(self.judged)), self.comparison.n
        sides = (("faster", self.ratio < self.low), ("slower", self.ratio > self.high))
        beside = [f", {k} {name}" for name, side in sides if (k := int(np.count_nonzero(side & self.judged)))]
        if judged == n:
            return f"{inside} of {n} sizes within the band{''.join(beside)}"
        return f"{inside} of {judged} judged sizes within the band{''.join(beside)} ({n - judged} cannot be judged)"

    def _off(self, state: str) -> str:
        sign = 1.0 if state == "slower" else -1.0
        if self.parts:
            part = next(p for p in self.parts if p.state == state)
            text = f"{state} than expected: {_factor(sign * part.middle)} {part.words} ({_share(part)})"
            return "; ".join([text, *self._others(state)])
        side = (self.ratio > self.high if sign > 0 else self.ratio < self.low) & self.judged
        factor = float(np.median(self.ratio[side])) ** sign
        size = self.comparison.size_bytes[side]
        of = f"{np.count_nonzero(self.judged)} {'' if self.judged.all() else 'judged '}sizes"
        return (
            f"{state} than expected: {factor_text(factor)} at {np.count_nonzero(side)} of {of}, "
            f"{format_bytes(int(size[0]))} to {format_bytes(int(size[-1]))}"
        )

    def _others(self, state: str) -> list[str]:
        """That large messages are as expected, where the verdict is of small ones."""
        return [
            f"{part.words} as expected: {_factor(part.middle)}"
            for part in self.parts
            if part.name == "large" and state != part.state == "as expected"
        ]


_WIDE_BAND = "within a band so wide that it holds a machine half as fast"
_TWICE = "where healthy machines differ so much that one half as fast may look like this"


def _factor(log_ratio: float) -> str:
    return factor_text(float(np.exp(log_ratio)))


def _share(part: Sizes) -> str:
    """How many healthy machines are like it, the rarer side."""
    share, how = min((part.as_slow, "slow"), (1.0 - part.as_slow, "fast"))
    percent = f"{100 * share:.2g}" if share >= 1e-3 else "fewer than 0.1"
    if part.own:
        return f"{percent} % of healthy logs are as {how} beside the others of their machine"
    return f"{percent} % of healthy machines are as {how}"


def verdict(
    comparison: Comparison, *, as_shipped: bool = False, one_node: bool = False, bounded: bool = False
) -> Verdict:
    """The verdict of a comparison; ``as_shipped``: NCCL's prediction by parameters that are not this machine's own.

    `one_node`: the machine has one, and is held against such machines. `bounded`: the bound of the prediction is that
    of the library which was measured.
    """
    of_sizes = _of_sizes(comparison)
    p = comparison.predicted
    if bounded and p.lower_bound_s is not None and len(p):
        of_sizes = replace(of_sizes, bound_s=_at(p, p.lower_bound_s / p.size_bytes, comparison) * comparison.size_bytes)
    if of_sizes.assumed or not as_shipped:
        return of_sizes
    return replace(of_sizes, parts=tuple(_told(part, of_sizes) for part in parts(comparison, one_node=one_node)))


def _of_sizes(comparison: Comparison) -> Verdict:
    """The verdict by the band of every size alone."""
    p = comparison.predicted
    if p.low_s is None or p.high_s is None or not len(p):
        ones = np.ones(comparison.n)
        return Verdict(comparison, ones / (1 + DEFAULT_BAND), ones * (1 + DEFAULT_BAND), assumed=True)
    low, high = (_at(p, factor / p.time_s, comparison) for factor in (p.low_s, p.high_s))
    return Verdict(comparison, low, high, assumed=False)


def _told(part: Sizes, verdict: Verdict) -> Sizes:
    """A part with whether at least half of its sizes can be judged by their band."""
    sizes = verdict.comparison.size_bytes
    rows = verdict.judged[
        (sizes > part.above if part.name == "large" else sizes <= LARGE_ABOVE) & ~verdict.comparison.torn
    ]
    return replace(part, told=bool(2 * np.count_nonzero(rows) >= rows.size))


def _at(predicted: Curve, factor: Float64, comparison: Comparison) -> Float64:
    return np.asarray(np.interp(np.log(comparison.size_bytes), np.log(predicted.size_bytes), factor))
