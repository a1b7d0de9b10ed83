"""Sends between stages and gradient collectives as flows: what they take alone, and the links that they hold.

A collective in progress is a set of steady streams: every hop of a ring carries 2(n-1)/n of an all_reduce's bytes from
beginning to end. So a collective is one message per hop, started together; fair sharing then tells how much longer it
takes beside others. Only streams that share a link with another stream are put on the network.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.training.communicators import CommTime
from commsim.training.mesh import Mesh

if TYPE_CHECKING:
    from commsim.engine.cosim import Template
    from commsim.topology.graph import Topology

Int64 = npt.NDArray[np.int64]

MOST_ROWS = 1024
"""Above so many hops only those that touch the representative's nodes are simulated: by symmetry the others see the
same load."""

_SHARE = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0}


@dataclass(frozen=True, eq=False)
class Flow:
    """One transfer: ``seconds`` alone, by the NCCL model; ``nbytes`` of one rank.

    With a template it also runs on the network: ``rest`` seconds are what NCCL takes beyond the bare links.
    """

    nbytes: float
    seconds: float
    template: Template | None = None
    group: tuple[int, ...] = ()
    rest: float = 0.0

    def carry(self, env: Any) -> Generator[Any, Any, None]:
        """Wait, in a simpy process, until the transfer is through."""
        if self.template is None:
            if self.seconds > 0:
                yield env.timeout(self.seconds)
            return
        yield env.start(self.template, self.group)
        if self.rest > 0:
            yield env.timeout(self.rest)


@dataclass(frozen=True)
class Hops:
    """Messages of one transfer: bytes from each source to each destination, all at once."""

    src: Int64
    dst: Int64
    share: float  # of the transfer's nbytes on every hop


class FlowBuilder:
    """Makes the flows of a mesh on a machine; ``topology`` None: everything by closed form."""

    def __init__(self, mesh: Mesh, ranks_per_node: int, comm: CommTime, topology: Topology | None = None) -> None:
        self.mesh, self.ranks_per_node, self.comm, self.topology = mesh, ranks_per_node, comm, topology
        self._templates: dict[tuple[Any, int], tuple[Template, tuple[int, ...], float]] = {}
        self.cut = False  # whether hops were left out by symmetry

    # -- transfers ---------------------------------

    def send(self, src: int, dst: int, nbytes: float) -> Flow:
        """Activations or gradients of one micro-batch from a stage to another; bytes of one rank."""
        pair = np.array([self.mesh.rank(pp=src), self.mesh.rank(pp=dst)])
        return self._flow(("pp", src, dst), nbytes, self.comm("send_recv", nbytes, pair))

    def collective(self, name: str, nbytes: float, stage: int, *axes: str) -> Flow:
        """A gradient or parameter collective over the axes, of the group of the representative of a stage."""
        group = self.mesh.group_of(self.mesh.rank(pp=stage), *axes)
        return self._flow((name, stage, *axes), nbytes, self.comm(name, nbytes, group))

    def _flow(self, key: tuple[Any, ...], nbytes: float, seconds: float) -> Flow:
        if self.topology is None or _stream(key) not in self.shared or seconds <= 0:
            return Flow(nbytes, seconds)
        template, group, alone = self._template(key, nbytes, seconds)
        return Flow(nbytes, seconds, template, group, max(0.0, seconds - alone))

    # -- links ---------------------------------

    @cached_property
    def shared(self) -> frozenset[tuple[Any, ...]]:
        """The streams that share a link with another one."""
        if self.topology is None:
            return frozenset()
        streams: list[tuple[Any, ...]] = []
        for stage in range(self.mesh.pp):
            streams += [("reduce_scatter", stage, "dp", "cp"), ("reduce_scatter", stage, "edp")]
            streams += [("pp", stage, (stage + 1) % self.mesh.pp), ("pp", stage, (stage - 1) % self.mesh.pp)]
        streams = [s for s in dict.fromkeys(streams) if s[0] != "pp" or s[1] != s[2]]
        links = {s: set(self._links(self._hops(s)).tolist()) for s in streams}
        users: dict[int, int] = {}
        for held in links.values():
            for link in held:
                users[link] = users.get(link, 0) + 1
        return frozenset(_stream(s) for s, held in links.items() if any(users[link] > 1 for link in held))

    def _links(self, hops: Hops) -> Int64:
        if self.topology is None or not hops.src.size:
            return np.zeros(0, np.int64)
        routes = self.topology.routes(hops.src, hops.dst)
        return np.concatenate([routes.link[routes.ptr[i] : routes.ptr[i + 1]] for i in routes.index]).astype(np.int64)

    def _nodes(self, stage: int) -> Int64:
        """The nodes of the representative replica's ranks of a stage."""
        group = self.mesh.group_of(self.mesh.rank(pp=stage), "tp")
        return np.unique(group // self.ranks_per_node)

    def _members(self, stage: int) -> Int64:
        """All ranks of a stage on the representative's nodes: they share its NICs."""
        ranks = np.concatenate([np.arange(n * self.ranks_per_node, (n + 1) * self.ranks_per_node) for n in self._nodes(stage)])
        ranks = ranks[ranks < self.mesh.world_size]
        return np.array([r for r in ranks.tolist() if self.mesh.position(r)["pp"] == stage], np.int64)

    def _hops(self, key: tuple[Any, ...]) -> Hops:
        if key[0] == "pp":
            members = self._members(key[1])
            peers = [self.mesh.rank(**(self._dense(r) | {"pp": key[2]})) for r in members.tolist()]
            return Hops(members, np.array(peers, np.int64), 1.0)
        name, stage, *axes = key
        groups = self.mesh.groups(*axes)
        groups = groups[np.isin(groups, self._members(stage)).any(axis=1)]
        n = groups.shape[1]
        if n < 2:
            return Hops(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)
        pairs = [_rings(group, self.ranks_per_node) for group in groups]
        rings = len(pairs[0][0]) // n
        src, dst = (np.concatenate([p[i] for p in pairs]) for i in (0, 1))
        if src.size > MOST_ROWS:
            near = np.isin(src // self.ranks_per_node, self._nodes(stage)) | np.isin(
                dst // self.ranks_per_node, self._nodes(stage)
            )
            src, dst, self.cut = src[near], dst[near], True
        return Hops(src, dst, _SHARE[name] * (n - 1) / n / rings)

    def _dense(self, rank: int) -> dict[str, int]:
        position = self.mesh.position(rank)
        return {axis: position[axis] for axis in ("tp", "cp", "dp", "pp")}

    def _template(self, key: tuple[Any, ...], nbytes: float, seconds: float) -> tuple[Template, tuple[int, ...], float]:
        known = self._templates.get((key, round(nbytes)))
        if known is None:
            from commsim.engine.cosim import Template

            assert self.topology is not None
            hops = self._hops(key)
            group, place = np.unique(np.concatenate([hops.src, hops.dst]), return_inverse=True)
            src, dst = np.split(place.reshape(-1), 2)
            links = self._links(hops)
            load = np.bincount(links, minlength=self.topology.link_bandwidth.size)
            alone = float((load / self.topology.link_bandwidth).max()) * hops.share * nbytes
            each = max(1, round(hops.share * nbytes * min(1.0, seconds / alone)))
            rows = hops.src.size
            none = np.zeros(0, np.int32)
            template = Template(
                ranks=group.size,
                total_bytes=each * rows,
                nbytes=np.full(rows, each, np.int64),
                pair=src.astype(np.int64) * group.size + dst,
                line=np.arange(rows, dtype=np.int32),
                succ_ptr=np.zeros(rows + 1, np.int64),
                succ_idx=none,
                indeg=np.zeros(rows, np.int32),
            )
            known = self._templates[key, round(nbytes)] = (template, tuple(group.tolist()), alone)
        return known


def _stream(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """What shares a stream of a stage: all gradient collectives of the same axes, all sends to the same stage."""
    return key if key[0] == "pp" else ("dp", *key[1:])


def _rings(group: Int64, ranks_per_node: int) -> tuple[Int64, Int64]:
    """Hops of NCCL's rings over a group: one ring per rank of a node, each leaving the node at another rank."""
    node = group // ranks_per_node
    starts = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
    parts = np.split(group, starts[1:])
    if len(parts) == 1:
        return group, np.roll(group, -1)
    rings = [np.concatenate([np.roll(part, -i) for part in parts]) for i in range(min(len(p) for p in parts))]
    return np.concatenate(rings), np.concatenate([np.roll(ring, -1) for ring in rings])


def total_seconds(flows: Iterable[Flow]) -> float:
    """Seconds of flows one after the other, alone."""
    return sum(flow.seconds for flow in flows)
