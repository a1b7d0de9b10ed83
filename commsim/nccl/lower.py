"""From NCCL's choice to what one channel does: loops, slices, hops and rates.

Channels of a call are alike, so one stands for all: it gets its share of every link. A ring channel becomes a
`RingPlan` (regular enough for a closed form or a wavefront, and convertible to an explicit Schedule); a tree becomes
the explicit Schedule of one pair of trees. The terms and their sources:

* loops of N chunks, slices within a chunk, a last smaller loop (src/device/all_reduce.h, prims_simple.h);
* LL and LL128 hand data over by flags inside the data, so a receiver works while a chunk arrives. The warps of a block
  work side by side, each on lines of its own, at the rate of the block: what they hold at once is ready at once;
* a hop costs the protocol's latency once per slice; a thread block or a link moves the slice at its rate;
* Simple's block waits for its peers' counters, meets at a barrier and fences its stores at every slice, and moves
  nothing meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil, gcd, inf, log2
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.collectives.semantics import CHAINED
from commsim.nccl.channels import Split
from commsim.nccl.chunks import step_bytes
from commsim.nccl.environment import THROUGH_HOST
from commsim.nccl.inside import Shared, Ways, ring_ways, shared, staged_rate, tree_ways
from commsim.nccl.ordering import NO_ORDERING, Ordering
from commsim.nccl.protocols import MIN_SLICE_BYTES, RING_CHUNK_STEPS, RING_SLICE_STEPS, WARP, Protocol
from commsim.nccl.system import System
from commsim.topology.kinds import LINK_NAMES, LinkKind, VertexKind
from commsim.units import gb_per_s

if TYPE_CHECKING:
    from commsim.nccl.parameters import NetworkParameters, Parameters, PerProtocol
    from commsim.topology.graph import Topology

Float64 = npt.NDArray[np.float64]

MAX_SLICES = 8
"""Finest cut of an LL or LL128 chunk that is simulated: a step takes at most 1/8 of its chunk longer than its hop."""


@dataclass(frozen=True)
class Call:
    """One collective call after NCCL's choice."""

    collective: str
    nbytes: int
    algorithm: str
    protocol: Protocol
    split: Split
    buffer_bytes: int
    exact: bool = False  # `nbytes` are those of a real call, not what a benchmark rounds


@dataclass(frozen=True)
class Loop:
    """`count` equal rounds of a ring: every rank's chunk is `slices` slices of `slice_bytes`."""

    count: int
    slices: int
    slice_bytes: int


@dataclass(frozen=True)
class Machine:
    """What the lowering needs of a topology: nominal bytes/s out of a GPU inside its node over links of a kind (the
    field of `Efficiency`), NICs that its ranks keep busy, and the narrowest link of each kind on the way through one
    NIC: (kind, bytes/s of one, how many of them the node's NICs have together), and `COPY` where a processor copies."""

    intra_bandwidth: float
    intra_kind: str
    nics: int
    nic_path: tuple[tuple[str, float, int], ...]
    all_pairs: Shared | None = None  # what each pair of GPUs of a node gets over PCIe while all pairs send
    pair_links: int = 0  # NVLinks that join two GPUs, all of one GPU's through a switch
    nic_gbps: float = 0.0
    through_host: bool = False  # GPU and NIC meet in the PCIe root of the host, or in its memory
    leaf_nodes: int = 0  # nodes under one leaf
    oversubscription: float = 1.0  # of the leaves' uplinks
    cut: float = inf  # bytes/s between the halves of a mesh of GPUs or of a torus, which the rates above do not see
    ordering: Ordering = NO_ORDERING
    ring_ways: Ways | None = None  # of the channels on a mesh of GPUs, where known
    tree_ways: Ways | None = None


@dataclass(frozen=True)
class Shares:
    """What one channel gets of the machine: payload bytes/s inside and between nodes, and what limits them."""

    intra: float
    inter: float
    intra_limit: str
    inter_limit: str


