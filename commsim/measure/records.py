"""One bandwidth curve, measured or predicted: what logs are read into and predictions come out as."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from commsim.collectives import semantics
from commsim.units import factor_text, format_bytes

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Kind = Literal["measured", "predicted"]

COLLECTIVES = {name.replace("_", ""): name for name in semantics.NCCL_TESTS} | {"bcast": "broadcast"}
"""Our names by those that nccl-tests binaries, NCCL's log and published tables use, in lower case without signs."""

COPYING = semantics.DIVIDED - semantics.REDUCING
"""Collectives that copy a rank's own block when out of place, and so take longer there; the others do the same work."""

APART = 1.25
"""Ratio of two measurements of the same thing that hardly is a matter of luck.

Of 4,677 rows of published logs, not known degraded, whose two columns did the same work, half differ by less than 1 %;
109 took longer by more than this out of place, 13 of them tenfold, and 51 in place.
"""

REPEATS_APART = 1.5
"""Ratio of the longest to the shortest time of one size in one table from which on neither is to be trusted.

Nodes of one job of one table differ by at most 1.14 (SPREAD_h100_xxrjun_10nodes.csv, 100 rows); whole runs of healthy
machines beside each other by more in 2 of 171 rows (validation/measured).
"""

RESULT_COLUMNS = (
    "curve",
    "collective",
    "n_ranks",
    "size_bytes",
    "count",
    "dtype",
    "redop",
    "root",
    "time_us",
    "algbw_GBps",
    "busbw_GBps",
    "low_us",
    "high_us",
    "lower_bound_us",
    "algorithm",
    "protocol",
    "channels",
    "bottleneck",
)
"""Of ``result.csv``, as a run writes it and `measure` reads it."""

_NAMED_SIZES = 4


def collective_name(text: str) -> str | None:
    """Our name for a collective, or None: ``AllReduce``, ``all_reduce_perf``, ``alltoall`` and the like."""
    key = text.strip().lower().removesuffix("_perf").replace("_", "").replace("-", "").replace(" ", "")
    return COLLECTIVES.get(key)


