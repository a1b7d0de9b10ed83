"""Knobs that a description states and that change nothing on the machine that it makes, with the reason of each."""

from __future__ import annotations

from pathlib import Path

from commsim.errors import TopologyError
from commsim.topology.fabric_routes import FabricRoutes, StaticRoutes
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import FabricSpec, TopologySpec
from commsim.topology.tree import TreeRoutes

Knob = tuple[str, ...]
"""The keys below ``topology`` that state it."""

_CORES = frozenset({"leaves_per_pod", "cores", "core_oversubscription"})
_ABOVE_LEAVES = _CORES | {"oversubscription", "spines", "levels", "cable_latency"}
_BETWEEN_GROUPS = frozenset({"global_links", "global_bandwidth", "global_latency"})
_OF_NETWORK = (
    _ABOVE_LEAVES
    | _BETWEEN_GROUPS
    | {"nodes_per_leaf", "rails", "planes", "ports", "routing", "hash_seed", "flowlet_size", "switch_latency"}
    | {"link_bandwidth", "leaves_per_group", "dimensions"}
)

_DRAWN = ("ecmp", "flowlet")
"""Routings that draw one of the paths that there are."""

_NEUTRAL = {"oversubscription": 1, "core_oversubscription": 1, "levels": 2, "planes": 1}
"""What a fabric is without the knob: stating it asks for nothing."""


def idle_knobs(spec: TopologySpec, topology: Topology, base_dir: Path) -> dict[Knob, str]:
    """Why each knob has no effect that the description states and that its topology does not feel; paths as there.

    >>> from commsim.topology.presets import topology_spec
    >>> spec = topology_spec("", {"preset": "dgx-a100-hdr200", "nodes": 4, "fabric": {"kind": "fat_tree", "spines": 8}})
    >>> idle_knobs(spec, load_topology(spec, Path()), Path())["fabric", "spines"]
    'has no effect: all 4 nodes hang on one leaf (nodes_per_leaf: 20); set nodes_per_leaf below 4 to see it'
    """
    stated: dict[Knob, object] = {(name,): getattr(spec, name) for name in ("oversubscription", "nodes_per_leaf")}
    if spec.fabric is not None:
        stated |= {("fabric", name): getattr(spec.fabric, name) for name in sorted(spec.fabric.model_fields_set)}
    asked = [knob for knob, value in stated.items() if value is not None and value != _NEUTRAL.get(knob[-1])]
    reasons = {knob: _reason(knob[-1], topology) for knob in asked}
    for knob in asked:
        if knob[-1] == "nodes_per_leaf" and reasons[knob] and topology.nodes > 1 and _felt(spec, topology, base_dir):
            reasons[knob] = ""
    return {knob: f"has no effect: {reason}" for knob, reason in reasons.items() if reason}


def _reason(name: str, t: Topology) -> str:
    """Why a knob is not felt and what to set, in words; "" where it is, or may be."""
    if t.nodes == 1:
        return "one node has no network between nodes; set nodes above 1 to see it" if name in _OF_NETWORK else ""
    routes = t.fabric_routes
    if isinstance(routes, StaticRoutes):
        routes = routes.base
    if name == "hash_seed" and t.routing not in _DRAWN:
        return f"routing: {t.routing} has no hash; set routing: ecmp or flowlet to see it"
    if t.kind == "single_switch":
        idle = name in {"nodes_per_leaf", "cable_latency"}
        return f"one switch holds all {t.nodes} nodes; set fabric.kind to fat_tree or rail_fat_tree" if idle else ""
    if isinstance(routes, TreeRoutes):
        return _of_tree(name, t, routes)
    return _of_groups(routes) if t.kind == "dragonfly" and name in _BETWEEN_GROUPS else ""


def _of_tree(name: str, t: Topology, routes: TreeRoutes) -> str:
    shape = routes.shape
    if shape.spines == 0:
        by_rail = t.kind != "fat_tree"
        leaf = "one leaf of each rail" if by_rail else "one leaf"
        one = f"all {t.nodes} nodes hang on {leaf} (nodes_per_leaf: {t.nodes_per_leaf})"
        see = f"set nodes_per_leaf below {t.nodes} to see it"
        if name == "rails" and by_rail and t.uniform:
            return f"{one} and messages stay on their rail; {see}"
        chosen = name in {"hash_seed", "flowlet_size"} or (name == "routing" and t.routing in (*_DRAWN, "spray"))
        return f"{one}; {see}" if chosen or name in _ABOVE_LEAVES | {"nodes_per_leaf"} else ""
    if name in _CORES | {"levels"} and shape.pods == 1:
        return f"all {shape.groups} groups of leaves are one pod; set leaves_per_pod below {shape.groups} to see it"
    if name in {"routing", "hash_seed", "flowlet_size"} and t.routing in _DRAWN and routes.choices == 1:
        return "there is one path between two leaves (spines: 1); set fabric.spines above 1 to see it"
    if name in {"spines", "cores"} and t.routing == "spray":
        return "routing: spray makes one of equal paths; set routing to shortest, ecmp or flowlet to see it"
    return ""


def _of_groups(routes: FabricRoutes | None) -> str:
    from commsim.topology.dragonfly import GroupedRoutes

    if not isinstance(routes, GroupedRoutes) or routes.shape.groups > 1:
        return ""
    switches = routes.shape.switches
    return f"all {switches} switches are one group; set leaves_per_group below {switches} to see it"


def _felt(spec: TopologySpec, topology: Topology, base_dir: Path) -> bool:
    """Whether the machine would be another if ``nodes_per_leaf`` were left out: its leaves would hold fewer nodes."""
    changed: dict[str, object] = {"nodes_per_leaf": None, "faults": None}
    if spec.fabric is not None:
        fields = {name: getattr(spec.fabric, name) for name in spec.fabric.model_fields_set - {"nodes_per_leaf"}}
        changed["fabric"] = FabricSpec.model_construct(set(fields), **fields)
    try:
        return load_topology(spec.model_copy(update=changed), base_dir).nodes_per_leaf < topology.nodes
    except TopologyError:  # it is needed
        return True