@dataclass(frozen=True)
class Turn:
    """The time between two messages of one channel, which takes turns with the other channels of its NIC."""

    post_s: float  # for all channels of the NIC together
    check_s_per_byte: float  # LL: its flags lie in host memory, and the proxy looks at each
    connection_s: float
    ordered_bytes: float = inf  # a larger message waits for the one before on its queue pair to be acknowledged
    ordered_s: float = 0.0  # for so long, beside its bytes
    line_s_per_byte: float = 0.0  # at the NIC's rate, or at a share of it where its channels keep step
    queue_pairs: int = 1  # of a connection, which take turns

    def seconds(self, message_bytes: float) -> float:
        """For messages of a size."""
        least = max(self.post_s + self.check_s_per_byte * message_bytes, self.connection_s)
        if message_bytes <= self.ordered_bytes:
            return least
        return max(least, (self.ordered_s + self.line_s_per_byte * message_bytes) / self.queue_pairs)


@dataclass(frozen=True)
class Wait:
    """What holds a message beyond its hop: from a size on its receiver's answer, from another on the NIC's reading it.

    Both sizes are bytes on the wire, of which a byte of payload is `wire_factor`.
    """

    wire_factor: float
    eager_bytes: float
    rendezvous_s: float
    inline_bytes: float
    fetch_s: float

    def seconds(self, payload_bytes: float) -> float:
        """For messages of a size."""
        wire = payload_bytes * self.wire_factor
        return self.rendezvous_s * (wire > self.eager_bytes) + self.fetch_s * (wire > self.inline_bytes)


@dataclass(frozen=True, eq=False)
class Crossing:
    """What hops between nodes have beyond a rate and a latency: `at` marks them, (ranks,).

    The proxy sends a slot when it is full, so that a message is a slice of Simple, but a whole chunk of LL and LL128
    (src/transport/net.cc, sendProxyProgress).
    """

    at: npt.NDArray[np.bool_]
    turn: Turn
    whole: bool
    wait: Wait

    def messages_of(self, loop: Loop) -> int:
        """Messages of one chunk."""
        return 1 if self.whole else loop.slices


@dataclass(frozen=True, eq=False)
class RingPlan:
    """One ring channel of a collective: `steps` sends per rank and loop; `rate` and `hop_s` of each hop, (ranks,)."""

    collective: str
    ranks: int
    steps: int
    loops: tuple[Loop, ...]
    rate: Float64
    hop_s: Float64
    pass_bytes: int  # of a whole thread block
    first_pass_s: float
    limit: str
    slice_s: float = 0.0  # for which the thread block is held by a slice beside its bytes
    chunk_s: float = 0.0  # the same by a chunk, whatever its slices
    side_by_side: int = 0  # LL, LL128: bytes that the warps of a block handle at once, so that they are ready together
    pass_share: float = 1.0  # of the time of such a pass, until when it is all written
    crossing: Crossing | None = None
    block_rate: float = inf  # at which a thread block copies, whatever the links carry
    drain_s: Float64 | float = 0.0  # until what a rank's block reads last, in a full pass, is back
    staging_rate: float = inf  # at which a rank puts what it begins a loop with where its neighbour reads it

    def keep_of(self, loop: Loop) -> Float64:
        """Seconds in which each rank copies a slice of the last step from its buffer to its place, (ranks,).

        What a GPU of the same node sends lands in its place; what the network brings lands in a buffer.
        """
        if self.crossing is None:
            return np.zeros(self.ranks)
        return np.where(np.roll(self.crossing.at, 1), loop.slice_bytes / self.block_rate, 0.0)

    def staging_of(self, loop: Loop) -> float:
        """Seconds that a slice of a loop's first step takes more than others."""
        return loop.slice_bytes / self.staging_rate

    def hop_of(self, loop: Loop) -> Float64:
        """Hop latency for the slices of a loop: a full pass of the thread block has more stores to fence.

        The first slice of LL or LL128 is ready when all are that the block's warps handle beside it.

        Between nodes a slice of Simple waits until it has been written, one of LL and LL128 until its chunk has been.
        """
        # A pause comes after its chunk: it holds the block, but no slice on its way.
        hop = np.maximum(0.0, self.hop_s - self.chunk_s / loop.slices)
        hop = hop + self.first_pass_s * min(1.0, loop.slice_bytes / self.pass_bytes)
        chunk = loop.slices * loop.slice_bytes
        together = self.pass_share * max(0, min(self.side_by_side, chunk) - loop.slice_bytes) / self.rate
        if self.crossing is None:
            return np.asarray(hop + together)
        messages = self.crossing.messages_of(loop)
        late = self.crossing.wait.seconds(loop.slices * loop.slice_bytes / messages)
        fill = (loop.slices / messages - 1) * self.service_of(loop)
        if not self.crossing.whole:
            fill = np.full(self.ranks, loop.slice_bytes / self.block_rate)
        return np.asarray(hop + np.where(self.crossing.at, late + fill, together))

    def service_of(self, loop: Loop) -> Float64:
        """Seconds for which a slice holds each hop: its bytes and its hand-over, or its part of a message."""
        full = min(1.0, loop.slice_bytes / self.pass_bytes)
        service = loop.slice_bytes / self.rate + self.slice_s + self.drain_s * full + self.chunk_s / loop.slices
        if self.crossing is None:
            return service
        messages = self.crossing.messages_of(loop)
        least = self.crossing.turn.seconds(loop.slices * loop.slice_bytes / messages) * messages / loop.slices
        return np.where(self.crossing.at, np.maximum(service, least), service)


