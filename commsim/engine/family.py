"""Families: collectives so regular that a rule stands for their rows, for sizes at which rows cannot be built.

What they are not: schedules that `check` can prove. Tests hold them to the schedules of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.collectives.grid import usual_node
from commsim.collectives.ring import Order, ring_orders
from commsim.collectives.schedule import at_least_one, elements
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.program import Float64, Int32, Int64, Program, require_ranks
from commsim.errors import ScheduleError
from commsim.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class Phase:
    """In each of ``steps`` steps every rank r sends ``nbytes`` bytes to rank ``to[r]``, a permutation, (world,)."""

    to: Int64
    steps: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class Family:
    """Phases one after the other; a message waits for the one that its sender received in the step before.

    Each step has ``lanes`` messages per rank (``channels`` times pieces), which follow each other on the same way and
    wait only for their own lane. Message (step, lane, rank) has the number ``(step * lanes + lane) * world + rank``.
    """

    collective: str
    algorithm: str
    world_size: int
    nbytes: int
    phases: tuple[Phase, ...]
    lanes: int = 1
    channels: int = 1

    def connections(self, route: Int32, senders: int) -> Int32:
        """The connection of each message, given its route: one per route and channel, as in a lowered schedule."""
        channel = np.arange(route.size) // senders % self.lanes // (self.lanes // self.channels)
        return (route.astype(np.int64) * self.channels + channel).astype(np.int32)

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def messages(self) -> int:
        """Messages of all ranks, lanes and steps."""
        return self.steps * self.lanes * self.world_size

    def program(self, topology: Topology) -> Program:
        """All messages on the topology's own routes, one op each: what `simulate` runs, and folding avoids."""
        require_ranks(self.world_size, topology)
        require_memory(estimate_bytes(self.messages, derived=False), self.messages)
        ranks = np.arange(self.world_size)
        table = topology.routes(np.tile(ranks, len(self.phases)), np.concatenate([p.to for p in self.phases]))
        return bind(
            self.phases,
            self.lanes,
            table.index.reshape(len(self.phases), -1),
            (table.ptr, table.link),
            (topology.link_bandwidth, topology.link_latency),
        )


def bind(
    phases: Sequence[Phase], lanes: int, route: Int32, routes: tuple[Int64, Int32], links: tuple[Float64, Float64]
) -> Program:
    """The Program of phases; ``route`` (phases, senders) numbers routes of the CSR table ``routes``."""
    senders = phases[0].to.size
    phase = np.repeat(np.arange(len(phases)), [p.steps * lanes for p in phases])
    rows = phase.size * senders
    first = np.arange(phase.size, dtype=np.int64)[:, None] * senders
    after = first + lanes * senders + np.stack([p.to for p in phases])[phase]
    edges = max(phase.size - lanes, 0) * senders
    return Program(
        nbytes=np.repeat(np.array([p.nbytes for p in phases], np.int64)[phase], senders),
        route=route[phase].reshape(-1).astype(np.int32),
        delay_s=np.zeros(rows),
        succ_ptr=np.minimum(np.arange(rows + 1, dtype=np.int64), edges),
        succ_idx=after.reshape(-1)[:edges].astype(np.int32),
        route_ptr=routes[0],
        route_link=routes[1],
        link_bandwidth=links[0],
        link_latency=links[1],
    )


_PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def ring_family(
    collective: str,
    world_size: int,
    nbytes: int,
    channels: int = 1,
    itemsize: int = 1,
    order: Order = None,
    *,
    pipeline: int = 1,
) -> Family:
    """The ring all_reduce, reduce_scatter or all_gather of `commsim.collectives.ring`, by rule.

    Only with equal chunks and one order for all channels; a ScheduleError says what is not so.

    >>> ring_family("all_reduce", 4, nbytes=4096).messages
    24
    """
    at_least_one(ranks=world_size, channels=channels, pipeline=pipeline)
    if collective not in _PASSES:
        raise ScheduleError(f"found a ring {collective}, expected one of {', '.join(_PASSES)}")
    lanes = channels * pipeline
    if elements(nbytes, itemsize) % (world_size * lanes):
        raise ScheduleError(f"{nbytes} bytes are no {world_size * lanes} equal chunks of whole elements")
    rings = ring_orders(order, world_size, channels)
    if (rings != rings[0]).any():
        raise ScheduleError("the channels go round the ranks in different orders")
    to = np.empty(world_size, np.int64)
    to[rings[0]] = np.roll(rings[0], -1)
    phase = Phase(to, _PASSES[collective] * (world_size - 1), nbytes // (world_size * lanes))
    return Family(collective, "ring", world_size, nbytes, (phase,), lanes, channels)


def hierarchical_family(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, channels: int = 1, itemsize: int = 1
) -> Family:
    """All-reduce by rings: reduce-scatter in the node, all-reduce along each rail, all-gather in the node.

    As `hierarchical_all_reduce`, except that a rank sends its share of a step in the node as one message, where that
    builder cuts it into one per node.

    >>> family = hierarchical_family(102_400, nbytes=102_400 * 1024, ranks_per_node=8)
    >>> family.steps, family.messages
    (25612, 2622668800)
    """
    local = usual_node(world_size) if ranks_per_node is None else ranks_per_node
    at_least_one(ranks=world_size, channels=channels, ranks_per_node=local)
    if world_size % local:
        raise ScheduleError(f"{world_size} ranks are no whole number of nodes of {local} ranks")
    if elements(nbytes, itemsize) % (world_size * channels):
        raise ScheduleError(f"{nbytes} bytes are no {world_size * channels} equal chunks of whole elements")
    ranks, nodes = np.arange(world_size), world_size // local
    inside = Phase(ranks // local * local + (ranks + 1) % local, local - 1, nbytes // (local * channels))
    along = Phase((ranks + local) % world_size, 2 * (nodes - 1), nbytes // (world_size * channels))
    return Family("all_reduce", "hierarchical", world_size, nbytes, (inside, along, inside), channels, channels)


@dataclass(frozen=True, eq=False)
class Totals:
    """What became of a Family: its makespan, and bytes and busy time of the topology's links ``link``, (k,).

    Where symmetry was used, ``link`` names the links of one representative part and ``part`` says of what. ``level``,
    ``method`` and ``exact`` as in `Outcome`.
    """

    makespan_s: float
    messages: int
    link: Int32
    link_bytes: Int64
    link_busy_s: npt.NDArray[np.float64]
    level: str
    method: str
    exact: bool = True
    part: str = ""
    contention: str = "fifo"
