"""What NCCL finds on a machine: its graphs, and the number of channels that they give (`commsim.nccl.system`).

The search is that of `commsim.nccl.search`, over the links of one node as `commsim.nccl.view` counts them. A graph
file or a debug log of the machine itself (`commsim.nccl.graph_xml`, `commsim.nccl.debug_log`) gives the same inputs
without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

from commsim.errors import TopologyError
from commsim.nccl.communicator import Comm
from commsim.nccl.environment import PATHS, whole
from commsim.nccl.system import NVLS_CHUNK, PATTERNS, Graph, System
from commsim.nccl.version import Version
from commsim.topology.graph import Topology

if TYPE_CHECKING:
    from commsim.nccl.graph_file import GraphFile
    from commsim.nccl.system import Solution
    from commsim.nccl.view import NodeView


def max_channels(version: Version) -> int:
    """MAXCHANNELS of src/include/device.h."""
    return 64 if version >= (2, 25, 0) else 32


def discover(
    topology: Topology, version: Version, env: dict[str, str] | None = None, given: GraphFile | None = None
) -> System:
    """The system that NCCL would find on a topology: graphs, path types and the number of collective channels.

    `env` are the variables of the job (`commsim.nccl.environment`): channel counts are clipped, paths and NICs
    restricted as they say. Graphs that are `given` are not searched; TopologyError where they are of another node.
    """
    env = env or {}
    nodes, sm = topology.nodes, topology.gpu.sm
    if nodes > 1 and topology.nics_per_node == 0:
        raise TopologyError(f"{topology.name} has {nodes} nodes but no NIC; expected nics_per_node of at least 1")
    graphs: dict[str, Graph | None] = {}
    channels = None
    names = _names(topology, env)
    if given is not None:
        if misfit := given.misfit(topology.ranks_per_node, nodes):
            raise TopologyError(misfit)
        # NCCL looks for graphs of CollNet and NVLS before it knows whether the job may use them.
        no_nvls = _without_nvls(topology, version, env)
        graphs = {k: None if k == "nvls" and no_nvls else v for k, v in given.graphs if k in names}
        channels = given.coll_channels
    if not names <= graphs.keys():
        graphs = {**_graphs(topology, version, env), **graphs}
    ring, tree = graphs["ring"], graphs["tree"]
    assert ring is not None
    assert tree is not None
    collnet = graphs.get("collnet_chain") is not None
    return System(
        ranks=topology.world_size,
        nodes=nodes,
        sm=sm,
        cpu_vendor=topology.cpu.vendor,
        cpu_arch=topology.cpu.arch,
        intra_type=ring.intra_type,
        inter_type=ring.inter_type,
        nic_latency_us=_PLUGIN_LATENCY_US.get(topology.network, 0.0) if nodes > 1 else 0.0,
        ring=ring,
        tree=tree,
        nvls=graphs.get("nvls"),
        coll_channels=_coll_channels(graphs, channels, topology, version, env),
        nvls_chunk=whole(env, "NCCL_NVLS_CHUNKSIZE") or NVLS_CHUNK,
        nvls_tree_chunk=whole(env, "NCCL_NVLSTREE_MAX_CHUNKSIZE") or None,
        collnet_direct=graphs.get("collnet_direct"),
        collnet_chain=graphs.get("collnet_chain"),
        collnet=collnet,
        nvswitch=topology.has_nvswitch,
    )


def joined(systems: Sequence[System], comm: Comm, version: Version, env: dict[str, str]) -> System:
    """What the communicator has where each kind of node found its own: the least of all (src/init.cc).

    Of channels and speeds the fewest and slowest, of paths the farthest, of GPUs the oldest; a graph that some node
    does not find is nobody's.
    """
    first, nodes = systems[0], int(comm.nodes.size)
    if len(systems) == 1:
        return replace(first, ranks=comm.ranks, nodes=nodes)
    graphs = {name: _least([getattr(system, name) for system in systems]) for name in _GRAPHS}
    ring, tree = graphs["ring"], graphs["tree"]
    assert ring is not None  # every node has a ring and a tree
    assert tree is not None
    channels = min(ring.channels, tree.channels)
    graphs |= {"ring": ring.first(channels), "tree": tree.first(channels)}
    oldest = min(comm.kinds, key=lambda kind: kind.gpu.sm)
    return System(
        ranks=comm.ranks,
        nodes=nodes,
        sm=oldest.gpu.sm,
        cpu_vendor=first.cpu_vendor,
        cpu_arch=first.cpu_arch,
        intra_type=ring.intra_type,
        inter_type=ring.inter_type,
        nic_latency_us=max(system.nic_latency_us for system in systems),
        ring=ring.first(channels),
        tree=tree.first(channels),
        nvls=graphs["nvls"],
        coll_channels=_coll_channels(graphs, None, oldest, version, env),
        nvls_chunk=first.nvls_chunk,
        nvls_tree_chunk=first.nvls_tree_chunk,
        collnet_direct=graphs["collnet_direct"],
        collnet_chain=graphs["collnet_chain"],
        collnet=graphs["collnet_chain"] is not None,
        nvswitch=all(system.nvswitch for system in systems),
        mixed_gpus=len({kind.gpu.sm for kind in comm.kinds}) > 1,
    )


def of_kind(own: System, system: System, ranks_per_node: int) -> System:
    """A node's own graphs, cut to the channels that the communicator has, in a system of nodes like it."""
    cut = {name: graph.first(system.ring.channels) for name in ("ring", "tree") if (graph := getattr(own, name))}
    return replace(system, **{**cut, "ranks": system.nodes * ranks_per_node})


