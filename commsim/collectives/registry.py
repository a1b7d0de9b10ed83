"""Every algorithm by name: (collective, algorithm) -> how to build it, what it takes, and when it cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commsim.collectives import chain, ring, tree
from commsim.collectives.schedule import Schedule, at_least_one
from commsim.collectives.semantics import COLLECTIVES
from commsim.errors import ScheduleError


def _always(world_size: int, ranks_per_node: int | None) -> str | None:
    del world_size, ranks_per_node
    return None


@dataclass(frozen=True)
class Entry:
    """One algorithm of one collective.

    ``builder`` is called with (world_size, nbytes, itemsize=...) and those of the options ``root``,
    ``channels``, ``chunks`` and ``ranks_per_node`` that ``takes`` names; ``applicable(world_size,
    ranks_per_node)`` gives the reason why it cannot be built, or None.
    """

    summary: str
    builder: Callable[..., Schedule]
    takes: frozenset[str] = frozenset()
    applicable: Callable[[int, int | None], str | None] = _always


def _tree_all_reduce(world_size: int, nbytes: int, *, ranks_per_node: int | None = None, **more: Any) -> Schedule:
    return tree.tree_all_reduce(world_size, nbytes, ranks_per_node=ranks_per_node or 1, **more)


def _ring(builder: Callable[..., Schedule]) -> Callable[..., Schedule]:
    def build(world_size: int, nbytes: int, *, channels: int, chunks: int, itemsize: int) -> Schedule:
        return builder(world_size, nbytes, channels, itemsize, pipeline=chunks)

    return build


def _whole_nodes(world_size: int, ranks_per_node: int | None) -> str | None:
    if ranks_per_node is not None and world_size % ranks_per_node:
        return f"{world_size} ranks are no whole number of nodes of {ranks_per_node} ranks"
    return None


_PARTS = frozenset({"channels", "chunks"})
_NODES = frozenset({"ranks_per_node"})
_ROOT = frozenset({"root"})

ALGORITHMS: dict[tuple[str, str], Entry] = {
    ("all_reduce", "ring"): Entry("reduce-scatter and all-gather round a ring", _ring(ring.ring_all_reduce), _PARTS),
    ("reduce_scatter", "ring"): Entry("partial sums round a ring", _ring(ring.ring_reduce_scatter), _PARTS),
    ("all_gather", "ring"): Entry("blocks round a ring", _ring(ring.ring_all_gather), _PARTS),
    ("all_reduce", "tree"): Entry(
        "double binary tree over nodes, a chain in each", _tree_all_reduce, _PARTS | _NODES, _whole_nodes
    ),
    ("broadcast", "chain"): Entry("pieces along a chain from the root", chain.chain_broadcast, _PARTS | _ROOT),
    ("reduce", "chain"): Entry("pieces along a chain into the root", chain.chain_reduce, _PARTS | _ROOT),
}


def names(collective: str | None = None) -> list[tuple[str, str]]:
    """All (collective, algorithm) pairs, or those of one collective, in the order of the collectives."""
    order = list(COLLECTIVES)
    pairs = [key for key in ALGORITHMS if collective is None or key[0] == collective]
    return sorted(pairs, key=lambda key: (order.index(key[0]), list(ALGORITHMS).index(key)))


def entry(collective: str, algorithm: str) -> Entry:
    """The entry of that name; a ScheduleError lists the valid names and guesses what was meant."""
    found = ALGORITHMS.get((collective, algorithm))
    if found is not None:
        return found
    if collective not in COLLECTIVES:
        raise ScheduleError(f"unknown collective {collective!r}{_choice(collective, list(COLLECTIVES))}")
    known = [name for _, name in names(collective)]
    raise ScheduleError(f"unknown algorithm {algorithm!r} of {collective}{_choice(algorithm, known)}")


def build(
    collective: str,
    algorithm: str,
    world_size: int,
    nbytes: int,
    root: int = 0,
    channels: int = 1,
    chunks: int = 1,
    *,
    itemsize: int = 1,
    ranks_per_node: int | None = None,
) -> Schedule:
    """The schedule of that name; a ScheduleError says why a combination does not exist.

    Channels share the array evenly and each cuts its share into ``chunks`` pieces that follow each other.

    >>> build("all_reduce", "ring", 4, nbytes=4096).sent_bytes()
    array([6144, 6144, 6144, 6144])
    """
    found = entry(collective, algorithm)
    at_least_one(ranks=world_size, channels=channels, chunks=chunks)
    if ranks_per_node is not None:
        at_least_one(ranks_per_node=ranks_per_node)
    reason = found.applicable(world_size, ranks_per_node)
    if reason is not None:
        raise ScheduleError(f"{algorithm} {collective} is not applicable: {reason}")
    if root and "root" not in found.takes:
        raise ScheduleError(f"{algorithm} {collective} has no root, found root {root}")
    options = {"root": root, "channels": channels, "chunks": chunks, "ranks_per_node": ranks_per_node}
    given = {name: value for name, value in options.items() if name in found.takes}
    return found.builder(world_size, nbytes, itemsize=itemsize, **given)


def _choice(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f", did you mean {near[0]!r}?" if near else ","
    return f"{meant} expected one of {', '.join(known)}"
