"""Maximum flows in whole numbers from one vertex to any of several goals, found near the vertex first (Dinic 1970).

One text serves two ways of running: on lists of Python's numbers, which never overflow and need no compiler, and
compiled on arrays, which large networks need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from commsim.topology.kinds import Int64

_SMALL = 400
_UNLOADED = 30_000
"""Arcs up to which lists are quicker than compiled loops, and than to load numba with them where nobody has."""
_MOST = 1 << 61
"""Sums of capacities beyond which 64 bits are not enough."""


def _saturate(  # type: ignore[no-untyped-def]  # lists or arrays
    arcs, room, goal, source, scratch, most
):
    """(units from the source to goals, at most `most`; vertices that it still reaches, which `queue` begins with).

    Arc a leads to ``head[a]`` and has ``room[a]``, its reverse is ``a ^ 1``; arcs of vertex v are
    ``leaving[ptr[v]:ptr[v + 1]]``. ``level`` comes as -1 everywhere and is left so.
    """
    ptr, leaving, head = arcs
    level, at, queue, path = scratch
    flow = 0
    while True:
        level[source], queue[0] = 0, source
        first, last, nearest = 0, 1, -1
        while first < last:
            v = queue[first]
            first += 1
            if nearest >= 0 and level[v] >= nearest:
                break
            for k in range(ptr[v], ptr[v + 1]):
                w = head[leaving[k]]
                if level[w] < 0 and room[leaving[k]] > 0:
                    level[w] = level[v] + 1
                    queue[last] = w
                    last += 1
                    if goal[w] and nearest < 0:
                        nearest = level[w]
        if nearest < 0 or flow >= most:
            for k in range(last):
                level[queue[k]] = -1
            return flow, last
        for k in range(last):
            at[queue[k]] = ptr[queue[k]]
        v, depth = source, 0
        while True:
            if goal[v]:
                more = room[path[0]]
                for d in range(1, depth):
                    more = min(more, room[path[d]])
                kept = depth
                for d in range(depth - 1, -1, -1):
                    a = path[d]
                    room[a] -= more
                    room[a ^ 1] += more
                    if room[a] == 0:
                        kept = d
                flow += more
                depth = kept
                v = head[path[depth] ^ 1]
            moved = False
            while at[v] < ptr[v + 1]:
                a = leaving[at[v]]
                w = head[a]
                if room[a] > 0 and level[w] == level[v] + 1 and (level[w] < nearest or goal[w]):
                    path[depth] = a
                    depth += 1
                    v = w
                    moved = True
                    break
                at[v] += 1
            if not moved:
                if v == source:
                    break
                depth -= 1
                v = head[path[depth] ^ 1]
                at[v] += 1
        for k in range(last):
            level[queue[k]] = -1


@cache
def _compiled() -> Callable[..., Any]:
    from commsim.engine.loops.compiled import compiled

    return compiled(_saturate)  # type: ignore[no-any-return]


@dataclass
class FlowSearch:
    """Flows over directed edges with ``capacity`` (edges,), one after the other, each from untouched capacities.

    ``goal`` (vertices,) says which vertices take in what arrives; the caller sets more of them as it goes.
    """

    vertices: int
    tail: Int64
    head: Int64

    def __post_init__(self) -> None:
        ends = np.stack([self.head, self.tail], axis=1).ravel()  # arc 2e leads along edge e, arc 2e + 1 back
        starts = np.stack([self.tail, self.head], axis=1).ravel()
        arcs = np.argsort(starts, kind="stable")
        ptr = np.concatenate([[0], np.cumsum(np.bincount(starts, minlength=self.vertices))])
        self._arrays = [ptr.astype(np.int64), arcs.astype(np.int64), ends.astype(np.int64)]
        self._goals: set[int] = set()
        self._large = ends.size > (_SMALL if "numba" in sys.modules else _UNLOADED)
        self._exact: list[int] = []

    def with_capacity(self, capacity: Sequence[int], goals: Sequence[int]) -> None:
        """From now on edges carry so much, and flows end in these vertices."""
        self._exact = [int(c) for c in capacity]
        self._goals = set(goals)
        self._compiled = self._large and sum(self._exact) < _MOST
        kept: list[Any] = self._arrays if self._compiled else [array.tolist() for array in self._arrays]
        arcs = len(self._exact) * 2
        room, goal, level = [0] * arcs, [v in self._goals for v in range(self.vertices)], [-1] * self.vertices
        room[::2] = self._exact
        scratch: list[Any] = [level, [0] * self.vertices, [0] * self.vertices, [0] * self.vertices]
        self._full: Any = room
        if self._compiled:
            self._full = np.array(room, np.int64)
            goal = np.array(goal)  # type: ignore[assignment]
            scratch = [np.array(column, np.int64) for column in scratch]
        self._kept, self._goal, self._scratch = tuple(kept), goal, tuple(scratch)

    def add_goal(self, vertex: int) -> None:
        """One more vertex takes in what arrives."""
        self._goal[vertex] = True

    def flow(self, source: int, most: int) -> tuple[int, list[int]]:
        """(units that go from a vertex to the goals, at most so many; where it is less, what the vertex still reaches).

        The vertices of the second are the smallest side of a least cut.
        """
        run: Callable[..., tuple[int, int]] = _compiled() if self._compiled else _saturate
        room = self._full.copy()
        flow, last = run(self._kept, room, self._goal, source, self._scratch, most)
        self.room = room
        return int(flow), [int(v) for v in self._scratch[2][:last]] if flow < most else []
