"""NCCL's own choice among its kernels on symmetric memory, by its model of their cost.

The model inside a node and its constants are the same in all releases that were read (`commsim.nccl.symmetric`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log1p

import numpy as np

from commsim.nccl.environment import whole
from commsim.nccl.operation import Operation
from commsim.nccl.symmetric import MOST_BLOCKS, Kernel, open_kernels
from commsim.nccl.symmetric_nodes import cost_over_nodes
from commsim.nccl.system import System
from commsim.nccl.version import Version, newest
from commsim.units import GIB

_CELL: tuple[tuple[Version, int], ...] = (((2, 28, 0), 1024),)
"""Bytes that a call's part is counted in (NCCL_SYM_KERNEL_CELL_SIZE, src/include/sym_kernels.h); before, one."""


@dataclass(frozen=True)
class SymmetricChoice:
    """NCCL's choice: the kernel, its thread blocks, and the time in us that NCCL expects of it."""

    kernel: Kernel
    blocks: int
    time_us: float


def held_bytes(collective: str, nbytes: int, ranks: int) -> int:
    """Bytes of one rank, by which NCCL counts a call: of all_reduce all, of the others one part."""
    return nbytes if collective == "all_reduce" else -(-nbytes // ranks)


def counted_bytes(held: int, version: Version) -> int:
    """Bytes of a rank as NCCL's model counts them, in whole cells."""
    cell = newest(version, _CELL, 1)
    return -(-held // cell) * cell


def pick(
    system: System,
    version: Version,
    env: Mapping[str, str],
    collective: str,
    nbytes: int,
    operation: Operation,
    nic: float = 0.0,
) -> SymmetricChoice | None:
    """NCCL's choice for a call of `nbytes` (the nccl-tests size) that `why_not` has nothing against; None: no kernel.

    The least time counts, a fortieth longer for every thread block (smPenalty). `nic`: bytes/s of a card of the
    network, where there are several nodes.
    """
    held = held_bytes(collective, nbytes, system.ranks)
    best: SymmetricChoice | None = None
    best_cost = np.float32(1e30) * (np.float32(1) + _PENALTY * np.float32(999))
    for kernel in open_kernels(system, version, env, collective, held, operation):
        time, blocks = expected(kernel, system, counted_bytes(held, version), version, env, nic)
        paid = np.float32(time) * (np.float32(1) + _PENALTY * np.float32(blocks))
        if paid < best_cost:
            best, best_cost = SymmetricChoice(kernel, blocks, time), paid
    return best


_PENALTY = np.float32(0.025)


def expected(
    kernel: Kernel, system: System, held: int, version: Version, env: Mapping[str, str], nic: float
) -> tuple[float, int]:
    """(us, thread blocks) that NCCL expects of a kernel for so many bytes of a rank, as it counts them."""
    if kernel.over_nodes:
        return cost_over_nodes(kernel, system, held, version, env, nic)
    return cost(kernel, system, held, env)


_GBPS = GIB / 1.0e6  # in bytes per us
_LINES_FACTOR = 9  # LL_BusFactor: twice the bytes, some processing, no unrolling
_NVLS_BLOCKS = (16, 32)  # of all ranks together, before Blackwell and from it on
_TOLERANCE = 1.025


def cost(kernel: Kernel, system: System, held: int, env: Mapping[str, str]) -> tuple[float, int]:
    """The same of a kernel inside an NVLink domain (queryModel of 2.27, queryModel_lsa of later releases).

    It takes the fewest blocks with which the time is at most 2.5 % over that with the most.
    """
    n, new = system.ranks, system.sm >= 100
    multiplier, most = 1.0, MOST_BLOCKS
    if kernel.lines:
        bus = n * held * _LINES_FACTOR
        multiplier = 1.1 if kernel.multicast else 1.0
    elif kernel.collective == "all_reduce" and kernel.multicast:
        bus, multiplier, most = held // n + held, float(n), -(-_NVLS_BLOCKS[new] // n)
    elif kernel.collective == "all_reduce":
        bus = 2 * held * (n - 1) // n
    else:
        bus = (n - 1) * held
        if kernel.multicast:
            multiplier, most = 0.55 * n, -(-_NVLS_BLOCKS[new] // n)
    most = min(most, whole(env, "NCCL_MAX_CTAS") or MOST_BLOCKS)
    least = whole(env, "NCCL_MIN_CTAS") or 1
    if own := min(MOST_BLOCKS, whole(env, "NCCL_SYM_CTAS") or 0):
        least = most = own
    latency, block, peak = _constants(kernel, new)

    def time(blocks: int) -> float:
        rate = _softmin(blocks * block * multiplier, peak, block)
        return latency + _softplus(bus / rate - 1.0)

    longest = float(np.float32(time(most)))
    for blocks in range(least, most):
        if (seconds := time(blocks)) <= _TOLERANCE * longest:
            return float(np.float32(seconds)), blocks
    return longest, most


def _constants(kernel: Kernel, new: bool) -> tuple[float, float, float]:
    """baseLat in us, smBw and peakBw in bytes per us (queryModel of 2.27.3, queryModel_lsa of 2.30.7)."""
    reduces, both = kernel.collective != "all_gather", kernel.collective == "all_reduce"
    switched = both and kernel.reduces
    if not new:
        latency, block, peak = (4.5 if kernel.lines else 7.8), (65 if both else 44), (480 if switched else 320)
    elif kernel.lines:
        latency, block, peak = (11.0 if reduces else 8.5), 55, (1000 if switched else 600)
    else:
        latency, block, peak = (19.5 if both else 13.0), 55, (1000 if switched else 600)
    return latency, block * _GBPS, peak * _GBPS


def _softmin(x: float, ceiling: float, softness: float) -> float:
    """A smooth min(x, ceiling)."""
    return ceiling - softness * log1p((exp(ceiling / softness) - 1) * exp(-x / softness))


def _softplus(x: float) -> float:
    """A smooth max(0, x)."""
    return x if x >= 100.0 else log1p(exp(x))
