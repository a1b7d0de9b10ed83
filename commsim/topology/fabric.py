"""A fabric with every figure stated: defaults filled in, what does not apply refused, switch ports counted.

Latency: a port link carries one NIC with its cable and half a switch, a link between switches one switch and its
cable. So a route over one leaf pays two NICs and one switch, and a route over a spine two NICs, three switches and
two cables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from commsim.errors import TopologyError
from commsim.topology.fabric_routes import PathChoice
from commsim.topology.spec import FabricSpec, RouteSpec

# NVIDIA Quantum (QM8700, QM9700) product pages: under 130-150 ns port to port.
SWITCH_LATENCY_S = 0.15e-6
# 20 m of fibre between rows at 5 ns/m.
CABLE_LATENCY_S = 0.1e-6
# DGX SuperPOD reference architecture (H100): scalable units of 32 systems, one leaf per rail in each.
NODES_PER_LEAF = 32
# Slingshot: 16 of the 64 ports of a Rosetta switch go to nodes, and at most 32 switches make a group
# (De Sensi et al., "An In-Depth Analysis of the Slingshot Interconnect", SC20).
EDGE_PORTS = 16
# What NCCL hands to a NIC at a time: one of the eight slots of a connection's 4 MiB, after which it has to wait for the
# next to be filled. At gaps of 500 us half of a data centre's bytes were in flowlets of up to about as much (Alizadeh
# et al., "CONGA", SIGCOMM 2014, section 2.6.1).
FLOWLET_BYTES = 512 << 10
LEAVES_PER_GROUP = 32

_TREES = {"fat_tree", "rail_fat_tree", "rail_only"}
_RAILS = {"rail_fat_tree", "rail_only"}
_APPLIES = {
    "spines": _TREES,
    "levels": _TREES,
    "leaves_per_pod": _TREES,
    "cores": _TREES,
    "core_oversubscription": _TREES,
    "ports": _TREES,
    "rails": _RAILS,
    "planes": {"fat_tree", "rail_fat_tree", "single_switch"},
    "nodes_per_leaf": _TREES | {"dragonfly", "single_switch"},
    "oversubscription": _TREES | {"single_switch"},
    "link_bandwidth": {"dragonfly", "torus"},
    "leaves_per_group": {"dragonfly"},
    "global_links": {"dragonfly"},
    "global_bandwidth": {"dragonfly"},
    "global_latency": {"dragonfly"},
    "dimensions": {"torus"},
}

PLUGIN_NETWORKS = {"aws-ofi-nccl": {"efa", "efa_v1"}, "gib": {"roce"}, "tcpxo": {"tcpx"}, "tcpx": {"tcpx"}}
"""Networks that NCCL's plugins are for."""


