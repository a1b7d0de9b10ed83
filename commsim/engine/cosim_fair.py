"""The network of `commsim.engine.cosim` under max-min fair sharing: same interface, flows instead of queues per link.

An end found is final although rates may change later: `advance_to` never passes the next event from outside, and
flows of collectives started later meet only what is still under way then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.engine.fair import QUANTUM, gave_up, lines_of, links_of, ways_of
from commsim.engine.loops.fair import run_fair, start_fair
from commsim.engine.loops.flows import FairOps, FairRun
from commsim.engine.loops.heap import Heap
from commsim.engine.program import Float64, Int32, Int64, Program, count_up, places_along
from commsim.engine.template import Template

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

_MOST_CONNECTIONS = 1 << 20


@dataclass(frozen=True, eq=False)
class _Bound:
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
        self._started: dict[tuple[int, tuple[int, ...], int], int] = {}
        self._bound: dict[tuple[int, tuple[int, ...], int], _Bound] = {}
        self._connections: dict[tuple[int, tuple[int, ...]], int] = {}
        self._edges: dict[int, int] = {}
        self._route_ptr, self._route_link = np.zeros(1, np.int64), np.zeros(0, np.int32)
        self._succ_idx = np.zeros(0, np.int32)
        self._spare: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
        self._place: list[
            tuple[int, tuple[int, tuple[int, ...], int]]
        ] = []  # of each instance: first place, what it is
        none, empty = np.zeros(0), np.zeros(0, np.int64)
        small = np.zeros(0, np.int32)
        self._ops = FairOps(empty, small, none, empty, empty, small, empty, small, small, none, none, none, small)
        starts = Heap(np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.int64))
        self._run = FairRun(np.zeros(6, np.int64), np.zeros(2), starts, empty, none, empty)
        ways = ways_of(self._program(), empty, most=_MOST_CONNECTIONS)
        self._lines, self._flows = lines_of(ways), links_of(topology.link_bandwidth, ways)

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
        self.next_event = min(float(self._run.starts.times[0]), float(self._lines.tree[1]))
        return instance

    def advance_to(self, until: float) -> list[tuple[int, float]]:
        """Handle what happens before ``until``, up to the first ends found; (instance, end) of those."""
        run = self._run
        ended = run_fair(until, self._quantum, self._ops, self._lines, self._flows, run)
        if ended < 0:
            raise gave_up(ended)
        self.next_event = min(
            float(run.starts.times[0]) if run.starts.size[0] else math.inf, float(self._lines.tree[1])
        )
        ends = []
        for instance in run.done[:ended].tolist():
            ends.append((instance, float(run.end[instance])))
            self._spare.setdefault(self._place[instance][1], []).append(instance)
        return ends

    def _program(self) -> Program:
        """The ways of all connections, without messages."""
        none = np.zeros(0, np.int32)
        return Program(
            nbytes=np.zeros(0, np.int64),
            route=none,
            delay_s=np.zeros(0),
            succ_ptr=np.zeros(1, np.int64),
            succ_idx=none,
            indeg=none,
            route_ptr=self._route_ptr,
            route_link=self._route_link,
            link_bandwidth=self.topology.link_bandwidth,
            link_latency=self.topology.link_latency,
        )

    def _bind(self, template: Template, key: tuple[int, tuple[int, ...], int]) -> _Bound:
        ident, group, size = key
        template.require_group(group)
        if ident not in self._edges:
            self._edges[ident] = self._succ_idx.size
            self._succ_idx = np.append(self._succ_idx, template.succ_idx)
            self._ops = self._ops._replace(succ_idx=self._succ_idx)
        if (ident, group) not in self._connections:
            self._connections[ident, group] = self._route_ptr.size - 1
            self._connect(template, group)
        connection = (self._connections[ident, group] + template.line).astype(np.int32)
        return _Bound(template.scaled(size), connection, self._edges[ident], template)

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
        ways = ways_of(self._program(), np.arange(self._route_ptr.size - 1), most=_MOST_CONNECTIONS)
        lines, flows = lines_of(ways), links_of(self.topology.link_bandwidth, ways)
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

    def _grow(self, key: tuple[int, tuple[int, ...], int], bound: _Bound) -> int:
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
