"""Calls of NCCL on groups of ranks where they are: each group by NCCL's own choice, on its nodes, over its links.

Groups that call at the same time share links; where these have not enough for all, they take as much longer. Groups
that stand alike on the machine, on nodes in the same state, are timed once.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from commsim.engine.sharing import LinkLoad
from commsim.nccl.machine import NIC
from commsim.nccl.memory import CommunicatorMemory, communicator_memory
from commsim.nccl.nodes import slowed
from commsim.nccl.predict import Options, Prediction, Predictor
from commsim.nccl.streams import PINNED
from commsim.nccl.traffic import load_of, lying
from commsim.topology.kinds import Int64, LinkKind
from commsim.topology.part import states
from commsim.topology.tree import TreeRoutes
from commsim.training.communicators import SEND, Ranks, on_routes

if TYPE_CHECKING:
    from commsim.nccl.parameters import Parameters
    from commsim.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class Alike:
    """Groups that stand alike: what says how, their ranks (groups, n), their nodes in NCCL's order.

    Groups of the same ``pace`` take the same time, if over other NICs.
    """

    place: bytes
    pace: bytes
    ranks: Ranks
    nodes: Int64


_MOST_KEPT = 4_000_000
"""Links of all loads that are kept: some 130 MB."""


class NcclGroups:
    """`GroupCalls` by NCCL's model; hops take ``latency`` times as long as the parameters say."""

    def __init__(
        self, topology: Topology, options: Options, parameters: Parameters | None = None, latency: float = 1.0
    ) -> None:
        self._topology, self._options, self._parameters, self._latency = topology, options, parameters, latency
        self._models: dict[bytes, Predictor] = {}
        self._alone: dict[tuple[str, int, bytes], Prediction] = {}
        self._alike: dict[bytes, tuple[list[Alike], bytes]] = {}
        self._seconds: dict[tuple[str, int, bytes, int], float] = {}
        self._loads: dict[tuple[str, int, int], LinkLoad] = {}
        self._asked: dict[tuple[str, float, bytes], Ranks] = {}
        self._held: dict[tuple[int, tuple[tuple[str, str], ...]], CommunicatorMemory] = {}
        self._heard: set[bytes] = set()  # the places of models whose warnings are among these
        self.warnings: list[str] = []

    def __call__(self, collective: str, nbytes: float, ranks: Ranks) -> float:
        """As of `GroupCalls`: of the slowest group, where the links that all share have enough for them."""
        groups = np.atleast_2d(ranks)
        if groups.shape[1] < 2 or nbytes <= 0:
            return 0.0
        collective, nbytes = named(collective, nbytes, groups)
        self._asked.setdefault((collective, nbytes, groups.tobytes()), groups)
        call, (alike, every) = (collective, round(nbytes)), self._sorted(groups)
        key = *call, every, len(groups)
        for some in alike:
            self._model(some)  # whose warnings are this caller's too
        if key not in self._seconds:
            self._seconds[key] = self._together(call, alike, [self._predicted(call, some) for some in alike])
        return self._seconds[key]

    def load(self, collective: str, nbytes: float, ranks: Ranks) -> LinkLoad:
        """As of `GroupCalls`."""
        groups = np.atleast_2d(ranks)
        if collective == SEND:
            put = on_routes(self._topology, groups[:, 0], groups[:, 1], np.full(len(groups), nbytes))
            return lying(self._model(self._sorted(groups)[0][0]), *put)
        collective, nbytes = named(collective, nbytes, groups)
        return self._load((collective, round(nbytes)), self._sorted(groups)[0])

    def _load(self, call: tuple[str, int], alike: list[Alike]) -> LinkLoad:
        """What a call of all groups puts on links; kept up to a bound, as steps that are like each other ask again."""
        key = *call, id(alike)  # which `_sorted` keeps
        if key not in self._loads:
            if sum(load.link.size for load in self._loads.values()) > _MOST_KEPT:
                self._loads.clear()
            self._loads[key] = LinkLoad.joined(
                [load_of(self._model(some), call[0], self._predicted(call, some), some.nodes) for some in alike]
            )
        return self._loads[key]

    def communicators(self, rank: int) -> list[CommunicatorMemory]:
        """The memory of the communicators that a rank is in, of those that have been called, as of their fullest rank.

        Groups of the same ranks are one communicator, as are both ways between two.
        """
        calls: dict[bytes, dict[tuple[str, str], None]] = {}
        models: dict[bytes, Predictor] = {}
        for (collective, nbytes, _), groups in self._asked.items():
            alike = self._sorted(groups)[0]
            for row in groups[(groups == rank).any(axis=1)]:
                some = next(each for each in alike if (each.ranks == row).all(axis=1).any())
                key = np.sort(row).tobytes()
                models.setdefault(key, self._model(some))
                called = collective, self._predicted((collective, round(nbytes)), some).algorithm
                calls.setdefault(key, {})[called] = None
        return [self._memory(models[key], tuple(called)) for key, called in calls.items()]

    def sms(self, collective: str, nbytes: float, ranks: Ranks) -> int:
        """As of `GroupCalls`: as many as the call has channels, of the groups that has most."""
        groups = np.atleast_2d(ranks)
        if groups.shape[1] < 2 or nbytes <= 0:
            return 0
        collective, nbytes = named(collective, nbytes, groups)
        return max(self._predicted((collective, round(nbytes)), some).channels for some in self._sorted(groups)[0])

    def fresh(self) -> NcclGroups:
        """As of `GroupCalls`."""
        made = copy(self)
        made._asked, made._heard, made.warnings = {}, set(), list(self.warnings)
        return made

    def _memory(self, model: Predictor, calls: tuple[tuple[str, str], ...]) -> CommunicatorMemory:
        key = id(model), calls
        if key not in self._held:
            self._held[key] = communicator_memory(model, calls)
        return self._held[key]

    def _together(self, call: tuple[str, int], alike: list[Alike], alone: list[Prediction]) -> float:
        """Seconds of the slowest of all groups at once, by what each takes alone.

        Those that crowd on a NIC, or on a link between switches, get a share of it, as of one so much slower.
        """
        slowest = max(got.time_s for got in alone)
        if sum(len(some.ranks) for some in alike) == 1:
            return slowest
        every = self._load(call, alike)
        if every.busiest_s <= slowest:
            return slowest
        collective, models = call[0], [self._model(some) for some in alike]
        calls = list(zip(models, alone, alike, strict=True))
        each = [load_of(model, collective, got, some.nodes[:1]) for model, got, some in calls]
        crowded = every.busiest_s / max(slowest, *(load.busiest_s for load in each))
        if crowded <= 1.0:
            return slowest
        kinds = self._topology.link_kind
        if kinds[every.link[(every.nbytes / every.capacity).argmax()]] < LinkKind.NETWORK:
            return slowest * crowded
        crowd = []
        for (model, got, _), load in zip(calls, each, strict=True):
            ports = kinds[load.link] == LinkKind.NETWORK
            alone_s = got.busy_s if got.limit == NIC else (load.nbytes / load.capacity)[ports].max(initial=0.0)
            share = min(1.0, float(alone_s) / every.busiest_s)
            crowd.append(_with_share(model, share).predict(collective, got.nbytes).time_s if share else 0.0)
        return max(slowest * crowded, *crowd)

    # -- which groups are alike ---------------------------------

    def _predicted(self, call: tuple[str, int], some: Alike) -> Prediction:
        collective, nbytes = call
        key = collective, max(1, nbytes), some.pace
        if key not in self._alone:
            self._alone[key] = self._model(some).predict(*key[:2])
        return self._alone[key]

    def _model(self, some: Alike) -> Predictor:
        """NCCL on one of the groups, which stands for those alike."""
        if some.place not in self._models:
            made = Predictor(self._topology, self._options, self._parameters, some.ranks[0].tolist())
            if self._latency != 1.0:
                made.parameters = made.parameters.scaled(self._latency)
            self._models[some.place] = made
        if some.place not in self._heard:
            self._heard.add(some.place)
            self.warnings += [text for text in self._models[some.place].warnings if text not in self.warnings]
        return self._models[some.place]

    def _sorted(self, groups: Ranks) -> tuple[list[Alike], bytes]:
        """The groups by how they stand, and how they stand to each other."""
        whole = groups.tobytes() + bytes(str(groups.shape), "ascii")
        if whole not in self._alike:
            rows: dict[bytes, list[int]] = {}
            places, node = self._places(groups), self._topology.rank_node
            for i, place in enumerate(places):
                rows.setdefault(place, []).append(i)
            paces = self._places(groups, by_kind=True)
            alike = [
                Alike(place, paces[some[0]], groups[some], _nodes(node[groups[some]].astype(np.int64)))
                for place, some in rows.items()
            ]
            self._alike[whole] = alike, self._places(groups.reshape(1, -1))[0]
        return self._alike[whole]

    def _places(self, groups: Ranks, *, by_kind: bool = False) -> list[bytes]:
        """How each group stands: its GPUs of each node, the state of its nodes, and these to each other.

        ``by_kind``: of a sound machine GPUs that are alone in their nodes count by their ways to NICs.
        """
        t = self._topology
        node = t.rank_node[groups].astype(np.int64)
        local = groups - t.node_first_rank[node]
        if by_kind and t.link_share is None and t.node_gdr is None:
            several = (np.diff(np.sort(node, axis=1), axis=1) == 0).any(axis=1, keepdims=True)
            local = np.where(several, local, self._kind[local])
        columns = [local, turns(node), self._state[node]]
        across = (node != node[:, :1]).any(axis=1)
        # Two nodes take one path, however it is chosen: its length says it.
        paired = groups.shape[1] == 2 and not self._regular
        where = [self._length(groups)] if paired else [places[node] for places in self._where]
        columns += [np.where(across[:, None], turns(at) if self._regular else at, 0) for at in where]
        packed = np.stack(columns, axis=1)
        return [row.tobytes() for row in packed]

    def _length(self, pairs: Ranks) -> Int64:
        """Picoseconds and bytes/s of the ways between the ranks of pairs, (pairs, 2)."""
        link, pair = self._topology.routes(pairs[:, 0], pairs[:, 1]).along()
        seconds = np.bincount(pair, self._topology.link_latency[link], len(pairs))
        rate = np.full(len(pairs), np.inf)
        np.minimum.at(rate, pair, self._topology.link_bandwidth[link])
        return np.stack([np.rint(1e12 * seconds), np.where(np.isfinite(rate), rate, 0.0)], axis=1).astype(np.int64)

    @cached_property
    def _kind(self) -> Int64:
        """A number for each GPU of a node by the types and rates of its ways to NICs, below those of single GPUs."""
        routes, known = self._topology.groups[0].node_routes, dict[tuple[tuple[int, float], ...], int]()
        rates = np.append(self._topology.link_bandwidth[: routes.links], np.inf)
        out = np.empty(self._topology.ranks_per_node, np.int64)
        for gpu, (types, ways) in enumerate(zip(routes.gpu_nic_type, routes.gpu_nic, strict=True)):
            rate = rates[np.where(ways >= 0, ways, -1)].min(axis=1, initial=np.inf)
            out[gpu] = -1 - known.setdefault(tuple(sorted(zip(types.tolist(), rate.tolist(), strict=True))), len(known))
        return out

    @cached_property
    def _state(self) -> Int64:
        """A number for the state of each node, of its ports, and of the links above its leaves and its pod."""
        t = self._topology
        known = [states(t)]
        if t.at_start is not None:
            known.append(states(cast("Topology", t.at_start)))
        if t.nodes > 1 and t.link_share is not None:
            share = np.where(t.works, t.link_share, 0.0)
            above = np.ones(len(t.vertex_name) - int(t.node_first_vertex[-1]))
            wires = np.flatnonzero(t.link_kind == LinkKind.FABRIC)
            for ends in (t.link_src, t.link_dst):
                np.minimum.at(above, ends[wires] - t.node_first_vertex[-1], share[wires])
            here = t.fabric.port_up >= 0
            known += list(np.where(here, share[t.fabric.port_up], 1.0).T)
            known += list(np.where(here, share[t.fabric.port_down], 1.0).T)
            known += list(np.where(here, above[t.fabric.leaf], 1.0).T)
            if isinstance(t.fabric, TreeRoutes) and t.fabric.shape.pods > 1:
                shape = t.fabric.shape
                spines = above[shape.leaves : shape.leaves + shape.all_spines].reshape(shape.pods, -1).min(axis=1)
                known.append(spines[shape.place(t.fabric.leaf[:, 0].astype(np.int64))[0]])
        return np.unique(np.stack(known, axis=1).astype(np.float64), axis=0, return_inverse=True)[1].reshape(-1)

    @cached_property
    def _regular(self) -> bool:
        """Whether it is enough to know which nodes share a leaf and a pod: a tree without paths of its own choice."""
        return isinstance(self._topology.fabric_routes, TreeRoutes) and self._topology.routing not in PINNED

    @cached_property
    def _where(self) -> list[Int64]:
        """Of each node the leaf and the pod of its first NIC; on a fabric that is no tree the node itself."""
        t = self._topology
        if t.nodes < 2:
            return []
        if not self._regular:
            return [np.arange(t.nodes)]
        assert isinstance(t.fabric, TreeRoutes)
        leaf = t.fabric.leaf[:, 0].astype(np.int64)
        return [leaf, t.fabric.shape.place(leaf)[0]]


