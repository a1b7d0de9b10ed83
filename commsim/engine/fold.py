"""Folding by translation: messages of one period of the machine are simulated, in all steps, in place of all ranks.

Ranks r and r + period stand alike if the family sends alike from both and their routes are images of each other. So do
the ranks of one node, if turning every node by one rank is such an image too. Messages of ranks that stand alike take
equal times: every link sees the same messages as its images, and ties go alike, since the numbers of messages (step,
lane, rank) are in the same order.

With FIFO links this is exact under two conditions. Each image of a message has a link of its own. Ranks whose messages
of one step share a link keep their order on every image; round the end of the machine they need not. Both conditions,
and the images themselves, are checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from commsim.engine.family import Family, Totals, bind
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.merging import Routes
from commsim.engine.program import Float64, Int32, Int64, Program, pointers, require_ranks
from commsim.engine.simulate import simulate
from commsim.topology.graph import Topology

CHECK_ALL_RANKS = 16_384
"""Up to here the images of all ranks are checked; above, those of the first, the middle and the last two periods."""


@dataclass(frozen=True, eq=False)
class Folded:
    """A family folded onto ``senders`` representative ranks; links are those of the quotient.

    Class ``r % period // rail`` stands for rank r. ``to`` and ``route`` (phases, senders), routes in CSR form over
    quotient links; ``link`` (k,) names for each of those the link of the topology that stands for its images.
    """

    family: Family
    period: int
    rail: int
    to: Int32
    route: Int32
    route_ptr: Int64
    route_link: Int32
    link: Int32
    link_bandwidth: Float64
    link_latency: Float64

    @property
    def senders(self) -> int:
        """Number of representative ranks."""
        return int(self.to.shape[1])

    @property
    def part(self) -> str:
        """How many ranks stand for how many."""
        return f"{self.senders} of {self.family.world_size} ranks"

    def program(self) -> Program:
        """The messages of the representatives, one op each: (step, lane, sender) as in `Family`."""
        f = self.family
        rows = f.steps * f.lanes * self.senders
        require_memory(estimate_bytes(rows, derived=False), rows)
        phases = [replace(phase, to=to.astype(np.int64)) for phase, to in zip(f.phases, self.to, strict=True)]
        links = (self.link_bandwidth, self.link_latency)
        return bind(phases, f.lanes, self.route, (self.route_ptr, self.route_link), links)

    def link_bytes(self) -> Int64:
        """Bytes that each quotient link carries, (k,)."""
        f = self.family
        per_route = np.zeros(self.route_ptr.size - 1, np.int64)
        for phase, route in zip(f.phases, self.route, strict=True):
            np.add.at(per_route, route, phase.steps * f.lanes * phase.nbytes)
        total = np.zeros(self.link.size, np.int64)
        np.add.at(total, self.route_link, np.repeat(per_route, np.diff(self.route_ptr)))
        return total


def fold(family: Family, topology: Topology, period: int | None = None, *, fifo: bool = True) -> Folded | str:
    """The family folded by the topology's period (or the one given, in ranks), or the condition that does not hold.

    ``fifo=False``, for fair sharing, does not ask who goes first of two messages that come to a link at one time.
    """
    require_ranks(family.world_size, topology)
    if family.world_size != topology.world_size:
        return f"{family.world_size} of the {topology.world_size} ranks of {topology.name} have no translation"
    shift = topology.period_ranks if period is None else period
    if shift is None:
        return f"{topology.name} does not repeat after any number of ranks"
    if not 0 < shift < family.world_size or family.world_size % shift:
        return f"no whole number of periods of {shift} ranks makes {family.world_size} ranks"
    local, n = topology.ranks_per_node if topology.uniform else 1, family.world_size
    turns = local > 1 and shift % local == 0
    reason = ""
    for rail in (local, 1) if turns else (1,):
        folded = _fold(family, topology, shift, rail, fifo)
        if isinstance(folded, Folded):
            return folded
        reason = folded  # without turning nodes less is asked, so the last reason is the weightiest
    return f"{reason} (period {shift} of {n} ranks)"


def _fold(family: Family, topology: Topology, period: int, rail: int, fifo: bool) -> Folded | str:
    n, count = family.world_size, family.world_size // period
    ranks = np.arange(n)
    node = ranks // rail * rail
    turned = node + (ranks - node + 1) % rail
    for phase in family.phases:
        if (np.roll(phase.to, -period) != (phase.to + period) % n).any():
            return "the family does not send alike from one period to the next"
        if (phase.to[turned] != turned[phase.to]).any():
            return "the family does not send alike from the ranks of a node"
    chosen = range(count) if n <= CHECK_ALL_RANKS else sorted({0, 1, count // 2, count - 2, count - 1})
    chosen_ranks = np.concatenate([np.arange(k * period, (k + 1) * period) for k in chosen])
    # How far each rank sends, the short way round.
    farthest = max(int(np.abs((phase.to - ranks + n // 2) % n - n // 2).max()) for phase in family.phases)
    if len(chosen) < count and farthest > period:
        return f"the family reaches beyond the next period, which is only checked up to {CHECK_ALL_RANKS} ranks"
    hops = _hops(family, topology, chosen_ranks)
    # Links numbered anew: what follows need not carry all links of a large machine about.
    used, number = np.unique(hops, return_inverse=True)
    if not (used >= 0).any():
        return "no message uses a link"
    phases, _, width = hops.shape
    hops = number.reshape(hops.shape) - int(used[0] < 0)
    used = used[used >= 0]
    speed = np.stack([topology.link_bandwidth[used], topology.link_latency[used]])
    # Of every link on the way of a class, (phase, class, hop), its images: in the periods and on the ranks of a node.
    images = hops.reshape(phases, len(chosen), -1, rail, width).transpose(0, 2, 4, 1, 3)
    fault = _check_images(hops, images, np.array(chosen), count, speed)
    if fault:
        return fault
    if fifo and not _in_order_of_classes(hops, chosen_ranks % period // rail):
        return "messages of one step are numbered in another order on one link than on its images, which breaks ties"
    label = _labels(_images_of_links(images), used.size)
    return _quotient(family, used, speed, images[..., 0, 0], label, period, rail)


def _hops(family: Family, topology: Topology, ranks: Int64) -> Int64:
    """Links of each message of a step, (phases, ranks, hops), padded with -1."""
    phases = len(family.phases)
    table = topology.routes(np.tile(ranks, phases), np.concatenate([p.to[ranks] for p in family.phases]))
    length = np.diff(table.ptr)
    padded = np.full((length.size, int(length.max(initial=0))), -1, np.int64)
    padded[np.arange(padded.shape[1]) < length[:, None]] = table.link
    return padded[table.index].reshape(phases, ranks.size, -1)


def _check_images(hops: Int64, images: Int64, chosen: Int64, count: int, speed: Float64) -> str:
    """Why the routes of the chosen periods are not images of each other; empty if they are."""
    phases, _, width = hops.shape
    parts = hops.reshape(phases, chosen.size, -1, width)
    after = np.flatnonzero((np.roll(chosen, -1) - chosen) % count == 1)
    if not _one_to_one(parts[:, after], parts[:, (after + 1) % chosen.size], speed):
        return "the routes of one period are not the images of those of the next"
    turned = hops.reshape(phases, -1, images.shape[-1], width)
    if not _one_to_one(turned, np.roll(turned, -1, axis=2), speed):
        return "the routes of the ranks of a node are not images of each other"
    used = _images_of_links(images)
    ordered = np.sort(used, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        return "several images of a message share one link"
    if chosen.size == count:
        label = _labels(used, speed.shape[1])
        size = np.bincount(label[label >= 0])
        if (size[size > 0] != used.shape[1]).any():
            return "two links that stand alike carry different numbers of images"
    return ""


def _images_of_links(images: Int64) -> Int64:
    """The rows of images that are links, (k, images)."""
    rows = images.reshape(-1, images.shape[3] * images.shape[4])
    return rows[rows[:, 0] >= 0]


def _one_to_one(a: Int64, b: Int64, speed: Float64) -> bool:
    """Whether a link of ``a`` always corresponds to one and the same link of ``b`` and back, of equal speed."""
    x, y = a.reshape(-1), b.reshape(-1)
    if ((x < 0) != (y < 0)).any():
        return False
    x, y = x[x >= 0], y[y >= 0]
    image, origin = (np.full(speed.shape[1], -1, np.int64) for _ in range(2))
    image[x], origin[y] = y, x
    return bool((speed[:, x] == speed[:, y]).all() and (image[x] == y).all() and (origin[y] == x).all())


def _in_order_of_classes(hops: Int64, sender: Int64) -> bool:
    """Whether on every link the messages of one step, in the order of ranks, are in that of their senders' classes.

    Then of two messages that come to a link at one time the same class goes first on all its images, and in the part.
    """
    for phase in hops:
        link = phase.reshape(-1)
        order = np.argsort(link, kind="stable")
        order = order[np.searchsorted(link[order], 0) :]
        same = link[order][1:] == link[order][:-1]
        number = np.repeat(sender, phase.shape[1])[order]
        if (number[1:] < number[:-1])[same].any():
            return False
    return True


def _labels(columns: Int64, count: int) -> Int64:
    """The smallest link of the set that each link stands alike with, (links,); -1 for links of no column.

    Links of one column stand alike, and so do those of columns that share a link.
    """
    label = np.full(count, -1, np.int64)
    label[columns] = columns
    while True:
        smallest = label[columns].min(axis=1)
        joined = label.copy()
        np.minimum.at(joined, columns, smallest[:, None])
        joined[columns] = np.minimum(joined[columns], joined[joined[columns]])
        if (joined == label).all():
            return label
        label = joined


def _quotient(family: Family, used: Int64, speed: Float64, ways: Int64, label: Int64, period: int, rail: int) -> Folded:
    """The part of the first images ``ways`` (phases, classes, hops) of the links ``used`` that ``label`` makes one."""
    # One route, and so one connection, for all phases in which a rank sends to the same other one.
    first = np.arange(0, period, rail)
    pairs = np.stack([p.to[first] * family.world_size + first for p in family.phases])
    _, shown, route = np.unique(pairs, return_index=True, return_inverse=True)
    ways = ways.reshape(-1, ways.shape[2])[shown]
    inside = ways >= 0
    stands, number = np.unique(label[ways[inside]], return_inverse=True)
    return Folded(
        family=family,
        period=period,
        rail=rail,
        to=np.stack([p.to[:period:rail] % period // rail for p in family.phases]).astype(np.int32),
        route=route.reshape(pairs.shape).astype(np.int32),
        route_ptr=pointers(inside.sum(axis=1)),
        route_link=number.reshape(-1).astype(np.int32),
        link=used[stands].astype(np.int32),
        link_bandwidth=speed[0, stands],
        link_latency=speed[1, stands],
    )


def run_folded(folded: Folded) -> Totals:
    """The Totals of the representatives: in order of numbers without rows if every link allows it, else by events."""
    from commsim.engine.loops.in_order import run_family
    from commsim.engine.loops.links import LinkState

    f = folded.family
    count = folded.link.size
    arrived, busy = np.zeros((f.lanes, folded.senders)), np.zeros(count)
    routes = Routes(
        folded.route_ptr, folded.route_link, 1.0 / folded.link_bandwidth, folded.link_latency, np.arange(count)
    )
    done = run_family(
        np.array([p.steps for p in f.phases], np.int64),
        np.array([p.nbytes for p in f.phases], np.int64),
        folded.to,
        folded.route,
        routes,
        LinkState(np.zeros(count), np.zeros(count, np.int64), busy),
        arrived,
    )
    makespan, method = float(arrived.max(initial=0.0)), "in_order"
    if done < f.steps:
        outcome = simulate(folded.program(), in_order=False)
        makespan, busy, method = outcome.makespan_s, outcome.link_busy_s, "heap"
    return Totals(
        makespan_s=makespan,
        messages=f.messages,
        link=folded.link,
        link_bytes=folded.link_bytes(),
        link_busy_s=busy,
        level="fold",
        method=method,
        part=folded.part,
    )
