"""Recursive doubling and halving: ranks swap with a partner in each of log2(p) steps.

The largest power of two p <= n takes part. The other n - p ranks are *folded*: each hands its data to a
neighbour first and gets the result back at the end (Thakur, Rabenseifner, Gropp 2005), so any rank count works.

Partners are an array (steps, p), given as a function of p: who swaps with whom. For the reduce-scatter, the blocks
that rank q answers for after step t are R_t(q), where R_last(q) = {q} and R_t-1(q) = R_t(q) + R_t(partner); in step t
a rank sends its partner R_t(partner). The all-gather is its mirror image. Any partners whose sets R never overlap
will do: Swing uses the same code with other partners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from commsim.collectives.rows import Int64, Rows, assemble, blocks, mirror, mirrored, only, rows
from commsim.collectives.schedule import Op, Schedule, at_least_one, then

Partners = Callable[[int], Int64]


@dataclass(frozen=True, eq=False)
class FoldedRanks:
    """The ranks that take part, (p,), and those folded into the first of them, (n - p,)."""

    active: Int64
    extra: Int64


def fold(world_size: int) -> FoldedRanks:
    """Even ranks below 2(n - p) are folded into the odd rank after them; p is the largest power of two <= n."""
    at_least_one(ranks=world_size)
    spare = world_size - (1 << (world_size.bit_length() - 1))
    pairs = np.arange(spare) * 2
    return FoldedRanks(np.append(pairs + 1, np.arange(2 * spare, world_size)), pairs)


def doubling_partners(ranks: int) -> Int64:
    """Partner r xor 2^t in step t, (log2(ranks), ranks)."""
    return np.arange(ranks) ^ (1 << np.arange(ranks.bit_length() - 1)[:, None])


def halving_partners(ranks: int) -> Int64:
    """The partners of doubling, the farthest first."""
    return doubling_partners(ranks)[::-1]


def swap_all_reduce(algorithm: str, partners: Partners, world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """Swap and add the whole array with each partner in turn: latency-optimal."""
    folded = fold(world_size)
    swaps = partners(folded.active.size)
    steps = len(swaps)
    into = folded.active[: folded.extra.size]
    parts = [
        rows(0, folded.extra, into, 0, op=Op.REDUCE),
        rows(np.arange(steps)[:, None] + 1, folded.active, folded.active[swaps], 0, op=Op.REDUCE),
        rows(steps + 1, into, folded.extra, 0),
    ]
    return assemble("all_reduce", algorithm, world_size, parts, blocks(nbytes, 1, itemsize))


def swap_reduce_scatter(
    algorithm: str, partners: Partners, world_size: int, nbytes: int, *, itemsize: int = 1
) -> Schedule:
    """Swap halves, quarters, ... with each partner in turn; a folded rank adds its own block itself at the end."""
    folded = fold(world_size)
    swaps = partners(folded.active.size)
    into = folded.active[: folded.extra.size]
    away = rows(0, folded.extra[:, None], into[:, None], np.arange(world_size), op=Op.REDUCE)
    parts = [
        only(away, away["src_chunk"] != away["src"]),
        *_halves(folded, swaps),
        rows(len(swaps) + 1, into, folded.extra, folded.extra, op=Op.REDUCE),
    ]
    return assemble("reduce_scatter", algorithm, world_size, parts, blocks(nbytes, world_size, itemsize))


swap_all_gather = mirror(swap_reduce_scatter, "all_gather", Op.COPY)
"""A folded rank hands over its block and gets all others at the end."""


def swap_halves_all_reduce(
    algorithm: str, partners: Partners, world_size: int, nbytes: int, *, itemsize: int = 1
) -> Schedule:
    """Reduce-scatter and all-gather by swaps among p ranks, p blocks; folded ranks hand over the whole array."""
    folded = fold(world_size)
    p = folded.active.size
    swaps = partners(p)
    sizes = blocks(nbytes, p, itemsize)
    scatter = assemble(
        "reduce_scatter", algorithm, p, _halves(FoldedRanks(np.arange(p), folded.extra[:0]), swaps), sizes
    )
    core = then(scatter, mirrored(scatter, "all_gather", op=Op.COPY))
    into, whole = folded.active[: folded.extra.size, None], np.arange(p)
    middle = rows(core.step + 1, folded.active[core.src], folded.active[core.dst], core.src_chunk)
    parts = [
        rows(0, folded.extra[:, None], into, whole, op=Op.REDUCE),
        middle | {"op": core.op.astype(np.int64)},
        rows(core.steps + 1, into, folded.extra[:, None], whole),
    ]
    return assemble("all_reduce", algorithm, world_size, parts, sizes)


def _halves(folded: FoldedRanks, partners: Int64) -> list[Rows]:
    """Moves of the reduce-scatter, from step 1; a rank that has one folded into it answers for its block too."""
    p = folded.active.size
    answers, parts = np.arange(p)[:, None], []
    for t in range(len(partners) - 1, -1, -1):
        partner = partners[t]
        sent = answers[partner]
        move = rows(t + 1, folded.active[:, None], folded.active[partner, None], folded.active[sent], op=Op.REDUCE)
        more = sent < folded.extra.size
        twin = np.append(folded.extra, -1)[np.minimum(sent, folded.extra.size)]
        parts += [move, only(move | {"src_chunk": twin.reshape(-1), "dst_chunk": twin.reshape(-1)}, more)]
        answers = np.concatenate([answers, answers[partner]], axis=1)
    return parts


recursive_doubling_all_reduce = partial(swap_all_reduce, "recursive_doubling", doubling_partners)
"""log2(p) swaps of the whole array, two steps more when ranks are folded."""


rabenseifner_all_reduce = partial(swap_halves_all_reduce, "rabenseifner", halving_partners)
"""Recursive halving, then recursive doubling: 2 log2(p) steps, 2(p-1)/p * nbytes per rank that is not folded."""


recursive_halving_reduce_scatter = partial(swap_reduce_scatter, "recursive_halving", halving_partners)
"""log2(p) swaps, with the farthest partner and half the array first."""


recursive_doubling_all_gather = partial(swap_all_gather, "recursive_doubling", halving_partners)
"""log2(p) swaps, with the nearest partner and one block first."""
