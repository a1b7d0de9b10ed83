"""NCCL's Tree all_reduce as a Schedule on the topology, timed by the event engine.

One pair of channels, one per tree, stands for all: every link of the topology is narrowed to the pair's share of it, so
that two trees, and the children of one node, meet on the NIC as they do in the machine. A thread block serves the way
up and the way down with separate threads (src/device/all_reduce.h, runTreeSplit), each at the block's rate. A rank
handles a chunk in one operation, within which no warp waits for another: line by line LL and LL128 run through a chain
of ranks. (A ring, whose ranks send chunk after chunk, meets at barriers between them.) Between nodes the proxy sends a
slot when it is full: there they hand over whole chunks.

On a mesh of NVLinks two GPUs have links of their own, and the channels' chains visit the GPUs in different orders: each
hop has the share that the busiest of these links leaves a channel (`commsim.nccl.lower.tree_share`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import ceil

import numpy as np
import numpy.typing as npt

from commsim.engine.program import Program
from commsim.engine.simulate import simulate
from commsim.nccl.channels import Call
from commsim.nccl.fewer import fewer
from commsim.nccl.lower import Float64, tree_share
from commsim.nccl.machine import FABRIC, NIC, intra_bandwidth, nic_efficiency, node_rate
from commsim.nccl.messages import message_turn, network_hop
from commsim.nccl.nodes import Kind, Nodes, slowed
from commsim.nccl.protocols import WARP, Part, chunk_bytes
from commsim.nccl.system import System
from commsim.nccl.tree_rows import PAIR, Hops, tree_rows
from commsim.topology.kinds import LINK_NAMES, LinkKind
from commsim.topology.node_routes import NodeRoutes
from commsim.units import GIGA

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

_ROUNDING = 1e-9
"""Relative difference of times that are one but for the rounding of their sums."""

TREE_NODES = 1024
"""Nodes up to which trees are simulated as they are."""

_FEW_NODES = 128
"""Nodes, and up to twice as many, of the smaller of two trees that stand for one of more than `TREE_NODES`."""


def tree_chunk(system: System, call: Call) -> int:
    """Bytes of a chunk of a tree's channel, of which all have as much as the fullest."""
    part = Part(call.split.channel_bytes)
    return chunk_bytes(system, "all_reduce", "tree", call.protocol, part, call.buffer_bytes, call.version)


def piece_bytes(system: System, call: Call) -> int:
    """What the rows move: Simple a whole chunk, LL and LL128 what a warp handles."""
    return tree_chunk(system, call) if call.protocol.is_simple else call.protocol.pass_bytes(WARP)


@dataclass(frozen=True, eq=False)
class _Rates:
    """What hops and links take in one cut of a call: seconds of each hop, (hops,), and bytes/s of each link."""

    delay_s: Float64
    bandwidth: Float64


_MOST_KNOWN = 4096
_KNOWN: dict[bytes, tuple[float, float, int]] = {}


