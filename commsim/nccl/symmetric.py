"""NCCL's kernels on symmetric memory: which a release has, and which of them a call may have.

A buffer that all ranks registered as a window (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC, ``-R 2`` of
nccl-tests) lies at the same place in every GPU's address space. From 2.27 on kernels of their own then read and write
the peers' memory, and NCCL takes them wherever it has one, whatever the rings and trees would take. The choice among
them is that of `ncclSymPickKernel` (2.27: src/symmetric.cc; from 2.28 on `ncclSymkPickKernel` of src/sym_kernels.cc),
read at 2.27.3 to 2.27.7, 2.28.3, 2.28.7, 2.28.9, 2.29.2, 2.29.3, 2.29.7, 2.30.3, 2.30.4 and 2.30.7. No release
has a kernel of LL128. `commsim.nccl.symmetric_choice` says which of them a call takes, `commsim.nccl.symmetric_time`
how long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commsim.nccl.environment import PATHS, whole
from commsim.nccl.machine import VERBS, far_nics
from commsim.nccl.operation import FP8, Operation
from commsim.nccl.paths import peer_level
from commsim.nccl.system import System
from commsim.nccl.version import Version, format_version
from commsim.topology.graph import Topology
from commsim.units import GIB

SINCE: Version = (2, 27, 0)
"""The first release with symmetric memory."""

MOST_BLOCKS = 64
"""ncclSymMaxBlocks (2.27, src/include/symmetric.h), ncclSymkMaxBlocks (src/include/sym_kernels.h)."""

KERNEL = "NCCL_SYM_KERNEL"

_NVLINK_ONLY: Version = (2, 29, 0)
"""From here on all GPUs must reach each other over NVLink (ncclSymkAvailable); before, peer access is enough."""

_SEVERAL_SWITCHED: Version = (2, 29, 7)
"""From here on two ranks do not use the switch's multicast (hasLsaMultimem of ncclSymkInitOnce)."""

_AVERAGES: Version = (2, 30, 0)
"""From here on an average is a sum that is divided afterwards (symkRedOp of src/scheduler/symmetric_sched.cc)."""

_TMA_SINCE: Version = (2, 30, 0)
_GIN_SINCE: Version = (2, 29, 7)
"""From here on with the kernels over nodes that are timed; 2.29.2 and 2.29.3 have another all_gather."""


@dataclass(frozen=True)
class Kernel:
    """A kernel by NCCL's name, and how it moves data.

    `schedule`: which moves it makes, by the registry of `commsim.collectives`, where LL's go through a scratch.
    `lines`: flags stand beside the data (LL); else barriers stand before and after it. `multicast`: a store reaches all
    GPUs through the switch. `reduces`: a load is reduced in the switch.
    """

    name: str
    collective: str
    schedule: str
    lines: bool = False
    multicast: bool = False
    reduces: bool = False
    tma: bool = False  # by the unit for bulk copies, of Blackwell, where NCCL_SYM_TMA_ENABLE=1 asks for it
    over_nodes: bool = False  # GPUs send over the network themselves (GIN)

    @property
    def short(self) -> str:
        """The name without the collective."""
        return self.name.partition("_")[2]


_KERNELS = (
    Kernel("AllReduce_AGxLL_R", "all_reduce", "direct_one_shot", lines=True),
    Kernel("AllReduce_AGxLLMC_R", "all_reduce", "nvls_one_shot", lines=True, multicast=True),
    Kernel("AllReduce_RSxTmaLD_AGxTmaST", "all_reduce", "direct_two_shot", tma=True),
    Kernel("AllReduce_RSxLD_AGxST", "all_reduce", "direct_two_shot"),
    Kernel("AllReduce_RSxLDMC_AGxSTMC", "all_reduce", "nvls", multicast=True, reduces=True),
    Kernel("AllGather_LL", "all_gather", "direct", lines=True),
    Kernel("AllGather_LLMC", "all_gather", "nvls", lines=True, multicast=True),
    Kernel("AllGather_TmaST", "all_gather", "direct", tma=True),
    Kernel("AllGather_ST", "all_gather", "direct"),
    Kernel("AllGather_TmaSTMC", "all_gather", "nvls", multicast=True, tma=True),
    Kernel("AllGather_STMC", "all_gather", "nvls", multicast=True),
    Kernel("AllGather_RailRing_LsaSTMC", "all_gather", "nvls_rail_ring", multicast=True, over_nodes=True),
    Kernel("ReduceScatter_LL", "reduce_scatter", "direct", lines=True),
    Kernel("ReduceScatter_TmaLD", "reduce_scatter", "direct", tma=True),
    Kernel("ReduceScatter_LD", "reduce_scatter", "direct"),
    Kernel("ReduceScatter_LDMC", "reduce_scatter", "nvls", multicast=True, reduces=True),
    Kernel("ReduceScatter_RailA2A_LsaLD", "reduce_scatter", "rail_direct", over_nodes=True),
    Kernel("ReduceScatter_RailA2A_LsaLDMC", "reduce_scatter", "nvls_rail_direct", reduces=True, over_nodes=True),
)
"""In NCCL's order, by which the first of equals is taken; ReduceScatter_LDMC counts among those that multicast."""

