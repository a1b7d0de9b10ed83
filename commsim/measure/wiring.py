"""How a topology is laid out on one machine: a namespace per node, a bridge per switch, a cable per pair of links.

Only the network between nodes is built. A bridge forwards by destination alone, so routes must not depend on their
source. Rates are those of the topology's links, in Ethernet frames without preamble; latencies are the kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.graph import Topology
from commsim.topology.kinds import LinkKind, VertexKind

PREFIX = "commsim-tb-"
"""Of the names of all namespaces; nothing else is ever touched."""

FABRIC = f"{PREFIX}fabric"
INTERFACE = "eth0"
MTU = 9000
MOST_NODES = 64

_FRAME = MTU + 14
_QUEUE_BYTES = 16 << 20  # no packet is dropped: the windows of all senders together fit

TCP = {"tcp_congestion_control": "reno", "tcp_limit_output_bytes": str(3 * _FRAME)}
"""How hosts send, whatever the machine is set to (net.ipv4): reno neither paces nor probes for a rate, and a connection
keeps three frames in the queue of its host. With the usual 128 kB and more, of segments of up to 64 KiB, everything
small that a host sends, such as gloo's notice that a receiver waits, stands 5 ms behind its own data at 200 Mb/s."""


@dataclass(frozen=True)
class Cable:
    """Two ends, each (namespace, interface), and the rates in bytes/s from the first to the second and back."""

    ends: tuple[tuple[str, str], tuple[str, str]]
    rates: tuple[float, float]


@dataclass(frozen=True)
class WiringPlan:
    """A testbed before it is built.

    `bridges` names the ports of each bridge; `forwarding` holds (port, node): frames for the node leave there.
    """

    name: str
    nodes: int
    ranks_per_node: int
    cables: tuple[Cable, ...]
    bridges: tuple[tuple[str, ...], ...]
    forwarding: tuple[tuple[str, int], ...]

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        return self.nodes * self.ranks_per_node

    def namespaces(self) -> list[str]:
        """All names, the fabric's last."""
        return [*(namespace(node) for node in range(self.nodes)), FABRIC]

    def description(self) -> dict[str, object]:
        """What must be known to predict it: links with their rates, frame and burst sizes."""
        return {
            "topology": self.name,
            "nodes": self.nodes,
            "switches": len(self.bridges),
            "cables_bytes_per_s": [list(cable.rates) for cable in self.cables],
            "mtu": MTU,
            "tcp": TCP,
            "burst_bytes": [burst_bytes(cable.rates[0]) for cable in self.cables],
            "latency": "of the kernel",
        }


def namespace(node: int) -> str:
    """The namespace of a node."""
    return f"{PREFIX}{node}"


def address(node: int) -> str:
    """The IPv4 address of a node, inside the testbed only."""
    return f"10.77.{(node + 1) >> 8}.{(node + 1) & 255}"


def _mac(node: int) -> str:
    return f"02:77:00:00:{(node + 1) >> 8:02x}:{(node + 1) & 255:02x}"


def burst_bytes(rate: float) -> int:
    """What a shaper lets through at once: 1 ms of its rate, three frames at least.

    Less would lose rate whenever the kernel looks after the queue too late.
    """
    return max(3 * _FRAME, round(rate * 1e-3))


def wiring(topology: Topology) -> WiringPlan:
    """The layout of a topology's network; a TopologyError says why there is none."""
    t = topology
    if t.nodes < 2:
        raise TopologyError(f"{t.name}: a testbed joins nodes, and this is one node; set nodes")
    if t.nodes > MOST_NODES:
        raise TopologyError(f"{t.name}: found {t.nodes} nodes, a testbed has at most {MOST_NODES}")
    if t.nics_per_node != 1:
        raise TopologyError(f"{t.name}: found {t.nics_per_node} NICs per node, gloo uses one; set nics_per_node: 1")
    names = {int(v): f"b{i}" for i, v in enumerate(np.flatnonzero(t.vertex_kind == VertexKind.SWITCH))}
    outer = np.isin(t.link_kind, (LinkKind.NETWORK, LinkKind.FABRIC))
    if t.link_failed is not None:
        outer &= ~t.link_failed
    rates: dict[tuple[int, int], float] = {}
    for link in np.flatnonzero(outer).tolist():
        pair = int(t.link_src[link]), int(t.link_dst[link])
        if pair in rates:
            raise TopologyError(f"{t.name}: {t.vertex_name[pair[0]]} and {t.vertex_name[pair[1]]} share several links")
        rates[pair] = float(t.link_bandwidth[link])
    ports: dict[str, list[str]] = {name: [] for name in names.values()}
    port_to: dict[tuple[int, int], str] = {}
    cables = []
    for a, b in sorted(rates):
        if a > b:
            continue
        ends = []
        for here, there in ((a, b), (b, a)):
            if here in names:
                port = f"p{len(port_to)}"
                port_to[here, there] = port
                ports[names[here]].append(port)
                ends.append((FABRIC, port))
            else:
                ends.append((namespace(int(t.vertex_node[here])), INTERFACE))
        cables.append(Cable((ends[0], ends[1]), (rates[a, b], rates.get((b, a), rates[a, b]))))
    forwarding = _forwarding(t, port_to)
    return WiringPlan(t.name, t.nodes, t.ranks_per_node, tuple(cables), tuple(map(tuple, ports.values())), forwarding)


