"""The time of NCCL's copies by copy engines, in closed form; `commsim.nccl.copy_event` has the engine run the same.

The host puts calls on a stream, which take `START_S` each and follow each other: meetings of all GPUs, and copies
between them, which use no thread block. Over nodes a proxy puts blocks at their places meanwhile.
"""

from __future__ import annotations

from math import inf

from commsim.nccl.machine import Machine
from commsim.nccl.parameters import Parameters
from commsim.nccl.symmetric_pace import START_S, hop_s, link_rate, net_rate, with_messages
from commsim.nccl.system import System

COPIED = 64 << 20
"""Most bytes of a put and of the copies that follow it (HIER_COLL_MAX_CHUNK_SIZE)."""

_CALLS = 3
"""What the host puts on the stream for copies inside a node (src/ce_coll.cc): to meet, to copy, to meet."""


def copy_time(
    system: System, machine: Machine, parameters: Parameters, collective: str, nbytes: int
) -> tuple[float, float, str]:
    """Seconds of a call of `nbytes` (the nccl-tests size), the bandwidth part of them, and what limits it.

    A GPU's copies go over its links one after the other or side by side, at the links' rate. An all_to_all of
    `nbytes` sends so much from every GPU; a gather or scatter is bound by its root.
    """
    n, local, nodes = system.ranks, system.ranks_per_node, system.nodes
    hop = hop_s(machine, parameters)
    if nodes == 1:
        link, name = link_rate(machine, parameters, n)
        transfer = nbytes * (n - 1) / n / link
        return _CALLS * START_S + 3 * hop + transfer, transfer, name
    block, far = -(-nbytes // n), float(parameters.network.ring_hop.of("LL"))
    net, limit = with_messages(
        net_rate(machine, parameters, local), max(1, min(block, COPIED)), machine, parameters, local
    )
    link, name = link_rate(machine, parameters, local) if local > 1 else (inf, "NVLink")
    gathers = collective == "all_gather"
    put = block * (nodes - 1) * (1 if gathers else local) / net
    inside = block * (local - 1) * (nodes if gathers else 1) / link
    transfer, name = max((put, limit), (inside, name))
    ends = 2 * START_S + hop  # a wait for the puts' end, and a meeting
    if not gathers:  # all meet along the rails and in the node, the puts start; copies go on beside them
        begin = 3 * START_S + far + hop
        return begin + max(far + put, 2 * START_S + hop + inside) + ends, transfer, name
    begin = 2 * START_S + far  # all meet along the rails, the puts start
    pieces = -(-max(1, block) // COPIED)
    units = (nodes - 1) * pieces
    copy = START_S + hop + inside / nodes * (nodes - 1) / units
    # A meeting in the node and a copy of the own block; then each piece is waited for, by a call of its own, and copied
    # on, node by node, while the NIC has puts to all nodes under way at once.
    own, each = 2 * START_S + 2 * hop + inside / nodes, START_S + copy
    first, last = far + put / pieces, far + put
    ways = own + units * each, first + copy + (units - 1) * each, last + copy + (units - pieces) * each
    return begin + max(ways) + ends, transfer, name


def copy_calls(system: System, collective: str, nbytes: int) -> int:
    """What the host puts on the stream: to meet, to copy, to meet.

    Over nodes a barrier along the rails, the start of the puts, a wait for them and one for their end come on top; an
    all_gather waits for each put, and copies it on (ncclHierCeAllGather, ncclHierCeAlltoAll).
    """
    if system.nodes == 1:
        return _CALLS
    if collective != "all_gather":
        return _CALLS + 4
    pieces = -(-max(1, nbytes // system.ranks) // COPIED)
    return _CALLS + 3 + 2 * (system.nodes - 1) * pieces
