"""The ranks of a communicator as NCCL numbers them: nodes in the order of their first ranks, and kinds of nodes.

Each node searches its own channels (`commsim.nccl.graph`); nodes of one kind find the same. A kind is a small machine
of its own: one or two nodes like it, of which everything inside a node is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt

from commsim.errors import TopologyError
from commsim.topology.graph import Topology
from commsim.topology.kinds import Bool, Int64


@dataclass(frozen=True, eq=False)
class Comm:
    """Ranks on a machine: `nodes` (M,) of the topology in NCCL's order, the `kind` of each, and the `kinds`.

    Rank i of a node is rank i of its kind's nodes. Of a `whole` machine all nodes take part with all their ranks, in
    their order; where its nodes are of one kind too, and nothing between them is slowed, it is `plain`.
    """

    topology: Topology
    nodes: Int64
    kind: Int64
    kinds: tuple[Topology, ...]
    seen: tuple[Topology, ...]  # the kinds as NCCL saw them when the job began
    whole: bool
    copies: int = 1  # communicators that `nodes` are of, as many of each, one after the other

    def elsewhere(self, nodes: Int64) -> Comm:
        """Communicators like it on other nodes, which are of the same kinds, (communicators, nodes of each)."""
        return replace(self, nodes=nodes.ravel(), kind=np.tile(self.kind, len(nodes)), copies=len(nodes))

    @cached_property
    def plain(self) -> bool:
        """Whether one node, and the way between two, stand for all."""
        return self.whole and self.kinds[0] is self.topology

    @cached_property
    def counts(self) -> Int64:
        """Ranks of each node, (M,)."""
        return np.array([k.ranks_per_node for k in self.kinds], np.int64)[self.kind]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.counts.sum())

    @cached_property
    def first_rank(self) -> Int64:
        """First rank of each node, and the number of ranks, (M + 1,)."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def node_of(self) -> Int64:
        """The place of each rank's node in `nodes`, (ranks,)."""
        return np.repeat(np.arange(self.nodes.size), self.counts)

    @cached_property
    def last(self) -> Bool:
        """Whether a rank is the last of its node, (ranks,)."""
        last = np.zeros(self.ranks, bool)
        last[self.first_rank[1:] - 1] = True
        return last


def communicator(topology: Topology, ranks: Sequence[int] | npt.NDArray[np.integer] | None = None) -> Comm:
    """The communicator of some ranks of a machine, in this order; of all ranks by default.

    NCCL numbers nodes by their first rank, and orders the GPUs of a node by their ranks (src/init.cc,
    initTransportsRank). TopologyError for a rank that is not there or stands twice, and for nodes that no way
    joins.
    """
    t = topology
    whole = ranks is None or (len(ranks) == t.world_size and bool((np.asarray(ranks) == np.arange(t.world_size)).all()))
    if whole:
        if t.at_start is None and (t.nodes == 1 or (t.uniform and t.link_share is None)):
            nothing = np.zeros(t.nodes, np.int64)
            return Comm(t, np.arange(t.nodes), nothing, (t,), (t,), whole=True)
        chosen = np.arange(t.world_size)
    else:
        chosen = np.asarray(ranks, np.int64)
        if chosen.size != np.unique(chosen).size or chosen.min(initial=0) < 0 or chosen.max(initial=0) >= t.world_size:
            raise TopologyError(f"{t.name}: found a rank twice, or outside 0..{t.world_size - 1}")
    from commsim.topology.faults import check_joined
    from commsim.topology.part import alike, states  # which machines of nodes that are alike need not

    node = t.rank_node[chosen].astype(np.int64)
    _, first, index = np.unique(node, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.argsort(order, kind="stable")[index]  # of the node of each rank, in NCCL's order
    nodes = node[first[order]]
    check_joined(t, nodes)
    by_node = np.argsort(place, kind="stable")
    local = (chosen - t.node_first_rank[node])[by_node]
    starts = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=nodes.size))])
    state = states(t)[nodes]
    began = cast("Topology | None", t.at_start)
    if began is not None:
        before = states(began)[nodes]
        state = state * (int(before.max()) + 1) + before
    kind, representatives, gpus_of = _kinds(state, local, starts)
    several = min(2, nodes.size)
    places = [(int(nodes[k]), gpus) for k, gpus in zip(representatives, gpus_of, strict=True)]
    kinds = tuple(alike(t, *place, several) for place in places)
    seen = kinds if began is None else tuple(alike(began, *place, several) for place in places)
    return Comm(t, nodes, kind, kinds, seen, whole=whole)


def _kinds(state: Int64, local: Int64, starts: Int64) -> tuple[Int64, list[int], list[tuple[int, ...]]]:
    """The kind of each node by its state and its GPUs; the first node and the GPUs of each kind."""
    seen: dict[tuple[int, bytes], int] = {}
    kind, first, gpus = np.empty(state.size, np.int64), list[int](), list[tuple[int, ...]]()
    packed, bounds = local.astype(np.int16).tobytes(), (2 * starts).tolist()
    for k, of in enumerate(state.tolist()):
        key = of, packed[bounds[k] : bounds[k + 1]]
        number = seen.setdefault(key, len(seen))
        if number == len(first):
            first.append(k)
            gpus.append(tuple(local[starts[k] : starts[k + 1]].tolist()))
        kind[k] = number
    return kind, first, gpus
