"""The time of NCCL's kernels on symmetric memory and of its copies by copy engines.

No data waits in a buffer between: a kernel starts, meets its peers, and moves bytes straight between the arrays of the
call. Kernels of LL need no meeting, for flags stand beside the data: every GPU stores its part into all others (or once
through the switch) and reads n parts. The others begin with a barrier, load or store, and end with one. What a
thread block moves is bounded by how far its loads are: 64 KiB are on their way at a time, 512 threads with eight packs
of 16 bytes each (2.30.7, src/device/symmetric/all_reduce.cuh).

Rates and hops are those of the parameters that rings and NVLS have. Two figures are of these kernels alone:
`_START_S` and `_MEMORY_S`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf

from commsim.nccl.channels import nvls_channels
from commsim.nccl.machine import Machine, nic_rates
from commsim.nccl.messages import MESSAGES
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import LL
from commsim.nccl.registered import Instead
from commsim.nccl.symmetric import Kernel
from commsim.nccl.symmetric_choice import SymmetricChoice
from commsim.nccl.symmetric_nodes import RING_PIECE, block_rate, passes, put_bytes
from commsim.nccl.system import NVLS_CHUNK, System
from commsim.nccl.version import NEWEST, Version

Timed = tuple[float, float, str]
"""Seconds of a kernel, the bandwidth part of them, and what limits it."""

_START_S = 2.0e-6
"""Start and end of a kernel without connections to load or hand over: 3.1 to 3.5 us of AGxLLMC_R on 8 B200 in a CUDA
graph (nvidia/nccl-tests issue 333, 2025-09-28), less the 1.3 us of a hop."""

_MEMORY_S = 0.45e-6
"""Load from a peer beyond the hop there and back: 64 KiB of a block in 3.05 us where 8 B200 with one block each reduce
171 GB/s (validation/registered, b200_x8_ctas), less twice 1.3 us."""

_IN_FLIGHT = 64 << 10
"""Bytes of a thread block that are on their way at a time (UnrollPacks and UnrollPeers of src/device/symmetric)."""

_SWITCH_HEADS = 8
"""GPUs of a switch for which the rounds of NVLS were measured."""

_COPY_CALLS = 3
"""What the host puts on the stream for copies inside a node (src/ce_coll.cc)."""


def instead_time(
    system: System,
    machine: Machine,
    parameters: Sequence[Parameters],
    own: Instead,
    collective: str,
    nbytes: int,
    version: Version,
    env: Mapping[str, str],
) -> tuple[Timed, int]:
    """Of what runs in place of the tuner's choice, by the slowest of the parameters; how many calls the host makes."""
    if own.choice is None:
        calls = copy_calls(system, collective, nbytes)
        return max(copy_time(system, machine, p, collective, nbytes, calls) for p in parameters), calls
    if own.choice.kernel.over_nodes:
        return max(time_over_nodes(system, machine, p, own.choice, nbytes, version, env) for p in parameters), 1
    return max(symmetric_time(system, machine, p, own.choice, collective, nbytes) for p in parameters), 1


def symmetric_time(
    system: System, machine: Machine, parameters: Parameters, choice: SymmetricChoice, collective: str, nbytes: int
) -> Timed:
    """Of the kernel that NCCL chose, for a call of `nbytes` (the nccl-tests size)."""
    kernel, n = choice.kernel, system.ranks
    hop = parameters.hop_inside(parameters.ring_hop, machine.intra_kind, "LL")
    link, name = _link(machine, parameters, n)
    if kernel.lines:
        arrives = LL.wire_factor * (nbytes * n if collective == "all_reduce" else nbytes)
        transfer = arrives / link
        return _START_S + hop + transfer, transfer, name
    trip = 2 * hop + _MEMORY_S
    rate, share = _rate(kernel, parameters, machine, link, n, system)
    transfer = data = nbytes * share / rate
    if kernel.collective != "all_gather":  # loads are waited for, by thread blocks that have so many on their way
        by_blocks = nbytes / (n * choice.blocks * _block_bytes(kernel, n)) * trip
        data = max(trip + transfer, by_blocks)
        if by_blocks > trip + transfer:
            transfer, name = by_blocks, "thread blocks"
    # A barrier on either side; the last stores are waited for until they have arrived.
    waits = (2 if kernel.collective == "reduce_scatter" else 3) * hop
    return _START_S + waits + data, transfer, name


