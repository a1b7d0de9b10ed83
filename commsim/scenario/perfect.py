"""Collectives without loss: each at the limit of the links, as the library `synthesized` would have them.

What `commsim synthesize` finds comes within a few per cent of it for large sizes. Kernels, launches and protocols cost
nothing here, and switches add and copy where they can: what is asked is how much better collectives could gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from commsim.bounds import nic_seconds
from commsim.engine.sharing import LinkLoad
from commsim.scenario.item import Row
from commsim.scenario.rows import RowPredictor
from commsim.synthesis.bound import BoundQuestion, QuickBound, quick_bound, sharpened
from commsim.synthesis.machine import adds_somewhere
from commsim.topology.kinds import Float64
from commsim.topology.tree import TreeRoutes
from commsim.training.communicators import SEND, OffGpu, Ranks, on_routes
from commsim.training.nccl_groups import named, turns

if TYPE_CHECKING:
    from commsim.scenario.collective import CollectiveSpec
    from commsim.topology.graph import Topology

SYNTHESIZED = "synthesized"
"""The library's name."""


class PerfectRows(RowPredictor):
    """Rows at the limit: the least time that any schedule takes, with the cut that binds as the bottleneck."""

    def __init__(self, topology: Topology, work: CollectiveSpec) -> None:
        super().__init__(work, topology, in_network=True)
        self._sharp: QuickBound | None = None

    @property
    def bound(self) -> QuickBound:
        """With a linear program where one decides and is quick."""
        if self._sharp is None or self._sharp.topology is not self.topology:
            self._sharp = sharpened(super().bound)
        return self._sharp

    def notes_on(self, rows: Sequence[Row]) -> list[str]:
        """What the rows are."""
        adds = ", sums in switches that can" if adds_somewhere(self.topology) else ""
        return [f"times are what no schedule beats: the longest way or the bytes of the links, whichever is more{adds}"]

    def __call__(self, size: int) -> Row:
        bound = self.bound
        seconds, cuts = bound.seconds(size), bound.cuts(size)
        late = cuts.latency_s >= seconds
        where = "latency" if late else "NIC" if cuts.bandwidth_at == "node NICs" else "GPU ports"
        return replace(self.row(size, seconds), algorithm=SYNTHESIZED, bottleneck=where, level="closed_form")


class PerfectGroups(OffGpu):
    """`GroupCalls` at the limit: of each group alone, and of the NICs of every node for all groups together.

    What other calls have of NVLink at the same time is left out: a GPU is in one group of a call, and its calls follow
    each other. ``latency``: times that hops take as long.
    """

    def __init__(self, topology: Topology, latency: float = 1.0) -> None:
        self._topology = replace(topology, link_latency=latency * topology.link_latency)
        self._known: dict[tuple[str, int, bytes, int], float] = {}
        self._alone: dict[tuple[str, bytes], QuickBound] = {}
        self.warnings = [
            "collectives are at the limit of the links (library: synthesized): what no schedule beats, without launches"
        ]

    def __call__(self, collective: str, nbytes: float, ranks: Ranks) -> float:
        """As of `GroupCalls`."""
        groups = np.atleast_2d(ranks)
        if groups.shape[1] < 2 or nbytes <= 0:
            return 0.0
        collective, size = _rounded(collective, nbytes, groups)
        key = collective, size, groups.tobytes(), len(groups)
        if key not in self._known:
            alone = max(self._bound(collective, *one).seconds(size) for one in self._unlike(groups))
            self._known[key] = max(alone, *(float(held.max()) for held in self._nics(collective, size, groups)))
        return self._known[key]

    def load(self, collective: str, nbytes: float, ranks: Ranks) -> LinkLoad:
        """As of `GroupCalls`: what the ports of every node must carry, evenly on its NICs."""
        t, groups = self._topology, np.atleast_2d(ranks)
        if collective == SEND:
            put, lines = on_routes(t, groups[:, 0], groups[:, 1], np.full(len(groups), nbytes))
            return LinkLoad.of(put, lines, t.link_bandwidth)
        put = np.zeros(t.link_bandwidth.size)
        if t.nodes > 1 and groups.shape[1] > 1:
            collective, size = _rounded(collective, nbytes, groups)
            sides = zip((t.fabric.port_up, t.fabric.port_down), self._nics(collective, size, groups), strict=True)
            for ports, held_s in sides:
                for node in np.flatnonzero(held_s).tolist():
                    own = ports[node][ports[node] >= 0]
                    put[own] += held_s[node] * t.link_bandwidth[own]
        return LinkLoad.of(put, (put > 0).astype(np.float64), t.link_bandwidth)

    def _bound(self, collective: str, ranks: Ranks, place: bytes) -> QuickBound:
        """Of a group, which stands for all that stand alike, of whatever call."""
        key = collective, place
        if key not in self._alone:
            question = BoundQuestion(collective, 0, tuple(ranks.tolist()), in_network=True)
            self._alone[key] = quick_bound(self._topology, question)
        return self._alone[key]

    def _nics(self, collective: str, nbytes: int, groups: Ranks) -> tuple[Float64, Float64]:
        """Seconds that the NICs of each node send and receive for all groups, (nodes,) each."""
        each = [nic_seconds(collective, nbytes, self._topology, row) for row in groups]
        return sum((out for out, _ in each), np.zeros(1)), sum((into for _, into in each), np.zeros(1))

    def _unlike(self, groups: Ranks) -> list[tuple[Ranks, bytes]]:
        """One of the groups that stand alike, and how they stand.

        Alike on a sound machine of one kind of node: the same GPUs, nodes and leaves that are shared alike.
        """
        t = self._topology
        columns = [groups]
        if t.uniform and t.link_share is None and t.link_failed is None and t.node_gdr is None:
            node = t.rank_node[groups].astype(np.int64)
            alike = [groups - t.node_first_rank[node], turns(node)]
            if not (node != node[:, :1]).any():
                columns = alike
            elif isinstance(t.fabric, TreeRoutes):
                leaf = t.fabric.leaf
                columns = alike + [turns(leaf[:, k].astype(np.int64)[node]) for k in range(leaf.shape[1])]
        places = np.concatenate(columns, axis=1).astype(np.int64)
        first = np.sort(np.unique(places, axis=0, return_index=True)[1])
        # Groups of one node have fewer columns, so that no two ways of standing have the same bytes and ranks.
        return [(groups[i], bytes(f"{groups.shape[1]} {len(columns)} ", "ascii") + places[i].tobytes()) for i in first]


def _rounded(collective: str, nbytes: float, groups: Ranks) -> tuple[str, int]:
    collective, nbytes = named(collective, nbytes, groups)
    return collective, max(1, round(nbytes))
