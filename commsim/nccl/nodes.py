"""The nodes of a communicator as the lowering needs them: the rates of each kind, and what is left between nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from commsim.nccl.communicator import Comm
from commsim.nccl.graph import discover, joined, of_kind, own_nics
from commsim.nccl.machine import FABRIC, NIC, UPLINKS, Machine, far_nics, fed_nics, node_rate, survey, within_reach
from commsim.nccl.messages import MESSAGES
from commsim.nccl.node_ways import ROUNDING, NodeWays, inside_s
from commsim.nccl.parameters import Parameters, load_parameters, network_of, of_job
from commsim.nccl.pools import MESHES, described_rate
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.system import System
from commsim.nccl.version import Version
from commsim.topology.graph import Topology
from commsim.topology.kinds import LINK_NAMES, Float64, Int64, LinkKind, VertexKind

_PCIE = LINK_NAMES[LinkKind.PCIE]

if TYPE_CHECKING:
    from commsim.nccl.graph_file import GraphFile


@dataclass(frozen=True, eq=False)
class Kind:
    """Nodes of one kind: a small machine of them, what NCCL counts with there, its rates, its parameters."""

    topology: Topology
    system: System
    machine: Machine
    parameters: Parameters
    sends: Machine | None = None  # the rates of what its ranks send to others, where those of its channels are not

    def with_hops(self, seconds: float) -> Kind:
        """The same where no hop between nodes is shorter."""
        network = self.parameters.network.at_least(seconds)
        if network is self.parameters.network:
            return self
        return replace(self, parameters=self.parameters.model_copy(update={"network": network}))


@dataclass(frozen=True, eq=False)
class NodeHops:
    """Hops between nodes by what is left of them: senders narrowed to it, which of them each hop is, (M,), its link."""

    kinds: tuple[Kind, ...]
    of: Int64
    link: tuple[int, ...]


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

    @property
    def of_sends(self) -> Nodes:
        """The same with the rates that sends have."""
        if all(kind.sends is None for kind in self.kinds):
            return self
        return replace(self, kinds=tuple(replace(kind, machine=kind.sends or kind.machine) for kind in self.kinds))

    @cached_property
    def longest_s(self) -> float:
        """Seconds that the links between two GPUs never exceed."""
        inside = np.array([inside_s(kind.topology) for kind in self.kinds])
        longest, to_nics = inside.max(axis=0).tolist()
        return float(max(longest, to_nics + self.ways.longest_s if self.count > 1 else 0.0))

    @cached_property
    def _least_hop(self) -> float:
        networks = [kind.parameters.network for kind in self.kinds]
        return min(hop.of(name) for n in networks for hop in (n.ring_hop, n.tree_hop) for name in PROTOCOLS)

    @property
    def far(self) -> bool:
        """Whether links between nodes may take longer than NCCL's shortest hop there."""
        return self.ways.longest_s > self._least_hop

    def at_farthest(self, channels: int, *, peers: bool = False) -> Nodes:
        """The same where no hop between nodes is shorter than the longest way of so many channels over the trees.

        Of `peers`: than that between the first node and another.
        """
        if not self.far:
            return self
        seconds = self.ways.peers_s if peers else self.ways.farthest_s(channels)
        return replace(self, kinds=tuple(kind.with_hops(seconds) for kind in self.kinds))

    def hops(self, channels: int) -> NodeHops:
        """The hops of a ring from each node to the next, of a call of so many channels."""
        share, link = self.ways.ring.share(channels)
        of_kind, to_kind = self.comm.kind, np.roll(self.comm.kind, -1)
        late = self.ways.ring_s(channels) if self.far else np.zeros(self.count)
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
            narrow = narrow if self.comm.plain else _over_rings(narrow, sender)
            kinds.append(replace(sender, machine=slowed(narrow, least)))
        return NodeHops(tuple(kinds), of.reshape(-1), tuple(link[first].tolist()))

    def slowest_latency(self, way: str, channels: int) -> str:
        """Of the links that so many channels take over a ring, trees or ``ports`` the one that takes longest to pass a
        bit on, by name; empty where no way takes longer than hops."""
        if not self.far:
            return ""
        ways, t = self.ways, self.comm.topology
        if way == "ring":
            seconds = float(ways.ring_s(channels).max())
        else:
            seconds = ways.farthest_s(channels) if way == "trees" else ways.peers_s
        if seconds <= self._least_hop:
            return ""
        first = int(t.node_first_link[-1])
        latency = t.link_latency[first:]
        return t.link_name(first + int(np.where(latency <= seconds, latency, 0.0).argmax()))

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

    def slowest(self, limit: str, channels: int, way: str) -> tuple[str, str]:
        """What limits, and what of the NICs and their ways, or which node, is slower than the rest, by name.

        `limit` is what limits a call of so many channels over rings, trees or (``way``) the NICs of all nodes at once.
        The name is empty if nothing is slower.
        """
        t, comm, ways = self.comm.topology, self.comm, self.ways
        if limit in (NIC, FABRIC, MESSAGES):
            edges = {"ring": ways.ring, "trees": ways.trees}.get(way)
            share, link = edges.share(channels) if edges is not None else (np.ones(1), np.zeros(1, np.int64))
            if way != "ring" and ways.ports.min() < min(1.0 - ROUNDING, share.min(initial=1.0)):
                return limit, t.link_name(ways.slowest_port())
            worst = int(share.argmin())
            if share[worst] < 1.0 - ROUNDING:
                narrow = int(link[worst])
                up = (t.vertex_kind[[t.link_src[narrow], t.link_dst[narrow]]] == VertexKind.SWITCH).all()
                return UPLINKS if up and limit == NIC else limit, t.link_name(narrow)
        between = limit in (NIC, FABRIC, MESSAGES) or (limit == _PCIE and self.kinds[0].machine.intra_kind != "pcie")
        rates = np.array(
            [node_rate(k.machine, k.parameters)[0] if between else k.machine.intra_bandwidth for k in self.kinds]
        )
        if limit == "thread block" or np.ptp(rates) == 0.0:
            return limit, ""
        return limit, _with_failed(t, int(comm.nodes[np.flatnonzero(comm.kind == rates.argmin())[0]]))

    def most(self, of: Callable[[Parameters], float]) -> float:
        """The greatest of a figure of the parameters of all kinds."""
        return max(of(kind.parameters) for kind in self.kinds)


