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

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Op, Schedule
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.program import Program, places_along
from commsim.engine.simulate import simulate
from commsim.nccl.channels import Call
from commsim.nccl.lower import tree_share
from commsim.nccl.machine import Machine, intra_bandwidth, nic_efficiency, node_rate
from commsim.nccl.messages import message_turn, network_hop
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import WARP, Part, chunk_bytes
from commsim.nccl.system import System
from commsim.topology.graph import RouteTable, Topology
from commsim.topology.kinds import LINK_NAMES, LinkKind

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

_PAIR = 2


def tree_chunk(system: System, call: Call) -> int:
    """Bytes of a chunk of a tree's channel, of which all have as much as the fullest."""
    part = Part(call.split.channel_bytes)
    return chunk_bytes(system, "all_reduce", "tree", call.protocol, part, call.buffer_bytes, call.version)


def piece_bytes(system: System, call: Call) -> int:
    """What the rows move: Simple a whole chunk, LL and LL128 what a warp handles."""
    return tree_chunk(system, call) if call.protocol.is_simple else call.protocol.pass_bytes(WARP)


@dataclass(frozen=True, eq=False)
class _Shape:
    """The rows of one pair of trees in a number of pieces: all of a Program but sizes, delays and rates."""

    program: Program
    piece: npt.NDArray[np.integer]  # of each row
    across: npt.NDArray[np.bool_]  # to another node


