"""Rings along the dimensions of a grid of ranks: hierarchical collectives and tori.

Rank r has the coordinates of r in a grid of shape ``dims``, last dimension fastest, so (nodes, ranks_per_node) is
a grid. A reduce-scatter goes along one dimension after the other: along the first, each line of ranks adds up and
keeps the blocks of the owners that share the coordinate; along the next, the blocks left; at the end each rank has
its own block. The all-gather is the mirror image (BlueConnect, Cho et al., MLSys 2019; "two-level" and "2-D torus"
are this with two dimensions).

A torus has links along every dimension and in both directions. Its multi-ring form cuts the array into 2 * k
parts, which start with another dimension or direction each, so that no part waits for another one's links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commsim.collectives.ring import ring_reduce_scatter
from commsim.collectives.rows import Int64, Rows, assemble, blocks, in_turn, mirror, rows
from commsim.collectives.schedule import Op, Schedule, split_evenly
from commsim.errors import ScheduleError


def hierarchical_reduce_scatter(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, levels: int = 2, itemsize: int = 1
) -> Schedule:
    """Reduce-scatter in the node, then across nodes along each rail (and then across pods, with three levels).

    >>> hierarchical_reduce_scatter(8, nbytes=800, ranks_per_node=4).steps
    4
    """
    dims = node_grid(world_size, ranks_per_node, levels)
    parts = grid_rows(dims, range(len(dims))[::-1])
    name = "hierarchical" if levels == 2 else f"hierarchical_{levels}"
    return assemble("reduce_scatter", name, world_size, parts, blocks(nbytes, world_size, itemsize))


hierarchical_all_gather = mirror(hierarchical_reduce_scatter, "all_gather", Op.COPY)
"""All-gather along each rail, then in the node."""


hierarchical_all_reduce = in_turn(hierarchical_reduce_scatter, hierarchical_all_gather)
"""Reduce-scatter in the node, all-reduce across nodes along each rail, all-gather in the node."""


def torus_reduce_scatter(world_size: int, nbytes: int, dims: int | Sequence[int] = 2, *, itemsize: int = 1) -> Schedule:
    """Multi-ring reduce-scatter on a torus; ``dims`` is its shape, or how many dimensions to factor the ranks into.

    >>> torus_reduce_scatter(6, nbytes=2400).sent_bytes()
    array([2000, 2000, 2000, 2000, 2000, 2000])
    """
    shape = torus_shape(world_size, dims) if isinstance(dims, int) else tuple(dims)
    if math.prod(shape) != world_size:
        raise ScheduleError(f"a torus of {'x'.join(map(str, shape))} has {math.prod(shape)} ranks, found {world_size}")
    axes, parts = len(shape), list[Rows]()
    for number in range(2 * axes):
        order = [(number // 2 + k) % axes for k in range(axes)]
        for part in grid_rows(shape, order, backwards=number % 2 == 1):
            chunk = part["src_chunk"] * 2 * axes + number
            parts.append(part | {"src_chunk": chunk, "dst_chunk": chunk, "channel": np.full_like(chunk, number)})
    sizes = split_evenly(blocks(nbytes, world_size, itemsize) // itemsize, 2 * axes).reshape(-1) * itemsize
    return assemble("reduce_scatter", f"torus_{axes}d", world_size, parts, sizes)


torus_all_gather = mirror(torus_reduce_scatter, "all_gather", Op.COPY)


torus_all_reduce = in_turn(torus_reduce_scatter, torus_all_gather)
"""2 * sum(d - 1) steps instead of the 2(n-1) of one ring."""


def node_grid(world_size: int, ranks_per_node: int | None, levels: int = 2) -> tuple[int, ...]:
    """(nodes, ranks_per_node), or (pods, nodes, ranks_per_node) with pods x nodes as square as the count allows.

    >>> node_grid(24, 4), node_grid(24, 4, levels=3), node_grid(12, None)
    ((6, 4), (3, 2, 4), (2, 6))
    """
    local = usual_node(world_size) if ranks_per_node is None else ranks_per_node
    if local < 1 or world_size % local:
        raise ScheduleError(f"{world_size} ranks are no whole number of nodes of {local} ranks")
    return (*torus_shape(world_size // local, levels - 1), local)


def usual_node(world_size: int) -> int:
    """The largest node of up to 8 ranks that divides the ranks: the shape taken when none is given."""
    return max(g for g in range(1, 9) if world_size % g == 0)


def torus_shape(world_size: int, dims: int) -> tuple[int, ...]:
    """Ranks as a product of ``dims`` factors, as near to each other as they come, larger ones first.

    >>> torus_shape(24, 2), torus_shape(24, 3), torus_shape(7, 3)
    ((6, 4), (4, 3, 2), (7, 1, 1))
    """
    if dims == 1:
        return (world_size,)
    smallest = max(d for d in range(1, world_size + 1) if world_size % d == 0 and d**dims <= world_size)
    return (*torus_shape(world_size // smallest, dims - 1), smallest)


def grid_rows(dims: Sequence[int], order: Sequence[int], *, backwards: bool = False) -> list[Rows]:
    """Reduce-scatter of one block per rank, by rings along the dimensions in ``order``."""
    ranks = np.arange(math.prod(dims)).reshape(tuple(dims))
    parts, step = list[Rows](), 0
    for place, axis in enumerate(order):
        done, left = list(order[:place]), list(order[place + 1 :])
        width = math.prod(dims[a] for a in done)
        # lines[p, i, j]: place on the line, then where the line lies in dimensions done, then in those left.
        lines = ranks.transpose([axis, *done, *left]).reshape(dims[axis], width, -1)
        parts.append(_along(lines[::-1] if backwards else lines, step))
        step += dims[axis] - 1
    return parts


def _along(lines: Int64, step: int) -> Rows:
    ring = ring_reduce_scatter(len(lines), len(lines))
    # A rank sends the blocks of all owners at the block's place that share its coordinates in dimensions done.
    return rows(
        step + ring.step[:, None, None, None],
        lines[ring.src][:, :, :, None],
        lines[ring.dst][:, :, :, None],
        lines[ring.src_chunk][:, :, None, :],
        op=Op.REDUCE,
    )
