"""The ways inside a node: how many transfers share a link of a mesh of NVLinks or of PCIe.

Two GPUs of a mesh without switches have NVLinks of their own, which other pairs cannot use. A channel visits the GPUs
in the order of NCCL's search, and channels that pass between the same two GPUs share the links between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, cycle, islice, pairwise, permutations
from math import inf
from typing import TYPE_CHECKING, Any

from commsim.nccl.environment import PATHS
from commsim.topology.kinds import LINK_NAMES, LinkKind, VertexKind

if TYPE_CHECKING:
    from commsim.nccl.system import Graph, System
    from commsim.topology.graph import Topology

Pair = tuple[int, int]


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


def ring_ways(system: System, topology: Topology) -> Ways | None:
    """The ways of rings in a node without NVSwitches; None where no order of the GPUs is known."""
    closed = system.nodes == 1  # else the network joins the ends
    return _ways(topology, system.ring, lambda order: pairwise((*order, order[0]) if closed else order))


def tree_ways(system: System, topology: Topology) -> Ways | None:
    """The ways of the trees' chains, up and down: a GPU between the ends of a chain sends to both neighbours."""
    return _ways(topology, system.tree, lambda order: chain(pairwise(reversed(order)), pairwise(order)))


def known(graph: Graph, gpus: int) -> bool:
    """Whether a graph says in which order each channel visits the GPUs of a node."""
    return bool(graph.orders) and all(sorted(order) == list(range(gpus)) for order in graph.orders)


def _ways(topology: Topology, graph: Graph, hops: Callable[[Sequence[int]], Iterable[Pair]]) -> Ways | None:
    if not known(graph, topology.ranks_per_node):
        return None

    def nvlinks(pair: Pair) -> tuple[int, ...]:
        return tuple(int(link) for link in topology.route(*pair) if topology.link_kind[link] == LinkKind.NVLINK)

    links = tuple(tuple(map(nvlinks, hops(order))) for order in graph.orders)
    bandwidth = {link: float(topology.link_bandwidth[link]) for way in links for hop in way for link in hop}
    return Ways(links, bandwidth) if bandwidth else None


@dataclass(frozen=True)
class Shared:
    """What each of several transfers between GPUs gets, bytes/s, and what the busiest link is."""

    rate: float
    limit: str
    by_host: bool  # some pass the memory of a host


def shared(topology: Topology, pairs: Sequence[Pair], peer_level: int) -> Shared:
    """What a transfer gets where one of every pair is under way at once, by their routes and the links they share.

    GPUs farther apart than `peer_level` (index into `PATHS`) hand data over in the memory of a host.
    """
    near = [PATHS.index(topology.path_type(*pair)) <= peer_level for pair in pairs]
    direct = [topology.route(*pair).tolist() for pair in compress(pairs, near)]
    staged = [pair for pair, close in zip(pairs, near, strict=True) if not close]
    uses = Counter(chain.from_iterable([*direct, *_by_host(topology, staged)]))
    busiest = min(uses, key=lambda link: float(topology.link_bandwidth[link]) / uses[link])
    limit = "host memory" if staged else LINK_NAMES[LinkKind(topology.link_kind[busiest])]
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
