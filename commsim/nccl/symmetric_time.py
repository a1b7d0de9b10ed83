"""The time of NCCL's kernels on symmetric memory, in closed form.

No data waits in a buffer between: a kernel starts, meets its peers, and moves bytes straight between the arrays of the
call. Kernels of LL need no meeting, for flags stand beside the data: every GPU stores its part into all others (or once
through the switch) and reads n parts. The others begin with a barrier, load or store, and end with one. What a
thread block moves is bounded by what it waits for (`commsim.nccl.symmetric_pace`).

`commsim.nccl.symmetric_event` has the engine run the same, move by move.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from commsim.nccl.machine import Machine
from commsim.nccl.parameters import Parameters
from commsim.nccl.protocols import LL
from commsim.nccl.symmetric import Kernel
from commsim.nccl.symmetric_choice import SymmetricChoice
from commsim.nccl.symmetric_nodes import RING_PIECE, block_rate, passes, put_bytes
from commsim.nccl.symmetric_pace import (
    START_S,
    hop_s,
    lanes_of,
    link_rate,
    net_rate,
    rounds_of,
    switch_port,
    trip_s,
    turns_of,
    with_messages,
)
from commsim.nccl.system import System
from commsim.nccl.version import Version

Timed = tuple[float, float, str]
"""Seconds of a kernel, the bandwidth part of them, and what limits it."""


def symmetric_time(
    system: System, machine: Machine, parameters: Parameters, choice: SymmetricChoice, collective: str, nbytes: int
) -> Timed:
    """Of the kernel that NCCL chose, for a call of `nbytes` (the nccl-tests size)."""
    kernel, n = choice.kernel, system.ranks
    hop, trip = hop_s(machine, parameters), trip_s(machine, parameters)
    link, name = link_rate(machine, parameters, n)
    rounds, lanes = rounds_of(kernel, choice.blocks, nbytes, n), lanes_of(kernel, choice.blocks)
    if kernel.lines:
        # A rank's own lines take their turn at its port among those that arrive, for it stores and polls them alike.
        parts = n if machine.intra_kind == "nvlink_switch" else n - 1
        transfer = LL.wire_factor * nbytes * parts / link / (1 if collective == "all_reduce" else n)
        return START_S + _in_rounds([transfer / rounds], hop, 0.0, 0.0, rounds, lanes), transfer, name
    rate = _port_rate(kernel, parameters, machine, link, system)
    if collective == "all_gather":  # stores that wait for nothing but a barrier, and for which one waits
        transfer = nbytes * (1 if kernel.multicast else (n - 1) / n) / rate
        return START_S + 3 * hop + transfer, transfer, name
    transfer, data, mesh = 0.0, 0.0, machine.intra_kind == "nvlink_direct"
    shares = turns_of(kernel, n)
    for loads, stores in _through_ports(kernel, nbytes, n, rate):
        turns = [loads / rounds * share for share in shares]
        # On a mesh every peer has links of its own, which are busy in one turn of a round.
        ways = (
            [[sum(turns) * (k == turn) for k in range(len(turns))] for turn in range(len(turns))] if mesh else [turns]
        )
        for way in ways:
            data = max(data, _in_rounds(way, trip, stores / rounds, hop, rounds, lanes))
        transfer = max(transfer, loads + stores)
    first = trip * len(shares)  # what the first round waits for is latency, as hops are; the rounds after it are a rate
    if data > first + trip + transfer:
        transfer, name = data - first, "thread block"
    return START_S + 2 * hop + data, transfer, name  # a barrier on either side


Stage = tuple[float, float, float]
"""Seconds that a lane waits, for which all lanes together then keep a port busy, and of that a lane's own part."""

_ALIKE = 4
"""Rounds from which on each takes as long as the one before."""


