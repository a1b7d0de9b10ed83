"""What NCCL sees of a machine: the communicator's shape and the graphs its topology search finds.

The search here is by arithmetic over link capacities instead of NCCL's depth-first search (src/graph/search.cc): for
symmetric nodes both give the channel counts and speeds of public logs (8 x A100: 12 channels at 20 GB/s, 8 x H100:
12 at 30, 8 x B200: 16 at 45, 8 x H100 on 8 x 400 Gb/s: 8 at 48). A node whose links are not alike from every GPU may
differ; a graph dump is then the better source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commsim.errors import TopologyError
from commsim.nccl.version import Version

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

# src/graph/topo.h: bandwidth of one NVLink in GB/s by compute capability, as NCCL counts it.
_NVLINK_GBPS = {
    60: 18.0,
    70: 20.0,
    75: 20.0,
    80: 20.0,
    86: 12.0,
    89: 12.0,
    90: 20.6,
    100: 40.1,
    103: 40.1,
    120: 40.1,
}

# src/graph/search.cc: channel speeds tried, GB/s, by generation; inside a node and between nodes.
_SPEEDS_INTRA = {
    0: (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0),
    90: (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    100: (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}
_SPEEDS_INTER = {
    0: (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12),
    90: (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12),
    100: (
        96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24,
        0.12,
    ),
}  # fmt: skip

_CPU_LINK_GBPS = {"intel": 10.0, "amd": 16.0, "ibm": 32.0, "arm": 6.0}
"""src/graph/topo.h LINK_SYS, Skylake-class where the CPU model is not known."""

_SWITCH_PATHS = ("LOC", "NVL")


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
    nvswitch: bool = False
    mixed_gpus: bool = False  # GPUs of more than one compute capability; `sm` is the lowest

    @property
    def ranks_per_node(self) -> int:
        """Ranks per NVLink domain (integer division, as NCCL does)."""
        return max(1, self.ranks // self.nodes)

    @property
    def generation(self) -> int:
        """Row of the tuner's tables: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell (src/graph/tuning.cc)."""
        return 3 if self.sm >= 100 else 2 if self.sm >= 90 else 1 if self.sm >= 80 else 0


def _row(table: dict[int, tuple[float, ...]], sm: int) -> tuple[float, ...]:
    return table[max(key for key in table if key <= sm)]


def _best(speeds: tuple[float, ...], total: float, capacity_of: dict[float, int], limit: int) -> tuple[int, float]:
    """The channel count and speed that NCCL keeps: most bandwidth, the higher speed first among equals."""
    channels, speed = 0, 0.0
    for candidate in speeds:
        if channels and candidate / speed <= 0.49:
            break
        count = min(limit, capacity_of[candidate])
        if count * candidate > channels * speed:
            channels, speed = count, candidate
        if channels * speed >= total:
            break
    return channels, speed


def _duplicated(channels: int, speed: float, sm: int, limit: int) -> tuple[int, float]:
    """Two half-speed channels for each fast one (src/graph/search.cc, ncclTopoDupChannels)."""
    if speed < 25.0 or (sm > 80 and speed < 50.0 and channels > 4) or channels == 0:
        return channels, speed
    doubled = min(channels * 2, limit)
    return doubled, speed * channels / doubled


def nvlink_gbps(topology: Topology) -> float:
    """NVLink bandwidth out of one GPU as NCCL counts it (GB/s), 0 where the node has no NVLink."""
    per_link = _NVLINK_GBPS[max(key for key in _NVLINK_GBPS if key <= max(60, topology.gpu.sm))]
    if topology.gpu.sm not in _NVLINK_GBPS:
        per_link = topology.nvlink_link_bandwidth * 0.8 / 1e9
    return topology.nvlink_links * per_link


def _pair_capacity(topology: Topology) -> list[float]:
    """GB/s of every direct NVLink bundle out of the GPU that has least of them among the ranks of a node."""
    per_link = nvlink_gbps(topology) / max(1, topology.nvlink_links)
    ranks = range(topology.ranks_per_node)
    bundles = [[topology.pair_links(a, b) * per_link for b in ranks if b != a] for a in ranks]
    return min(([bw for bw in row if bw > 0] for row in bundles), key=sum)


def _pcie_gbps(topology: Topology) -> float:
    """GB/s of the narrowest link on the way around the ranks of a node over PCIe, as NCCL rates it."""
    from commsim.topology.graph import LinkKind

    narrowest = float("inf")
    n = topology.ranks_per_node
    for rank in range(n):
        route = topology.route(rank, (rank + 1) % n)
        for link in route:
            kind, bandwidth = topology.link_kind[link], float(topology.link_bandwidth[link]) / 1e9
            if kind == LinkKind.HOST:
                bandwidth = min(bandwidth, _CPU_LINK_GBPS.get(topology.cpu.vendor, 10.0))
            narrowest = min(narrowest, bandwidth)
    return narrowest


def _worst_path(topology: Topology) -> str:
    order = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET")
    n = topology.ranks_per_node
    return max((topology.path_type(0, b) for b in range(1, n)), key=order.index, default="LOC")


