"""Messages between nodes: what one costs beside its bytes, and when the next of its connection may leave.

Packets with immediate data are not routed adaptively over InfiniBand. NCCL therefore writes the bulk of a large message
without, and lets an empty write with immediate data follow (src/transport/net_ib, ncclIbMultiSend;
NCCL_IB_AR_THRESHOLD, 8 KiB). The second write must not overtake the first. Where the fabric does route adaptively, the
next large message of a queue pair leaves when the one before is acknowledged. Networks that spread the packets of every
message over many paths (EFA, GPUDirect-TCPX and -TCPXO) are measured to do the same.

The topology says which fabric does (`FabricSpec.adaptive_routing`): by default those of NDR and later, as the subnet
manager has it (NVIDIA, InfiniBand Cluster Bring-up Procedure, Adaptive Routing). Only rings are charged, whose ranks
send a message every step. Channels of a NIC over InfiniBand send side by side and wait together; on other networks the
bytes of one channel hide the waiting of another (validation/evidence.md, "Ordered messages").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, log2

import numpy as np
import numpy.typing as npt

from commsim.collectives.semantics import CHAINED
from commsim.nccl.channels import Call
from commsim.nccl.environment import whole
from commsim.nccl.machine import NO_ORDERING, Machine, Ordering, nic_rates
from commsim.nccl.parameters import NetworkParameters, Parameters, PerProtocol
from commsim.nccl.protocols import Protocol
from commsim.nccl.system import System
from commsim.nccl.version import Version
from commsim.topology.graph import Topology

ADAPTIVE = "NCCL_IB_ADAPTIVE_ROUTING"

IB_VARIABLES = (ADAPTIVE, "NCCL_IB_AR_THRESHOLD", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_QPS_PER_CONNECTION")

IB_TRANSPORT = ("infiniband", "roce")
"""Networks that NCCL's own IB transport serves, which reads these variables."""

THRESHOLD = 8192
"""NCCL_IB_AR_THRESHOLD where it is not set: bytes on the wire."""

_MANY_PATHS = ("efa", "efa_v1", "tcpx")
"""Networks that send the packets of every message over many paths."""

_SPLIT_BEFORE: Version = (2, 20, 0)
"""Until then every message was cut over all queue pairs of its connection (NCCL_IB_SPLIT_DATA_ON_QPS)."""


def ordering(topology: Topology, version: Version, env: Mapping[str, str]) -> Ordering:
    """What orders the messages of a job; ScenarioError for a variable whose value is no number."""
    adaptively, threshold, cut, pairs = (whole(env, name) for name in IB_VARIABLES)
    if topology.nodes == 1:
        return NO_ORDERING
    if topology.network in _MANY_PATHS:
        return Ordering(THRESHOLD)
    adaptive = topology.network == "infiniband" and topology.adaptive_routing
    if adaptively is not None:
        adaptive = adaptively != 0 and topology.network in IB_TRANSPORT
    if not adaptive:
        return NO_ORDERING
    split = version < _SPLIT_BEFORE if cut is None else cut != 0
    taking_turns = 1 if split else max(1, pairs or 1)
    return Ordering(THRESHOLD if threshold is None else threshold, taking_turns, topology.ranks_per_node > 1)


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

    def messages_of(self, slices: int) -> int:
        """Messages of a chunk of so many slices."""
        return 1 if self.whole else slices


MESSAGES = "messages of the NIC"
"""The limit where the network takes longer from one message of a connection to the next than their bytes take."""


def network_hop(network: NetworkParameters, hop: PerProtocol, protocol: Protocol, message_bytes: float) -> float:
    """Seconds from a complete message at the sender to data that the receiver may use."""
    return hop.of(protocol.name) + message_wait(network, protocol).seconds(message_bytes)


def message_wait(network: NetworkParameters, protocol: Protocol) -> Wait:
    """What messages of a protocol wait for. Only LL's hops were measured with and without the NIC's reading."""
    fetch = network.fetch if protocol.name == "LL" else 0.0
    return Wait(protocol.wire_factor, network.eager, network.rendezvous, network.inline, fetch)


def message_turn(machine: Machine, parameters: Parameters, call: Call) -> Turn:
    """How the messages of a call take turns."""
    turns = max(1, ceil(call.split.channels / max(1, machine.nics)))  # channels of one NIC and its proxy
    name, network = call.protocol.name, parameters.network
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
    fitted = 1 if call.protocol.name == "LL" else min(most, limit)
    return float(network.spread) * log2(min(call.split.channels, most) / fitted)


def crossing_of(machine: Machine, parameters: Parameters, call: Call, at: npt.NDArray[np.bool_]) -> Crossing:
    """What the hops of a ring marked by `at` have as hops between nodes."""
    wait = message_wait(parameters.network, call.protocol)
    return Crossing(at, ordered_turn(machine, parameters, call), not call.protocol.is_simple, wait)
