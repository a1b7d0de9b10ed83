"""What the lowering reads of a machine, once: rates inside a node and through its NICs, and what shares them.

Two GPUs of a mesh without switches have NVLinks of their own, which other pairs cannot use. A channel visits the GPUs
in the order of NCCL's search. Channels that pass between the same two GPUs share the links between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, cycle, islice, pairwise, permutations
from math import ceil, inf
from typing import Any

import numpy as np

from commsim.errors import TopologyError
from commsim.nccl.environment import PATHS, THROUGH_HOST, path_level, whole
from commsim.nccl.parameters import Parameters
from commsim.nccl.paths import peer_level
from commsim.nccl.pools import MESHES, described_rate
from commsim.nccl.protocols import Protocol
from commsim.nccl.system import Graph, System
from commsim.nccl.version import Version
from commsim.topology.graph import Topology
from commsim.topology.kinds import LINK_NAMES, LinkKind, VertexKind
from commsim.units import gb_per_s

Pair = tuple[int, int]

GDR = "NCCL_NET_GDR_LEVEL"

ONE_MEMORY_SM = (121,)
"""Compute capabilities of GPUs that have the memory of their host and none of their own (GB10)."""

VERBS = ("infiniband", "roce")
"""Networks that NCCL drives without a plugin."""


@dataclass(frozen=True)
class Ways:
    """The NVLinks of a node that each channel sends all its bytes over, hop by hop, and the bytes/s of these links."""

    hops: tuple[tuple[tuple[int, ...], ...], ...]
    bandwidth: Mapping[int, float]

    def rate(self, channels: int) -> float:
        """Bytes/s of each of so many channels where all hops are busy: its share of the link that most of them pass."""
        return self._rate(chain.from_iterable(islice(cycle(self.hops), channels)))

    def hop_rate(self, channels: int) -> float:
        """Bytes/s of each of so many channels where all are at the same hop, the slowest one."""
        return min(map(self._rate, zip(*islice(cycle(self.hops), channels), strict=True)), default=inf)

    def _rate(self, hops: Iterable[tuple[int, ...]]) -> float:
        uses = Counter(chain.from_iterable(hops))
        return min((self.bandwidth[link] / count for link, count in uses.items()), default=inf)


@dataclass(frozen=True)
class Shared:
    """What each of several transfers between GPUs gets, bytes/s, and what the busiest link is."""

    rate: float
    limit: str
    by_host: bool  # some pass the memory of a host


COPY = "copy by the host"
"""In `Machine.nic_path`: what a processor copies between the host's memory and the network, one proxy per GPU."""


MEMORY = "host memory"
"""In `Machine.nic_path`: what a GPU hands a NIC in the memory of a host, without GPUDirect RDMA."""

NIC, FABRIC = LINK_NAMES[LinkKind.NETWORK], LINK_NAMES[LinkKind.FABRIC]
UPLINKS = "leaf uplinks"
"""Links between switches, where these carry less than the NICs below them."""


@dataclass(frozen=True)
class Machine:
    """What the lowering needs of a topology; rates are nominal bytes/s."""

    intra_bandwidth: float  # out of a GPU inside its node
    intra_kind: str  # of these links: a field of `Efficiency`
    nics: int  # of a node that its ranks keep busy
    nic_path: tuple[tuple[str, float, int], ...]
    """The narrowest link of each kind on the way through a NIC: (kind, rate of one, how many a node has).

    `COPY` stands there where a processor copies, `MEMORY` where GPU and NIC have no other way.
    """
    all_pairs: Shared | None = None  # what each pair of GPUs of a node gets over PCIe while all pairs send
    pair_links: int = 0  # NVLinks that join two GPUs, all of one GPU's through a switch
    nic_gbps: float = 0.0
    through_host: bool = False  # GPU and NIC meet in the PCIe root of the host, or in its memory
    leaf_nodes: int = 0  # nodes under one leaf
    oversubscription: float = 1.0  # of the leaves' uplinks
    cut: float = inf  # bytes/s between the halves of a mesh, a torus or a dragonfly, which no rate above sees
    ring_ways: Ways | None = None  # of the channels on a mesh of GPUs, where known
    tree_ways: Ways | None = None

    def with_nics(self, nics: int, ranks: int) -> Machine:
        """The same where so many ranks of a node keep so many of its NICs busy."""
        counts = {"PCIe": min(nics, ranks), MEMORY: min(nics, ranks), COPY: ranks}
        path = tuple((kind, rate, counts.get(kind, nics)) for kind, rate, _ in self.nic_path)
        return replace(self, nics=nics, nic_path=path)


