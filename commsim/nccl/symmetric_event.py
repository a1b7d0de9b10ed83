"""NCCL's kernels on symmetric memory as the engine runs them: their proven schedule, in rounds, between barriers.

The rows are those of `Kernel.schedule`, their links those of the machine (`commsim.nccl.event_links`). What a row waits
for beside its data is what a kernel waits for:

* all start after `START_S`, and meet: each sets a flag at all others and waits for theirs, block by block;
* a load begins when the loads that its threads wait for are back (`commsim.nccl.symmetric_pace`), a trip before its
  bytes; one that the switch adds asks all GPUs at once;
* stores are under way for a hop; those that the switch spreads go up once, and down to every GPU;
* lines of LL carry as many flags as data and need no meeting, but the next round of a block waits for all of its lines;
* over nodes puts go through the GPU's port and take their turns as messages; a put is sent when its sum is made, and
  added when all of its round have come; what adds passes the thread blocks at NCCL's rate;
* before the end all that was stored has arrived, and all meet again.

Stores and what loads bring share a port fairly, as the virtual channels of a switch do: first in, first out, loads
would wait behind all that was stored before. Of many rounds few are run, at two lengths, for those between are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np
import numpy.typing as npt

from commsim.engine.fair import simulate_fair
from commsim.nccl.event_links import NodeLinks, nvlink_share
from commsim.nccl.event_ops import ProgramOps
from commsim.nccl.machine import Machine
from commsim.nccl.nodes import Kind
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import LL
from commsim.nccl.symmetric import Kernel
from commsim.nccl.symmetric_choice import SymmetricChoice
from commsim.nccl.symmetric_nodes import block_rate
from commsim.nccl.symmetric_pace import START_S, hop_s, message_rate, net_rate, of_rank, switch_port, trip_s
from commsim.nccl.symmetric_rows import SHORT_RUN, LaneRows, RoundCut, cut_of
from commsim.nccl.system import System
from commsim.nccl.version import Version

Int64 = npt.NDArray[np.int64]

EventTimed = tuple[float, str]
"""Seconds of a kernel, and the level of the engine."""

QUANTUM = 1e-3
"""Events within this relative time are one to the engine (`simulate_fair`)."""


def event_time(
    system: System,
    kind: Kind,
    machine: Machine,
    choice: SymmetricChoice,
    nbytes: int,
    version: Version,
    env: Mapping[str, str],
) -> EventTimed:
    """Of a kernel on nodes of a kind, for a call of `nbytes` (the nccl-tests size); ScenarioError where it is too much.

    `machine`: what is left of the rates over all nodes.
    """
    cut = cut_of(system, choice, nbytes, version, env)
    run = _Run(system, kind, machine, choice, cut, version)
    # A part of whole bytes, so that every rank has one.
    whole = of_rank(choice.kernel, nbytes, system.ranks)
    whole *= 1 if choice.kernel.lines and choice.kernel.collective == "all_reduce" else system.ranks
    if cut.rounds <= 3 * SHORT_RUN:
        return run.time(whole, cut.rounds), "event"
    first = run.time(ceil(whole * SHORT_RUN / cut.rounds), SHORT_RUN)
    second = run.time(ceil(whole * 2 * SHORT_RUN / cut.rounds), 2 * SHORT_RUN)
    return second + (cut.rounds / SHORT_RUN - 2) * (second - first), "event, two cuts"


class _Run:
    """Runs of one kernel on one machine, of any number of rounds."""

    def __init__(
        self, system: System, kind: Kind, machine: Machine, choice: SymmetricChoice, cut: RoundCut, version: Version
    ) -> None:
        p, kernel = kind.parameters, choice.kernel
        self.kernel, self.cut = kernel, cut
        self.ranks, self.local = system.ranks, system.ranks_per_node
        self.hop, self.trip = hop_s(machine, p), trip_s(machine, p)
        self.across = float(p.network.ring_hop.of("LL")) if kernel.over_nodes else 0.0
        self.scatters = kernel.over_nodes and kernel.collective == "reduce_scatter"
        shares = float(p.efficiency.pcie), _nvlink(system, machine, p, kernel)
        if kernel.over_nodes:
            blocks = choice.blocks * block_rate(system, kernel.reduces, version) / cut.lanes
            between = net_rate(machine, p, self.local), message_rate(cut.message, machine, p, self.local)
            own = (cut.lanes, blocks) if self.scatters else (0, 1.0)
            self.links = NodeLinks(kind.topology, system.nodes, *shares, *between, own)
        else:
            self.links = NodeLinks(kind.topology, 1, *shares)
        self.own_lines = machine.intra_kind == "nvlink_switch"

    def time(self, nbytes: int, rounds: int) -> float:
        """Seconds of a call of so many bytes in so many rounds."""
        rows = LaneRows(self.kernel, self.ranks, self.local, self.cut, nbytes, rounds)
        program = self.ops(rows, rounds).program(self.links.bandwidth)
        # What a port has for several ranks, loads and stores, and the puts of several blocks have queues of their own.
        queue = program.route.astype(np.int64) * (2 * self.ranks + 2 + self.cut.lanes)
        own = np.where(rows.across, rows.lane, self.cut.lanes + 2 * (rows.beside + 1) + (rows.loads | rows.sums))
        queue[: rows.schedule.rows] += own
        queues = np.unique(queue, return_inverse=True)[1].reshape(-1).astype(np.int32)
        return float(simulate_fair(program, queues, quantum=QUANTUM).makespan_s)

    def ops(self, rows: LaneRows, rounds: int) -> ProgramOps:
        """All that the engine runs; the rows come first."""
        schedule, ops, kernel = rows.schedule, ProgramOps(), self.kernel
        wire = np.rint(schedule.payload_bytes() * (LL.wire_factor if kernel.lines else 1.0))
        row = ops.add(schedule.rows, wire.astype(np.int64), self._routes(ops, rows), self._delays(rows))
        ptr, after = schedule.dependencies()
        ops.order(np.repeat(row, np.diff(ptr)), after)
        begun = np.broadcast_to(ops.add((self.ranks, 1), delay_s=START_S), (self.ranks, self.cut.lanes))
        gate = begun if kernel.lines else self._meet(ops, begun)
        done = self._rounds(ops, rows, row, gate, rounds)
        stored = np.flatnonzero(rows.stored_by >= 0)
        ops.order(row[stored], done[rows.stored_by[stored], rows.lane[stored]])
        if not kernel.lines:
            self._meet(ops, done)
        return ops

    def _meet(self, ops: ProgramOps, arrived: Int64) -> Int64:
        """A barrier of all ranks, lane by lane: in each node, and of an all_gather along the rails too."""
        shape = (self.ranks // self.local, self.local, arrived.shape[1])
        met = ops.meet(arrived.reshape(shape), self.hop)
        if self.across and not self.scatters:
            met = ops.meet(met.swapaxes(0, 1), self.across).swapaxes(0, 1)
        return met.reshape(arrived.shape)

    def _rounds(self, ops: ProgramOps, rows: LaneRows, row: Int64, gate: Int64, rounds: int) -> Int64:
        """Orders what lanes issue after what they wait for; the ops after which each is through, (ranks, lanes)."""
        joins = ops.add((self.ranks, self.cut.lanes, rounds * rows.turns))
        before = np.concatenate([gate[..., None], joins], axis=-1)
        ops.order(before[..., :-1], joins)
        issued, back = np.flatnonzero(rows.issued_by >= 0), np.flatnonzero(rows.waited_by >= 0)
        ops.order(before[rows.issued_by[issued], rows.lane[issued], rows.stage[issued]], row[issued])
        ops.order(row[back], joins[rows.waited_by[back], rows.lane[back], rows.stage[back]])
        done = before[..., -1]
        if self.kernel.lines:
            self._own_lines(ops, rows, before, joins)
        elif self.scatters:
            done = self._sums(ops, rows, row, before, joins)
        return done

    def _own_lines(self, ops: ProgramOps, rows: LaneRows, before: Int64, joins: Int64) -> None:
        """A rank's own lines take their turn at its port among those that arrive, for it stores and polls them alike.

        What the schedule has the switch send back comes so already.
        """
        if not self.own_lines or (self.kernel.multicast and self.kernel.collective == "all_gather"):
            return
        ways = [ops.route(self.links.inside(self._other(rank), rank)[-1:]) for rank in range(self.ranks)]
        size = round(LL.wire_factor * int(rows.schedule.chunk_bytes.max(initial=0)))
        own = ops.add(joins.shape, size, np.array(ways)[:, None, None], self.hop)
        ops.order(before[..., :-1], own)
        ops.order(own, joins)

    def _sums(self, ops: ProgramOps, rows: LaneRows, row: Int64, before: Int64, joins: Int64) -> Int64:
        """Of a reduce_scatter over nodes, what no row is: a rank's own part of each sum, and adding what has come.

        A put is sent when all sums of its round are made, and added when all of them are there.
        """
        n, lanes, nodes = self.ranks, self.cut.lanes, self.ranks // self.local
        sizes = rows.schedule.chunk_bytes.reshape(-1, *joins.shape[1:], self.cut.pieces)
        put = sizes.sum(axis=-1).max(axis=0)  # (lanes, rounds)
        ways = np.array([[ops.route((self.links.block(r, g),)) for g in range(lanes)] for r in range(n)])[..., None]
        if not self.kernel.reduces:
            own = ops.add(joins.shape, put * (nodes if self.local > 1 else 1), ways)
            ops.order(before[..., :-1], own)
            ops.order(own, joins)
        added = ops.add(joins.shape, put * (nodes - 1), ways)
        sent = np.flatnonzero(rows.across)
        src, dst, at = rows.schedule.src[sent], rows.schedule.dst[sent], (rows.lane[sent], rows.round[sent])
        if self.local > 1:
            ops.order(joins[src, *at], row[sent])
        ops.order(row[sent], added[dst, *at])
        done = ops.add((n, lanes))
        ops.order(before[..., -1], done)
        ops.order(added, done[..., None])
        return done

    def _other(self, rank: int) -> int:
        """Another rank of the same node."""
        return rank // self.local * self.local + (rank + 1) % self.local

    def _routes(self, ops: ProgramOps, rows: LaneRows) -> Int64:
        """The route of each row; of a reduce_scatter over nodes, what a rank loads passes its thread blocks."""
        s, n, lanes = rows.schedule, self.ranks, self.cut.lanes + 1
        through = self.scatters & (rows.waited_by >= 0)
        ends = n + n // self.local
        key = ((s.src.astype(np.int64) * ends + s.dst) * lanes) + np.where(through, rows.lane + 1, 0)
        keys, of = np.unique(key, return_inverse=True)
        numbers = []
        for pair, lane in zip(*np.divmod(keys, lanes), strict=True):
            src, dst = divmod(int(pair), ends)
            far = max(src, dst) < n and src // self.local != dst // self.local
            links = self.links.across(src, dst) if far else self.links.inside(src, dst)
            numbers.append(ops.route((*links, self.links.block(dst, int(lane) - 1)) if lane else links))
        route: Int64 = np.array(numbers, np.int64)[of.reshape(-1)]
        return route

    def _delays(self, rows: LaneRows) -> npt.NDArray[np.float64]:
        """Seconds of each row beside its bytes: through a switch its part of the hop comes with the way down."""
        up = rows.schedule.dst >= self.ranks
        seconds = np.where(rows.loads, np.where(up, self.trip - self.hop, self.trip), np.where(up, 0.0, self.hop))
        if self.scatters:  # NCCL's rate of a thread block holds what its later loads wait for
            seconds = np.where(rows.round > 0, 0.0, seconds)
        return np.where(rows.across, self.across, seconds)


def _nvlink(system: System, machine: Machine, parameters: Parameters, kernel: Kernel) -> float:
    """Share of NVLink's rate that a kernel's moves reach in the long run."""
    if not kernel.reduces or kernel.over_nodes:
        return nvlink_share(machine, parameters)
    if kernel.collective == "all_reduce":
        return switch_port(system, machine, parameters) / machine.intra_bandwidth
    return float(parameters.efficiency.nvls)
