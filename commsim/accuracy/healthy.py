"""How slow healthy machines come out: what a verdict may say of a curve that was predicted as shipped.

`healthy.yaml` holds, for small and large messages, the Student t of two degrees of freedom that ln(measured /
predicted) follows over the published systems known to be healthy (`validation/verdicts.py` writes it, and says how
often a verdict is wrong). The heavy tail is theirs: most are within a tenth, some beyond a factor of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from commsim.accuracy.compare import Comparison
from commsim.document import read_documents, validate
from commsim.measure.records import Curve
from commsim.nccl.parameters import Frozen
from commsim.units import factor_text, format_bytes

PATH = Path(__file__).with_name("healthy.yaml")

LARGE_ABOVE = 1 << 20
"""Bytes from which on bandwidth decides."""

BAND_ENDS = (32 << 10, 1 << 20, 64 << 20)
"""Bytes up to which the bands of sizes reach by which causes are told apart; the last one is open."""

RARE = {"large": 0.006, "small": 0.002}
"""Share of healthy machines that are as slow as what is called slower. Small messages depend on how ranks are
launched, and weigh less."""

MISSED = 0.05
"""A curve is judged only where no more than this share of machines twice as slow would look like it."""


class Tail(Frozen):
    """ln(measured / predicted) of healthy machines: a Student t of two degrees of freedom."""

    middle: float
    scale: float = Field(gt=0)
    systems: int = Field(ge=1)

    def above(self, x: float) -> float:
        """Share of healthy machines at x or slower.

        >>> Tail(middle=0.0, scale=0.05, systems=9).above(0.0)
        0.5
        """
        z = (x - self.middle) / self.scale
        return 0.5 - z / (2.0 * math.sqrt(2.0 + z * z))

    def log_density(self, x: float) -> float:
        """Log of the density at x.

        >>> round(Tail(middle=0.0, scale=1.0, systems=9).log_density(0.0), 4)  # 1 / (2 sqrt 2)
        -1.0397
        """
        z = (x - self.middle) / self.scale
        return -1.5 * math.log1p(z * z / 2.0) - math.log(self.scale) - 1.5 * math.log(2.0)


class Healthy(Frozen):
    """By part of the sizes; `own_small` and `own_large`: a log of a machine against the middle of its other logs.

    `one_node`: large messages of machines of one node, and those of the last band. `bands`: by the bands of
    `BAND_ENDS`. `degraded`: published degraded logs against the prediction with their cause, in the bands above 1 MiB.
    `causes`: how many published degraded systems have a cause of each kind.
    """

    small: Tail
    large: Tail
    own_small: Tail
    own_large: Tail
    one_node: tuple[Tail, ...] = Field(default=(), max_length=2)
    bands: tuple[Tail, ...] = Field(min_length=4, max_length=4)
    degraded: tuple[Tail, ...] = Field(default=(), max_length=2)
    causes: Mapping[str, float] = Field(default={})


@lru_cache(maxsize=1)
def healthy() -> Healthy:
    """What is shipped."""
    return validate(Healthy, read_documents(PATH)[0])


@dataclass(frozen=True)
class Sizes:
    """Small or large messages of a curve: their median ln(measured / predicted), and that of healthy machines."""

    name: str
    sizes: int
    middle: float
    spread: Tail
    above: int = 0  # bytes: of large ones, those that are judged
    own: bool = False  # the spread is that about this machine's other logs
    told: bool = True  # few of its sizes lie within a band that holds a machine half as fast too

    @property
    def as_slow(self) -> float:
        """Share of healthy machines that are at least as slow."""
        return self.spread.above(self.middle)

    @property
    def is_slow(self) -> bool:
        """Whether hardly a healthy machine is."""
        return self.as_slow < RARE[self.name]

    @property
    def is_fast(self) -> bool:
        """Whether hardly a healthy machine is as fast."""
        return 1.0 - self.as_slow < RARE[self.name]

    @property
    def tells(self) -> bool:
        """Whether a machine twice as slow as a healthy one would hardly look like this."""
        return 1.0 - self.spread.above(self.middle - math.log(2.0)) < MISSED

    @property
    def state(self) -> str:
        """``slower``, ``faster`` or ``as expected``; ``unjudged`` where a machine half as fast may look like it."""
        if self.is_slow or self.is_fast:
            off = "slower" if self.is_slow else "faster"
            return off if self.told else "unjudged"
        return "as expected" if self.tells else "unjudged"

    @property
    def words(self) -> str:
        """Which sizes."""
        return f"above {format_bytes(self.above)}" if self.name == "large" else "up to 1 MiB"


def state_of(of: Sequence[Sizes]) -> str:
    """The state of a curve: the gravest of its parts'."""
    states = [part.state for part in of]
    return next(state for state in ("slower", "faster", "unjudged", "as expected") if state in states)


def beside(part: Sizes, others: Sequence[float], known: Healthy | None = None) -> Sizes:
    """A part held against the middles of other healthy logs of its machine, where that tells more than other machines.

    Large messages of one machine's logs differ as much among each other as those of different machines: nodes,
    collectives and settings are other ones.
    """
    own: Tail = getattr(known or healthy(), f"own_{part.name}")
    if not others or own.scale >= part.spread.scale:
        return part
    about = Tail(middle=float(np.median(others)) + own.middle, scale=own.scale, systems=own.systems)
    return replace(part, spread=about, own=True)


def parts(comparison: Comparison, *, one_node: bool = False) -> list[Sizes]:
    """The parts that a curve has, large messages first, of sizes whose rows agree; `one_node`: of a machine of one."""
    rows = ~comparison.torn
    ratio = np.log(comparison.measured_s / comparison.predicted_s)[rows]
    return list(parts_of(comparison.size_bytes[rows], ratio, healthy(), one_node=one_node))


def parts_of(
    size_bytes: npt.NDArray[np.int64], ratio: npt.NDArray[np.float64], known: Healthy, *, one_node: bool = False
) -> Iterator[Sizes]:
    """Large and small messages of a curve, by their ln(measured / predicted).

    Large ones are judged all together, and those of the last band, which predictions are nearest to, alone: what fewer
    healthy machines are like counts.
    """
    spreads = known.one_node if one_node and known.one_node else (known.large, known.bands[-1])
    of_large = []
    for above, spread in zip((LARGE_ABOVE, BAND_ENDS[-1]), spreads, strict=True):
        if (rows := size_bytes > above).any():
            of_large.append(Sizes("large", int(rows.sum()), float(np.median(ratio[rows])), spread, above))
    if of_large:
        yield min(of_large, key=lambda part: min(part.as_slow, 1.0 - part.as_slow))
    if (rows := size_bytes <= LARGE_ABOVE).any():
        yield Sizes("small", int(rows.sum()), float(np.median(ratio[rows])), known.small)


def slow_curves(curves: Sequence[Curve], shipped_s: npt.NDArray[np.float64]) -> list[str]:
    """A sentence for each curve that hardly a healthy machine is as slow as: what is fitted to it is a sick machine.

    `shipped_s`: the times of all rows, curve by curve, predicted by the parameters that ship, (rows,).
    """
    out = []
    for curve, shipped in zip(curves, np.split(shipped_s, np.cumsum([len(c) for c in curves])[:-1]), strict=True):
        for part in parts_of(curve.size_bytes, np.log(curve.undisturbed_s() / shipped), healthy()):
            if part.is_slow:
                times = f"{factor_text(math.exp(part.middle))} {part.words}"
                out.append(
                    f"{curve.name} is slow for such a machine, {times}: what is fitted to it is a sick machine "
                    "(commsim compare tells likely causes)"
                )
                break
    return out
