"""What a call costs on the rehearsed machine, and whom its bytes go to: rings for what reduces and gathers."""

from __future__ import annotations

from dataclasses import dataclass

from rehearsal.settings import Settings


@dataclass(frozen=True)
class Work:
    """One collective as NCCL's callers count it: `nbytes` of the whole array, `sends` where peers are named."""

    kind: str
    nbytes: int
    root: int = 0
    sends: tuple[tuple[int, int], ...] = ()  # peer and bytes, of grouped sends


def seconds(s: Settings, work: Work, ranks: list[int]) -> float:
    """Time of a call among these ranks of the run once all have come."""
    n = len(ranks)
    share = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0, "group": 1.0}.get(work.kind, (n - 1) / n)
    if n == 1:
        share = 0.0
    if len({s.node_of(rank) for rank in ranks}) == 1:
        return s.alpha_s + share * work.nbytes / s.bandwidth
    return s.net_alpha_s + share * work.nbytes / (s.net_bandwidth * s.ranks_per_node)


def sent_to(work: Work, rank: int, n: int) -> dict[int, float]:
    """Bytes that one rank sends to every other in a call, by rank within the communicator."""
    after, block = (rank + 1) % n, work.nbytes / n
    if n == 1:
        return {}
    if work.kind == "all_reduce":
        return {after: 2 * (n - 1) * block}
    if work.kind in ("all_gather", "reduce_scatter"):
        return {after: (n - 1) * block}
    if work.kind == "broadcast":  # a chain that begins at the root
        return {after: float(work.nbytes)} if after != work.root else {}
    if work.kind == "reduce":  # a chain that ends there
        return {after: float(work.nbytes)} if rank != work.root else {}
    if work.kind == "all_to_all":
        return {peer: block for peer in range(n) if peer != rank}
    if work.kind == "gather":
        return {work.root: block} if rank != work.root else {}
    if work.kind == "scatter":
        return {peer: block for peer in range(n) if peer != rank} if rank == work.root else {}
    total: dict[int, float] = {}
    for peer, nbytes in work.sends:
        if peer != rank:
            total[peer] = total.get(peer, 0.0) + nbytes
    return total
