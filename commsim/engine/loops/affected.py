"""Which flows may get another rate when some connections start or stop, and what the others leave to them."""

from __future__ import annotations

import numpy as np

from commsim.engine.loops.compiled import inlined, u
from commsim.engine.loops.flows import CHANGED, IDLE, RUNNING, STAMP, STARTING, FairLines, FairLinks
from commsim.engine.program import Int64


@inlined
def _enter(lines: FairLines, links: FairLinks, flow: int, slot: int, link: int) -> None:
    """Put a flow into the list of a link."""
    place = links.list_ptr[u(link)] + links.list_size[u(link)]
    links.list_size[u(link)] += 1
    links.list_flow[u(place)] = flow
    links.list_slot[u(place)] = slot
    lines.slot_place[u(slot)] = place


@inlined
def _leave(lines: FairLines, links: FairLinks, slot: int, link: int) -> None:
    """Take a flow out of the list of a link; the last of the list takes its place."""
    links.list_size[u(link)] -= 1
    place = lines.slot_place[u(slot)]
    moved = links.list_ptr[u(link)] + links.list_size[u(link)]
    links.list_flow[u(place)] = links.list_flow[u(moved)]
    links.list_slot[u(place)] = links.list_slot[u(moved)]
    lines.slot_place[u(links.list_slot[u(place)])] = place


@inlined
def list_changed(lines: FairLines, links: FairLinks, count: Int64) -> int:
    """Bring lists and loads of links up to date with the connections changed; the number of links touched."""
    stamp = count[STAMP]
    touched = 0
    for i in range(count[CHANGED]):
        flow = lines.changed[u(i)]
        starts = lines.state[u(flow)] == STARTING
        for k in range(lines.slot_ptr[u(flow)], lines.slot_ptr[u(flow + 1)]):
            link = lines.slot_link[u(k)]
            if links.touched_at[u(link)] != stamp:
                links.touched_at[u(link)] = stamp
                links.touched[u(touched)] = link
                touched += 1
            more = lines.slot_weight[u(k)]
            if starts:
                _enter(lines, links, flow, k, link)
            else:
                more = -more
                _leave(lines, links, k, link)
            links.load[u(link)] += more
            links.demand[u(link)] += more * lines.whole_cap[u(flow)]
        if starts:
            lines.state[u(flow)] = RUNNING
            lines.rate[u(flow)] = 0.0
            lines.fixed_rate[u(flow)] = lines.cap[u(flow)]
        else:
            lines.state[u(flow)] = IDLE
    return touched


@inlined
def queue_binding(links: FairLinks, count: Int64, touched: int) -> int:
    """Queue the links that bind now or did so before; their number. There the search for flows begins."""
    queued = 0
    for i in range(touched):
        link = links.touched[u(i)]
        before = links.binding[u(link)]
        links.binding[u(link)] = np.int64(links.demand[u(link)] > links.whole_bandwidth[u(link)])
        if before or links.binding[u(link)]:
            links.queued_at[u(link)] = count[STAMP]
            links.queue[u(queued)] = link
            queued += 1
    return queued


@inlined
def _held(lines: FairLines, links: FairLinks, stamp: int, flow: int) -> bool:
    """Whether a full link that was not touched holds the flow: none is quicker on it."""
    for k in range(lines.slot_ptr[u(flow)], lines.slot_ptr[u(flow + 1)]):
        link = lines.slot_link[u(k)]
        if (
            links.touched_at[u(link)] != stamp
            and links.binding[u(link)]
            and lines.rate[u(flow)] >= links.level[u(link)] * (1.0 - 1e-12)
        ):
            return True
    return False


@inlined
def lowest_rate(lines: FairLines, links: FairLinks, count: Int64, queued: int) -> float:
    """The lowest rate at which something differs: filling goes up to it as before, so slower flows keep their rates.

    A link with more flows is not full before its bandwidth over their number. Where flows have stopped, only those can
    be quicker that are not held by their cap or by another full link on which none is quicker.
    """
    lowest = np.inf
    starts_only = True
    for i in range(count[CHANGED]):
        flow = lines.changed[u(i)]
        if lines.state[u(flow)] != RUNNING:
            starts_only = False
        else:
            for k in range(lines.slot_ptr[u(flow)], lines.slot_ptr[u(flow + 1)]):
                link = lines.slot_link[u(k)]
                if links.binding[u(link)]:
                    lowest = min(lowest, links.bandwidth[u(link)] / links.load[u(link)])
    for i in range(0 if starts_only else queued):
        link = links.queue[u(i)]
        begin = links.list_ptr[u(link)]
        for m in range(begin, begin + links.list_size[u(link)]):
            flow = links.list_flow[u(m)]
            own = lines.rate[u(flow)]
            if 0.0 < own < lowest and own < lines.cap[u(flow)] and not _held(lines, links, count[STAMP], flow):
                lowest = own
    return lowest * (1.0 - 1e-9)


@inlined
def choose(lines: FairLines, links: FairLinks, stamp: int, queued: int, lowest: float) -> tuple[int, int]:
    """Choose the flows to fill, from link to link that they share; their number, and that of the links they cross."""
    chosen = 0
    i = 0
    while i < queued:
        link = links.queue[u(i)]
        begin = links.list_ptr[u(link)]
        links.left[u(link)] = links.bandwidth[u(link)]
        links.unfixed[u(link)] = links.load[u(link)]
        for k in range(begin, begin + links.list_size[u(link)]):
            flow = links.list_flow[u(k)]
            if 0.0 < lines.rate[u(flow)] < lowest:
                more = lines.slot_weight[u(links.list_slot[u(k)])]
                links.left[u(link)] = max(0.0, links.left[u(link)] - lines.rate[u(flow)] * more)
                links.unfixed[u(link)] -= more
            elif lines.chosen_at[u(flow)] != stamp:
                lines.chosen_at[u(flow)] = stamp
                lines.chosen[u(chosen)] = flow
                chosen += 1
                for j in range(lines.slot_ptr[u(flow)], lines.slot_ptr[u(flow + 1)]):
                    other = lines.slot_link[u(j)]
                    if links.binding[u(other)] and links.queued_at[u(other)] != stamp:
                        links.queued_at[u(other)] = stamp
                        links.queue[u(queued)] = other
                        queued += 1
        i += 1
    return chosen, queued
