"""A communicator as NCCL's tuner sees it: its shape, and the graphs found for it by a search, a file or a log."""

from __future__ import annotations

from dataclasses import dataclass, replace

NVLS_CHUNK = 128 * 1024
"""Bytes of a chunk of NVLS unless NCCL_NVLS_CHUNKSIZE says otherwise (src/transport/nvls.cc)."""


@dataclass(frozen=True)
class Graph:
    """One row of NCCL's search result: ``nChannels``, ``bw`` intra/inter and ``type`` intra/inter of its log."""

    channels: int
    intra_gbps: float
    inter_gbps: float
    pattern: str  # RING, TREE, BALANCED_TREE, SPLIT_TREE, NVLS, COLLNET_DIRECT
    intra_type: str
    inter_type: str
    same_channels: bool = True  # every channel visits the GPUs in the same order
    cross_nic: int = 0
    orders: tuple[tuple[int, ...], ...] = ()  # GPUs of a node by channel, where known

    def first(self, channels: int) -> Graph:
        """The same of no more than so many channels."""
        return self if channels >= self.channels else replace(self, channels=channels, orders=self.orders[:channels])


@dataclass(frozen=True)
class System:
    """A communicator as NCCL's tuner sees it."""

    ranks: int
    nodes: int
    sm: int
    cpu_vendor: str
    cpu_arch: str
    intra_type: str
    inter_type: str
    nic_latency_us: float
    ring: Graph
    tree: Graph
    nvls: Graph | None
    coll_channels: int
    collnet_direct: Graph | None = None
    collnet_chain: Graph | None = None
    collnet: bool = False  # a plugin that reduces in the network is in use
    collnet_gathers: bool = True  # which knows all_gather and reduce_scatter too, as SHARP's does since NCCL 2.20
    nvswitch: bool = False
    mixed_gpus: bool = False  # GPUs of more than one compute capability; `sm` is the lowest
    nvls_chunk: int = NVLS_CHUNK
    nvls_tree_chunk: int | None = None  # at most; None: as NCCL has it for the number of nodes

    @property
    def ranks_per_node(self) -> int:
        """Ranks per NVLink domain (integer division, as NCCL does)."""
        return max(1, self.ranks // self.nodes)

    @property
    def collnet_heads(self) -> int:
        """GPUs of a node that speak with the network's switches: the first of each channel of CollNetDirect."""
        graph = self.collnet_direct
        if graph is None:
            return 0
        return len({order[0] for order in graph.orders}) or min(graph.channels, self.ranks_per_node)


NamedGraphs = tuple[tuple[str, Graph | None], ...]
"""Graphs by name: ring, tree, nvls, collnet_chain, collnet_direct; None: looked for without success."""
