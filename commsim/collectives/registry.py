"""Every algorithm by name: (collective, algorithm) -> how to build it, what it takes, and when it cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

from commsim.collectives import (
    barrier,
    bruck,
    chain,
    collnet,
    direct,
    double_tree,
    grid,
    knomial,
    nvls,
    pairwise,
    pat,
    rails,
    recursive,
    ring,
    sharp,
    star,
    swing,
    tree,
)
from commsim.collectives.rows import spread
from commsim.collectives.schedule import Schedule, at_least_one, check_root
from commsim.collectives.semantics import COLLECTIVES
from commsim.errors import ScheduleError

Place = Literal["", "nvswitch", "network", "server"]


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of one collective.

    ``builder`` is called with (world_size, nbytes, itemsize=...) and those of the options ``root``,
    ``channels``, ``chunks`` and ``ranks_per_node`` that ``takes`` names. ``adds_in`` says what the endpoints beside
    the ranks are: the NVSwitch of a node, switches of a network, a server; "" where there are none. ``least_nodes``:
    on how many nodes of a topology it runs at least; rows without a topology need no node.
    """

    summary: str
    builder: Callable[..., Schedule]
    takes: frozenset[str] = frozenset()
    adds_in: Place = ""
    least_nodes: int = 1

    def applicable(self, world_size: int, ranks_per_node: int | None) -> str | None:
        """The reason why it cannot be built, or None."""
        if ranks_per_node is not None:
            at_least_one(ranks_per_node=ranks_per_node)
        if "ranks_per_node" in self.takes and ranks_per_node is not None and world_size % ranks_per_node:
            return f"{world_size} ranks are no whole number of nodes of {ranks_per_node} ranks"
        return None


def _plain(summary: str, builder: Callable[..., Schedule], *takes: str, adds_in: Place = "") -> Algorithm:
    """A builder without channels and pieces of its own: its schedule is spread over them."""

    def build(world_size: int, nbytes: int, *, channels: int, chunks: int, itemsize: int, **more: Any) -> Schedule:
        base = builder(world_size, nbytes, itemsize=itemsize, **more)
        return spread(base, channels, chunks, itemsize=itemsize)

    return _own(summary, build, *takes, adds_in=adds_in)


def _own(summary: str, builder: Callable[..., Schedule], *takes: str, adds_in: Place = "") -> Algorithm:
    """A builder that takes channels and chunks itself."""
    return Algorithm(summary, builder, frozenset({"channels", "chunks", *takes}), adds_in)


def _ring(summary: str, builder: Callable[..., Schedule]) -> Algorithm:
    def build(world_size: int, nbytes: int, *, channels: int, chunks: int, itemsize: int) -> Schedule:
        return builder(world_size, nbytes, channels, itemsize, pipeline=chunks)

    return _own(summary, build)


def _tree_all_reduce(
    world_size: int, nbytes: int, *, channels: int, ranks_per_node: int | None = None, **more: Any
) -> Schedule:
    """Both trees in every channel; without nodes, every rank is one."""
    return tree.tree_all_reduce(world_size, nbytes, 2 * channels, ranks_per_node or 1, **more)


NODES, ROOT = "ranks_per_node", "root"

