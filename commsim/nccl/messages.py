"""Messages between nodes: what one costs beside its bytes, and when the next of its connection may leave.

Networks that spread the packets of every message over many paths (EFA, GPUDirect-TCPX and -TCPXO) have one large
message of a connection on its way at a time: the next leaves when the one before is acknowledged. Only rings are
charged, whose ranks send a message every step; the bytes of one channel hide the waiting of another. Why InfiniBand is
not charged: validation/evidence.md, "Ordered messages".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil, inf, log2

import numpy as np
import numpy.typing as npt

from commsim.collectives.semantics import CHAINED
from commsim.nccl.channels import Call
from commsim.nccl.machine import Machine, nic_rates
from commsim.nccl.parameters import MATCHED_BY_PROCESSOR, NetworkParameters, Parameters, PerProtocol
from commsim.nccl.protocols import Protocol
from commsim.nccl.system import System

ORDERED_BYTES = 8192
"""Larger messages, in bytes on the wire, wait for each other: rings of LL128 of P5 take the wait from here on
(validation/parameters.csv, efa)."""


@dataclass(frozen=True)
class Turn:
    """The time between two messages of one channel, which takes turns with the other channels of its NIC."""

    post_s: float  # for all channels of the NIC together
    check_s_per_byte: float  # LL: its flags lie in host memory, and the proxy looks at each
    connection_s: float
    ordered_bytes: float = inf  # a larger message waits for the one before to be acknowledged
    ordered_s: float = 0.0  # for so long, beside its bytes
    line_s_per_byte: float = 0.0  # at the NIC's rate
    copied_bytes: float = inf  # the processor copies what it receives by a larger message
    copies_s: float = 0.0  # which takes so much longer than the posts alone

    def seconds(self, message_bytes: float) -> float:
        """For messages of a size."""
        post_s = self.post_s + self.copies_s * (message_bytes > self.copied_bytes)
        least = max(post_s + self.check_s_per_byte * message_bytes, self.connection_s)
        if message_bytes <= self.ordered_bytes:
            return least
        return max(least, self.ordered_s + self.line_s_per_byte * message_bytes)


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
    """What hops between nodes have beyond a rate and a latency: `at` marks them, `turn` says whose turns they take.

    Both (ranks,); a hop inside a node has none of the `turns`, -1.

    The proxy sends a slot when it is full, so that a message is a slice of Simple, but a whole chunk of LL and LL128
    (src/transport/net.cc, sendProxyProgress).
    """

    at: npt.NDArray[np.bool_]
    turns: tuple[Turn, ...]
    turn: npt.NDArray[np.integer]
    whole: bool
    wait: Wait

    def turn_s(self, message_bytes: float) -> npt.NDArray[np.float64]:
        """Seconds from one message of a size to the next on each hop between nodes, (ranks,)."""
        return np.asarray(np.array([turn.seconds(message_bytes) for turn in self.turns])[self.turn])

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
    turn, wait, factor = message_turn(machine, parameters, call), parameters.network.ordering, call.protocol.wire_factor
    if wait == 0.0 or call.protocol.name == "LL":
        return turn
    line = max(factor / one for _, one, _ in nic_rates(machine, parameters))
    return replace(turn, ordered_bytes=ORDERED_BYTES / factor, ordered_s=wait, line_s_per_byte=line)


def ring_turn(system: System, machine: Machine, parameters: Parameters, call: Call) -> Turn:
    """The same where, besides, a processor matches and copies what a ring brings.

    What arrives then takes its turn with what is posted: a proxy that waits for a copy posts nothing. A channel may
    enter a node by one NIC and leave it by another (`Graph.nics`). Only rings of LL show it: their messages are many.
    """
    turn, network = ordered_turn(machine, parameters, call), parameters.network
    if network.name != MATCHED_BY_PROCESSOR or call.protocol.name != "LL":
        return turn
    cost, nics = network.message_cost.LL, system.ring.nics or ((0, 0),)
    busy: defaultdict[int, float] = defaultdict(float)
    for came, left in islice(cycle(nics), call.split.channels):
        busy[came] += network.rendezvous
        busy[left] += cost
    limit = network.eager / call.protocol.wire_factor
    return replace(turn, copied_bytes=limit, copies_s=max(0.0, max(busy.values()) - turn.post_s))


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
