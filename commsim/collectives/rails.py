"""Two-level forms that are no rings: through rails at once, trees over nodes and then in each node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commsim.collectives.grid import node_grid
from commsim.collectives.knomial import knomial_edges
from commsim.collectives.pairwise import pair_blocks
from commsim.collectives.rows import Rows, assemble, between_ranks, blocks, equal_blocks, mirror, only, rows
from commsim.collectives.schedule import Buffer, Schedule


def hierarchical_broadcast(
    world_size: int, nbytes: int, root: int = 0, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """Binomial tree over nodes along the root's rail, then one in each node: the array enters each node once.

    >>> hierarchical_broadcast(8, nbytes=100, ranks_per_node=4).steps
    3
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    home, rail = divmod(root, local)
    step, parent, child, _ = knomial_edges(nodes, 2).T
    across = rows(step, (parent + home) % nodes * local + rail, (child + home) % nodes * local + rail, 0)
    first = np.arange(nodes)[:, None] * local
    turn, parent, child, _ = knomial_edges(local, 2).T
    inside = rows(turn + nodes.bit_length(), first + (parent + rail) % local, first + (child + rail) % local, 0)
    frame = blocks(nbytes, 1, itemsize)
    return assemble("broadcast", "hierarchical", world_size, [across, inside], frame, root=root)


hierarchical_reduce = mirror(hierarchical_broadcast, "reduce")
"""Binomial tree in each node, then one over nodes along the root's rail."""


def rail_direct_all_gather(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """Every rank sends its block along its rail to all nodes at once, then in its node all that it holds.

    So do NCCL's copy engines over nodes (2.30.7 src/ce_coll.cc, ncclHierCeAllGather).

    >>> rail_direct_all_gather(8, nbytes=800, ranks_per_node=4).steps
    2
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    node, rail, turn = np.arange(nodes)[:, None], np.arange(local), np.arange(1, nodes)[:, None, None]
    rank, origin, peer = node * local + rail, np.arange(nodes)[:, None, None, None], np.arange(1, local)[:, None, None]
    across = rows(0, rank, (node + turn) % nodes * local + rail, rank)
    inside = rows(1, rank, node * local + (rail + peer) % local, origin * local + rail)
    frame = blocks(nbytes, world_size, itemsize)
    return assemble("all_gather", "rail_direct", world_size, [across, inside], frame)


rail_direct_reduce_scatter = mirror(rail_direct_all_gather, "reduce_scatter")
"""Sums in the node, then to their owners along the rails at once (NCCL 2.29.7: ReduceScatter_RailA2A_LsaLD)."""


def hierarchical_all_to_all(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """All-to-all through rails, as NCCL's PXN: first to the rank of the own node on the destination's rail.

    That rank sends on one message per node, with blocks from all ranks of its own. Rounds have one partner each:
    the local ranks in turn, then the nodes in turn.

    >>> hierarchical_all_to_all(8, nbytes=800, ranks_per_node=4).sent_bytes()
    array([1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    frame = equal_blocks(nbytes, world_size, itemsize)
    parts = _through_rails(nodes, local)
    for part in parts:
        origin, target = part.pop("origin"), part.pop("target")
        own, home = part["src"] == origin, part["dst"] == target
        wait = target // local * local + origin % local
        part["src_buffer"] = np.where(own, Buffer.INPUT, Buffer.SCRATCH)
        part["src_chunk"] = np.where(own, target, wait)
        part["dst_buffer"] = np.where(home, Buffer.OUTPUT, Buffer.SCRATCH)
        part["dst_chunk"] = np.where(home, origin, wait)
    return assemble("all_to_all", "hierarchical", world_size, parts, frame, in_place=False)


def hierarchical_all_to_all_v(
    world_size: int,
    nbytes: int,
    ranks_per_node: int | None = None,
    *,
    counts: npt.ArrayLike | None = None,
    itemsize: int = 1,
) -> Schedule:
    """All-to-all of unequal blocks through rails; ``counts`` as for ``pairwise_all_to_all_v``."""
    nodes, local = node_grid(world_size, ranks_per_node)
    frame = pair_blocks(world_size, nbytes, counts, itemsize)
    parts = []
    for part in _through_rails(nodes, local):
        pair = part.pop("origin") * world_size + part.pop("target")
        parts.append(between_ranks(part | {"src_chunk": pair, "dst_chunk": pair}))
    return assemble("all_to_all_v", "hierarchical", world_size, parts, frame)


def _through_rails(nodes: int, local: int) -> list[Rows]:
    """Moves in the node, own blocks included, and along rails, with the rank a block is from and that it is for."""
    here = np.arange(nodes)[:, None, None, None]
    rank = np.arange(local)[:, None, None]
    turn, node = np.arange(local)[:, None], np.arange(nodes)
    # In the node: rank i gives rank i + turn the blocks for that rail at every node.
    rail = (rank + turn) % local
    inside = rows(turn, here * local + rank, here * local + rail, 0)
    origin, target, shape = here * local + rank, node * local + rail, (nodes, local, local, nodes)
    pairs = {"origin": np.broadcast_to(origin, shape).reshape(-1), "target": np.broadcast_to(target, shape).reshape(-1)}
    wide = {
        name: np.broadcast_to(column.reshape(nodes, local, local, 1), shape).reshape(-1)
        for name, column in inside.items()
    }
    # A block that leaves by the rank's own rail needs no move in the node.
    stays = (wide["src"] == wide["dst"]) & (pairs["target"] != wide["src"])
    inside = only(wide | pairs, ~stays)
    # Along rails: rank i gives rank i of the node ``turn`` further on the blocks of all its own node's ranks.
    turn, source = np.arange(1, nodes)[:, None], np.arange(local)
    there = (here + turn) % nodes
    along = rows(local + turn, here * local + rank, there * local + rank, here * local + source)
    origin = along["src_chunk"]
    return [inside, along | {"origin": origin, "target": along["dst"]}]
