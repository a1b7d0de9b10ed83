"""The connections of a communicator's ranks, and what the buffers of each take (src/transport, src/graph/connect.cc).

Files are those of NCCL 2.26.2 unless a term says another release. A connection is one channel's way to one other rank.
Rings, trees, PAT and NVLSTree share connections between the same ranks; sends have others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.collectives.tree import ATTACH, double_binary_tree, rank_trees
from commsim.nccl.channels import nvls_channels, p2p_channels
from commsim.nccl.environment import PATHS, THROUGH_HOST, whole
from commsim.nccl.graph import max_channels
from commsim.nccl.machine import far_nics
from commsim.nccl.paths import peer_level
from commsim.nccl.protocols import DEFAULT_BUFFER_BYTES, LL, LL128, STEPS, heads
from commsim.nccl.version import Version

if TYPE_CHECKING:
    from commsim.nccl.machine import Machine
    from commsim.nccl.predict import Predictor
    from commsim.nccl.system import Graph, System
    from commsim.topology.graph import Topology

_GRANULE = 2 << 20
"""What is mapped is a multiple of this (src/include/comm.h, CUDA_IPC_MIN; cuMemGetAllocationGranularity)."""

_MEM = 4096
"""Of the head or the tail of a connection (src/include/comm.h, ncclSendMem and ncclRecvMem, MEM_ALIGN)."""

CUMEM_SINCE: Version = (2, 19, 0)
"""From here on memory is mapped (NCCL_CUMEM_ENABLE) unless the driver is older than 12.0 or cannot; before by request
(src/misc/cudawrap.cc). Each array of its own then takes a granule."""

RUNTIME_SINCE: Version = (2, 22, 0)
"""From here on algorithms connect at their first call, where memory is mapped (NCCL_RUNTIME_CONNECT)."""


@dataclass(frozen=True)
class Allocation:
    """The sizes that NCCL allocates in for one job: buffers of a connection, chunk of sends, and how it maps."""

    version: Version
    ll: int
    ll128: int
    simple: int
    p2p_chunk: int
    mapped: bool  # cuMem
    at_use: bool  # algorithms connect at their first call

    def big(self, nbytes: int) -> int:
        """What a buffer takes."""
        return -(-nbytes // _GRANULE) * _GRANULE

    def arrays(self, sizes: Iterable[tuple[int, int]]) -> int:
        """What (count, bytes) of small arrays take: a granule each where they are mapped, else one after the other."""
        listed = [(count, nbytes) for count, nbytes in sizes if count]
        if self.mapped:
            return sum(count * self.big(nbytes) for count, nbytes in listed)
        return self.big(sum(count * nbytes for count, nbytes in listed))


def allocation(system: System, machine: Machine, version: Version, env: dict[str, str]) -> Allocation:
    """What the release and the variables of a job say (src/init.cc, computeBuffSizes).

    Connections are mapped from `CUMEM_SINCE` on: a driver of 12.0 or newer is taken for granted.
    """
    arm = system.cpu_arch == "arm64" and version < (2, 20, 0)
    simple = whole(env, "NCCL_BUFFSIZE") or (DEFAULT_BUFFER_BYTES // 4 if arm else DEFAULT_BUFFER_BYTES)
    wired = machine.intra_kind.startswith("nvlink") or system.ranks == 1
    if system.nodes > 1 or version < (2, 16, 0):
        chunk = whole(env, "NCCL_P2P_NET_CHUNKSIZE") or 128 << 10
    elif wired:
        chunk = whole(env, "NCCL_P2P_NVL_CHUNKSIZE") or 512 << 10
    else:
        chunk = whole(env, "NCCL_P2P_PCI_CHUNKSIZE") or 128 << 10
    asked = whole(env, "NCCL_CUMEM_ENABLE")
    mapped = (version >= CUMEM_SINCE) if asked is None else asked > 0
    at_use = version >= RUNTIME_SINCE and mapped and whole(env, "NCCL_RUNTIME_CONNECT") != 0
    return Allocation(
        version,
        whole(env, "NCCL_LL_BUFFSIZE") or round(STEPS * LL.step_bytes * LL.wire_factor),
        whole(env, "NCCL_LL128_BUFFSIZE") or round(STEPS * LL128.step_bytes * LL128.wire_factor),
        simple,
        chunk,
        mapped,
        at_use,
    )


_Connection = tuple[int, int, int, bool]
"""Channel, connector (0: collectives; 1: the way back of CollNet), the other rank, whether it is sent to."""

_MOST_NODES = 16
"""Nodes of the communicator that stands for a larger one: its double tree has nodes of every part."""


@dataclass
class RankConnections:
    """One rank's connections as they are made; sizes by what joins two GPUs."""

    number: int
    of: Connections
    made: set[_Connection] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)  # NVLS and CollNet, once they have buffers

    def connect(self, wanted: Iterable[_Connection]) -> tuple[int, int]:
        """Bytes (GPU, host) of those that are not there yet."""
        fresh = set(wanted) - self.made
        self.made |= fresh
        sizes = [self.of.buffers(self.number, other, sends) for _, _, other, sends in fresh]
        return sum(gpu for gpu, _ in sizes), sum(host for _, host in sizes)