def within_reach(topology: Topology, version: Version, env: dict[str, str]) -> tuple[Topology, int, str]:
    """The machine without NVLink where `peer_level` is below it; that level; the variable without effect, if one is."""
    level = peer_level(topology, version, env)
    if level >= PATHS.index("NVL") or not any(group.nvlink_links for group in topology.groups):
        return topology, level, ""
    from commsim.topology.faults import without_nvlink

    try:
        return without_nvlink(topology), level, ""
    except TopologyError:
        name = "NCCL_P2P_DISABLE=1" if whole(env, "NCCL_P2P_DISABLE") == 1 else "NCCL_P2P_LEVEL"
        return topology, PATHS.index("SYS"), f"{name} has no effect on the rates: only NVLink joins all GPUs of a node"


def far_nics(topology: Topology, env: Mapping[str, str]) -> bool:
    """Whether NICs that NCCL drives itself are kept from the memory of the GPUs, which they have no GPUDirect RDMA to.

    They are farther from them than the job's variables allow, by default than PCIe switches, or a fault forbids it.
    """
    if topology.nodes == 1 or topology.network in THROUGH_HOST:
        return False
    lacks = topology.node_gdr is not None and not topology.node_gdr[0]
    near = PATHS.index(topology.nic_path_type(0, topology.nearest_nic(0)))
    level = PATHS.index("LOC") if lacks else path_level(env, GDR, "P2C")
    # A plugin's way through the host is its own, and a GPU that lost its NIC does not stand for all.
    if near > PATHS.index("P2C") and not (topology.network in VERBS and _through_host(topology)):
        return False
    return level < near


def survey(system: System, topology: Topology, peer_level: int, *, staged: bool = False) -> Machine:
    """Reads from the topology, once, what the lowering needs of it.

    GPUs farther apart than `peer_level` (index into `PATHS`) hand data over in the memory of a host; where `staged`,
    so do GPU and NIC.
    """
    intra, kind = _inside(system, topology, peer_level) if system.ranks_per_node > 1 else (0.0, "none")
    nics = fed_nics(topology)
    if taken := {nic for both in system.ring.nics for nic in both} if _is_part(topology) else set():
        nics = min(nics, len(taken))  # the others are those of the GPUs that have no rank
    across = _nic_path(topology, nics, staged=staged) if system.nodes > 1 else ()
    every = [*permutations(range(topology.ranks_per_node), 2)]
    pairs = shared(topology, every, peer_level) if kind in ("pcie", "host") else None
    mesh = kind == "nvlink_direct"
    ring = _ways(topology, system.ring, _closed if system.nodes == 1 else pairwise) if mesh else None
    tree = _ways(topology, system.tree, _up_and_down) if mesh else None
    links = 0
    if kind.startswith("nvlink"):
        links = topology.nvlink_links if kind == "nvlink_switch" else topology.pair_links(0, 1)
    gbps = gb_per_s(topology.nic_bandwidth) if topology.nics_per_node else 0.0
    # A NIC reads the memory of its host at its full rate, whoever wrote there: GB10's way is no other.
    host = topology.gpu.sm not in ONE_MEMORY_SM and (staged or _through_host(topology))
    thin = topology.oversubscription
    narrow = kind == "nvlink_direct" if system.nodes == 1 else topology.kind in MESHES or _thin(topology)
    cut = topology.bisection_bandwidth() if narrow else inf
    leaf = topology.nodes_per_leaf
    return Machine(intra, kind, nics, across, pairs, links, gbps, host, leaf, thin, cut, ring, tree)