_ALL_REDUCE = {
    "ring": _ring("reduce-scatter and all-gather round a ring", ring.ring_all_reduce),
    "tree": _own("double binary tree over nodes, a chain in each (NCCL)", _tree_all_reduce, NODES),
    "chain": _own("reduce and broadcast along a chain", chain.chain_all_reduce, ROOT),
    "reduce_broadcast": _plain("reduce and broadcast on a binomial tree", knomial.knomial_all_reduce, ROOT),
    "knomial": _plain("reduce and broadcast on a 4-nomial tree", partial(knomial.knomial_all_reduce, radix=4), ROOT),
    "flat": _plain("every rank to the root and back", star.flat_all_reduce, ROOT),
    "parameter_server": _plain(
        "every rank to one more endpoint and back", star.parameter_server_all_reduce, adds_in="server"
    ),
    "recursive_doubling": _plain("swaps of the whole array", recursive.recursive_doubling_all_reduce),
    "rabenseifner": _plain("recursive halving, then doubling", recursive.rabenseifner_all_reduce),
    "swing": _plain("swaps of halves with near partners", swing.swing_all_reduce),
    "swing_latency": _plain("swaps of the whole array with near partners", swing.swing_latency_all_reduce),
    "direct_one_shot": _plain("the whole array to every rank", direct.one_shot_all_reduce),
    "direct_two_shot": _plain("blocks to their owners, sums to every rank", direct.two_shot_all_reduce),
    "hierarchical": _plain("ring in the node, ring per rail, ring in the node", grid.hierarchical_all_reduce, NODES),
    "hierarchical_3": _plain(
        "rings in node, pod and between pods", partial(grid.hierarchical_all_reduce, levels=3), NODES
    ),
    "torus_2d": _plain("rings along two dimensions, four parts at once", grid.torus_all_reduce),
    "torus_3d": _plain("rings along three dimensions, six parts at once", partial(grid.torus_all_reduce, dims=3)),
    "nvls": _own("one switch adds and multicasts (NVLink SHARP)", nvls.nvls_all_reduce, adds_in="nvswitch"),
    "nvls_tree": replace(
        _plain("NVLS in each node, double tree over nodes", nvls.nvls_tree_all_reduce, NODES, adds_in="nvswitch"),
        least_nodes=2,
    ),
    "nvls_one_shot": _plain(
        "one switch multicasts whole arrays, every rank adds", nvls.nvls_one_shot_all_reduce, adds_in="nvswitch"
    ),
    "collnet_direct": _plain(
        "shares to local heads, network switch adds", collnet.collnet_direct_all_reduce, NODES, adds_in="network"
    ),
    "collnet_chain": _plain(
        "chain to a head per node, network switch adds", collnet.collnet_chain_all_reduce, NODES, adds_in="network"
    ),
    "sharp": _plain("tree of switches that add and multicast", sharp.sharp_all_reduce, adds_in="network"),
    "ring_stepwise": _ring("ring; a rank's next send waits for its last", ring.stepwise_ring_all_reduce),
}
_REDUCE_SCATTER = {
    "ring": _ring("partial sums round a ring", ring.ring_reduce_scatter),
    "recursive_halving": _plain("swaps of halves, far partners first", recursive.recursive_halving_reduce_scatter),
    "swing": _plain("swaps of halves with near partners", swing.swing_reduce_scatter),
    "bruck": _plain("shifts of halving distance", bruck.bruck_reduce_scatter),
    "direct": _plain("every rank to every owner", direct.direct_reduce_scatter),
    "flat": _plain("reduce to the root, which hands out blocks", star.flat_reduce_scatter, ROOT),
    "hierarchical": _plain("ring in the node, ring per rail", grid.hierarchical_reduce_scatter, NODES),
    "hierarchical_3": _plain(
        "rings in node, pod and between pods", partial(grid.hierarchical_reduce_scatter, levels=3), NODES
    ),
    "torus_2d": _plain("rings along two dimensions, four parts at once", grid.torus_reduce_scatter),
    "torus_3d": _plain("rings along three dimensions, six parts at once", partial(grid.torus_reduce_scatter, dims=3)),
    "nvls": _plain("one switch adds (NVLink SHARP)", nvls.nvls_reduce_scatter, adds_in="nvswitch"),
    "rail_direct": _plain("sums in the node, then along rails at once", rails.rail_direct_reduce_scatter, NODES),
    "nvls_rail_direct": replace(
        _plain(
            "one switch adds in each node, then along rails at once",
            nvls.nvls_rail_direct_reduce_scatter,
            NODES,
            adds_in="nvswitch",
        ),
        least_nodes=2,
    ),
    "collnet_direct": _plain(
        "blocks to local heads, network switch adds", collnet.collnet_direct_reduce_scatter, NODES, adds_in="network"
    ),
    "pat": _plain("a shifted binomial tree per block, aggregated (NCCL)", pat.pat_reduce_scatter),
}
_ALL_GATHER = {
    "ring": _ring("blocks round a ring", ring.ring_all_gather),
    "recursive_doubling": _plain("swaps, near partners first", recursive.recursive_doubling_all_gather),
    "swing": _plain("swaps of doubling size with near partners", swing.swing_all_gather),
    "bruck": _plain("shifts of doubling distance", bruck.bruck_all_gather),
    "direct": _plain("every block to every rank", direct.direct_all_gather),
    "flat": _plain("gather to the root, which sends all blocks", star.flat_all_gather, ROOT),
    "hierarchical": _plain("ring per rail, ring in the node", grid.hierarchical_all_gather, NODES),
    "hierarchical_3": _plain(
        "rings between pods, in pod and node", partial(grid.hierarchical_all_gather, levels=3), NODES
    ),
    "torus_2d": _plain("rings along two dimensions, four parts at once", grid.torus_all_gather),
    "torus_3d": _plain("rings along three dimensions, six parts at once", partial(grid.torus_all_gather, dims=3)),
    "nvls": _plain("one switch multicasts (NVLink SHARP)", nvls.nvls_all_gather, adds_in="nvswitch"),
    "rail_direct": _plain("along rails at once, then in the node", rails.rail_direct_all_gather, NODES),
    "nvls_rail_ring": replace(
        _plain(
            "ring per rail, one switch multicasts in each node",
            nvls.nvls_rail_ring_all_gather,
            NODES,
            adds_in="nvswitch",
        ),
        least_nodes=2,
    ),
    "collnet_direct": _plain(
        "network switch multicasts to local heads", collnet.collnet_direct_all_gather, NODES, adds_in="network"
    ),
    "pat": _plain("a shifted binomial tree per block, aggregated (NCCL)", pat.pat_all_gather),
}
_BROADCAST = {
    "chain": _own("pieces along a chain from the root (NCCL's Ring)", chain.chain_broadcast, ROOT),
    "binomial": _plain("binomial tree", knomial.knomial_broadcast, ROOT),
    "knomial": _plain("4-nomial tree", partial(knomial.knomial_broadcast, radix=4), ROOT),
    "double_binary_tree": _own("two trees, half of the array on each", double_tree.double_tree_broadcast, ROOT),
    "flat": _plain("the root to every rank", star.flat_broadcast, ROOT),
    "scatter_all_gather": _plain("binomial scatter, ring all-gather", knomial.scatter_all_gather_broadcast, ROOT),
    "hierarchical": _plain("binomial over nodes, binomial in each", rails.hierarchical_broadcast, ROOT, NODES),
    "sharp": _plain("tree of switches that multicast", sharp.sharp_broadcast, ROOT, adds_in="network"),
}
_REDUCE = {
    "chain": _own("pieces along a chain into the root (NCCL's Ring)", chain.chain_reduce, ROOT),
    "binomial": _plain("binomial tree", knomial.knomial_reduce, ROOT),
    "knomial": _plain("4-nomial tree", partial(knomial.knomial_reduce, radix=4), ROOT),
    "double_binary_tree": _own("two trees, half of the array on each", double_tree.double_tree_reduce, ROOT),
    "flat": _plain("every rank to the root", star.flat_reduce, ROOT),
    "reduce_scatter_gather": _plain("recursive halving, binomial gather", knomial.reduce_scatter_gather_reduce, ROOT),
    "hierarchical": _plain("binomial in each node, binomial over nodes", rails.hierarchical_reduce, ROOT, NODES),
    "sharp": _plain("tree of switches that add", sharp.sharp_reduce, ROOT, adds_in="network"),
}
_SCATTER = {
    "chain": _plain("blocks along a chain, farthest first", chain.chain_scatter, ROOT),
    "binomial": _plain("binomial tree", knomial.knomial_scatter, ROOT),
    "knomial": _plain("4-nomial tree", partial(knomial.knomial_scatter, radix=4), ROOT),
    "flat": _plain("the root to every rank", star.flat_scatter, ROOT),
}
_GATHER = {
    "chain": _plain("blocks along a chain, nearest first", chain.chain_gather, ROOT),
    "binomial": _plain("binomial tree", knomial.knomial_gather, ROOT),
    "knomial": _plain("4-nomial tree", partial(knomial.knomial_gather, radix=4), ROOT),
    "flat": _plain("every rank to the root", star.flat_gather, ROOT),
}
_ALL_TO_ALL = {
    "pairwise": _plain("one partner per round, in NCCL's order", pairwise.pairwise_all_to_all, NODES),
    "direct": _plain("all blocks at once", pairwise.direct_all_to_all),
    "ring": _plain("blocks from rank to rank round a ring", pairwise.ring_all_to_all),
    "bruck": _plain("a hop of 2^t per bit of the distance", bruck.bruck_all_to_all),
    "hierarchical": _plain("in the node, then along rails (PXN)", rails.hierarchical_all_to_all, NODES),
}
_ALL_TO_ALL_V = {
    "pairwise": _plain("one partner per round, in NCCL's order", pairwise.pairwise_all_to_all_v, NODES),
    "direct": _plain("all blocks at once", pairwise.direct_all_to_all_v),
    "hierarchical": _plain("in the node, then along rails (PXN)", rails.hierarchical_all_to_all_v, NODES),
}
_SEND_RECV = {"direct": _plain("every rank to the next", direct.direct_send_recv)}
_BARRIER = {
    "dissemination": _plain("tokens at doubling distance", barrier.dissemination_barrier),
    "recursive_doubling": _plain("swaps of tokens", barrier.recursive_doubling_barrier),
    "binomial": _plain("binomial tree up and down", barrier.binomial_barrier, ROOT),
    "flat": _plain("every rank to the root and back", barrier.flat_barrier, ROOT),
    "ring": _plain("a token twice round a ring", barrier.ring_barrier, ROOT),
    "sharp": _plain("tree of switches", barrier.sharp_barrier, adds_in="network"),
}

ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    (collective, algorithm): known
    for collective, family in (
        ("all_reduce", _ALL_REDUCE),
        ("reduce_scatter", _REDUCE_SCATTER),
        ("all_gather", _ALL_GATHER),
        ("broadcast", _BROADCAST),
        ("reduce", _REDUCE),
        ("scatter", _SCATTER),
        ("gather", _GATHER),
        ("all_to_all", _ALL_TO_ALL),
        ("all_to_all_v", _ALL_TO_ALL_V),
        ("send_recv", _SEND_RECV),
        ("barrier", _BARRIER),
    )
    for algorithm, known in family.items()
}
"""Every algorithm, in the order of the collectives."""

