"""How many nodes and ranks a token's experts lie on: what a dispatcher sends follows from these counts.

A token goes to `top_k` different experts. Experts are divided evenly, and all are as likely. Numbers or arrays alike.
"""

from __future__ import annotations

import numpy as np

from commsim.training.columns import Number, where


def chance_within(part: Number, experts: Number, top_k: Number) -> Number:
    """The chance that all of a token's experts are among `part` of them: C(part, k) / C(experts, k)."""
    chance: Number = 1.0
    for drawn in range(int(np.max(top_k))):
        left = np.maximum(part - drawn, 0.0) / np.maximum(experts - drawn, 1.0)
        chance = chance * where(drawn < top_k, left, 1.0)
    return chance


def distinct_groups(groups: Number, experts: Number, top_k: Number) -> Number:
    """The expected number of groups of experts, all of one size, that a token goes to.

    A group is missed where all of the token's experts are in the others: n (1 - C(E - E/n, k) / C(E, k)).

    >>> round(float(distinct_groups(8, 256, 8)), 3)
    5.295
    """
    return groups * (1.0 - chance_within(experts - experts / groups, experts, top_k))


def distinct_nodes(nodes: Number, experts: Number, top_k: Number, limit: Number = 0) -> Number:
    """The expected number of nodes that a token goes to where its router may choose at most `limit` (0: all).

    The router keeps the nodes with the highest score of an expert, then the best experts on them (DeepSeek-AI 2024,
    section 2.1.2; with the sum of several scores a node the count is nearly the same). The best experts of all, taken
    in turn, reach these nodes first; so D nodes without the limit become min(D, limit), whose mean is the sum over
    j < limit of P(D > j). P(D <= j) by inclusion and exclusion over the nodes that a token stays on.

    >>> round(float(distinct_nodes(8, 256, 8, 4)), 3)
    3.983
    """
    free = distinct_groups(nodes, experts, top_k)
    limited = (limit > 0) & (limit < nodes)
    if not np.any(limited):
        return free
    most = where(limited, limit, 0)
    within = [chance_within(i * experts / nodes, experts, top_k) for i in range(1, int(np.max(most)))]
    mean: Number = 0.0
    for j in range(len(within) + 1):
        at_most: Number = 0.0
        for i, chance in enumerate(within[:j], start=1):
            at_most = at_most + (-1.0) ** (j - i) * _choose(nodes, i) * _choose(nodes - i - 1.0, j - i) * chance
        mean = mean + where(j < most, 1.0 - at_most, 0.0)
    return where(limited, mean, free)


def distinct_ranks(nodes: Number, inside: Number, experts: Number, top_k: Number, limit: Number = 0) -> Number:
    """The expected number of ranks, `inside` of each node, that a token goes to.

    With a limit the nodes are taken as chosen before the experts, which misses the count by less than 3 %.
    """
    open_nodes = where(limit > 0, np.minimum(limit, nodes), nodes)
    return distinct_groups(open_nodes * inside, experts * open_nodes / nodes, top_k)


def _choose(n: Number, r: int) -> Number:
    """The binomial coefficient of a number or an array over a small integer."""
    out: Number = 1.0
    for i in range(r):
        out = out * (n - i) / (i + 1.0)
    return out
