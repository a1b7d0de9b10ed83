"""NCCL's copies by copy engines as the engine runs them: calls on a stream, one after the other, and what they move.

What is copied is proven as the schedules `direct`, `flat` and `rail_direct`. Each call takes `START_S`; a barrier then
waits for the flags of all, a copy until its bytes are there. Puts along the rails go on beside the stream, which waits
for each that it copies on (src/ce_coll.cc: ncclCeAllGather and its like, ncclHierCeAllGather, ncclHierCeAlltoAll).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commsim.collectives.registry import build
from commsim.collectives.schedule import Schedule
from commsim.engine.fair import simulate_fair
from commsim.errors import ScenarioError
from commsim.nccl.copies import COPIED
from commsim.nccl.event_links import NodeLinks, nvlink_share
from commsim.nccl.event_ops import ProgramOps
from commsim.nccl.machine import Machine
from commsim.nccl.nodes import Kind
from commsim.nccl.symmetric_pace import START_S, hop_s, message_rate, net_rate
from commsim.nccl.system import System

Int64 = npt.NDArray[np.int64]

_MOST_ROWS = 1 << 19


class _Stream:
    """The streams of all ranks, which make the same calls: `at` are the ops that each has come to, (ranks, 1)."""

    def __init__(self, ops: ProgramOps, ranks: int) -> None:
        self.ops, self.ranks = ops, ranks
        self.at = ops.add((ranks, 1))

    def call(self) -> None:
        """Another call of every rank begins."""
        self._follow(self.ops.add((self.ranks, 1), delay_s=START_S))

    def meet(self, members: int, hop_s: float, *, rails: bool = False) -> None:
        """A call that waits for all ranks of a node (of so many), or of a rail."""
        self.call()
        groups = self.at.reshape(-1, members, 1)
        met = self.ops.meet(groups.swapaxes(0, 1), hop_s).swapaxes(0, 1) if rails else self.ops.meet(groups, hop_s)
        self.at = met.reshape(self.ranks, 1)

    def until(self, row: Int64, rank: npt.NDArray[np.integer]) -> None:
        """Goes on when these rows are through, each of the rank that waits for it."""
        there = self.ops.add((self.ranks, 1))
        self.ops.order(row, there[rank, 0])
        self._follow(there)

    def issue(self, row: Int64, rank: npt.NDArray[np.integer]) -> None:
        """These rows begin now, each by its rank."""
        self.ops.order(self.at[rank, 0], row)

    def _follow(self, after: Int64) -> None:
        self.ops.order(self.at, after)
        self.at = after


def copy_event_time(system: System, kind: Kind, machine: Machine, collective: str, nbytes: int) -> tuple[float, str]:
    """Seconds of copies on nodes of a kind, and the level of the engine."""
    n, local, p = system.ranks, system.ranks_per_node, kind.parameters
    block = -(-nbytes // n)
    pieces = -(-max(1, block) // COPIED) if system.nodes > 1 else 1
    rows = _rows(collective, n, local, block * n, pieces)
    hop, far = hop_s(machine, p), float(p.network.ring_hop.of("LL"))
    shares = float(p.efficiency.pcie), nvlink_share(machine, p)
    if system.nodes == 1:
        links = NodeLinks(kind.topology, 1, *shares)
    else:
        rate = message_rate(max(1, min(block, COPIED)), machine, p, local)
        links = NodeLinks(kind.topology, system.nodes, *shares, net_rate(machine, p, local), rate)
    src, dst, ops = rows.src.astype(np.int64), rows.dst.astype(np.int64), ProgramOps()
    across = src // local != dst // local
    pairs, of = np.unique(src * n + dst, return_inverse=True)
    ways = [_way(links, *divmod(pair, n)) for pair in pairs.tolist()]
    route = np.array([ops.route(way) for way in ways])[of.reshape(-1)]
    row = ops.add(rows.rows, rows.payload_bytes(), route, np.where(across, far, hop))
    ptr, after = rows.dependencies()
    ops.order(np.repeat(row, np.diff(ptr)), after)
    stream = _Stream(ops, n)
    if system.nodes == 1:
        stream.meet(local, hop)
        stream.call()
        stream.issue(row, src)
        stream.until(row, src)
    elif collective == "all_gather":
        _gather_over_nodes(stream, rows, row, local, (hop, far), pieces)
    else:
        stream.meet(local, far, rails=True)
        stream.meet(local, hop)
        stream.call()
        stream.issue(row[across], src[across])
        stream.call()
        stream.issue(row[~across], src[~across])
        stream.until(row[~across], src[~across])
        stream.call()
        stream.until(row[across], dst[across])
        stream.call()
        stream.until(row[across], src[across])
    stream.meet(local, hop)
    return float(simulate_fair(ops.program(links.bandwidth)).makespan_s), "event"


def _gather_over_nodes(
    stream: _Stream, rows: Schedule, row: Int64, local: int, hops: tuple[float, float], pieces: int
) -> None:
    """Starts all puts, copies a rank's own block in its node, then each piece that has come, nearest node first."""
    n, (hop, far) = rows.world_size, hops
    src, dst = rows.src.astype(np.int64), rows.dst.astype(np.int64)
    across = src // local != dst // local
    owner, piece = np.divmod(rows.src_chunk.astype(np.int64), pieces)
    back = (dst // local - owner // local) % (n // local)  # nodes that a block has come over
    stream.meet(local, far, rails=True)
    stream.call()
    stream.issue(row[across], src[across])
    stream.meet(local, hop)
    own = ~across & (back == 0)
    stream.call()
    stream.issue(row[own], src[own])
    stream.until(row[own], src[own])
    for distance in range(1, n // local):
        for part in range(pieces):
            here = (back == distance) & (piece == part)
            came, on = across & here, ~across & here
            stream.call()
            stream.until(row[came], dst[came])
            stream.call()
            stream.issue(row[on], src[on])
            stream.until(row[on], src[on])
    stream.call()
    stream.until(row[across], src[across])


def _rows(collective: str, ranks: int, local: int, nbytes: int, pieces: int) -> Schedule:
    """The copies of a call, over nodes in pieces; ScenarioError where they are too many."""
    alone = ranks == local
    if (moves := ranks * ranks * pieces) > _MOST_ROWS:
        raise ScenarioError(
            f"engine event cannot time {collective} by copy engines of {ranks} ranks: it has {moves:,} copies; "
            "expected auto or closed_form"
        )
    algorithm = {"gather": "flat", "scatter": "flat"}.get(collective, "direct")
    if collective == "all_gather" and not alone:
        algorithm = "rail_direct"
    rows = build(collective, algorithm, ranks, nbytes, ranks_per_node=local, chunks=pieces)
    return rows.take(np.flatnonzero(rows.src != rows.dst))  # a block that stays is there, or copied beside


def _way(links: NodeLinks, src: int, dst: int) -> tuple[int, ...]:
    return links.across(src, dst) if src // links.local != dst // links.local else links.inside(src, dst)
