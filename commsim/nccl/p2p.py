"""Sends and receives, and what torch and nccl-tests make of them: send_recv, all_to_all, gather, scatter.

Rounds of pairs run side by side on channels of their own (src/init.cc, src/enqueue.cc): a pair is as fast as its
channels, all pairs together as fast as the links of a GPU or the NICs of a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, gcd, inf
from typing import NamedTuple

from commsim.nccl.channels import p2p_channels, p2p_start
from commsim.nccl.environment import whole
from commsim.nccl.machine import MEMORY, UPLINKS, Machine, inside_name, nic_efficiency, nic_rates
from commsim.nccl.parameters import Parameters
from commsim.nccl.paths import NVL, P2C, PIX, PXB
from commsim.nccl.protocols import LL, SIMPLE, WARP, Protocol
from commsim.nccl.system import System
from commsim.nccl.version import Version
from commsim.nccl.view import view_of
from commsim.topology.graph import Topology
from commsim.units import GIGA

_PART_BEFORE_2_22 = 2 << 20
_CHUNK_ONE_NODE = 512 << 10
_CHUNK = 128 << 10
_MOST_CHANNELS = 32
_PARTS_SINCE = (2, 22, 0)
_LINES = 16 << 10
"""Bytes for each channel of a peer up to which it is sent by LL (NCCL_P2P_LL_THRESHOLD), over NVLink, PCIe and host
memory. What goes to another node is Simple, unless NCCL_ALLOC_P2P_NET_LL_BUFFERS is set (src/transport/net.cc)."""

_LINES_BY_USE_SINCE: Version = (2, 29, 0)
"""From then on the channels in use count (as those of Simple), from 2.22 on all that a peer may have."""

_RECEIVING_THREADS = 9 * WARP
"""Of a block's 20 warps: a tenth sends, and one is left over (src/device/sendrecv.h)."""

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

NET_CHUNK = 128 << 10
"""Bytes of a send to another node that its block hands over at a time (src/init.cc, NCCL_P2P_NET_CHUNKSIZE)."""

_PACK = 16
"""Bytes that a thread moves at once where all ends lie on as many (src/device/common_kernel.h, reduceCopy).

Sends are single bytes to NCCL, and so it moves them elsewhere (src/device/sendrecv.h). A ring's elements of four bytes,
a quarter of a pack, go at 0.24 of a block's rate (`commsim.nccl.lower`).
"""