def _thin(topology: Topology) -> bool:
    """Whether nodes hang on several leaves, whose uplinks carry less than their NICs do."""
    return topology.oversubscription > 1 and topology.nodes > topology.nodes_per_leaf


def fed_nics(topology: Topology) -> int:
    """NICs of a node that its ranks keep busy: a GPU as many as its own port feeds, even if the last one not wholly."""
    if topology.nodes < 2 or not topology.nics_per_node:
        return topology.nics_per_node
    port = _narrowest(topology).get("PCIe", topology.nic_bandwidth)
    usable = topology.nics_per_node if topology.link_failed is None else int(topology.usable_nics[0].sum())
    return min(usable, topology.ranks_per_node * ceil(port / topology.nic_bandwidth))


def _is_part(topology: Topology) -> bool:
    """Whether some GPUs of a node have no rank."""
    gpus = topology.vertex_kind[: topology.node_first_vertex[1]] == VertexKind.GPU
    return int(gpus.sum()) > topology.ranks_per_node


def _inside(system: System, topology: Topology, peer_level: int) -> tuple[float, str]:
    n = topology.ranks_per_node
    if system.intra_type in ("NVL", "NVB"):
        if topology.has_nvswitch:
            return _switched(topology), "nvlink_switch"
        return min(_out_of(topology, gpu) for gpu in range(n)), "nvlink_direct"
    ring = shared(topology, [(rank, (rank + 1) % n) for rank in range(n)], peer_level)
    return ring.rate, "host" if ring.by_host else "pcie"


def _out_of(topology: Topology, gpu: int) -> float:
    """Bytes/s of a GPU's NVLinks to others with ranks; where there are none, of its way through a GPU without one."""
    others = [other for other in range(topology.ranks_per_node) if other != gpu]
    links = sum(topology.pair_links(gpu, other) for other in others)
    if links:
        return links * topology.nvlink_link_bandwidth
    return max(float(topology.link_bandwidth[topology.route(gpu, other)].min()) for other in others)


def _switched(topology: Topology) -> float:
    """Bytes/s of the NVLinks between the switches of a node and the GPU that has least of them."""
    t, inside = topology, slice(int(topology.node_first_link[1]))
    links = (t.link_kind[inside] == LinkKind.NVLINK) & t.works[inside]
    rates = np.bincount(t.link_src[inside][links], t.link_bandwidth[inside][links], len(t.vertex_name))
    return float(rates[t.rank_vertex[: t.ranks_per_node]].min())


def _nic_path(topology: Topology, nics: int, *, staged: bool) -> tuple[tuple[str, float, int], ...]:
    """Narrowest links between the GPUs of two neighbouring nodes, through one NIC each, as `Machine.nic_path`."""
    ports = min(nics, topology.ranks_per_node)  # NICs beside one GPU share its port
    narrowest = _narrowest(topology)
    if staged:
        narrowest[MEMORY] = _host_port(topology)
        narrowest["PCIe"] = min(narrowest.get("PCIe", inf), staged_rate(topology))
    path = [(kind, bw, ports if kind in ("PCIe", MEMORY) else nics) for kind, bw in sorted(narrowest.items())]
    # Sockets copy in the kernel; the first EFA without GPUDirect RDMA in libfabric, which knew no remote read then.
    if topology.network == "ethernet" or (topology.network == "efa_v1" and _through_host(topology)):
        path.append((COPY, inf, topology.ranks_per_node))
    return tuple(path)


def _narrowest(topology: Topology) -> dict[str, float]:
    """Bytes/s of the narrowest link of each kind on the ways from the GPUs of a node to those of the next."""
    ranks = np.arange(topology.ranks_per_node)
    narrowest: dict[str, float] = {}
    links = np.unique(topology.routes(ranks, ranks + topology.ranks_per_node).link)
    for kind in (LinkKind.PCIE, LinkKind.NETWORK, LinkKind.FABRIC):
        of_kind = links[topology.link_kind[links] == kind]
        if of_kind.size:
            narrowest[LINK_NAMES[kind]] = float(described_rate(topology, of_kind).min())
    return narrowest


