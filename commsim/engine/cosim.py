"""simpy and the network together: collectives are events that a simpy process waits for.

`Network` holds the state of links and of what is under way, and moves on only when it is told how far it may go;
`Environment` tells it so from `simpy.Environment.step`: everything the network does before the next simpy event
happens first, and an end of a collective found on the way becomes a simpy event. At equal times (`kernel.TIE`) simpy's
events come before the network's. There is no rollback and no polling; an idle network costs a comparison.

>>> from commsim.collectives.ring import ring_all_reduce
>>> from commsim.topology.presets import load_preset
>>> env = Environment(load_preset("hgx-h100"))
>>> def job(env):
...     yield env.timeout(1e-3)
...     yield env.collective(ring_all_reduce(8, 8 << 20))
...     print(f"{env.now * 1e6:.0f} us")
>>> _ = env.process(job(env))
>>> env.run()
1040 us
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import simpy

from commsim.collectives.schedule import Schedule
from commsim.engine.program import Int32
from commsim.engine.template import Template

if TYPE_CHECKING:
    from commsim.engine.cosim_fair import FairNetwork
    from commsim.topology.graph import Topology

__all__ = ["Environment", "Network", "Template"]

_STEP = simpy.Environment.step  # looked up once: it is called for every event


class Network:
    """Links that carry what is started on them, with FIFO queues; time moves when `advance_to` says so.

    ``next_event``: when something may happen next, infinite when idle. ``link_bytes`` and ``link_busy_s`` (L,) count
    from the start.
    """

    def __init__(self, topology: Topology) -> None:
        from commsim.engine import kernel

        self.topology = topology
        self._kernel = kernel
        links = topology.link_bandwidth.size
        self._inv_bandwidth, self._latency = 1.0 / topology.link_bandwidth, np.array(topology.link_latency)
        self._free, self.link_busy_s = np.zeros(links), np.zeros(links)
        self.link_bytes = np.zeros(links, np.int64)
        self.next_event = math.inf
        self.started = 0
        # What is bound: rows of all templates on their groups, one after the other.
        self._bound: dict[tuple[int, tuple[int, ...], int], tuple[int, int, Int32]] = {}
        self._kept: list[Template] = []  # their ids stay theirs
        self._nbytes, self._succ_ptr = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._route, self._succ_idx, self._route_link = (np.zeros(0, np.int32) for _ in range(3))
        self._route_ptr = np.zeros(1, np.int64)
        # What is under way: an instance has a run of places, one per row.
        self._place_instance, self._waiting = (np.zeros(0, np.int32) for _ in range(2))
        self._ready, self._tail, self._times = (np.zeros(0) for _ in range(3))
        self._keys = np.zeros(0, np.int64)
        self._first, self._table, self._left, self._done = (np.zeros(0, np.int64) for _ in range(4))
        self._end = np.zeros(0)
        self._sizes = np.zeros(1, np.int64)
        self._spare: dict[int, list[int]] = {}
        self._rows_of: list[int] = []
        self._state: tuple[Any, ...] = ()

    def start(self, template: Template, group: Sequence[int], nbytes: int | None, t: float) -> int:
        """The instance of a template started on the ranks ``group`` at time t, not before the last event handled."""
        size = template.total_bytes if nbytes is None else nbytes
        key = (id(template), tuple(group), size)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bind(template, key)
        table, rows, indeg = bound
        spare = self._spare.get(rows)
        instance = spare.pop() if spare else self._grow(rows)
        self._table[instance], self._left[instance], self._end[instance] = table, rows, t
        self.started += 1
        self.next_event = self._kernel.start_fifo(
            int(self._first[instance]),
            rows,
            t,
            indeg,
            self._waiting,
            self._ready,
            self._tail,
            self._times,
            self._keys,
            self._sizes,
        )
        return instance

    def advance_to(self, until: float) -> list[tuple[int, float]]:
        """Handle what happens before ``until``, up to the first ends found; (instance, end) of those."""
        ended = self._kernel.advance_fifo(until, *self._state)
        self.next_event = float(self._times[0]) if self._sizes[0] else math.inf
        found = []
        for instance in self._done[:ended].tolist():
            found.append((instance, float(self._end[instance])))
            self._spare.setdefault(self._rows_of[instance], []).append(instance)
        return found

    def _bind(self, template: Template, key: tuple[int, tuple[int, ...], int]) -> tuple[int, int, Int32]:
        """Append a template's rows with the routes between the ranks of a group; one without messages is refused."""
        _, group, size = key
        template.require_group(group)
        ranks = np.array(group, np.int64)
        pairs, pair = np.unique(template.pair, return_inverse=True)
        src, dst = ranks[pairs // template.ranks], ranks[pairs % template.ranks]
        routes = self.topology.routes(src, dst)
        table, edges, first_route = self._nbytes.size, self._succ_idx.size, self._route_ptr.size - 1
        self._nbytes = np.append(self._nbytes, template.scaled(size))
        self._route = np.append(self._route, (first_route + routes.index[pair.reshape(-1)]).astype(np.int32))
        self._route_ptr = np.append(self._route_ptr, self._route_link.size + routes.ptr[1:])
        self._route_link = np.append(self._route_link, routes.link)
        # Every table has its own end, so that the last row's successors end where they should.
        self._succ_ptr = np.append(self._succ_ptr[:-1], edges + template.succ_ptr)
        self._succ_idx = np.append(self._succ_idx, template.succ_idx)
        self._kept.append(template)
        self._bound[key] = (table, template.nbytes.size, template.indeg)
        self._refresh()
        return self._bound[key]

    def _grow(self, rows: int) -> int:
        """A new instance with places of its own."""
        instance, place = self._first.size, self._waiting.size
        self._first = np.append(self._first, place)
        self._table, self._left, self._done = (np.append(a, 0) for a in (self._table, self._left, self._done))
        self._end = np.append(self._end, 0.0)
        self._rows_of.append(rows)
        self._place_instance = np.append(self._place_instance, np.full(rows, instance, np.int32))
        self._waiting = np.append(self._waiting, np.zeros(rows, np.int32))
        self._ready, self._tail, self._times = (
            np.append(a, np.zeros(rows)) for a in (self._ready, self._tail, self._times)
        )
        self._keys = np.append(self._keys, np.zeros(rows, np.int64))
        self._refresh()
        return instance

    def _refresh(self) -> None:
        self._state = (
            self._place_instance,
            self._first,
            self._table,
            self._left,
            self._end,
            self._nbytes,
            self._route,
            self._succ_ptr,
            self._succ_idx,
            self._route_ptr,
            self._route_link,
            self._inv_bandwidth,
            self._latency,
            self._waiting,
            self._ready,
            self._tail,
            self._free,
            self.link_bytes,
            self.link_busy_s,
            self._times,
            self._keys,
            self._sizes,
            self._done,
        )


class Environment(simpy.Environment):  # type: ignore[misc]
    """A simpy environment on a topology; time in seconds. Only `step` differs from simpy's."""

    def __init__(
        self, topology: Topology, contention: Literal["fifo", "fair"] = "fifo", initial_time: float = 0.0
    ) -> None:
        super().__init__(initial_time)
        if contention == "fair":
            from commsim.engine.cosim_fair import FairNetwork

            self.network: Network | FairNetwork = FairNetwork(topology)
        else:
            self.network = Network(topology)
        from commsim.engine.kernel import BEFORE

        self._before = BEFORE
        self._events: dict[int, simpy.Event] = {}
        self._templates: dict[int, tuple[Schedule, Template]] = {}
        self._sends: dict[int, Template] = {}

    def start(self, template: Template, group: Sequence[int] | None = None, nbytes: int | None = None) -> simpy.Event:
        """An event that happens when the template, started now on the ranks ``group`` (default: 0, 1, ...), has ended.

        Its value is the seconds it took. ``nbytes``: the whole size, by default the template's.
        """
        event = simpy.Event(self)
        ranks = range(template.ranks) if group is None else group
        self._events[self.network.start(template, ranks, nbytes, self._now)] = event
        event.started_s = self._now
        return event

    def collective(self, schedule: Schedule, group: Sequence[int] | None = None) -> simpy.Event:
        """`start` for a schedule; the template is made once per schedule object."""
        if id(schedule) not in self._templates:
            self._templates[id(schedule)] = (schedule, Template.of(schedule))
        return self.start(self._templates[id(schedule)][1], group)

    def send(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """`start` for one message between two ranks."""
        if nbytes not in self._sends:
            self._sends[nbytes] = Template.send(nbytes)
        return self.start(self._sends[nbytes], (src, dst))

    def step(self) -> None:
        """Let the network come up to the next simpy event, then process that event."""
        queue = self._queue
        if self.network.next_event < (queue[0][0] * self._before if queue else math.inf):
            self._catch_up()
        _STEP(self)

    def _catch_up(self) -> None:
        network, queue = self.network, self._queue
        while network.next_event < (queue[0][0] * self._before if queue else math.inf):
            for instance, end_s in network.advance_to(queue[0][0] if queue else math.inf):
                event = self._events.pop(instance)
                event._ok, event._value = True, end_s - event.started_s
                heappush(queue, (end_s, simpy.events.NORMAL, next(self._eid), event))
