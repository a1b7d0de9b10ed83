"""NCCL's Tree all_reduce as a Schedule on the topology, timed by the event engine.

One pair of channels, one per tree, stands for all: every link of the topology is narrowed to the pair's share of it, so
that two trees, and the children of one node, meet on the NIC as they do in the machine. A thread block serves the way
up and the way down with separate threads (src/device/all_reduce.h, runTreeSplit), each at the block's rate.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from commsim.collectives.schedule import Op, Schedule
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.program import Program
from commsim.engine.simulate import simulate
from commsim.nccl.graph import System
from commsim.nccl.lower import Call, Machine, intra_bandwidth
from commsim.topology.graph import LinkKind

if TYPE_CHECKING:
    from commsim.nccl.parameters import Parameters
    from commsim.topology.graph import Topology

MAX_ROWS = 1_000_000
"""Above this many rows the pieces of a channel are made larger than NCCL's, and the level says "event, coarse"."""

MAX_FLAGGED_PIECES = 128
"""LL and LL128 hand over warp by warp; cut finer than this, the fill of the tree changes by under 1 % of the transfer."""

_PAIR = 2


def tree_pieces(call: Call) -> int:
    """Into how many pieces a channel's data is cut: Simple hands over whole chunks, LL and LL128 a warp's pass."""
    nbytes = max(1, call.split.channel_bytes)
    if call.protocol.is_simple:
        piece = call.protocol.step_bytes  # never shrunk (src/enqueue.cc)
    else:
        piece = max(call.protocol.unit_bytes, nbytes / MAX_FLAGGED_PIECES)
    return ceil(nbytes / piece)


def _most_pieces(system: System) -> int:
    return max(64, MAX_ROWS // (2 * _PAIR * max(1, system.ranks - 1)))


def tree_schedule(call: Call, system: System) -> Schedule:
    """The rows of one pair of channels, each carrying what the fullest channel carries."""
    return tree_all_reduce(
        system.ranks,
        _PAIR * call.split.channel_bytes,
        channels=_PAIR,
        ranks_per_node=system.ranks_per_node,
        chunks=min(tree_pieces(call), _most_pieces(system)),
        pattern=system.tree.pattern.lower(),
    )


def tree_program(
    schedule: Schedule,
    call: Call,
    system: System,
    topology: Topology,
    machine: Machine,
    parameters: Parameters,
) -> Program:
    """What the engine runs: the sender's thread block, then the links of the route at the pair's share."""
    efficiency, protocol = parameters.efficiency, call.protocol
    n, ppn = system.ranks, system.ranks_per_node
    src, dst = schedule.src, schedule.dst
    across = src // ppn != dst // ppn
    up = schedule.op == Op.REDUCE
    # Service links first: one per (rank, tree, direction); then the topology's.
    block = (src * _PAIR + schedule.channel) * 2 + up
    blocks = n * _PAIR * 2
    pairs, which = np.unique(src.astype(np.int64) * n + dst, return_inverse=True)
    table = topology.routes(pairs // n, pairs % n, 0 if system.nodes > 1 else None)
    used = max(_PAIR, call.split.channels)
    share = _PAIR / used / protocol.wire_factor
    kind = topology.link_kind
    bandwidth = topology.link_bandwidth * np.select(
        [kind == LinkKind.NVLINK, (kind == LinkKind.NETWORK) | (kind == LinkKind.FABRIC)],
        [efficiency.nvlink_switch, efficiency.network * topology.nics_per_node],
        efficiency.pcie * max(1, topology.nics_per_node if system.nodes > 1 else 1),
    )
    if system.intra_type in ("NVL", "NVB") and not topology.has_nvswitch:
        # On a mesh the channels' chains use different neighbours: each GPU's links serve them together.
        bandwidth = np.where(kind == LinkKind.NVLINK, intra_bandwidth(machine, parameters), bandwidth)
    bandwidth *= share
    # Routes: per (block, pair) in use.
    key = block.astype(np.int64) * pairs.size + which
    routes, route = np.unique(key, return_inverse=True)
    links = [np.concatenate([[v // pairs.size], table.links(int(v % pairs.size)) + blocks]) for v in routes]
    ptr = np.concatenate([[0], np.cumsum([len(x) for x in links])])
    hops = parameters.tree_hop
    inside = hops.nvlink if system.intra_type in ("NVL", "NVB", "LOC") else hops.pcie
    network = (
        hops.network.of(protocol.name)
        + system.nic_latency_us * 1e-6
        + parameters.message_cost * (call.split.channels - 1)
    )
    succ_ptr, succ_idx = schedule.dependencies()
    return Program(
        nbytes=schedule.payload_bytes(),
        route=route.astype(np.int32),
        delay_s=np.where(across, network, inside.of(protocol.name)),
        succ_ptr=succ_ptr,
        succ_idx=succ_idx,
        indeg=np.bincount(succ_idx, minlength=schedule.rows).astype(np.int32),
        route_ptr=ptr.astype(np.int64),
        route_link=np.concatenate(links).astype(np.int32),
        link_bandwidth=np.concatenate([np.full(blocks, parameters.block_rate.of(protocol.name)), bandwidth]),
        link_latency=np.zeros(blocks + topology.link_bandwidth.size),
    )


_LIMITS = {
    LinkKind.NVLINK: "NVLink",
    LinkKind.C2C: "C2C",
    LinkKind.PCIE: "PCIe",
    LinkKind.HOST: "host link",
    LinkKind.NETWORK: "NIC",
    LinkKind.FABRIC: "fabric",
}


def time_tree(
    system: System, topology: Topology, machine: Machine, parameters: Parameters, call: Call
) -> tuple[float, float, str, str]:
    """Seconds of a tree all_reduce by simulation, the busiest link's part of them, its kind, and the level."""
    if call.nbytes == 0:
        return 0.0, 0.0, "latency", "event"
    schedule = tree_schedule(call, system)
    program = tree_program(schedule, call, system, topology, machine, parameters)
    outcome = simulate(program)
    blocks = system.ranks * _PAIR * 2
    busiest = int(np.argmax(outcome.link_busy_s))
    limit = "thread block" if busiest < blocks else _LIMITS[LinkKind(topology.link_kind[busiest - blocks])]
    level = "event" if tree_pieces(call) <= _most_pieces(system) else "event, coarse"
    return float(outcome.makespan_s), float(outcome.link_busy_s[busiest]), limit, level
