"""NCCL's kernels on symmetric memory: which a release has, which of them a call may have, and NCCL's own choice.

A buffer that all ranks registered as a window (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC, ``-R 2`` of
nccl-tests) lies at the same place in every GPU's address space. From 2.27 on kernels of their own then read and write
the peers' memory, and NCCL takes them wherever it has one, whatever the rings and trees would take. The choice among
them is that of `ncclSymPickKernel` (2.27: src/symmetric.cc; from 2.28 on `ncclSymkPickKernel` of src/sym_kernels.cc),
read at 2.27.3 to 2.27.7, 2.28.3, 2.28.7, 2.28.9, 2.29.2, 2.29.3, 2.29.7, 2.30.3, 2.30.4 and 2.30.7. The model of cost
and its constants are the same in all of them; no release has a kernel of LL128. What the chosen kernel takes is
`commsim.nccl.symmetric_time`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log1p

import numpy as np

from commsim.nccl.environment import PATHS, whole
from commsim.nccl.operation import FP8, Operation
from commsim.nccl.paths import peer_level
from commsim.nccl.system import System
from commsim.nccl.version import Version, format_version, newest
from commsim.topology.graph import Topology
from commsim.units import GIB

SINCE: Version = (2, 27, 0)
"""The first release with symmetric memory."""

MOST_BLOCKS = 64
"""ncclSymMaxBlocks (2.27, src/include/symmetric.h), ncclSymkMaxBlocks (src/include/sym_kernels.h)."""

KERNEL = "NCCL_SYM_KERNEL"

_CELL: tuple[tuple[Version, int], ...] = (((2, 28, 0), 1024),)
"""Bytes that a call's part is counted in (NCCL_SYM_KERNEL_CELL_SIZE, src/include/sym_kernels.h); before, one."""

_NVLINK_ONLY: Version = (2, 29, 0)
"""From here on all GPUs must reach each other over NVLink (ncclSymkAvailable); before, peer access is enough."""

_SEVERAL_SWITCHED: Version = (2, 29, 7)
"""From here on two ranks do not use the switch's multicast (hasLsaMultimem of ncclSymkInitOnce)."""

_AVERAGES: Version = (2, 30, 0)
"""From here on an average is a sum that is divided afterwards (symkRedOp of src/scheduler/symmetric_sched.cc)."""

_TMA_SINCE: Version = (2, 30, 0)
_GIN_SINCE: Version = (2, 29, 0)


@dataclass(frozen=True)
class Kernel:
    """A kernel by NCCL's name, and how it moves data.

    `lines`: flags stand beside the data (LL); else barriers stand before and after it. `multicast`: a store reaches all
    GPUs through the switch. `reduces`: a load is reduced in the switch.
    """

    name: str
    collective: str
    lines: bool = False
    multicast: bool = False
    reduces: bool = False
    tma: bool = False  # by the unit for bulk copies, of Blackwell, where NCCL_SYM_TMA_ENABLE=1 asks for it

    @property
    def short(self) -> str:
        """The name without the collective."""
        return self.name.partition("_")[2]


_KERNELS = (
    Kernel("AllReduce_AGxLL_R", "all_reduce", lines=True),
    Kernel("AllReduce_AGxLLMC_R", "all_reduce", lines=True, multicast=True),
    Kernel("AllReduce_RSxTmaLD_AGxTmaST", "all_reduce", tma=True),
    Kernel("AllReduce_RSxLD_AGxST", "all_reduce"),
    Kernel("AllReduce_RSxLDMC_AGxSTMC", "all_reduce", multicast=True, reduces=True),
    Kernel("AllGather_LL", "all_gather", lines=True),
    Kernel("AllGather_LLMC", "all_gather", lines=True, multicast=True),
    Kernel("AllGather_TmaST", "all_gather", tma=True),
    Kernel("AllGather_ST", "all_gather"),
    Kernel("AllGather_TmaSTMC", "all_gather", multicast=True, tma=True),
    Kernel("AllGather_STMC", "all_gather", multicast=True),
    Kernel("ReduceScatter_LL", "reduce_scatter", lines=True),
    Kernel("ReduceScatter_TmaLD", "reduce_scatter", tma=True),
    Kernel("ReduceScatter_LD", "reduce_scatter"),
    Kernel("ReduceScatter_LDMC", "reduce_scatter", multicast=True, reduces=True),
)
"""In NCCL's order, by which the first of equals is taken; ReduceScatter_LDMC counts among those that multicast."""

