"""NVLS and NVLSTree: the NVSwitch reduces and multicasts, a head per GPU, in rounds of chunks (src/transport/nvls.cc).

A reduction in the switch moves (1 + 1/heads) bytes per byte of the call over a head's links: it serves the loads of
every head and stores its own result once. An all_gather only stores (every GPU takes in the whole array, its own part
too), a reduce_scatter only loads (every GPU gives it out): once over the links either way (src/device/all_gather.h,
reduce_scatter.h). No curve shows either; rounds and shares of the rate are those of the reduction.

What a round costs beside its bytes shrinks with the chunk only up to 128 KiB, from where on the links are what limits
(ps a byte of H100 and B200 by chunks: validation/evidence.md).

Registered buffers are reduced and spread where they lie. Without them thread blocks copy into the switch's buffers and
out of them, and each copy is handed on behind a fence and a barrier. The switch is as busy by the fewer channels that
they have (8 B200, 1 GiB: 2.6 ms with either, validation/registered).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from commsim.nccl.channels import Call
from commsim.nccl.machine import Machine
from commsim.nccl.messages import MESSAGES
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import Part, chunk_bytes, heads, loops
from commsim.nccl.system import NVLS_CHUNK, System

TreeRate = tuple[float, str, float]
"""Bytes/s of a call that the NICs of the slowest node of a double tree carry, what limits it, and its traffic by byte
(`commsim.nccl.nodes.Nodes.tree_rate`)."""


class Rounds(NamedTuple):
    """How a call goes: bytes of a round, the seconds that its stages take, what limits, and a hop between nodes.

    ``inside``, ``between`` and ``turn``: in the switch, over the NICs, and of the proxies' messages.
    """

    nbytes: int
    inside: float
    between: float
    turn: float
    hop: float

    @property
    def pace(self) -> float:
        """Seconds from one round to the next."""
        return max(self.inside, self.between, self.turn)


def rounds_of(
    system: System, machine: Machine, parameters: Parameters, call: Call, tree: TreeRate = (inf, "", 1.0)
) -> Rounds:
    """The rounds of an NVLS call; of several nodes over their `tree`."""
    nbytes, p, channels = max(1, call.nbytes), parameters.nvls, call.split.channels
    rate = _link_rates(system, machine, parameters, call.collective)[1]
    chunk = chunk_bytes(
        system, call.collective, call.algorithm, call.protocol, Part(nbytes, channels), call.buffer_bytes
    )
    per_round = min(nbytes, channels * heads(system) * chunk)
    # What a round costs beside its bytes comes once for so much of a chunk (see above); while the pipeline fills, once.
    counted = min(chunk, NVLS_CHUNK)
    if system.nodes == 1:
        return Rounds(per_round, per_round / rate + p.round * chunk / counted, 0.0, 0.0, 0.0)
    across, _, traffic = tree
    # Each head sends a message per channel and round, which the proxy of its NIC posts in turn.
    messages = channels * heads(system) / max(1, machine.nics) * traffic
    turn = max(messages * parameters.network.message_cost.Simple, parameters.network.connection_cost.Simple)
    hop = parameters.network.tree_hop.Simple + per_round / (across * traffic)
    return Rounds(per_round, per_round / rate + p.tree_round * chunk / counted, per_round / across, turn, hop)


def _link_rates(system: System, machine: Machine, parameters: Parameters, collective: str) -> tuple[float, float]:
    """Bytes/s of a head's links, and of a call over them."""
    link = machine.intra_bandwidth * parameters.efficiency.nvls
    return link, link / (1 + 1 / heads(system)) if collective == "all_reduce" else link


def nvls_time(
    system: System, machine: Machine, parameters: Parameters, call: Call, tree: TreeRate = (inf, "", 1.0)
) -> tuple[float, float, str]:
    """Seconds of an NVLS kernel, the bandwidth part of them, and what limits it; of several nodes over their `tree`."""
    collective, nbytes = call.collective, max(1, call.nbytes)  # an empty call goes the same way
    p, limit = parameters.nvls, "NVLink"
    link, rate = _link_rates(system, machine, parameters, collective)
    each = rounds_of(system, machine, parameters, call, tree)
    per_round = each.nbytes
    copies = 2 * (parameters.first_pass + parameters.pause.Simple) if call.registered else 0.0
    if system.nodes == 1:
        part = Part(nbytes, call.split.channels)
        chunk = chunk_bytes(system, collective, call.algorithm, call.protocol, part, call.buffer_bytes)
        counted = min(chunk, NVLS_CHUNK)
        transfer, rounds = nbytes / rate, loops(system, call.algorithm, call.split.channel_bytes, counted)
        return max(0.0, p.latency - copies) + per_round / rate + rounds * p.round + transfer, transfer, limit
    inside, between, turn = each.inside, each.between, each.turn
    carried = per_round / rate
    if between > inside:
        limit, carried = tree[1], between
    if turn > max(inside, between):
        limit, carried = MESSAGES, turn
    # A chunk is reduced in the switch, goes up the tree and down again hop by hop, whole, and is spread by the switch.
    # Chunks follow each other at the pace of the slowest stage: while the NICs carry one, the switch reduces the next
    # and spreads the one before, which go opposite ways over the links. The last round may be short.
    hops = 2 * (system.nodes - 1).bit_length()  # the double tree's depth (src/graph/trees.cc)
    first = 2 * per_round / link + p.tree_round + hops * each.hop
    follow = (nbytes / per_round - 1) * each.pace
    return max(0.0, p.tree_latency - copies) + first + follow, nbytes / per_round * carried, limit
