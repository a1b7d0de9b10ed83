"""Rings by arithmetic: one NumPy expression per step instead of one event per message, without building rows.

Exact where the ring's routes share no link. Then only one position of the ring sends over a link, its messages come
in the order of steps, and a whole route acts as one server. Proof, for hops with bandwidths B1, B2 one after the
other: if B2 >= B1, a message finds the second link free, since it left the first after the one before it; if B2 < B1,
waiting for the first link cannot delay it further, since the second is still busy then. So the server has the smallest
bandwidth of the route and the sum of its latencies. No compiled code is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.engine.family import Family, Totals
from commsim.engine.program import Float64, Int32, Int64, places_along, require_ranks
from commsim.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class Servers:
    """The routes of a ring by position: seconds per byte and latency of each, (n,).

    ``link`` (k,) are the links of all routes, ``held`` (k,) the seconds per byte for which a message keeps each.
    """

    inv_bandwidth: Float64
    latency_s: Float64
    link: Int32
    held: Float64


def servers_of(order: Int64, to: Int64, topology: Topology) -> Servers | str:
    """The servers of the routes from each rank of ``order`` to ``to`` of it; or that some route is empty or shared."""
    table = topology.routes(order, to[order])
    length = np.diff(table.ptr)[table.index]
    if not length.size or length.min() == 0:
        return "some message uses no link"
    hops = np.full((order.size, int(length.max())), -1, np.int64)
    inside = np.arange(hops.shape[1]) < length[:, None]
    hops[inside] = table.link[places_along(table.ptr, table.index)]
    used = hops[inside]
    if np.bincount(used).max() > 1:
        return "two routes share a link"
    inv = np.where(inside, 1.0 / topology.link_bandwidth[hops], 0.0)
    latency = np.where(inside, topology.link_latency[hops], 0.0)
    # A link is held by a slower one before it until the tail has passed.
    held = np.maximum.accumulate(inv, axis=1)
    return Servers(held[:, -1], latency.sum(axis=1), used.astype(np.int32), held[inside])


def _cycle(to: Int64) -> Int64 | None:
    """The ranks in the order of a permutation that is one cycle, from rank 0; None if it is several."""
    n = to.size
    if (to == np.roll(np.arange(n), -1)).all():
        return np.arange(n)
    order, step, place = np.zeros(n, np.int64), to.tolist(), 0
    for i in range(1, n):
        place = step[place]
        if place == 0:
            return None
        order[i] = place
    return order


def wavefront(family: Family, topology: Topology) -> Totals | str:
    """The exact Totals of a ring whose routes share no link, or the condition that does not hold."""
    require_ranks(family.world_size, topology)
    if len(family.phases) != 1:
        return f"{family.algorithm} has {len(family.phases)} phases, which meet on links"
    to = family.phases[0].to
    order = _cycle(to)
    if order is None:
        return "the ranks do not form one ring"
    servers = servers_of(order, to, topology)
    if isinstance(servers, str):
        return servers
    nbytes, turns = family.phases[0].nbytes, family.steps * family.lanes
    period = smallest_period(servers.inv_bandwidth, servers.latency_s)
    ends = last_ends(nbytes * servers.inv_bandwidth[:period], servers.latency_s[:period], family.steps, family.lanes)
    return Totals(
        makespan_s=float(ends.max(initial=0.0)),
        messages=family.messages,
        link=servers.link,
        link_bytes=np.full(servers.link.size, nbytes * turns, np.int64),
        link_busy_s=servers.held * float(nbytes * turns),
        level="wavefront",
        method=f"{period} of {family.world_size} positions" if period < family.world_size else "all positions",
    )


def smallest_period(*columns: Float64) -> int:
    """The smallest divisor p of the length for which every column repeats after p places.

    >>> smallest_period(np.array([1.0, 2.0, 1.0, 2.0]), np.ones(4))
    2
    """
    n = columns[0].size
    divisors = (p for p in range(1, n + 1) if n % p == 0)
    return next(p for p in divisors if all((c == np.tile(c[:p], n // p)).all() for c in columns))


def last_ends(transfer_s: Float64, latency_s: Float64, steps: int, lanes: int) -> Float64:
    """When the messages of the last step arrive, (lanes, positions).

    Position p sends the message that came from position p - 1 one step before: end = max(arrival, free) + transfer +
    latency, where the link is free again after the transfer.
    """
    n = transfer_s.size
    if n == 1:
        return _alike(float(transfer_s[0]), float(latency_s[0]), steps, lanes)
    # Place 0 repeats the last position, so that "the position before" is a view and not a copy.
    arrived = np.zeros((lanes, n + 1))
    free = np.zeros(n)
    latency: Float64 | float = float(latency_s[0]) if (latency_s == latency_s[0]).all() else latency_s
    transfer: Float64 | float = float(transfer_s[0]) if (transfer_s == transfer_s[0]).all() else transfer_s
    before, here = [row[:-1] for row in arrived], [row[1:] for row in arrived]
    for turn in range(steps * lanes):
        lane = turn % lanes
        np.maximum(before[lane], free, out=free)
        np.add(free, transfer, out=free)
        np.add(free, latency, out=here[lane])
        arrived[lane, 0] = arrived[lane, n]
    return arrived[:, 1:]


def _alike(transfer: float, latency: float, steps: int, lanes: int) -> Float64:
    arrived, free = [0.0] * lanes, 0.0
    for _ in range(steps):
        for lane in range(lanes):
            free = max(arrived[lane], free) + transfer
            arrived[lane] = free + latency
    return np.array(arrived)[:, None]