COLLECTIVES = tuple(dict.fromkeys(kernel.collective for kernel in _KERNELS))

_OVER_NODES = {
    "all_gather": (((2, 29, 0), "AllGather_GinHier_MCRing"), ((2, 29, 7), "AllGather_RailRing_LsaSTMC")),
    "reduce_scatter": (((2, 29, 7), "ReduceScatter_RailA2A_LsaLD or LsaLDMC"),),
}
"""Kernels that send over the network themselves (GIN), by the release that has them."""


def kernels(version: Version) -> tuple[Kernel, ...]:
    """The kernels of a release inside an NVLink domain; none before 2.27."""
    return tuple(k for k in _KERNELS if version >= (_TMA_SINCE if k.tma else SINCE))


def over_nodes(collective: str, version: Version) -> str:
    """The kernel that a release has for calls over several nodes, where their network lets GPUs send; blank: none."""
    return newest(version, _OVER_NODES.get(collective, ()), "")


@dataclass(frozen=True)
class Domain:
    """What NCCL asks of a communicator: whether all its GPUs reach each other's memory, and whether over NVLink."""

    peers: bool
    nvlink: bool


def domain_of(topology: Topology, version: Version, env: Mapping[str, str]) -> Domain:
    """Of the GPUs of a topology's first node.

    Whether they reach each other hangs on the CUDA driver (isAllCudaP2p), in 2.27 and 2.28.3 on NCCL_P2P_LEVEL too,
    which is taken to hold in every release. What goes through another GPU (NVB) does not reach.
    """
    n, level = topology.ranks_per_node, peer_level(topology, version, dict(env))
    between = {topology.path_type(a, b) for a in range(n) for b in range(a)}
    farthest = max(map(PATHS.index, between), default=0)
    peers = farthest <= level and "NVB" not in between
    return Domain(peers, peers and farthest <= PATHS.index("NVL"))


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


def why_not(
    system: System, domain: Domain, version: Version, env: Mapping[str, str], collective: str, operation: Operation
) -> str:
    """Why NCCL has no kernel on symmetric memory for a call of any size; blank where it has."""
    if version < SINCE:
        return f"NCCL {format_version(version)} has no symmetric memory, which came with 2.27"
    if reason := _unsupported(system, domain, version, env):
        return reason
    if collective not in COLLECTIVES:
        return f"only {', '.join(COLLECTIVES)} have some"
    if system.nodes > 1:
        across = over_nodes(collective, version)
        also = f"; where its network lets GPUs send, it runs {across}, which is not timed" if across else ""
        return f"NCCL {format_version(version)} has these kernels inside one NVLink domain{also}"
    if collective != "all_gather" and not _adds(operation, version):
        return f"these kernels do no {operation}: sums of float32, float16, bfloat16 and float8 alone"
    if not open_kernels(system, version, env, collective, 1, operation):
        return _misnamed(system, version, env, collective, operation)
    return ""


def _misnamed(
    system: System, version: Version, env: Mapping[str, str], collective: str, operation: Operation
) -> str:  # fmt: skip
    """What is wrong with NCCL_SYM_KERNEL, which NCCL compares with whole names (kernelMask_user), and what is right."""
    named = env[KERNEL].strip()
    known = any(k.name == named and k.collective == collective for k in kernels(version))
    wrong = "names a kernel that this machine does not have"
    if not known:
        wrong = f"names no kernel of {collective} in NCCL {format_version(version)}"
    others = open_kernels(system, version, {**env, KERNEL: ""}, collective, 1, operation)
    return f"{KERNEL}={named[:40]} {wrong}, expected one of {', '.join(k.name for k in others)}"


