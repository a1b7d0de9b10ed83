"""NVLS and NVLSTree: the NVSwitch reduces and multicasts, a head per GPU, in rounds of chunks (src/transport/nvls.cc).

A reduction in the switch moves (1 + 1/n) bytes per byte of the call over each GPU's links: it serves the loads of every
head and stores its own result once.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from commsim.nccl.lower import node_rate

if TYPE_CHECKING:
    from commsim.nccl.graph import System
    from commsim.nccl.lower import Call, Machine
    from commsim.nccl.parameters import Parameters

KIB = 1024


def nvls_channels(system: System) -> int:
    """16 on Hopper; 24 on one node of Blackwell, 32 on several (src/transport/nvls.cc)."""
    return 16 if system.sm < 100 else 24 if system.nodes == 1 else 32


def chunk_bytes(system: System, nbytes: int, channels: int) -> int:
    """The chunk of one head in one round (src/enqueue.cc, calcCollChunking)."""
    heads = max(1, system.ranks_per_node)
    if system.nodes > 1:
        chunk = 64 * KIB if system.nodes >= 4 else 128 * KIB
        for factor, least in ((4, 64 * KIB), (1, 32 * KIB)):
            if nbytes < factor * channels * heads * chunk:
                chunk = min(chunk, least)
        return chunk
    chunk = 128 * KIB
    for factor, least in ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)):
        if nbytes < factor * channels * heads * chunk:
            chunk = min(chunk, least)
    return chunk


def nvls_time(system: System, machine: Machine, parameters: Parameters, call: Call) -> tuple[float, float, str]:
    """Seconds of an NVLS kernel, the bandwidth part of them, and what limits it."""
    collective, nbytes = call.collective, call.nbytes
    p, n, channels = parameters.nvls, system.ranks_per_node, nvls_channels(system)
    link = machine.intra_bandwidth * parameters.efficiency.nvls
    rate, limit = (link / (1 + 1 / n) if collective == "all_reduce" else link), "NVLink"
    chunk = chunk_bytes(system, nbytes, channels)
    per_round = min(nbytes, channels * n * chunk)
    rounds = ceil(nbytes / max(1, channels * n * chunk))
    if system.nodes == 1:
        transfer = nbytes / rate
        return p.latency + per_round / rate + rounds * p.round + transfer, transfer, limit
    # Over two nodes a node sends and receives every byte once, over more a node inside the tree does so twice.
    across, kind = node_rate(machine, parameters)
    inside = per_round / rate + p.tree_round
    between = per_round / across * (1 if system.nodes == 2 else 2)
    if between > inside:
        limit = kind
    # A chunk goes up the tree and down again hop by hop, whole. Chunks follow each other at the pace of the slowest
    # stage: while the NICs carry one, the switch's round of the next is not waited for.
    hops = 2 * (system.nodes - 1).bit_length()  # the double tree's depth (src/graph/trees.cc)
    first = inside + hops * (parameters.network.tree_hop.Simple + per_round / across)
    follow = (rounds - 1) * max(inside, between)
    return p.tree_latency + first + follow, follow, limit