_MOST_FAILED = 3
"""Failed parts of a node that its name is followed by."""


def _with_failed(t: Topology, node: int) -> str:
    """A node by name, with what of it has failed: ``node1 (nic3 failed)``."""
    name = f"node{node}"
    if t.link_failed is None:
        return name
    ends = np.stack([t.link_src, t.link_dst], axis=1)[t.link_failed]
    ends = np.sort(ends[(t.vertex_node[ends] == node).any(axis=1)], axis=1)
    names = t.vertex_name
    ports = {int(v) for pair in ends for v in pair if t.vertex_kind[v] == VertexKind.NIC}
    others = {(int(a), int(b)) for a, b in ends if not ports & {int(a), int(b)}}
    parts = [names[v] for v in sorted(ports)] + [f"{names[a]} - {names[b]}" for a, b in sorted(others)]
    parts = [part.replace(f"{name}.", "") for part in parts]
    more = f" and {len(parts) - _MOST_FAILED} more" if len(parts) > _MOST_FAILED else ""
    return f"{name} ({', '.join(parts[:_MOST_FAILED])}{more} failed)" if parts else name


def nodes_of(
    comm: Comm, version: Version, env: dict[str, str], graphs: GraphFile | None, parameters: Parameters | None
) -> tuple[Nodes, list[str]]:
    """The nodes of a communicator, each kind with its search and its rates; and what of `env` has no effect.

    `graphs` are those that NCCL found on the machine, `parameters` those of all kinds, where they are known.
    """
    systems = [discover(kind, version, env, graphs) for kind in comm.seen]
    system = joined(systems, comm, version, env)
    kinds, notes, own = list[Kind](), list[str](), list[tuple[int, ...] | None]()
    for topology, searched in zip(comm.kinds, systems, strict=True):
        mine = of_job(parameters or load_parameters(topology.gpu.generation, network_of(comm.topology, env)), env)
        reach, level, unheeded = within_reach(topology, version, env)
        notes += [unheeded] if unheeded else []
        mine_of = of_kind(searched, system, topology.ranks_per_node)
        machine = survey(mine_of, topology, level, staged=far_nics(reach, env))
        if not comm.plain:
            leaf, thin = _under_a_leaf(comm)
            of_all = comm.ranks == comm.topology.world_size and comm.nodes.size > 1
            cut = comm.topology.bisection_bandwidth() if of_all else inf if comm.nodes.size > 1 else machine.cut
            path = (*machine.nic_path, *_fabric_entry(comm, machine))
            machine = replace(machine, leaf_nodes=leaf, oversubscription=thin, cut=cut, nic_path=path)
        own.append(_own_nics(comm, len(kinds), mine_of, version, env))
        most = machine.nics if own[-1] is None else min(fed_nics(topology), len(own[-1]))
        sends = None if most == machine.nics else machine.with_nics(most, topology.ranks_per_node)
        kinds.append(Kind(reach, mine_of, machine, mine, sends))
    ways = NodeWays(comm, tuple(k.system.ring for k in kinds), tuple(k.system.tree for k in kinds), tuple(own))
    return Nodes(comm, system, tuple(kinds), ways), notes


