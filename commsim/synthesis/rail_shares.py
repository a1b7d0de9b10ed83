"""Over which rails rings of nodes go from node to node, so that no NIC has more to do than the others.

Where a node has lost a NIC, its neighbours send it more over the rails that are left; these are spared on the hops on
their other side and in the ring without that node. A linear program says by how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.synthesis.levels import Levels
from commsim.synthesis.node_rings import Chains
from commsim.topology.kinds import Float64, Int64

_NEAR = 1e-3
"""Of the busiest NIC's load: what it costs to leave the even share of a rail by the whole of it, on all hops."""


@dataclass(frozen=True, eq=False)
class RingPart:
    """A ring of nodes, and nodes beside it that each piece goes to as well, which carry a share of an array."""

    ring: Int64
    leaves: Int64
    share: float


def hop_shares(levels: Levels, parts: list[RingPart], heads: int = 1) -> list[Float64]:
    """Of each ring the share of every rail on every hop, (hops, rails), for an all_reduce.

    Every hop is taken both ways, once by what is added up and once by what is spread. From owners to the ``heads`` of
    chains that are not next to them rails take even turns.
    """
    R, G = levels.rails, levels.G
    even = [_even(levels, part) for part in parts]
    nodes = np.concatenate([np.concatenate([part.ring, part.leaves]) for part in parts])
    if levels.alike(nodes.tolist()):
        return even
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, eye_array, hstack, vstack

    hops = [part.ring.size for part in parts]
    first = np.concatenate([[0], np.cumsum(hops)]) * R
    count, nics = int(first[-1]), levels.gateway.size
    rows, columns, values = [], [], []
    fixed = np.zeros(nics)
    allowed = np.concatenate([share.ravel() > 0 for share in even])
    ports, port_columns, port_values = [], [], []
    sums, sum_columns = [], []
    for k, part in enumerate(parts):
        m, ring = part.ring.size, part.ring
        heads_at = [s for s in np.flatnonzero(Chains.of(m, heads).above == 0).tolist() if s > 1]
        each = part.share * (m - 1 - len(heads_at)) / m
        for far in heads_at:  # not from the node before, over rails in turn
            both = np.minimum(levels.rate[ring], levels.rate[np.roll(ring, -far)])
            own = part.share / m * both / both.sum(axis=1, keepdims=True)
            np.add.at(fixed, ring[:, None] * R + np.arange(R), own)
            np.add.at(fixed, np.roll(ring, -far)[:, None] * R + np.arange(R), own)
        for h in range(m):
            here, there = int(ring[h]), int(ring[(h + 1) % m])
            at = first[k] + h * R + np.arange(R)
            for node in (here, there):
                rows.append(node * R + np.arange(R))
                columns.append(at)
                values.append(np.full(R, each))
            held = levels.gateway[there] >= 0
            # What comes in is copied to the other ranks; what they have is added there: G - 1 times each way.
            ports.append(there * G + levels.gateway[there][held])
            port_columns.append(at[held])
            port_values.append(np.full(int(held.sum()), each * (G - 2)))
            sums.append(np.full(R, (int(first[k]) // R) + h))
            sum_columns.append(at)
        for w in part.leaves.tolist():
            for v in ring.tolist():
                both = np.minimum(levels.rate[v], levels.rate[w])
                own = part.share / m * both / both.sum()
                fixed[v * R + np.arange(R)] += own
                fixed[w * R + np.arange(R)] += own
    rate = levels.rate.ravel()
    used = np.flatnonzero(rate > 0)
    scale = float(rate.max())
    nic = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(nics, count))
    gpu = coo_array(
        (np.concatenate(port_values), (np.concatenate(ports), np.concatenate(port_columns))),
        shape=(levels.topology.nodes * G, count),
    )
    inside = levels.inside_rate
    total = float(sum(part.share for part in parts))
    wide = nic.tocsr()[used], gpu.tocsr()
    level = np.concatenate([-rate[used] / scale, np.full(gpu.shape[0], -inside / scale)])
    away = eye_array(count)
    uniform = np.concatenate([share.ravel() for share in even])
    upper = vstack(
        [
            hstack([vstack(wide), coo_array((sum(part.shape[0] for part in wide), count)), level[:, None]]),
            hstack([away, -away, coo_array((count, 1))]),
            hstack([-away, -away, coo_array((count, 1))]),
        ]
    )
    right = np.concatenate([-fixed[used], np.full(gpu.shape[0], -total), uniform, -uniform])
    one = coo_array((np.ones(count), (np.concatenate(sums), np.concatenate(sum_columns))))
    equal = hstack([one, coo_array((one.shape[0], count + 1))])
    cost = np.concatenate([np.zeros(count), np.full(count, _NEAR / count), [1.0]])
    bounds = np.zeros((2 * count + 1, 2))
    bounds[:, 1] = np.inf
    bounds[:count, 1] = np.where(allowed, 1.0, 0.0)
    done = linprog(cost, upper.tocsr(), right, equal.tocsr(), np.ones(one.shape[0]), bounds, method="highs")
    if done.status != 0:
        return even
    x = np.maximum(done.x[:count], 0.0)
    return [x[first[k] : first[k + 1]].reshape(-1, R) for k in range(len(parts))]


def _even(levels: Levels, part: RingPart) -> Float64:
    """As much over each rail as both ends of a hop carry of it."""
    both = np.minimum(levels.rate[part.ring], levels.rate[np.roll(part.ring, -1)])
    return np.asarray(both / both.sum(axis=1, keepdims=True), np.float64)
