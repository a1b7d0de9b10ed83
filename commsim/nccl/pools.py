"""Equal ways between switches: what goes from a switch to the level above lies evenly on all links there.

Adaptive routing, and the many queue pairs of a call, spread what NICs send over all cables of a switch. So a stream has
as much as those carry together, however thin each is. Where paths are hashed or given, it has the one link it takes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64, LinkKind

MESHES = ("torus", "dragonfly")
"""Kinds of fabric whose routers are joined to each other, not by spines above them."""

PINNED = ("ecmp", "static")
"""Routings that keep a stream on one of several equal ways, whatever else goes there."""


@lru_cache(maxsize=1)
def pools(t: Topology) -> tuple[Int64, Int64, Float64]:
    """The links between switches of a tree, the pool of each, and the bytes/s that a pool has as described.

    A pool is what joins a leaf and its spines, or all spines of a pod and plane and the cores, in one direction.
    """
    links = np.flatnonzero((t.link_kind == LinkKind.FABRIC) & t.works)
    up = t.link_dst[links] > t.link_src[links]
    lower = np.where(up, t.link_src[links], t.link_dst[links]).astype(np.int64) - int(t.node_first_vertex[-1])
    shape = getattr(t.fabric, "shape", None)
    if shape is not None and shape.spines:
        # What a leaf sends lies evenly on its spines, so the ways of these to the cores are equal ways too.
        lower = np.where(lower < shape.leaves, lower, shape.leaves + (lower - shape.leaves) // shape.spines)
    of, pool = np.unique(lower * 2 + up, return_inverse=True)
    left = np.ones(links.size) if t.link_share is None else t.link_share[links]
    described = np.bincount(pool, t.link_bandwidth[links] / left, of.size).astype(np.float64)
    return links, np.asarray(pool.reshape(-1), np.int64), described


def shares_ways(t: Topology) -> bool:
    """Whether several equal ways of a tree share evenly what goes there."""
    return t.routing not in PINNED and t.kind not in MESHES


def spread(t: Topology, load: Float64) -> Float64:
    """What lies on each link where streams that may go by several equal ways share them evenly, (links,)."""
    if t.nodes < 2 or not shares_ways(t):
        return load
    links, pool, described = pools(t)
    if not links.size:
        return load
    out, carried = load.copy(), np.bincount(pool, load[links], described.size)
    left = np.ones(links.size) if t.link_share is None else t.link_share[links]
    # A switch below which there is no NIC has links without a rate, which carry nothing.
    out[links] = carried[pool] * (t.link_bandwidth[links] / left) / np.maximum(described, 1e-9)[pool]
    return out


@lru_cache(maxsize=1)
def _members(t: Topology) -> tuple[Int64, Int64, Int64, Float64]:
    """The pool of each link (-1: none), the links of all pools, pool after pool, where each pool's begin, and the
    bytes/s of each link as described."""
    links, pool, described = pools(t)
    of_link = np.full(t.link_bandwidth.size, -1, np.int64)
    of_link[links] = pool
    left = np.ones(t.link_bandwidth.size) if t.link_share is None else t.link_share
    rate = np.zeros(left.size)
    rate[links] = t.link_bandwidth[links] / left[links]
    first = np.concatenate([[0], np.cumsum(np.bincount(pool, minlength=described.size))])
    return of_link, links[np.argsort(pool, kind="stable")], first, rate


def spread_from(t: Topology, link: Int64, nbytes: Float64, lines: Float64) -> tuple[Int64, Float64, Float64]:
    """As `spread` of two columns of some links in rising order: the links that then carry bytes, and the columns."""
    if t.nodes > 1 and shares_ways(t):
        from commsim.engine.program import count_up

        described = pools(t)[2]
        of_link, members, first, rate = _members(t)
        pool = of_link[link]
        inside = pool >= 0
        if inside.any():
            carried, joined = (np.bincount(pool[inside], c[inside], described.size) for c in (nbytes, lines))
            reached = np.flatnonzero(carried > 0)
            size = first[reached + 1] - first[reached]
            of = np.repeat(reached, size)
            more = members[np.repeat(first[reached], size) + count_up(size)]
            link = np.concatenate([link[~inside], more])
            least = np.maximum(described, 1e-9)[of]
            columns = ((nbytes, carried), (lines, joined))
            nbytes, lines = (np.concatenate([c[~inside], all_of[of] * rate[more] / least]) for c, all_of in columns)
            order = np.argsort(link)
            link, nbytes, lines = link[order], nbytes[order], lines[order]
    kept = nbytes > 0
    return link[kept], nbytes[kept], lines[kept]


def described_rate(t: Topology, links: Int64) -> Float64:
    """Bytes/s that one stream can have of each of some links, as described, whatever else goes there and has failed."""
    links = np.asarray(links, np.int64)
    left = np.ones(links.size) if t.link_share is None else t.link_share[links]
    rate = np.asarray(t.link_bandwidth[links] / left, np.float64)
    between = np.flatnonzero(t.link_kind[links] == LinkKind.FABRIC)
    if between.size and shares_ways(t):
        of, pool, described = pools(t)
        rate[between] = described[pool[np.searchsorted(of, links[between])]]
    return rate
