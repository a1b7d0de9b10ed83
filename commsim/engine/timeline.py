"""The Timeline: who did what from when to when, as columns that reports, traces and tests read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Op, Schedule
from commsim.engine.program import Float64, Int32, Int64
from commsim.engine.simulate import Outcome

_NAMES = ("copy", "reduce", "local copy", "local reduce")


@dataclass(frozen=True, eq=False)
class Timeline:
    """One row per thing done, in the order of the schedule; columns of shape (rows,).

    ``endpoint`` is the rank (or switch) that does it, ``stream`` the channel or stream it does it on. ``name_code``
    indexes ``names``; millions of rows have a handful of names.
    """

    start_s: Float64
    end_s: Float64
    endpoint: Int32
    stream: Int32
    name_code: npt.NDArray[np.unsignedinteger[Any]]
    nbytes: Int64
    names: tuple[str, ...] = _NAMES

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[float, float, int, int, int, int]], names: tuple[str, ...]) -> Timeline:
        """The timeline of (start, end, endpoint, stream, index into ``names``, bytes), by start."""
        columns = list(zip(*sorted(rows), strict=True)) or [()] * 6
        return cls(
            start_s=np.array(columns[0], np.float64),
            end_s=np.array(columns[1], np.float64),
            endpoint=np.array(columns[2], np.int32),
            stream=np.array(columns[3], np.int32),
            name_code=np.array(columns[4], np.min_scalar_type(len(names))),
            nbytes=np.array(columns[5], np.int64),
            names=names,
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.start_s.size)

    @property
    def name(self) -> npt.NDArray[np.str_]:
        """The name of each row, (rows,), spelled out."""
        return cast("npt.NDArray[np.str_]", np.array(self.names)[self.name_code])


def timeline(schedule: Schedule, outcome: Outcome) -> Timeline:
    """The Timeline of a simulated schedule: a row from when its first link takes it up to when it has arrived.

    Ops before the schedule's own (ranks that come late) are no rows.
    """
    local, first = schedule.src == schedule.dst, outcome.program.rows - schedule.rows
    return Timeline(
        start_s=outcome.start_s[first:],
        end_s=outcome.end_s[first:],
        endpoint=schedule.src,
        stream=schedule.channel,
        name_code=((schedule.op == Op.REDUCE) + 2 * local).astype(np.uint8),
        nbytes=outcome.program.nbytes[first:],
    )
