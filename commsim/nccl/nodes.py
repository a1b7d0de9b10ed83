"""The nodes of a communicator as the lowering needs them: the rates of each kind, and what is left between nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from commsim.nccl.communicator import Comm
from commsim.nccl.latency import between_s, inside_s, longest_s
from commsim.nccl.machine import FABRIC, MESHES, NIC, Machine, node_rate
from commsim.nccl.messages import MESSAGES
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.system import Graph, System
from commsim.topology.graph import Topology
from commsim.topology.kinds import LINK_NAMES, Float64, Int64, LinkKind

_PCIE = LINK_NAMES[LinkKind.PCIE]

if TYPE_CHECKING:
    from commsim.nccl.streams import Streams

_ROUNDING = 1e-9
"""Shares that are nearer to one are one."""


@dataclass(frozen=True, eq=False)
class Kind:
    """Nodes of one kind: a small machine of them, what NCCL counts with there, its rates, its parameters."""

    topology: Topology
    system: System
    machine: Machine
    parameters: Parameters

    def with_hops(self, seconds: float) -> Kind:
        """The same where no hop between nodes is shorter."""
        network = self.parameters.network.at_least(seconds)
        if network is self.parameters.network:
            return self
        return replace(self, parameters=self.parameters.model_copy(update={"network": network}))


@dataclass(frozen=True, eq=False)
class Edges:
    """Pairs of nodes of which the first sends to the second, both (edges,), and what their channels get of the NICs."""

    src: Int64
    dst: Int64
    streams: Streams | None  # None: all they could take

    def share(self, channels: int) -> tuple[Float64, Int64]:
        """What a channel of so many gets on each edge, of what its NICs could give it, and the link that limits it."""
        if self.streams is None:
            return np.ones(self.src.size), np.full(self.src.size, -1, np.int64)
        return self.streams.of(channels)


@dataclass(frozen=True, eq=False)
class NodeHops:
    """Hops between nodes by what is left of them: senders narrowed to it, which of them each hop is, (M,), its link."""

    kinds: tuple[Kind, ...]
    of: Int64
    link: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class NodeWays:
    """The ways between the nodes of a communicator, by the graphs of each kind of node."""

    comm: Comm
    rings: tuple[Graph, ...]
    tree_graphs: tuple[Graph, ...]
    known: tuple[Edges, Float64] | None = None  # `trees` and `ports`, where they are not those of the machine's ways

    @property
    def count(self) -> int:
        """Number of nodes."""
        return int(self.comm.nodes.size)

    @cached_property
    def ring(self) -> Edges:
        """Each node to the next, the last to the first."""
        src = np.arange(self.count)
        return self._edges(src, np.roll(src, -1), self.rings)

    @cached_property
    def trees(self) -> Edges:
        """Each node to its parent in both trees, then each parent to its child."""
        if self.known is not None:
            return self.known[0]
        return self._edges(*self.tree_ends, self.tree_graphs, trees=True)

    @property
    def tree_ends(self) -> tuple[Int64, Int64]:
        """The nodes that send and receive on each edge of `trees`."""
        from commsim.collectives.tree import double_binary_tree

        both = double_binary_tree(self.count).parent
        child = np.concatenate([np.flatnonzero(parent >= 0) for parent in both])
        above = np.concatenate([parent[parent >= 0] for parent in both]).astype(np.int64)
        return np.concatenate([child, above]), np.concatenate([above, child])

    @cached_property
    def longest_s(self) -> float:
        """Seconds that the links between two NICs never exceed."""
        return longest_s(self.comm.topology) if self.count > 1 else 0.0

    @cached_property
    def ring_s(self) -> Float64:
        """Seconds of the links on the way from each node to the next, (M,)."""
        return between_s(self.comm, self.rings, self.ring.src, self.ring.dst)

    @cached_property
    def farthest_s(self) -> float:
        """The most of `ring_s`, of the ways of the trees, and of those between the first node and another."""
        src, dst = self.tree_ends
        first, others = np.zeros(self.count - 1, np.int64), np.arange(1, self.count)
        ways = [between_s(self.comm, self.tree_graphs, src, dst)]
        ways += [between_s(self.comm, self.rings, *ends) for ends in ((first, others), (others, first))]
        return max(float(way.max(initial=0.0)) for way in (self.ring_s, *ways))

    @cached_property
    def edge_tree(self) -> Int64:
        """The tree of each edge of `trees`, 0 or 1."""
        return np.tile(np.repeat([0, 1], self.count - 1), 2)

    @cached_property
    def tree_traffic(self) -> Float64:
        """Bytes that each node sends, and receives, by byte of a call over the double tree, (M,).

        Over two nodes every byte goes once; over more a node with a parent and two children in one tree is a leaf of
        the other, and sends twice as much; of three nodes none has two children (src/graph/trees.cc).
        """
        return np.asarray(np.bincount(self.trees.src, minlength=self.count) / 2)

    @cached_property
    def ports(self) -> Float64:
        """Of each node the least share of its nominal rate that one of its NICs in use has, (M,)."""
        if self.known is not None:
            return self.known[1]
        return np.asarray(np.minimum(1.0, self._nics.min(axis=1)))

    def slowest_port(self) -> int:
        """The link out of the NIC whose share of its nominal rate is least."""
        node, nic = np.unravel_index(int(self._nics.argmin()), self._nics.shape)
        return int(self.comm.topology.fabric.port_up[self.comm.nodes[node], nic])

    @cached_property
    def _nics(self) -> Float64:
        """What each NIC has of its nominal rate, (M, NICs); infinite where it cannot be used."""
        t, nodes = self.comm.topology, self.comm.nodes
        if self.comm.plain or self.count < 2:
            return np.ones((self.count, 1))
        up, down = t.fabric.port_up[nodes], t.fabric.port_down[nodes]
        rate = np.minimum(t.link_bandwidth[up], t.link_bandwidth[down])
        nominal = np.array([g.nic_bandwidth for g in t.groups])[t.node_group[nodes]]
        return np.where(t.usable_nics[nodes], rate / nominal[:, None], inf)

    def _edges(self, src: Int64, dst: Int64, graphs: tuple[Graph, ...], *, trees: bool = False) -> Edges:
        """These edges with their streams; of a plain machine on trees only where a way leaves its leaf switch.

        A mesh of routers, such as a torus, has its cut instead (`Machine.cut`) where its nodes are alike.
        """
        comm, shared = self.comm, np.ones(src.size, bool)
        if comm.plain and comm.topology.nodes > 1:
            shared &= comm.topology.kind not in MESHES
            shared &= (comm.topology.fabric.leaf[src] != comm.topology.fabric.leaf[dst]).any(axis=1)
        if self.count < 2 or not shared.any():
            return Edges(src, dst, None)
        from commsim.nccl.streams import Streams, streams

        meeting = np.maximum(np.bincount(src)[src], np.bincount(dst)[dst])[shared] if trees else None
        between = streams(comm, graphs, src[shared], dst[shared], meeting)
        if shared.all():
            return Edges(src, dst, between)
        share = np.ones((src.size, between.share.shape[1]))
        link = np.full(share.shape, -1, np.int64)
        share[shared], link[shared] = between.share, between.link
        return Edges(src, dst, Streams(share, link))


@dataclass(frozen=True, eq=False)
class Nodes:
    """All nodes of a communicator: what they are together to NCCL (`system`), each by its kind, the ways between."""

    comm: Comm
    system: System
    kinds: tuple[Kind, ...]
    ways: NodeWays

    @property
    def count(self) -> int:
        """Number of nodes."""
        return int(self.comm.nodes.size)

    def with_parameters(self, parameters: Parameters) -> Nodes:
        """The same with other parameters, of all kinds."""
        return replace(self, kinds=tuple(replace(kind, parameters=parameters) for kind in self.kinds))

    def no_quicker(self, seconds: float) -> float:
        """So many seconds of a call, or those of the links on its longest way between two GPUs if that takes longer."""
        longest, to_nics = self._inside_s
        if self.count > 1 and seconds < to_nics + self.ways.longest_s:  # else no way takes as long
            longest = max(longest, to_nics + self.ways.farthest_s)
        return max(seconds, longest)

    @cached_property
    def _inside_s(self) -> tuple[float, float]:
        inside = np.array([inside_s(kind.topology) for kind in self.kinds])
        longest, to_nics = inside.max(axis=0).tolist()
        return longest, to_nics

    @cached_property
    def far(self) -> bool:
        """Whether links between nodes may take longer than NCCL's shortest hop there."""
        networks = [kind.parameters.network for kind in self.kinds]
        hops = [hop.of(name) for n in networks for hop in (n.ring_hop, n.tree_hop) for name in PROTOCOLS]
        return self.ways.longest_s > min(hops)

    @cached_property
    def at_farthest(self) -> Nodes:
        """The same where a hop between any two nodes is no shorter than the longest way between some two."""
        if not self.far:
            return self
        return replace(self, kinds=tuple(kind.with_hops(self.ways.farthest_s) for kind in self.kinds))

    def hops(self, channels: int) -> NodeHops:
        """The hops of a ring from each node to the next, of a call of so many channels."""
        share, link = self.ways.ring.share(channels)
        of_kind, to_kind = self.comm.kind, np.roll(self.comm.kind, -1)
        late = self.ways.ring_s if self.far else np.zeros(self.count)
        key = np.stack([of_kind.astype(np.float64), to_kind.astype(np.float64), share, late], axis=1)
        if (key == key[0]).all():
            few, first, of = key[:1], np.zeros(1, np.int64), np.zeros(self.count, np.int64)
        else:
            few, first, of = np.unique(key, axis=0, return_index=True, return_inverse=True)
        kinds = []
        for a, b, least, seconds in few.tolist():
            sender, receiver = self.kinds[int(a)].with_hops(seconds), self.kinds[int(b)].machine
            # The share is of the sender's NICs; it says what the receiver's let through.
            narrow = narrower(sender.machine, replace(receiver, nic_path=_but_nics(receiver)))
            kinds.append(replace(sender, machine=slowed(narrow, least)))
        return NodeHops(tuple(kinds), of.reshape(-1), tuple(link[first].tolist()))

    def unlike(self, channels: int) -> float:
        """What the quickest hop of a ring over a mesh of routers takes of the slowest, by what faults leave of them."""
        if self.count < 2 or self.comm.topology.kind not in MESHES:
            return 1.0
        share, _ = self.ways.ring.share(channels)
        return float(share.min() / share.max())

    def with_parameters_of(self, other: Nodes) -> Nodes:
        """The same with the parameters that the kinds have in other nodes of these kinds."""
        pairs = zip(self.kinds, other.kinds, strict=True)
        return replace(self, kinds=tuple(replace(own, parameters=kind.parameters) for own, kind in pairs))

    @cached_property
    def weakest(self) -> Machine:
        """A node that is in each respect as the weakest of all: its links, and its NICs' own rates."""
        return self._least(self.comm.kind, self.ways.ports)

    def weakest_of(self, kind: int) -> Machine:
        """A node of one kind, with the least that NICs of such nodes have of their rates."""
        return slowed(self.kinds[kind].machine, float(self.ways.ports[self.comm.kind == kind].min()))

    def node(self, place: int) -> Machine:
        """One of the nodes, with its NICs' own rates."""
        return slowed(self.kinds[int(self.comm.kind[place])].machine, float(self.ways.ports[place]))

    def _least(self, kind: Int64, share: Float64) -> Machine:
        """The narrowest of the machines of some kinds, each where its NICs give but a share of their rate."""
        if share.size == 0 or (len(self.kinds) == 1 and (share == 1.0).all()):
            return self.kinds[0].machine
        worst = {int(k): float(share[kind == k].min()) for k in np.unique(kind)}
        machines = [slowed(self.kinds[k].machine, least) for k, least in worst.items()]
        return reduce(narrower, machines)

    def tree_rate(self, channels: int) -> tuple[float, str, float]:
        """Bytes/s of a call over the double tree that the slowest node's NICs carry, what limits it, its traffic."""
        kind, traffic, edges = self.comm.kind, self.ways.tree_traffic, self.ways.trees
        left, _ = edges.share(channels)
        of = np.concatenate([kind, kind[edges.src]])
        share = np.concatenate([self.ways.ports, left])
        carried = np.concatenate([traffic, np.maximum(traffic[edges.src], traffic[edges.dst])])
        halves = np.rint(2 * carried).astype(np.int64)  # all that a node can carry is whole halves
        most = int(halves.max()) + 1
        alike = of * most + halves
        least_of = np.full(int(alike.max()) + 1, inf)
        np.minimum.at(least_of, alike, share)
        slowest = inf, "", 1.0
        for both in np.flatnonzero(least_of < inf).tolist():
            at, times = self.kinds[both // most], both % most / 2
            rate, limit = node_rate(slowed(at.machine, min(1.0, float(least_of[both]))), at.parameters)
            slowest = min(slowest, (rate / times, limit, times))
        return slowest

    def slowest(self, limit: str, channels: int, way: str) -> str:
        """What of the NICs and their ways, or which node, is slower than the rest, by name; empty if nothing is.

        `limit` is what limits a call of so many channels over rings, trees or (``way``) the NICs of all nodes at once.
        """
        t, comm, ways = self.comm.topology, self.comm, self.ways
        if limit in (NIC, FABRIC, MESSAGES):
            edges = {"ring": ways.ring, "trees": ways.trees}.get(way)
            share, link = edges.share(channels) if edges is not None else (np.ones(1), np.zeros(1, np.int64))
            if way != "ring" and ways.ports.min() < min(1.0 - _ROUNDING, share.min(initial=1.0)):
                return t.link_name(ways.slowest_port())
            worst = int(share.argmin())
            if share[worst] < 1.0 - _ROUNDING:
                return t.link_name(int(link[worst]))
        between = limit in (NIC, FABRIC, MESSAGES) or (limit == _PCIE and self.kinds[0].machine.intra_kind != "pcie")
        rates = np.array(
            [node_rate(k.machine, k.parameters)[0] if between else k.machine.intra_bandwidth for k in self.kinds]
        )
        if limit == "thread block" or np.ptp(rates) == 0.0:
            return ""
        return f"node{int(comm.nodes[np.flatnonzero(comm.kind == rates.argmin())[0]])}"

    def most(self, of: Callable[[Parameters], float]) -> float:
        """The greatest of a figure of the parameters of all kinds."""
        return max(of(kind.parameters) for kind in self.kinds)


def fabric_entry(comm: Comm, machine: Machine) -> tuple[tuple[str, float, int], ...]:
    """The narrowest link between switches on the way from the first node to the second, as in `Machine.nic_path`.

    Its rate is the one described: what a fault leaves of it has its place in `NodeWays`.
    """
    if comm.nodes.size < 2:
        return ()
    t = comm.topology
    way = t.route(*(int(t.node_first_rank[node]) for node in comm.nodes[:2]))
    fabric = way[t.link_kind[way] == LinkKind.FABRIC]
    described = t.link_bandwidth[fabric] / (1.0 if t.link_share is None else t.link_share[fabric])
    return ((FABRIC, float(described.min()), machine.nics),) if fabric.size else ()


def under_a_leaf(comm: Comm) -> tuple[int, float]:
    """Nodes of the communicator under the leaf that most must pass, and how many times its uplinks are too few.

    Of N nodes k under one leaf exchange k (N - k) parts with the others. Those that do not take part leave them their
    share of the uplinks.
    """
    t = comm.topology
    if comm.whole or t.nodes == 1:
        return t.nodes_per_leaf, t.oversubscription
    under = np.bincount(t.fabric.leaf[comm.nodes, 0])
    most = int(under[(under * (comm.nodes.size - under)).argmax()])
    return most, t.oversubscription * most / t.nodes_per_leaf


def narrower(a: Machine, b: Machine) -> Machine:
    """What is left where nodes of two kinds take part: the least of each rate."""
    if a is b:
        return a
    ways = {kind: (bandwidth, count) for kind, bandwidth, count in b.nic_path}
    path = [
        (kind, min(bandwidth, ways.get(kind, (inf, 0))[0]), min(count, ways.get(kind, (0.0, count))[1]))
        for kind, bandwidth, count in a.nic_path
    ]
    path += [(kind, *ways[kind]) for kind in ways if kind not in {kind for kind, *_ in a.nic_path}]
    slow = min(a, b, key=lambda machine: machine.intra_bandwidth or inf)
    pairs = [machine.all_pairs for machine in (a, b) if machine.all_pairs is not None]
    return replace(
        slow,
        nics=min(a.nics, b.nics),
        nic_path=tuple(path),
        all_pairs=min(pairs, key=lambda shared: shared.rate, default=None),
        pair_links=min(a.pair_links, b.pair_links),
        nic_gbps=min(a.nic_gbps, b.nic_gbps),
        through_host=a.through_host or b.through_host,
        oversubscription=max(a.oversubscription, b.oversubscription),
        cut=min(a.cut, b.cut),
    )


def _but_nics(machine: Machine) -> tuple[tuple[str, float, int], ...]:
    return tuple((kind, inf if kind == NIC else rate, count) for kind, rate, count in machine.nic_path)


def slowed(machine: Machine, share: float) -> Machine:
    """The machine where its NICs, and what lies behind them, give but a share of the NICs' rate."""
    if share == 1.0:
        return machine
    path = tuple((kind, rate * share if kind == NIC else rate, count) for kind, rate, count in machine.nic_path)
    return replace(machine, nic_path=path)


def fewer(nodes: Nodes, count: int, *, healthy: bool = False) -> Nodes:
    """A communicator of so many of the nodes whose trees stand for those of all, or for those of the `healthy` ones.

    What is slower than the rest, a node or a way from it, has as many neighbours in the trees as it has in those of
    all, and is about as high; the others are of the kind that most nodes are of.
    """
    from commsim.nccl.streams import Streams

    comm, ways, m = nodes.comm, nodes.ways, nodes.count
    usual = int(np.bincount(comm.kind).argmax())
    channels = max(1, nodes.system.coll_channels)
    share, _ = ways.trees.share(channels)
    left = np.ones(m)
    np.minimum.at(left, ways.trees.src, share)
    slow = np.flatnonzero((comm.kind != usual) | (np.minimum(ways.ports, left) < 1.0 - _ROUNDING))
    slow = slow[np.argsort(np.minimum(ways.ports, left)[slow], kind="stable")][: 0 if healthy else count // 4]
    spare = np.flatnonzero(comm.kind == usual)[:count]
    chosen = np.resize(spare, count)
    theirs, ours = _places(m)[:, slow], _places(count)
    free = np.ones(count, bool)
    for k, node in enumerate(slow.tolist()):
        unlike = np.abs(ours - theirs[:, [k]])
        far = count * unlike[:2].sum(axis=0) + unlike[2:].sum(axis=0) + np.where(free, 0, count * count)
        place = int(far.argmin())
        chosen[place], free[place] = node, False
    part = replace(comm, nodes=comm.nodes[chosen], kind=comm.kind[chosen])
    both = NodeWays(replace(part, whole=True), ways.rings, ways.tree_graphs)
    src, dst = both.tree_ends
    ports, of = np.where(free, 1.0, ways.ports[chosen]), np.where(free, 1.0, left[chosen])
    streams_of = Streams(of[src][:, None], np.full((src.size, 1), -1, np.int64))
    return replace(nodes, comm=part, ways=replace(both, known=(Edges(src, dst, streams_of), ports)))


def _places(nodes: int) -> Int64:
    """How many neighbours each node has in the first and in the second tree, and how high it is there, (4, nodes)."""
    from commsim.collectives.tree import double_binary_tree

    parent = double_binary_tree(nodes).parent
    out = np.zeros((4, nodes), np.int64)
    for tree, above in enumerate(parent):
        inner = np.flatnonzero(above >= 0)
        np.add.at(out[tree], inner, 1)
        np.add.at(out[tree], above[inner], 1)
        for _ in range(nodes.bit_length()):
            np.maximum.at(out[2 + tree], above[inner], out[2 + tree, inner] + 1)
    return out
