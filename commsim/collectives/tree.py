"""Trees: the double binary tree in NCCL's shape; reduce, broadcast and all-reduce along any tree.

A tree is an array of parents, -1 at the root. Pieces of a channel's data follow each other up and down the
tree: a rank of height h sends piece k up in step h + k and, at depth d of a tree of height H, piece k down
in step H + d + k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Buffer, Int32, Int64, Op, Schedule, at_least_one, elements, split_evenly
from commsim.errors import ScheduleError

ATTACH: dict[str, tuple[int, int, int]] = {
    "tree": (0, 0, 0),
    "balanced_tree": (0, 1, 0),
    "split_tree": (0, 1, 1),
}
"""Place in a node's chain that talks to (parent, first child, second child), by NCCL's graph pattern:
patterns 3, 1 and 2 (NCCL 2.30.7 src/graph/connect.cc:54-60)."""


@dataclass(frozen=True, eq=False)
class DoubleTree:
    """Two complementary binary trees over nodes.

    ``parent`` (2, nodes) and ``children`` (2, nodes, 2) are node numbers, -1 where there is none.
    """

    parent: Int32
    children: Int32


def double_binary_tree(nodes: int) -> DoubleTree:
    """NCCL's two trees over ``nodes`` nodes: a node is interior in at most one of them, but for the ends.

    Node r != 0 with lowest set bit b hangs below (r ^ b) | 2b, or r ^ b where that is no node; node 0 is
    the root. The second tree is the mirror image for an even number of nodes and is shifted by one for an
    odd number. Source: NCCL 2.30.7 src/graph/trees.cc:32-112.

    >>> double_binary_tree(4).parent
    array([[-1,  2,  0,  2],
           [ 1,  3,  1, -1]], dtype=int32)
    """
    at_least_one(nodes=nodes)
    r = np.arange(nodes)
    bit = r & -r
    up = np.where((r ^ bit) | (bit << 1) < nodes, (r ^ bit) | (bit << 1), r ^ bit)
    up[0] = -1
    # The k-th node of the second tree plays the part of node number other[k] in the first.
    other = nodes - 1 - r if nodes % 2 == 0 else (r - 1) % nodes
    back = np.argsort(other)
    second = np.where(up[other] < 0, -1, back[up[other]])
    children = np.full((2, nodes, 2), -1, np.int32)
    child = r[1:]
    # A child with a smaller number than its parent is the first child (ncclGetBtree's parentChildType).
    which = (child > up[child]).astype(np.int64)
    children[0, up[child], which] = child
    children[1, back[up[child]], which] = back[child]
    return DoubleTree(np.stack([up, second]).astype(np.int32), children)


def rank_trees(
    world_size: int,
    ranks_per_node: int | Int64,
    channels: int,
    pattern: str = "balanced_tree",
    chain: npt.ArrayLike | None = None,
) -> Int32:
    """Parent of each rank, (channels, world_size): a chain in each node, a binary tree over nodes.

    The first half of the channels uses the first tree, the others the second. ``ranks_per_node`` is one number, or that
    of each node. ``chain`` holds the local ranks in search order, (ranks_per_node,) or (channels, ranks_per_node), for
    nodes that are alike; the end at place 0 is the head of the chain. ``pattern`` says which places talk to other nodes
    (a chain of one rank has place 0 only).
    """
    many = np.atleast_1d(np.asarray(ranks_per_node, np.int64))
    at_least_one(world_size=world_size, ranks_per_node=int(many.min()), channels=channels)
    if many.size == 1 and world_size % many[0]:
        raise ScheduleError(f"{world_size} ranks are no whole number of nodes of {many[0]} ranks")
    sizes = np.full(world_size // many[0], many[0]) if many.size == 1 else many
    if sizes.sum() != world_size:
        raise ScheduleError(f"the nodes have {sizes.sum()} ranks, expected {world_size}")
    if pattern not in ATTACH:
        raise ScheduleError(f"unknown tree pattern {pattern!r}, expected one of {', '.join(ATTACH)}")
    first, rank = np.cumsum(sizes) - sizes, np.arange(world_size)
    node = np.repeat(np.arange(sizes.size), sizes)
    order = np.broadcast_to(rank, (channels, world_size))  # by channel, the ranks along the chains of all nodes
    if chain is not None:
        order = first[node] + _chains(chain, channels, sizes)[:, rank - first[node]]
    trees = double_binary_tree(sizes.size)
    parent = np.full((channels, world_size), -1, np.int32)
    follows = np.flatnonzero(rank != first[node])
    for c, along in enumerate(order):
        parent[c, along[follows]] = along[follows - 1]
        tree = 0 if 2 * c < channels else 1
        for child_number, place in enumerate(ATTACH[pattern][1:]):
            child = trees.children[tree, :, child_number]
            above = np.flatnonzero(child >= 0)
            head = first[child[above]] + np.minimum(ATTACH[pattern][0], sizes[child[above]] - 1)
            parent[c, along[head]] = along[first[above] + np.minimum(place, sizes[above] - 1)]
    return parent


def _chains(chain: npt.ArrayLike, channels: int, sizes: Int64) -> Int64:
    """Local ranks of each channel's chain, (channels, ranks per node), of nodes that are alike."""
    local, n = np.asarray(chain), int(sizes[0])
    if (sizes != n).any() or local.shape not in {(n,), (channels, n)}:
        raise ScheduleError(f"chain has the shape {local.shape}, expected ({n},) or per channel")
    local = np.broadcast_to(local, (channels, n))
    if (np.sort(local, axis=1) != np.arange(n)).any():
        raise ScheduleError(f"chain does not name each local rank of 0..{n - 1} once")
    return local


