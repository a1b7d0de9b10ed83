"""Where the endpoints of a schedule that are no ranks lie on a topology, and their routes.

* A switch of NVLS is the NVSwitch of the node whose ranks it serves; NVSwitches add from Hopper on. NVLSTree needs two
  nodes, as with NCCL (src/graph/tuning.cc): on one it would be NVLS on halves of each block.
* A switch of SHARP or CollNet is a switch of a fabric that says that its switches add (``in_network_reduction``): the
  nearest one to all leaves at which the ranks that talk to it enter, or, for a switch that talks to switches only, to
  those below it. A tree that follows the cabling (`commsim.topology.aggregation.SwitchTree`) so lies on itself.
* A parameter server runs on the first host CPU of node 0, which the ranks of the node reach over PCIe, and other nodes
  through its NICs.

One row is one copy on each link of its way: a rank's store that a switch multicasts goes up once, and down once to each
receiver; what ranks add in a switch goes up once from each and down once as the sum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commsim.collectives.registry import entry
from commsim.collectives.schedule import Schedule
from commsim.errors import ScheduleError, TopologyError
from commsim.topology.aggregation import common_switch, needs_adding_switches
from commsim.topology.graph import Topology
from commsim.topology.kinds import Int32, Int64, VertexKind
from commsim.topology.ways import WayFinder

_NVLS_SM = 90


def place(schedule: Schedule, topology: Topology) -> Int64:
    """The vertex of every endpoint, (endpoints,); a ScheduleError says why an algorithm is not applicable here."""
    n = schedule.world_size
    vertex = np.full(schedule.endpoints, -1, np.int64)
    vertex[:n] = topology.rank_vertex[:n]
    if schedule.endpoints == n:
        return vertex
    known_algorithm = entry(schedule.collective, schedule.algorithm)
    nodes = np.unique(topology.rank_node[:n]).size
    if nodes < known_algorithm.least_nodes:
        raise ScheduleError(
            f"{schedule.algorithm} {schedule.collective} is not applicable, because it runs on "
            f"{known_algorithm.least_nodes} nodes or more, and the ranks are on {nodes}"
        )
    where = known_algorithm.adds_in
    placers = {"nvswitch": _nvswitch, "network": _network, "server": _server}
    if where not in placers:
        raise ScheduleError(
            f"{schedule.algorithm} {schedule.collective} has {schedule.endpoints - n} endpoints beside its {n} ranks, "
            "and nothing says what they are"
        )
    known = np.unique(schedule.src.astype(np.int64) * schedule.endpoints + schedule.dst)
    src, dst = np.divmod(known, schedule.endpoints)
    ways = WayFinder(topology)
    try:
        for e in range(n, schedule.endpoints):
            peers = np.unique(np.concatenate([src[dst == e], dst[src == e]]))
            vertex[e] = placers[where](peers[peers < e], vertex, topology, ways)
    except TopologyError as reason:
        raise ScheduleError(f"{schedule.algorithm} {schedule.collective} is not applicable, because {reason}") from None
    return vertex


def _nvswitch(peers: Int64, vertex: Int64, topology: Topology, _: WayFinder) -> int:
    nodes = np.unique(topology.vertex_node[vertex[peers]])
    if nodes.size > 1:
        raise TopologyError(f"an NVSwitch reaches the ranks of one node, and these are on {nodes.size}")
    gpu = topology.group_of(int(peers[0])).gpu
    inside = slice(*topology.node_first_vertex[[nodes[0], nodes[0] + 1]])
    switches = np.flatnonzero(topology.vertex_kind[inside] == VertexKind.NVSWITCH)
    if not switches.size:
        raise TopologyError(f"the nodes of {topology.name} have no NVSwitch")
    if gpu.sm < _NVLS_SM:
        raise TopologyError(f"the NVSwitches of {topology.name} do not add: the {gpu.model} is older than Hopper")
    if switches.size > 1:
        raise TopologyError(
            f"the nodes of {topology.name} have {switches.size} NVSwitches, and it needs one vertex for all"
        )
    return int(topology.node_first_vertex[nodes[0]] + switches[0])


def _network(peers: Int64, vertex: Int64, topology: Topology, ways: WayFinder) -> int:
    needs_adding_switches(topology)
    ranks = peers[vertex[peers] < topology.node_first_vertex[-1]]
    if ranks.size:
        return common_switch(topology, {ways.leaf(int(r)) for r in ranks})
    return common_switch(topology, {int(v) for v in vertex[peers]})


def _server(_peers: Int64, _vertex: Int64, topology: Topology, _: WayFinder) -> int:
    hosts = np.flatnonzero(topology.vertex_kind[: topology.node_first_vertex[1]] == VertexKind.HOST)
    if not hosts.size:
        raise TopologyError(f"the nodes of {topology.name} have no host CPU that could be the server")
    return int(hosts[0])


def routes(
    schedule: Schedule, topology: Topology, src: Int64, dst: Int64, flowlet: Int64
) -> tuple[Int64, Int32, Int32]:
    """Routes between endpoints: (ptr, links) and the route of each pair ``(src[k], dst[k])``, as in `RouteTable`.

    `flowlet` counts between ranks; what is no rank has one way.
    """
    n = schedule.world_size
    among = (src < n) & (dst < n)
    table = topology.routes(src[among].astype(np.int32), dst[among].astype(np.int32), flowlet=flowlet[among])
    if among.all():
        return table.ptr, table.link, table.index
    vertex, way = place(schedule, topology), WayFinder(topology)
    paths = [way.links(int(vertex[a]), int(vertex[b])) for a, b in zip(src[~among], dst[~among], strict=True)]
    index = np.empty(src.size, np.int32)
    index[among] = table.index
    index[~among] = table.ptr.size - 1 + np.arange(len(paths))
    lengths = np.array([len(links) for links in paths], np.int64)
    links: npt.NDArray[np.int32] = np.array([link for way in paths for link in way], np.int32)
    return np.append(table.ptr, table.ptr[-1] + np.cumsum(lengths)), np.append(table.link, links), index
