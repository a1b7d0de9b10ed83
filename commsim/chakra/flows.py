"""Transfers of a trace as flows: those whose links others use as well run on the network, under fair sharing.

As in a training step (`commsim.training.flows`), a collective in progress is a set of steady streams, one per hop of
its rings; alone it takes the NCCL model's time, beside others as much longer as its fullest link is held up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.chakra.program import Key, TraceOperation, TraceProgram
from commsim.collectives.semantics import CHAINED
from commsim.engine.template import Template
from commsim.training.flows import MOST_ROWS, Flow, held_links, rings

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

Int64 = npt.NDArray[np.int64]

_SHARE = {"all_reduce": 2.0, "broadcast": 1.0, "reduce": 1.0}
"""Of the size, times (n-1)/n, on every hop of a ring; broadcast and reduce pass all of it on."""


class SharedLinks:
    """Which lines of transfers meet others on a link, and their operations as flows there."""

    def __init__(self, program: TraceProgram, topology: Topology, places: Sequence[int]) -> None:
        self.topology = topology
        self._places = np.asarray(places, np.int64)
        self._templates: dict[Key, tuple[Template, tuple[int, ...], float, float]] = {}
        self.left_out: list[Key] = []
        held = {key: self._links(key) for key in program.keys if key is not None}
        users = np.zeros(topology.link_bandwidth.size, np.int64)
        for links in held.values():
            users[links] += 1
        self.shared = frozenset(key for key, links in held.items() if (users[links] > 1).any())

    def flow(self, key: Key, operation: TraceOperation) -> Flow | None:
        """The flow of an operation; None where nothing else uses its links."""
        if key not in self.shared or operation.seconds <= 0:
            return None
        if key not in self._templates:
            self._templates[key] = self._template(key)
        template, ranks, slowest, latency = self._templates[key]
        nbytes = operation.nbytes * self._share(key, operation.name)
        spare = operation.seconds - latency  # what bytes may take where the NCCL model is quicker than bare links
        each = max(1, round(min(nbytes, spare / slowest)))
        rest = max(0.0, spare - slowest * each)
        return Flow(nbytes, operation.seconds, template, ranks, each * template.total_bytes, rest)

    def _share(self, key: Key, name: str) -> float:
        """Bytes on every hop over those of the operation."""
        n = len(key[1])
        if key[0] == "send":
            return 1.0
        ways = rings(np.array([self._places[list(key[1])]]), self.topology.ranks_per_node)[2]
        whole = 1.0 if name in CHAINED else (n - 1) / n
        return _SHARE.get(name, 1.0) * whole / ways

    def _hops(self, key: Key) -> tuple[Int64, Int64]:
        members = self._places[list(key[1])]
        if key[0] == "send":
            return members[:1], members[1:]
        if members.size < 2:
            return members[:0], members[:0]
        src, dst, _ = rings(members[None], self.topology.ranks_per_node)
        return src, dst

    def _links(self, key: Key) -> Int64:
        src, dst = self._hops(key)
        if src.size > MOST_ROWS:
            self.left_out.append(key)
            return np.zeros(0, np.int64)
        return np.unique(held_links(self.topology, src, dst))

    def _template(self, key: Key) -> tuple[Template, tuple[int, ...], float, float]:
        """Messages of one byte, their ranks, seconds per byte of a hop on the fullest link, most latency."""
        src, dst = self._hops(key)
        load = np.bincount(held_links(self.topology, src, dst), minlength=self.topology.link_bandwidth.size)
        template, ranks = Template.at_once(src, dst)
        ways = [held_links(self.topology, src[i : i + 1], dst[i : i + 1]) for i in range(src.size)]
        latency = max(float(self.topology.link_latency[way].sum()) for way in ways)
        return template, ranks, float((load / self.topology.link_bandwidth).max()), latency


def groups_left_out(keys: Iterable[Key]) -> str:
    """A warning about groups too large to be put on the network; empty where there is none."""
    sizes = sorted({len(key[1]) for key in keys})
    if not sizes:
        return ""
    return f"contention: groups of {', '.join(map(str, sizes[:4]))} ranks have over {MOST_ROWS} hops and meet no one"