@dataclass(frozen=True)
class Fabric:
    """A fabric with every figure stated; bandwidths in bytes/s, latencies in seconds, 0 where not applicable.

    `lanes` is the number of switches below which the NICs of one node are spread: its rails, or its planes.
    ``spines`` are those of one pod and plane, ``cores`` those of one plane.
    """

    kind: str
    network: str
    plugin: str
    in_network_reduction: bool
    routing: str
    hash_seed: int
    flowlet_bytes: int
    routes: tuple[RouteSpec, ...]
    switch_latency: float
    cable_latency: float
    nodes_per_leaf: int
    oversubscription: float
    spines: int
    leaves_per_pod: int
    cores: int
    core_oversubscription: float
    lanes: int
    planes: int
    link_bandwidth: float | None
    leaves_per_group: int
    global_links: int | None
    global_bandwidth: float | None
    global_latency: float
    dimensions: tuple[int, ...]

    @property
    def by_rail(self) -> bool:
        """Whether a leaf holds one rail."""
        return self.kind in _RAILS

    @property
    def keeps_rails(self) -> bool:
        """Whether messages change rails inside a node, over NVLink, and never in the fabric."""
        return self.kind == "rail_only" or self.routing == "rail"

    def cables(self, nodes: int, nics: int) -> int:
        """Number of links between switches for `nodes` nodes of `nics` NICs, about."""
        if self.kind == "torus":
            return nodes * len(self.dimensions)
        leaves = -(-nodes // self.nodes_per_leaf)
        if self.kind == "dragonfly":
            groups = -(-leaves // self.leaves_per_group)
            edge = self.leaves_per_group * self.nodes_per_leaf * nics
            across = groups**2 * (self.global_links or edge // max(groups - 1, 1)) // 2
            return leaves * self.leaves_per_group // 2 + across * (groups > 1)
        if leaves == 1:
            return 0
        pods = -(-leaves // (self.leaves_per_pod or leaves))
        return leaves * self.lanes * self.spines + (pods * self.planes * self.cores if pods > 1 else 0)

    @property
    def hop_latency(self) -> float:
        """Seconds of a link between two switches: one switch and its cable."""
        return self.switch_latency + self.cable_latency

    def choice(self, period: int, nodes: int) -> PathChoice:
        """How this fabric chooses among equal paths."""
        flowlets = self.routing == "flowlet"
        return PathChoice(flowlets or self.routing == "ecmp", self.hash_seed, period, nodes, flowlets)


def fabric_of(spec: FabricSpec | None, nodes: int, nics: int, name: str) -> Fabric:
    """The fabric of a description for `nodes` nodes of at most `nics` NICs; a single switch where none is described."""
    spec = spec or FabricSpec()
    kind = spec.kind or "single_switch"
    _check_fields(spec, kind, name)
    routing = spec.routing or ("rail" if kind == "rail_only" else "shortest")
    _check_routing(spec, kind, routing, name)
    lanes, planes = _lanes(spec, kind, nics, name)
    cable = CABLE_LATENCY_S if spec.cable_latency is None else spec.cable_latency
    fabric = Fabric(
        kind=kind,
        network=spec.network or "infiniband",
        plugin=spec.plugin or "none",
        in_network_reduction=bool(spec.in_network_reduction),
        routing=routing,
        hash_seed=spec.hash_seed or 0,
        flowlet_bytes=spec.flowlet_size or FLOWLET_BYTES,
        routes=tuple(spec.routes or ()),
        switch_latency=SWITCH_LATENCY_S if spec.switch_latency is None else spec.switch_latency,
        cable_latency=cable,
        nodes_per_leaf=_nodes_per_leaf(spec, kind, nodes, nics),
        oversubscription=spec.oversubscription or 1.0,
        spines=spec.spines or 1,
        leaves_per_pod=spec.leaves_per_pod or (NODES_PER_LEAF if spec.levels == 3 else 0),
        cores=spec.cores or spec.spines or 1,
        core_oversubscription=spec.core_oversubscription or 1.0,
        lanes=lanes,
        planes=planes,
        link_bandwidth=spec.link_bandwidth,
        leaves_per_group=spec.leaves_per_group or LEAVES_PER_GROUP,
        global_links=spec.global_links,
        global_bandwidth=spec.global_bandwidth,
        global_latency=cable if spec.global_latency is None else spec.global_latency,
        dimensions=_dimensions(spec.dimensions, nodes, name) if kind == "torus" else (),
    )
    if spec.ports is not None:
        fabric = _of_ports(fabric, spec, spec.ports, nodes, nics, name)
    if spec.levels == 3 and fabric.cores % fabric.spines:
        raise TopologyError(
            f"{name}: fabric.cores: {fabric.cores} cores cannot be shared evenly by {fabric.spines} spines of a pod"
        )
    # Even spreading over equal paths is one link of all their bandwidth.
    return replace(fabric, spines=1, cores=1) if routing == "spray" else fabric


def of_fewer_nics(spec: FabricSpec, nics: int, full: int, name: str) -> FabricSpec:
    """A description stated for nodes of `full` NICs, for nodes of which so many are used: uplinks go with the NICs.

    A leaf keeps as many spines for each NIC below it, at least one. Else the uplinks of a few NICs would be slices of a
    cable, and a path over one of them slower than any real one.
    """
    kind = spec.kind or "single_switch"
    if spec.spines is None or nics >= full or kind not in _TREES:
        return spec
    below, stated = (-(-count // _lanes(spec, kind, count, name)[0]) for count in (nics, full))
    spines = max(1, spec.spines * max(below, 1) // stated)
    cores = None if spec.cores is None else max(1, spec.cores // spec.spines) * spines
    return spec.model_copy(update={"spines": spines, "cores": cores})


def applicable(spec: FabricSpec, kind: str) -> FabricSpec:
    """A description without the fields that a fabric of this kind does not have."""
    fields = {k: v for k, v in spec if k in spec.model_fields_set and kind in _APPLIES.get(k, {kind})}
    return FabricSpec.model_construct(set(fields), **fields)


def _check_fields(spec: FabricSpec, kind: str, name: str) -> None:
    for field, kinds in _APPLIES.items():
        if getattr(spec, field) is not None and kind not in kinds:
            raise TopologyError(f"{name}: fabric.{field} belongs to {_either(kinds)}; found kind {kind}")
    if spec.levels != 3:
        for field in ("leaves_per_pod", "cores", "core_oversubscription"):
            if getattr(spec, field) is not None:
                raise TopologyError(f"{name}: fabric.{field} belongs to a tree of levels: 3")
    if spec.in_network_reduction and spec.network not in {"infiniband", None}:
        raise TopologyError(
            f"{name}: fabric.in_network_reduction is SHARP, of InfiniBand switches; found network {spec.network}"
        )
    networks = PLUGIN_NETWORKS.get(spec.plugin or "none")
    if networks and (spec.network or "infiniband") not in networks:
        raise TopologyError(
            f"{name}: fabric.plugin: {spec.plugin} is for network {_either(networks)}; "
            f"found network {spec.network or 'infiniband'}"
        )
    if kind == "single_switch" and (spec.oversubscription or 1) != 1:
        raise TopologyError(
            f"{name}: a single switch is never oversubscribed, found {spec.oversubscription:g}; "
            "set fabric.kind to fat_tree or rail_fat_tree"
        )


def _either(names: set[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} or {last}" if others else last


def _check_routing(spec: FabricSpec, kind: str, routing: str, name: str) -> None:
    if routing == "spray" and kind == "torus":
        raise TopologyError(
            f"{name}: fabric.routing: the equal paths of a torus cannot be merged into one; "
            "shortest, ecmp and flowlet are possible"
        )
    if kind == "rail_only" and routing not in {"rail", "ecmp", "flowlet", "spray"}:
        raise TopologyError(f"{name}: fabric.routing: found {routing}, but rail_only changes rails inside a node")
    if spec.flowlet_size is not None and routing != "flowlet":
        raise TopologyError(f"{name}: fabric.flowlet_size belongs to routing: flowlet; found routing {routing}")
    if (routing == "static") != bool(spec.routes):
        raise TopologyError(f"{name}: fabric.routing: static and fabric.routes belong together; found only one of them")


def _lanes(spec: FabricSpec, kind: str, nics: int, name: str) -> tuple[int, int]:
    """(lanes, planes); rails and planes beyond the number of NICs would stay empty and are not built."""
    most = max(nics, 1)
    if kind in _RAILS:
        rails = min(spec.rails or most, most)
        planes = rails if kind == "rail_only" else min(spec.planes or 1, rails)
        if rails % planes:
            raise TopologyError(
                f"{name}: fabric.planes: {rails} rails of {nics} NICs per node do not divide into {planes} planes"
            )
        return rails, planes
    planes = min(spec.planes or 1, most)
    return planes, planes


def _nodes_per_leaf(spec: FabricSpec, kind: str, nodes: int, nics: int) -> int:
    if kind == "single_switch":
        return nodes
    if kind == "torus":
        return 1
    default = max(1, EDGE_PORTS // max(nics, 1)) if kind == "dragonfly" else NODES_PER_LEAF
    return spec.nodes_per_leaf or default


def _of_ports(fabric: Fabric, spec: FabricSpec, ports: int, nodes: int, nics: int, name: str) -> Fabric:
    """A tree of switches of `ports` ports each: ports / (1 + oversubscription) of them up at each level.

    Two levels of one port per node hold ports**2 / 2 nodes, three levels ports**3 / 4 (Al-Fares et al., "A Scalable,
    Commodity Data Center Network Architecture", SIGCOMM 2008, section 2.2, without and with the third level).
    """
    up = _up(ports, fabric.oversubscription, name, "oversubscription")
    per_node = max(1, -(-nics // fabric.lanes))
    side = fabric.lanes // fabric.planes
    per_leaf = (ports - up) // per_node
    if not per_leaf:
        raise TopologyError(f"{name}: fabric.ports: {ports - up} ports down do not hold {per_node} NICs of one node")
    per_leaf = spec.nodes_per_leaf or per_leaf
    top = ports // side
    sized = replace(fabric, nodes_per_leaf=per_leaf, spines=spec.spines or up)
    if spec.levels == 3:
        core_up = _up(ports, fabric.core_oversubscription, name, "core_oversubscription")
        per_pod = spec.leaves_per_pod or max(1, (ports - core_up) // side)
        sized = replace(sized, leaves_per_pod=per_pod, cores=spec.cores or sized.spines * core_up)
        top = ports * per_pod
    if per_leaf * per_node + up > ports or nodes > per_leaf * top:
        raise TopologyError(
            f"{name}: fabric.ports: switches of {ports} ports hold {per_leaf * top} nodes of {nics} NICs in "
            f"{spec.levels or 2} levels, {min(per_leaf, (ports - up) // per_node)} below a leaf; "
            f"found {nodes}, {per_leaf} below a leaf"
        )
    return sized


def _up(ports: int, factor: float, name: str, field: str) -> int:
    up = ports / (1 + factor)
    if abs(up - round(up)) > 1e-9 or round(up) < 1:
        fits = ", ".join(f"{ports / k - 1:g}" for k in range(ports // 2, 0, -1) if ports % k == 0)
        raise TopologyError(
            f"{name}: fabric.{field}: {factor:g} does not divide {ports} ports into down and up; "
            f"whole ratios that do: {fits}"
        )
    return round(up)


def _dimensions(dimensions: int | list[int] | None, nodes: int, name: str) -> tuple[int, ...]:
    """Sizes of a torus; from a number of dimensions, the shape nearest to a cube, largest first."""
    if isinstance(dimensions, list):
        if math.prod(dimensions) != nodes:
            shape = "x".join(map(str, dimensions))
            raise TopologyError(f"{name}: a torus of {shape} has {math.prod(dimensions)} nodes, found {nodes} nodes")
        return tuple(dimensions)
    sizes, left = [], nodes
    for dimension in range(dimensions or 2, 0, -1):
        target = left ** (1 / dimension)
        size = min((d for d in range(1, left + 1) if left % d == 0), key=lambda d: (abs(math.log(d / target)), d))
        sizes.append(size if dimension > 1 else left)
        left //= sizes[-1]
    return tuple(sorted(sizes, reverse=True))
