"""What is to be synthesized, and the linear program that packs ways for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.collectives.schedule import split_evenly
from commsim.collectives.semantics import DIVIDED, NCCL_TESTS, PAIRWISE, REDUCING, ROOTED, WHOLE
from commsim.errors import ScheduleError
from commsim.synthesis.exchange import PathPacking
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.packing import Demand, Packing
from commsim.synthesis.symmetry import symmetry_of

COLLECTIVES = NCCL_TESTS
"""What can be synthesized."""

_ALIKE = frozenset(NCCL_TESTS) - ROOTED - {"send_recv"}
"""Collectives that are the same however their ranks are numbered."""

WHOLE_ARRAY = WHOLE - PAIRWISE
"""Collectives whose array is not divided among ranks: any tree may carry any part of it."""


@dataclass(frozen=True, eq=False)
class Aim:
    """What is to be synthesized; ``nbytes`` is the nccl-tests size, ``blocks`` the bytes of each rank's, if unequal."""

    network: FlowNetwork
    collective: str
    nbytes: int
    root: int = 0
    itemsize: int = 1
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ScheduleError(f"found {self.collective!r}, expected one of {', '.join(COLLECTIVES)}")
        if self.network.n < 2:
            raise ScheduleError(f"{self.network.name}: a collective of one rank has no schedule, expected 2 or more")
        if self.nbytes < 1:
            raise ScheduleError(f"found {self.nbytes} bytes, expected 1 or more")
        if self.collective in DIVIDED and self.nbytes < self.network.n:
            raise ScheduleError(
                f"found {self.nbytes} B, expected {self.network.n} B or more: {self.collective} has a block per rank"
            )

    @property
    def size(self) -> int:
        """Bytes in whole elements, of an all_to_all in equal blocks of them."""
        unit = self.itemsize * (self.network.n if self.collective == "all_to_all" else 1)
        return -(-self.nbytes // unit) * unit

    @property
    def limited_size(self) -> int:
        """Bytes that the limit counts: where the array does not divide evenly, those of the least block for all."""
        if self.blocks or self.collective not in DIVIDED:
            return self.size
        return self.network.n * min(self.block_bytes())

    def block_bytes(self) -> list[int]:
        """Bytes of the block of each rank, of what is divided among them."""
        if self.blocks:
            return list(self.blocks)
        items = split_evenly(self.size // self.itemsize, self.network.n)
        return [int(k) * self.itemsize for k in items]


def packing_of(q: Aim, level: float, small: bool = False) -> Packing:
    """The program of a question; ``level``: what its limit makes the busiest edge carry.

    ``small``: latencies matter, and one tree of a root may have to carry all, instead of many that are alike.
    """
    n = q.network.n
    none, one = np.zeros(n), np.eye(n)[q.root]
    even = np.array(q.block_bytes(), np.float64) / q.size
    root = q.root if q.collective in ROOTED else None
    alike = q.collective in _ALIKE if root is None else not small and q.collective not in DIVIDED
    symmetry = symmetry_of(q.network, root) if alike and not q.blocks else None
    if q.collective == "all_to_all":
        return PathPacking(q.network, np.full((n, n), 1 / n), level, symmetry)
    if q.collective == "send_recv":
        return PathPacking(q.network, np.roll(np.eye(n), 1, axis=1), level)
    if q.collective == "gather":
        return PathPacking(q.network, np.outer(even, one), level)
    if q.collective == "scatter":
        return PathPacking(q.network, np.outer(one, even), level)
    if q.collective == "all_reduce":
        demand = Demand(np.full(n, 1 / n), np.full(n, 1 / n), free=True)
    else:
        share = one if q.collective in ROOTED else even
        demand = Demand(none, share) if q.collective in REDUCING else Demand(share, none)
    return Packing(q.network, demand, level, symmetry)