_GRAPHS = ("ring", "tree", "nvls", "collnet_chain", "collnet_direct")


def _least(graphs: Sequence[Graph | None]) -> Graph | None:
    """The graph of all nodes: the least of each figure; None where a node has none."""
    some = [graph for graph in graphs if graph is not None]
    if len(some) < len(graphs):
        return None
    fewest = min(some, key=lambda graph: graph.channels)
    return replace(
        fewest,
        intra_gbps=min(graph.intra_gbps for graph in some),
        inter_gbps=min(graph.inter_gbps for graph in some),
        intra_type=max((graph.intra_type for graph in some), key=PATHS.index),
        inter_type=max((graph.inter_type for graph in some), key=PATHS.index),
        same_channels=all(graph.same_channels for graph in some),
        cross_nic=max(graph.cross_nic for graph in some),
        pattern=max((graph.pattern for graph in some), key=_PATTERN_NUMBER.__getitem__),
    )


_PATTERN_NUMBER = {name: number for number, name in PATTERNS.items()}

_PLUGIN_LATENCY_US = {"efa": 10.0}
"""The ``latency`` property a network plugin reports; IB verbs reports none (accuracy-study: EFA about 10 us)."""

_T = TypeVar("_T")

_MOST_KEPT = 256
_KEPT: dict[tuple[object, ...], dict[str, Graph | None]] = {}
_SEARCHED: dict[tuple[object, ...], Solution] = {}
_VIEWS: dict[tuple[object, ...], NodeView] = {}
_OWN_NICS: dict[tuple[object, ...], tuple[int, ...]] = {}


def _graphs(topology: Topology, version: Version, env: dict[str, str]) -> dict[str, Graph | None]:
    """The searched graphs by name; equal nodes are searched once."""
    return _kept(_KEPT, _seen(topology, version, env), lambda: _search_all(topology, version, env))


def own_nics(topology: Topology, version: Version, env: dict[str, str]) -> tuple[int, ...]:
    """The NICs of a node that NCCL gives its ranks for sends, in turn (src/graph/topo.cc, ncclTopoGetLocalNet)."""

    def nics() -> tuple[int, ...]:
        view = _view(topology, version, env)
        turns = zip_longest(*(view.local_nets(gpu) for gpu in range(view.gpus)))
        return tuple(view.nics[net] for net in dict.fromkeys(chain.from_iterable(turns)) if net is not None)

    return _kept(_OWN_NICS, _seen(topology, version, env), nics)


def _view(topology: Topology, version: Version, env: dict[str, str]) -> NodeView:
    """How NCCL sees a node; equal nodes are looked at once."""
    from commsim.nccl.view import view_of

    return _kept(_VIEWS, _seen(topology, version, env), lambda: view_of(topology, version, env))


def _kept(known: dict[tuple[object, ...], _T], key: tuple[object, ...], find: Callable[[], _T]) -> _T:
    """What is known, or found now; a full memory begins anew."""
    if key not in known:
        if len(known) >= _MOST_KEPT:
            known.clear()
        known[key] = find()
    return known[key]


def _seen(topology: Topology, version: Version, env: dict[str, str]) -> tuple[object, ...]:
    """What NCCL sees of a node: equal ones have the same graphs."""
    asked = tuple(env.get(name, "") for name in _SEARCH_ENV)
    # Links to the fabric are no part of the search, and their far ends are numbered anew for other numbers of nodes.
    inside = slice(*topology.node_first_link[:2].tolist())
    return (
        topology.gpu,
        topology.cpu,
        topology.network,
        topology.in_network_reduction,
        topology.nic_bandwidth if topology.nodes > 1 else None,
        topology.nvlink_link_bandwidth,
        topology.rank_vertex[: topology.ranks_per_node].tobytes(),
        topology.link_src[inside].tobytes(),
        topology.link_dst[inside].tobytes(),
        topology.link_kind[inside].tobytes(),
        topology.link_bandwidth[inside].tobytes(),
        None if topology.link_failed is None else topology.link_failed[inside].tobytes(),
        topology.usable_nics[0].tobytes() if topology.nodes > 1 else None,
        topology.node_gdr is None or bool(topology.node_gdr[0]),
        version,
        asked,
    )


