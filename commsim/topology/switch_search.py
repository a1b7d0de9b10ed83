"""Searches from switch to switch over links that work."""

from __future__ import annotations

from collections import deque

from commsim.topology.kinds import Int64


class SwitchSearch:
    """Breadth-first trees over the surviving links between switches, one per switch, kept once grown."""

    def __init__(self, links: Int64, tail: Int64, head: Int64) -> None:
        """Searches over ``links``, each from the switch ``tail`` to the switch ``head``; (links,) each."""
        self._onward: dict[int, list[tuple[int, int]]] = {}
        for i, a, b in zip(links.tolist(), tail.tolist(), head.tolist(), strict=True):
            self._onward.setdefault(a, []).append((b, i))
        self._trees: dict[int, dict[int, tuple[int, int]]] = {}

    def tree(self, switch: int) -> dict[int, tuple[int, int]]:
        """(switch before, link) of every switch reached from one; equal ways are taken in turn by switch number."""
        if switch not in self._trees:
            before = {switch: (switch, -1)}
            queue = deque([switch])
            while queue:
                at = queue.popleft()
                onward = self._onward.get(at, [])
                turn = switch % max(len(onward), 1)
                for head, link in onward[turn:] + onward[:turn]:
                    if head not in before:
                        before[head] = (at, link)
                        queue.append(head)
            self._trees[switch] = before
        return self._trees[switch]

    def path(self, switch: int, to: int) -> list[int] | None:
        """Links from one switch to another, or None."""
        before = self.tree(switch)
        if to not in before:
            return None
        path, at = list[int](), to
        while at != switch:
            at, link = before[at]
            path.append(link)
        return path[::-1]
