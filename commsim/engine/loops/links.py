"""A message on one first-in first-out link: what all loops but those of fair sharing have in common."""

from __future__ import annotations

from typing import NamedTuple

from commsim.engine.loops.compiled import inlined, u
from commsim.engine.merging import Routes
from commsim.engine.program import Float64, Int32, Int64


class Ops(NamedTuple):
    """Messages, (M,), as in `commsim.engine.program.Program`."""

    nbytes: Int64
    route: Int32
    delay: Float64
    succ_ptr: Int64
    succ_idx: Int32


class LinkState(NamedTuple):
    """LinkState, (L,): free from when on, bytes carried, seconds held; all arrive as zeros."""

    free: Float64
    nbytes: Int64
    busy: Float64


class Times(NamedTuple):
    """What becomes of messages, (M,); all arrive as zeros. ``end`` is the last byte's time at the next link before."""

    ready: Float64
    start: Float64
    end: Float64


@inlined
def carry(routes: Routes, links: LinkState, link: int, nbytes: int, t: float, tail: float) -> tuple[float, float]:
    """When a link takes a message up whose head comes at t and whose last byte comes at ``tail``; when it is sent."""
    start = max(t, links.free[u(link)])
    sent = max(start + nbytes * routes.inv_bandwidth[u(link)], tail)
    links.free[u(link)] = sent
    links.busy[u(link)] += sent - start
    links.nbytes[u(link)] += nbytes
    return start, sent