_SEARCH_ENV = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PXN_DISABLE",
    "NCCL_CROSS_NIC",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
)


def _search_all(topology: Topology, version: Version, env: dict[str, str]) -> dict[str, Graph | None]:
    from commsim.nccl.search import search

    view = _view(topology, version, env)
    crossing = whole(env, "NCCL_CROSS_NIC")
    cross = 2 if crossing is None else crossing
    # Machines that differ in what NCCL does not look at, and settings that come to the same, give the same view.
    looks = repr(view)

    def graph(pattern: str, least: int, most: int) -> Graph | None:
        key = looks, pattern, version, least, most, cross
        solution = _kept(
            _SEARCHED, key, lambda: search(view, pattern, version, least=least, most=most, cross_nic=cross)
        )
        if not solution.channels:
            return None
        return Graph(
            channels=solution.channels,
            intra_gbps=solution.intra,
            inter_gbps=solution.inter,
            pattern=solution.pattern,
            intra_type=PATHS[solution.type_intra],
            inter_type=PATHS[solution.type_inter],
            same_channels=solution.same,
            cross_nic=solution.cross_nic,
            orders=tuple(map(tuple, solution.orders)),
            nics=tuple((view.nics[a], view.nics[b]) for a, b in solution.nets) if view.nics else (),
        )

    limit = max_channels(version)
    ring = graph("RING", 1, limit // 2)
    assert ring is not None  # the simple order is always there
    tree = graph("BALANCED_TREE", ring.channels, ring.channels)
    assert tree is not None  # the same
    searched = ring.channels
    # Where no tree of as many channels fits, one channel is left, of the ring too (src/init.cc, initTransportsRank).
    graphs: dict[str, Graph | None] = {"ring": ring.first(tree.channels), "tree": tree.first(searched)}
    reduces = view.gpus > 2 and not _without_nvls(topology, version, env)
    graphs["nvls"] = graph("NVLS", 1, limit) if reduces else None
    if "collnet_chain" in _names(topology, env):
        graphs["collnet_chain"] = graph("TREE", 1, searched)
        graphs["collnet_direct"] = graph("COLLNET_DIRECT", 1, limit)
    return graphs


def _names(topology: Topology, env: dict[str, str]) -> set[str]:
    """The graphs that a job has a use for."""
    asked = whole(env, "NCCL_COLLNET_ENABLE") == 1
    reduces = asked and topology.nodes > 1 and topology.in_network_reduction and topology.ranks_per_node <= 8
    return {"ring", "tree", "nvls"} | ({"collnet_chain", "collnet_direct"} if reduces else set())


def _without_nvls(topology: Topology, version: Version, env: dict[str, str]) -> bool:
    if version < (2, 17, 0) or (version < (2, 18, 0) and topology.nodes > 1):  # src/transport/nvls.cc
        return True
    return whole(env, "NCCL_NVLS_ENABLE") == 0 or whole(env, "NCCL_P2P_DISABLE") == 1


def _coll_channels(
    graphs: dict[str, Graph | None], logged: int | None, topology: Topology, version: Version, env: dict[str, str]
) -> int:
    """The number of collective channels (src/graph/connect.cc, ncclTopoPostset); what a log says of them holds.

    This job's variables bound it either way.
    """
    limit = max_channels(version)
    channels = logged or _channels_of(graphs, topology, version)
    most = whole(env, "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
    least = whole(env, "NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
    if most:
        channels = min(channels, most)
    if least:
        channels = max(channels, min(least, limit))
    return max(1, min(channels, limit))


_FEW_CHANNELS = 16
"""Fewer than so many are doubled on Hopper and for networks that unpack on the GPU."""


def _channels_of(graphs: dict[str, Graph | None], topology: Topology, version: Version) -> int:
    """Twice those searched, half as many again for SHARP, and twice those for Hopper and for GPUDirect-TCPX."""
    ring, chain = graphs["ring"], graphs.get("collnet_chain")
    assert ring is not None
    limit, sm, several = max_channels(version), topology.gpu.sm, topology.nodes > 1
    channels = min(limit, 2 * ring.channels)
    if chain is not None and chain.intra_gbps > chain.inter_gbps and topology.ranks_per_node > 1:
        channels = min(limit, channels + channels // 2)
    hopper = sm == 90 or (sm > 90 and version >= (2, 25, 0))
    if several and hopper and version >= (2, 18, 0) and ring.intra_gbps > 45.0:
        few = channels < _FEW_CHANNELS if version >= (2, 20, 0) else 2 * channels <= limit
        channels *= 2 if few else 1
    if several and topology.network == "tcpx" and version >= (2, 22, 0) and channels < _FEW_CHANNELS:
        channels *= 2
    return channels
