"""Routes between NICs over the fabric: what every kind of fabric answers, how paths are chosen, static routes.

A choice among equal paths never depends on absolute places but on places within a period of the fabric and on
the distance, so that routes are alike wherever the fabric is (`symmetry`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.topology.kinds import Int32, Int64

Flowlet = Int64 | int
"""Which of the flowlets of its stream a pair's path is of, one for all pairs or one each."""

UNREACHABLE = -2
"""In the first column of a path: the fabric does not join these NICs (two planes, or rails without spines)."""


@dataclass(frozen=True, eq=False)
class FabricRoutes:
    """The ports of a fabric, and links between its switches.

    ``port_up``, ``port_down`` (link ids) and ``leaf`` (index of the switch of a NIC) are (nodes, NICs), -1 where a
    node has no such NIC.
    """

    port_up: Int32
    port_down: Int32
    leaf: Int32
    nodes_per_leaf: int

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.leaf.shape[0])

    @property
    def choices(self) -> int:
        """Number of equal paths that `between` knows between two NICs, at most."""
        return 1

    @property
    def period_nodes(self) -> int | None:
        """A shift of all nodes (cyclic) that leaves the choice of paths as it is; None if there is none."""
        return None

    def switch_image(self, shift: int) -> Int64:
        """The switch that each switch becomes when nodes shift by `shift`, a multiple of the period."""
        raise NotImplementedError

    def between(
        self, src: Int64, src_nic: Int64, dst: Int64, dst_nic: Int64, attempt: int = 0, flowlet: Flowlet = 0
    ) -> Int32:
        """Link ids from the switch of NIC ``src_nic[k]`` of node ``src[k]`` to that of the other, (pairs, hops).

        Padded with -1 anywhere; `UNREACHABLE` in the first column. `attempt` takes the next of the equal paths;
        a `flowlet` counts only where each draws a path of its own.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class PathChoice:
    """How one of several equal paths is chosen: `hashed` (ECMP) or spread by places within a period.

    Places are those of the nodes within `period` nodes; `nodes` is the number of all. With `flowlets` each flowlet of
    a stream is hashed for itself.
    """

    hashed: bool
    seed: int
    period: int
    nodes: int
    flowlets: bool = False

    def number(self, src: Int64, dst: Int64, nic: Int64, places: Int64, flowlet: Flowlet = 0) -> Int64:
        """A number >= 0 per pair, taken modulo the number of paths; `places` spreads pairs where nothing is hashed."""
        if not self.hashed:
            return np.asarray(places + nic, dtype=np.int64)
        distance = (dst - src) % self.nodes
        keys = [src % self.period, distance, nic]
        if self.flowlets:
            keys.append(np.broadcast_to(np.asarray(flowlet, np.int64), distance.shape))
        return mixed(keys, self.seed)


def mixed(keys: list[Int64], seed: int) -> Int64:
    """A hash of rows of keys, below 2**62: the finaliser of splitmix64 (Steele et al., OOPSLA 2014) over each key.

    >>> int(mixed([np.array([1]), np.array([2])], seed=0)[0]) == int(mixed([np.array([1]), np.array([2])], seed=0)[0])
    True
    """
    state = np.full(np.shape(keys[0]), seed, dtype=np.uint64)
    for key in keys:
        state = state + key.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return np.asarray(state >> np.uint64(2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class StaticRoutes(FabricRoutes):
    """Routes given by the user between switches or NICs; all other pairs as in `base`.

    ``keys`` are ``a * (switches + NICs) + b`` of the ends, sorted, NICs numbered after the switches; ``paths`` (keys,
    hops) the links, padded with -1.
    """

    base: FabricRoutes
    switches: int
    keys: Int64
    paths: Int32

    @property
    def choices(self) -> int:
        """As the base: where a static route fails, its pair goes by the base's paths."""
        return self.base.choices

    def between(
        self, src: Int64, src_nic: Int64, dst: Int64, dst_nic: Int64, attempt: int = 0, flowlet: Flowlet = 0
    ) -> Int32:
        """The user's route where there is one: of the two NICs first, else of their switches."""
        links = self.base.between(src, src_nic, dst, dst_nic, attempt, flowlet)
        if attempt:
            return links
        hops = max(links.shape[1], self.paths.shape[1])
        links = np.pad(links, ((0, 0), (0, hops - links.shape[1])), constant_values=-1)
        nics = self.leaf.shape[1]
        ends = self.switches + self.leaf.size
        of_nics = (self.switches + src * nics + src_nic) * ends + self.switches + dst * nics + dst_nic
        of_switches = self.leaf[src, src_nic].astype(np.int64) * ends + self.leaf[dst, dst_nic]
        for key in (of_switches, of_nics):
            at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
            known = self.keys[at] == key
            links[known] = -1
            links[known, : self.paths.shape[1]] = self.paths[at[known]]
        return links
