"""Fewer hops with the same times: a link that only ever follows one other link need not be simulated.

If every message over link a goes on over link b, and b is reached from a only and is no slower, then b is always free
when a message comes: the one before left a earlier and b no later. So b only adds its latency, is busy exactly as long
as a, and a hop of the event loop is saved. Messages of no bytes would come to b at one time, and there the smaller
number goes first, whatever the order on a: `simulate` does not merge where some message is as short as that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from commsim.engine.program import Float64, Int32, Int64, Program

_SEVERAL = -2


class Routes(NamedTuple):
    """What the loops want to know of routes: CSR links of each route, and seconds per byte and latency of links.

    ``stands_for`` (L,): the link whose bytes and busy time each link shares, itself unless it was merged.
    """

    ptr: Int64
    link: Int32
    inv_bandwidth: Float64
    latency: Float64
    stands_for: Int64

    @staticmethod
    def of(program: Program) -> Routes:
        """The routes of a program as they are."""
        p = program
        return Routes(p.route_ptr, p.route_link, 1.0 / p.link_bandwidth, p.link_latency, np.arange(p.links))

    @staticmethod
    def merged(program: Program) -> Routes:
        """The routes without the links that only follow another one."""
        routes = Routes.of(program)
        used = np.zeros(program.route_ptr.size - 1, bool)
        used[program.route] = True
        while True:
            shorter = routes._once(used)
            if shorter is None:
                return routes
            routes = shorter

    def _once(self, used: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Routes | None:
        links, length = self.latency.size, np.diff(self.ptr)
        of = np.repeat(used, length)
        after, before = np.append(self.link[1:], -1), np.append(-1, self.link[:-1])
        after[self.ptr[1:][length > 0] - 1] = -1
        before[self.ptr[:-1][length > 0]] = -1
        following, leading = (_only(self.link[of], side[of], links) for side in (after, before))
        follower = np.flatnonzero(leading >= 0)
        leader = leading[follower]
        alone = (following[leader] == follower) & (self.inv_bandwidth[follower] <= self.inv_bandwidth[leader])
        follower, leader = follower[alone], leader[alone]
        # A link that goes away in this round takes up none itself; the next round sees to the rest of a chain.
        going = np.zeros(links, bool)
        going[follower] = True
        last = ~going[leader]
        follower, leader = follower[last], leader[last]
        if not follower.size:
            return None
        going[:] = False
        going[follower] = True
        kept = ~going[self.link]
        latency, stands_for = self.latency.copy(), self.stands_for.copy()
        latency[leader] += latency[follower]
        stands_for[follower] = leader
        return Routes(
            np.append(0, np.cumsum(kept))[self.ptr],
            self.link[kept],
            self.inv_bandwidth,
            latency,
            stands_for[stands_for],
        )


def _only(link: Int32, neighbour: Int32, links: int) -> Int64:
    """The one neighbour of each link, (links,); -1 where a route ends, below that where there are several."""
    only = np.full(links, _SEVERAL, np.int64)
    only[link] = neighbour
    differs = only[link] != neighbour
    only[link[differs]] = _SEVERAL
    return only
