"""A schedule made ready to be started often beside others: its messages between local ranks, and their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commsim.collectives.schedule import Schedule
from commsim.engine.program import Int32, Int64, dense_ids
from commsim.errors import ScheduleError

Bound = tuple[int, tuple[int, ...], int]
"""What a network keeps of a template: its id, the ranks it was started on, the whole size in bytes."""


@dataclass(frozen=True, eq=False)
class Template:
    """Messages between local ranks 0..n-1, (M,): ``pair`` is source * n + destination, ``line`` the connection."""

    ranks: int
    total_bytes: int
    nbytes: Int64
    pair: Int64
    line: Int32
    succ_ptr: Int64
    succ_idx: Int32
    indeg: Int32

    @staticmethod
    def of(schedule: Schedule) -> Template:
        """The template of a schedule whose endpoints are all ranks; a ScheduleError otherwise."""
        if schedule.endpoints > schedule.world_size:
            raise ScheduleError("a schedule that reduces in switches cannot be started on ranks alone")
        ptr, idx = schedule.dependencies()
        n = schedule.endpoints
        pair = schedule.src.astype(np.int64) * n + schedule.dst
        channels = int(schedule.channel.max(initial=0)) + 1
        return Template(
            ranks=n,
            total_bytes=schedule.nbytes,
            nbytes=schedule.payload_bytes() if schedule.wire_bytes is None else schedule.wire_bytes,
            pair=pair,
            line=dense_ids(pair * channels + schedule.channel, n * n * channels)[1],
            succ_ptr=ptr,
            succ_idx=idx,
            indeg=np.bincount(idx, minlength=schedule.rows).astype(np.int32),
        )

    @staticmethod
    def send(nbytes: int) -> Template:
        """One message from local rank 0 to local rank 1."""
        return Template(
            ranks=2,
            total_bytes=nbytes,
            nbytes=np.array([nbytes]),
            pair=np.array([1]),
            line=np.zeros(1, np.int32),
            succ_ptr=np.zeros(2, np.int64),
            succ_idx=np.zeros(0, np.int32),
            indeg=np.zeros(1, np.int32),
        )

    def require_group(self, group: Sequence[int]) -> None:
        """Raise a ScheduleError unless the template has messages and one local rank per rank of the group."""
        if len(group) != self.ranks:
            raise ScheduleError(f"found a group of {len(group)} ranks for a template of {self.ranks}")
        if not self.nbytes.size:
            raise ScheduleError("a template without messages ends as it starts; nothing need be waited for")

    def scaled(self, nbytes: int) -> Int64:
        """Bytes of each message when the whole has ``nbytes``; a ScheduleError when they are not whole numbers."""
        if nbytes == self.total_bytes:
            return self.nbytes
        if not self.total_bytes:
            raise ScheduleError(f"a template without bytes cannot be scaled to {nbytes} bytes")
        share = math.gcd(nbytes, self.total_bytes)
        if (self.nbytes % (self.total_bytes // share)).any():
            raise ScheduleError(
                f"{nbytes} bytes do not divide into the chunks of a template of {self.total_bytes} bytes"
            )
        return np.asarray(self.nbytes // (self.total_bytes // share) * (nbytes // share), np.int64)
