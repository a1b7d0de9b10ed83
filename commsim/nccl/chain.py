"""Broadcast and reduce: a pipelined chain of ranks, the ring that NCCL cuts open at the root (src/device/broadcast.h).

A chunk of 512 KiB (Simple) or a warp's line (LL, LL128) follows another down the chain. In back-to-back runs the calls
follow each other down the chain too, so that its fill is paid once and not per call: 32 nodes broadcast 4 bytes in the
time of one. A call that somebody waits for pays it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.nccl.lower import Call, Machine, message_turn, network_hop, shares
from commsim.nccl.protocols import MIN_SLICE_BYTES, WARP

if TYPE_CHECKING:
    from commsim.nccl.graph import System
    from commsim.nccl.parameters import Parameters


def chain_time(
    system: System, machine: Machine, parameters: Parameters, call: Call, *, fill: bool
) -> tuple[float, float, str]:
    """Seconds of one channel of a chain, the bandwidth part of them, and what limits its rate.

    With `fill` the last rank's wait for the first chunk counts; without it only the first hop's.
    """
    protocol, nbytes = call.protocol, call.split.channel_bytes
    share = shares(system, machine, parameters, call)
    inside = parameters.ring_hop.pcie if machine.intra_kind == "pcie" else parameters.ring_hop.nvlink
    hop = inside.of(protocol.name)
    unit = max(MIN_SLICE_BYTES, protocol.step_bytes) if protocol.is_simple else protocol.pass_bytes(WARP)
    piece = min(unit, nbytes)
    slowest, limit = share.intra, share.intra_limit
    across, inter = 0.0, share.inter
    if system.nodes > 1:
        message = min(protocol.step_bytes, max(1, nbytes))
        across = network_hop(parameters.network, parameters.network.ring_hop, protocol, message)
        inter = min(inter, message / message_turn(machine, parameters, call).seconds(message))
        if not protocol.is_simple:  # the proxy sends a slot when it is full
            across += (message - piece) / inter
        hop = hop if system.ranks_per_node > 1 else across
        if inter <= slowest:
            slowest, limit = inter, share.inter_limit
    transfer = nbytes / slowest
    if not fill:
        return transfer + hop, transfer, limit
    inner = system.nodes * (system.ranks_per_node - 1)
    outer = system.nodes - 1
    wait = inner * (hop + piece / share.intra) + outer * (across + piece / inter)
    return wait + (nbytes - piece) / slowest, transfer, limit