ALIASES: dict[tuple[str, str], str] = {
    ("broadcast", "ring"): "chain",
    ("reduce", "ring"): "chain",
    ("scatter", "ring"): "chain",
    ("gather", "ring"): "chain",
    ("all_reduce", "binomial"): "reduce_broadcast",
    ("all_reduce", "double_binary_tree"): "tree",
    ("all_reduce", "direct"): "direct_two_shot",
    ("all_reduce", "recursive_halving"): "rabenseifner",
    ("send_recv", "ring"): "direct",
}
"""Other names in use for the same schedule; NCCL's Ring broadcast and reduce are chains."""


def names(collective: str | None = None) -> list[tuple[str, str]]:
    """All (collective, algorithm) pairs, or those of one collective."""
    return [key for key in ALGORITHMS if collective in {None, key[0]}]


def entry(collective: str, algorithm: str) -> Algorithm:
    """The entry of that name; a ScheduleError lists the valid names and guesses what was meant."""
    known_entry = ALGORITHMS.get((collective, canonical(collective, algorithm)))
    if known_entry is not None:
        return known_entry
    if collective not in COLLECTIVES:
        raise ScheduleError(f"unknown collective {collective!r}{choice(collective, list(COLLECTIVES))}")
    known = [name for _, name in names(collective)]
    if algorithm in COLLECTIVES:
        own = ", ".join(name for _, name in names(algorithm))
        raise ScheduleError(f"{algorithm} is a collective, expected one of its algorithms, such as {own}")
    raise ScheduleError(f"unknown algorithm {algorithm!r} of {collective}{choice(algorithm, known)}")


