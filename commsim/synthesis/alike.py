"""Nodes that can change places with each other: what holds for the ranks of one holds for those of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commsim.synthesis.network import FlowNetwork
from commsim.topology.kinds import Int64


def node_sorts(network: FlowNetwork, weights: Sequence[int] | None = None) -> Int64:
    """The sort of each vertex's node, (V,), -1 of vertices of no node.

    Nodes of a sort have the same links inside and to the same switches, and ranks of the same weights.
    To exchange two such nodes changes nothing, whatever there is beside them.
    """
    node = network.node
    sort = np.full(network.vertices, -1, np.int64)
    held = np.flatnonzero(node >= 0)
    if not held.size:
        return sort
    order = held[np.argsort(node[held], kind="stable")]
    numbers, first, counts = np.unique(node[order], return_index=True, return_counts=True)
    place = np.full(network.vertices, -1, np.int64)  # of a vertex in its node
    place[order] = np.arange(order.size) - np.repeat(first, counts)
    a, b = node[network.tail], node[network.head]
    of_edge = np.maximum(a, b)
    mixed = (a >= 0) & (b >= 0) & (a != b)  # a link from node to node: both are like no other
    own = np.full(network.vertices, 0, np.int64)
    own[network.ranks] = 1 if weights is None else 1 + np.asarray(weights, np.int64)
    ends = [np.where(n >= 0, place[v], -2 - v) for n, v in ((a, network.tail), (b, network.head))]
    columns = np.column_stack([of_edge, *ends, network.capacity, np.where(mixed, network.tail, -1)])[of_edge >= 0]
    columns = columns[np.lexsort(columns.T[::-1])]
    bounds = np.searchsorted(columns[:, 0], [*numbers, numbers[-1] + 1])
    seen: dict[bytes, int] = {}
    for k, number in enumerate(numbers.tolist()):
        inside = order[first[k] : first[k] + counts[k]]
        key = columns[bounds[k] : bounds[k + 1], 1:].tobytes() + own[inside].tobytes() + network.kind[inside].tobytes()
        sort[inside] = seen.setdefault(key, number)
    return sort


def one_of_each(network: FlowNetwork, sinks: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Of some ranks those of one node of each sort, and all that are in no node."""
    sort = node_sorts(network, weights)[network.ranks]
    node = network.node[network.ranks]
    return [r for r in sinks if sort[r] < 0 or sort[r] == node[r]]