_ELEMENTWISE = {"reduce_scatter": 0.24, "all_gather": 0.43}
"""Share of a block's rate where buffers do not lie alike on the 16 bytes that a thread of Simple moves at once, so that
it goes element by element, of 4 bytes (src/device/common_kernel.h, reduceCopy).

12 V100 of a DGX-2 (NCCL 2.5) reduce at 48 and 60 GB/s where 3/4 and 1/2 of the chunks are so (3.3 of 14 GB/s a block),
and gather at 72 in both cases (6), beside 124 GB/s of an all_reduce. No other machine's curves tell, nor other types.
"""

COPY = "copy by the host"
"""In `Machine.nic_path`: what a processor copies between the host's memory and the network, one proxy per GPU."""

MESSAGES = "messages of the NIC"
"""The limit where the network takes longer from one message of a connection to the next than their bytes take."""

_BESIDE = ("PIX", "PXB", "P2C")
"""Paths from a GPU to a NIC that touch no other GPU and no other half of the host."""


def survey(
    system: System, topology: Topology, peer_level: int, order: Ordering = NO_ORDERING, *, staged: bool = False
) -> Machine:
    """Reads from the topology, once, what the lowering needs of it.

    GPUs farther apart than `peer_level` (index into `PATHS`) hand data over in the memory of a host; where `staged`,
    so do GPU and NIC. `order` is what orders the job's messages, if anything.
    """
    intra, kind = _inside(system, topology, peer_level) if system.ranks_per_node > 1 else (0.0, "none")
    across = _nic_path(topology, staged=staged) if system.nodes > 1 else ()
    every = [*permutations(range(topology.ranks_per_node), 2)]
    pairs = shared(topology, every, peer_level) if kind in ("pcie", "host") else None
    mesh = kind == "nvlink_direct"
    ring, tree = (ring_ways(system, topology), tree_ways(system, topology)) if mesh else (None, None)
    links = 0
    if kind.startswith("nvlink"):
        links = topology.nvlink_links if kind == "nvlink_switch" else topology.pair_links(0, 1)
    gbps = gb_per_s(topology.nic_bandwidth) if topology.nics_per_node else 0.0
    host, thin = staged or _through_host(topology), topology.oversubscription
    narrow = kind == "nvlink_direct" if system.nodes == 1 else topology.kind == "torus"
    cut = topology.bisection_bandwidth() if narrow else inf
    nics, leaf = _fed_nics(topology), topology.nodes_per_leaf
    return Machine(intra, kind, nics, across, pairs, links, gbps, host, leaf, thin, cut, order, ring, tree)


def _fed_nics(topology: Topology) -> int:
    """NICs of a node that its ranks keep busy: a GPU as many as its own port feeds, even if the last one not wholly."""
    if topology.nodes < 2 or not topology.nics_per_node:
        return topology.nics_per_node
    port = _narrowest(topology).get("PCIe", topology.nic_bandwidth)
    return min(topology.nics_per_node, topology.ranks_per_node * ceil(port / topology.nic_bandwidth))


