"""Links that kernels on symmetric memory and copy engines pass: of nodes that are alike, and between them.

Inside a node they are the topology's own at the share that payload reaches, so that pairs meet where they meet in the
machine. A GPU sends to another node through a port at what the node's NICs leave each of its ranks, messages in turn.
What lies between the nodes is the cut that `commsim.nccl.predict` adds.
"""

from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt

from commsim.nccl.machine import Machine
from commsim.nccl.messages import MESSAGES
from commsim.nccl.parameters import Parameters
from commsim.topology.graph import Topology
from commsim.topology.kinds import LINK_NAMES, LinkKind

Float64 = npt.NDArray[np.float64]

BLOCKS = "thread block"


class NodeLinks:
    """Of `nodes` like the first of a topology, in this order: links, ports out, ports in, messages, thread blocks.

    `nvlink`: share of NVLink's rate; `net`: bytes/s and kind of a rank's port; `message_rate`: bytes/s of one message
    after the other; `block_rate`: bytes/s of each of the `lanes` into which a rank's thread blocks are put together.
    """

    def __init__(
        self,
        topology: Topology,
        nodes: int,
        pcie: float,
        nvlink: float,
        net: tuple[float, str] = (inf, ""),
        message_rate: float = inf,
        blocks: tuple[int, float] = (0, inf),
    ) -> None:
        table = topology.node_routes
        self._inside = table.gpu_gpu
        self.local, self._links = topology.ranks_per_node, table.links
        self.ranks = nodes * self.local
        kinds = topology.link_kind[: self._links]
        self._kinds, self._net = kinds, net[1]
        self._ports = nodes * self._links
        self.lanes, block_rate = blocks
        share = np.where(kinds == LinkKind.NVLINK, nvlink, np.where(kinds == LinkKind.PCIE, pcie, 1.0))
        ports, messages = np.full(2 * self.ranks, net[0]), np.full(self.ranks, message_rate)
        own = np.full(self.ranks * self.lanes, block_rate)
        inside = np.tile(topology.link_bandwidth[: self._links] * share, nodes)
        # The engine has no infinite rate: what does not limit is as quick as nothing it knows.
        self.bandwidth: Float64 = np.minimum(np.concatenate([inside, ports, messages, own]), 1e18)

    def inside(self, src: int, dst: int) -> tuple[int, ...]:
        """From a rank to another of its node, or to or from its node's switch, which is no rank."""
        node = min(src, dst) // self.local
        a, b = src - node * self.local, dst - node * self.local
        if src >= self.ranks or dst >= self.ranks:
            up, gpu = dst >= self.ranks, min(src, dst) % self.local
            other = (gpu + 1) % self.local
            way = self._inside[gpu, other] if up else self._inside[other, gpu]
            links = way[way >= 0]
            return (int(links[0 if up else -1]) + node * self._links,)
        way = self._inside[a, b]
        return tuple(int(link) + node * self._links for link in way[way >= 0])

    def across(self, src: int, dst: int) -> tuple[int, ...]:
        """From a rank to one of another node."""
        return self._ports + 2 * self.ranks + src, self._ports + src, self._ports + self.ranks + dst

    def block(self, rank: int, lane: int) -> int:
        """A lane of a rank's thread blocks."""
        return self._ports + 3 * self.ranks + rank * self.lanes + lane

    def name(self, link: int) -> str:
        """What limits where this link is the busiest."""
        if link < self._ports:
            return LINK_NAMES[LinkKind(int(self._kinds[link % self._links]))]
        place = (link - self._ports) // self.ranks
        return self._net if place < 2 else MESSAGES if place == 2 else BLOCKS


def nvlink_share(machine: Machine, parameters: Parameters) -> float:
    """Share of NVLink's rate that stores and loads of single peers reach."""
    kind = machine.intra_kind if machine.intra_kind.startswith("nvlink") else "nvlink_switch"
    return float(getattr(parameters.efficiency, kind))
