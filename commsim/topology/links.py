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

        def column(value: npt.ArrayLike) -> Float64:
            return np.repeat(np.broadcast_to(np.asarray(value, dtype=np.float64), len(ends)), 2)

        return LinkColumns(
            ends.ravel(),
            ends[:, ::-1].ravel(),
            column(bandwidth),
            column(latency),
            np.full(2 * len(ends), kind, dtype=np.uint8),
        )

    @staticmethod
    def joined(parts: list[LinkColumns]) -> LinkColumns:
        """All links of the parts, in order."""
        return LinkColumns(
            np.concatenate([p.src for p in parts]),
            np.concatenate([p.dst for p in parts]),
            np.concatenate([p.bandwidth for p in parts]),
            np.concatenate([p.latency for p in parts]),
            np.concatenate([p.kind for p in parts]),
        )


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

    def numbered(self, first_link: int) -> tuple[Int32, Int32]:
        """(link up, link down) of each port, numbered from `first_link` in order of node and NIC; -1 without NIC."""
        here = self.vertex >= 0
        up = np.full(self.vertex.shape, -1, dtype=np.int32)
        up[here] = first_link + 2 * np.arange(here.sum())
        return up, np.where(here, up + 1, -1).astype(np.int32)

    def links(self, switch: Int64, switch_latency: float) -> LinkColumns:
        """The port links, to the switch vertices given (nodes, NICs)."""
        here = self.vertex >= 0
        return LinkColumns.both_ways(
            self.vertex[here],
            switch[here],
            self.bandwidth[here],
            self.latency[here] + switch_latency / 2,
            LinkKind.NETWORK,
        )


@dataclass(frozen=True)
class BuiltFabric:
    """What a kind of fabric builds: names of its switches, the links after the node links, the routes."""

    switches: list[str]
    links: LinkColumns
    routes: FabricRoutes