def _in_rounds(turns_s: list[float], trip_s: float, stores_s: float, hop_s: float, rounds: int, lanes: int) -> float:
    """Seconds of rounds, in which the port is busy so long with each turn of loads, a trip after they are asked for.

    What a round stores is there a hop after its last turn, while the next round waits for its loads.
    """
    loads = [(trip_s, busy, busy / lanes) for busy in turns_s]
    wait, busy, own = loads[0]
    after = [(hop_s, stores_s, 0.0)] if stores_s else []
    begins = [*after, (wait - hop_s * len(after), busy, own), *loads[1:]]

    def of(count: int) -> float:
        return _in_stages([*loads, *begins * (count - 1), *after])

    if rounds <= _ALIKE:
        return of(rounds)
    return of(_ALIKE) + (rounds - _ALIKE) * (of(_ALIKE) - of(_ALIKE - 1))


def _in_stages(stages: list[Stage]) -> float:
    """Seconds until the last lane is through, where all begin together and each goes through the stages by itself.

    Some run of stages, in which the port is never idle, is what it waits for beside its own waits before and after.
    """
    waits = longest = run = 0.0
    for wait, busy, own in stages:
        run = max(0.0, run - wait) + busy - own
        longest = max(longest, run)
        waits += wait + own
    return waits + longest


def _port_rate(kernel: Kernel, parameters: Parameters, machine: Machine, link: float, system: System) -> float:
    """Bytes/s of a GPU's port, each way."""
    if not kernel.reduces:
        return link
    if kernel.collective == "all_reduce":
        return switch_port(system, machine, parameters)
    return machine.intra_bandwidth * parameters.efficiency.nvls


def _through_ports(kernel: Kernel, nbytes: int, ranks: int, rate: float) -> tuple[tuple[float, float], ...]:
    """Seconds for which loads and stores of a call that reduces keep a GPU's port busy, out of it and into it.

    Single peers ask each other for all parts but one, and store as much. The switch asks a GPU for all parts, and gives
    it the sum of one; of an all_reduce it takes that sum, and gives the GPU all of them.
    """
    both = kernel.collective == "all_reduce"
    if not kernel.reduces:
        others = nbytes * (ranks - 1) / ranks / rate
        return ((others, others if both else 0.0),)
    whole, part = nbytes / rate, nbytes / rate / ranks
    return ((whole, part), (part, whole)) if both else ((whole, 0.0),)


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
    inside, trip = hop_s(machine, parameters), trip_s(machine, parameters)
    across = float(parameters.network.ring_hop.of("LL"))
    net, limit = net_rate(machine, parameters, local)
    link, name = link_rate(machine, parameters, local) if local > 1 else (inf, limit)
    if choice.kernel.collective == "all_gather":
        piece = min(held, RING_PIECE * choice.blocks)
        net, limit = with_messages((net, limit), -(-piece // choice.blocks), machine, parameters, local)
        # A node hands on what it has got; a ring of small blocks waits for each of them, one of large ones for none.
        ring = across + held / net + (nodes - 2) * max(held / net, across + piece / net)
        spread = held * system.ranks / link
        transfer, name = max(((nodes - 1) * held / net, limit), (spread, name))
        data = max(ring + piece * local / link, spread) + inside
        return START_S + 2 * (inside + across) + data, transfer, name  # all ranks meet before and after
    put = min(held, put_bytes(version, env) * choice.blocks)
    net, limit = with_messages((net, limit), -(-put // choice.blocks), machine, parameters, local)
    switched = choice.kernel.reduces
    through, blocks = passes(system, switched), choice.blocks * block_rate(system, switched, version)
    adds = through.across / blocks  # what has come of the puts of a round, when all are there
    loads, sent = max(through.blocks / blocks - adds, through.inside / link), through.across / net
    # The sums of a round are made, sent, and added; a GPU alone in its node sends what it has.
    first = put * ((loads + sent if local > 1 else max(loads, sent)) + adds)
    ways = (through.blocks / blocks, "thread block"), (through.inside / link, name), (through.across / net, limit)
    pace, name = max(ways)  # rounds follow each other at the pace of the slowest part
    waits = 2 * inside + across + (trip if local > 1 else 0.0)
    return START_S + waits + first + (held - put) * pace, held * pace, name