COLLECTIVES = tuple(dict.fromkeys(kernel.collective for kernel in _KERNELS))


def kernels(version: Version) -> tuple[Kernel, ...]:
    """The kernels of a release; none before 2.27."""
    return tuple(k for k in _KERNELS if version >= (_TMA_SINCE if k.tma else _GIN_SINCE if k.over_nodes else SINCE))


@dataclass(frozen=True)
class Domain:
    """What NCCL asks of a communicator: whether all GPUs of a node reach each other's memory, and whether over NVLink.

    `no_gin`: why GPUs do not send over the network themselves, blank where they do; `nic`: bytes/s of its cards.
    """

    peers: bool
    nvlink: bool
    no_gin: str = ""
    nic: float = 0.0


def domain_of(topology: Topology, version: Version, env: Mapping[str, str]) -> Domain:
    """Of the GPUs of a topology's first node.

    Whether they reach each other hangs on the CUDA driver (isAllCudaP2p), in 2.27 and 2.28.3 on NCCL_P2P_LEVEL too,
    which is taken to hold in every release. What goes through another GPU (NVB) does not reach.
    """
    n, level = topology.ranks_per_node, peer_level(topology, version, dict(env))
    between = {topology.path_type(a, b) for a in range(n) for b in range(a)}
    farthest = max(map(PATHS.index, between), default=0)
    peers = farthest <= level and "NVB" not in between
    nvlink = peers and farthest <= PATHS.index("NVL")
    return Domain(peers, nvlink, _no_gin(topology, env) if topology.nodes > 1 else "", topology.nic_bandwidth)


def _no_gin(topology: Topology, env: Mapping[str, str]) -> str:
    """Why GPUs do not send over the network themselves (ginState, globalGinSupport of src/init.cc); blank: they do."""
    if whole(env, "NCCL_GIN_ENABLE") == 0:
        return "NCCL_GIN_ENABLE=0 keeps GPUs from sending over the network themselves"
    if topology.network not in VERBS:  # src/transport/net_ib/gin.cc; a plugin may do it, too
        return f"GPUs send by themselves over InfiniBand and RoCE, not over {topology.network}"
    lacks = topology.node_gdr is not None and not topology.node_gdr.all()
    return "GPUs send over the network by GPUDirect RDMA alone" if lacks or far_nics(topology, env) else ""


def why_not(
    system: System, domain: Domain, version: Version, env: Mapping[str, str], collective: str, operation: Operation
) -> str:
    """Why NCCL has no kernel on symmetric memory for a call of any size; blank where it has."""
    if version < SINCE:
        return f"NCCL {format_version(version)} has no symmetric memory, which came with 2.27"
    if reason := unsupported(env) or _out_of_reach(domain, version):
        return reason
    if collective not in COLLECTIVES:
        return f"only {', '.join(COLLECTIVES)} have some"
    if system.nodes > 1:
        if not any(k.over_nodes and k.collective == collective for k in kernels(version)):
            first = collective == "all_gather" and version >= _NVLINK_ONLY
            also = ", and an all_gather over nodes that is not timed" if first else ""
            return f"NCCL {format_version(version)} has these kernels inside one NVLink domain{also}"
        if domain.no_gin:
            return domain.no_gin
        if whole(env, "NCCL_SYM_GIN_KERNELS_ENABLE") == 0:
            return "NCCL_SYM_GIN_KERNELS_ENABLE=0 turns off kernels that send over the network"
    if collective != "all_gather" and not _adds(operation, version):
        return f"these kernels do no {operation}: sums of float32, float16, bfloat16 and float8 alone"
    if not open_kernels(system, version, env, collective, 1, operation):
        if env.get(KERNEL, "").strip() in ("", "^"):
            return "its kernel over nodes has the NVSwitch spread data, which that of this machine does not"
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


def unsupported(env: Mapping[str, str]) -> str:
    """Which variable turns symmetric memory off (symmetricSupport of src/init.cc); blank: none."""
    names = ("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_LOCAL_REGISTER")
    return next((f"{name}=0 turns it off" for name in names if whole(env, name) == 0), "")


def _out_of_reach(domain: Domain, version: Version) -> str:
    """What the GPUs of a node lack; blank where they lack nothing."""
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


def open_kernels(
    system: System, version: Version, env: Mapping[str, str], collective: str, held: int, operation: Operation
) -> list[Kernel]:
    """The kernels of a call of so many bytes of a rank (ncclSymkMask)."""
    bus = held if collective == "all_reduce" else held * system.ranks
    if bus >= 64 * GIB:  # chunks of 32 B are counted in 32 bits
        return []
    switched = system.nvls is not None and whole(env, "NCCL_NVLS_ENABLE") != 0
    switched &= version < _SEVERAL_SWITCHED or system.ranks_per_node > 2
    tma = system.sm >= 100 and whole(env, "NCCL_SYM_TMA_ENABLE") == 1
    named = env.get(KERNEL, "").strip()
    return [
        k
        for k in kernels(version)
        if k.collective == collective
        and named in ("", "^", k.name)
        and k.over_nodes == (system.nodes > 1)
        and (switched or not (k.multicast or k.reduces))
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