def _unsupported(system: System, domain: Domain, version: Version, env: Mapping[str, str]) -> str:
    """What symmetricSupport of src/init.cc lacks; blank where it lacks nothing."""
    for name in ("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_LOCAL_REGISTER"):
        if whole(env, name) == 0:
            return f"{name}=0 turns it off"
    if not domain.peers:
        return "not all GPUs of a node reach each other's memory"
    if version >= _NVLINK_ONLY and not domain.nvlink:
        return f"NCCL {format_version(version)} asks for NVLink between all GPUs of a node"
    return ""


def _adds(operation: Operation, version: Version) -> bool:
    """Whether the kernels that reduce do an operation (ncclSymImplemented, ncclSymkImplemented)."""
    if operation.dtype not in ("float32", "float16", "bfloat16", *FP8):
        return False
    return operation.redop == "sum" or (operation.redop == "avg" and version >= _AVERAGES)


def pick(
    system: System, version: Version, env: Mapping[str, str], collective: str, nbytes: int, operation: Operation
) -> SymmetricChoice | None:
    """NCCL's choice for a call of `nbytes` (the nccl-tests size) that `why_not` has nothing against; None: no kernel.

    The least time counts, a fortieth longer for every thread block (smPenalty).
    """
    held = held_bytes(collective, nbytes, system.ranks)
    best: SymmetricChoice | None = None
    best_cost = np.float32(1e30) * (np.float32(1) + _PENALTY * np.float32(999))
    for kernel in open_kernels(system, version, env, collective, held, operation):
        time, blocks = cost(kernel, system, counted_bytes(held, version), env)
        paid = np.float32(time) * (np.float32(1) + _PENALTY * np.float32(blocks))
        if paid < best_cost:
            best, best_cost = SymmetricChoice(kernel, blocks, time), paid
    return best


_PENALTY = np.float32(0.025)


def open_kernels(
    system: System, version: Version, env: Mapping[str, str], collective: str, held: int, operation: Operation
) -> list[Kernel]:
    """The kernels of a call of so many bytes of a rank (ncclSymkMask)."""
    bus = held if collective == "all_reduce" else held * system.ranks
    if bus >= 64 * GIB:  # chunks of 32 B are counted in 32 bits
        return []
    switched = system.nvls is not None and whole(env, "NCCL_NVLS_ENABLE") != 0
    switched &= version < _SEVERAL_SWITCHED or system.ranks > 2
    tma = system.sm >= 100 and whole(env, "NCCL_SYM_TMA_ENABLE") == 1
    named = env.get(KERNEL, "").strip()
    return [
        k
        for k in kernels(version)
        if k.collective == collective
        and named in ("", "^", k.name)
        and (switched or not k.multicast)
        and (not k.reduces or _in_switch(operation, system.sm))
        and (bus < 2 * GIB or not k.lines)  # elements are counted in 32 bits
        and (tma or not k.tma)
    ]


def _in_switch(operation: Operation, sm: int) -> bool:
    """Whether a load may be reduced in the switch (hasLDMC)."""
    if operation.dtype in FP8:
        return sm >= 100
    plain = Operation(operation.dtype, "sum") if operation.redop == "avg" else operation
    return plain.by_nvswitch


_GBPS = GIB / 1.0e6  # in bytes per us
_LINES_FACTOR = 9  # LL_BusFactor: twice the bytes, some processing, no unrolling
_NVLS_BLOCKS = (16, 32)  # of all ranks together, before Blackwell and from it on
_TOLERANCE = 1.025


def cost(kernel: Kernel, system: System, held: int, env: Mapping[str, str]) -> tuple[float, int]:
    """(us, thread blocks) that NCCL expects of a kernel for so many bytes of a rank: queryModel, queryModel_lsa.

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
