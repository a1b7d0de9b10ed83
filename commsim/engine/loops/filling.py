"""Progressive filling: the max-min fair rates of some flows."""

from __future__ import annotations

import numpy as np

from commsim.engine.loops.compiled import inlined, u
from commsim.engine.loops.flows import FairLines, FairLinks
from commsim.engine.loops.heap import drop_first, push

FILLING_STUCK = -2


@inlined
def _fix(lines: FairLines, links: FairLinks, flow: int, rate: float) -> None:
    """Give a flow its rate and take that from its links."""
    lines.fixed_rate[u(flow)] = rate
    for k in range(lines.slot_ptr[u(flow)], lines.slot_ptr[u(flow + 1)]):
        link = lines.slot_link[u(k)]
        links.left[u(link)] = max(0.0, links.left[u(link)] - rate * lines.slot_weight[u(k)])
        links.unfixed[u(link)] -= lines.slot_weight[u(k)]


@inlined
def _fix_at_caps(lines: FairLines, links: FairLinks, flows: int, level: float) -> tuple[int, float]:
    """Fix the flows whose cap is at most ``level``; their number, and the smallest cap of the others."""
    fixed = 0
    smallest = np.inf
    for i in range(flows):
        flow = lines.chosen[u(i)]
        if lines.fixed_rate[u(flow)] < 0.0:
            if lines.cap[u(flow)] <= level:
                _fix(lines, links, flow, level)
                fixed += 1
            else:
                smallest = min(smallest, lines.cap[u(flow)])
    return fixed, smallest


@inlined
def _begin(lines: FairLines, links: FairLinks, flows: int, queued: int) -> float:
    """Put the share of every link in the heap and forget the rates of the flows; the smallest cap."""
    links.shares.size[0] = 0
    for i in range(queued):
        link = links.queue[u(i)]
        links.level[u(link)] = np.inf
        if links.binding[u(link)] and links.unfixed[u(link)] > 0:
            push(links.shares, links.left[u(link)] / links.unfixed[u(link)], np.int64(link), 1.0)
    smallest = np.inf
    for i in range(flows):
        lines.fixed_rate[u(lines.chosen[u(i)])] = -1.0
        smallest = min(smallest, lines.cap[u(lines.chosen[u(i)])])
    return smallest


@inlined
def fill(lines: FairLines, links: FairLinks, flows: int, queued: int) -> int:
    """The fair rate of the first ``flows`` chosen ones, into ``fixed_rate``; 0, or a negative fault.

    ``left`` and ``unfixed`` of the first ``queued`` links hold what other flows leave, and the number of flows to fill.
    ``level`` receives the rate at which each link is full, infinite for one that is not.

    The link with the smallest share of what is left per flow is filled first (a heap; a share that has grown is
    put back, since shares never shrink). Flows whose cap is below that share are fixed at the cap before.
    """
    shares = links.shares
    smallest_cap = _begin(lines, links, flows, queued)
    todo = flows
    level = 0.0
    guard = 8 * (flows + queued) + 64
    while todo > 0 and shares.size[0] > 0:
        guard -= 1
        if guard < 0:
            return FILLING_STUCK
        share, link = shares.times[0], shares.keys[0]
        if links.unfixed[u(link)] <= 0:
            if links.left[u(link)] <= 1e-12 * links.bandwidth[u(link)]:
                links.level[u(link)] = level
            drop_first(shares, 1.0)
            continue
        now = max(level, links.left[u(link)] / links.unfixed[u(link)])
        if now > share * (1.0 + 1e-12):
            drop_first(shares, 1.0)
            push(shares, now, link, 1.0)
            continue
        if smallest_cap <= now:
            fixed, smallest_cap = _fix_at_caps(lines, links, flows, smallest_cap)
            todo -= fixed
            guard += 1
            continue
        level = now
        links.level[u(link)] = level
        drop_first(shares, 1.0)
        begin = links.list_ptr[u(link)]
        for i in range(begin, begin + links.list_size[u(link)]):
            flow = links.list_flow[u(i)]
            if lines.fixed_rate[u(flow)] < 0.0:
                _fix(lines, links, flow, level)
                todo -= 1
    if todo > 0:
        for i in range(flows):
            flow = lines.chosen[u(i)]
            if lines.fixed_rate[u(flow)] < 0.0:
                lines.fixed_rate[u(flow)] = lines.cap[u(flow)]
    return 0