class TreeTimer:
    """Times tree all_reduce calls of one communicator; rows and routes of equal cuts are made once.

    A cut into many pieces is not simulated: the time is A + F * piece (the whole transfer, and filling the tree up and
    down with one piece), so that two coarser cuts give it (tests/nccl/test_nccl_tree.py compares with the fine cut).
    """

    def __init__(self, system: System, topology: Topology, machine: Machine, coarse: int = 32) -> None:
        self.system, self.topology, self.machine = system, topology, machine
        self._blocks = system.ranks * _PAIR * 2  # service links: per rank, tree and direction
        self._shapes: dict[int, _Shape] = {}
        self._coarse = coarse  # pieces of the coarsest cut that is simulated in place of a finer one

    def time(self, parameters: Parameters, call: Call) -> tuple[float, float, str, str]:
        """Seconds of the call, the busiest link's part of them, that link's kind, and the level of the engine."""
        if call.nbytes == 0:
            return 0.0, 0.0, "latency", "event"
        piece, nbytes = piece_bytes(self.system, call), call.split.channel_bytes
        pieces = ceil(nbytes / piece)
        if pieces <= 3 * self._coarse:
            return (*self._run(parameters, call, nbytes, pieces), "event")
        first, _, _ = self._run(parameters, call, nbytes, self._coarse)
        second, busy, limit = self._run(parameters, call, nbytes, 2 * self._coarse)
        # A + F * piece, carried on from cuts into `coarse` and 2 `coarse` pieces to one into `pieces`.
        return second - (first - second) * (1 - 2 * self._coarse / pieces), busy, limit, "event, two cuts"

    def _run(self, parameters: Parameters, call: Call, nbytes: int, pieces: int) -> tuple[float, float, str]:
        """Seconds of one simulation, how long the busiest link was held, and what that link is."""
        # Children of one node finish at different times, so that the order of the rows is not that on the links.
        outcome = simulate(self.program(parameters, call, nbytes, pieces), in_order=False)
        busiest = int(np.argmax(outcome.link_busy_s))
        limit = "host memory" if self.machine.intra_kind == "host" else "thread block"
        if busiest >= self._blocks:
            limit = LINK_NAMES[LinkKind(self.topology.link_kind[busiest - self._blocks])]
        return float(outcome.makespan_s), float(outcome.link_busy_s[busiest]), limit

    def program(self, parameters: Parameters, call: Call, nbytes: int, pieces: int) -> Program:
        """What the engine runs: the sender's thread block, then the links of the route at the pair's share."""
        shape = self._shapes.get(pieces)
        if shape is None:
            shape = self._shapes[pieces] = self._shape(pieces)
        machine, name = self.machine, call.protocol.name
        inside = parameters.hop_inside(parameters.tree_hop, machine.intra_kind, name)
        block = parameters.block_rate.of(name)
        if machine.intra_kind == "host":  # which the routes do not pass; a rank sends up and down its chain
            share = intra_bandwidth(machine, parameters, call.protocol) / (2 * call.split.channels)
            block = min(block, share / call.protocol.wire_factor)
        # Payload of a message between nodes: a chunk (`commsim.nccl.protocols`), or all that the channel has.
        message = max(1, min(tree_chunk(self.system, call), nbytes))
        # As in a ring, a block waits beside the bytes of what it handles at once, here a chunk of any protocol; the
        # first chunk's wait lies in the base.
        block = nbytes / (nbytes / block + (nbytes / message - 1) * parameters.pause.of(name))
        network = self._network_hop(parameters, call, message, nbytes / pieces)
        small, larger = divmod(nbytes, pieces)
        links = self._link_bandwidth(parameters, call, nbytes, message)
        return replace(
            shape.program,
            nbytes=small + (shape.piece < larger),
            delay_s=np.where(shape.across, network, inside),
            link_bandwidth=np.concatenate([np.full(self._blocks, block), links]),
        )

    def schedule(self, pieces: int) -> Schedule:
        """The rows of one pair of channels, one byte to a piece: `program` scales them."""
        return tree_all_reduce(
            self.system.ranks,
            _PAIR * pieces,
            channels=_PAIR,
            ranks_per_node=self.system.ranks_per_node,
            chunks=pieces,
            pattern=self.system.tree.pattern.lower(),
        )

    def _shape(self, pieces: int) -> _Shape:
        schedule = self.schedule(pieces)
        succ_ptr, succ_idx = schedule.dependencies()
        src, dst = schedule.src.astype(np.int64), schedule.dst.astype(np.int64)
        n, ppn = self.system.ranks, self.system.ranks_per_node
        block = (src * _PAIR + schedule.channel) * 2 + (schedule.op == Op.REDUCE)
        pairs, pair = np.unique(src * n + dst, return_inverse=True)
        # All channels of a node share its NICs evenly; the pair stands for them on the first.
        table = self.topology.routes(pairs // n, pairs % n, 0 if self.system.nodes > 1 else None)
        routes, route = np.unique(block * pairs.size + pair, return_inverse=True)
        route_ptr, route_link = _with_block(routes // pairs.size, table, routes % pairs.size, self._blocks)
        links = self._blocks + self.topology.link_bandwidth.size
        program = Program(
            nbytes=np.zeros(schedule.rows, np.int64),
            route=route.astype(np.int32),
            delay_s=np.zeros(schedule.rows),
            succ_ptr=succ_ptr,
            succ_idx=succ_idx,
            route_ptr=route_ptr,
            route_link=route_link,
            link_bandwidth=np.ones(links),
            link_latency=np.zeros(links),
        )
        return _Shape(program, schedule.src_chunk % pieces, src // ppn != dst // ppn)

    def _network_hop(self, parameters: Parameters, call: Call, message: int, piece: float) -> float:
        """Seconds of a hop between nodes: the network's, the NIC's other messages, and the filling of a slot."""
        fill = max(0.0, message - piece) / parameters.block_rate.of(call.protocol.name)
        network = parameters.network
        turn = message_turn(self.machine, parameters, call)
        others = turn.post_s + turn.check_s_per_byte * message - network.message_cost.of(call.protocol.name)
        return network_hop(network, network.tree_hop, call.protocol, message) + others + fill

    def _link_bandwidth(
        self, parameters: Parameters, call: Call, nbytes: int, message: int
    ) -> npt.NDArray[np.float64]:  # fmt: skip
        """Payload bytes/s of every link of the topology for the pair that stands for all channels."""
        topology, efficiency = self.topology, parameters.efficiency
        kind = topology.link_kind
        nics = max(1, self.machine.nics) if self.system.nodes > 1 else 1
        bandwidth = topology.link_bandwidth * np.select(
            [kind == LinkKind.NVLINK, (kind == LinkKind.NETWORK) | (kind == LinkKind.FABRIC)],
            [efficiency.inside("nvlink_switch", call.protocol), nic_efficiency(self.machine, parameters) * nics],
            efficiency.pcie * min(nics, self.system.ranks_per_node),
        )
        if self.system.nodes > 1:  # what a host copies, or GPU and NIC leave in its memory, lies on no route
            node = node_rate(self.machine, parameters)[0]
            bandwidth = np.where(kind == LinkKind.NETWORK, np.minimum(bandwidth, node), bandwidth)
        if self.machine.intra_kind == "nvlink_direct":
            # Every hop of the pair has a link of its own here, with the share of one that all channels pass.
            pieces = ceil(nbytes / piece_bytes(self.system, call))
            mesh = tree_share(self.system, self.machine, parameters, call, pieces)
            bandwidth = np.where(kind == LinkKind.NVLINK, mesh * max(_PAIR, call.split.channels), bandwidth)
        share = bandwidth * _PAIR / max(_PAIR, call.split.channels) / call.protocol.wire_factor
        more = nbytes / message - 1  # messages after the first, whose turn is in the hop
        if more <= 0:
            return np.asarray(share)
        most = _PAIR * nbytes / (more * message_turn(self.machine, parameters, call).seconds(message))
        return np.asarray(np.where(kind == LinkKind.NETWORK, np.minimum(share, most), share))


def _with_block(block: Int64, table: RouteTable, pair: Int64, blocks: int) -> tuple[Int64, Int32]:
    """Routes in CSR form: the service link `block`, then the topology's links of `pair`, numbered after the blocks."""
    route = table.index[pair]
    length = np.diff(table.ptr)[route]
    links = table.link[places_along(table.ptr, route)] + blocks
    return np.concatenate([[0], np.cumsum(length + 1)]), np.insert(links, np.cumsum(length) - length, block)
