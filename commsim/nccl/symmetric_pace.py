"""How kernels on symmetric memory go about a call: in rounds of their thread blocks, by loads that are waited for.

A thread block has 512 threads. A thread of LL sends 8 bytes and waits for those of all others before its next 8
(src/device/symmetric/all_reduce.cuh, AllReduce_AGxLL_R; endEpoch). A thread that loads has so many packs of 16 bytes on
their way: eight that the switch adds, four of one peer, then of two peers at a time, twice as many by bulk copies
(allreduceMultimem, allreduceDeep, reduceMultimem, reduceDeep, the same in 2.27.3 to 2.30.7 but for the bulk copies).
Stores are waited for at the end alone.

Two figures are of these kernels alone: `START_S` and `MEMORY_S`; all others are those of rings and NVLS.
"""

from __future__ import annotations

from math import ceil, inf

from commsim.nccl.channels import nvls_channels
from commsim.nccl.machine import Machine, nic_rates
from commsim.nccl.messages import MESSAGES
from commsim.nccl.parameters import Parameters
from commsim.nccl.symmetric import Kernel
from commsim.nccl.system import NVLS_CHUNK, System
from commsim.nccl.version import NEWEST

START_S = 2.0e-6
"""Start and end of a kernel without connections to load or hand over: 3.1 to 3.5 us of AGxLLMC_R on 8 B200 in a CUDA
graph (nvidia/nccl-tests issue 333, 2025-09-28), less the 1.3 us of a hop."""

MEMORY_S = 0.45e-6
"""Load from a peer beyond the hop there and back: 64 KiB of a block in 3.05 us where 8 B200 with one block each reduce
171 GB/s (validation/registered, b200_x8_ctas), less twice 1.3 us."""

_THREADS, _PACK = 512, 16

_SWITCH_HEADS = 8
"""GPUs of a switch for which the rounds of NVLS were measured."""


def hop_s(machine: Machine, parameters: Parameters) -> float:
    """Seconds until a flag or a line that a GPU stores is seen by another of its node: a hop of LL."""
    return parameters.hop_inside(parameters.ring_hop, machine.intra_kind, "LL")


def trip_s(machine: Machine, parameters: Parameters) -> float:
    """Seconds until a load from a peer of the node is back."""
    return 2 * hop_s(machine, parameters) + MEMORY_S


def of_rank(kernel: Kernel, nbytes: int, ranks: int) -> int:
    """Bytes that the thread blocks of one rank make of a call, or send of one by LL.

    Its part, but of an all_reduce by LL the whole array.
    """
    whole = kernel.lines and kernel.collective == "all_reduce"
    return nbytes if whole else -(-nbytes // ranks)


def round_bytes(kernel: Kernel) -> int:
    """Bytes that a thread block makes, or sends of LL, before it waits for what it has asked for or been sent."""
    if kernel.lines:
        return _THREADS * 8
    return _THREADS * _PACK * (8 if kernel.reduces or kernel.tma else 4)


def rounds_of(kernel: Kernel, blocks: int, nbytes: int, ranks: int) -> int:
    """Rounds of the thread blocks for a call of `nbytes`, at least one."""
    return max(1, ceil(of_rank(kernel, nbytes, ranks) / (blocks * round_bytes(kernel))))


def lanes_of(kernel: Kernel, blocks: int) -> int:
    """What goes on by itself in thread blocks: the 16 warps of each, or whole blocks, whose threads meet (LL, puts)."""
    return blocks if kernel.lines or kernel.over_nodes else blocks * _THREADS // 32


def turns_of(kernel: Kernel, ranks: int) -> tuple[float, ...]:
    """Shares of a round's loads that wait for each other: all at once, or of single peers the next, then two by two."""
    if kernel.reduces or kernel.lines:
        return (1.0,)
    others = ranks - 1
    return (1 / others, *(min(2, others - before) / others for before in range(1, others, 2)))


def link_rate(machine: Machine, parameters: Parameters, ranks: int) -> tuple[float, str]:
    """Payload bytes/s into a GPU from all its peers together, and what these links are."""
    if machine.intra_kind in ("pcie", "host"):
        pairs = machine.all_pairs
        if pairs is not None:
            return pairs.rate * (ranks - 1), pairs.limit
        return machine.intra_bandwidth * float(getattr(parameters.efficiency, machine.intra_kind)), "PCIe"
    return machine.intra_bandwidth * float(getattr(parameters.efficiency, machine.intra_kind)), "NVLink"


def switch_port(system: System, machine: Machine, parameters: Parameters) -> float:
    """Bytes/s through a GPU's links, each way, of an all_reduce that the switch reduces and spreads in the long run.

    As NVLS does with all its channels: links at their share, and what its rounds add, which is the switch's own
    (`commsim.nccl.nvls`). A GPU's links carry 1 + 1/n bytes for each byte of the call.
    """
    nvls, heads = parameters.nvls, _SWITCH_HEADS
    links = machine.intra_bandwidth * parameters.efficiency.nvls
    of_round = nvls_channels(system.sm, 1, NEWEST, {}) * heads * NVLS_CHUNK
    return of_round * (1 + 1 / heads) / (of_round / (links / (1 + 1 / heads)) + nvls.round)


def net_rate(machine: Machine, parameters: Parameters, local: int) -> tuple[float, str]:
    """Payload bytes/s of a rank over the network where all ranks of its node send, and what limits them."""
    rate, kind = min((whole_node / local, kind) for kind, _, whole_node in nic_rates(machine, parameters))
    return rate, kind


def message_rate(message: int, machine: Machine, parameters: Parameters, local: int) -> float:
    """Bytes/s of a rank whose card takes messages of so many bytes in turn, from all ranks that share it."""
    turn = parameters.network.message_cost.Simple * local / max(1, machine.nics)
    return message / turn if turn else inf


def with_messages(
    net: tuple[float, str], message: int, machine: Machine, parameters: Parameters, local: int
) -> tuple[float, str]:
    """A rank's rate over the network, and its limit, where cards take messages of so many bytes in turn."""
    return min(net, (message_rate(message, machine, parameters, local), MESSAGES))