def canonical(collective: str, algorithm: str) -> str:
    """The name under which the registry knows an algorithm that has several; other names as they are."""
    return ALIASES.get((collective, algorithm), algorithm)


class Cut(TypedDict, total=False):
    """Channels share the array evenly, and each cuts its share into ``chunks`` pieces that follow each other; 1 each.

    ``ranks_per_node`` matters to algorithms that know nodes.
    """

    channels: int
    chunks: int
    ranks_per_node: int | None


class BuildOptions(Cut, total=False):
    """``itemsize``: bytes of an element, 1. What adds in switches of a network follows the tree ``switches``."""

    itemsize: int
    switches: sharp.SwitchTree | None


def build(
    collective: str, algorithm: str, world_size: int, nbytes: int, root: int = 0, **options: Unpack[BuildOptions]
) -> Schedule:
    """The schedule of that name; a ScheduleError says why a combination does not exist.

    ``options``: see `BuildOptions`.

    >>> build("all_reduce", "ring", 4, nbytes=4096).sent_bytes()
    array([6144, 6144, 6144, 6144])
    """
    known = entry(collective, algorithm)
    ranks_per_node = options.get("ranks_per_node")
    cut = {"channels": options.get("channels", 1), "chunks": options.get("chunks", 1)}
    at_least_one(ranks=world_size, **cut)
    if ranks_per_node is not None:
        at_least_one(ranks_per_node=ranks_per_node)
    reason = known.applicable(world_size, ranks_per_node)
    if reason is not None:
        raise ScheduleError(f"{algorithm} {collective} is not applicable: {reason}")
    check_root(root, world_size)
    if root and "root" not in known.takes:
        raise ScheduleError(f"{algorithm} {collective} has no root, found root {root}")
    possible = {"root": root, "ranks_per_node": ranks_per_node, **cut}
    given: dict[str, Any] = {name: value for name, value in possible.items() if name in known.takes}
    if options.get("switches") is not None and known.adds_in == "network":
        given["switches"] = options["switches"]
    return known.builder(world_size, nbytes, itemsize=options.get("itemsize", 1), **given)


def choice(name: str, known: list[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, and all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f", did you mean {near[0]!r}?" if near else ","
    return f"{meant} expected one of {', '.join(known)}"
