"""The network of `commsim.engine.cosim` under max-min fair sharing: same interface, flows instead of queues per link.

An end found is final although rates may change later: `advance_to` never passes the next event from outside, and
flows of collectives started later meet only what is still under way then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.engine.fair import QUANTUM, gave_up, idle
from commsim.engine.loops.fair import run_fair, start_fair
from commsim.engine.loops.flows import FairLines, FairLinks, FairOps, FairRun
from commsim.engine.loops.heap import Heap
from commsim.engine.program import Float64, Int32, Int64, count_up, places_along
from commsim.engine.template import Bound, Template
from commsim.topology.graph import Topology

_MOST_CONNECTIONS = 1 << 20


@dataclass(frozen=True, eq=False)
class _Rows:
    """A template on a group of ranks: its messages' bytes and connections, and where its successors are kept."""

    nbytes: Int64
    connection: Int32
    first_edge: int
    template: Template


class FairNetwork:
    """As `commsim.engine.cosim.Network`, with links shared fairly; ``quantum`` as in `simulate_fair`."""

    def __init__(self, topology: Topology, quantum: float = QUANTUM) -> None:
        self.topology = topology
        self._quantum = quantum
        self.next_event = math.inf
        self.started = 0
        self._links = topology.link_bandwidth.size
        self._started: dict[Bound, int] = {}
        self._bound: dict[Bound, _Rows] = {}
        self._connections: dict[tuple[int, tuple[int, ...]], int] = {}
        self._edges: dict[int, int] = {}
        self._route_ptr, self._route_link = np.zeros(1, np.int64), np.zeros(0, np.int32)
        self._spare: dict[Bound, list[int]] = {}
        self._place: list[tuple[int, Bound]] = []  # of each instance: first place, what it is
        none, empty = np.zeros(0), np.zeros(0, np.int64)
        small = np.zeros(0, np.int32)
        self._ops = FairOps(empty, small, none, empty, empty, small, empty, small, small, none, none, none, small)
        starts = Heap(np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.int64))
        self._run = FairRun(np.zeros(6, np.int64), np.zeros(2), starts, empty, none, empty)
        self._lines, self._flows = self._idle()

    @property
    def link_bytes(self) -> Int64:
        """Bytes that each link carries of what was started, (L,)."""
        total = np.zeros(self._links, np.int64)
        for key, times in self._started.items():
            bound = self._bound[key]
            links = self._route_link[places_along(self._route_ptr, bound.connection)]
            np.add.at(total, links, np.repeat(bound.nbytes, np.diff(self._route_ptr)[bound.connection]) * times)
        return total

    @property
    def link_busy_s(self) -> Float64:
        """Seconds of each link at full speed for what was started, (L,)."""
        return self.link_bytes / self.topology.link_bandwidth

    def start(self, template: Template, group: Sequence[int], nbytes: int | None, t: float) -> int:
        """The instance of a template started on the ranks ``group`` at time t, not before the last event handled."""
        size = template.total_bytes if nbytes is None else nbytes
        key = (id(template), tuple(group), size)
        if key not in self._bound:
            self._bound[key] = self._bind(template, key)
        bound = self._bound[key]
        rows = bound.nbytes.size
        spare = self._spare.get(key)
        instance = spare.pop() if spare else self._grow(key, bound)
        self._run.left[instance], self._run.end[instance] = rows, t
        start_fair(self._place[instance][0], t, template.indeg, self._ops, self._run)
        self.started += 1
        self._started[key] = self._started.get(key, 0) + 1
        self.next_event = self._next()
        return instance

    def advance_to(self, until: float) -> list[tuple[int, float]]:
        """Handle what happens before ``until``, up to the first ends found; (instance, end) of those."""
        run = self._run
        ended = run_fair(until, self._quantum, self._ops, self._lines, self._flows, run)
        if ended < 0:
            raise gave_up(ended)
        self.next_event = self._next()
        ends = []
        for instance in run.done[:ended].tolist():
            ends.append((instance, float(run.end[instance])))
            self._spare.setdefault(self._place[instance][1], []).append(instance)
        return ends

    def _next(self) -> float:
        starts = self._run.starts
        return min(float(starts.times[0]) if starts.size[0] else math.inf, float(self._lines.tree[1]))

    def _idle(self) -> tuple[FairLines, FairLinks]:
        """All connections and links, with nothing under way."""
        speeds, route = (self.topology.link_bandwidth, self.topology.link_latency), np.arange(self._route_ptr.size - 1)
        return idle(self._route_ptr, self._route_link, speeds, route, most=_MOST_CONNECTIONS)

    def _bind(self, template: Template, key: Bound) -> _Rows:
        ident, group, size = key
        template.require_group(group)
        if ident not in self._edges:
            self._edges[ident] = self._ops.succ_idx.size
            self._ops = self._ops._replace(succ_idx=np.append(self._ops.succ_idx, template.succ_idx))
        if (ident, group) not in self._connections:
            self._connections[ident, group] = self._route_ptr.size - 1
            self._connect(template, group)
        connection = (self._connections[ident, group] + template.line).astype(np.int32)
        return _Rows(template.scaled(size), connection, self._edges[ident], template)

    def _connect(self, template: Template, group: tuple[int, ...]) -> None:
        """Add the connections of a template on a group; what is under way on the others goes on."""
        pair = np.zeros(int(template.line.max()) + 1, np.int64)
        pair[template.line] = template.pair
        ranks = np.array(group, np.int64)
        routes = self.topology.routes(ranks[pair // template.ranks], ranks[pair % template.ranks])
        length = np.diff(routes.ptr)[routes.index]
        self._route_ptr = np.append(self._route_ptr, self._route_ptr[-1] + np.cumsum(length))
        self._route_link = np.append(self._route_link, routes.link[places_along(routes.ptr, routes.index)])
        old_lines, old_links = self._lines, self._flows
        lines, flows = self._idle()
        count = old_lines.cap.size
        for name in ("state", "current", "head", "last", "rate", "rest", "since", "fixed_rate", "chosen_at"):
            getattr(lines, name)[:count] = getattr(old_lines, name)
        for name in ("list_size", "queued_at", "touched_at", "binding", "demand", "load", "level"):
            getattr(flows, name)[:] = getattr(old_links, name)
        # Active flows of a link move with the place where its list begins; slots keep their numbers.
        active = np.repeat(np.arange(self._links), old_links.list_size)
        place = count_up(old_links.list_size)
        before, after = old_links.list_ptr[active] + place, flows.list_ptr[active] + place
        flows.list_flow[after], flows.list_slot[after] = old_links.list_flow[before], old_links.list_slot[before]
        lines.slot_place[flows.list_slot[after]] = after
        leaves, old = lines.tree.size // 2, old_lines.tree.size // 2
        lines.tree[leaves : leaves + count] = old_lines.tree[old : old + count]
        level = leaves
        while level > 1:
            lines.tree[level // 2 : level] = lines.tree[level : 2 * level].reshape(-1, 2).min(axis=1)
            level //= 2
        self._lines, self._flows = lines, flows

    def _grow(self, key: Bound, bound: _Rows) -> int:
        """A new instance with places of its own, filled with what is bound."""
        instance, ops, run, template = len(self._place), self._ops, self._run, bound.template
        rows, place = bound.nbytes.size, ops.nbytes.size
        more: dict[str, np.ndarray[Any, Any]] = {
            "nbytes": bound.nbytes,
            "connection": bound.connection,
            "delay": np.zeros(rows),
            "succ_first": bound.first_edge + template.succ_ptr[:-1],
            "succ_last": bound.first_edge + template.succ_ptr[1:],
            "shift": np.full(rows, place),
            "instance": np.full(rows, instance, np.int32),
            "waiting": np.zeros(rows, np.int32),
            "ready": np.zeros(rows),
            "start": np.zeros(rows),
            "end": np.zeros(rows),
            "behind": np.full(rows, -1, np.int32),
        }
        self._ops = ops._replace(**{name: np.append(getattr(ops, name), column) for name, column in more.items()})
        self._run = run._replace(
            starts=run.starts._replace(
                times=np.append(run.starts.times, np.zeros(rows)),
                keys=np.append(run.starts.keys, np.zeros(rows, np.int64)),
            ),
            left=np.append(run.left, 0),
            end=np.append(run.end, 0.0),
            done=np.append(run.done, 0),
        )
        self._place.append((place, key))
        return instance
