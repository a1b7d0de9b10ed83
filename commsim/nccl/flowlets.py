"""Streams whose flowlets draw their paths: what a channel gets of the fabric in the mean of many draws.

A flowlet that meets others on a link takes as much longer as these leave it less, so that a stream takes the mean of
what its flowlets take. The streams of a channel wait for one another: one is ahead of the next by no more than the
slots of its connections hold. So they keep step from window to window, each of as many flowlets as those hold, and in
each the slowest counts. Of flowlets as large as a connection's slots this is the slowest of each draw, whatever their
size; of smaller ones each stream has its own mean. Flowlets smaller than what a stream has on its way (rate times
latency) are on several paths at once, the smaller the more evenly: in the end the stream is sprayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from commsim.nccl.protocols import DEFAULT_BUFFER_BYTES
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64
from commsim.units import format_bytes

_MOST_DRAWS = 512
"""Flowlets of a stream that are drawn: those of many calls in a row, as nccl-tests averages them."""

_MOST_LINKS = 20_000_000
"""Links of the ways of all flowlets of all streams: fewer are drawn of many streams, at least one window."""


def window_of(weight: Float64, flowlet_bytes: int) -> int:
    """Flowlets by which a stream may be ahead of the next: what the slots of its channels hold, of the fewest."""
    return max(1, min(_MOST_DRAWS, int(DEFAULT_BUFFER_BYTES * weight.min(initial=np.inf) // flowlet_bytes)))


def path_notes(topology: Topology, *, even: bool) -> Iterator[str]:
    """What drawn paths do not change, for the user; `even`: the call's messages lie evenly on all ways."""
    routes, routing = topology.fabric_routes, topology.routing
    if routing not in {"ecmp", "flowlet"} or routes is None or routes.choices == 1:
        return
    if even:
        yield f"routing: {routing} has no effect on these sends: without faults they lie evenly on all ways"
    elif routing == "flowlet" and topology.flowlet_bytes > DEFAULT_BUFFER_BYTES:
        most = format_bytes(DEFAULT_BUFFER_BYTES)
        yield (
            f"flowlet_size: {format_bytes(topology.flowlet_bytes)} has no effect beyond what the slots of a stream's "
            f"connections hold, {most} for each channel; a stream that never draws anew is routing: ecmp"
        )


def most_at_once(under_way: float, flowlet_bytes: int, links: int) -> int:
    """Flowlets of a stream that are on different paths at one time, of the bytes that it has under way; at least one.

    `links` is how many the ways of all streams have.
    """
    return max(1, min(_MOST_DRAWS, int(min(under_way // flowlet_bytes, _MOST_LINKS // max(1, links)))))


def mean_share(
    share_of: Callable[[int], tuple[Float64, Int64]], of: Int64, window: int, links: int, at_once: int = 1
) -> tuple[Float64, Int64]:
    """Of each edge and channel the share of a NIC in the mean, (edges, channels), and the narrowest link of its worst.

    `share_of` gives of a turn's number, `at_once` flowlets of each stream, the share of each stream and its narrowest
    link, `of` (edges, channels) the stream of each; `window` counts flowlets, `links` those of the ways of all streams.
    """
    window = max(1, window // at_once)
    draws = max(1, min(_MOST_DRAWS, _MOST_LINKS // max(1, links)) // (at_once * window)) * window
    longer, worst = np.zeros(of.shape[1]), np.zeros(0)
    place, within = np.zeros(0, np.int64), np.zeros(0)
    least = np.full(of.shape, np.inf)
    for flowlet in range(draws):
        share, link = share_of(flowlet)
        if not worst.size:
            worst, place, within = share, link, np.zeros(share.size)
        lower = share < worst
        worst, place = np.where(lower, share, worst), np.where(lower, link, place)
        least = np.minimum(least, share[of])
        within = within + 1.0 / share
        if (flowlet + 1) % window == 0:
            longer += within[of].max(axis=0) / window
            within = np.zeros(share.size)
    # What meets nobody in any draw has all; the others keep the step of their channel.
    mean = draws / window / longer
    return np.where(least < 1.0, np.minimum(1.0, mean)[None, :], 1.0), place[of]