def _with_share(model: Predictor, share: float) -> Predictor:
    """The model where the NICs of all nodes give a share of their rates, of which NCCL knows nothing."""
    made = copy(model)
    kinds = tuple(
        replace(kind, machine=slowed(kind.machine, share), sends=kind.sends and slowed(kind.sends, share))
        for kind in model.nodes.kinds
    )
    made.nodes = replace(model.nodes, kinds=kinds)
    for name in ("_tree", "_peers"):
        made.__dict__.pop(name, None)  # they are of the nodes as they were
    return made


def named(collective: str, nbytes: float, groups: Ranks) -> tuple[str, float]:
    """What a library runs for a call, and its nccl-tests size; the counts of an all_to_all_v are taken as equal."""
    if collective == "all_to_all_v":
        return "all_to_all", nbytes / groups.shape[1]
    return "send_recv" if collective == SEND else collective, nbytes


def _nodes(of_ranks: Int64) -> Int64:
    """The nodes of ranks in the order of their first ranks, of groups (groups, n) that all change nodes alike."""
    first = np.unique(of_ranks[0], return_index=True)[1]
    return np.asarray(of_ranks[:, np.sort(first)], np.int64)


def turns(rows: Int64) -> Int64:
    """Each row (rows, n) with its values numbered as they come up."""
    if rows.shape[1] <= 2 or (np.diff(rows, axis=1) >= 0).all():
        turns = np.zeros_like(rows)
        turns[:, 1:] = np.cumsum(np.diff(rows, axis=1) != 0, axis=1)
        return turns
    out = np.empty_like(rows)
    for row, turns in zip(rows, out, strict=True):
        _, first, index = np.unique(row, return_index=True, return_inverse=True)
        turns[:] = np.argsort(np.argsort(first))[index.reshape(-1)]
    return out
