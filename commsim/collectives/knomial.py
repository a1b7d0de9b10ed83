"""k-nomial trees (binomial for k = 2): broadcast, reduce, scatter, gather, and what is composed of them.

Ranks count from the root. Those that have the data, multiples of k^(j+1), send to the k - 1 ranks that lie
k^j, 2 k^j, ... further on, one after the other, for j from the top down: ceil(log_k n) (k - 1) steps. The ranks
below a rank are the k^j that follow it, so a scatter sends each child one run of blocks. Source: Thakur,
Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import numpy as np

from commsim.collectives.recursive import recursive_halving_reduce_scatter
from commsim.collectives.ring import ring_all_gather
from commsim.collectives.rows import Int64, assemble, blocks, mirror, rows
from commsim.collectives.schedule import Op, Schedule, at_least_one, then
from commsim.errors import ScheduleError


def knomial_edges(world_size: int, radix: int) -> Int64:
    """Step, parent, child and number of ranks in the child's subtree, counted from the root: (edges, 4)."""
    at_least_one(ranks=world_size)
    if radix < 2:
        raise ScheduleError(f"radix is {radix}, expected at least 2")
    edges, width, step = [np.zeros((0, 4), np.int64)], 1, 0
    while width < world_size:
        width *= radix
    while width > 1:
        holder = np.arange(0, world_size, width)[:, None]
        width //= radix
        digit = np.arange(1, radix)
        parent, child, turn = np.broadcast_arrays(holder, holder + digit * width, step + digit - 1)
        below = np.minimum(width, world_size - child)
        level = np.stack([turn, parent, child, below], axis=-1).reshape(-1, 4)
        edges.append(level[level[:, 2] < world_size])
        step += radix - 1
    table = np.concatenate(edges)
    return table[np.argsort(table[:, 0], kind="stable")]


def knomial_broadcast(world_size: int, nbytes: int, root: int = 0, radix: int = 2, *, itemsize: int = 1) -> Schedule:
    """Broadcast down a k-nomial tree: a rank sends the whole array to each of its children.

    >>> knomial_broadcast(8, nbytes=100).sent_bytes()
    array([300,   0, 100,   0, 200,   0, 100,   0])
    """
    step, parent, child, _ = knomial_edges(world_size, radix).T
    moves = rows(step, (parent + root) % world_size, (child + root) % world_size, 0)
    name = "binomial" if radix == 2 else "knomial"
    return assemble("broadcast", name, world_size, [moves], blocks(nbytes, 1, itemsize), root=root)


knomial_reduce = mirror(knomial_broadcast, "reduce")


def knomial_scatter(world_size: int, nbytes: int, root: int = 0, radix: int = 2, *, itemsize: int = 1) -> Schedule:
    """Scatter down a k-nomial tree: a rank sends each child the blocks of the child's subtree.

    >>> knomial_scatter(8, nbytes=800).sent_bytes()
    array([700,   0, 100,   0, 300,   0, 100,   0])
    """
    edges = knomial_edges(world_size, radix)
    count = edges[:, 3]
    step, parent, child, _ = np.repeat(edges, count, axis=0).T
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    n = world_size
    moves = rows(step, (parent + root) % n, (child + root) % n, (child + place + root) % n)
    name = "binomial" if radix == 2 else "knomial"
    return assemble("scatter", name, n, [moves], blocks(nbytes, n, itemsize), root=root)


knomial_gather = mirror(knomial_scatter, "gather", Op.COPY)


def knomial_all_reduce(world_size: int, nbytes: int, root: int = 0, radix: int = 2, *, itemsize: int = 1) -> Schedule:
    """Reduce to ``root``, then broadcast from it, along k-nomial trees.

    >>> knomial_all_reduce(8, nbytes=100).steps
    6
    """
    up = knomial_reduce(world_size, nbytes, root, radix, itemsize=itemsize)
    down = knomial_broadcast(world_size, nbytes, root, radix, itemsize=itemsize)
    name = "reduce_broadcast" if radix == 2 else "knomial"
    return then(up, down, collective="all_reduce", algorithm=name)


def scatter_all_gather_broadcast(world_size: int, nbytes: int, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """Broadcast of large arrays: binomial scatter, then ring all-gather (van de Geijn).

    The all-gather brings every rank all other blocks, also those that it handed on in the scatter.

    >>> scatter_all_gather_broadcast(4, nbytes=400).sent_bytes()
    array([600, 300, 400, 300])
    """
    out = knomial_scatter(world_size, nbytes, root, itemsize=itemsize)
    round_ = ring_all_gather(world_size, nbytes, itemsize=itemsize)
    return then(out, round_, collective="broadcast", algorithm="scatter_all_gather")


def reduce_scatter_gather_reduce(world_size: int, nbytes: int, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """Reduce of large arrays: recursive-halving reduce-scatter, then binomial gather (Rabenseifner).

    >>> reduce_scatter_gather_reduce(4, nbytes=400).received_bytes()
    array([600, 300, 400, 300])
    """
    sums = recursive_halving_reduce_scatter(world_size, nbytes, itemsize=itemsize)
    home = knomial_gather(world_size, nbytes, root, itemsize=itemsize)
    return then(sums, home, collective="reduce", algorithm="reduce_scatter_gather").edit(root=root)