class Connections:
    """What all ranks of a communicator have in common: its channels, orders and trees, cut to `_MOST_NODES`."""

    def __init__(self, model: Predictor, kind: int) -> None:
        of = model.nodes.kinds[kind]
        self.system: System = model.system
        self.version, self.env = model.version, model.options.env
        self.topology: Topology = of.topology
        self.machine: Machine = of.machine
        self.graphs: System = of.system
        self.local = self.topology.ranks_per_node
        self.nodes = min(self.system.nodes, _MOST_NODES)
        self.size = allocation(self.system, self.machine, self.version, self.env)
        self.level = peer_level(self.topology, self.version, self.env)
        supported = self.system.nvls is not None
        self.nvls = nvls_channels(self.system.sm, self.system.nodes, self.version, self.env) if supported else 0
        self.channels = max(self.system.coll_channels, self.nvls)
        self.p2p, self.per_peer = self._p2p()
        self.direct = self.system.nodes > 1 and self._gdr()

    @property
    def telling(self) -> list[int]:
        """Ranks among which there is one with most connections: those of a root, a leaf and nodes between."""
        nodes = sorted({0, 1, 2, self.nodes // 2, self.nodes - 1} & set(range(self.nodes)))
        return [node * self.local + place for node in nodes for place in range(self.local)]

    @property
    def pools(self) -> int:
        """Pools of sends that lie on a GPU beside a NIC: with PXN one of every GPU of its node (src/init.cc)."""
        off = self.version < (2, 12, 0) or whole(self.env, "NCCL_PXN_DISABLE") == 1
        off = off or whole(self.env, "NCCL_P2P_PXN_LEVEL") == 0 or self.system.nodes == 1 or not self.direct
        return self.local if not off and self.machine.intra_kind == "nvlink_switch" else 1

    @property
    def no_buffers(self) -> int:
        """Bytes of the host for a connection to another node that has no buffers of its own."""
        return 2 * _MEM

    def _p2p(self) -> tuple[int, int]:
        machine = self.machine
        nics = max(1, machine.nics // max(1, self.local))
        total, peer = p2p_channels(
            self.channels,
            self.system.nodes,
            self.system.ranks,
            machine.pair_links,
            nics,
            machine.nic_gbps,
            self.version,
        )
        most, least = whole(self.env, "NCCL_MAX_P2P_NCHANNELS"), whole(self.env, "NCCL_MIN_P2P_NCHANNELS")
        bounded = max(min(self.channels, most or self.channels), least or 1)
        limit = min(1 << (bounded - 1).bit_length(), max_channels(self.version))
        total = limit if most or least else min(total, max_channels(self.version))
        return total, min(peer, total)

    def _gdr(self) -> bool:
        """Whether the NIC nearest to a GPU reaches its memory."""
        t = self.topology
        if t.network in THROUGH_HOST or far_nics(t, self.env):
            return False
        return PATHS.index(t.nic_path_type(0, t.nearest_nic(0))) < PATHS.index("PHB")

    def buffers(self, rank: int, other: int, sends: bool) -> tuple[int, int]:
        """Bytes (GPU, host) of one end of a connection (src/transport: p2p.cc, shm.cc, net.cc).

        The receiver has the buffers; between GPUs of sm 80 over NVLink it reads Simple's at the sender. Through the
        memory of a host all are there, and the NIC finds LL's there. Where a NIC is beside another GPU (PXN), those
        of the sends lie on that one: of a ring each GPU has as many.
        """
        size, everything = self.size, self.size.ll + self.size.ll128 + self.size.simple
        if rank // self.local != other // self.local:
            if not self.direct:
                return 0, everything + 2 * _MEM
            if sends:
                return size.big(size.ll128 + size.simple), size.ll + 2 * _MEM
            return size.big(everything), 2 * _MEM
        path = self.topology.path_type(rank % self.local, other % self.local)
        if PATHS.index(path) > self.level:
            return 0, _MEM + (0 if sends else everything)
        moved = size.simple if path == "NVL" and self.topology.gpu.sm == 80 else 0
        return size.big(_MEM + (moved if sends else everything - moved)), 0

    # -- who is joined with whom ---------------------------------

    def _orders(self, graph: Graph) -> list[tuple[int, ...]]:
        known = [order for order in graph.orders if sorted(order) == list(range(self.local))]
        return known or [tuple(range(self.local))]

    @cached_property
    def _parents(self) -> npt.NDArray[np.int32]:
        orders, pattern = self._orders(self.graphs.tree), self.graphs.tree.pattern.lower()
        pattern = pattern if pattern in ATTACH else "balanced_tree"
        chain = np.array([orders[c % len(orders)] for c in range(self.channels)])
        return rank_trees(self.nodes * self.local, self.local, self.channels, pattern, chain)

    def ring(self, rank: int) -> Iterator[_Connection]:
        """A rank's connections of the rings."""
        node, place = divmod(rank, self.local)
        orders = self._orders(self.graphs.ring)
        for c in range(self.channels):
            order = orders[c % len(orders)]
            at = order.index(place)
            after = node * self.local + order[at + 1] if at + 1 < self.local else None
            before = node * self.local + order[at - 1] if at else None
            if after is None:
                after = (node + 1) % self.nodes * self.local + order[0]
            if before is None:
                before = (node - 1) % self.nodes * self.local + order[-1]
            yield from ((c, 0, after, True), (c, 0, before, False))

    def tree(self, rank: int) -> Iterator[_Connection]:
        """Those of the trees: both ways with the parent and with each child."""
        for c, parent in enumerate(self._parents):
            for other in (*np.flatnonzero(parent == rank).tolist(), int(parent[rank])):
                if other >= 0:
                    yield from ((c, 0, other, True), (c, 0, other, False))

    def nvls_tree(self, rank: int) -> Iterator[_Connection]:
        """Those of a head of NVLSTree with the same head of other nodes (src/graph/connect.cc, connectNvls)."""
        node, place = divmod(rank, self.local)
        if place >= heads(self.system):
            return
        trees = double_binary_tree(self.nodes)
        for c in range(self.nvls):
            tree = 0 if 2 * c < self.nvls else 1
            for other in (int(trees.parent[tree, node]), *trees.children[tree, node].tolist()):
                if other >= 0:
                    peer = other * self.local + place
                    yield from ((c, 0, peer, True), (c, 0, peer, False))

    def pat(self, rank: int) -> Iterator[_Connection]:
        """Those of PAT: both ways with the ranks at distances of powers of two (src/transport/generic.cc)."""
        ranks = self.system.ranks
        distances = [1 << k for k in range((ranks - 1).bit_length())]
        for c in range(self.channels):
            for other in {(rank + sign * d) % ranks for d in distances for sign in (1, -1)}:
                yield from ((c, 0, other, True), (c, 0, other, False))

    def collnet(self, rank: int, *, direct: bool) -> Iterator[_Connection]:
        """Those inside a node of CollNet: along a chain, or of all GPUs with all heads (src/transport/coll_net.cc)."""
        node, place = divmod(rank, self.local)
        graph = self.system.collnet_chain
        assert graph is not None
        orders, first = self._orders(graph), list(range(self.system.collnet_heads))
        for c in range(self.channels):
            order = orders[c % len(orders)]
            at = order.index(place)
            above = [h for h in first if h != place] if direct else list(order[max(0, at - 1) : at])
            below = list(order[at + 1 : at + 2])
            if direct:
                below = [g for g in range(self.local) if g != place] if place in first else []
            for others, back in ((above, False), (below, True)):
                for other in others:
                    peer = node * self.local + other
                    yield from ((c, 0, peer, back), (c, 1, peer, not back))
