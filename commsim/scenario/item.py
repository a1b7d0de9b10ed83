"""What a collective answers: a row for each size, and the measured curves with the prediction at their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.measure.records import Curve
from commsim.scenario.answer import Answer, plain_row
from commsim.units import gb_per_s, microseconds

if TYPE_CHECKING:
    from commsim.engine.usage import Use


@dataclass(frozen=True)
class Row:
    """The prediction for one size: what nccl-tests prints, then how the time came about.

    `size_bytes` and `count` as in nccl-tests; `algbw` and `busbw` in bytes/s.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    time_s: float
    algbw: float
    busbw: float
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    bottleneck: str = ""
    lower_bound_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    launch_s: float = 0.0
    kernel_s: float = 0.0
    level: str = ""
    p99_s: float | None = None  # of repeated runs, whose median is `time_s`
    slow_place: str = ""  # with library nccl what of the machine is slower than the rest, where that limits
    busiest_link: str = ""  # with library none the link held longest, else what is; and the share of the time
    busiest_share: float | None = None
    fifo_s: float | None = None  # where both views of contention were simulated
    fair_s: float | None = None
    runner_up: str = ""  # with `algorithm: auto`: the next best, and every algorithm with its seconds, quickest first
    runner_up_s: float | None = None
    candidates: tuple[tuple[str, float], ...] = ()
    left_out: tuple[tuple[str, float], ...] = ()  # not simulated: the seconds that each takes at least are too many

    @property
    def limiting_place(self) -> str:
        """`slow_place` where the rate of links is what the time waits for, else empty.

        Latency is not, nor are messages between nodes, which take turns whatever the links carry.
        """
        rate = self.bottleneck == self.busiest_link and self.bottleneck != "messages of the NIC"
        return self.slow_place if rate else ""

    @property
    def over_bound(self) -> float:
        """How many times as long it takes as no schedule can beat; not a number where no bound is known."""
        return self.time_s / self.lower_bound_s if self.lower_bound_s else float("nan")

    def record(self) -> dict[str, Any]:
        """Plain values with units in the names, without those of other algorithms."""
        record = plain_row(self)
        del record["candidates"], record["left_out"]
        rates = {"algbw": "algbw_GBps", "busbw": "busbw_GBps"}
        named = {rates.get(k, k): gb_per_s(v) if k in rates else v for k, v in record.items()}
        return named | {"not_simulated": len(self.left_out)}


@dataclass(frozen=True)
class Item(Answer):
    """One workload item: its predicted rows, and the measured curves with the prediction at exactly their sizes."""

    kind: ClassVar[str] = "items"

    name: str
    collective: str
    n_ranks: int
    rows: Sequence[Row]
    library: str = "nccl"
    mode: str = "back_to_back"
    measured: tuple[Curve, ...] = ()
    at_measured: tuple[Curve, ...] = ()
    parameters: str = ""
    use: Use | None = None  # of the network, by the largest size; with library none
    use_bytes: int = 0
    bound: str = ""  # what the lower bound of the largest size is

    def curve(self) -> Curve:
        """The predicted rows as a curve, with the band where every row has one."""
        low, high, bound = (
            np.array([getattr(row, name) for row in self.rows], float)  # None: not a number
            for name in ("low_s", "high_s", "lower_bound_s")
        )
        banded = bool(self.rows) and not np.isnan(low).any()
        return Curve(
            name=self.name,
            low_s=low if banded else None,
            high_s=high if banded else None,
            collective=self.collective,
            n_ranks=self.n_ranks,
            kind="predicted",
            size_bytes=np.array([r.size_bytes for r in self.rows], np.int64),
            time_s=np.array([r.time_s for r in self.rows]),
            lower_bound_s=bound,
            dtype=self.rows[0].dtype if self.rows else "",
            redop=self.rows[0].redop if self.rows else "",
        )

    @property
    def choices(self) -> dict[int, str]:
        """By size what runs, with its protocol if it has one: ``tree/LL128``."""
        parts = {row.size_bytes: (row.algorithm, row.protocol) for row in self.rows if row.algorithm}
        return {size: "/".join(part for part in both if part and part != "-") for size, both in parts.items()}

    def use_dict(self) -> dict[str, Any] | None:
        """The use of the network as JSON-ready values, without the single links."""
        if self.use is None:
            return None
        return {
            "size_bytes": self.use_bytes,
            "time_us": microseconds(self.use.time_s),
            "exposed_us": microseconds(self.use.exposed_s),
            "bottleneck": self.use.bottleneck,
            "links_used": self.use.links_used,
            "part": self.use.part,
            "kinds": [vars(kind) for kind in self.use.kinds],
        }

    def algorithms_dict(self, field: str) -> dict[str, dict[str, float]]:
        """With `algorithm: auto`, by size in bytes: microseconds of every algorithm in `candidates` or `left_out`."""
        of_rows = {str(row.size_bytes): getattr(row, field) for row in self.rows}
        return {size: {name: microseconds(s) for name, s in some} for size, some in of_rows.items() if some}

    def measured_dicts(self) -> list[dict[str, Any]]:
        """The measured curves with the prediction at their sizes, as plain values."""
        return [
            {
                "name": curve.name,
                "n_ranks": curve.n_ranks,
                "size_bytes": [int(size) for size in curve.size_bytes],
                "time_us": [microseconds(float(t)) for t in curve.time_s],
                "predicted_us": [microseconds(float(t)) for t in at.time_s],
            }
            for curve, at in zip(self.measured, self.at_measured, strict=True)
        ]

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values with units in the names: what CSV, JSON and data frames hold."""
        return [{"collective": self.collective, "n_ranks": self.n_ranks, **row.record()} for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "collective": self.collective,
            "n_ranks": self.n_ranks,
            "library": self.library,
            "mode": self.mode,
            "parameters": self.parameters,
            "bound": self.bound,
            "network_use": self.use_dict(),
            "rows": self.records(),
            "candidates_us": self.algorithms_dict("candidates"),
            "left_out_us": self.algorithms_dict("left_out"),
            "measured": self.measured_dicts(),
        }
