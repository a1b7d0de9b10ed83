"""The words of a topology: kinds of vertices, links and paths, a GPU, a CPU, the graph of a node, a table of routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]


class VertexKind(IntEnum):
    """What a vertex is; CARD is a PCI device with several ports, each of which is a NIC."""

    GPU = 0
    NVSWITCH = 1
    PCIE_SWITCH = 2
    HOST = 3
    NIC = 4
    SWITCH = 5
    CARD = 6


class LinkKind(IntEnum):
    """What a link is; HOST joins two CPU sockets, NETWORK a NIC and its leaf, FABRIC a leaf and a spine."""

    NVLINK = 0
    C2C = 1
    PCIE = 2
    HOST = 3
    NETWORK = 4
    FABRIC = 5


LINK_NAMES = {
    LinkKind.NVLINK: "NVLink",
    LinkKind.C2C: "C2C",
    LinkKind.PCIE: "PCIe",
    LinkKind.HOST: "host link",
    LinkKind.NETWORK: "NIC",
    LinkKind.FABRIC: "fabric",
}
"""What tables, plots and bottlenecks call each kind of link."""


class PathType(IntEnum):
    """NCCL's path types, nearest first (NCCL 2.30.7 src/include/graph.h:117-154)."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


@dataclass(frozen=True)
class Gpu:
    """A GPU model: marketing name, generation ("volta" ... "blackwell") and compute capability times ten.

    Generation "cpu" with capability 0: the ranks are processes on CPU cores. `peer_to_peer`: whether its driver lets
    GPUs write to each other's memory over PCIe.
    """

    model: str
    generation: str
    sm: int
    peer_to_peer: bool = True


@dataclass(frozen=True)
class Cpu:
    """A host CPU: arch "x86_64", "arm64" or "ppc64"; vendor, model; cores of a node.

    The vendor is "intel", "amd", "arm", "ibm" or "zhaoxin", the model its name or "family 6 model 143".
    `cores` is 0 where nobody has said, which is taken as enough for all ranks.
    """

    arch: str
    vendor: str
    model: str
    cores: int = 0


@dataclass(frozen=True, eq=False)
class RouteTable:
    """Deduplicated routes: pair k takes the links ``link[ptr[index[k]]:ptr[index[k] + 1]]``."""

    ptr: Int64
    link: Int32
    index: Int32

    def links(self, pair: int) -> Int32:
        """The link ids of one asked pair, in the order a message crosses them."""
        route = self.index[pair]
        return self.link[self.ptr[route] : self.ptr[route + 1]]

    def along(self) -> tuple[Int64, Int64]:
        """The links of all pairs, one after the other, and the pair of each."""
        length = np.diff(self.ptr)[self.index]
        pair = np.repeat(np.arange(self.index.size), length)
        within = np.arange(pair.size) - np.repeat(np.cumsum(length) - length, length)
        return self.link[self.ptr[self.index[pair]] + within].astype(np.int64), pair


@dataclass(frozen=True)
class Wire:
    """What joins two vertices of a node: both rates are bytes/s and seconds of `count` links together."""

    kind: LinkKind
    bandwidth: float
    latency: float = 0.0
    count: int = 1


@dataclass
class NodeGraph:
    """One node before it is frozen: vertices with their kinds, and what joins them, in the order they were added."""

    kinds: dict[str, VertexKind] = field(default_factory=dict)
    wires: dict[str, dict[str, Wire]] = field(default_factory=dict)
    nvlink: tuple[int, float] = (0, 0.0)  # NVLinks of a GPU of the whole machine, bytes/s of one

    def add_vertex(self, name: str, kind: VertexKind) -> None:
        """Adds a vertex, or gives it another kind."""
        self.kinds[name] = kind
        self.wires.setdefault(name, {})

    def join(self, a: str, b: str, wire: Wire) -> None:
        """Joins two vertices."""
        self.wires[a][b] = self.wires[b][a] = wire

    def remove(self, names: Iterable[str]) -> None:
        """Removes vertices with their links."""
        for name in names:
            del self.kinds[name]
            for other in self.wires.pop(name):
                del self.wires[other][name]

    def places(self) -> dict[str, int]:
        """The number of each vertex."""
        return {name: i for i, name in enumerate(self.kinds)}

    def of_kind(self, kind: VertexKind) -> list[str]:
        """The vertices of one kind, in the order they were added."""
        return [name for name, its in self.kinds.items() if its == kind]

    def edges(self) -> Iterator[tuple[str, str, Wire]]:
        """(vertex, vertex, what joins them) of every pair, once."""
        seen: set[str] = set()
        for a, wires in self.wires.items():
            yield from ((a, b, wire) for b, wire in wires.items() if b not in seen)
            seen.add(a)