def _forwarding(t: Topology, port_to: dict[tuple[int, int], str]) -> tuple[tuple[str, int], ...]:
    """(port, destination node) of every switch that a route crosses."""
    chosen: dict[tuple[int, int], str] = {}
    for a in range(t.nodes):
        for b in range(t.nodes):
            if a == b:
                continue
            route = t.route(int(t.node_first_rank[a]), int(t.node_first_rank[b]))
            for link in route.tolist():
                here, there = int(t.link_src[link]), int(t.link_dst[link])
                port = port_to.get((here, there))
                if port is not None and chosen.setdefault((here, b), port) != port:
                    raise TopologyError(
                        f"{t.name}: frames for node {b} leave {t.vertex_name[here]} by different ports, depending on "
                        "where they come from; a bridge knows only where they go (set spines: 1, or one plane)"
                    )
    return tuple((port, b) for (_, b), port in sorted(chosen.items()))


def commands(w: WiringPlan) -> list[tuple[tuple[str, ...], list[str]]]:
    """What builds a testbed, in order: a program with its arguments, and the lines of its batch.

    Namespaces first, then cables, which are made where they belong, so that nothing is ever seen outside.
    """
    cables, fabric, ports = list[str](), list[str](), list[str]()
    shapers: dict[str, list[str]] = {name: [] for name in w.namespaces()}
    for cable in w.cables:
        (a, first), (b, second) = cable.ends
        cables.append(f"link add {first} netns {a} type veth peer name {second} netns {b}")
        for (name, interface), rate in zip(cable.ends, cable.rates, strict=True):
            shapers[name].append(
                f"qdisc add dev {interface} root tbf rate {round(rate * 8)}bit "
                f"burst {burst_bytes(rate)} limit {_QUEUE_BYTES}"
            )
    for i, bridge in enumerate(w.bridges):
        fabric += [f"link add b{i} type bridge mcast_snooping 0", f"link set b{i} mtu {MTU}"]
        for port in bridge:
            fabric += [f"link set {port} mtu {MTU}", f"link set {port} master b{i}", f"link set {port} up"]
            ports.append(f"link set dev {port} learning off flood off mcast_flood off bcast_flood off")
        fabric.append(f"link set b{i} up")
    ports += [f"fdb add {_mac(node)} dev {port} master static" for port, node in w.forwarding]
    steps: list[tuple[tuple[str, ...], list[str]]] = [
        (("ip", "-batch", "-"), [f"netns add {name}" for name in w.namespaces()]),
        (("ip", "-batch", "-"), cables),
        (("ip", "-n", FABRIC, "-batch", "-"), fabric),
        (("bridge", "-n", FABRIC, "-batch", "-"), ports),
    ]
    for node in range(w.nodes):
        lines = ["link set lo up", f"link set {INTERFACE} mtu {MTU} gso_max_segs 1 address {_mac(node)}"]
        lines += [f"addr add {address(node)}/16 dev {INTERFACE}", f"link set {INTERFACE} up"]
        lines += [
            f"neigh add {address(other)} lladdr {_mac(other)} dev {INTERFACE} nud permanent"
            for other in range(w.nodes)
            if other != node
        ]
        steps.append((("ip", "-n", namespace(node), "-batch", "-"), lines))
        settings = [f"echo {value} > /proc/sys/net/ipv4/{name}" for name, value in TCP.items()]
        steps.append((("ip", "netns", "exec", namespace(node), "sh", "-e"), settings))
    steps += [(("tc", "-n", name, "-batch", "-"), lines) for name, lines in shapers.items()]
    return steps
