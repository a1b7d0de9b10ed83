"""simpy and the network together: collectives are events that a simpy process waits for.

`Network` holds the state of links and of what is under way, and moves on only when it is told how far it may go;
`Environment` tells it so from `simpy.Environment.step`: everything the network does before the next simpy event
happens first, and an end of a collective met on the way becomes a simpy event. At equal times (`heap.TIE`) simpy's
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
from commsim.engine.merging import Routes
from commsim.engine.program import Float64, Int32, Int64
from commsim.engine.template import Bound, Template
from commsim.topology.graph import Topology

if TYPE_CHECKING:
    from commsim.engine.cosim_fair import FairNetwork

__all__ = ["Environment", "Network", "Template"]

_STEP = simpy.Environment.step  # looked up once: it is called for every event


class Network:
    """Links that carry what is started on them, with FIFO queues; time moves when `advance_to` says so.

    ``next_event``: when something may happen next, infinite when idle. ``link_bytes`` and ``link_busy_s`` (L,) count
    from the start.
    """

    def __init__(self, topology: Topology) -> None:
        from commsim.engine.loops import instances
        from commsim.engine.loops.heap import Heap
        from commsim.engine.loops.links import LinkState, Ops

        self.topology = topology
        self._loop = instances
        links = topology.link_bandwidth.size
        self.next_event = math.inf
        self.started = 0
        # What is bound: rows of all templates on their groups, one after the other.
        self._bound: dict[Bound, tuple[int, int, Int32]] = {}
        self._kept: list[Template] = []  # their ids stay theirs
        small, none, seconds = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0)
        self._ops = Ops(none, small, seconds, np.zeros(1, np.int64), small)
        self._routes = Routes(
            np.zeros(1, np.int64), small, 1.0 / topology.link_bandwidth, np.array(topology.link_latency), none
        )
        self._links = LinkState(np.zeros(links), np.zeros(links, np.int64), np.zeros(links))
        # What is under way: an instance has a run of places, one per row.
        self._places = instances.Places(small, small, seconds, seconds)
        self._instances = instances.Instances(none, none, none, seconds, none)
        self._heap = Heap(seconds, none, np.zeros(1, np.int64))
        self._state: tuple[Any, ...] = ()
        self._spare: dict[int, list[int]] = {}
        self._rows_of: list[int] = []

    @property
    def link_bytes(self) -> Int64:
        """Bytes that each link has carried, (L,)."""
        return self._links.nbytes

    @property
    def link_busy_s(self) -> Float64:
        """Seconds for which each link was held, (L,)."""
        return self._links.busy

    def start(self, template: Template, group: Sequence[int], nbytes: int | None, t: float) -> int:
        """The instance of a template started on the ranks ``group`` at time t, not before the last event handled."""
        size = template.total_bytes if nbytes is None else nbytes
        key = (id(template), tuple(group), size)
        if key not in self._bound:
            self._bind(template, key)
        table, rows, indeg = self._bound[key]
        spare = self._spare.get(rows)
        instance = spare.pop() if spare else self._grow(rows)
        entry = self._instances
        entry.table[instance], entry.left[instance], entry.end[instance] = table, rows, t
        self.started += 1
        self.next_event = self._loop.start_fifo(int(entry.first[instance]), t, indeg, self._state)
        return instance

    def advance_to(self, until: float) -> list[tuple[int, float]]:
        """Handle what happens before ``until``, up to the first ends met; (instance, end) of those."""
        ended = self._loop.advance_fifo(until, self._state)
        self.next_event = float(self._heap.times[0]) if self._heap.size[0] else math.inf
        ends = []
        for instance in self._instances.done[:ended].tolist():
            ends.append((instance, float(self._instances.end[instance])))
            self._spare.setdefault(self._rows_of[instance], []).append(instance)
        return ends

    def _bind(self, template: Template, key: Bound) -> None:
        """Append a template's rows with the routes between the ranks of a group; one without messages is refused."""
        _, group, size = key
        template.require_group(group)
        ranks = np.array(group, np.int64)
        pairs, pair = np.unique(template.pair, return_inverse=True)
        src, dst = ranks[pairs // template.ranks], ranks[pairs % template.ranks]
        table, routes, ops = self.topology.routes(src, dst), self._routes, self._ops
        route = (routes.ptr.size - 1 + table.index[pair.reshape(-1)]).astype(np.int32)
        self._routes = routes._replace(
            ptr=np.append(routes.ptr, routes.link.size + table.ptr[1:]), link=np.append(routes.link, table.link)
        )
        self._ops = ops._replace(
            nbytes=np.append(ops.nbytes, template.scaled(size)),
            route=np.append(ops.route, route),
            # Every table has its own end, so that the last row's successors end where they should.
            succ_ptr=np.append(ops.succ_ptr[:-1], ops.succ_idx.size + template.succ_ptr),
            succ_idx=np.append(ops.succ_idx, template.succ_idx),
        )
        self._kept.append(template)
        self._refresh()
        self._bound[key] = (ops.nbytes.size, template.nbytes.size, template.indeg)

    def _grow(self, rows: int) -> int:
        """A new instance with places of its own."""
        instance, place = self._instances.first.size, self._places.waiting.size
        self._instances = type(self._instances)(*(np.append(column, 0) for column in self._instances))
        self._instances.first[instance] = place
        self._rows_of.append(rows)
        more = np.zeros(rows, np.int32)
        columns: Any = (np.append(column, more).astype(column.dtype) for column in self._places)
        self._places = type(self._places)(*columns)
        self._places.instance[place:] = instance
        self._heap = self._heap._replace(
            times=np.append(self._heap.times, np.zeros(rows)), keys=np.append(self._heap.keys, more)
        )
        self._refresh()
        return instance

    def _refresh(self) -> None:
        state = (self._places, self._instances, self._ops, self._routes, self._links, self._heap)
        self._state = tuple(tuple(columns) for columns in state)


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
        from commsim.engine.loops.heap import BEFORE

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
