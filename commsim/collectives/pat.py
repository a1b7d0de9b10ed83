"""PAT, parallel aggregated trees: NCCL's all-gather and reduce-scatter for one rank per node.

The block of rank o reaches the rank s further on from the rank s - 2^d further on, where 2^d is the lowest set
bit of s: a binomial tree per block, far hops first, the same for all blocks but for a shift. A round sends the
blocks of several s with the same 2^d in one message. With aggregation A and D = P / A, where P is the power of two
>= n, log2(A) rounds serve the multiples of D, then one round each the s with remainder 1, 2, ... D - 1. Sources:
S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv 2506.20252; NCCL
2.30.7 src/include/collectives.h:441-922. The reduce-scatter runs in NCCL's order; the all-gather is its mirror
image, while NCCL's visits the remainders in an order that saves buffers.
"""

from __future__ import annotations

import numpy as np

from commsim.collectives.rows import Rows, assemble, blocks, mirror, rows
from commsim.collectives.schedule import Schedule, at_least_one
from commsim.errors import ScheduleError

STEP_BYTES = 524288  # one step of the Simple protocol's buffer: 4 MiB / 8 (NCCL 2.30.7 src/init.cc:810)
STEPS = 8  # NCCL_STEPS


def pat_aggregation(world_size: int, block_bytes: int, step_bytes: int = STEP_BYTES) -> int:
    """Blocks per message as NCCL chooses them for blocks of ``block_bytes`` per channel.

    Doubled while two more blocks fit into a step, then at most three times more, always below n / 2 before the
    last doubling (NCCL 2.30.7 src/include/collectives.h).

    >>> pat_aggregation(64, block_bytes=1 << 10), pat_aggregation(64, block_bytes=1 << 20)
    (32, 8)
    """
    factor, depth = 1, STEPS
    while step_bytes // (max(block_bytes, 1) * factor) >= 2 and factor < world_size // 2:
        factor *= 2
    while depth > 1 and factor < world_size // 2:
        depth, factor = depth // 2, factor * 2
    return factor


def pat_all_gather(world_size: int, nbytes: int, aggregation: int | None = None, *, itemsize: int = 1) -> Schedule:
    """All-gather in log2(A) + min(P / A, n) - 1 rounds; every rank sends all blocks but one.

    >>> pat_all_gather(16, nbytes=1600).steps, pat_all_gather(16, nbytes=1600, aggregation=1).steps
    (4, 15)
    """
    at_least_one(ranks=world_size)
    n, size = world_size, 1 << (world_size - 1).bit_length()
    factor = pat_aggregation(n, nbytes // n) if aggregation is None else aggregation
    if factor < 1 or factor & (factor - 1) or factor > max(size // 2, 1):
        raise ScheduleError(f"aggregation is {factor}, expected a power of two up to {max(size // 2, 1)}")
    apart = size // factor
    rounds = [np.arange(size >> k + 1, size, size >> k) for k in range(factor.bit_length() - 1)]
    rounds += [np.arange(rest, size, apart) for rest in range(1, apart)]
    rank, parts = np.arange(n)[:, None], list[Rows]()
    for number, distance in enumerate(rounds):
        s = distance[distance < n]
        parts.append(rows(number, (rank - (s & -s)) % n, rank, (rank - s) % n))
    return assemble("all_gather", "pat", n, parts, blocks(nbytes, n, itemsize))


pat_reduce_scatter = mirror(pat_all_gather, "reduce_scatter")
