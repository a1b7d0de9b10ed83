"""In-network trees (SHARP): switches that add what comes from below and multicast what comes from above.

Switches are the endpoints from world_size on. By default they form a tree of a given radix over the ranks; a
`SwitchTree` makes them follow the cables of a fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from commsim.collectives.rows import Int64, Rows, assemble, blocks, rows
from commsim.collectives.schedule import Buffer, Op, Schedule, at_least_one

Levels = list[tuple[Int64, Int64]]
"""(children, their parents) per level, from the ranks up to one switch; all that reach a child are levels below it."""

SwitchTree = Callable[[Int64], Levels]
"""The levels above some ranks; switches are numbered from world_size on, with gaps if need be."""


def sharp_all_reduce(
    world_size: int, nbytes: int, radix: int = 8, *, switches: SwitchTree | None = None, itemsize: int = 1
) -> Schedule:
    """A tree of switches with ``radix`` ports down: sums up to the top, the result down; nbytes out of and into a rank.

    >>> sharp_all_reduce(16, nbytes=100).sent_bytes()
    array([100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100,
           100, 100, 100, 900, 900, 200])
    """
    levels = _levels(world_size, radix, switches)
    parts = [_up(k, *level) for k, level in enumerate(levels)]
    parts += [_down(len(levels) + k, *level) for k, level in enumerate(levels[::-1])]
    return in_switches("all_reduce", "sharp", world_size, parts, blocks(nbytes, 1, itemsize))


def _rooted(
    collective: str,
    world_size: int,
    nbytes: int,
    root: int = 0,
    radix: int = 8,
    *,
    switches: SwitchTree | None = None,
    itemsize: int = 1,
) -> Schedule:
    """Sums up to the top switch and down to the root alone, or from the root up and down wherever it has not been."""
    levels = _levels(world_size, radix, switches)
    path = _path(levels, root)
    if collective == "reduce":
        parts = [_up(k, *level) for k, level in enumerate(levels)]
        parts += [_down(2 * len(levels) - 1 - k, *ends) for k, ends in enumerate(pairwise(path))][::-1]
    else:
        parts = [_up(k, *ends, Op.COPY) for k, ends in enumerate(pairwise(path))]
        for k, (child, parent) in enumerate(levels[::-1]):
            new = ~np.isin(child, np.concatenate(path))
            parts.append(_down(len(levels) + k, child[new], parent[new]))
    return in_switches(collective, "sharp", world_size, parts, blocks(nbytes, 1, itemsize), root)


sharp_reduce = partial(_rooted, "reduce")
sharp_broadcast = partial(_rooted, "broadcast")


def switch_tree(world_size: int, radix: int) -> Levels:
    """(children, their parents) per level from the ranks up, until one switch is left; one rank needs none."""
    at_least_one(ranks=world_size, radix=radix - 1)
    levels, below, free = [], np.arange(world_size), world_size
    while below.size > 1:
        parent = free + np.arange(below.size) // radix
        levels.append((below, parent))
        below = np.unique(parent)
        free += below.size
    return levels


def in_switches(
    collective: str, algorithm: str, world_size: int, parts: Sequence[Rows], chunk_bytes: Int64, root: int = 0
) -> Schedule:
    """The schedule of rows whose switches are numbered with gaps; a switch keeps everything in scratch."""
    ends = np.concatenate([np.zeros(0, np.int64), *(part[side] for part in parts for side in ("src", "dst"))])
    used = np.unique(ends[ends >= world_size])

    def numbered(endpoint: Int64) -> Int64:
        return np.where(endpoint < world_size, endpoint, world_size + np.searchsorted(used, endpoint))

    parts = [part | {side: numbered(part[side]) for side in ("src", "dst")} for part in parts]
    s = assemble(collective, algorithm, world_size, parts, chunk_bytes, switches=used.size, root=root)
    return s.edit(
        src_buffer=np.where(s.src < world_size, s.src_buffer, Buffer.SCRATCH),
        dst_buffer=np.where(s.dst < world_size, s.dst_buffer, Buffer.SCRATCH),
    )


def _levels(world_size: int, radix: int, switches: SwitchTree | None) -> Levels:
    if switches is None or world_size == 1:
        return switch_tree(world_size, radix)
    return switches(np.arange(world_size))


def _path(levels: Levels, root: int) -> list[Int64]:
    """The root and the switches above it, one array of one endpoint each."""
    path = [np.array([root])]
    for child, parent in levels:
        above = parent[child == path[-1]]
        path += [above] if above.size else []
    return path


def _up(step: int, child: Int64, parent: Int64, op: Op = Op.REDUCE) -> Rows:
    return rows(step, child, parent, 0, op=op)


def _down(step: int, child: Int64, parent: Int64) -> Rows:
    return rows(step, parent, child, 0)