def _inside(system: System, topology: Topology, peer_level: int) -> tuple[float, str]:
    n = topology.ranks_per_node
    if system.intra_type in ("NVL", "NVB"):
        if topology.has_nvswitch:
            return topology.nvlink_links * topology.nvlink_link_bandwidth, "nvlink_switch"
        links = min(sum(topology.pair_links(a, b) for b in range(n) if b != a) for a in range(n))
        return links * topology.nvlink_link_bandwidth, "nvlink_direct"
    ring = shared(topology, [(rank, (rank + 1) % n) for rank in range(n)], peer_level)
    return ring.rate, "host" if ring.by_host else "pcie"


def _nic_path(topology: Topology, *, staged: bool) -> tuple[tuple[str, float, int], ...]:
    """Narrowest links between the GPUs of two neighbouring nodes, through one NIC each, as `Machine.nic_path`."""
    nics = _fed_nics(topology)
    ports = min(nics, topology.ranks_per_node)  # NICs beside one GPU share its port
    narrowest = _narrowest(topology)
    if staged:
        narrowest["PCIe"] = min(narrowest.get("PCIe", inf), staged_rate(topology))
    path = [(kind, bw, ports if kind == "PCIe" else nics) for kind, bw in sorted(narrowest.items())]
    # Sockets copy in the kernel; the first EFA without GPUDirect RDMA in libfabric, which knew no remote read then.
    if topology.network == "ethernet" or (topology.network == "efa_v1" and _through_host(topology)):
        path.append((COPY, inf, topology.ranks_per_node))
    return tuple(path)


def _narrowest(topology: Topology) -> dict[str, float]:
    """Bytes/s of the narrowest link of each kind on the way from a GPU to one of the next node."""
    ppn = topology.ranks_per_node
    narrowest: dict[str, float] = {}
    for link in topology.route(ppn - 1, ppn):
        kind = LinkKind(topology.link_kind[link])
        if kind in (LinkKind.PCIE, LinkKind.NETWORK, LinkKind.FABRIC):
            name = LINK_NAMES[kind]
            narrowest[name] = min(narrowest.get(name, float("inf")), float(topology.link_bandwidth[link]))
    return narrowest


def _through_host(topology: Topology) -> bool:
    if topology.nodes < 2 or topology.network in THROUGH_HOST:  # whose path is through the host by nature
        return False
    first = topology.route(0, topology.ranks_per_node)
    inside = first[topology.vertex_node[topology.link_src[first]] == 0]
    kinds = {LinkKind(kind) for kind in topology.link_kind[inside]}
    ends = {VertexKind(kind) for kind in topology.vertex_kind[topology.link_dst[inside]]}
    return VertexKind.HOST in ends and LinkKind.C2C not in kinds


def nic_efficiency(machine: Machine, parameters: Parameters, *, all_to_all: bool = False) -> float:
    """Payload share of the nominal rate of a NIC."""
    network = parameters.network
    efficiency = network.all_to_all_efficiency if all_to_all else network.efficiency
    return float(efficiency * network.through_host_efficiency) if machine.through_host else float(efficiency)


def nic_rates(
    machine: Machine, parameters: Parameters, *, all_to_all: bool = False
) -> tuple[tuple[str, float, float], ...]:
    """(kind, through one NIC, through all of a node together) in payload bytes/s, for the links of `nic_path`."""
    nic = nic_efficiency(machine, parameters, all_to_all=all_to_all)

    copy = parameters.network.copy_rate or inf

    def rates(kind: str, bandwidth: float, count: int) -> tuple[float, float]:
        if kind == COPY:  # of all proxies of a node half the copies are sent; one alone does both
            return (copy if count > 1 else copy / 2), count * copy / 2
        rate = bandwidth * (parameters.efficiency.pcie if kind == "PCIe" else nic)
        return rate, rate * count

    return tuple((kind, *rates(kind, bandwidth, count)) for kind, bandwidth, count in machine.nic_path)


def node_rate(machine: Machine, parameters: Parameters, *, all_to_all: bool = False) -> tuple[float, str]:
    """Payload bytes/s out of a node through all its NICs, and the kind of link that limits it."""
    rates = nic_rates(machine, parameters, all_to_all=all_to_all)
    return min((together, kind) for kind, _, together in rates)