def off_packs(collective: str, nbytes: int, ranks: int) -> float:
    """Share of a rank's peers whose parts do not begin on a pack, of a call of `nbytes` (see `p2p_time`).

    The part of peer k begins after k parts, that of the only peer of a send_recv where the buffer does.
    """
    if collective == "send_recv" or nbytes % ranks:
        return 0.0
    return 1 - gcd(nbytes // ranks, _PACK) / _PACK


class Ends(NamedTuple):
    """Who sends: of a gather or scatter the root's node, its ranks, and the weakest of other nodes and its ranks."""

    root: Machine
    ranks: int
    other: Machine
    others: int


class PeerChannels(NamedTuple):
    """What carries the bytes of one peer: its channels, bytes of the fullest, channels of all peers, whether by LL."""

    channels: int
    part: int
    every: int
    lines: bool


def peer_channels(system: System, machine: Machine, nbytes: int, peers: int, version: Version) -> PeerChannels:
    """The channels of one peer's `nbytes` (src/enqueue.cc, addP2pToPlan).

    Sends start with few channels, so that all peers of a communicator would find room, and take more only where a
    channel's part grows large. Before 2.22 each part is filled with 2 MiB before another channel gets one: so do the
    measured curves of that time, none of which states its version. The source of 2.14 to 2.21 cuts from 64 KiB on,
    and has LL for parts of up to 16 KiB, which no curve of one node tells of.
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
        part = max(min(nbytes, _PART_BEFORE_2_22), ceil(nbytes / channels))
        return PeerChannels(channels, part, total, lines=False)
    lines = alone and version < _LINES_BY_USE_SINCE and nbytes <= most * _LINES
    chunk = round(LL.step_bytes * LL.wire_factor) if lines else chunk_of(system, machine)
    least, largest = (chunk // 8, _MOST_CHANNELS * chunk) if alone else (chunk // 2, chunk)
    channels = max(1, min(p2p_start(most, total, system.ranks), ceil(nbytes / least)))
    while channels < most and nbytes / channels > largest:
        channels *= 2
    if alone and version >= _LINES_BY_USE_SINCE:
        lines = nbytes <= channels * _LINES
    return PeerChannels(channels, ceil(nbytes / channels), total, lines)


def chunk_of(system: System, machine: Machine) -> int:
    """Bytes that a send hands over at once (src/init.cc, computeBuffSizes)."""
    return _CHUNK_ONE_NODE if system.nodes == 1 and machine.intra_kind.startswith("nvlink") else _CHUNK


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
    nics = [next(iter(view.local_nets(gpu)), None) for gpu in range(view.gpus)]
    carried = Counter[int | None]()
    for gpu, nic in enumerate(nics):
        path = None if nic is None else view.gpu_net[gpu][nic]
        reached = path is not None and path.type in (PIX, PXB, P2C) and view.gpu_gpu[0][gpu].type <= NVL
        carried[nic if reached else nics[0]] += 1
    return max(carried.values()) / view.gpus


@dataclass(frozen=True)
class Sends:
    """What one rank sends in a call, and how its channels carry it."""

    collective: str
    each: float  # bytes to a peer
    local: int  # peers in its node
    remote: int
    channels: int  # of one peer
    part: int  # bytes of the fullest
    every: int  # channels of all peers together
    protocol: Protocol
    together: int  # peers that one block serves side by side
    own: int  # ranks of its node, itself included
    rail: float  # share of what a scatter sends to other nodes that its busiest NIC carries (`busiest_rail`)

    @property
    def to_all(self) -> bool:
        """Whether every rank sends to every other."""
        return self.collective == "all_to_all"


Stretch = tuple[float, str, float]
"""Seconds that a part of the machine is busy, its name, and those of the first and last chunks before and after."""


def with_chunk(parameters: Parameters, env: Mapping[str, str]) -> Parameters:
    """The parameters where a job's variables size the chunks of sends to other nodes.

    A chunk is copied by its block and handed over, which takes as long whatever its size: NVIDIA's recipes take 2 MiB
    to have less of that (NeMo, `nemo/lightning/run/plugins.py`, ``nccl_pp_comm_chunksize``).
    """
    chunk = whole(env, "NCCL_P2P_NET_CHUNKSIZE") or NET_CHUNK
    if chunk == NET_CHUNK:
        return parameters
    block, rate = parameters.point_to_point.channel_rate, parameters.network.channel_rate
    handed_over = max(NET_CHUNK / rate - NET_CHUNK / block, 0.0)
    other = parameters.network.model_copy(update={"channel_rate": chunk / (chunk / block + handed_over)})
    return parameters.model_copy(update={"network": other})


def p2p_time(
    system: System,
    ends: Ends,
    parameters: Parameters,
    collective: str,
    nbytes: int,
    version: Version,
    rail: float = 1.0,
    off: float = 0.0,
) -> tuple[float, float, str, int]:
    """Seconds of the kernel, the bandwidth part of them, what limits it, and the channels per peer.

    `nbytes` is the nccl-tests size: what one rank sends to all peers together, or to its one peer. `rail` is the share
    of a scatter that the busiest NIC carries (`busiest_rail`), `off` that of the peers whose parts are moved byte by
    byte (`off_packs`).
    """
    machine = ends.root
    sends = _sends(system, ends, collective, nbytes, version, rail)
    simple = sends.protocol.is_simple
    if not simple:  # LL shifts what it loads, and loses next to nothing
        off = 0.0
    slower = _PACK if off else 1
    block = parameters.point_to_point.channel_rate / slower if simple else parameters.ll_rate(_RECEIVING_THREADS)
    first = 0.0
    if sends.together > 1:  # what a block hands over first takes it as long for all its peers, at both ends
        # From 1 MiB on NCCL hands over 128 KiB; what 16 A100 lose to the first ones does not grow there.
        chunk = _CHUNK // 4 if sends.each < _CHUNK else _CHUNK // 2  # src/enqueue.cc, addP2pToPlan
        first = sends.together * min(sends.part, chunk) / block
    stretches = [
        *_blocks(machine, parameters, sends, version, block, first, off),
        *_inside(system, machine, parameters, sends),
        *_between(system, machine, parameters, sends, first),
    ]
    if ends.other is not machine and sends.remote:  # whose NICs each bring or take away what their own ranks have
        out, kind = min((together, kind) for kind, _, together in nic_rates(ends.other, parameters))
        stretches.append((ends.others * sends.each / out, kind, 2 * first))
    busy, limit, waits = max(stretches, key=lambda one: (one[0] + one[2], one[1]))
    latency = _latency(system, machine, parameters, sends, version, block) + waits
    # Its own block of an all_to_all is copied while its blocks send nothing; beside a network it does not show.
    # 2 to 8 A100 take as long as (N-1)/N of the bytes at 235 GB/s and 1/N at 793, 8 H100 at 367 and 960.
    own = sends.each * slower / parameters.copy_rate if sends.to_all and not sends.remote else 0.0
    return latency + busy + own, busy, limit, sends.channels


def _sends(system: System, ends: Ends, collective: str, nbytes: int, version: Version, rail: float) -> Sends:
    """What a rank sends.

    From 2.22 on one block serves the peers of a node together in an all_to_all over nodes: 16 A100 take 9, 16, 35 and
    67 us longer where each gets 8 to 64 KiB than where it gets 4 B. Before, parts are as long as measured without it.
    """
    n, ppn, machine = system.ranks, ends.ranks, ends.root
    alone = collective == "send_recv"
    peers, each = (1, nbytes) if alone else (n - 1, nbytes / n)
    sent_by = peer_channels(system, machine, ceil(each), peers, version)
    local = min(peers, ppn - 1) if not alone or system.nodes == 1 else 0
    shared = collective == "all_to_all" and peers > local and ppn > 1 and version >= _PARTS_SINCE
    together = min(_PEERS_AT_ONCE, ppn) if shared else 1
    protocol = LL if sent_by.lines else SIMPLE
    return Sends(
        collective,
        each,
        local,
        peers - local,
        sent_by.channels,
        sent_by.part,
        sent_by.every,
        protocol,
        together,
        ppn,
        rail,
    )


def _blocks(
    machine: Machine, parameters: Parameters, sends: Sends, version: Version, block: float, first: float, off: float
) -> Iterator[Stretch]:
    """The thread blocks of a peer's channels, of all peers where they move bytes, and these channels over the network.

    `block` is the bytes/s of one. Of whole packs all blocks together move more than the links.
    """
    across, by = _across(machine, parameters, sends, version, block)
    rate, limit = (block, "thread block") if sends.local else min((block, "thread block"), (across, by))
    yield max(sends.part / rate, sends.together * sends.part / block), limit, first
    if off:
        moved = (sends.local + sends.remote) * sends.each * (off + (1 - off) / _PACK)
        yield moved / (sends.every * block), "thread block", first
    if sends.remote and sends.local:
        yield sends.part / across, "network channel" if by != MEMORY else by, 2 * first


def _across(
    machine: Machine, parameters: Parameters, sends: Sends, version: Version, block: float
) -> tuple[float, str]:
    """Bytes/s of one channel over the network, and what limits it.

    Without GPUDirect RDMA a connection's buffers are in the memory of a host (src/transport/net.cc, sendProxyConnect):
    where it else copies inside its GPU, a block copies over its share of the GPU's port, before it hands over.
    """
    rate = parameters.network.channel_rate * (_RATE_RATIO if version >= _RATE_SINCE else 1)
    ports = {kind: one for kind, one, _ in nic_rates(machine, parameters) if kind in (MEMORY, "PCIe")}
    if not sends.remote or ports.get(MEMORY, inf) == inf:
        return rate, "thread block"
    share = min(ports.values()) / min(sends.every, sends.channels * sends.remote)
    if share >= block:
        return rate, "thread block"
    return 1 / (1 / rate + 1 / share - 1 / block), MEMORY


def _inside(system: System, machine: Machine, parameters: Parameters, sends: Sends) -> Iterator[Stretch]:
    """The links inside a node, which have no ends.

    Over PCIe each link carries what all pairs of an all_to_all send by it (`commsim.nccl.machine.shared`), at the share
    of its rate that a port reaches through the memory of a host.
    """
    if not sends.local:
        return
    share = parameters.efficiency.inside(machine.intra_kind, sends.protocol) / sends.protocol.wire_factor
    link = machine.intra_bandwidth * share
    if machine.intra_kind == "nvlink_direct" and sends.collective == "send_recv":
        link /= max(1, sends.own - 1)  # one neighbour, one bundle of the mesh
    handed = sends.remote * (1 - sends.rail) if sends.collective == "scatter" else 0.0  # to GPUs beside other NICs
    if sends.to_all and machine.all_pairs is not None:
        yield sends.each / (machine.all_pairs.rate * share), machine.all_pairs.limit, 0.0
    else:
        yield (sends.local + handed) * sends.each / link, inside_name(machine), 0.0
    port = next((bw for kind, bw, _ in machine.nic_path if kind == "PCIe"), 0.0)
    if sends.remote and port and machine.intra_kind in ("pcie", "host"):  # neighbours and NICs share a GPU's port
        yield (sends.local + sends.remote) * sends.each / (port * parameters.efficiency.pcie), "PCIe", 0.0


def _between(
    system: System, machine: Machine, parameters: Parameters, sends: Sends, first: float
) -> Iterator[Stretch]:  # fmt: skip
    """The NICs of a node, and the uplinks of its leaf.

    In all_to_all all ranks of a node share its NICs. In gather and scatter the root's node alone is busy, in send_recv
    one rank of a node, each over one NIC.
    """
    if not sends.remote:
        return
    senders = {"all_to_all": float(sends.own), "scatter": sends.rail}.get(sends.collective, 1.0)
    rates = nic_rates(machine, parameters, all_to_all=sends.to_all)
    out, kind = min((together if sends.to_all else one, kind) for kind, one, together in rates)
    yield senders * sends.remote * sends.each / out, kind, 2 * first
    beyond = max(0, system.nodes - machine.leaf_nodes) * system.ranks_per_node if sends.to_all else 0
    if beyond and machine.oversubscription > 1:  # rings do not feel the uplinks: they leave a leaf only once
        uplink = machine.nic_gbps * GIGA * machine.nics / machine.oversubscription
        uplink *= nic_efficiency(machine, parameters, all_to_all=True)
        yield senders * beyond * sends.each / uplink, UPLINKS, 2 * first


def _latency(
    system: System, machine: Machine, parameters: Parameters, sends: Sends, version: Version, block: float
) -> float:
    """Seconds beside the bytes.

    Each channel has work to be handed to the kernel; that of remote peers lies in `Network.peer_cost`. A send to
    another node waits for its network. What a rank posts of at most `Network.inline` bytes its host hands to the NIC:
    measured of all_to_all, taken to hold for the root of a scatter, and for the one message of gather and send_recv.
    """
    p, network = parameters.point_to_point, parameters.network
    used = min(_MOST_CHANNELS, sends.channels * max(1, sends.local))
    latency = p.base + parameters.channel_cost_of(version) * (used - 1)
    if sends.local and not sends.remote and sends.protocol.is_simple:
        # Inside a node the receiver takes over the first chunk when all of it is written and fenced.
        latency += parameters.pause.Simple
        if version >= _PARTS_SINCE:
            latency += min(sends.part, chunk_of(system, machine)) / block
    if sends.remote:
        # A flush is a read of the NIC after it wrote to a GPU's memory. TCP fills the host's.
        flushed = system.sm < _NO_FLUSH_SM and network.name != "ethernet"
        latency += network.ring_hop.Simple * (2 if flushed else 1)
        count = ceil(sends.remote * sends.rail) if sends.collective == "scatter" else sends.remote
        many = sends.collective != "send_recv"
        latency += network.peer_cost * (count if many else 0)
        posted = count if many and sends.collective != "gather" else 1
        latency += network.inline_cost * posted if sends.each <= network.inline else 0.0
    return latency
