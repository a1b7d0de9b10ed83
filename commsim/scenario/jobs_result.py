"""What jobs beside each other answer: how long each takes alone and together, and where it meets others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from commsim.scenario.answer import Answer, plain_row


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
        return plain_row(self)


@dataclass(frozen=True)
class JobsItem(Answer):
    """One workload item of several jobs on a network of ``world_size`` ranks, with as many background flows."""

    kind: ClassVar[str] = "jobs"

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

    @property
    def unlisted(self) -> int:
        """Jobs are no rows of `records`."""
        return len(self.rows)