def _own_nics(
    comm: Comm, kind: int, system: System, version: Version, env: dict[str, str]
) -> tuple[int, ...] | None:  # fmt: skip
    """The NICs by which ranks of a kind of node send, in turn; None where all GPUs have a rank, or a node is alone."""
    t, part = comm.topology, comm.kinds[kind]
    node = int(comm.nodes[np.flatnonzero(comm.kind == kind)[0]])
    if comm.nodes.size < 2 or part.ranks_per_node == t.groups[int(t.node_group[node])].ranks_per_node:
        return None
    rings = [nic for both in system.ring.nics for nic in both]  # NCCL's simple order, where it finds no way to any
    return own_nics(part, version, env) or tuple(dict.fromkeys(rings)) or None


def _fabric_entry(comm: Comm, machine: Machine) -> tuple[tuple[str, float, int], ...]:
    """The narrowest level between switches on the way from the first node to the second, as in `Machine.nic_path`.

    Its rate is the one described: what a fault leaves of it has its place in `NodeWays`.
    """
    if comm.nodes.size < 2:
        return ()
    t = comm.topology
    way = t.route(*(int(t.node_first_rank[node]) for node in comm.nodes[:2]))
    fabric = way[t.link_kind[way] == LinkKind.FABRIC]
    return ((FABRIC, float(described_rate(t, fabric).min()), machine.nics),) if fabric.size else ()


def _under_a_leaf(comm: Comm) -> tuple[int, float]:
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


def _over_rings(machine: Machine, sender: Kind) -> Machine:
    """The machine with the NICs that rings enter and leave the sender by: fewer where another node has fewer ways."""
    nics = sender.system.ring.nics
    used = min(len({nic for nic, _ in nics}), len({nic for _, nic in nics})) or machine.nics
    return machine if used >= machine.nics else machine.with_nics(used, sender.topology.ranks_per_node)


def _but_nics(machine: Machine) -> tuple[tuple[str, float, int], ...]:
    return tuple((kind, inf if kind == NIC else rate, count) for kind, rate, count in machine.nic_path)


def slowed(machine: Machine, share: float) -> Machine:
    """The machine where its NICs, and what lies behind them, give but a share of the NICs' rate."""
    if share == 1.0:
        return machine
    path = tuple((kind, rate * share if kind == NIC else rate, count) for kind, rate, count in machine.nic_path)
    return replace(machine, nic_path=path)
