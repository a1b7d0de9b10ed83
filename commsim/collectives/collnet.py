"""CollNet: NCCL's two ways to let the switches of a network add: from a head per local rank, or from one per node.

The network is one switch, endpoint world_size, unless a `SwitchTree` gives the switches above the heads.
"""

from __future__ import annotations

import numpy as np

from commsim.collectives.chain import chain_broadcast, chain_reduce
from commsim.collectives.grid import node_grid
from commsim.collectives.rows import Int64, blocks, mirror, rows
from commsim.collectives.schedule import Op, Schedule
from commsim.collectives.sharp import Levels, SwitchTree, in_switches


def collnet_direct_all_reduce(
    world_size: int,
    nbytes: int,
    ranks_per_node: int | None = None,
    *,
    switches: SwitchTree | None = None,
    itemsize: int = 1,
) -> Schedule:
    """CollNetDirect: local rank j adds share j of its node, the network switch adds over nodes, and back.

    A rank sends 2 (g-1)/g * nbytes in its node of g ranks and nbytes / g to the network.

    >>> collnet_direct_all_reduce(8, nbytes=800, ranks_per_node=4).sent_bytes()[:4]
    array([1400, 1400, 1400, 1400])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    first = np.arange(nodes)[:, None, None] * local
    i, j = _others(local)
    trees = _above(np.arange(nodes)[None, :] * local + np.arange(local)[:, None], world_size, switches)
    deepest = max(map(len, trees))
    parts = [rows(0, first + i, first + j, j, op=Op.REDUCE)]
    for share, levels in enumerate(trees):
        for k, (child, parent) in enumerate(levels):
            parts.append(rows(1 + k, child, parent, share, op=Op.REDUCE))
            parts.append(rows(2 * deepest - k, parent, child, share))
    parts.append(rows(1 + 2 * deepest, first + j, first + i, j))
    return in_switches("all_reduce", "collnet_direct", world_size, parts, blocks(nbytes, local, itemsize))


def collnet_direct_reduce_scatter(
    world_size: int,
    nbytes: int,
    ranks_per_node: int | None = None,
    *,
    switches: SwitchTree | None = None,
    itemsize: int = 1,
) -> Schedule:
    """CollNetDirect: local rank j adds the blocks of all local ranks j in its node, the switch adds over nodes."""
    nodes, local = node_grid(world_size, ranks_per_node)
    first = np.arange(nodes)[:, None, None] * local
    everywhere = np.arange(nodes) * local
    i, j = (side[:, None] for side in _others(local))
    trees = _above(everywhere[None, :] + np.arange(local)[:, None], world_size, switches)
    deepest = max(map(len, trees))
    parts = [rows(0, first + i, first + j, everywhere + j, op=Op.REDUCE)]
    for share, levels in enumerate(trees):
        below = {int(rank): np.array([rank]) for rank in everywhere + share}
        for k, (child, parent) in enumerate(levels):
            parts.append(rows(1 + k, child[:, None], parent[:, None], everywhere + share, op=Op.REDUCE))
            for one, above in zip(child.tolist(), parent.tolist(), strict=True):
                parts.append(rows(2 * deepest - k, above, one, below[one]))
                below[above] = np.append(below.get(above, np.zeros(0, np.int64)), below[one])
    return in_switches("reduce_scatter", "collnet_direct", world_size, parts, blocks(nbytes, world_size, itemsize))


collnet_direct_all_gather = mirror(collnet_direct_reduce_scatter, "all_gather", Op.COPY)


def collnet_chain_all_reduce(
    world_size: int,
    nbytes: int,
    ranks_per_node: int | None = None,
    *,
    switches: SwitchTree | None = None,
    itemsize: int = 1,
) -> Schedule:
    """CollNetChain: a chain in each node to its local rank 0, the network switch adds over nodes, and back.

    >>> collnet_chain_all_reduce(8, nbytes=100, ranks_per_node=4).sent_bytes()
    array([200, 200, 200, 100, 200, 200, 200, 100, 200])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    first = np.arange(nodes)[:, None] * local
    up = chain_reduce(local, 1, order=np.arange(local)[::-1])
    down = chain_broadcast(local, 1)
    (levels,) = _above(first.T, world_size, switches)
    depth = len(levels)
    parts = [rows(up.step, first + up.src, first + up.dst, 0, op=Op.REDUCE)]
    for k, (child, parent) in enumerate(levels):
        parts.append(rows(up.steps + k, child, parent, 0, op=Op.REDUCE))
        parts.append(rows(up.steps + 2 * depth - 1 - k, parent, child, 0))
    parts.append(rows(up.steps + 2 * depth + down.step, first + down.src, first + down.dst, 0))
    return in_switches("all_reduce", "collnet_chain", world_size, parts, blocks(nbytes, 1, itemsize))


def _above(heads: Int64, world_size: int, switches: SwitchTree | None) -> list[Levels]:
    """The levels above each row of heads."""
    return [[(each, np.full(each.size, world_size))] if switches is None else switches(each) for each in heads]


def _others(local: int) -> tuple[Int64, Int64]:
    """All ordered pairs (i, j) of different local ranks, neighbours first, so that no port gets all at once."""
    i, apart = np.tile(np.arange(local), local - 1), np.repeat(np.arange(1, local), local)
    return i, (i + apart) % local
