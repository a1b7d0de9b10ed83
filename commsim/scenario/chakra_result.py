"""What a ``trace:`` item answers: the time, what every rank spent it on, every kind of call, the critical path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from commsim.chakra.simulate import TraceRun, critical_path
from commsim.engine.usage import covered_s
from commsim.scenario.answer import Answer
from commsim.units import microseconds

if TYPE_CHECKING:
    from commsim.engine.timeline import Timeline

Float64 = npt.NDArray[np.float64]

PARTS = ("compute", "communication", "other")
"""What a critical path is made of; other: host and memory."""

_PART = {"compute": 0, "collective": 1, "send": 1, "recv": 1, "cpu": 2, "memory": 2, "none": 2}


@dataclass(frozen=True)
class RankRow:
    """Where one rank's time goes, in seconds: they add up to the end of the last rank.

    ``exposed``: transfers of its own while its GPU computes nothing; ``other``: host and memory beside neither;
    ``idle``: the rest, in which it waits for other ranks. ``path``: seconds by `PARTS` on the critical path to its end.
    """

    rank: int
    compute: float
    communication: float
    exposed: float
    other: float
    idle: float
    end: float
    path: tuple[float, float, float]

    def record(self) -> dict[str, Any]:
        """Plain values with units in the names."""
        row: dict[str, Any] = {"rank": self.rank}
        row |= {
            f"{name}_us": microseconds(getattr(self, name))
            for name in ("compute", "communication", "exposed", "other", "idle", "end")
        }
        return row | {f"path_{part}_us": microseconds(value) for part, value in zip(PARTS, self.path, strict=True)}


@dataclass(frozen=True)
class CallRow:
    """Calls of one kind: as many, of so many bytes (as nccl-tests counts) between so many ranks; seconds from when the
    last member came to the end."""

    call: str
    ranks: int
    nbytes: int
    count: int
    mean: float
    most: float
    total: float

    def record(self) -> dict[str, Any]:
        """Plain values with units in the names."""
        return {
            "call": self.call,
            "n_ranks": self.ranks,
            "size_bytes": self.nbytes,
            "count": self.count,
            "mean_us": microseconds(self.mean),
            "max_us": microseconds(self.most),
            "total_us": microseconds(self.total),
        }


@dataclass(frozen=True, eq=False)
class TraceItem(Answer):
    """Simulated traces; trace rank i ran on rank ``places[i]`` of the machine."""

    kind: ClassVar[str] = "traces"

    name: str
    places: tuple[int, ...]
    run: TraceRun

    @property
    def seconds(self) -> float:
        """From the start to the end of the last operation."""
        return self.run.seconds

    @property
    def nodes(self) -> int:
        """Nodes of all ranks."""
        return sum(len(trace.nodes) for trace in self.run.program.traces if trace)

    @cached_property
    def timeline(self) -> Timeline:
        """A row per operation and rank."""
        return self.run.timeline()

    @cached_property
    def ranks(self) -> tuple[RankRow, ...]:
        """One row per rank that has a trace."""
        return tuple(self._rank(rank) for rank, trace in enumerate(self.run.program.traces) if trace)

    @cached_property
    def calls(self) -> tuple[CallRow, ...]:
        """Kinds of calls, those that take longest in all first."""
        seconds_of: dict[tuple[str, int, int], list[float]] = {}
        run = self.run
        for i, operation in enumerate(run.program.operations):
            if operation.kind in ("collective", "send"):
                key = run.program.keys[operation.line]
                assert key is not None
                seconds = seconds_of.setdefault((operation.name, len(key[1]), operation.nbytes), [])
                seconds.append(float(run.end_s[i] - run.start_s[i]))
        rows = (
            CallRow(*kind, len(seconds), float(np.mean(seconds)), max(seconds), sum(seconds))
            for kind, seconds in seconds_of.items()
        )
        return tuple(sorted(rows, key=lambda row: (-row.total, row.call, row.nbytes)))

    @cached_property
    def longest(self) -> int:
        """The rank that ends last."""
        return max(self.ranks, key=lambda row: (row.end, -row.rank)).rank if self.ranks else 0

    @cached_property
    def path(self) -> tuple[tuple[str, float, int], ...]:
        """The critical path to the end by what it is made of: (what, seconds, operations), the longest first."""
        parts: dict[str, tuple[float, int]] = {}
        operations = self.run.program.operations
        for i in critical_path(self.run, self.longest):
            operation = operations[i]
            name = operation.name
            if operation.kind == "collective":
                key = self.run.program.keys[operation.line]
                name = f"{operation.name} over {len(key[1]) if key else 0} ranks"
            seconds, count = parts.get(name, (0.0, 0))
            parts[name] = (seconds + float(self.run.end_s[i] - self.run.start_s[i]), count + 1)
        rows = ((name, seconds, count) for name, (seconds, count) in parts.items() if seconds > 0)
        return tuple(sorted(rows, key=lambda row: -row[1]))

    @property
    def bottleneck(self) -> str:
        """What the critical path is longest in, with its share."""
        if not self.path or not self.seconds:
            return "nothing"
        name, seconds, _ = self.path[0]
        return f"{name} ({seconds / self.seconds:.0%} of the critical path)"

    def mean(self, part: str) -> float:
        """The mean over ranks of a column of `RankRow`."""
        return float(np.mean([getattr(row, part) for row in self.ranks])) if self.ranks else 0.0

    def _rank(self, rank: int) -> RankRow:
        run, mine = self.run, self.run.program.operation[rank]
        operations = run.program.operations
        spans = [(*run.span(i), _PART[operations[i].kind]) for i in mine if operations[i].kind != "none"]
        start, end, part = np.array(spans, dtype=float).reshape(-1, 3).T
        compute, communication, busy, everything = (
            covered_s(start[held], end[held]) for held in (part == 0, part == 1, part < 2, part < 3)
        )
        path = [0.0, 0.0, 0.0]
        for index in critical_path(run, rank):
            path[_PART[operations[index].kind]] += float(run.end_s[index] - run.start_s[index])
        return RankRow(
            rank=rank,
            compute=compute,
            communication=communication,
            exposed=busy - compute,
            other=everything - busy,
            idle=run.seconds - everything,
            end=max((float(run.end_s[index]) for index in mine), default=0.0),
            path=(path[0], path[1], path[2]),
        )

    def records(self) -> list[dict[str, Any]]:
        """One row."""
        return [self.record()]

    def record(self) -> dict[str, Any]:
        """One row of plain values, units in the names; parts are those of the mean rank."""
        row: dict[str, Any] = {
            "item": self.name,
            "ranks": len(self.places),
            "nodes": self.nodes,
            "time_us": microseconds(self.seconds),
        }
        row |= {
            f"{part}_us": microseconds(self.mean(part))
            for part in ("compute", "communication", "exposed", "other", "idle")
        }
        return row | {"bottleneck": self.bottleneck}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            **self.record(),
            "contention": self.run.contended,
            "critical_path": [
                {"what": name, "us": microseconds(seconds), "count": count} for name, seconds, count in self.path
            ],
            "calls": [row.record() for row in self.calls],
            "per_rank": [row.record() for row in self.ranks],
        }