class TreeTimer:
    """Times tree all_reduce calls of one communicator; what is one program, on any machine, is simulated once.

    A cut into many pieces is not simulated: the time is A + F * piece (the whole transfer, and filling the tree up and
    down with one piece), so that two coarser cuts give it (tests/nccl/test_nccl_tree.py compares with the fine cut).
    """

    def __init__(self, nodes: Nodes, coarse: int = 32) -> None:
        self.nodes = nodes
        self._links = _Links(nodes)
        self._smaller: list[TreeTimer] = []
        self._coarse = coarse  # pieces of the coarsest cut that is simulated in place of a finer one

    def time(self, nodes: Nodes, call: Call) -> tuple[float, float, str, str]:
        """Seconds of the call, the busiest link's part of them, that link's kind, and the level of the engine.

        `nodes` are the timer's own, perhaps with other parameters.
        """
        if call.nbytes == 0:
            return 0.0, 0.0, "latency", "event"
        if nodes.count > TREE_NODES:
            return self._higher(nodes, call)
        piece, nbytes = piece_bytes(nodes.system, call), call.split.channel_bytes
        pieces = ceil(nbytes / piece)
        if pieces <= 3 * self._coarse:
            return (*self._run(nodes, call, nbytes, pieces), "event")
        first, _, _ = self._run(nodes, call, nbytes, self._coarse)
        second, busy, limit = self._run(nodes, call, nbytes, 2 * self._coarse)
        # A + F * piece, carried on from cuts into `coarse` and 2 `coarse` pieces to one into `pieces`.
        return second - (first - second) * (1 - 2 * self._coarse / pieces), busy, limit, "event, two cuts"

    def _higher(self, nodes: Nodes, call: Call) -> tuple[float, float, str, str]:
        """As `time`, from trees of fewer nodes: each level more takes as much longer as it does of healthy nodes."""
        if not self._smaller:
            count = nodes.count >> ((nodes.count // _FEW_NODES).bit_length() - 1)
            sizes = (2 * count, False), (2 * count, True), (count, True)
            self._smaller = [TreeTimer(fewer(self.nodes, n, healthy=healthy), self._coarse) for n, healthy in sizes]
        own, large, small = (timer.time(timer.nodes.with_parameters_of(nodes), call) for timer in self._smaller)
        levels = (nodes.count // self._smaller[0].nodes.count).bit_length() - 1
        return own[0] + levels * (large[0] - small[0]), own[1], own[2], "event, fewer nodes"

    def _run(self, nodes: Nodes, call: Call, nbytes: int, pieces: int) -> tuple[float, float, str]:
        """Seconds of one simulation, how long the busiest link was held, and what that link is."""
        rates = self._rates(nodes, call, nbytes, pieces)
        parts = (self._way, b"%d %d " % (nbytes, pieces), rates.delay_s.tobytes(), rates.bandwidth.tobytes())
        key = blake2b(b"".join(parts), digest_size=16).digest()
        if key not in _KNOWN:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = _simulated(self._program(rates, nbytes, pieces))
        makespan_s, busy_s, link = _KNOWN[key]
        return makespan_s, busy_s, self._links.name(link)

    def _rates(self, nodes: Nodes, call: Call, nbytes: int, pieces: int) -> _Rates:
        """What the cut of a call into so many pieces takes of hops and links."""
        # Payload of a message between nodes: a chunk (`commsim.nccl.protocols`), or all that the channel has.
        message = max(1, min(tree_chunk(nodes.system, call), nbytes))
        kinds, name = nodes.kinds, call.protocol.name
        inside = [k.parameters.hop_inside(k.parameters.tree_hop, k.machine.intra_kind, name) for k in kinds]
        network = [_network_hop(k, call, message, nbytes / pieces) if nodes.count > 1 else 0.0 for k in kinds]
        hops, comm = self._hops, self.nodes.comm
        sender, receiver = comm.node_of[hops.src], comm.node_of[hops.dst]
        kind = comm.kind[sender]
        delay_s = np.where(sender != receiver, np.array(network)[kind], np.array(inside)[kind])
        return _Rates(delay_s, self._links.bandwidth(nodes, call, nbytes, message))

    def _program(self, rates: _Rates, nbytes: int, pieces: int) -> Program:
        """What the engine runs: the sender's thread block, then the links of the route at the pair's share."""
        rows = tree_rows(*self._trees, pieces)
        small, larger = divmod(nbytes, pieces)
        route_ptr, route_link = self._routes
        return Program(
            nbytes=small + (rows.piece < larger).astype(np.int64),
            route=rows.hop,
            delay_s=rates.delay_s[rows.hop],
            succ_ptr=rows.followers[0],
            succ_idx=rows.followers[1],
            route_ptr=route_ptr,
            route_link=route_link,
            link_bandwidth=rates.bandwidth,
            link_latency=np.zeros(self._links.count),
        )

    def program(self, nodes: Nodes, call: Call, pieces: int) -> Program:
        """What the engine runs of a call cut into so many pieces; its routes number the hops."""
        nbytes = call.split.channel_bytes
        return self._program(self._rates(nodes, call, nbytes, pieces), nbytes, pieces)

    def pieces_of(self, pieces: int) -> Int32:
        """The piece of each op of such a program."""
        return tree_rows(*self._trees, pieces).piece

    @property
    def node_of_links(self) -> Int64:
        """The place of the node that each link of its programs is in, or leads from."""
        return self._links.node

    @cached_property
    def _trees(self) -> tuple[tuple[int, ...], str]:
        """Ranks of the nodes, and the pattern of the trees."""
        return tuple(self.nodes.comm.counts.tolist()), self.nodes.system.tree.pattern.lower()

    @cached_property
    def _hops(self) -> Hops:
        """The hops of the rows, which are those of one piece."""
        return tree_rows(*self._trees, 1).hops

    @cached_property
    def _routes(self) -> tuple[Int64, Int32]:
        """The links of each hop, in CSR form."""
        return self._links.routes(self._hops.src, self._hops.dst, self._hops.way)

    @cached_property
    def _way(self) -> bytes:
        """What programs have of the machine but delays and rates."""
        route_ptr, route_link = self._routes
        return repr(self._trees).encode() + route_ptr.tobytes() + route_link.tobytes()


def _simulated(program: Program) -> tuple[float, float, int]:
    """Seconds of one simulation, how long the busiest link was held, and which link is the narrowest held so long."""
    # Children of one node finish at different times, so that the order of the rows is not that on the links.
    outcome = simulate(program, in_order=False)
    busy = float(outcome.link_busy_s.max())
    # What lies behind a narrow link on a route is held as long as it: the narrowest of them is what limits.
    held = np.flatnonzero(outcome.link_busy_s >= busy * (1 - _ROUNDING))
    return float(outcome.makespan_s), busy, int(held[program.link_bandwidth[held].argmin()])


class _Links:
    """What the pair of trees runs over, in this order: thread blocks, links inside nodes, ports of nodes, edges.

    A rank has a block for each tree and direction. The NICs of a node, which its channels share, are one port out and
    one in, behind a NIC beside the first rank. An edge of a tree is the fabric between two ports.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, comm = nodes, nodes.comm
        links = np.array([kind.topology.node_routes.links for kind in nodes.kinds])
        before = np.cumsum(links) - links
        self._blocks = nodes.comm.ranks * PAIR * 2
        self._first_link = self._blocks + np.cumsum(links[comm.kind]) - links[comm.kind]
        self._ports = self._blocks + int(links[comm.kind].sum())
        several = nodes.count > 1
        self._edges = self._ports + 2 * nodes.count * several
        self.count = self._edges + (nodes.ways.trees.src.size if several else 0)
        # Of each link in a node its place among the links of all kinds.
        self._of_kind = np.concatenate([before[k] + np.arange(links[k]) for k in comm.kind])
        self._kind_names = np.concatenate(
            [kind.topology.link_kind[: kind.topology.node_routes.links] for kind in nodes.kinds]
        )

    @property
    def node(self) -> Int64:
        """The place of the node of each link, of an edge that which sends."""
        nodes, comm = self.nodes, self.nodes.comm
        links = np.array([kind.topology.node_routes.links for kind in nodes.kinds])[comm.kind]
        every = np.arange(nodes.count)
        parts = [np.repeat(comm.node_of, 2 * PAIR), np.repeat(every, links)]
        if nodes.count > 1:
            parts += [np.repeat(every, 2), nodes.ways.trees.src]
        return np.concatenate(parts)

    def name(self, link: int) -> str:
        """What limits where this link is the busiest."""
        if link < self._blocks:
            return "host memory" if self.nodes.kinds[0].machine.intra_kind == "host" else "thread block"
        if link < self._ports:
            return LINK_NAMES[LinkKind(int(self._kind_names[self._of_kind[link - self._blocks]]))]
        return NIC if link < self._edges else FABRIC

    def bandwidth(self, nodes: Nodes, call: Call, nbytes: int, message: int) -> Float64:
        """Payload bytes/s of every link for the pair that stands for all channels."""
        kind, protocol = nodes.comm.kind, call.protocol
        blocks = np.array([_block_rate(k, call, nbytes, message) for k in nodes.kinds])[kind][nodes.comm.node_of]
        inside = np.concatenate([_inside(k, call, nbytes) for k in nodes.kinds])[self._of_kind]
        pair = PAIR / max(PAIR, call.split.channels) / protocol.wire_factor
        parts = [np.repeat(blocks, 2 * PAIR), inside * pair]
        if nodes.count > 1:
            port = _port_rates(nodes) * pair
            more = nbytes / message - 1  # messages after the first, whose turn is in the hop
            if more > 0:
                turns = [
                    PAIR * nbytes / (more * message_turn(k.machine, k.parameters, call).seconds(message))
                    for k in nodes.kinds
                ]
                port = np.minimum(port, np.array(turns)[kind])
            share, _ = nodes.ways.trees.share(call.split.channels)
            nominal = np.array([_nic_rate(k, 1.0) for k in nodes.kinds])[kind[nodes.ways.trees.src]]
            parts += [np.repeat(port, 2), share * nominal * pair]
        return np.concatenate(parts)

    def routes(self, src: Int64, dst: Int64, way: Int64) -> tuple[Int64, Int32]:
        """Routes in CSR form of rows from `src` to `dst`; `way` is their tree, and whether they go up (odd)."""
        comm, nodes = self.nodes.comm, self.nodes
        a, b = comm.node_of[src], comm.node_of[dst]
        here, there = src - comm.first_rank[a], dst - comm.first_rank[b]
        far = a != b
        columns = [(4 * src + way)[:, None]]
        columns += [self._in_nodes(a, ~far, lambda r, k: r.gpu_gpu[here[k], there[k]])]
        if far.any():
            nic = np.array([_entry(kind) for kind in nodes.kinds])[comm.kind]
            columns += [self._in_nodes(a, far, lambda r, k: r.gpu_nic[here[k], nic[a[k]]])]
            edge = np.where(far, self._edges + self._edge_of(a, b, way // 2), -1)
            ports = np.where(far, self._ports + 2 * a, -1), np.where(far, self._ports + 2 * b + 1, -1)
            columns += [ports[0][:, None], edge[:, None], ports[1][:, None]]
            columns += [self._in_nodes(b, far, lambda r, k: r.nic_gpu[nic[b[k]], there[k]])]
        links = np.concatenate(columns, axis=1)
        used = links >= 0
        return np.concatenate([[0], np.cumsum(used.sum(axis=1))]), links[used].astype(np.int32)

    def _in_nodes(
        self, node: Int64, where: npt.NDArray[np.bool_], look: Callable[[NodeRoutes, Int64], Int32]
    ) -> Int64:  # fmt: skip
        """Links inside the nodes of some routes, by the tables of their kinds, (routes, most links); -1 elsewhere."""
        kind = self.nodes.comm.kind[node]
        rows = [(k, np.flatnonzero(where & (kind == k))) for k in range(len(self.nodes.kinds))]
        tables = [(k, look(self.nodes.kinds[i].topology.node_routes, k)) for i, k in rows if k.size]
        out = np.full((node.size, max((t.shape[1] for _, t in tables), default=0)), -1, np.int64)
        for k, table in tables:
            out[k, : table.shape[1]] = np.where(table >= 0, table + self._first_link[node[k]][:, None], -1)
        return out

    def _edge_of(self, src: Int64, dst: Int64, tree: Int64) -> Int64:
        """The number of the edge between two nodes of a tree; 0 where there is none."""
        edges, m = self.nodes.ways.trees, self.nodes.count
        key = (self.nodes.ways.edge_tree * m + edges.src) * m + edges.dst
        order = np.argsort(key)
        at = np.searchsorted(key[order], (tree * m + src) * m + dst)
        return order[np.minimum(at, key.size - 1)]


def _entry(kind: Kind) -> int:
    """The NIC of a node of a kind that stands for all: the one nearest to its first rank, else the first that works."""
    works, nearest = kind.topology.usable_nics[0], int(kind.topology.node_routes.nearest_nic[0])
    return nearest if nearest >= 0 and works[nearest] else int(np.flatnonzero(works)[0])


def _port_rates(nodes: Nodes) -> Float64:
    """Payload bytes/s of all NICs of each node together."""
    key, of = np.unique(np.stack([nodes.comm.kind, nodes.ways.ports], axis=1), axis=0, return_inverse=True)
    few = []
    for k, share in key.tolist():
        at = nodes.kinds[int(k)]
        # What a host copies, or GPU and NIC leave in its memory, lies on no route.
        few.append(min(_nic_rate(at, share), node_rate(slowed(at.machine, share), at.parameters)[0]))
    return np.array(few)[of.reshape(-1)]


def _block_rate(kind: Kind, call: Call, nbytes: int, message: int) -> float:
    """Payload bytes/s of a thread block.

    As in a ring, a block waits beside the bytes of what it handles at once, here a chunk of any protocol; the first
    chunk's wait lies in the base.
    """
    name, block = call.protocol.name, kind.parameters.block_rate.of(call.protocol.name)
    if kind.machine.intra_kind == "host":  # which the routes do not pass; a rank sends up and down its chain
        share = intra_bandwidth(kind.machine, kind.parameters, call.protocol) / (2 * call.split.channels)
        block = min(block, share / call.protocol.wire_factor)
    return nbytes / (nbytes / block + (nbytes / message - 1) * kind.parameters.pause.of(name))


def _inside(kind: Kind, call: Call, nbytes: int) -> Float64:
    """Bytes/s of the links inside a node of a kind, as all channels together reach them."""
    t, efficiency, machine = kind.topology, kind.parameters.efficiency, kind.machine
    links = slice(t.node_routes.links)
    nics = max(1, machine.nics) if kind.system.nodes > 1 else 1
    nvlink = t.link_kind[links] == LinkKind.NVLINK
    factor = np.where(
        nvlink,
        efficiency.inside("nvlink_switch", call.protocol),
        efficiency.pcie * min(nics, kind.system.ranks_per_node),
    )
    rate = t.link_bandwidth[links] * factor
    if machine.intra_kind == "nvlink_direct":
        # Every hop of the pair has a link of its own here, with the share of one that all channels pass.
        pieces = ceil(nbytes / piece_bytes(kind.system, call))
        mesh = tree_share(kind.system, machine, kind.parameters, call, pieces)
        rate = np.where(nvlink, mesh * max(PAIR, call.split.channels), rate)
    return np.asarray(rate)


def _nic_rate(kind: Kind, share: float) -> float:
    """Payload bytes/s of all NICs of a node of a kind where each gives a share of its rate."""
    machine = kind.machine
    return machine.nic_gbps * GIGA * share * nic_efficiency(machine, kind.parameters) * max(1, machine.nics)


def _network_hop(kind: Kind, call: Call, message: int, piece: float) -> float:
    """Seconds of a hop between nodes: the network's, the NIC's other messages, and the filling of a slot."""
    name, network = call.protocol.name, kind.parameters.network
    fill = max(0.0, message - piece) / kind.parameters.block_rate.of(name)
    turn = message_turn(kind.machine, kind.parameters, call)
    others = turn.post_s + turn.check_s_per_byte * message - network.message_cost.of(name)
    return float(network_hop(network, network.tree_hop, call.protocol, message) + others + fill)
