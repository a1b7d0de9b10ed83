"""What the links of a way take to pass a bit on, where a fault or a long line makes that longer than NCCL's hop.

A hop of NCCL is a parameter of the network (`NetworkParameters.ring_hop`), measured over ordinary links and holding
their latencies. No hop is shorter than the links of its own way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commsim.nccl.communicator import Comm
from commsim.nccl.system import Graph
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64


def inside_s(topology: Topology) -> tuple[float, float]:
    """Seconds of the links on the longest way between two GPUs of the first node, and from a GPU to a NIC and back."""
    routes = topology.groups[int(topology.node_group[0])].node_routes
    own = topology.link_latency[int(topology.node_first_link[0]) :]
    tables = routes.gpu_gpu, routes.gpu_nic, routes.nic_gpu
    way, out, back = (
        float(np.where(table >= 0, own[np.maximum(table, 0)], 0.0).sum(axis=-1).max(initial=0.0)) for table in tables
    )
    return way, out + back


def longest_s(topology: Topology) -> float:
    """Seconds that the links between two NICs never exceed."""
    t = topology
    if t.nodes < 2:
        return 0.0
    first, last = np.zeros(1, np.int64), np.array([t.nodes - 1])
    hops = 2 + t.fabric.between(first, first, last, first).shape[1]
    return float(hops * t.link_latency[int(t.node_first_link[-1]) :].max())


def between_s(comm: Comm, graphs: Sequence[Graph], src: Int64, dst: Int64) -> Float64:
    """Seconds of the links from NIC to NIC on the longest way that a channel takes over each edge, (edges,)."""
    from commsim.nccl.streams import stream_ways

    ways = stream_ways(comm, graphs, src, dst)
    each = np.where(ways.links >= 0, comm.topology.link_latency[np.maximum(ways.links, 0)], 0.0).sum(axis=1)
    out = np.zeros(src.size)
    np.maximum.at(out, ways.edge, each)
    return out
