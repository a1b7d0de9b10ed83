"""A communicator as NCCL's tuner sees it: its shape, its graphs, and what a search of them tries and has laid."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace

from commsim.nccl.paths import NVL, PIX
from commsim.nccl.version import Version

NVLS_CHUNK = 128 * 1024
"""Bytes of a chunk of NVLS unless NCCL_NVLS_CHUNKSIZE says otherwise (src/transport/nvls.cc)."""

PATTERNS = {1: "BALANCED_TREE", 2: "SPLIT_TREE", 3: "TREE", 4: "RING", 5: "NVLS", 6: "COLLNET_DIRECT"}
"""Patterns of graphs by NCCL's numbers (src/include/graph.h)."""


@dataclass(frozen=True)
class Graph:
    """One row of NCCL's search result: ``nChannels``, ``bw`` intra/inter and ``type`` intra/inter of its log."""

    channels: int
    intra_gbps: float
    inter_gbps: float
    pattern: str  # of `PATTERNS`
    intra_type: str
    inter_type: str
    same_channels: bool = True  # every channel visits the GPUs in the same order
    cross_nic: int = 0
    orders: tuple[tuple[int, ...], ...] = ()  # GPUs of a node by channel, where known
    nics: tuple[tuple[int, int], ...] = ()  # by which a channel enters and leaves a node, where known

    def first(self, channels: int) -> Graph:
        """The same of no more than so many channels."""
        if channels >= self.channels:
            return self
        return replace(self, channels=channels, orders=self.orders[:channels], nics=self.nics[:channels])


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

_OLD = (42.0, 30.0, 24.0, 21.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12)
_TAIL = (18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_SLOW = (2.4, 1.2, 0.24, 0.12)
"""GB/s of a channel (src/graph/search.cc)."""

_Tried = tuple[tuple[tuple[float, ...], dict[float, Version]], ...]

_HOPPER: _Tried = (
    ((60.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0), {50.0: (2, 19, 0), 11.0: (2, 21, 0)}),
    (
        (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 15.0, 12.0, 6.0, 3.0, *_SLOW),
        {20.0: (2, 18, 3), 17.5: (2, 18, 3), 22.0: (2, 19, 0)},
    ),
)
_HOPPER_BEFORE_2_18 = (
    (66.0, 33.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0),
    (48.0, 45.0, 30.0, 24.0, 15.0, 12.0, 6.0, 3.0, *_SLOW),
)
_BLACKWELL: _Tried = (
    ((90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0), {18.0: (2, 27, 0), 45.0: (2, 29, 0)}),
    (
        (96.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, *_SLOW),
        {80.0: (2, 29, 0), 86.0: (2, 30, 0)},
    ),
)
"""Inside a node and between nodes: those of the first version that tries them, and those added since."""


def speeds(sm: int, inter: bool, version: Version) -> tuple[float, ...]:
    """The speeds tried inside a node, or between nodes, fastest first."""
    if version < (2, 10, 0):
        return _OLD
    if sm >= 100 and version >= (2, 27 if inter else 25, 0):
        tried, added = _BLACKWELL[inter]
    elif sm >= 90 and version >= (2, 18, 0):
        tried, added = _HOPPER[inter]
    elif sm >= 90 and version >= (2, 16, 5):
        return _HOPPER_BEFORE_2_18[inter]
    elif version < (2, 18, 0):
        between = (48.0, 30.0, *((28.0,) if version >= (2, 15, 0) else ()), 24.0, 22.0, *_TAIL, *_SLOW)
        return between if inter else (44.0, 30.0, 22.0, *_TAIL)
    else:
        return (48.0, 30.0, 28.0, 24.0, 20.0, *_TAIL, *_SLOW) if inter else (40.0, 30.0, 20.0, *_TAIL)
    return tuple(sorted([*tried, *(gbps for gbps, since in added.items() if version >= since)], reverse=True))


GLOBAL_BUDGET, _BUDGET, _BUDGET_SAME, IN_ORDER_BUDGET = 1 << 19, 1 << 14, 1 << 8, 1 << 10
"""Steps of all searches of a pattern, of one, of one of equal channels, and of one in the order of the PCI bus."""


@dataclass
class Solution:
    """A state of the search: the settings in force and the channels laid so far."""

    pattern: str
    least: int
    most: int
    cross_nic: int = 0
    same: bool = True
    intra: float = 0.0
    inter: float = 0.0
    type_intra: int = NVL
    type_inter: int = PIX
    channels: int = 0
    hops: int = 0
    orders: list[list[int]] = field(default_factory=list)
    nets: list[tuple[int, int]] = field(default_factory=list)

    def copy(self) -> Solution:
        """A state of its own."""
        made = copy(self)  # a search makes thousands, and dataclasses.replace takes many times as long
        made.orders, made.nets = [list(o) for o in self.orders[: self.channels]], self.nets[: self.channels]
        return made

    @property
    def budget(self) -> int:
        """Steps that a search under these settings may take."""
        return _BUDGET_SAME if self.same else _BUDGET
