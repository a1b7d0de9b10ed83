"""Torus: a router per node, joined to its neighbours in every dimension, the last dimension counting fastest.

All NICs of a node are ports of its router. Dimension-order routing goes the shorter way round each dimension, up
where both are equally long; `ecmp` hashes over the orders of the dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice, permutations

import numpy as np

from commsim.topology.fabric import Fabric
from commsim.topology.fabric_routes import FabricRoutes, Flowlet, PathChoice
from commsim.topology.kinds import Int32, Int64, LinkKind
from commsim.topology.links import BuiltFabric, LinkColumns, Ports

_MOST_ORDERS = 24


@dataclass(frozen=True, eq=False)
class TorusRoutes(FabricRoutes):
    """Dimension by dimension. ``step`` (routers, dimensions, 2): link to the next router up, and down."""

    sizes: tuple[int, ...]
    choose: PathChoice
    step: Int32

    @property
    def orders(self) -> list[tuple[int, ...]]:
        """The orders of the dimensions that routes may take; the first is the order stated."""
        return list(islice(permutations(range(len(self.sizes))), _MOST_ORDERS))

    @property
    def choices(self) -> int:
        """One path per order of the dimensions."""
        return len(self.orders)

    @property
    def period_nodes(self) -> int | None:
        """One step in the first dimension: a shift by less would carry from one dimension to the next."""
        return math.prod(self.sizes[1:])

    def switch_image(self, shift: int) -> Int64:
        """Routers move with their nodes."""
        return np.asarray((np.arange(self.nodes) + shift) % self.nodes)

    def between(
        self, src: Int64, src_nic: Int64, dst: Int64, dst_nic: Int64, attempt: int = 0, flowlet: Flowlet = 0
    ) -> Int32:
        """As many links as the distances of all dimensions."""
        hops = sum(n // 2 for n in self.sizes)
        out = np.full((len(src), hops), -1, dtype=np.int32)
        turn = np.zeros_like(src)
        if self.choose.hashed:
            turn = self.choose.number(src, dst, src_nic, turn, flowlet)
        turn = (turn + attempt) % self.choices
        for i, order in enumerate(self.orders):
            k = np.flatnonzero(turn == i)
            if k.size:
                out[k] = self._ordered(src[k], dst[k], order, hops)
        return out

    def _ordered(self, src: Int64, dst: Int64, order: tuple[int, ...], hops: int) -> Int32:
        out = np.full((len(src), hops), -1, dtype=np.int32)
        at, column = src.copy(), 0
        for d in order:
            n, stride = self.sizes[d], math.prod(self.sizes[d + 1 :])
            place = at // stride % n
            ahead = (dst // stride % n - place) % n
            up = 2 * ahead <= n
            left = np.where(up, ahead, n - ahead)
            for hop in range(n // 2):
                k = np.flatnonzero(left > hop)
                out[k, column + hop] = self.step[at[k], d, np.where(up[k], 0, 1)]
                there = (place[k] + np.where(up[k], 1, -1)) % n
                at[k] += (there - place[k]) * stride
                place[k] = there
            column += n // 2
        return out


def torus(fabric: Fabric, ports: Ports, first_vertex: int, first_link: int) -> BuiltFabric:
    """A router per node and the links between neighbours."""
    sizes, nodes = fabric.dimensions, ports.nodes
    leaf = np.broadcast_to(np.arange(nodes)[:, None], ports.vertex.shape)
    of_ports, port_links = ports.cabled(leaf, first_vertex, first_link, fabric.switch_latency)
    links, at = [port_links], first_link + len(port_links.src)
    step = np.full((nodes, len(sizes), 2), -1, dtype=np.int32)
    width = fabric.link_bandwidth or float(ports.bandwidth.max())
    for d, n in enumerate(sizes):
        stride = math.prod(sizes[d + 1 :])
        router = np.arange(nodes)
        place = router // stride % n
        if n < 3:  # the two routers of a dimension of two have one link, not one each way round
            router = router[place == 0] if n == 2 else router[:0]
            place = place[router]
        after = router + ((place + 1) % n - place) * stride
        number = at + 2 * np.arange(len(router))
        step[router, d, 0], step[after, d, 1] = number, number + 1
        if n == 2:
            step[after, d, 0], step[router, d, 1] = number + 1, number
        ends = first_vertex + router, first_vertex + after
        links.append(LinkColumns.both_ways(*ends, width, fabric.hop_latency, LinkKind.FABRIC))
        at += 2 * len(router)
    routes = TorusRoutes(*of_ports, 1, sizes, fabric.choice(math.prod(sizes[1:]), nodes), step)
    names = ["router" + ".".join(str(c) for c in np.unravel_index(i, sizes)) for i in range(nodes)]
    return BuiltFabric(names, LinkColumns.joined(links), routes)
