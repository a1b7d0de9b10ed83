"""The moves of a kernel on symmetric memory: its proven schedule cut into lanes and rounds, and whose each row is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from commsim.collectives.registry import build
from commsim.collectives.schedule import Op, split_evenly
from commsim.errors import ScenarioError
from commsim.nccl.symmetric import Kernel
from commsim.nccl.symmetric_choice import SymmetricChoice
from commsim.nccl.symmetric_nodes import RING_PIECE, put_bytes
from commsim.nccl.symmetric_pace import lanes_of, of_rank, rounds_of, turns_of
from commsim.nccl.system import System
from commsim.nccl.version import Version

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]

SHORT_RUN = 8
"""Rounds of the shorter of two runs, the other being twice as long; up to three times as many are run as they are."""

_MOST_LANES = 64
_MOST_ROWS = 1 << 20
"""Of a run: some seconds and 200 MB."""

_STORE_BYTES = 64 << 10
"""Of a piece of what is stored without waiting."""

_PIECES_OF_PUT = 4
"""Pieces in which the sum that a put sends is made: loads and what the switch adds go on beside each other."""


@dataclass(frozen=True)
class RoundCut:
    """A call in `lanes` side by side (`lanes_of`, some put together) and `rounds`, each of so many `pieces`.

    `message`: bytes of a put between nodes; `full`: of a lane's round of puts, of which the last has what is left.
    """

    lanes: int
    rounds: int
    pieces: int = 1
    message: int = 0
    full: int = 0


def cut_of(system: System, choice: SymmetricChoice, nbytes: int, version: Version, env: Mapping[str, str]) -> RoundCut:
    """How a call is cut, into fewer lanes where the rows would be many; ScenarioError where they are even so."""
    kernel, n = choice.kernel, system.ranks
    part, lanes, pieces, message = of_rank(kernel, nbytes, n), lanes_of(kernel, choice.blocks), 1, 0
    if kernel.over_nodes:
        gathers = kernel.collective == "all_gather"
        message = max(1, min(RING_PIECE if gathers else put_bytes(version, env), ceil(part / choice.blocks)))
        rounds, pieces = max(1, ceil(part / (choice.blocks * message))), 1 if gathers else _PIECES_OF_PUT
    elif kernel.collective == "all_gather" and not kernel.lines:  # waits for nothing
        rounds, lanes = max(1, min(2 * SHORT_RUN, ceil(part / _STORE_BYTES))), 1
    else:
        rounds = rounds_of(kernel, choice.blocks, nbytes, n)
    of_lane = 2 * n * system.ranks_per_node * system.nodes * pieces * min(rounds, 2 * SHORT_RUN)  # about
    if of_lane > _MOST_ROWS:
        raise ScenarioError(
            f"engine event cannot time {kernel.short} of {n} ranks: it has more than {_MOST_ROWS:,} moves; expected "
            "auto or closed_form"
        )
    few = max(1, min(lanes, _MOST_LANES, _MOST_ROWS // (2 * of_lane), part))
    return RoundCut(few, rounds, pieces, message, message * choice.blocks // few)


class LaneRows:
    """The rows of a call of `nbytes`, and of each: its lane, round and stage, and the ranks that have to do with it.

    A stage is a turn of a round (`turns_of`). `issued_by`: the rank that begins the row in this stage; `waited_by`: the
    rank that waits for it before its next stage; `stored_by`: the rank that waits for it in the end. -1: nobody.
    `across`: over the network; `loads`: what a rank, or the switch for it, asks another for; `sums`: what the switch
    has added; `beside`: the rank for which, or from which, a switch has what shares a way with that of others.
    """

    def __init__(self, kernel: Kernel, ranks: int, local: int, cut: RoundCut, nbytes: int, rounds: int) -> None:
        given = build(
            kernel.collective,
            kernel.schedule,
            ranks,
            nbytes,
            ranks_per_node=local,
            channels=cut.lanes,
            chunks=rounds * cut.pieces,
        )
        sizes = given.chunk_bytes
        if cut.full and rounds == cut.rounds:
            sizes = _puts(sizes.reshape(-1, rounds * cut.pieces).sum(axis=1), cut)
        s = self.schedule = given.edit(after=np.zeros((0, 2), np.int64), chunk_bytes=sizes)
        src, dst = s.src.astype(np.int64), s.dst.astype(np.int64)
        piece = s.src_chunk.astype(np.int64) % (rounds * cut.pieces)
        step = s.step - piece
        up, down = dst >= ranks, src >= ranks
        adds = kernel.collective != "all_gather" and not kernel.lines
        self.lane, self.round = s.channel.astype(np.int64), piece // cut.pieces
        self.across: Bool = ~up & ~down & (src // local != dst // local)
        self.loads: Bool = (s.op == Op.REDUCE) & ~self.across & ~down & adds
        self.sums: Bool = down & (step == 1) & adds & kernel.reduces
        taker, maker = self._of_switch(ranks, up, down)
        self.beside = np.where(up & self.loads, taker, np.where(down & ~self.sums, maker, -1))
        self.turns = len(turns_of(kernel, local)) if adds and not kernel.over_nodes else 1
        turn = (src - dst) % ranks // 2 if self.turns > 1 else 0  # the next peer, then two by two
        self.stage = self.round * self.turns + np.where(self.loads & ~up, turn, 0)
        nobody = np.full(s.rows, -1, np.int64)
        if kernel.lines:
            self.issued_by, self.waited_by = np.where(down, nobody, src), np.where(up, nobody, dst)
            self.stored_by = nobody
            return
        first = ~self.loads & ~down & (step == 0)  # what is stored, or put, of what a rank has from the start
        self.issued_by = np.where(self.loads, np.where(up, taker, dst), np.where(first, src, nobody))
        self.stage[first] = 0
        self.waited_by = np.where(self.sums | (self.loads & ~up), dst, nobody)
        self.stored_by = np.where(self.loads | self.sums | up, nobody, np.where(down, maker, src))

    def _of_switch(self, ranks: int, up: Bool, down: Bool) -> tuple[Int64, Int64]:
        """Of rows to or from a switch: the rank that takes the sum in its slot, and the one that stored into it."""
        s = self.schedule
        slot = np.where(up, s.dst - ranks, s.src - ranks).astype(np.int64) * s.chunk_bytes.size
        slot = np.maximum(0, np.where(up, slot + s.dst_chunk, slot + s.src_chunk))
        taker, maker = np.full((2, int(slot.max(initial=0)) + 1), -1, np.int64)
        stores = up & ~self.loads
        taker[slot[self.sums]], maker[slot[stores]] = s.dst[self.sums], s.src[stores]
        return taker[slot], maker[slot]


def _puts(of_lane: Int64, cut: RoundCut) -> Int64:
    """Bytes of the pieces of so many bytes of each lane: full rounds, and what is left."""
    done = cut.full * np.arange(cut.rounds)
    rounds = np.clip(of_lane[:, None] - done, 0, cut.full)
    rounds[:, -1] += of_lane - rounds.sum(axis=1)
    return split_evenly(rounds, cut.pieces).reshape(-1)
