"""Trees of switches: one switch, leaves and spines, pods and cores; by node or by rail, in one plane or several.

Leaves are numbered (group of nodes, lane), a lane being a rail or a plane. Links are numbered leaf by leaf to the
spines of its pod and plane, then pod by pod (plane, spine) to the cores: core c of a plane is above spine
``c // (cores / spines)`` of every pod, as in a k-ary fat tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.topology.fabric import Fabric
from commsim.topology.fabric_routes import UNREACHABLE, FabricRoutes, Flowlet, PathChoice
from commsim.topology.kinds import Float64, Int32, Int64, LinkKind
from commsim.topology.links import BuiltFabric, LinkColumns, Ports


@dataclass(frozen=True)
class TreeShape:
    """Numbers of a tree: leaf groups of lanes in planes, pods of leaf groups, spines per pod and plane, cores."""

    groups: int
    lanes: int
    planes: int
    pods: int
    groups_per_pod: int
    spines: int
    cores_per_spine: int

    @property
    def leaves(self) -> int:
        """Leaf switches in all."""
        return self.groups * self.lanes

    @property
    def all_spines(self) -> int:
        """Spine switches in all."""
        return self.pods * self.planes * self.spines

    @property
    def switches(self) -> int:
        """Switches in all."""
        return self.leaves + self.all_spines + self.planes * self.spines * self.cores_per_spine

    def place(self, leaf: Int64) -> tuple[Int64, Int64]:
        """(pod, plane) of leaves."""
        return leaf // self.lanes // self.groups_per_pod, leaf % self.lanes % self.planes


@dataclass(frozen=True, eq=False)
class TreeRoutes(FabricRoutes):
    """Up to the lowest common level and down again; which spine and core is a matter of `choose`.

    ``up``, ``down`` (leaves, spines), ``core_up``, ``core_down`` (pods, planes, spines, cores per spine) are link ids.
    """

    shape: TreeShape
    choose: PathChoice
    up: Int32
    down: Int32
    core_up: Int32
    core_down: Int32

    @property
    def choices(self) -> int:
        """Spines times cores of each."""
        return max(1, self.shape.spines * max(1, self.shape.cores_per_spine))

    def uneven(self, bandwidth: Float64) -> bool:
        """Whether parallel uplinks of one leaf, or of one pod, differ in bandwidth."""
        links = [self.up.reshape(self.up.shape[0], -1), self.core_up.reshape(self.core_up.shape[0], -1)]
        return any(bool((np.ptp(bandwidth[c], axis=1) > 0).any()) for c in links if c.shape[1])

    @property
    def period_nodes(self) -> int | None:
        """One node below a single group of leaves; else a group, or a pod where there are several."""
        s, per_leaf = self.shape, self.nodes_per_leaf
        if s.groups == 1:
            return None if s.spines else 1
        if s.groups * per_leaf != self.nodes or s.pods * s.groups_per_pod != s.groups:
            return None
        return per_leaf if s.pods == 1 else per_leaf * s.groups_per_pod

    def switch_image(self, shift: int) -> Int64:
        """Leaves move with their nodes, spines with their pod; cores stay."""
        s = self.shape
        leaf = np.arange(s.leaves)
        image = np.arange(s.switches)
        if s.groups == 1:
            return image
        image[: s.leaves] = (leaf + shift // self.nodes_per_leaf * s.lanes) % s.leaves
        if s.pods > 1:
            spine = np.arange(s.all_spines)
            moved = shift // (self.nodes_per_leaf * s.groups_per_pod) * s.planes * s.spines
            image[s.leaves : s.leaves + s.all_spines] = s.leaves + (spine + moved) % s.all_spines
        return image

    def between(
        self, src: Int64, src_nic: Int64, dst: Int64, dst_nic: Int64, attempt: int = 0, flowlet: Flowlet = 0
    ) -> Int32:
        """At most up, up, down, down."""
        s = self.shape
        leaf, to = self.leaf[src, src_nic].astype(np.int64), self.leaf[dst, dst_nic].astype(np.int64)
        out = np.full((len(src), 4 if s.pods > 1 else 2), -1, dtype=np.int32)
        far = leaf != to
        cut = far & ((leaf % s.lanes % s.planes != to % s.lanes % s.planes) | (s.spines == 0))
        out[cut, 0] = UNREACHABLE
        k = np.flatnonzero(far & ~cut)
        if not k.size:
            return out
        flowlet = np.broadcast_to(flowlet, src.shape)[k]
        leaf, to, src, dst = leaf[k], to[k], src[k], dst[k]
        places = src % self.nodes_per_leaf + dst % self.nodes_per_leaf
        number = self.choose.number(src, dst, src_nic[k], places, flowlet)
        spine = (number + attempt) % s.spines
        out[k, 0], out[k, -1] = self.up[leaf, spine], self.down[to, spine]
        if s.pods == 1:
            return out
        (pod, plane), (to_pod, _) = s.place(leaf), s.place(to)
        over = pod != to_pod
        higher = number // s.spines
        if not self.choose.hashed:
            higher = higher + leaf // s.lanes % s.groups_per_pod + to // s.lanes % s.groups_per_pod
        core = (higher + attempt // s.spines) % s.cores_per_spine
        out[k[over], 1] = self.core_up[pod, plane, spine, core][over]
        out[k[over], 2] = self.core_down[to_pod, plane, spine, core][over]
        return out


def tree(fabric: Fabric, ports: Ports, first_vertex: int, first_link: int) -> BuiltFabric:
    """The leaves, spines and cores above the ports of all nodes."""
    s = _shape(fabric, ports)
    nics = np.arange(ports.vertex.shape[1])
    leaf = (np.arange(ports.nodes) // fabric.nodes_per_leaf)[:, None] * s.lanes + (nics % s.lanes)[None, :]
    of_ports, port_links = ports.cabled(leaf, first_vertex, first_link, fabric.switch_latency)
    at = first_link + len(port_links.src)

    up_bytes = _uplinks(fabric, ports, leaf, s)
    a, spine = np.divmod(np.arange(s.leaves * s.spines), max(s.spines, 1))
    pod, plane = s.place(a)
    spine_at = s.leaves + (pod * s.planes + plane) * s.spines + spine
    to_spine = LinkColumns.both_ways(
        first_vertex + a,
        first_vertex + spine_at,
        up_bytes[a] / max(s.spines, 1),
        fabric.hop_latency,
        LinkKind.FABRIC,
    )
    up = (at + 2 * np.arange(s.leaves * s.spines)).reshape(s.leaves, s.spines).astype(np.int32)

    at += 2 * s.leaves * s.spines
    form = (s.pods, s.planes, s.spines, s.cores_per_spine)
    p, pl, sp, c = (x.ravel() for x in np.indices(form))
    core_bytes = np.zeros((s.pods, s.planes))
    np.maximum.at(core_bytes, s.place(np.arange(s.leaves)), up_bytes)
    core_bytes *= s.groups_per_pod * (s.lanes // s.planes) / fabric.core_oversubscription
    to_core = LinkColumns.both_ways(
        first_vertex + s.leaves + (p * s.planes + pl) * s.spines + sp,
        first_vertex + s.leaves + s.all_spines + (pl * s.spines + sp) * s.cores_per_spine + c,
        core_bytes[p, pl] / max(1, s.spines * s.cores_per_spine),
        fabric.hop_latency,
        LinkKind.FABRIC,
    )
    core_up = (at + 2 * np.arange(p.size)).reshape(form).astype(np.int32)
    choose = fabric.choice(fabric.nodes_per_leaf * (s.groups_per_pod if s.pods > 1 else 1), ports.nodes)
    routes = TreeRoutes(*of_ports, fabric.nodes_per_leaf, s, choose, up, up + 1, core_up, core_up + 1)
    return BuiltFabric(_names(fabric, s), LinkColumns.joined([port_links, to_spine, to_core]), routes)


def _shape(fabric: Fabric, ports: Ports) -> TreeShape:
    groups = -(-ports.nodes // fabric.nodes_per_leaf)
    per_pod = min(fabric.leaves_per_pod or groups, groups)
    pods = -(-groups // per_pod)
    # Nodes with fewer NICs enter through other rails than those that their peers leave by.
    crossing = fabric.lanes > fabric.planes and bool((ports.vertex < 0).any())
    spines = fabric.spines if groups > 1 or crossing else 0
    return TreeShape(
        groups=groups,
        lanes=fabric.lanes,
        planes=fabric.planes,
        pods=pods,
        groups_per_pod=per_pod,
        spines=spines,
        cores_per_spine=fabric.cores // fabric.spines if pods > 1 else 0,
    )


def _uplinks(fabric: Fabric, ports: Ports, leaf: Int64, s: TreeShape) -> Float64:
    """Bytes/s of all uplinks of each leaf: of as many nodes as fit, each with the widest ports among those there."""
    node = np.repeat(np.arange(ports.nodes), leaf.shape[1])
    lane = leaf.ravel() % s.lanes
    per_node = np.bincount(node * s.lanes + lane, ports.bandwidth.ravel(), ports.nodes * s.lanes)
    widest = np.zeros((s.groups, s.lanes))
    np.maximum.at(widest, np.arange(ports.nodes) // fabric.nodes_per_leaf, per_node.reshape(ports.nodes, s.lanes))
    return np.asarray(widest.ravel() * fabric.nodes_per_leaf / fabric.oversubscription)


def _names(fabric: Fabric, s: TreeShape) -> list[str]:
    """Names of leaves, spines and cores; planes and pods are named where there are several."""
    if fabric.by_rail:
        leaves = [f"leaf{g}.rail{r}" for g in range(s.groups) for r in range(s.lanes)]
    elif fabric.kind == "single_switch":
        leaves = ["switch"] if s.lanes == 1 else [f"switch{p}" for p in range(s.lanes)]
    elif s.planes > 1:
        leaves = [f"leaf{g}.plane{p}" for g in range(s.groups) for p in range(s.planes)]
    else:
        leaves = [f"leaf{g}" for g in range(s.groups)]
    part = "rail" if fabric.kind == "rail_only" else "plane"

    def prefix(plane: int) -> str:
        return f"{part}{plane}." if s.planes > 1 else ""

    spines = [
        (f"pod{q}." if s.pods > 1 else "") + f"{prefix(p)}spine{i}"
        for q in range(s.pods)
        for p in range(s.planes)
        for i in range(s.spines)
    ]
    cores = [f"{prefix(p)}core{i}" for p in range(s.planes) for i in range(s.spines * s.cores_per_spine)]
    return [*leaves, *spines, *cores]
