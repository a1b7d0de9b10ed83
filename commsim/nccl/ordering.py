"""Where a connection of NCCL's network has one message on its way at a time.

Packets with immediate data are not routed adaptively over InfiniBand. So that the bulk of a message can be, NCCL writes
it without, and lets an empty write with immediate data follow (src/transport/net_ib, ncclIbMultiSend;
NCCL_IB_AR_THRESHOLD, 8 KiB), which must not overtake it. From that size on, where the fabric does route adaptively, a
queue pair's next message leaves when the one before is acknowledged. Networks that send the packets of every message
over many paths by themselves (EFA, GPUDirect-TCPX and -TCPXO) are measured to do the same.

Which fabrics do is said by the topology (`FabricSpec.adaptive_routing`): by the subnet manager's default those of NDR
and later (NVIDIA, InfiniBand Cluster Bring-up Procedure, Adaptive Routing). Rings were measured on five fabrics of NDR,
on three of which it shows, and on eight of HDR, on one.

Rings are what shows it, whose ranks send a message every step, and they alone are charged: of trees as many curves
speak against it as for it, of broadcast and reduce none is known, and messages of LL seldom are so large. Rings of
LL128 and Simple over 10 nodes of 8 H100 take 6 to 8 us and their bytes a message, of 2 and 64 nodes of 8 B200 8 to 10,
of 2, 4 and 16 nodes of P5 8 to 10, where with messages of 4 KiB they take 4 to 6 a step. Over InfiniBand the channels
of a NIC keep step, send side by side and wait together: of the NIC's rate that leaves 0.8 to messages of 1 MiB (four
fabrics with H100 and B200; with two queue pairs a connection 0.97, and so with one GPU a node). On the other networks
the bytes of one hide the waiting of the other. Rings over RoCE of Google's machines, where nothing is split, show
nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from commsim.nccl.environment import whole

if TYPE_CHECKING:
    from commsim.nccl.version import Version
    from commsim.topology.graph import Topology

ADAPTIVE = "NCCL_IB_ADAPTIVE_ROUTING"
IB_VARIABLES = (ADAPTIVE, "NCCL_IB_AR_THRESHOLD", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_QPS_PER_CONNECTION")
IB_TRANSPORT = ("infiniband", "roce")
"""Networks that NCCL's own IB transport serves, which reads these variables."""

THRESHOLD = 8192
"""NCCL_IB_AR_THRESHOLD where it is not set: bytes on the wire."""

_MANY_PATHS = ("efa", "efa_v1", "tcpx")
"""Networks that send the packets of every message over many paths."""

_SPLIT_BEFORE: Version = (2, 20, 0)
"""Until then every message was cut over all queue pairs of its connection (NCCL_IB_SPLIT_DATA_ON_QPS)."""


@dataclass(frozen=True)
class Ordering:
    """Messages of more than `above_bytes` on the wire wait for each other, on each of a connection's `queue_pairs`.

    `together`: the channels of a NIC do so at the same time.
    """

    above_bytes: float = inf
    queue_pairs: int = 1
    together: bool = False


NO_ORDERING = Ordering()


def ordering(topology: Topology, version: Version, env: Mapping[str, str]) -> Ordering:
    """What orders the messages of a job; ScenarioError for a variable whose value is no number."""
    said, threshold, cut, pairs = (whole(env, name) for name in IB_VARIABLES)
    if topology.nodes == 1:
        return NO_ORDERING
    if topology.network in _MANY_PATHS:
        return Ordering(THRESHOLD)
    adaptive = topology.network == "infiniband" and topology.adaptive_routing
    if said is not None:
        adaptive = said != 0 and topology.network in IB_TRANSPORT
    if not adaptive:
        return NO_ORDERING
    split = version < _SPLIT_BEFORE if cut is None else cut != 0
    taking_turns = 1 if split else max(1, pairs or 1)
    return Ordering(THRESHOLD if threshold is None else threshold, taking_turns, topology.ranks_per_node > 1)
