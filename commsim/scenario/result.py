"""What a run answers: predicted rows per workload item, beside the measured curves, and where it all came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.measure.records import Curve
from commsim.units import gb_per_s, microseconds

if TYPE_CHECKING:
    import pandas as pd

    from commsim.engine.usage import Use
    from commsim.scenario.chakra_result import TraceItem
    from commsim.scenario.claim_run import ClaimItem
    from commsim.scenario.schema import Scenario
    from commsim.scenario.training_result import TrainingItem

JSON_SCHEMA_VERSION = 1


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
    runner_up: str = ""  # with `algorithm: auto`: the next best, and every algorithm with its seconds, quickest first
    runner_up_s: float | None = None
    candidates: tuple[tuple[str, float], ...] = ()
    busiest_link: str = ""  # with library none the link held longest, else what is; and the share of the time
    busiest_share: float | None = None
    fifo_s: float | None = None  # where both views of contention were simulated
    fair_s: float | None = None
    left_out: tuple[tuple[str, float], ...] = ()  # not simulated: the seconds that each takes at least are too many


@dataclass(frozen=True)
class Item:
    """One workload item: its predicted rows, and the measured curves with the prediction at exactly their sizes."""

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

    def curve(self) -> Curve:
        """The predicted rows as a curve, with the band where every row has one."""
        low, high = (
            np.array([np.nan if v is None else v for v in column])
            for column in ([r.low_s for r in self.rows], [r.high_s for r in self.rows])
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
            lower_bound_s=np.array([np.nan if r.lower_bound_s is None else r.lower_bound_s for r in self.rows]),
            dtype=self.rows[0].dtype if self.rows else "",
            redop=self.rows[0].redop if self.rows else "",
        )

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

    def candidates_dict(self) -> dict[str, dict[str, float]]:
        """With `algorithm: auto`: microseconds of every algorithm by size in bytes."""
        return {
            str(row.size_bytes): {name: microseconds(seconds) for name, seconds in row.candidates}
            for row in self.rows
            if row.candidates
        }

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
        return [
            {
                "collective": self.collective,
                "n_ranks": self.n_ranks,
                "size_bytes": r.size_bytes,
                "count": r.count,
                "dtype": r.dtype,
                "redop": r.redop,
                "root": r.root,
                "time_us": microseconds(r.time_s),
                "algbw_GBps": gb_per_s(r.algbw),
                "busbw_GBps": gb_per_s(r.busbw),
                "algorithm": r.algorithm,
                "protocol": r.protocol,
                "channels": r.channels,
                "bottleneck": r.bottleneck,
                "lower_bound_us": None if r.lower_bound_s is None else microseconds(r.lower_bound_s),
                "low_us": None if r.low_s is None else microseconds(r.low_s),
                "high_us": None if r.high_s is None else microseconds(r.high_s),
                "launch_us": microseconds(r.launch_s),
                "kernel_us": microseconds(r.kernel_s),
                "level": r.level,
                "p99_us": None if r.p99_s is None else microseconds(r.p99_s),
                "busiest_link": r.busiest_link,
                "busiest_share": r.busiest_share,
                "fifo_us": None if r.fifo_s is None else microseconds(r.fifo_s),
                "fair_us": None if r.fair_s is None else microseconds(r.fair_s),
                "runner_up": r.runner_up,
                "runner_up_us": None if r.runner_up_s is None else microseconds(r.runner_up_s),
                "not_simulated": len(r.left_out),
            }
            for r in self.rows
        ]


@dataclass(frozen=True)
class JobRow:
    """One job beside others: seconds from its start to its end, alone and together, and their ratio.

    With repeated runs the times are medians and ``p99_s`` is of the time together. ``shared_links`` counts the links
    that others use too; ``meets_on`` is the one of them that carries most for its speed.
    """

    job: str
    collective: str
    algorithm: str
    n_ranks: int
    size_bytes: int
    start_s: float
    alone_s: float
    together_s: float
    slowdown: float
    p99_s: float | None = None
    shared_links: int = 0
    meets_on: str = ""

    def record(self) -> dict[str, Any]:
        """Plain values with units in the names."""
        return {
            "job": self.job,
            "collective": self.collective,
            "algorithm": self.algorithm,
            "n_ranks": self.n_ranks,
            "size_bytes": self.size_bytes,
            "start_us": microseconds(self.start_s),
            "alone_us": microseconds(self.alone_s),
            "together_us": microseconds(self.together_s),
            "slowdown": self.slowdown,
            "p99_us": None if self.p99_s is None else microseconds(self.p99_s),
            "shared_links": self.shared_links,
            "meets_on": self.meets_on,
        }


@dataclass(frozen=True)
class JobsItem:
    """One workload item of several jobs on a network of ``world_size`` ranks, with as many background flows."""

    name: str
    world_size: int
    contention: str
    rows: tuple[JobRow, ...]
    flows: int = 0
    repeats: int = 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "contention": self.contention,
            "background_flows": self.flows,
            "repeats": self.repeats,
            "rows": [row.record() for row in self.rows],
        }


_PRINTED = (
    "collective", "n_ranks", "size_bytes", "time_us", "algbw_GBps", "busbw_GBps", "algorithm", "protocol", "channels",
    "bottleneck", "model", "gpus", "tp", "pp", "cp", "dp", "ep", "step_s", "mfu", "peak_memory_GiB", "fits",
)  # fmt: skip
"""The columns of a printed result, as a line of a terminal has room for; `to_frame` has all."""


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The answer to one scenario; it prints as a table, and a notebook shows it as one.

    `items` are the collectives of the workload with their rows, `jobs`, `trainings` and `claims` its other entries, in
    order; `resolved` is the scenario as YAML with everything written out, and `scenario_hash` that of its content.
    """

    scenario: Scenario
    scenario_hash: str
    resolved: str
    topology: dict[str, Any]
    items: tuple[Item, ...]
    jobs: tuple[JobsItem, ...] = ()
    trainings: tuple[TrainingItem, ...] = ()
    claims: tuple[ClaimItem, ...] = ()
    traces: tuple[TraceItem, ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.scenario.name

    def records(self) -> list[dict[str, Any]]:
        """All rows of all items as plain values: one per size of a collective, one per training step or trace."""
        rows = [record for item in self.items for record in item.records()]
        rows += [item.record() for item in self.trainings]
        return rows + [item.record() for item in self.traces]

    def to_frame(self) -> pd.DataFrame:
        """All rows as a data frame, units in the column names."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def to_dict(self) -> dict[str, Any]:
        """The whole result as JSON-ready values."""
        return {
            "schema_version": JSON_SCHEMA_VERSION,
            "name": self.name,
            "scenario_hash": self.scenario_hash,
            "provenance": self.provenance,
            "topology": self.topology,
            "warnings": list(self.warnings),
            "items": [
                {
                    "collective": item.collective,
                    "n_ranks": item.n_ranks,
                    "library": item.library,
                    "mode": item.mode,
                    "parameters": item.parameters,
                    "network_use": item.use_dict(),
                    "rows": item.records(),
                    "candidates_us": item.candidates_dict(),
                    "measured": item.measured_dicts(),
                }
                for item in self.items
            ],
            "jobs": [item.to_dict() for item in self.jobs],
            "trainings": [item.to_dict() for item in self.trainings],
            "claims": [item.to_dict() for item in self.claims],
            "traces": [item.to_dict() for item in self.traces],
        }

    def _full_columns(self) -> pd.DataFrame:
        """The rows without the columns that hold nothing."""
        frame = self.to_frame()
        return frame[[name for name in frame if not frame[name].isin(["", None]).all()]].dropna(axis=1, how="all")

    def __repr__(self) -> str:
        """The name, the warnings and the main columns of the rows; of what has no rows, how much there is."""
        frame = self._full_columns()
        shown = frame[[name for name in frame.columns if name in _PRINTED] or list(frame.columns)]
        rows = [shown.to_string(index=False, max_rows=60, float_format=lambda v: f"{v:.4g}")] if len(shown) else []
        others = {"jobs": sum(len(item.rows) for item in self.jobs), "claims": len(self.claims)}
        rows += [f"{count} {what}: to_dict() has them" for what, count in others.items() if count]
        return "\n".join([self.name, *self.warnings, *rows])

    def _repr_html_(self) -> str:
        """The rows without the columns that hold nothing, below the name and the warnings."""
        from html import escape

        head = f"<p><b>{escape(self.name)}</b></p>" + "".join(f"<p>{escape(text)}</p>" for text in self.warnings)
        shown = self._full_columns()
        return head + str(shown.to_html(index=False, max_rows=60, float_format=lambda v: f"{v:.4g}"))
