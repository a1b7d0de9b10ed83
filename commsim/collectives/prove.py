"""Proof of every algorithm for every rank count, root and node size asked for, on all processors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from commsim.collectives import registry
from commsim.collectives.check import check
from commsim.collectives.semantics import collective as collective_of
from commsim.collectives.traffic import require_rows
from commsim.errors import ScheduleError
from commsim.memory import allow, limit_bytes
from commsim.processes import Pool, usable_cores

Roots = str | Sequence[int]
_WORTH_PROCESSES = 2000  # schedules; starting processes takes about as long as that many proofs


@dataclass
class Proof:
    """What came out for one algorithm: schedules proven, combinations that do not exist and why, faults found.

    A combination is a rank count, a root where the algorithm has one, and a node size where it knows nodes.
    ``seconds`` is processor time, added up over all processes.
    """

    collective: str
    algorithm: str
    proven: int = 0
    not_applicable: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Proof) -> None:
        """Take in what another rank count of the same algorithm gave."""
        self.proven += other.proven
        self.faults += other.faults
        self.seconds += other.seconds
        for reason, count in other.not_applicable.items():
            self.not_applicable[reason] = self.not_applicable.get(reason, 0) + count


def prove(
    ranks: Iterable[int],
    roots: Roots = "all",
    collectives: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    **cut: Unpack[registry.Cut],
) -> list[Proof]:
    """A row per (collective, algorithm), every combination of which was built and checked on its own.

    Parameters
    ----------
    roots : "all" for every rank, or the roots wanted; algorithms without a root ignore it.
    progress : called with (rank counts done, rank counts in all), counted once per algorithm.
    workers : processes; by default one per processor for long proofs. Scripts that start processes need the usual
        ``if __name__ == "__main__"``.
    cut : channels and chunks; ranks_per_node is one node size, by default every divisor of the rank count.

    >>> [(row.algorithm, row.proven) for row in prove([2, 3], collectives=["scatter"], algorithms=["flat", "chain"])]
    [('chain', 5), ('flat', 5)]
    """
    keys = _selected(collectives, algorithms)
    counts = sorted(set(ranks), reverse=True)
    if not counts or counts[-1] < 1:
        raise ScheduleError(f"rank counts are {counts or 'none'}, expected at least one, each at least 1")
    if isinstance(roots, str) and roots != "all":
        raise ScheduleError(f"roots are {roots!r}, expected 'all' or numbers")
    # The longest first, so that no process is left alone with one at the end.
    shape = (cut.get("ranks_per_node"), cut.get("channels", 1), cut.get("chunks", 1))
    jobs = [(*key, n, roots, *shape) for n in counts for key in keys]
    table = {key: Proof(*key) for key in keys}
    expected = sum(n if "root" in registry.ALGORITHMS[key].takes else 1 for n in counts for key in keys)
    processes = (usable_cores() if expected > _WORTH_PROCESSES else 1) if workers is None else workers
    limit = limit_bytes()
    with Pool(max(1, processes), allow, (limit and limit // max(1, processes),)) as pool:
        for done, row in enumerate(pool.map(_prove_job, jobs), 1):
            table[row.collective, row.algorithm].add(row)
            if progress is not None:
                progress(done, len(jobs))
    return list(table.values())


def _prove_job(job: tuple[Any, ...]) -> Proof:
    return prove_one(*job)


def prove_one(
    collective: str,
    algorithm: str,
    world_size: int,
    roots: Roots = "all",
    ranks_per_node: int | None = None,
    channels: int = 1,
    chunks: int = 1,
) -> Proof:
    """The proof of one algorithm at one rank count: all roots and node sizes."""
    begin, row = time.process_time(), Proof(collective, algorithm)
    entry = registry.entry(collective, algorithm)
    wanted = range(world_size) if isinstance(roots, str) else roots
    divisors = [d for d in range(1, world_size + 1) if world_size % d == 0]
    sizes = divisors if ranks_per_node is None else [ranks_per_node]
    for node in sizes if "ranks_per_node" in entry.takes else [None]:
        for root in wanted if "root" in entry.takes else [0]:
            reason = entry.applicable(world_size, node)
            if reason is None and not 0 <= root < world_size:
                reason = f"root {root} is not one of the ranks"
            if reason is not None:
                row.not_applicable[reason] = row.not_applicable.get(reason, 0) + 1
                continue
            try:
                size = proof_bytes(collective, world_size)
                cut = registry.Cut(channels=channels, chunks=chunks, ranks_per_node=node)
                require_rows(collective, algorithm, world_size, proof=True, **cut)
                check(registry.build(collective, algorithm, world_size, size, root, **cut))
                row.proven += 1
            except ScheduleError as fault:
                nodes = "" if node is None else f", {node} ranks per node"
                row.faults.append(f"{algorithm} {collective} of {world_size} ranks, root {root}{nodes}: {fault}")
    row.seconds = time.process_time() - begin
    return row


def proof_bytes(collective: str, world_size: int) -> int:
    """A small array for a proof, with blocks of two sizes where the collective allows them.

    The replay is on symbols: what holds for it holds for every size whose blocks are as equal or unequal.
    """
    kind = collective_of(collective)
    return 2 * world_size if kind.equal_blocks else 2 * world_size ** max(kind.blocks, 1) + 1


def _selected(collectives: Sequence[str] | None, algorithms: Sequence[str] | None) -> list[tuple[str, str]]:
    for name in collectives or ():
        collective_of(name)
    keys = [key for key in registry.names() if collectives is None or key[0] in collectives]
    if algorithms is not None:
        wanted = {(c, registry.canonical(c, a)) for c in {c for c, _ in keys} for a in algorithms}
        known = {algorithm for _, algorithm in keys} | {
            a for c, a in registry.ALIASES if (c, registry.ALIASES[c, a]) in keys
        }
        for algorithm in algorithms:
            if algorithm not in known:
                raise ScheduleError(f"unknown algorithm {algorithm!r}{registry.choice(algorithm, sorted(known))}")
        keys = [key for key in keys if key in wanted]
    return keys
