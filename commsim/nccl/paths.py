"""Paths between the devices of a node as NCCL finds them (src/graph/paths.cc, ncclTopoSetPaths).

A breadth-first search from the end of the path: fewest links first, and the widest of the first level that reaches a
device. A GPU hands on what comes over NVLink and goes on to a GPU over NVLink, once. Bandwidths in GB/s. GPUs farther
apart than `peer_level` do not write to each other's memory; they meet in that of a host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from commsim.nccl.environment import PATHS, path_level, whole
from commsim.nccl.version import Version
from commsim.topology.graph import Topology
from commsim.topology.kinds import VertexKind
from commsim.topology.sockets import BROADWELL

LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET, DIS = range(len(PATHS))

LOCAL_GBPS = 5000.0
"""Bandwidth of a device to itself (src/graph/topo.h, LOC_BW)."""


@dataclass
class Path:
    """A path: link ids in order, its farthest type and its narrowest link."""

    links: tuple[int, ...]
    type: int
    gbps: float
    through_intel: bool = False  # from a GPU through an Intel root complex, which takes 6/5 of PCIe


NO_PATH = Path((), DIS, 0.0)


@dataclass
class Wiring:
    """The devices of a node and directed links between them, in NCCL's order; a NIC and its port are two devices."""

    kind: dict[int, VertexKind | None]  # None: a port, the device that NCCL calls NET
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    gbps: list[float] = field(default_factory=list)
    type: list[int] = field(default_factory=list)
    out: dict[int, list[int]] = field(default_factory=dict)
    reverse: list[int] = field(default_factory=list)

    def join(self, a: int, b: int, kind: int, gbps: float) -> None:
        """Adds a link each way."""
        for ends in ((a, b), (b, a)):
            self.out.setdefault(ends[0], []).append(len(self.src))
            self.src.append(ends[0])
            self.dst.append(ends[1])
            self.gbps.append(gbps)
            self.type.append(kind)
        self.reverse += [len(self.src) - 1, len(self.src) - 2]

    def sort(self) -> None:
        """Wide links first, PCIe towards the host last (src/graph/topo.cc, ncclTopoConnectNodes and ncclTopoSort)."""
        below: dict[int, int] = {}
        hosts = [v for v, kind in self.kind.items() if kind is VertexKind.HOST]
        while hosts:
            parent = hosts.pop()
            for link in self.out.get(parent, []):
                child = self.dst[link]
                if self.type[link] == PIX and child not in below and self.kind[child] is not VertexKind.HOST:
                    below[child] = parent
                    hosts.append(child)
        for v, links in self.out.items():
            links.sort(key=lambda i: (self.type[i] == PIX and self.dst[i] == below.get(v), -self.gbps[i]))

    def paths_to(self, end: int) -> dict[int, Path]:
        """The path from every device to one of them; devices without one are left out."""
        paths = {end: Path((), LOC, LOCAL_GBPS)}
        level = [end]
        while level:
            following: list[int] = []
            for here in level:
                path = paths[here]
                for link in self.out.get(here, []):
                    there = self.dst[link]
                    if here != end and not self._passes(here, there, link, path):
                        continue
                    gbps = min(path.gbps, self.gbps[link])
                    known = paths.get(there)
                    if known is not None and not (len(known.links) > len(path.links) and known.gbps < gbps):
                        continue
                    back = self.reverse[link]
                    paths[there] = Path((back, *path.links), self._type(path, link), gbps)
                    if there not in following:
                        following.append(there)
            level = following
        return paths

    def _passes(self, here: int, there: int, link: int, path: Path) -> bool:
        """Whether a path may go through a device: through a GPU only from NVLink to NVLink, and through one only."""
        if self.kind[here] is not VertexKind.GPU:
            return True
        return self.type[link] == NVL and self.kind[there] is VertexKind.GPU and len(path.links) <= 1

    def _type(self, path: Path, link: int) -> int:
        """The type of a path with one more link before it."""
        here, there, kind = self.dst[link], self.src[link], self.type[link]
        ends = (self.kind[here], self.kind[there])
        if kind == NET:
            kind = LOC
        elif kind == PIX and VertexKind.HOST in ends:
            kind = PHB
        elif kind == PIX and ends == (VertexKind.PCIE_SWITCH,) * 2:
            kind = PXB
        elif kind == NVL and self.kind[there] is VertexKind.GPU and path.type == NVL and path.links:
            kind = NVB
        return max(path.type, kind)


INTEL_SINCE = (2, 9, 0)
"""Through an Intel host 2.8.3 lets GPUs of one socket write to each other, 2.20.3 no longer; taken as from here on."""

HOSTS_SINCE = (2, 23, 0)
"""From here on not through any host, but for two GPUs of an AMD one: 2.25.1 says so, and the notes of 2.23 quoted in
pytorch/pytorch#142179 name it as new."""


def peer_level(topology: Topology, version: Version, env: dict[str, str]) -> int:
    """The farthest path (index into `PATHS`) over which two GPUs of a node write to each other's memory.

    NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, else by host and version (src/graph/paths.cc, ncclTopoCheckP2p, of 2.8.3,
    2.20.3 and 2.25.1): up to 2.22 across sockets of AMD's, not through hosts of Intel's and Arm's. GPUs whose driver
    does not let them (`Gpu.peer_to_peer`) have NVLink at most. ScenarioError for a level that NCCL does not know.
    """
    if whole(env, "NCCL_P2P_DISABLE") == 1:
        return PATHS.index("LOC")
    level = path_level(env, "NCCL_P2P_LEVEL", _default(topology, version))
    return level if topology.gpu.peer_to_peer else min(level, PATHS.index("NVB"))


def _default(topology: Topology, version: Version) -> str:
    cpu = topology.cpu
    if cpu.arch == "x86_64" and cpu.vendor == "amd":
        return "SYS" if version < HOSTS_SINCE or topology.ranks_per_node <= 2 else "PXB"
    if cpu.arch == "x86_64" and cpu.vendor == "intel" and version < INTEL_SINCE:
        return "PXB" if BROADWELL.search(cpu.model) else "PHB"
    near = cpu.arch == "arm64" or cpu.vendor in ("intel", "zhaoxin")
    return "PXB" if version >= HOSTS_SINCE or near else "SYS"