def tree_all_reduce(
    world_size: int,
    nbytes: int,
    channels: int = 2,
    ranks_per_node: int | Int64 | None = None,
    chunks: int = 1,
    *,
    itemsize: int = 1,
    pattern: str = "balanced_tree",
    chain: npt.ArrayLike | None = None,
) -> Schedule:
    """Double-binary-tree all-reduce over nodes with a chain in each node, as NCCL's Tree.

    One node is one chain. Channels share the data evenly and each cuts its share into ``chunks`` pieces
    that follow each other; see ``rank_trees`` for ``pattern`` and ``chain``. All ranks together send 2(n-1)
    * nbytes.

    >>> tree_all_reduce(4, nbytes=1000, ranks_per_node=1).sent_bytes()
    array([1000, 2000, 2000, 1000])
    """
    ppn = world_size if ranks_per_node is None else ranks_per_node
    parent = rank_trees(world_size, ppn, channels, pattern, chain)
    return along_trees("all_reduce", "tree", parent, nbytes, chunks, itemsize=itemsize)


def along_trees(
    collective: str, algorithm: str, parent: Int32, nbytes: int, chunks: int = 1, *, itemsize: int = 1
) -> Schedule:
    """A reduce, broadcast or all_reduce along one tree per channel, ``parent`` (channels, ranks).

    Channels share the data evenly and each cuts its share into ``chunks`` pieces.
    """
    channels, n = parent.shape
    at_least_one(chunks=chunks)
    depth, height = _depths_and_heights(parent)
    chunk_bytes = split_evenly(split_evenly(elements(nbytes, itemsize), channels), chunks) * itemsize
    flat_channel, flat_child = np.nonzero(parent >= 0)
    channel, child = flat_channel.reshape(channels, 1, n - 1), flat_child.reshape(channels, 1, n - 1)
    above = parent[channel, child]
    piece = np.arange(chunks)[:, None]
    up = (Op.REDUCE, child, above, height[channel, child] + piece)
    turn = height.max(axis=1)[:, None, None] if collective == "all_reduce" else 0
    down = (Op.COPY, above, child, turn + depth[channel, above] + piece)
    passes: list[tuple[Any, ...]] = []
    passes += [up] * (collective in {"all_reduce", "reduce"}) + [down] * (collective in {"all_reduce", "broadcast"})
    if not passes:
        raise ScheduleError(f"no {collective} along trees, expected all_reduce, reduce or broadcast")
    shape = (channels, chunks, n - 1)

    def column(*values: Any) -> npt.NDArray[Any]:
        return np.concatenate([np.broadcast_to(v, shape).reshape(-1) for v in values])

    ops, sources, targets, steps = (column(*values) for values in zip(*passes, strict=True))
    order = np.argsort(steps, kind="stable")
    chunk = np.tile(column(channel * chunks + piece), len(passes))[order].astype(np.int32)
    buffer = np.full(order.size, Buffer.OUTPUT, np.uint8)
    return Schedule(
        collective=collective,
        algorithm=algorithm,
        world_size=n,
        endpoints=n,
        op=ops[order],
        src=sources[order],
        dst=targets[order],
        src_buffer=buffer,
        src_chunk=chunk,
        dst_buffer=buffer,
        dst_chunk=chunk,
        step=steps[order],
        channel=np.tile(column(channel), len(passes))[order],
        chunk_bytes=chunk_bytes.reshape(-1),
        root=0 if collective == "all_reduce" else int(np.argmin(parent[0])),
    )


def _depths_and_heights(parent: Int32) -> tuple[Int64, Int64]:
    """Hops to the root and to the deepest rank below, (channels, ranks); each channel must be one tree."""
    channels, n = parent.shape
    if ((parent < 0).sum(axis=1) != 1).any() or (parent >= n).any():
        raise ScheduleError("each channel needs a tree with one root and parents that are ranks")
    rows = np.arange(channels)[:, None]
    depth, above = np.zeros((channels, n), np.int64), parent
    for _ in range(n):
        if not (above >= 0).any():
            break
        depth += above >= 0
        above = np.where(above >= 0, parent[rows, above], -1)
    else:
        raise ScheduleError("the parents of a channel go round in a circle")
    height = np.zeros((channels, n), np.int64)
    for level in range(int(depth.max()), 0, -1):
        channel, rank = np.nonzero(depth == level)
        np.maximum.at(height, (channel, parent[channel, rank]), height[channel, rank] + 1)
    return depth, height