def _ring_intra(topology: Topology, intra_type: str, limit: int) -> tuple[int, float]:
    sm, n = topology.gpu.sm, topology.ranks_per_node
    speeds = _row(_SPEEDS_INTRA, sm)
    if topology.has_nvswitch:
        total = nvlink_gbps(topology)
        capacity = {s: int(total / s + 1e-9) for s in speeds}
    elif intra_type in ("NVL", "NVB"):
        bundles = _pair_capacity(topology)
        # A ring over two ranks can use their one bundle only; over more, rings share the bundles out evenly.
        total = sum(bundles)
        capacity = {s: sum(int(bw / s + 1e-9) for bw in bundles) for s in speeds}
    else:
        total = _pcie_gbps(topology)
        capacity = {s: int(total / s + 1e-9) for s in speeds}
        limit = 1  # one ring already fills every PCIe link in both directions
    if n == 1:
        return 1, speeds[0]
    channels, speed = _best(speeds, total, capacity, limit)
    if channels == 0:
        channels, speed = 1, total
    return _duplicated(channels, speed, sm, limit)


def _ring_inter(topology: Topology, intra_type: str, limit: int) -> tuple[int, float]:
    sm, ppn = topology.gpu.sm, topology.ranks_per_node
    speeds = _row(_SPEEDS_INTER, sm)
    nic = topology.nic_bandwidth / 1e9
    if ppn == 1:
        intra = float("inf")
    elif topology.has_nvswitch or intra_type == "NVL":
        intra = nvlink_gbps(topology) if topology.has_nvswitch else sum(_pair_capacity(topology))
    else:
        intra = _pcie_gbps(topology)

    def capacity(speed: float) -> int:
        per_nic = int(nic / speed + 1e-9)
        # A ring leaves every GPU but one through the node's own links: over n rings, some GPU is the last of n // ppn
        # of them only.
        inside = max((n for n in range(limit + 1) if (n - n // ppn) * speed <= intra), default=0)
        return min(topology.nics_per_node * per_nic, inside)

    # NCCL stops at the bandwidth out of a GPU (search.cc, totalBw), which is that of its NVLinks where it has any.
    enough = intra if ppn > 1 else nic * topology.nics_per_node
    channels, speed = _best(speeds, enough, {s: capacity(s) for s in speeds}, limit)
    if channels == 0:
        channels, speed = 1, min(nic, intra)
    return _duplicated(channels, speed, sm, limit)


def max_channels(version: Version) -> int:
    """MAXCHANNELS of src/include/device.h."""
    return 64 if version >= (2, 25, 0) else 32


def discover(topology: Topology, version: Version, env: dict[str, str] | None = None) -> System:
    """The system that NCCL would find on a topology: graphs, path types and the number of collective channels.

    ``NCCL_MIN_NCHANNELS``/``NCCL_MIN_CTAS`` and ``NCCL_MAX_NCHANNELS``/``NCCL_MAX_CTAS`` in `env` clip the channels.
    """
    env = env or {}
    nodes, ppn, sm = topology.nodes, topology.ranks_per_node, topology.gpu.sm
    if nodes > 1 and topology.nics_per_node == 0:
        raise TopologyError(f"{topology.name} has {nodes} nodes but no NIC; expected nics_per_node of at least 1")
    limit = max_channels(version)
    intra_type = _worst_path(topology) if ppn > 1 else "LOC"
    inter_type = "PIX"
    if nodes > 1:
        inter_type = topology.nic_path_type(0, topology.nearest_nic(0))
        channels, speed = _ring_inter(topology, intra_type, limit // 2)
        fast = sm >= 90 and topology.has_nvswitch
        pattern = "TREE" if fast or ppn < 2 else "BALANCED_TREE"
    else:
        channels, speed = _ring_intra(topology, intra_type, limit // 2)
        pattern = "BALANCED_TREE"
    ring = Graph(channels, speed, speed, "RING", intra_type, inter_type)
    coll = min(limit, 2 * channels)
    if sm >= 90 and nodes > 1 and speed > 45.0 and coll < 16:
        coll *= 2
    return System(
        ranks=topology.world_size,
        nodes=nodes,
        sm=sm,
        cpu_vendor=topology.cpu.vendor,
        cpu_arch=topology.cpu.arch,
        intra_type=intra_type,
        inter_type=inter_type,
        nic_latency_us=_PLUGIN_LATENCY_US.get(topology.network, 0.0),
        ring=ring,
        tree=replace(ring, pattern=pattern),
        nvls=_nvls(topology, version),
        coll_channels=_clipped(coll, env, limit),
    )


_PLUGIN_LATENCY_US = {"efa": 10.0}
"""The ``latency`` property a network plugin reports; IB verbs reports none (accuracy-study: EFA about 10 us)."""


def _clipped(channels: int, env: dict[str, str], limit: int) -> int:
    def number(*names: str) -> int | None:
        return next((int(env[n]) for n in names if env.get(n, "").isdecimal()), None)

    most, least = number("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"), number("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
    if most:
        channels = min(channels, most)
    if least:
        channels = max(channels, min(least, limit))
    return max(1, channels)


def _nvls(topology: Topology, version: Version) -> Graph | None:
    """The NVLS graph: one head per GPU, each reduce load taking (n + 1) shares of the NVLink bandwidth."""
    sm, ppn = topology.gpu.sm, topology.ranks_per_node
    if sm < 90 or not topology.has_nvswitch or ppn < 2 or version < (2, 17, 0):
        return None
    total = nvlink_gbps(topology)
    heads = ppn
    speeds = _row(_SPEEDS_INTRA, sm)
    intra = next((s for s in speeds if (heads + 1) * s <= total), 0.0)
    if intra == 0.0:
        return None
    inter = intra
    if topology.nodes > 1:
        inter = next((s for s in _row(_SPEEDS_INTER, sm) if s <= topology.nic_bandwidth / 1e9), intra)
        heads = min(heads, topology.nics_per_node)
    else:
        inter = max(s for s in speeds if s <= 2 * intra and s * heads <= 2 * total)
    return Graph(heads, intra, inter, "NVLS", topology.path_type(0, 1), "PIX")
