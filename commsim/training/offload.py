"""ZeRO-Offload and ZeRO-Infinity: states that lie in host memory or on NVMe, and what crosses PCIe for it.

Ren et al. 2021 (arXiv:2101.06840): optimizer states and fp32 weights on the host, 16-bit gradients out and 16-bit
weights in, once per step. Rajbhandari et al. 2021 (arXiv:2104.07857): parameters too, fetched for each pass.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.kinds import LinkKind, VertexKind
from commsim.training.columns import Number

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

UPDATE_BYTES = 28.0
"""Host memory traffic of Adam per parameter: read gradient, weight and two moments in fp32, write three of them."""

BUCKET_GRADIENTS = 5e8
"""Gradients on the GPU until they have left: DeepSpeed's default `reduce_bucket_size`."""


@dataclass(frozen=True)
class Offload:
    """What leaves the GPU. ``update_bytes_per_s``: of host memory, one GPU's share; ``nvme_bytes_per_s`` likewise.

    ``activations``: what forwards keep for backwards; see `commsim.training.copies`.
    """

    optimizer: bool = True
    parameters: bool = False
    update_bytes_per_s: float = 25e9
    nvme_bytes_per_s: float = 0.0
    activations: bool = False

    def kept(self, parts: dict[str, Number], gradient_bytes: float = 2.0) -> dict[str, Number]:
        """The states that stay on the GPU."""
        kept = dict(parts)
        if self.optimizer:
            kept["optimizer"] = 0.0
            kept["gradients"] = np.minimum(kept["gradients"], BUCKET_GRADIENTS * gradient_bytes)
        if self.parameters:
            kept["weights"] = 0.0
        return kept

    def update_seconds(
        self, owned: float, weight_bytes: float, gradient_bytes: float, pcie_bytes_per_s: float
    ) -> float:
        """Seconds of an update on the host for one GPU's ``owned`` parameters: out, Adam, back.

        With NVMe the states are read from it and written to it meanwhile, and the slower of both counts.
        """
        if not self.optimizer:
            return 0.0
        moved = owned * (weight_bytes + gradient_bytes) / pcie_bytes_per_s
        adam = owned * UPDATE_BYTES / self.update_bytes_per_s
        nvme = owned * 2 * 12.0 / self.nvme_bytes_per_s if self.nvme_bytes_per_s else 0.0
        return moved + max(adam, nvme)

    def fetch_seconds(self, nbytes: float, pcie_bytes_per_s: float) -> float:
        """Seconds until parameters of one pass are on the GPU."""
        if not self.parameters:
            return 0.0
        rate = min(pcie_bytes_per_s, self.nvme_bytes_per_s) if self.nvme_bytes_per_s else pcie_bytes_per_s
        return nbytes / rate


def host_bandwidth(topology: Topology) -> float:
    """Bytes/s between a GPU and host memory, one direction, while all GPUs of its node do the same.

    Every GPU takes the way with fewest links to a host vertex, over PCIe or C2C; GPUs behind one switch share its link.
    """
    ways = [_way(topology, rank) for rank in range(topology.ranks_per_node)]
    load = Counter(link for way in ways for link in way)
    return min(float(topology.link_bandwidth[link]) / load[link] for way in ways for link in way)


def _way(topology: Topology, rank: int) -> list[int]:
    """The links from a GPU to the nearest host vertex."""
    inside = np.flatnonzero(
        np.isin(topology.link_kind, (LinkKind.PCIE, LinkKind.C2C))
        & (topology.vertex_node[topology.link_src] == rank // topology.ranks_per_node)
    )
    leaving: dict[int, list[int]] = {}
    for link in inside.tolist():
        leaving.setdefault(int(topology.link_src[link]), []).append(link)
    start = int(topology.rank_vertex[rank])
    seen = {start}
    ways: deque[tuple[int, list[int]]] = deque([(start, [])])
    while ways:
        here, way = ways.popleft()
        if topology.vertex_kind[here] == VertexKind.HOST:
            return way
        for link in leaving.get(here, []):
            there = int(topology.link_dst[link])
            if there not in seen and topology.vertex_kind[there] != VertexKind.GPU:
                seen.add(there)
                ways.append((there, [*way, link]))
    raise TopologyError(f"{topology.name}: GPU {rank} has no way to host memory over PCIe or C2C")