def _through_host(topology: Topology) -> bool:
    if topology.nodes < 2 or topology.network in THROUGH_HOST:  # whose path is through the host by nature
        return False
    # The first GPU stands for all; where parts have failed it may be the one that lost its own way: most of them do.
    gpus = range(1 if topology.link_failed is None else topology.ranks_per_node)
    return 2 * sum(_leaves_by_host(topology, gpu) for gpu in gpus) > len(gpus)


def _leaves_by_host(topology: Topology, gpu: int) -> bool:
    """Whether a GPU of the first node goes through a host on its way to the same one of the second."""
    way = topology.route(gpu, topology.ranks_per_node + gpu)
    inside = way[topology.vertex_node[topology.link_src[way]] == 0]
    kinds = {LinkKind(kind) for kind in topology.link_kind[inside]}
    ends = {VertexKind(kind) for kind in topology.vertex_kind[topology.link_dst[inside]]}
    return VertexKind.HOST in ends and LinkKind.C2C not in kinds


def nic_efficiency(machine: Machine, parameters: Parameters, *, all_to_all: bool = False) -> float:
    """Payload share of the nominal rate of a NIC."""
    network = parameters.network
    efficiency = network.all_to_all_efficiency if all_to_all else network.efficiency
    return float(efficiency * network.through_host_efficiency) if machine.through_host else float(efficiency)


def nic_rates(
    machine: Machine, parameters: Parameters, *, all_to_all: bool = False
) -> tuple[tuple[str, float, float], ...]:
    """(kind, through one NIC, through all of a node together) in payload bytes/s, for the links of `nic_path`."""
    nic = nic_efficiency(machine, parameters, all_to_all=all_to_all)

    copy = parameters.network.copy_rate or inf

    def rates(kind: str, bandwidth: float, count: int) -> tuple[float, float]:
        if kind == COPY:  # of all proxies of a node half the copies are sent; one alone does both
            return (copy if count > 1 else copy / 2), count * copy / 2
        rate = bandwidth * {"PCIe": parameters.efficiency.pcie, MEMORY: parameters.efficiency.host}.get(kind, nic)
        return rate, rate * count

    return tuple((kind, *rates(kind, bandwidth, count)) for kind, bandwidth, count in machine.nic_path)


def node_rate(machine: Machine, parameters: Parameters) -> tuple[float, str]:
    """Payload bytes/s out of a node through all its NICs, and the kind of link that limits it."""
    return min((together, kind) for kind, _, together in nic_rates(machine, parameters))


def inside_name(machine: Machine) -> str:
    """What limits a rank that waits for the links inside its node."""
    return {"pcie": "PCIe", "host": MEMORY}.get(machine.intra_kind, "NVLink")


def intra_bandwidth(machine: Machine, parameters: Parameters, protocol: Protocol) -> float:
    """Bytes/s on the wires out of one GPU towards the others of its node, as all channels together reach it."""
    return machine.intra_bandwidth * parameters.efficiency.inside(machine.intra_kind, protocol)


def known(graph: Graph, gpus: int) -> bool:
    """Whether a graph says in which order each channel visits the GPUs of a node."""
    return bool(graph.orders) and all(sorted(order) == list(range(gpus)) for order in graph.orders)


def _closed(order: Sequence[int]) -> Iterable[Pair]:
    """Hops of a ring in one node; of several the network joins its ends."""
    return pairwise((*order, order[0]))


def _up_and_down(order: Sequence[int]) -> Iterable[Pair]:
    """Hops of a tree's chain: a GPU between its ends sends to both neighbours."""
    return chain(pairwise(reversed(order)), pairwise(order))


def _ways(topology: Topology, graph: Graph, hops: Callable[[Sequence[int]], Iterable[Pair]]) -> Ways | None:
    """The links that the channels of a graph pass in a node without NVSwitches; None where no order is known."""
    if not known(graph, topology.ranks_per_node):
        return None

    def nvlinks(pair: Pair) -> tuple[int, ...]:
        return tuple(int(link) for link in topology.route(*pair) if topology.link_kind[link] == LinkKind.NVLINK)

    links = tuple(tuple(map(nvlinks, hops(order))) for order in graph.orders)
    bandwidth = {link: float(topology.link_bandwidth[link]) for way in links for hop in way for link in hop}
    return Ways(links, bandwidth) if bandwidth else None


