"""Searches from vertex to vertex over links that work."""

from __future__ import annotations

from collections.abc import Collection

from commsim.topology.kinds import Int32, Int64

Vertices = Int32 | Int64


class LinkSearch:
    """Breadth-first trees, one per vertex, kept once grown."""

    def __init__(
        self, links: Int64, tail: Vertices, head: Vertices, *, ends: Collection[int] = (), in_turn: bool = False
    ) -> None:
        """Searches over ``links``, each from the vertex ``tail`` to the vertex ``head``; (links,) each.

        Vertices of ``ends`` are never crossed. ``in_turn``: of equal ways each start takes another.
        """
        self._ends, self._in_turn = ends, in_turn
        self._onward: dict[int, list[tuple[int, int]]] = {}
        for i, a, b in zip(links.tolist(), tail.tolist(), head.tolist(), strict=True):
            self._onward.setdefault(a, []).append((b, i))
        self._trees: dict[int, dict[int, tuple[int, int]]] = {}

    def tree(self, start: int) -> dict[int, tuple[int, int]]:
        """(vertex before, link) of every vertex reached from one."""
        if start not in self._trees:
            before = {start: (start, -1)}
            for at in (queue := [start]):  # grows while it is read
                onward = self._onward.get(at, []) if at == start or at not in self._ends else []
                turn = start % max(len(onward), 1) if self._in_turn else 0
                for head, link in onward[turn:] + onward[:turn]:
                    if head not in before:
                        before[head] = (at, link)
                        queue.append(head)
            self._trees[start] = before
        return self._trees[start]

    def path(self, start: int, to: int) -> list[int] | None:
        """Links from one vertex to another, or None."""
        before = self.tree(start)
        if to not in before:
            return None
        path, at = list[int](), to
        while at != start:
            at, link = before[at]
            path.append(link)
        return path[::-1]
