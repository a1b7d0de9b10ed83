"""The critical path: what the makespan consists of, found backwards from the op that ends last."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsim.engine.program import HOP_BITS, MAX_HOPS, Float64, Int32, Int64, Program, pointers


class StretchKind(IntEnum):
    """What a stretch of the critical path is."""

    DELAY = 0
    LATENCY = 1
    TRANSFER = 2


class Record(NamedTuple):
    """What a recorded run keeps: hop ``h`` of op ``i`` stands at ``hop_ptr[i] + h``.

    ``hop_start_s``: when the link took it up; ``hop_before``: the event (op << 16 | hop) that kept the link busy when
    it arrived, or -1; ``cause`` (M,): the predecessor that ended last, or -1.
    """

    hop_ptr: Int64
    hop_start_s: Float64
    hop_before: Int64
    cause: Int32

    @staticmethod
    def none() -> Record:
        """Empty arrays: the loop takes them as "do not record"."""
        return Record(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int32))

    @staticmethod
    def empty(program: Program) -> Record:
        """Arrays of the right size for the loop to fill."""
        ptr = pointers(program.hops())
        hops = int(ptr[-1])
        return Record(ptr, np.zeros(hops), np.full(hops, -1, np.int64), np.full(program.rows, -1, np.int32))


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Stretches in the order of time, without gaps from 0 to the makespan; columns of shape (stretches,).

    ``part``: see `StretchKind`; ``op``: the op it belongs to; ``link``: where, or -1 for a delay.
    """

    part: npt.NDArray[np.uint8]
    op: Int64
    link: Int64
    start_s: Float64
    end_s: Float64

    def seconds(self, part: StretchKind) -> float:
        """Total time of one kind of stretch."""
        return float((self.end_s - self.start_s)[self.part == part].sum())

    def link_seconds(self, part: StretchKind, links: int) -> Float64:
        """Time of one kind of stretch by link, (links,)."""
        chosen = (self.part == part) & (self.link >= 0)
        total = np.zeros(links)
        np.add.at(total, self.link[chosen], (self.end_s - self.start_s)[chosen])
        return total

    def bottleneck(self) -> tuple[StretchKind, int, float]:
        """The kind of stretch with most time, the link with most of it (-1 for a delay), the kind's share of all."""
        part = max(StretchKind, key=self.seconds)
        total = float(self.end_s[-1]) if self.end_s.size else 0.0
        share = self.seconds(part) / total if total else 0.0
        if part is StretchKind.DELAY or not self.link.size:
            return part, -1, share
        return part, int(np.argmax(self.link_seconds(part, int(self.link.max()) + 1))), share


def critical_path(p: Program, end_s: Float64, record: Record, store_and_forward: bool) -> CriticalPath:
    """Walk backwards from the op that ends last (the first of several) to time 0."""
    parts: list[tuple[int, int, int, float, float]] = []
    hop_ptr, hop_start, hop_before = record.hop_ptr, record.hop_start_s, record.hop_before
    inv_bandwidth = 1.0 / p.link_bandwidth
    arrivals: dict[int, Float64] = {}

    def link_at(op: int, hop: int) -> int:
        return int(p.route_link[p.route_ptr[p.route[op]] + hop])

    def finishes(op: int) -> Float64:
        """When each link of the op's route had sent the last byte, by the loop's own formula."""
        if op not in arrivals:
            arrivals.clear()  # the walk rarely returns to an op, so one is enough
            tail, fins = 0.0, []
            for hop in range(int(hop_ptr[op + 1] - hop_ptr[op])):
                link = link_at(op, hop)
                fins.append(max(hop_start[hop_ptr[op] + hop] + p.nbytes[op] * inv_bandwidth[link], tail))
                tail = fins[-1] + p.link_latency[link]
            arrivals[op] = np.array(fins)
        return arrivals[op]

    op = int(np.argmax(end_s)) if end_s.size else -1
    while op >= 0:
        hops = int(hop_ptr[op + 1] - hop_ptr[op])
        hop, at_tail = hops - 1, True
        if hops:
            link = link_at(op, hop)
            parts.append((StretchKind.LATENCY, op, link, finishes(op)[hop], float(end_s[op])))
        while hop >= 0:
            link = link_at(op, hop)
            st, fin = float(hop_start[hop_ptr[op] + hop]), float(finishes(op)[hop])
            if at_tail:
                at_tail = fin > st + p.nbytes[op] * inv_bandwidth[link]
                if not at_tail:
                    parts.append((StretchKind.TRANSFER, op, link, st, fin))
                    continue
            else:
                before = int(hop_before[hop_ptr[op] + hop])
                if before >= 0:
                    op, hop, at_tail = before >> HOP_BITS, before & (MAX_HOPS - 1), True
                    continue
                if hop == 0:
                    break
                at_tail = store_and_forward
            # The head or the tail came over the link before, without a wait.
            hop -= 1
            previous = finishes(op)[hop] if at_tail else float(hop_start[hop_ptr[op] + hop])
            parts.append(
                (StretchKind.LATENCY, op, link_at(op, hop), previous, fin if at_tail and not store_and_forward else st)
            )
        cause = int(record.cause[op])
        ready = float(end_s[cause]) if cause >= 0 else 0.0
        begin = float(hop_start[hop_ptr[op]]) if hop_ptr[op + 1] > hop_ptr[op] else float(end_s[op])
        parts.append((StretchKind.DELAY, op, -1, ready, begin))
        op = cause
    columns = np.array([s for s in reversed(parts) if s[4] > s[3]], np.float64).reshape(-1, 5)
    return CriticalPath(
        part=columns[:, 0].astype(np.uint8),
        op=columns[:, 1].astype(np.int64),
        link=columns[:, 2].astype(np.int64),
        start_s=columns[:, 3],
        end_s=columns[:, 4],
    )
