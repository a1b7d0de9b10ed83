"""What a run answers: predicted rows per workload item, beside the measured curves, and where it all came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.measure.records import Curve, busbw_factor
from commsim.units import gb_per_s, microseconds

if TYPE_CHECKING:
    import pandas as pd

    from commsim.scenario.schema import Scenario

JSON_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Row:
    """The prediction for one size; `size_bytes` and `count` as in nccl-tests."""

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    time_s: float
    algorithm: str
    protocol: str
    channels: int
    bottleneck: str
    lower_bound_s: float
    launch_s: float
    kernel_s: float
    level: str


@dataclass(frozen=True)
class Item:
    """One workload item: its predicted rows, and the measured curves with the prediction at exactly their sizes."""

    collective: str
    ranks: int
    library: str
    mode: str
    rows: tuple[Row, ...]
    measured: tuple[Curve, ...] = ()
    at_measured: tuple[Curve, ...] = ()
    parameters: str = ""

    def curve(self, name: str) -> Curve:
        """The predicted rows as a curve."""
        return Curve(
            name=name,
            collective=self.collective,
            n_ranks=self.ranks,
            kind="predicted",
            size_bytes=np.array([r.size_bytes for r in self.rows], np.int64),
            time_s=np.array([r.time_s for r in self.rows]),
            lower_bound_s=np.array([r.lower_bound_s for r in self.rows]),
            dtype=self.rows[0].dtype if self.rows else "",
            redop=self.rows[0].redop if self.rows else "",
        )

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values with units in the names: what CSV, JSON and data frames hold."""
        factor = busbw_factor(self.collective, self.ranks) if self.ranks > 1 else 0.0
        return [
            {
                "collective": self.collective,
                "n_ranks": self.ranks,
                "size_bytes": r.size_bytes,
                "count": r.count,
                "dtype": r.dtype,
                "redop": r.redop,
                "root": r.root,
                "time_us": microseconds(r.time_s),
                "algbw_GBps": gb_per_s(r.size_bytes / r.time_s),
                "busbw_GBps": gb_per_s(r.size_bytes / r.time_s * factor),
                "algorithm": r.algorithm,
                "protocol": r.protocol,
                "channels": r.channels,
                "bottleneck": r.bottleneck,
                "lower_bound_us": microseconds(r.lower_bound_s),
                "launch_us": microseconds(r.launch_s),
                "kernel_us": microseconds(r.kernel_s),
                "level": r.level,
            }
            for r in self.rows
        ]


@dataclass(frozen=True, eq=False)
class Result:
    """The answer to one scenario."""

    scenario: Scenario
    scenario_hash: str
    resolved: str
    topology: dict[str, Any]
    items: tuple[Item, ...]
    warnings: tuple[str, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.scenario.name

    def records(self) -> list[dict[str, Any]]:
        """All rows of all items as plain values."""
        return [record for item in self.items for record in item.records()]

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
                    "n_ranks": item.ranks,
                    "library": item.library,
                    "mode": item.mode,
                    "parameters": item.parameters,
                    "rows": item.records(),
                }
                for item in self.items
            ],
        }

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, float_format=lambda v: f"{v:.4g}"))
