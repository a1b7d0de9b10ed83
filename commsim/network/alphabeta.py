"""Closed forms on a uniform alpha-beta network: every message costs ``alpha_s`` plus its bytes over one bandwidth.

What it is not: it knows no protocol, channel or launch cost, and no contention.
"""

from __future__ import annotations

from commsim.network.bounds import LowerBound, lower_bound_s, network_limits

__all__ = [
    "LowerBound",
    "lower_bound_s",
    "network_limits",
    "ring_all_reduce_s",
    "ring_pass_s",
    "tree_all_reduce_s",
    "tree_depth",
]


def ring_pass_s(ranks: int, nbytes: float, alpha_s: float, bandwidth: float) -> float:
    """Time of one pass round the ring, N-1 steps: a reduce-scatter or all-gather of ``nbytes`` in total.

    (N-1)(alpha + S/(N B)); Thakur, Rabenseifner, Gropp 2005. Exact for equal chunks.

    >>> ring_pass_s(4, 16000, 1e-6, 4e9)
    6e-06
    """
    return (ranks - 1) * (alpha_s + nbytes / (ranks * bandwidth))


def ring_all_reduce_s(ranks: int, nbytes: float, alpha_s: float, bandwidth: float) -> float:
    """Time of the ring all_reduce: 2(N-1)(alpha + S/(N B)); Patarasuk & Yuan 2009. Exact for equal chunks.

    >>> ring_all_reduce_s(4, 16000, 1e-6, 4e9)
    1.2e-05
    """
    return 2 * ring_pass_s(ranks, nbytes, alpha_s, bandwidth)


def tree_depth(ranks: int) -> int:
    """Edges from the root to the deepest leaf of a balanced binary tree hung below one rank: ceil(log2 N).

    >>> [tree_depth(n) for n in (1, 2, 3, 4, 5, 8, 9)]
    [0, 1, 2, 2, 3, 3, 4]
    """
    return (ranks - 1).bit_length()


def tree_all_reduce_s(ranks: int, nbytes: float, alpha_s: float, bandwidth: float, chunks: int = 1) -> float:
    """Time of the pipelined double-binary-tree all_reduce with ``chunks`` chunks per tree, leading terms.

    Each tree carries half the message, reduced up and sent down: 2 d (alpha + m/B) for the first chunk,
    m = S/(2 chunks), then 4 m/B for every further one. A rank is an inner node of one tree, where it receives
    two chunks upwards and one downwards, and a leaf of the other, where it receives one. So 2 d alpha + 2 S/B
    for many chunks (Sanders, Speck, Träff 2009). Tree shapes of real libraries differ by a level or two.

    >>> round(tree_all_reduce_s(1024, 1000e6, 1e-6, 50e9, chunks=1024) / (2e9 / 50e9), 3)
    1.004
    """
    if ranks == 1:
        return 0.0
    piece_s = nbytes / (2 * chunks) / bandwidth
    return 2 * tree_depth(ranks) * (alpha_s + piece_s) + (chunks - 1) * 4 * piece_s
