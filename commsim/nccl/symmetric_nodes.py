"""NCCL's kernels on symmetric memory over several nodes, in which GPUs send over the network themselves (GIN).

From 2.29.7 on: an all_gather goes round a ring of nodes along each rail while the switch of a node spreads what has
arrived; a reduce_scatter adds in the node and sends each sum to its owner along the rails. Read at 2.29.7, 2.30.3,
2.30.4 and 2.30.7 (src/sym_kernels.cc, queryModel_gin; src/device/symmetric/all_gather_gin.cuh,
reduce_scatter_gin.cuh). What moves is proven as the schedules `nvls_rail_ring`, `rail_direct` and `nvls_rail_direct`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from commsim.nccl.environment import whole
from commsim.nccl.protocols import heads
from commsim.nccl.symmetric import MOST_BLOCKS, Kernel
from commsim.nccl.system import System
from commsim.nccl.tuner_tables import hop_latency
from commsim.nccl.version import Version, newest
from commsim.units import GIB, GIGA

RING_PIECE = 1 << 20
"""Bytes of a put of the all_gather (ncclSymkAllGather_RailRing_ChunkSize)."""

_PIECE: tuple[tuple[Version, int], ...] = (((2, 30, 7), 128 << 10),)
_FIRST_PIECE = 64 << 10
"""Bytes of a put of the reduce_scatter, which NCCL_SYM_RS_GIN_CHUNK_SIZE may change from 2.30.7 on."""

_LSA = (360.0 * GIGA, 720.0 * GIGA)
"""Bytes/s of NVLink in NCCL's model, before Blackwell and from it on (nvlinkBws)."""

_Blocks = dict[tuple[bool, bool], float]
_FIRST_BLOCK: _Blocks = {(False, False): 14.5, (True, False): 9.85, (False, True): 5.0, (True, True): 2.25}
_BLOCK: tuple[tuple[Version, _Blocks], ...] = (
    ((2, 30, 7), {(False, False): 13.7, (True, False): 4.22, (False, True): 26.6, (True, True): 8.44}),
)
"""GB/s that a thread block of the reduce_scatter takes in, by NVIDIA's own trials: (switch adds, Blackwell)."""


class Crossings(NamedTuple):
    """How often a byte of a rank's block passes the thread blocks, NVLink and the network (getBusMul)."""

    blocks: int
    inside: int
    across: int


def passes(system: System, switched: bool) -> Crossings:
    """Of a reduce_scatter, where the switch adds in a node or the thread blocks do."""
    local, nodes = system.ranks_per_node, system.nodes
    loads = 1 if switched else local
    first = 0 if local == 1 else loads * (nodes - 1)
    inside = max((local if switched else local - 1) * nodes, (local - 1) * nodes)
    return Crossings(first + loads + nodes - 1, inside, nodes - 1)


def block_rate(system: System, switched: bool, version: Version) -> float:
    """Bytes/s that a thread block of the reduce_scatter takes in."""
    return GIGA * newest(version, _BLOCK, _FIRST_BLOCK)[switched, system.sm >= 100]


def _enough_blocks(system: System, switched: bool, version: Version, net: float) -> int:
    """Thread blocks with which NVLink or the network limit a reduce_scatter, not they."""
    new = system.sm >= 100
    through = passes(system, switched)
    narrow = min(_LSA[new] / max(1, through.inside), net / through.across)
    return ceil(narrow / (block_rate(system, switched, version) / through.blocks))


def cost_over_nodes(
    kernel: Kernel, system: System, held: int, version: Version, env: Mapping[str, str], net: float
) -> tuple[float, int]:
    """(us, thread blocks) that NCCL expects of a kernel for so many bytes of a rank; `net`: bytes/s of a NIC.

    NCCL counts the all_gather in seconds and calls them microseconds, which matters to no choice.
    """
    new, nodes = system.sm >= 100, system.nodes
    least, most = whole(env, "NCCL_MIN_CTAS") or 1, min(whole(env, "NCCL_MAX_CTAS") or MOST_BLOCKS, MOST_BLOCKS)
    own = min(MOST_BLOCKS, whole(env, "NCCL_SYM_CTAS") or 0)
    latency = hop_latency("ring", "NET", version)[2] * 1e-6
    if kernel.collective == "all_gather":
        most = min(most, ceil((32 if new else 16) / heads(system)))
        least, most = (own, own) if own else (least, most)
        pieces = -(-held // RING_PIECE)
        transfer = max(held * system.ranks / _LSA[new], held * (nodes - 1) / net)
        return 1e6 * (pieces * (nodes - 1) * latency + transfer), max(least, min(most, pieces))
    inboxes = own or min(
        most, max(least, *(_enough_blocks(system, switched, version, net) for switched in (False, True)))
    )
    enough = min(most, inboxes, _enough_blocks(system, kernel.reduces, version, net))
    least, enough = (own, own) if own else (least, enough)
    blocks = max(least, min(enough, -(-held // put_bytes(version, env))))
    through = passes(system, kernel.reduces)
    rate = blocks * block_rate(system, kernel.reduces, version) / through.blocks
    first = min(held, put_bytes(version, env) * blocks) * (through.inside / _LSA[new] + through.across / net)
    rate = min(rate, _LSA[new] / max(1, through.inside), net / through.across)
    return 1e6 * (held / rate + first + latency), blocks


def put_bytes(version: Version, env: Mapping[str, str]) -> int:
    """Bytes that a thread block of the reduce_scatter puts at a time."""
    usual = newest(version, _PIECE, _FIRST_PIECE)
    asked = whole(env, "NCCL_SYM_RS_GIN_CHUNK_SIZE") or 0
    if asked <= 0 or usual == _FIRST_PIECE:
        return usual
    return 1 << (max(128, min(int(GIB), asked)).bit_length() - 1)
