"""Translations of a topology onto itself: the shift of ranks that maps every link and every route.

Between nodes a shift of ranks is a shift of nodes. The kind of fabric says after how many nodes its choice of paths
repeats; here every multiple is checked against the links: kind, bandwidth, latency, failure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.topology.columns import TopologyColumns
from commsim.topology.kinds import Int32, Int64


def smallest_period(topology: TopologyColumns) -> int | None:
    """See `Topology.period_ranks`."""
    t = topology
    if t.nodes == 1:
        return next((d for d in _divisors(t.ranks_per_node) if _image_inside(t, d) is not None), None)
    step = t.fabric.period_nodes
    if step is None or t.nodes % step:
        return None
    for nodes in (d for d in _divisors(t.nodes) if d % step == 0):
        if _image_between(t, nodes) is not None:
            return int(t.node_first_rank[nodes])
    return None


def link_image(topology: TopologyColumns, shift: int) -> Int32:
    """See `Topology.link_image`."""
    shift %= topology.world_size
    if topology.nodes == 1:
        image = _image_inside(topology, shift)
    else:
        image = _image_between(topology, int(np.searchsorted(topology.node_first_rank, shift)))
    assert image is not None  # a multiple of the period
    return image


def _divisors(n: int) -> list[int]:
    """Divisors of n below n, in order."""
    return [d for d in range(1, n) if n % d == 0]


def _image_inside(t: TopologyColumns, shift: int) -> Int32 | None:
    """The image of the links between the GPUs of one node; links that no route takes stay where they are."""
    routes = t.node_routes.gpu_gpu
    moved = np.roll(routes, (-shift, -shift), axis=(0, 1))
    links = t.node_routes.links
    if ((routes < 0) != (moved < 0)).any():
        return None
    a, b = routes[routes >= 0], moved[moved >= 0]
    image = np.arange(links, dtype=np.int32)
    image[a] = b
    if (image[a] != b).any() or len(np.unique(image)) < links:
        return None
    return image if _alike(t, image) else None


def _image_between(t: TopologyColumns, shift: int) -> Int32 | None:
    """The image of all links when nodes shift cyclically."""
    if (t.node_group != np.roll(t.node_group, -shift)).any():
        return None
    vertex = _vertex_image(t, shift)
    first = int(t.node_first_link[-1])
    node = np.repeat(np.arange(t.nodes), np.diff(t.node_first_link))
    to = t.node_first_link[(node + shift) % t.nodes]
    image = np.empty(len(t.link_src), dtype=np.int64)
    image[:first] = np.arange(first) - t.node_first_link[node] + to
    fabric = _fabric_image(t, vertex, first)
    if fabric is None:
        return None
    image[first:] = first + fabric
    return image.astype(np.int32) if _alike(t, image) else None


def _vertex_image(t: TopologyColumns, shift: int) -> Int64:
    first = int(t.node_first_vertex[-1])
    node = t.vertex_node[:first].astype(np.int64)
    inside = np.arange(first) - t.node_first_vertex[node] + t.node_first_vertex[(node + shift) % t.nodes]
    return np.concatenate([inside, first + t.fabric.switch_image(shift)])


def _fabric_image(t: TopologyColumns, vertex: Int64, first: int) -> Int64 | None:
    """The image of the links after `first`, looked up by their ends; the k-th of parallel links is the k-th."""
    vertices = len(t.vertex_name)
    src, dst = t.link_src[first:].astype(np.int64), t.link_dst[first:].astype(np.int64)
    ends, wanted = src * vertices + dst, vertex[src] * vertices + vertex[dst]
    order, asked = np.argsort(ends, kind="stable"), np.argsort(wanted, kind="stable")
    if (ends[order] != wanted[asked]).any():
        return None
    image = np.empty(len(ends), dtype=np.int64)
    image[asked] = order
    return image


def _alike(t: TopologyColumns, image: Int64 | Int32) -> bool:
    """Whether every link is of the same kind, bandwidth, latency and state as its image."""
    columns: list[npt.NDArray[Any]] = [t.link_kind, t.link_bandwidth, t.link_latency, t.works]
    return all(bool((c[image] == c).all()) for c in columns)
