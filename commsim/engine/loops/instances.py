"""FIFO links for collectives that start while others are under way: instances of tables of messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from commsim.engine.loops.compiled import compiled, u
from commsim.engine.loops.heap import BEFORE, Heap, drop_first, first, push
from commsim.engine.loops.links import LinkState, Ops, carry
from commsim.engine.merging import Routes
from commsim.engine.program import HOP_BITS, MAX_HOPS, Float64, Int32, Int64


class Places(NamedTuple):
    """Where messages stand while under way: the instance of each place, and how far its message is."""

    instance: Int32
    waiting: Int32
    ready: Float64
    tail: Float64


class Instances(NamedTuple):
    """Collectives under way: first place, first row of the table, messages left, end; ``done`` receives the ended."""

    first: Int64
    table: Int64
    left: Int64
    end: Float64
    done: Int64


State = tuple[tuple[Any, ...], ...]
"""Columns of Places, Instances, Ops, Routes, LinkState and Heap, which has room for one event per place.

Tuples without names: numba takes 3 us to recognise them at each call, 7 with names.
"""


@compiled
def start_fifo(first_place: int, t: float, indeg: Int32, state: State) -> float:
    """Put an instance of ops with these in-degrees at the places from a first on, at time t; when the next event is."""
    places, heap = Places(*state[0]), Heap(*state[5])
    for i in range(indeg.size):
        place = first_place + i
        places.waiting[place] = indeg[i]
        places.ready[place] = t
        places.tail[place] = 0.0
        if indeg[i] == 0:
            push(heap, t, np.int64(place) << HOP_BITS, BEFORE)
    following: float = heap.times[0]
    return following


@compiled
def advance_fifo(until: float, state: State) -> int:
    """Handle events before ``until``, or before the first end of an instance met; returns how many ended.

    The ops of an instance are the rows from its table on of ``nbytes``, ``route`` and ``succ_ptr``, with ``succ_idx``
    relative to the instance. What follows from an end comes before any later event: nothing need be rolled back.
    """
    places, instances, ops = Places(*state[0]), Instances(*state[1]), Ops(*state[2])
    routes, links, heap = Routes(*state[3]), LinkState(*state[4]), Heap(*state[5])
    ended = 0
    while heap.size[0] > 0 and heap.times[0] < until * BEFORE:
        t, key = heap.times[0], heap.keys[0]
        drop_first(heap, BEFORE)
        place = key >> HOP_BITS
        hop = key & (MAX_HOPS - 1)
        instance = places.instance[u(place)]
        base = instances.first[u(instance)]
        row = instances.table[u(instance)] + place - base
        way = routes.ptr[u(ops.route[u(row)])]
        hops = routes.ptr[u(ops.route[u(row)] + 1)] - way
        if hops == 0:
            places.tail[u(place)] = t
        while hop < hops:
            link = routes.link[u(way + hop)]
            start, sent = carry(routes, links, link, ops.nbytes[u(row)], t, places.tail[u(place)])
            places.tail[u(place)] = sent + routes.latency[u(link)]
            hop += 1
            if hop < hops:
                t = start + routes.latency[u(link)]
                key = (place << HOP_BITS) | hop
                if t >= until * BEFORE or (heap.size[0] > 0 and first(heap.times[0], heap.keys[0], t, key, BEFORE)):
                    push(heap, t, key, BEFORE)
                    break
        else:
            end = places.tail[u(place)]
            for e in range(ops.succ_ptr[u(row)], ops.succ_ptr[u(row + 1)]):
                s = base + ops.succ_idx[u(e)]
                places.ready[u(s)] = max(places.ready[u(s)], end)
                places.waiting[u(s)] -= 1
                if places.waiting[u(s)] == 0:
                    push(heap, places.ready[u(s)], np.int64(s) << HOP_BITS, BEFORE)
            instances.end[u(instance)] = max(instances.end[u(instance)], end)
            instances.left[u(instance)] -= 1
            if instances.left[u(instance)] == 0:
                instances.done[u(ended)] = instance
                ended += 1
                until = min(until, instances.end[u(instance)])
    return ended
