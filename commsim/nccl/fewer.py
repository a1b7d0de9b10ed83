"""Trees of fewer nodes that stand for those of many: what is slower than the rest has its place there too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commsim.nccl.node_ways import ROUNDING, Edges, NodeWays
from commsim.nccl.nodes import Nodes
from commsim.topology.kinds import Int64


def fewer(nodes: Nodes, count: int, *, healthy: bool = False) -> Nodes:
    """A communicator of so many of the nodes whose trees stand for those of all, or for those of the `healthy` ones.

    What is slower than the rest, a node or a way from it, has as many neighbours in the trees as it has in those of
    all, and is about as high; the others are of the kind that most nodes are of.
    """
    from commsim.nccl.streams import Streams

    comm, ways, m = nodes.comm, nodes.ways, nodes.count
    usual = int(np.bincount(comm.kind).argmax())
    channels = max(1, nodes.system.coll_channels)
    share, _ = ways.trees.share(channels)
    left = np.ones(m)
    np.minimum.at(left, ways.trees.src, share)
    slow = np.flatnonzero((comm.kind != usual) | (np.minimum(ways.ports, left) < 1.0 - ROUNDING))
    slow = slow[np.argsort(np.minimum(ways.ports, left)[slow], kind="stable")][: 0 if healthy else count // 4]
    spare = np.flatnonzero(comm.kind == usual)[:count]
    chosen = np.resize(spare, count)
    theirs, ours = _places(m)[:, slow], _places(count)
    free = np.ones(count, bool)
    for k, node in enumerate(slow.tolist()):
        unlike = np.abs(ours - theirs[:, [k]])
        far = count * unlike[:2].sum(axis=0) + unlike[2:].sum(axis=0) + np.where(free, 0, count * count)
        place = int(far.argmin())
        chosen[place], free[place] = node, False
    part = replace(comm, nodes=comm.nodes[chosen], kind=comm.kind[chosen])
    both = NodeWays(replace(part, whole=True), ways.rings, ways.tree_graphs, ways.own_nics)
    src, dst = both.tree_ends
    ports, of = np.where(free, 1.0, ways.ports[chosen]), np.where(free, 1.0, left[chosen])
    streams_of = Streams(of[src][:, None], np.full((src.size, 1), -1, np.int64))
    return replace(nodes, comm=part, ways=replace(both, known=(Edges(src, dst, streams_of), ports)))


def _places(nodes: int) -> Int64:
    """How many neighbours each node has in the first and in the second tree, and how high it is there, (4, nodes)."""
    from commsim.collectives.tree import double_binary_tree

    parent = double_binary_tree(nodes).parent
    out = np.zeros((4, nodes), np.int64)
    for tree, above in enumerate(parent):
        inner = np.flatnonzero(above >= 0)
        np.add.at(out[tree], inner, 1)
        np.add.at(out[tree], above[inner], 1)
        for _ in range(nodes.bit_length()):
            np.maximum.at(out[2 + tree], above[inner], out[2 + tree, inner] + 1)
    return out