@dataclass(frozen=True, eq=False)
class Curve:
    """Time against message size for one collective on one group of ranks; sizes ascend, each occurs once.

    Arrays have shape (rows,). `size_bytes` is the nccl-tests *size* column: the total array for all_gather
    and reduce_scatter. `time_s` is the out-of-place time; `time_from` says where it comes from otherwise.
    `n_ranks` is None when the log does not say and the bandwidth columns cannot tell.
    """

    name: str
    collective: str
    n_ranks: int | None
    kind: Kind
    size_bytes: IntArray
    time_s: FloatArray
    in_place_time_s: FloatArray | None = None  # NaN where a row has none
    dtype: str = ""
    redop: str = ""
    root: int | None = None
    low_s: FloatArray | None = None  # band of the time: a spread over runs, or an uncertainty of the prediction
    high_s: FloatArray | None = None
    lower_bound_s: FloatArray | None = None  # no algorithm can be faster on that topology
    conditions: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)  # NCCL's variables that this curve alone was measured under
    source: str = ""
    skipped_lines: int = 0
    wrong_rows: int = 0  # with elements of the result that were wrong
    wrong_bytes: tuple[int, ...] = ()  # their sizes
    time_from: str = "out_of_place"  # | in_place | busbw | in_place_busbw | mixed
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = self.size_bytes.shape
        for column in ("time_s", "in_place_time_s", "low_s", "high_s", "lower_bound_s"):
            values = getattr(self, column)
            if values is not None and values.shape != rows:
                raise ValueError(f"{self.name}: {column} has shape {values.shape}, expected {rows} as size_bytes")
        if np.any(np.diff(self.size_bytes) <= 0) or np.any(self.size_bytes <= 0):
            raise ValueError(f"{self.name}: size_bytes must be above zero and ascend")
        if not np.all(np.isfinite(self.time_s) & (self.time_s > 0)):
            raise ValueError(f"{self.name}: every time must be finite and above zero")

    def __len__(self) -> int:
        return len(self.size_bytes)

    def algbw(self) -> FloatArray:
        """Size / time in bytes/s."""
        return self.size_bytes / self.time_s

    def disturbed(self) -> BoolArray:
        """Where something disturbed the out-of-place calls: above `APART` times as long as in place, for the same work.

        Nowhere, where most sizes did: then in place something else was done.
        """
        if self.in_place_time_s is None or self.collective in COPYING or self.time_from != "out_of_place":
            return np.zeros(len(self), np.bool_)
        both = self.in_place_time_s > 0  # NaN: there is none
        apart = both & (self.time_s > APART * self.in_place_time_s)
        return apart if 2 * apart.sum() <= both.sum() else np.zeros_like(apart)

    def seconds_at(self, size_bytes: npt.ArrayLike) -> FloatArray:
        """Seconds at other sizes: straight in the logarithms of time and size.

        Below the smallest size its time; beyond the largest one in proportion to the bytes.
        """
        wanted, known = np.log(np.asarray(size_bytes, np.float64)), np.log(self.size_bytes)
        time = np.interp(wanted, known, np.log(self.time_s)) + np.maximum(wanted - known[-1], 0.0)
        return np.asarray(np.exp(time))

    def undisturbed_s(self) -> FloatArray:
        """What a fit takes as a size's time: the out-of-place time, in place where that was `disturbed`.

        What else runs on a machine can only add to a time: of two that lie apart the lower one is right.
        """
        if self.in_place_time_s is None:
            return self.time_s
        return np.where(self.disturbed(), self.in_place_time_s, self.time_s)

    def torn(self) -> BoolArray:
        """Where repeats of one size lie above `REPEATS_APART` apart."""
        if self.kind != "measured" or self.low_s is None or self.high_s is None:
            return np.zeros(len(self), np.bool_)
        return np.asarray(self.high_s > REPEATS_APART * self.low_s)

    def torn_words(self) -> str:
        """Where rows of one size are `torn` and how much, in words; empty where none are."""
        rows = np.flatnonzero(self.torn())
        if self.low_s is None or self.high_s is None or not rows.size:
            return ""
        ratio = self.high_s[rows] / self.low_s[rows]
        return "rows of one size disagree: " + self._sizes_named(rows, [f"{factor_text(r)} at" for r in ratio.tolist()])

    def _sizes_named(self, rows: IntArray, words: list[str]) -> str:
        """The first sizes of some rows, each after its words, and how many more there are."""
        sizes = [f"{word} {format_bytes(int(self.size_bytes[k]))}" for k, word in zip(rows, words, strict=True)]
        rest = len(sizes) - _NAMED_SIZES
        more = f", and at {rest} more size{'s' * (rest > 1)}" if rest > 0 else ""
        return f"{', '.join(sizes[:_NAMED_SIZES])}{more}"

    def disturbance(self) -> str:
        """Where it was `disturbed` and how much, in words; empty where it was not."""
        rows = np.flatnonzero(self.disturbed())
        if self.in_place_time_s is None or not rows.size:
            return ""
        ratio = self.time_s[rows] / self.in_place_time_s[rows]
        sizes = self._sizes_named(rows, [f"{r:.2f} at" for r in ratio.tolist()])
        return f"out of place took longer than in place (times {sizes}): something else disturbed it"

    def busbw(self) -> FloatArray:
        """algbw times the collective's factor in bytes/s: comparable to a link's bandwidth at any n_ranks."""
        return self.algbw() * self.factor()

    def factor(self) -> float:
        """busbw / algbw; a ValueError where the rank count is needed and unknown."""
        if self.n_ranks is None:
            if self.collective in semantics.ONE_RATE:
                return 1.0
            raise ValueError(f"{self.name}: the bus bandwidth of {self.collective} needs the number of ranks")
        return semantics.busbw_factor(self.collective, self.n_ranks)

    def between(self, low_bytes: int, high_bytes: int) -> Curve:
        """The rows with low_bytes <= size <= high_bytes."""
        keep = (self.size_bytes >= low_bytes) & (self.size_bytes <= high_bytes)
        columns = ("size_bytes", "time_s", "in_place_time_s", "low_s", "high_s", "lower_bound_s")
        return replace(self, **{c: v[keep] for c in columns if (v := getattr(self, c)) is not None})
