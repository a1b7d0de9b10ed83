"""NVLink SHARP (NVLS): collectives in which the NVSwitch of a node adds and multicasts.

Switches are the endpoints from world_size on. A slot of a switch starts at zero, so that ranks reduce into it. One
row leaves a switch for each rank that a multicast reaches, so a switch's sent bytes count copies, while its port
towards each rank carries the array once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from commsim.collectives.grid import node_grid
from commsim.collectives.pairwise import nccl_rounds
from commsim.collectives.rows import Rows, assemble, blocks, rows, spread
from commsim.collectives.schedule import Buffer, Op, Schedule, at_least_one, split_evenly
from commsim.collectives.tree import along_trees, double_binary_tree

_AHEAD = 3
"""Pieces of its block that a rank has asked for before it has stored the first of them."""


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


def _half(
    collective: str, moves: Callable[[int], list[Rows]], world_size: int, nbytes: int, *, itemsize: int = 1
) -> Schedule:
    frame = blocks(nbytes, world_size, itemsize)
    return assemble(collective, "nvls", world_size, moves(world_size), frame, switches=1)


def nvls_all_reduce(world_size: int, nbytes: int, channels: int = 1, chunks: int = 1, *, itemsize: int = 1) -> Schedule:
    """NVLS: rank r reads block r summed by the switch and has the switch store it at all ranks.

    A rank sends (1 + 1/n) * nbytes and receives as much (multimem.ld_reduce serves n readers, multimem.st goes to
    all ranks, the writer included; NCCL 2.30.7 src/device/all_reduce.h). A rank loads a piece of its block once it has
    stored the third piece before, as a kernel's loop over pieces does; otherwise all loads would go before all stores.

    >>> nvls_all_reduce(4, nbytes=400).sent_bytes()
    array([ 500,  500,  500,  500, 2000])
    """
    parts = [*_load_sums(world_size), *_store_everywhere(world_size, 2)]
    base = assemble("all_reduce", "nvls", world_size, parts, blocks(nbytes, world_size, itemsize), switches=1)
    s = spread(base, channels, chunks, itemsize=itemsize)
    loads = np.flatnonzero((s.dst == world_size) & (s.op == Op.REDUCE))
    loads = loads[s.src_chunk[loads] % chunks >= _AHEAD]
    store = np.zeros(s.chunk_bytes.size, np.int64)
    stores = np.flatnonzero((s.dst == world_size) & (s.op == Op.COPY))
    store[s.src_chunk[stores]] = stores
    return s.edit(after=np.stack([store[s.src_chunk[loads] - _AHEAD], loads], axis=1))


nvls_reduce_scatter = partial(_half, "reduce_scatter", _load_sums)
"""The first half of the all-reduce: every rank reads its block summed by the switch."""


nvls_all_gather = partial(_half, "all_gather", _store_everywhere)
"""The second half: every rank has its block stored at all ranks by the switch."""


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
    )
    between |= {name: np.repeat(getattr(trees, name).astype(np.int64), local) for name in ("op", "channel")}
    parts = [
        rows(0, rank, switch, every, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH),
        rows(1, switch, rank, mine, src_buffer=Buffer.SCRATCH),
        between,
        rows(down - 1, rank, switch, mine, dst_buffer=Buffer.SCRATCH),
        rows(down, switch, rank, every, src_buffer=Buffer.SCRATCH),
    ]
    sizes = split_evenly(blocks(nbytes, local, itemsize) // itemsize, 2).reshape(-1) * itemsize
    return assemble("all_reduce", "nvls_tree", world_size, parts, sizes, switches=nodes)


def nvls_one_shot_all_reduce(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """Every rank stores its whole array once, and the switch spreads it to the others, which add: AllReduce_AGxLLMC_R.

    NCCL 2.27 and later, on symmetric memory. What comes back to the rank that stored it is left out.

    >>> nvls_one_shot_all_reduce(4, nbytes=100).received_bytes()
    array([300, 300, 300, 300, 400])
    """
    at_least_one(ranks=world_size)
    rank, others = np.arange(world_size), nccl_rounds(world_size)[1:]
    parts = [
        rows(0, rank, world_size, 0, to=1 + rank, dst_buffer=Buffer.SCRATCH),
        rows(1, world_size, others, 1 + rank, to=0, op=Op.REDUCE, src_buffer=Buffer.SCRATCH),
    ]
    sizes, kept = np.repeat(blocks(nbytes, 1, itemsize), 1 + world_size), {"scratch_chunks": world_size}
    return assemble("all_reduce", "nvls_one_shot", world_size, parts, sizes, switches=1, **kept)


def nvls_rail_ring_all_gather(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """A ring over the nodes along each rail; a node's switch spreads what has arrived: AllGather_RailRing_LsaSTMC.

    NCCL 2.29.7 and later, on symmetric memory, where GPUs send over the network themselves.

    >>> nvls_rail_ring_all_gather(8, nbytes=800, ranks_per_node=4).sent_bytes()
    array([ 300,  300,  300,  300,  300,  300,  300,  300, 3200, 3200])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    step, node, rail = np.arange(nodes)[:, None, None], np.arange(nodes)[:, None], np.arange(local)
    rank, switch = node * local + rail, world_size + node
    block = (node - step) % nodes * local + rail
    after, every = step[..., None] + 1, node[..., None] * local + rail
    parts = [
        rows(step[:-1], rank, (node + 1) % nodes * local + rail, block[:-1]),
        rows(step, rank, switch, block, dst_buffer=Buffer.SCRATCH),
        rows(after, switch[..., None], every, block[..., None], src_buffer=Buffer.SCRATCH),
    ]
    frame = blocks(nbytes, world_size, itemsize)
    return assemble("all_gather", "nvls_rail_ring", world_size, parts, frame, switches=nodes)


def nvls_rail_direct_reduce_scatter(
    world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """A node's switch adds, then sums go to their owners along the rails at once: ReduceScatter_RailA2A_LsaLDMC.

    NCCL 2.29.7 and later, on symmetric memory, where GPUs send over the network themselves.

    >>> nvls_rail_direct_reduce_scatter(8, nbytes=800, ranks_per_node=4).received_bytes()
    array([ 300,  300,  300,  300,  300,  300,  300,  300, 3200, 3200])
    """
    nodes, local = node_grid(world_size, ranks_per_node)
    node, rail, turn = np.arange(nodes)[:, None], np.arange(local), np.arange(nodes)[:, None, None]
    rank, switch = node * local + rail, world_size + node
    target = (node + turn[1:]) % nodes * local + rail
    every = np.arange(world_size)
    parts = [
        rows(0, rank[..., None], switch[..., None], every, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH),
        rows(1, switch, rank, turn * local + rail, src_buffer=Buffer.SCRATCH),
        rows(2, rank, target, target, op=Op.REDUCE),
    ]
    frame = blocks(nbytes, world_size, itemsize)
    return assemble("reduce_scatter", "nvls_rail_direct", world_size, parts, frame, switches=nodes)
