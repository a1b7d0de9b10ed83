"""Sends and receives, and what torch and nccl-tests make of them: send_recv, all_to_all, gather, scatter.

Rounds of pairs run side by side on channels of their own (src/init.cc, src/enqueue.cc): a pair is as fast as its
channels, all pairs together as fast as the links of a GPU or the NICs of a node.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING

from commsim.nccl.channels import p2p_channels, p2p_start
from commsim.nccl.environment import whole
from commsim.nccl.machine import inside_name, nic_efficiency, nic_rates
from commsim.nccl.paths import NVL, P2C, PIX, PXB
from commsim.nccl.view import view_of
from commsim.units import GIGA

if TYPE_CHECKING:
    from commsim.nccl.machine import Machine
    from commsim.nccl.parameters import Parameters
    from commsim.nccl.system import System
    from commsim.nccl.version import Version
    from commsim.topology.graph import Topology

_PART_BEFORE_2_22 = 2 << 20
_CHUNK_ONE_NODE = 512 << 10
_CHUNK = 128 << 10
_MOST_CHANNELS = 32
_PARTS_SINCE = (2, 22, 0)
_PEERS_AT_ONCE = 8
"""Peers that one block serves side by side (NCCL_MAX_DEV_WORK_P2P_PER_BATCH of src/include/device.h): of several nodes
those of one node start on the same channel (src/include/channel.h, ncclChannelComputeBase; now
ncclP2pChannelBaseForRound)."""

_NO_FLUSH_SM = 90
"""From this compute capability on nothing that a NIC wrote is flushed (src/graph/paths.cc, ncclTopoNeedFlush)."""

_PXN_SINCE: Version = (2, 12, 0)

_RATE_SINCE = (2, 29, 0)
_RATE_RATIO = 2
"""Of `Network.channel_rate` from 2.29 on, which counts 14 GB/s a channel where it counted two for a peer
(src/graph/paths.cc, P2P_PER_CHANNEL_NET_BW). Sends of H100 and B200: 24.9 GB/s over two channels, 15.2 and 14.7 over
one, where two carried 13.5 to 14.5 before."""


def peer_channels(system: System, machine: Machine, nbytes: int, peers: int, version: Version) -> tuple[int, int]:
    """Channels that carry one peer's `nbytes` (src/enqueue.cc, addP2pToPlan), and the bytes of the fullest.

    Sends start with few channels, so that all peers of a communicator would find room, and take more only where a
    channel's part grows large. Before 2.22 each part is filled with 2 MiB before another channel gets one: so do the
    measured curves of that time, none of which states its version. The source of 2.14 to 2.21 cuts from 64 KiB on.
    """
    alone = system.nodes == 1
    total, most = p2p_channels(
        system.coll_channels,
        system.nodes,
        system.ranks,
        machine.pair_links,
        max(1, machine.nics // system.ranks_per_node),
        machine.nic_gbps,
        version,
    )
    if version < _PARTS_SINCE:
        most = min(16, max(1, _MOST_CHANNELS // max(1, peers)) if alone else most)
        channels = max(1, min(most, ceil(nbytes / _PART_BEFORE_2_22)))
        return channels, max(min(nbytes, _PART_BEFORE_2_22), ceil(nbytes / channels))
    chunk = _chunk(system, machine)
    least, largest = (chunk // 8, _MOST_CHANNELS * chunk) if alone else (chunk // 2, chunk)
    channels = max(1, min(p2p_start(most, total, system.ranks), ceil(nbytes / least)))
    while channels < most and nbytes / channels > largest:
        channels *= 2
    return channels, ceil(nbytes / channels)


def _chunk(system: System, machine: Machine) -> int:
    """Bytes that a send hands over at once (src/init.cc, computeBuffSizes)."""
    return _CHUNK_ONE_NODE if system.nodes == 1 and machine.intra_kind.startswith("nvlink") else _CHUNK


def _net_chunk(each: float) -> int:
    """Bytes that a send of `each` hands to the network at once (src/enqueue.cc, addP2pToPlan).

    From 1 MiB on they are 128 KiB in NCCL; what 16 A100 lose to the first ones does not grow there.
    """
    return _CHUNK // 4 if each < _CHUNK else _CHUNK // 2


def busiest_rail(topology: Topology, version: Version, env: dict[str, str]) -> float:
    """The share of what the first GPU of a node sends to all ranks of another that the busiest NIC carries.

    Since 2.12 a send leaves by the NIC beside the GPU that has the receiver's place in the sender's node, through that
    GPU (PXN): on a fabric of rails nothing changes its rail on the way (src/graph/topo.cc, ncclTopoGetNetDev,
    NCCL_P2P_PXN_LEVEL). So a root that sends to all ranks of a node does so by all NICs of its own. It sends by its own
    NIC where it has no NVLink to that GPU, or where that GPU's NIC is farther than PCIe switches or does not read from
    GPUs; always, so that the share is 1, before 2.12 and with NCCL_PXN_DISABLE=1 or NCCL_P2P_PXN_LEVEL=0.
    """
    off = version < _PXN_SINCE or whole(env, "NCCL_PXN_DISABLE") == 1 or whole(env, "NCCL_P2P_PXN_LEVEL") == 0
    if off or topology.nodes == 1:
        return 1.0
    view = view_of(topology, version, env)
    own, carried = view.local_net(0, 0), Counter[int | None]()
    for gpu in range(view.gpus):
        nic = view.local_net(gpu, 0)
        path = None if nic is None else view.gpu_net[gpu][nic]
        reached = path is not None and path.type in (PIX, PXB, P2C) and view.gpu_gpu[0][gpu].type <= NVL
        carried[nic if reached else own] += 1
    return max(carried.values()) / view.gpus


def p2p_time(
    system: System,
    machine: Machine,
    parameters: Parameters,
    collective: str,
    nbytes: int,
    version: Version,
    rail: float = 1.0,
) -> tuple[float, float, str, int]:
    """Seconds of the kernel, the bandwidth part of them, what limits it, and the channels per peer.

    `nbytes` is the nccl-tests size: what one rank sends to all peers together, or to its one peer. What it sends to
    itself in an all_to_all is copied, at `copy_rate`, while its blocks send nothing else: two to eight A100 take as
    long as (N-1)/N of the bytes at 235 GB/s and 1/N at 793 GB/s, eight H100 at 367 and 960. Beside a network it
    does not show. Inside a node the receiver takes over the first chunk when all of it is written, from 2.22 on; a send
    to another node waits longer for its network.

    Over PCIe each link of a node carries what all pairs of an all_to_all send by it (`commsim.nccl.machine.shared`):
    with four of eight GPUs below a switch 16 pieces leave by its one port. It is taken to reach the share that a GPU's
    port does of what goes through the memory of a host: two RTX 2080 Ti below a switch send 8 of its 12 GB/s.

    `rail` is the share of what the root of a scatter sends to other nodes that the busiest NIC of its node carries, and
    the proxy there posts (`busiest_rail`).

    In an all_to_all over nodes one block serves the peers of a node together, from 2.22 on: parts of before are as long
    as measured without it. What it hands over first takes it as long for all of them, before the NIC can begin, and as
    long again at the other end, after the NIC has ended: 16 A100 take 9, 16, 35 and 67 us longer where each gets 8 to
    64 KiB than where it gets 4 B, and 62 to 80 us beside their NICs' time where it gets more.

    What a rank posts of at most `Network.inline` bytes its host hands to the NIC: measured of all_to_all, taken to hold
    for the root of a scatter, and for the one message that a rank posts in gather and send_recv.
    """
    n, ppn = system.ranks, system.ranks_per_node
    peers = 1 if collective == "send_recv" else n - 1
    each = nbytes if collective == "send_recv" else nbytes / n
    channels, part = peer_channels(system, machine, ceil(each), peers, version)
    p, efficiency, network = parameters.point_to_point, parameters.efficiency, parameters.network
    local = min(peers, ppn - 1) if collective != "send_recv" or system.nodes == 1 else 0
    remote = peers - local
    across = network.channel_rate * (_RATE_RATIO if version >= _RATE_SINCE else 1)
    rate = p.channel_rate if local else min(p.channel_rate, across)
    shared = collective == "all_to_all" and remote > 0 and ppn > 1 and version >= _PARTS_SINCE
    side_by_side = min(_PEERS_AT_ONCE, ppn) if shared else 1
    first = side_by_side * min(part, _net_chunk(each)) / p.channel_rate if shared else 0.0
    # Seconds, what takes them, and the first and last chunks before and after; inside the node there are none of these.
    parts = [(max(part / rate, side_by_side * part / p.channel_rate), "thread block", first)]
    if remote and local:
        parts.append((part / across, "network channel", 2 * first))
    if local:
        share = float(getattr(efficiency, machine.intra_kind))
        link = machine.intra_bandwidth * share
        if machine.intra_kind == "nvlink_direct" and collective == "send_recv":
            link /= max(1, ppn - 1)  # one neighbour, one bundle of the mesh
        handed = remote * (1 - rail) if collective == "scatter" else 0.0  # to the GPUs beside other NICs
        at_links, limit = (local + handed) * each / link, inside_name(machine)
        if collective == "all_to_all" and machine.all_pairs is not None:  # ports of PCIe switches and hosts are shared
            at_links, limit = each / (machine.all_pairs.rate * share), machine.all_pairs.limit
        parts.append((at_links, limit, 0.0))
        port = next((bw for kind, bw, _ in machine.nic_path if kind == "PCIe"), 0.0)
        if remote and port and machine.intra_kind in ("pcie", "host"):  # neighbours and NICs share a GPU's port
            parts.append(((local + remote) * each / (port * efficiency.pcie), "PCIe", 0.0))
    # Each channel has work of its own to be handed to the kernel; that of remote peers lies in what such a peer costs.
    latency = p.base + parameters.channel_cost_of(version) * (min(_MOST_CHANNELS, channels * max(1, local)) - 1)
    if local and not remote and version >= _PARTS_SINCE:
        latency += min(part, _chunk(system, machine)) / p.channel_rate
    if remote:
        many = collective != "send_recv"
        rates = nic_rates(machine, parameters, all_to_all=collective == "all_to_all")
        # A root's node alone is busy in gather and scatter, where a gather comes in over the NIC beside the root; in
        # all_to_all all ranks of a node share its NICs. In send_recv one rank of a node sends to the next, over one.
        senders = {"all_to_all": float(ppn), "scatter": rail}.get(collective, 1.0)
        whole = collective == "all_to_all"
        out, kind = min((together if whole else one, kind) for kind, one, together in rates)
        parts.append((senders * remote * each / out, kind, 2 * first))
        beyond = max(0, system.nodes - machine.leaf_nodes) * ppn if collective == "all_to_all" else 0
        if beyond and machine.oversubscription > 1:
            # What leaves the leaf shares its uplinks; rings do not feel them, they leave a leaf only once.
            uplink = machine.nic_gbps * GIGA * machine.nics / machine.oversubscription
            uplink *= nic_efficiency(machine, parameters, all_to_all=True)
            parts.append((senders * beyond * each / uplink, "leaf uplinks", 2 * first))
        # A flush is a read of the NIC after it wrote to a GPU's memory. TCP fills the host's.
        flushed = system.sm < _NO_FLUSH_SM and network.name != "ethernet"
        latency += network.ring_hop.Simple * (2 if flushed else 1)
        sends = ceil(remote * rail) if collective == "scatter" else remote
        latency += network.peer_cost * (sends if many else 0)
        posted = sends if many and collective != "gather" else 1
        latency += network.inline_cost * posted if each <= network.inline else 0.0
    busy, limit, waits = max(parts, key=lambda timed: (timed[0] + timed[2], timed[1]))
    latency += waits
    own = each / parameters.copy_rate if collective == "all_to_all" and not remote else 0.0
    return latency + busy + own, busy, limit, channels
