"""PAT: all_gather and reduce_scatter of nodes of one GPU in few transfers (NCCL 2.23, src/include/collectives.h).

The ranks' blocks travel over distances that double. Small blocks are put together, up to half of all of them in one
transfer, so that the collective ends after about log2 N of these; large ones go one by one, N - 1 of them, and still
no farther than log2 N hops (Jeaugey, "PAT", arXiv 2506.20252).
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

from commsim.nccl.channels import Call
from commsim.nccl.lower import shares
from commsim.nccl.machine import Machine
from commsim.nccl.messages import message_turn, network_hop
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import STEPS, Part, chunk_bytes, step_bytes
from commsim.nccl.system import System


def transfers(ranks: int, block_bytes: int, slot_bytes: int) -> list[int]:
    """Blocks of each transfer of one rank: N - 1 together.

    Blocks are put together while two transfers would fit into a slot, then three times more (the slots of a
    connection), never more than half of all.

    >>> transfers(8, 1024, 1 << 19), transfers(8, 1 << 20, 1 << 19)
    ([4, 2, 1], [1, 1, 1, 1, 1, 1, 1])
    """
    together = 1
    while 2 * together * block_bytes <= slot_bytes and 2 * together <= ranks / 2:
        together *= 2
    if block_bytes < slot_bytes:
        for _ in range(STEPS.bit_length() - 1):
            together *= 2 if 2 * together <= ranks / 2 else 1
    linear = ceil(ranks / together) - 1
    rest = ranks - together * linear  # what the ranks beyond the last whole group hold
    first = [together] * (linear - 1) + [rest] if linear else []
    return first + [together >> k for k in range(1, together.bit_length())]


class PatTransfers(NamedTuple):
    """Transfers of one channel of a rank, `loops` times, in seconds: of each its service, by bytes alone; the hop."""

    loops: int
    service_s: list[float]
    bytes_s: list[float]
    hop_s: float
    limit: str


def lowered(system: System, machine: Machine, parameters: Parameters, call: Call) -> PatTransfers:
    """What the fullest channel sends."""
    share = shares(system, machine, parameters, call)
    slot = step_bytes(call.protocol, call.buffer_bytes)
    block = max(1, ceil(call.split.channel_bytes / system.ranks))
    chunk = chunk_bytes(
        system, call.collective, "pat", call.protocol, Part(call.split.channel_bytes), call.buffer_bytes
    )
    loops, piece = ceil(block / chunk), min(block, chunk)
    turn = message_turn(machine, parameters, call)
    messages = [blocks * piece for blocks in transfers(system.ranks, piece, slot)]
    by_bytes = [nbytes / share.inter for nbytes in messages]
    service = [max(seconds, turn.seconds(nbytes)) for seconds, nbytes in zip(by_bytes, messages, strict=True)]
    # The proxy sends what has been written; a transfer waits for the one that brought its blocks.
    write = piece / parameters.block_rate.of(call.protocol.name)
    hop = network_hop(parameters.network, parameters.network.tree_hop, call.protocol, piece) + write
    return PatTransfers(loops, service, by_bytes, hop, share.inter_limit)


def pat_time(system: System, machine: Machine, parameters: Parameters, call: Call) -> tuple[float, float, str]:
    """Seconds of the fullest channel, the bandwidth part of them, and what limits it."""
    sent = lowered(system, machine, parameters, call)
    served, busy = sent.loops * sum(sent.service_s), sent.loops * sum(sent.bytes_s)
    return ceil(log2(system.ranks)) * sent.hop_s + served, busy, sent.limit