def _block_bytes(kernel: Kernel, ranks: int) -> float:
    """Bytes of the result that a thread block makes in the time of a load.

    Loads of single peers are two peers' at a time, half as long.
    """
    return _IN_FLIGHT if kernel.reduces else _IN_FLIGHT / 2 / ceil((ranks - 1) / 2)


def _link(machine: Machine, parameters: Parameters, ranks: int) -> tuple[float, str]:
    """Payload bytes/s into a GPU from all its peers together, and what these links are."""
    if machine.intra_kind in ("pcie", "host"):
        pairs = machine.all_pairs
        if pairs is not None:
            return pairs.rate * (ranks - 1), pairs.limit
        return machine.intra_bandwidth * float(getattr(parameters.efficiency, machine.intra_kind)), "PCIe"
    return machine.intra_bandwidth * float(getattr(parameters.efficiency, machine.intra_kind)), "NVLink"


def _rate(
    kernel: Kernel, parameters: Parameters, machine: Machine, link: float, ranks: int, system: System
) -> tuple[float, float]:
    """Bytes/s of the link that counts, and how many bytes it moves for each byte of the call."""
    if kernel.collective == "all_reduce":
        if kernel.reduces:
            return switch_rate(system, machine, parameters), 1.0
        return link, 2 * (ranks - 1) / ranks
    if kernel.reduces:
        return machine.intra_bandwidth * parameters.efficiency.nvls, 1.0
    if kernel.multicast:  # what a GPU stores comes back to it too
        return link, 1.0
    return link, (ranks - 1) / ranks


def switch_rate(system: System, machine: Machine, parameters: Parameters) -> float:
    """Bytes/s of an all_reduce that the switch reduces and spreads in the long run.

    As NVLS does with all its channels: links at their share, and what its rounds add, which is the switch's own
    (`commsim.nccl.nvls`). A GPU's links carry 1 + 1/n bytes for each byte.
    """
    nvls = parameters.nvls
    links = machine.intra_bandwidth * parameters.efficiency.nvls
    of_round = nvls_channels(system.sm, 1, NEWEST, {}) * _SWITCH_HEADS * NVLS_CHUNK
    full = of_round / (of_round / (links / (1 + 1 / _SWITCH_HEADS)) + nvls.round)
    return full * (1 + 1 / _SWITCH_HEADS) / (1 + 1 / system.ranks)


