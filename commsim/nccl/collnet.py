"""CollNetDirect, CollNetChain and NVLS across nodes: the switches of the network reduce (SHARP), once up and once down.

Of an all_reduce every node sends the vector to the network once and receives the result once, whatever the number of
nodes. Of a reduce_scatter it sends the vector and receives its own part, of an all_gather the other way round: the
network is busy in one direction. Inside a node its GPUs scatter and gather the parts of the heads (direct), pass them
along a chain, or leave it to the NVSwitch.
"""

from __future__ import annotations

from commsim.nccl.channels import Call
from commsim.nccl.machine import Machine, inside_name, intra_bandwidth, node_rate
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import Part, chunk_bytes, loops
from commsim.nccl.system import System

_NETWORK_S = {"collnet_direct": 31e-6, "collnet_chain": 30e-6, "nvls": 18e-6}
"""Up to the switch that reduces and down again, with the plugin (NCCL 2.30.7 src/graph/tuning.cc, hwLat NET)."""

_NETWORK_LL_S = 5e-6
"""The same of LL, which NCCL had for CollNet up to 2.13."""

_BOTH_WAYS = 0.5
"""Of a NIC's rate NCCL counts half where the network reduces and spreads (tuning.cc: the ratio 0.5 of CollNet,
N / (2 (N - 1)) of NVLS); two published runs with SHARP reach 0.49 and 0.56 of it."""

_ONE_WAY = 0.9
"""The same of an all_gather or reduce_scatter (2.27 tuning.cc, bwInter * 0.9f). No published run shows it."""


def collnet_time(system: System, machine: Machine, parameters: Parameters, call: Call) -> tuple[float, float, str]:
    """Seconds of the kernel without its start, the bandwidth part of them, and what limits it.

    The network's latency is NCCL's own figure; rates are those of the links, as in the other algorithms.
    """
    n, S, channels = system.ranks_per_node, call.nbytes, max(1, call.split.channels)
    inside, latency = _inside(system, machine, parameters, call)
    across, kind = node_rate(machine, parameters)
    blocks = channels * parameters.block_rate.of(call.protocol.name) * (n if call.algorithm != "collnet_chain" else 1)
    across *= _BOTH_WAYS if call.collective == "all_reduce" else _ONE_WAY
    rate, limit = min((across, kind), (blocks, "thread block"), (inside, inside_name(machine)))
    chunk = chunk_bytes(system, call.collective, call.algorithm, call.protocol, Part(S, channels), call.buffer_bytes)
    rounds = loops(system, call.algorithm, call.split.channel_bytes, chunk)
    # What is in the node, on the way and back in the node at once: one round of three is not hidden on either side.
    fill = 2 * (S / rounds) / rate
    network = _NETWORK_S[call.algorithm] if call.protocol.is_simple else _NETWORK_LL_S
    return latency + network + fill + S / rate, S / rate, limit


def _inside(system: System, machine: Machine, parameters: Parameters, call: Call) -> tuple[float, float]:
    """Bytes of the call per second that the links of a node carry, and the latency inside it."""
    n = system.ranks_per_node
    if n == 1:
        return float("inf"), 0.0
    hop = parameters.hop_inside(parameters.tree_hop, machine.intra_kind, call.protocol.name)
    if call.algorithm == "nvls":
        own = 1 / n if call.collective == "all_reduce" else 0.0  # see `commsim.nccl.nvls`
        return machine.intra_bandwidth * parameters.efficiency.nvls / (1 + own), parameters.nvls.latency
    link = intra_bandwidth(machine, parameters, call.protocol)
    if call.algorithm == "collnet_chain":  # up one way of the links, down the other
        # A GPU between the ends of a chain sends to both neighbours.
        return link / (2 if n > 2 else 1), 2 * (n - 1) * hop
    both = 2 if call.collective == "all_reduce" else 1
    return link * n / (both * (n - 1)), 2 * hop