def shares(system: System, machine: Machine, parameters: Parameters, call: Call) -> Shares:
    """The rates of one channel: its thread block's, or its part of the links that all channels in use share."""
    protocol, used = call.protocol, call.split.channels
    block, odd = parameters.block_rate.of(protocol.name), misaligned(call, system.ranks)
    slow = block * _ELEMENTWISE.get(call.collective, 1.0) if odd else block

    def through(link: float, kind: str) -> tuple[float, str]:
        rate = 1 / ((1 - odd) / min(block, link) + odd / min(slow, link))
        return rate, kind if link < slow else "thread block"

    intra, intra_limit = through(inf, "thread block")
    if system.ranks_per_node > 1:
        wires = _ring_share(system, machine, used) * intra_efficiency(machine, parameters, protocol)
        link = wires / protocol.wire_factor
        intra, intra_limit = through(link, inside_name(machine))
    inter, inter_limit = through(inf, "thread block")
    if system.nodes > 1:
        rates = nic_rates(machine, parameters)
        link, kind = min((min(one, together / used), kind) for kind, one, together in rates)
        inter, inter_limit = through(link / protocol.wire_factor, kind)
    return Shares(intra, inter, intra_limit, inter_limit)


def misaligned(call: Call, ranks: int) -> float:
    """Part of the chunks of Simple that count as moved element by element, between 0 and 1.

    The part of rank k begins after k parts, which need not be on 16 bytes. An all_gather goes at the pace of those that
    are not. nccl-tests rounds parts to whole packs of 4 elements (old builds do not), so that only sizes of real calls
    (`Call.exact`) count.
    """
    if not (call.exact and call.protocol.is_simple and call.collective in _ELEMENTWISE) or call.nbytes % ranks:
        return 0.0
    pack = call.protocol.thread_bytes
    on_packs = gcd(call.nbytes // ranks, pack) / pack
    return float(on_packs < 1) if call.collective == "all_gather" else 1 - on_packs


def _ring_share(system: System, machine: Machine, channels: int) -> float:
    """Nominal bytes/s of the links inside a node that one of so many channels of a ring gets."""
    if machine.ring_ways is not None:
        return machine.ring_ways.rate(channels)
    return machine.intra_bandwidth / _passing(system, machine, channels)


def tree_share(system: System, machine: Machine, parameters: Parameters, call: Call, pieces: int) -> float:
    """Bytes/s on the wires of a mesh that one channel of trees gets at each hop, of so many pieces.

    All channels at the same hop meet on a link as often as the orders say, all hops of all channels more often: as the
    links are then busy with what the NICs and the blocks let through, so often does a piece find them. Of a few pieces
    no more hops of a chain are busy at once than there are pieces. Where the orders are not known, chains are taken to
    load all links alike.
    """
    channels, hops = call.split.channels, 2 * (system.ranks_per_node - 1)  # up and down
    if machine.tree_ways is not None:
        one, every = machine.tree_ways.hop_rate(channels), machine.tree_ways.rate(channels)
    else:
        one = machine.intra_bandwidth / channels
        every = one * system.ranks_per_node / hops
    efficiency = intra_efficiency(machine, parameters, call.protocol)
    one, every = one * efficiency, min(one, every * hops / min(hops, pieces)) * efficiency
    busy = min(1.0, _tree_flow(system, machine, parameters, call) / every)
    return 1 / ((1 - busy) / one + busy / every)


def _tree_flow(system: System, machine: Machine, parameters: Parameters, call: Call) -> float:
    """Bytes/s on the wires that a channel of trees has at most, by its block and by the NICs of its node."""
    block = parameters.block_rate.of(call.protocol.name) * call.protocol.wire_factor
    if system.nodes == 1:
        return block
    # Between two nodes all goes over once; of more, a node within both trees sends up one and down the other.
    times = 1 if system.nodes == 2 else 2
    return min(block, node_rate(machine, parameters)[0] / (times * call.split.channels))


def _passing(system: System, machine: Machine, channels: int) -> int:
    """Channels of a ring that a GPU hands on inside its node: not those that leave the node from it.

    Where each GPU has a NIC of its own, the channels leave from all of them in turn.
    """
    beside = system.nodes > 1 and system.ring.inter_type in _BESIDE and machine.nics >= system.ranks_per_node
    return channels - channels // system.ranks_per_node if beside else channels


def inside_name(machine: Machine) -> str:
    """What limits a rank that waits for the links inside its node."""
    return {"pcie": "PCIe", "host": "host memory"}.get(machine.intra_kind, "NVLink")


def intra_bandwidth(machine: Machine, parameters: Parameters, protocol: Protocol) -> float:
    """Bytes/s on the wires out of one GPU towards the others of its node, as all channels together reach it."""
    return machine.intra_bandwidth * intra_efficiency(machine, parameters, protocol)


def intra_efficiency(machine: Machine, parameters: Parameters, protocol: Protocol) -> float:
    """Share of the nominal rate that bytes on the wires inside a node reach."""
    return parameters.efficiency.inside(machine.intra_kind, protocol)


def ring_loops(nbytes: int, ranks: int, protocol: Protocol, threads: int, buffer_bytes: int) -> tuple[Loop, ...]:
    """The loops that `nbytes` of one channel take over a ring of `ranks`."""
    if nbytes == 0 or ranks < 2:
        return ()
    step = step_bytes(protocol, buffer_bytes)
    chunk = step * RING_CHUNK_STEPS if protocol.is_simple else step
    count, rest = divmod(nbytes, ranks * chunk)
    loops = []
    if count:
        loops.append(_loop(count, chunk, protocol, threads))
    if rest:
        loops.append(_loop(1, ceil(rest / ranks / 16) * 16, protocol, threads))
    return tuple(loops)


def _loop(count: int, chunk: int, protocol: Protocol, threads: int) -> Loop:
    if protocol.is_simple:
        slice_bytes = max(ceil(chunk / (RING_CHUNK_STEPS // RING_SLICE_STEPS)), MIN_SLICE_BYTES)
    else:
        slice_bytes = max(protocol.pass_bytes(WARP), ceil(chunk / MAX_SLICES))
    slices = max(1, ceil(chunk / slice_bytes))
    return Loop(count, slices, ceil(chunk / slices))


def channels_per_nic(machine: Machine, channels: int) -> int:
    """Channels of a call that share one NIC and its proxy."""
    return max(1, ceil(channels / max(1, machine.nics)))


def network_hop(network: NetworkParameters, hop: PerProtocol, protocol: Protocol, message_bytes: float) -> float:
    """Seconds from a complete message at the sender to data that the receiver may use."""
    return hop.of(protocol.name) + message_wait(network, protocol).seconds(message_bytes)


def message_wait(network: NetworkParameters, protocol: Protocol) -> Wait:
    """What messages of a protocol wait for. Only LL's hops were measured with and without the NIC's reading."""
    fetch = network.fetch if protocol.name == "LL" else 0.0
    return Wait(protocol.wire_factor, network.eager, network.rendezvous, network.inline, fetch)


def message_turn(machine: Machine, parameters: Parameters, call: Call) -> Turn:
    """How the messages of a call take turns."""
    turns, name, network = channels_per_nic(machine, call.split.channels), call.protocol.name, parameters.network
    check = turns / parameters.flag_rate if name == "LL" else 0.0
    return Turn(turns * network.message_cost.of(name), check, network.connection_cost.of(name))


def ordered_turn(machine: Machine, parameters: Parameters, call: Call) -> Turn:
    """The same for a ring, where messages of LL128 and Simple may have to wait for each other."""
    turn, order, factor = message_turn(machine, parameters, call), machine.ordering, call.protocol.wire_factor
    if order.above_bytes == inf or call.protocol.name == "LL":
        return turn
    # The channels of a NIC that wait together send together too, each at its share.
    sharing = max(1.0, call.split.channels / max(1, machine.nics)) if order.together else 1.0
    return replace(
        turn,
        ordered_bytes=order.above_bytes / factor,
        ordered_s=parameters.network.ordering,
        line_s_per_byte=sharing * max(factor / one for _, one, _ in nic_rates(machine, parameters)),
        queue_pairs=order.queue_pairs,
    )


def spread_s(system: System, machine: Machine, network: NetworkParameters, call: Call, limit: int) -> float:
    """Seconds by which the slowest way between nodes is later than in the calls that the hops are stated for.

    `limit` is the most channels of a call. Each doubling of the NICs at work adds the same time, as to the greatest of
    delays with an exponential tail, up to one for each GPU of a node. The hops of LL, which begins with one channel,
    are of one way; those of LL128 and Simple, which as a rule have all channels, of all NICs, be they many or one: a
    call of fewer gains by it, and this is negative. A chain of calls hides what its hops take.
    """
    if call.nbytes == 0 or system.nodes == 1 or call.collective in CHAINED:
        return 0.0
    most = min(system.ranks_per_node, max(1, machine.nics))
    stated = 1 if call.protocol.name == "LL" else min(most, limit)
    return float(network.spread) * log2(min(call.split.channels, most) / stated)


def network_crossing(machine: Machine, parameters: Parameters, call: Call, at: npt.NDArray[np.bool_]) -> Crossing:
    """What the hops marked by `at` have in common as hops between nodes."""
    network = parameters.network
    return Crossing(
        at=at,
        turn=ordered_turn(machine, parameters, call),
        whole=not call.protocol.is_simple,
        wait=message_wait(network, call.protocol),
    )


def lower_ring(system: System, machine: Machine, parameters: Parameters, call: Call) -> RingPlan:
    """The plan of the fullest channel of a ring all_reduce, all_gather or reduce_scatter."""
    n, ppn, protocol = system.ranks, system.ranks_per_node, call.protocol
    share = shares(system, machine, parameters, call)
    across = (np.arange(n) % ppn == ppn - 1) & (system.nodes > 1)
    inside = parameters.hop_inside(parameters.ring_hop, machine.intra_kind, protocol.name)
    network = parameters.network.ring_hop.of(protocol.name)
    limit = share.inter_limit if system.nodes > 1 and share.inter <= share.intra else share.intra_limit
    pause = parameters.pause.of(protocol.name)
    plan = RingPlan(
        collective=call.collective,
        ranks=n,
        steps=2 * (n - 1) if call.collective == "all_reduce" else n - 1,
        loops=ring_loops(call.split.channel_bytes, n, protocol, call.split.threads, call.buffer_bytes),
        rate=np.where(across, share.inter, share.intra),
        hop_s=np.where(across, network, inside),
        pass_bytes=protocol.pass_bytes(protocol.max_threads),
        first_pass_s=parameters.first_pass if protocol.is_simple else 0.0,
        limit=limit,
        slice_s=pause if protocol.is_simple else 0.0,
        chunk_s=0.0 if protocol.is_simple else pause,
        side_by_side=0 if protocol.is_simple else protocol.pass_bytes(call.split.threads),
        pass_share=parameters.pass_share,
        crossing=network_crossing(machine, parameters, call, across) if system.nodes > 1 else None,
        block_rate=parameters.block_rate.of(protocol.name),
        drain_s=np.where(across, 0.0, parameters.drain) if protocol.is_simple and _reads(system) else 0.0,
        staging_rate=_staging_rate(system, parameters, call),
    )
    return replace(plan, limit=MESSAGES) if _by_messages(plan) else plan


def _by_messages(plan: RingPlan) -> bool:
    """Whether most bytes wait for the turns of the messages between nodes, longer than they take over any hop."""
    if plan.crossing is None or not plan.loops:
        return False
    loop = max(plan.loops, key=lambda one: one.count * one.slices * one.slice_bytes)
    free = replace(plan, crossing=replace(plan.crossing, turn=Turn(0.0, 0.0, 0.0)))
    return bool(plan.service_of(loop).max() > free.service_of(loop).max())


def _reads(system: System) -> bool:
    """Whether GPUs read from each other: those of sm 80 over NVLink (src/graph/paths.cc, ncclTopoCheckP2p)."""
    return system.sm == 80 and system.intra_type == "NVL"


def _staging_rate(system: System, parameters: Parameters, call: Call) -> float:
    """Bytes/s of what a rank begins a loop of Simple with; infinite where it goes to its neighbour at once.

    Where GPUs read from each other a rank first writes into a buffer of its own; an all_gather that is not in place
    writes to its result beside it. Between nodes the NICs set the pace, and it does not show.
    """
    rate = parameters.staging_rate
    if rate is None or not _reads(system) or system.nodes > 1 or not call.protocol.is_simple:
        return inf
    return rate / (2 if call.collective == "all_gather" else 1)