def time_over_nodes(
    system: System,
    machine: Machine,
    parameters: Parameters,
    choice: SymmetricChoice,
    nbytes: int,
    version: Version,
    env: Mapping[str, str],
) -> Timed:
    """Seconds of a kernel for a call of `nbytes` (the nccl-tests size), the bandwidth part of them, and what limits it.

    Rates and hops are those of rings; a hop of the network is one of LL, for nothing is asked for before it is sent.
    No published time holds it.
    """
    nodes, local = system.nodes, system.ranks_per_node
    held = -(-nbytes // system.ranks)
    inside = parameters.hop_inside(parameters.ring_hop, machine.intra_kind, "LL")
    across = float(parameters.network.ring_hop.of("LL"))
    net, limit = _net(machine, parameters, local)
    link, name = _link(machine, parameters, local) if local > 1 else (net, limit)
    if choice.kernel.collective == "all_gather":
        piece = min(held, RING_PIECE * choice.blocks)
        net, limit = _with_messages(net, limit, min(held, RING_PIECE), machine, parameters, local)
        # A node hands on what it has got; a ring of small blocks waits for each of them, one of large ones for none.
        ring = across + held / net + (nodes - 2) * max(held / net, across + piece / net)
        spread = held * system.ranks / link
        transfer, name = max(((nodes - 1) * held / net, limit), (spread, name))
        data = max(ring + piece * local / link, spread + inside)
        return _START_S + 2 * (inside + across) + data, transfer, name  # all ranks meet before and after
    through = passes(system, choice.kernel.reduces)
    net, limit = _with_messages(net, limit, min(held, put_bytes(version, env)), machine, parameters, local)
    by_blocks = choice.blocks * block_rate(system, choice.kernel.reduces, version) / through.blocks
    ways = (by_blocks, "thread blocks"), (link / max(1, through.inside), name), (net / through.across, limit)
    rate, name = min(ways)
    first = min(held, put_bytes(version, env) * choice.blocks) * (through.inside / link + through.across / net)
    return _START_S + 2 * inside + across + first + held / rate, held / rate, name


def _net(machine: Machine, parameters: Parameters, local: int) -> tuple[float, str]:
    """Payload bytes/s of a rank over the network where all ranks of its node send, and what limits them."""
    rate, kind = min((whole_node / local, kind) for kind, _, whole_node in nic_rates(machine, parameters))
    return rate, kind


def _with_messages(
    rate: float, limit: str, message: int, machine: Machine, parameters: Parameters, local: int
) -> tuple[float, str]:
    """The same, where cards take messages of so many bytes, one after the other from all ranks that share them."""
    turn = parameters.network.message_cost.Simple * local / max(1, machine.nics)
    by_messages = message / turn if turn else inf
    return (by_messages, MESSAGES) if by_messages < rate else (rate, limit)


def copy_time(
    system: System, machine: Machine, parameters: Parameters, collective: str, nbytes: int, calls: int
) -> Timed:
    """Of copies by copy engines, between two meetings of all GPUs, in so many `calls`; no thread block is used.

    A GPU's copies go over its links one after the other or side by side, at the links' rate. An all_to_all of
    `nbytes` sends so much from every GPU; a gather or scatter is bound by its root. Over nodes a proxy puts blocks at
    their places meanwhile; what has arrived of an all_gather is copied on in the node.
    """
    n, local = system.ranks, system.ranks_per_node
    hop = parameters.hop_inside(parameters.ring_hop, machine.intra_kind, "LL")
    start = calls * _START_S + 3 * hop
    if system.nodes == 1:
        link, name = _link(machine, parameters, n)
        transfer = nbytes * (n - 1) / n / link
        return start + transfer, transfer, name
    block = -(-nbytes // n)
    across = float(parameters.network.ring_hop.of("LL"))
    net, limit = _with_messages(*_net(machine, parameters, local), min(block, _COPIED), machine, parameters, local)
    link, name = _link(machine, parameters, local) if local > 1 else (inf, "NVLink")
    gathers = collective == "all_gather"
    put = block * (system.nodes - 1) * (1 if gathers else local) / net
    inside = block * (local - 1) * (system.nodes if gathers else 1) / link
    last = min(block, _COPIED) * (local - 1) / link if gathers else 0.0
    transfer, name = max((put, limit), (inside, name))
    return start + 2 * across + max(put + last, inside), transfer, name  # all meet along the rails first


_COPIED = 64 << 20
"""Most bytes of a put and of the copies that follow it (HIER_COLL_MAX_CHUNK_SIZE)."""


def copy_calls(system: System, collective: str, nbytes: int) -> int:
    """What the host puts on the stream: to meet, to copy, to meet.

    Over nodes a barrier along the rails, the start of the puts, a wait for them and one for their end come on top; an
    all_gather waits for each put, and copies it on (ncclHierCeAllGather, ncclHierCeAlltoAll).
    """
    if system.nodes == 1:
        return _COPY_CALLS
    if collective != "all_gather":
        return _COPY_CALLS + 4
    pieces = -(-max(1, nbytes // system.ranks) // _COPIED)
    return _COPY_CALLS + 3 + 2 * (system.nodes - 1) * pieces