def shared(topology: Topology, pairs: Sequence[Pair], peer_level: int) -> Shared:
    """What a transfer gets where one of every pair is under way at once, by their routes and the links they share.

    GPUs farther apart than `peer_level` (index into `PATHS`) hand data over in the memory of a host.
    """
    near = [PATHS.index(topology.path_type(*pair)) <= peer_level for pair in pairs]
    direct = [topology.route(*pair).tolist() for pair in compress(pairs, near)]
    staged = [pair for pair, close in zip(pairs, near, strict=True) if not close]
    uses = Counter(chain.from_iterable([*direct, *_by_host(topology, staged)]))
    busiest = min(uses, key=lambda link: float(topology.link_bandwidth[link]) / uses[link])
    limit = MEMORY if staged else LINK_NAMES[LinkKind(topology.link_kind[busiest])]
    return Shared(float(topology.link_bandwidth[busiest]) / uses[busiest], limit, bool(staged))


def _by_host(topology: Topology, pairs: Sequence[Pair]) -> Iterator[list[int]]:
    """For each pair of GPUs of node 0 the links up to the first one's nearest host (if any), and down to the other."""
    graph = topology.to_networkx([0])
    for a, b in pairs:
        gpu, other = (topology.vertex_name[topology.rank_vertex[rank]] for rank in (a, b))
        host = _nearest_host(graph, gpu)
        yield [*_shortest(graph, gpu, host), *_shortest(graph, host, other)]


def staged_rate(topology: Topology) -> float:
    """PCIe bytes/s that each NIC of a node sends and takes at once without GPUDirect RDMA; infinite without PCIe.

    GPU and NIC then meet in a buffer in the memory of the GPU's host, which one writes and the other reads
    (src/transport/net.cc, sendConnect): a port that both stand below carries every byte up and down again.
    """
    graph = topology.to_networkx([0])
    gpu_of = {topology.nearest_nic(rank): rank for rank in reversed(range(topology.ranks_per_node))}
    nics = [v for v, kind in graph.nodes(data="kind") if kind is VertexKind.NIC]
    uses: Counter[int] = Counter()
    for nic, rank in gpu_of.items():
        gpu = topology.vertex_name[topology.rank_vertex[rank]]
        host = _nearest_host(graph, gpu)
        for ends in permutations((gpu, host)), permutations((host, nics[nic])):
            uses.update(chain.from_iterable(_shortest(graph, *pair) for pair in ends))
    pcie = (link for link in uses if topology.link_kind[link] == LinkKind.PCIE)
    return min((float(topology.link_bandwidth[link]) / uses[link] for link in pcie), default=inf)


def _host_port(topology: Topology) -> float:
    """Bytes/s of the narrowest PCIe link between the first GPU and its host; infinite where they share a memory."""
    if topology.gpu.sm in ONE_MEMORY_SM:
        return inf
    graph = topology.to_networkx([0])
    gpu = topology.vertex_name[topology.rank_vertex[0]]
    way = _shortest(graph, gpu, _nearest_host(graph, gpu))
    rates = (float(topology.link_bandwidth[link]) for link in way if topology.link_kind[link] == LinkKind.PCIE)
    return min(rates, default=inf)


def _nearest_host(graph: Any, gpu: str) -> str:
    """The host that a GPU reaches over the fewest links; the GPU itself where it reaches none."""
    import networkx as nx

    up = nx.single_source_shortest_path_length(graph, gpu)
    return min((v for v in up if graph.nodes[v]["kind"] is VertexKind.HOST), key=lambda v: up[v], default=gpu)


def _shortest(graph: Any, a: str, b: str) -> list[int]:
    """The links of the shortest way but those between sockets, which carry several times what a GPU's port does."""
    import networkx as nx

    links = [graph.edges[ends] for ends in pairwise(nx.shortest_path(graph, a, b))]
    return [int(link["link"]) for link in links if link["kind"] is not LinkKind.HOST]
