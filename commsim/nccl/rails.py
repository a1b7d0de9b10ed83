"""By which NICs of its node one GPU's sends leave for another node.

Since 2.12 a send leaves by the NIC beside the GPU that has the receiver's place in the sender's node, through that GPU
(PXN): on a fabric of rails nothing changes its rail on the way (src/graph/topo.cc, ncclTopoGetNetDev,
NCCL_P2P_PXN_LEVEL). So a root that sends to all ranks of a node does so by all NICs of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commsim.nccl.environment import whole
from commsim.nccl.paths import NVL, P2C, PIX, PXB
from commsim.nccl.view import view_of

if TYPE_CHECKING:
    from commsim.nccl.version import Version
    from commsim.topology.graph import Topology

_SINCE: Version = (2, 12, 0)


def busiest_rail(topology: Topology, version: Version, env: dict[str, str]) -> float:
    """The share of what the first GPU of a node sends to all ranks of another that the busiest NIC carries.

    1 where it sends everything by its own NIC: before 2.12, with ``NCCL_PXN_DISABLE=1`` or ``NCCL_P2P_PXN_LEVEL=0``.
    By its own go the messages to places whose GPU it has no NVLink to, or whose NIC is farther than PCIe switches or
    does not read from GPUs.
    """
    off = version < _SINCE or whole(env, "NCCL_PXN_DISABLE") == 1 or whole(env, "NCCL_P2P_PXN_LEVEL") == 0
    if off or topology.nodes == 1:
        return 1.0
    view = view_of(topology, version, env)
    own, carried = view.local_net(0, 0), Counter[int | None]()
    for gpu in range(view.gpus):
        nic = view.local_net(gpu, 0)
        path = None if nic is None else view.gpu_net[gpu][nic]
        reached = path is not None and path.type in (PIX, PXB, P2C) and view.gpu_gpu[0][gpu].type <= NVL
        carried[nic if reached else own] += 1
    return max(carried.values()) / view.gpus
