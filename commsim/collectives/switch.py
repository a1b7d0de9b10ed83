"""Collectives with endpoints that add and multicast: NVLink SHARP (NVLS), CollNet, trees of switches.

Switches are the endpoints from world_size on. A slot of a switch starts at zero, so that ranks reduce into it. One
row leaves a switch for each rank that a multicast reaches, so a switch's sent bytes count copies, while its port
towards each rank carries the array once.
"""

from __future__ import annotations

import numpy as np

from commsim.collectives.chain import chain_broadcast, chain_reduce
from commsim.collectives.grid import node_grid
from commsim.collectives.rows import Int64, Rows, assemble, blocks, mirrored, rows
from commsim.collectives.schedule import Buffer, Op, Schedule, at_least_one, split_evenly
from commsim.collectives.tree import along_trees, double_binary_tree


def nvls_all_reduce(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """NVLS: rank r reads block r summed by the switch and has the switch store it at all ranks.

    A rank sends (1 + 1/n) * nbytes and receives as much (multimem.ld_reduce serves n readers, multimem.st goes to
    all ranks, the writer included; NCCL 2.30.7 src/device/all_reduce.h).

    >>> nvls_all_reduce(4, nbytes=400).sent_bytes()
    array([ 500,  500,  500,  500, 2000])
    """
    parts = [*_load_sums(world_size), *_store_everywhere(world_size, 2)]
    return assemble("all_reduce", "nvls", world_size, parts, blocks(nbytes, world_size, itemsize), switches=1)


def nvls_reduce_scatter(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """The first half of the all-reduce: every rank reads its block summed by the switch.

    >>> nvls_reduce_scatter(4, nbytes=400).received_bytes()
    array([ 100,  100,  100,  100, 1600])
    """
    parts = _load_sums(world_size)
    return assemble("reduce_scatter", "nvls", world_size, parts, blocks(nbytes, world_size, itemsize), switches=1)


def nvls_all_gather(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """The second half: every rank has its block stored at all ranks by the switch.

    >>> nvls_all_gather(4, nbytes=400).sent_bytes()
    array([ 100,  100,  100,  100, 1600])
    """
    parts = _store_everywhere(world_size)
    return assemble("all_gather", "nvls", world_size, parts, blocks(nbytes, world_size, itemsize), switches=1)


def nvls_tree_all_reduce(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """NVLSTree: NVLS in each node, a double binary tree over nodes for each local rank's share.

    Node m has the switch world_size + m. Half of each share goes along each of NCCL's two trees.

    >>> nvls_tree_all_reduce(8, nbytes=800, ranks_per_node=4).sent_bytes()[:4]
    array([1200, 1200, 1200, 1200])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    trees = along_trees("all_reduce", "tree", double_binary_tree(nodes).parent, 2)
    node, head, half = np.arange(nodes)[:, None, None], np.arange(local)[:, None], np.arange(2)
    rank, switch, mine = node * local + head, world_size + node, head * 2 + half
    every, down = np.arange(2 * local), 3 + trees.steps
    rail = np.arange(local)
    between = rows(
        2 + trees.step[:, None],
        trees.src[:, None] * local + rail,
        trees.dst[:, None] * local + rail,
        rail * 2 + trees.src_chunk[:, None],
        channel=trees.channel[:, None],
    )
    between["op"] = np.repeat(trees.op.astype(np.int64), local)
    parts = [
        rows(0, rank, switch, every, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH),
        rows(1, switch, rank, mine, src_buffer=Buffer.SCRATCH),
        between,
        rows(down - 1, rank, switch, mine, dst_buffer=Buffer.SCRATCH),
        rows(down, switch, rank, every, src_buffer=Buffer.SCRATCH),
    ]
    sizes = split_evenly(blocks(nbytes, local, itemsize) // itemsize, 2).reshape(-1) * itemsize
    return assemble("all_reduce", "nvls_tree", world_size, parts, sizes, switches=nodes)


def collnet_direct_all_reduce(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """CollNetDirect: local rank j adds share j of its node, the network switch adds over nodes, and back.

    A rank sends 2 (g-1)/g * nbytes in its node of g ranks and nbytes / g to the network.

    >>> collnet_direct_all_reduce(8, nbytes=800, ranks_per_node=4).sent_bytes()[:4]
    array([1400, 1400, 1400, 1400])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    share = np.arange(local)
    first = np.arange(nodes)[:, None, None] * local
    i, j = _others(local)
    parts = [
        rows(0, first + i, first + j, j, op=Op.REDUCE),
        rows(1, first + share, world_size, share, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH),
        rows(2, world_size, first + share, share, src_buffer=Buffer.SCRATCH),
        rows(3, first + j, first + i, j),
    ]
    return assemble("all_reduce", "collnet_direct", world_size, parts, blocks(nbytes, local, itemsize), switches=1)


def collnet_direct_reduce_scatter(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """CollNetDirect: local rank j adds the blocks of all local ranks j in its node, the switch adds over nodes."""
    nodes, local = node_grid(world_size, ranks_per_node)
    first = np.arange(nodes)[:, None, None] * local
    everywhere = np.arange(nodes) * local
    i, j = (side[:, None] for side in _others(local))
    share = np.arange(local)[:, None]
    rank = np.arange(world_size)
    parts = [
        rows(0, first + i, first + j, everywhere + j, op=Op.REDUCE),
        rows(1, first + share, world_size, everywhere + share, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH),
        rows(2, world_size, rank, rank, src_buffer=Buffer.SCRATCH),
    ]
    frame = blocks(nbytes, world_size, itemsize)
    return assemble("reduce_scatter", "collnet_direct", world_size, parts, frame, switches=1)


def collnet_direct_all_gather(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """CollNetDirect all-gather: the mirror image of the reduce-scatter."""
    forth = collnet_direct_reduce_scatter(world_size, nbytes, ranks_per_node, itemsize=itemsize)
    return mirrored(forth, "all_gather", op=Op.COPY)


def collnet_chain_all_reduce(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """CollNetChain: a chain in each node to its local rank 0, the network switch adds over nodes, and back.

    >>> collnet_chain_all_reduce(8, nbytes=100, ranks_per_node=4).sent_bytes()
    array([200, 200, 200, 100, 200, 200, 200, 100, 200])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    first = np.arange(nodes)[:, None] * local
    up = chain_reduce(local, 1, order=np.arange(local)[::-1])
    down = chain_broadcast(local, 1)
    heads = first[:, 0]
    parts = [
        rows(up.step, first + up.src, first + up.dst, 0, op=Op.REDUCE),
        rows(up.steps, heads, world_size, 0, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH),
        rows(up.steps + 1, world_size, heads, 0, src_buffer=Buffer.SCRATCH),
        rows(up.steps + 2 + down.step, first + down.src, first + down.dst, 0),
    ]
    return assemble("all_reduce", "collnet_chain", world_size, parts, blocks(nbytes, 1, itemsize), switches=1)


def sharp_all_reduce(world_size: int, nbytes: int, radix: int = 8, *, itemsize: int = 1) -> Schedule:
    """A tree of switches with ``radix`` ports down: sums up to the top, the result down; nbytes out of and into a rank.

    >>> sharp_all_reduce(16, nbytes=100).sent_bytes()
    array([100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100,
           100, 100, 100, 900, 900, 200])
    """
    levels = switch_tree(world_size, radix)
    parts = [_up(k, *level) for k, level in enumerate(levels)]
    parts += [_down(len(levels) + k, *level) for k, level in enumerate(levels[::-1])]
    return _sharp("all_reduce", world_size, nbytes, levels, parts, itemsize)


def sharp_barrier(world_size: int, nbytes: int = 0, radix: int = 8, *, itemsize: int = 1) -> Schedule:
    """A barrier by the same tree of switches."""
    return sharp_all_reduce(world_size, nbytes, radix, itemsize=itemsize).edit(collective="barrier")


def sharp_reduce(world_size: int, nbytes: int, root: int = 0, radix: int = 8, *, itemsize: int = 1) -> Schedule:
    """Sums up to the top switch, the result down to the root alone."""
    levels = switch_tree(world_size, radix)
    parts = [_up(k, *level) for k, level in enumerate(levels)]
    path = _path(levels, root)
    parts += [_down(len(levels) + k, path[-k - 2], path[-k - 1]) for k in range(len(levels))]
    return _sharp("reduce", world_size, nbytes, levels, parts, itemsize, root)


def sharp_broadcast(world_size: int, nbytes: int, root: int = 0, radix: int = 8, *, itemsize: int = 1) -> Schedule:
    """From the root up to the top switch, and down wherever it has not been."""
    levels = switch_tree(world_size, radix)
    path = _path(levels, root)
    parts = [_up(k, path[k], path[k + 1]) for k in range(len(levels))]
    parts = [part | {"op": np.full_like(part["op"], Op.COPY)} for part in parts]
    for k, (child, parent) in enumerate(levels[::-1]):
        new = ~np.isin(child, np.concatenate(path))
        parts.append(_down(len(levels) + k, child[new], parent[new]))
    return _sharp("broadcast", world_size, nbytes, levels, parts, itemsize, root)


def switch_tree(world_size: int, radix: int) -> list[tuple[Int64, Int64]]:
    """(children, their parents) per level from the ranks up, until one switch is left; one rank needs none."""
    at_least_one(ranks=world_size, radix=radix - 1)
    levels, below, free = [], np.arange(world_size), world_size
    while below.size > 1:
        parent = free + np.arange(below.size) // radix
        levels.append((below, parent))
        below = np.unique(parent)
        free += below.size
    return levels


def _sharp(
    collective: str,
    n: int,
    nbytes: int,
    levels: list[tuple[Int64, Int64]],
    parts: list[Rows],
    itemsize: int,
    root: int = 0,
) -> Schedule:
    switches = int(levels[-1][1][0]) + 1 - n if levels else 0
    frame = blocks(nbytes, 1, itemsize)
    s = assemble(collective, "sharp", n, parts, frame, switches=switches, root=root)
    sides = {
        "src_buffer": np.where(s.src < n, Buffer.OUTPUT, Buffer.SCRATCH),
        "dst_buffer": np.where(s.dst < n, Buffer.OUTPUT, Buffer.SCRATCH),
    }
    return s.edit(**sides)


def _path(levels: list[tuple[Int64, Int64]], root: int) -> list[Int64]:
    """The root and the switches above it, one array of one endpoint each."""
    path = [np.array([root])]
    for child, parent in levels:
        path.append(parent[child == path[-1]])
    return path


def _up(step: int, child: Int64, parent: Int64) -> Rows:
    return rows(step, child, parent, 0, op=Op.REDUCE)


def _down(step: int, child: Int64, parent: Int64) -> Rows:
    return rows(step, parent, child, 0)


def _load_sums(n: int) -> list[Rows]:
    at_least_one(ranks=n)
    rank = np.arange(n)
    return [
        rows(0, rank[:, None], n, rank, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH),
        rows(1, n, rank, rank, src_buffer=Buffer.SCRATCH),
    ]


def _store_everywhere(n: int, step: int = 0) -> list[Rows]:
    at_least_one(ranks=n)
    rank = np.arange(n)
    return [
        rows(step, rank, n, rank, dst_buffer=Buffer.SCRATCH),
        rows(step + 1, n, rank[:, None], rank, src_buffer=Buffer.SCRATCH),
    ]


def _others(local: int) -> tuple[Int64, Int64]:
    """All ordered pairs (i, j) of different local ranks, neighbours first, so that no port gets all at once."""
    i, apart = np.tile(np.arange(local), local - 1), np.repeat(np.arange(1, local), local)
    return i, (i + apart) % local
