"""Sends between stages and gradient collectives as flows: what they take alone, and the links that they hold.

A collective in progress is a set of steady streams: every hop of a ring carries 2(n-1)/n of an all_reduce's bytes from
beginning to end. So a collective is one message per hop, started together; fair sharing then tells how much longer it
takes beside others. Only streams that share a link with another stream are put on the network.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.engine.template import Template
from commsim.training.communicators import CommTime
from commsim.training.mesh import Mesh

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

Int64 = npt.NDArray[np.int64]

MOST_ROWS = 1024
"""Above so many hops only those that touch the representative's nodes are simulated: by symmetry the others see the
same load."""

INSIDE: tuple[tuple[str, ...], ...] = (("tp",), ("cp",), ("ep",), ("dp", "cp"))
"""Axes over which passes themselves exchange; the last one under ZeRO-3."""

_SHARE = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0}


@dataclass(frozen=True, eq=False)
class Flow:
    """One transfer: ``seconds`` alone, by the NCCL model; ``nbytes`` of one rank.

    With a template it also runs on the network: ``rest`` seconds are what NCCL takes beyond the bare links. ``call``:
    of a collective its name, its axes, and of the ranks along them every how many take part.
    """

    nbytes: float
    seconds: float
    template: Template | None = None
    group: tuple[int, ...] = ()
    wire_bytes: int = 0
    rest: float = 0.0
    call: tuple[str, tuple[str, ...], int] = ("send_recv", (), 1)

    def carry(self, env: Any) -> Generator[Any, Any, None]:
        """Wait, in a simpy process, until the transfer is through."""
        if self.template is None:
            if self.seconds > 0:
                yield env.timeout(self.seconds)
            return
        yield env.start(self.template, self.group, self.wire_bytes)
        if self.rest > 0:
            yield env.timeout(self.rest)


@dataclass(frozen=True)
class Hops:
    """Messages of one transfer: bytes from each source to each destination, all at once; ``lane``: the tp position."""

    src: Int64
    dst: Int64
    lane: Int64
    share: float  # of the transfer's nbytes on every hop

    def only(self, keep: npt.NDArray[np.bool_]) -> Hops:
        """Some of the hops."""
        return Hops(self.src[keep], self.dst[keep], self.lane[keep], self.share)


class FlowBuilder:
    """Makes the flows of a mesh on a machine; ``topology`` None: everything by closed form.

    ``sharded``: ZeRO-3, whose gradients and parameters move inside the passes.
    """

    def __init__(
        self,
        mesh: Mesh,
        ranks_per_node: int,
        comm: CommTime,
        topology: Topology | None = None,
        *,
        sharded: bool = False,
    ) -> None:
        self.sharded = sharded
        self.mesh, self.ranks_per_node, self.comm, self.topology = mesh, ranks_per_node, comm, topology
        self._templates: dict[tuple[Any, ...], tuple[Template, tuple[int, ...], float]] = {}
        self._position = mesh.coordinates()
        self._hops_of: dict[tuple[Any, ...], Hops] = {}

    # -- transfers ---------------------------------

    def send(self, src: int, dst: int, nbytes: float) -> Flow:
        """Activations or gradients of one micro-batch from a stage to another; bytes of one rank."""
        pair = np.array([self.mesh.rank(pp=src), self.mesh.rank(pp=dst)])
        return self._flow(("pp", src, dst), nbytes, self.comm("send_recv", nbytes, pair))

    def collective(self, name: str, nbytes: float, stage: int, *axes: str) -> Flow:
        """A gradient or parameter collective over the axes, of the group of the representative of a stage."""
        group = self.mesh.group_of(self.mesh.rank(pp=stage), *axes)
        flow = self._flow((name, stage, *axes), nbytes, self.comm(name, nbytes, group))
        return replace(flow, call=(name, axes, 1))

    def inside(self, nbytes: float, seconds: float, stage: int, *axes: str) -> Flow | None:
        """What passes of a stage exchange over an axis that crosses nodes; ``nbytes`` over the card of one rank.

        None where the group lies in one node, or where nothing else uses its links.
        """
        if self.topology is None or not self.crosses(*axes):
            return None
        flow = self._flow(("inside", stage, *axes), nbytes, seconds)
        return flow if flow.template is not None else None

    @cached_property
    def crossing(self) -> tuple[tuple[str, ...], ...]:
        """The axes of passes' own exchanges whose groups span several nodes."""
        return tuple(a for a in INSIDE if self.crosses(*a) and (self.sharded or a[0] != "dp"))

    def crosses(self, *axes: str) -> bool:
        """Whether groups of these axes span several nodes."""
        return self.mesh.size(*axes) > 1 and bool((self.mesh.nodes_spanned(self.ranks_per_node, *axes) > 1).any())

    def _flow(self, key: tuple[Any, ...], nbytes: float, seconds: float) -> Flow:
        if self.topology is None or _stream(key) not in self.shared or seconds <= 0:
            return Flow(nbytes, seconds)
        template, group, per_byte = self._template(_stream(key))
        share = _SHARE.get(key[0], 1.0) / _SHARE.get(_stream(key)[0], 1.0)
        alone = per_byte * share * nbytes
        each = max(1, round(self._hops(_stream(key)).share * share * nbytes * min(1.0, seconds / alone)))
        return Flow(nbytes, seconds, template, group, each * template.total_bytes, max(0.0, seconds - alone))

    # -- links ---------------------------------

    @cached_property
    def shared(self) -> frozenset[tuple[Any, ...]]:
        """The streams that share a link with another one."""
        if self.topology is None:
            return frozenset()
        links = {s: self._links(self._hops(s)) for s in self._streams()}
        users = np.zeros(self.topology.link_bandwidth.size, np.int64)
        # Gradients of a stage, its experts' included, follow one another.
        owners: dict[tuple[Any, ...], list[Int64]] = {}
        for stream, held in links.items():
            # So do the exchanges of a stage's passes.
            owners.setdefault(stream if stream[0] == "pp" else stream[:2], []).append(held)
        for holds in owners.values():
            users[np.unique(np.concatenate(holds))] += 1
        return frozenset(s for s, held in links.items() if (users[held] > 1).any())

    def _streams(self) -> list[tuple[Any, ...]]:
        pp = self.mesh.pp
        streams: list[tuple[Any, ...]] = []
        for stage in range(pp):
            if not self.sharded:
                streams += [("reduce_scatter", stage, "dp", "cp"), ("reduce_scatter", stage, "edp")]
            streams += [("pp", stage, other % pp) for other in (stage - 1, stage + 1) if other % pp != stage]
            streams += [("inside", stage, *axes) for axes in self.crossing]
        return list(dict.fromkeys(streams))

    @cached_property
    def lanes_apart(self) -> bool:
        """Whether the ranks of a tp group never share a link in what they send to other stages and replicas."""
        held: dict[int, set[int]] = {}
        for stream in self._streams():
            hops = self._all_hops(stream)
            for lane in np.unique(hops.lane).tolist():
                held.setdefault(lane, set()).update(self._links(hops.only(hops.lane == lane)).tolist())
        return sum(len(links) for links in held.values()) == len(set().union(*held.values())) if held else True

    def _links(self, hops: Hops) -> Int64:
        return np.zeros(0, np.int64) if self.topology is None else held_links(self.topology, hops.src, hops.dst)

    def _hops(self, key: tuple[Any, ...]) -> Hops:
        """The hops of a stream that are simulated: where lanes never meet, those of the first one stand for all."""
        if key not in self._hops_of:
            hops = self._all_hops(key)
            self._hops_of[key] = hops.only(hops.lane == 0) if self.lanes_apart else hops
        return self._hops_of[key]

    def _all_hops(self, key: tuple[Any, ...]) -> Hops:
        kind, stage = key[:2]
        here, lane = self._nodes(stage), self._position["tp"]
        mine = self._on(here, stage)
        if kind == "pp":
            moved = {axis: self._position[axis][mine] for axis in ("tp", "cp", "dp")}
            return Hops(mine, self.mesh.ranks(**moved, pp=np.full(mine.size, key[2])), lane[mine], 1.0)
        groups = self.mesh.groups(*key[2:])
        groups = groups[np.isin(groups, mine).any(axis=1)]
        n = groups.shape[1]
        if n < 2:
            none = np.zeros(0, np.int64)
            return Hops(none, none, none, 0.0)
        if kind == "inside":
            src, dst, share = groups.ravel(), _next_node(groups, self.ranks_per_node).ravel(), 1.0
        else:
            src, dst, ways = rings(groups, self.ranks_per_node)
            share = _SHARE[kind] * (n - 1) / n / ways
        hops = Hops(src, dst, lane[src], share)
        if kind != "inside" and src.size <= MOST_ROWS:
            return hops
        out, into = src // self.ranks_per_node, dst // self.ranks_per_node
        near = np.isin(out, here) | np.isin(into, here)
        return hops.only(near & (out != into) if kind == "inside" else near)

    def _nodes(self, stage: int) -> Int64:
        """The nodes of the representative replica's ranks of a stage."""
        mine = [self.mesh.rank(tp=lane, pp=stage) for lane in range(self.mesh.tp)]
        return np.unique(np.array(mine) // self.ranks_per_node)

    def _on(self, nodes: Int64, stage: int) -> Int64:
        """All ranks of a stage on some nodes: replicas that share them share their NICs."""
        ranks = (nodes[:, None] * self.ranks_per_node + np.arange(self.ranks_per_node)).ravel()
        ranks = ranks[ranks < self.mesh.world_size]
        return np.asarray(ranks[self._position["pp"][ranks] == stage], np.int64)

    def _template(self, key: tuple[Any, ...]) -> tuple[Template, tuple[int, ...], float]:
        """A stream's messages of one byte each, its ranks, and seconds per byte of the transfer on its fullest link."""
        if key not in self._templates:
            assert self.topology is not None
            hops = self._hops(key)
            load = np.bincount(self._links(hops), minlength=self.topology.link_bandwidth.size)
            slowest = float((load / self.topology.link_bandwidth).max()) * hops.share
            self._templates[key] = (*Template.at_once(hops.src, hops.dst), slowest)
        return self._templates[key]


def _stream(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """What shares a stream of a stage: all gradient collectives of the same axes, all sends to the same stage."""
    return key if key[0] in ("pp", "inside") else ("reduce_scatter", *key[1:])


def _next_node(groups: Int64, ranks_per_node: int) -> Int64:
    """For each rank of each group (G, n) the rank that stands where it stands, one node further."""
    node = groups // ranks_per_node
    per_node = int((node == node[:, :1]).sum(axis=1).max())
    return np.roll(groups, -min(per_node, groups.shape[1] - 1), axis=1)


def held_links(topology: Topology, src: Int64, dst: Int64) -> Int64:
    """Links on the routes between sources and destinations, a link as often as routes take it."""
    if not src.size:
        return np.zeros(0, np.int64)
    routes = topology.routes(src, dst)
    length = np.diff(routes.ptr)[routes.index]
    within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    return np.asarray(routes.link[np.repeat(routes.ptr[routes.index], length) + within], np.int64)


def rings(groups: Int64, ranks_per_node: int) -> tuple[Int64, Int64, int]:
    """Hops (sources, destinations) of NCCL's rings over groups (G, n), and how many rings each group has.

    One ring per rank that a group has on a node, each leaving the node at another rank; one where nodes differ.
    """
    node = groups // ranks_per_node
    per_node = int((node == node[:, :1]).sum(axis=1).max())
    even = (
        groups.shape[1] % per_node == 0 and (node.reshape(len(groups), -1, per_node) == node[:, ::per_node, None]).all()
    )
    if not even or groups.shape[1] == per_node:
        return groups.ravel(), np.roll(groups, -1, axis=1).ravel(), 1
    parts = groups.reshape(len(groups), -1, per_node)
    made = np.stack([np.roll(parts, -i, axis=2).reshape(groups.shape) for i in range(per_node)])
    return made.ravel(), np.roll(made, -1, axis=2).ravel(), per_node
