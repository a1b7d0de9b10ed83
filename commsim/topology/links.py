"""Columns of links under construction, and the ports of the nodes that a fabric joins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.topology.fabric_routes import FabricRoutes
from commsim.topology.kinds import Float64, Int32, Int64, LinkKind, UInt8


@dataclass(frozen=True)
class LinkColumns:
    """Links as columns (links,): vertices, bytes/s, seconds, `LinkKind`."""

    src: Int32
    dst: Int32
    bandwidth: Float64
    latency: Float64
    kind: UInt8

    @staticmethod
    def both_ways(
        a: npt.ArrayLike, b: npt.ArrayLike, bandwidth: npt.ArrayLike, latency: npt.ArrayLike, kind: LinkKind
    ) -> LinkColumns:
        """Links between a[i] and b[i], forth and back side by side."""
        ends = np.stack([np.asarray(a).ravel(), np.asarray(b).ravel()], axis=1).astype(np.int32)
        rate, seconds = (
            np.repeat(np.broadcast_to(np.asarray(x, np.float64), len(ends)), 2) for x in (bandwidth, latency)
        )
        return LinkColumns(ends.ravel(), ends[:, ::-1].ravel(), rate, seconds, np.full(ends.size, kind, np.uint8))

    @staticmethod
    def joined(parts: list[LinkColumns]) -> LinkColumns:
        """All links of the parts, in order."""
        columns = ("src", "dst", "bandwidth", "latency", "kind")
        return LinkColumns(*(np.concatenate([getattr(p, name) for p in parts]) for name in columns))


@dataclass(frozen=True)
class Ports:
    """The NICs of all nodes, (nodes, most NICs): vertex (-1: no such NIC), bytes/s (0.0), seconds of NIC and cable."""

    vertex: Int64
    bandwidth: Float64
    latency: Float64

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.vertex.shape[0])

    def cabled(
        self, switch: Int64, first_vertex: int, first_link: int, switch_latency: float
    ) -> tuple[tuple[Int32, Int32, Int32], LinkColumns]:
        """((link up, link down, switch) of each port, -1 without NIC; the links) for switches given (nodes, NICs).

        Links are numbered from `first_link` in order of node and NIC.
        """
        here = self.vertex >= 0
        up = np.full(self.vertex.shape, -1, dtype=np.int32)
        up[here] = first_link + 2 * np.arange(here.sum())
        down, leaf = (np.where(here, x, -1).astype(np.int32) for x in (up + 1, switch))
        latency = self.latency[here] + switch_latency / 2
        ends = self.vertex[here], first_vertex + switch[here]
        return (up, down, leaf), LinkColumns.both_ways(*ends, self.bandwidth[here], latency, LinkKind.NETWORK)


@dataclass(frozen=True)
class BuiltFabric:
    """What a kind of fabric builds: names of its switches, the links after the node links, the routes."""

    switches: list[str]
    links: LinkColumns
    routes: FabricRoutes
