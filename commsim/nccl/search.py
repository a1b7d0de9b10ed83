"""The search for channels: NCCL's depth-first search over link capacities (src/graph/search.cc, 2.22 and later).

A channel is an order of the GPUs of a node (and the NICs at which it enters and leaves) that every link on its way
still has the bandwidth for. The search starts fast and strict and relaxes both until it has found the most bandwidth.
It takes the steps NCCL takes, in its order and within its budgets, so that it also stops where NCCL stops
(`commsim.nccl.laying` lays the channels).
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

from commsim.nccl.channels import MOST_NVLS_HEADS
from commsim.nccl.laying import Laying, crossing
from commsim.nccl.paths import DIS, LOC, NVL, PIX, PXN, SYS, Path
from commsim.nccl.system import GLOBAL_BUDGET, Solution, speeds
from commsim.nccl.version import Version
from commsim.nccl.view import NodeView

_SLOWEST = 0.49
"""Of the best one's speed: slower channels are not tried once there are some."""

_MOST_HEADS = {"NVLS": MOST_NVLS_HEADS, "COLLNET_DIRECT": 8}
"""Heads of a pattern, whatever the number of GPUs: NCCL_MAX_DIRECT_ARITY + 1 for CollNetDirect."""

SIMPLE_ORDER_GBPS = 0.1
"""What NCCL counts for the simple order of the GPUs, which it takes where a search ends with nothing."""


def search(
    view: NodeView, pattern: str, version: Version, *, least: int, most: int, cross_nic: int
) -> Solution:  # fmt: skip
    """The channels of a pattern (RING, BALANCED_TREE, TREE, NVLS, COLLNET_DIRECT); none where nothing fits.

    `cross_nic` is NCCL_CROSS_NIC: 0 never, 1 always, 2 where it gains.
    """
    if pattern == "NVLS" and (not view.nvswitch or view.sm < 90):
        return Solution(pattern, least, most)
    gpus = view.gpus
    if pattern in _MOST_HEADS:
        most = min(_MOST_HEADS[pattern], gpus)
    cross = cross_nic if view.nets > 1 and pattern in ("RING", "BALANCED_TREE") else 0
    if gpus == 1 and pattern != "RING":
        pattern = "TREE"
    if pattern == "NVLS" and not view.nets:
        least = most
    if pattern == "RING" and version >= (2, 26, 0) and view.split_nvlink() and most >= 2:
        least = max(least, 2)  # the tree between two groups of GPUs needs two channels, and has as many as the ring
    with _deep_enough(view, most):
        best = _Search(view, version, pattern, least, most, cross).run()
    if not best.channels and pattern not in _MOST_HEADS:
        gbps, order = SIMPLE_ORDER_GBPS, list(range(gpus))
        return Solution(pattern, 1, most, best.cross_nic, True, gbps, gbps, SYS, SYS, 1, 0, [order], [(0, 0)])
    return best


@contextmanager
def _deep_enough(view: NodeView, most: int) -> Iterator[None]:
    """Channels nest in each other, so the search recurses once per GPU of every channel."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 4000 + 4 * most * (view.gpus + 3)))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class _Budget:
    """What is left of all searches' budget, between two bounds.

    NCCL runs searches that cannot win too, and stops when all are spent. How much of its own budget such a search
    leaves is looked up only where the bounds do not tell whether NCCL goes on.
    """

    def __init__(self, run: Callable[[Solution], int]) -> None:
        self._run = run
        self._least = self._most = GLOBAL_BUDGET
        self._skipped: list[Solution] = []

    def spend(self, steps: int) -> None:
        """For one search; what it left is given back as less than none."""
        self._least -= steps
        self._most -= steps

    def unknown(self, settings: Solution) -> None:
        """What it left, were it run."""
        self._skipped.append(settings.copy())
        self._most += settings.budget

    def over(self) -> bool:
        """Whether all is spent."""
        while self._least < 0 <= self._most:
            settings = self._skipped.pop()
            left = self._run(settings)
            self._least += left
            self._most += left - settings.budget
        return self._most < 0


class _Search:
    """The settings that are tried for one pattern, and what no settings can reach."""

    def __init__(self, view: NodeView, version: Version, pattern: str, least: int, most: int, cross: int) -> None:
        self.view, self.version, self.pattern, self.cross = view, version, pattern, cross
        self.crossed = crossing(version)
        self.nearest, self.farthest = _types(view, version)
        self.speeds = speeds(view.sm, bool(view.nets), version)
        start = Solution(pattern, least, most, int(cross == 1), pattern != "NVLS")
        start.type_intra, start.type_inter = self.nearest
        self.laying = Laying(view, version, start)
        self.tried: dict[tuple[object, ...], int] = {}
        self.bounds: dict[tuple[object, ...], int] = {}
        self.gpu_types = sorted({p.type for row in view.gpu_gpu for p in row})
        self.net_types = sorted({p.type for rows in (view.gpu_net, view.net_gpu) for row in rows for p in row})
        self.cuts: dict[int, list[list[float]]] = {}
        self.outs: dict[int, float] = {}
        self.ports: dict[tuple[int, int, bool], list[list[float]]] = {}

    def run(self) -> Solution:
        """The solution that no other beats; without channels where nothing fits."""
        self._first_pass()
        self._duplicate()
        self._second_pass()
        return self.laying.best

    def _first_pass(self) -> None:
        """Strict and fast first; relaxed step by step until there is a solution that slower ones cannot beat."""
        view, laying, table, cross = self.view, self.laying, self.speeds, self.cross
        try_same = self.pattern != "NVLS"
        total = view.total_gbps
        if view.gpus > 1 and self.pattern != "RING":
            total *= view.gpus / (view.gpus - 1)
        index = 0
        while index < len(table) - 1 and (table[index] > view.max_gbps or table[index] * laying.best.least > total):
            index += 1
        now = replace(laying.best.copy(), intra=table[index], inter=table[index])
        budget = _Budget(self._try)
        while True:
            hopeless = self._hopeless(now)
            budget.spend(now.budget)
            time = 0 if hopeless else self._try(now)
            best = laying.best
            if time == -1 or best.channels * best.inter >= view.total_gbps or (laying.steps <= 0 and best.channels):
                return
            if best.channels and self._settled(now, index):
                return
            if now.same and try_same and not (view.amd and now.type_intra == SYS):
                now.same = False
                continue
            if hopeless:
                budget.unknown(now)
            else:
                budget.spend(-time)
            now.same = try_same
            if best.channels and budget.over():
                return
            if view.sm >= 90 and self.version >= (2, 18, 3) and now.pattern == "BALANCED_TREE":
                now.pattern = "TREE"
                continue
            now.pattern = self.pattern
            most_intra = now.type_inter if view.nets else self.farthest[0]
            if now.type_intra < most_intra and (not best.channels or now.type_intra < best.type_intra):
                now.type_intra = self._after(now.type_intra)
                continue
            now.type_intra = self.nearest[0]
            nearer = not best.channels or now.type_inter < best.type_inter or now.type_inter < PXN
            if view.nets and now.type_inter < self.farthest[1] and nearer:
                now.type_inter = self._after(now.type_inter)
                continue
            now.type_inter = self.nearest[1]
            if cross == 2 and not now.cross_nic and (self.crossed == 1 or self.pattern != "TREE"):
                now.cross_nic = self.crossed
                continue
            now.cross_nic = int(cross == 1)
            if index < len(table) - 1 and (not best.channels or table[index + 1] / best.inter > _SLOWEST):
                index += 1
                now.inter = now.intra = table[index]
                continue
            return

    def _after(self, kind: int) -> int:
        """The next path type that the version knows."""
        return next((k for k in self.view.types if k > kind), DIS)

    def _duplicate(self) -> None:
        """Two half-speed channels for each fast one."""
        best, hopper = self.laying.best, self.view.sm > 80 and self.version >= (2, 16, 5)
        if not best.channels or best.pattern == "NVLS" or best.intra < 25.0:
            return
        if hopper and best.intra < 50.0 and (best.channels > 4 or self.version < (2, 18, 3)):
            return
        doubled = min(best.channels * 2, best.most)
        ratio = -(-doubled // best.channels)
        best.orders += [list(o) for o in best.orders[: doubled - best.channels]]
        best.nets += best.nets[: doubled - best.channels]
        best.channels, best.intra, best.inter = doubled, best.intra / ratio, best.inter / ratio

    def _second_pass(self) -> None:
        """Whether the same number of channels also fits at a higher speed: trees inside a node, NVLS outside."""
        best, table = self.laying.best, self.speeds
        if not best.channels:
            return
        index = next((i for i, gbps in enumerate(table) if gbps <= best.inter), len(table) - 1)
        now = replace(best.copy(), intra=table[index], inter=table[index], least=best.channels)
        time = -1
        while time != 0 and index > 0:
            best = self.laying.best
            faster = table[index - 1]
            if best.pattern == "RING":
                now.intra = now.inter = faster
            elif best.pattern == "NVLS" and now.inter == best.inter and now.inter < 2 * now.intra:
                now.least = now.most = best.channels
                now.inter = faster
            elif best.pattern != "NVLS" and now.intra == best.intra and now.intra < 2 * now.inter:
                now.intra = faster
            else:
                return
            index -= 1
            time = 0 if self._hopeless(now) else self._try(now)

    def _try(self, now: Solution) -> int:
        """One search with some settings; what is left of its budget, -1 where it found all it could."""
        # A farther limit that no path has changes nothing: the same search would end in the same way.
        key = (
            now.pattern, now.cross_nic, now.same, now.intra, now.inter, now.least, now.most,
            bisect_right(self.gpu_types, now.type_intra), bisect_right(self.net_types, now.type_inter),
        )  # fmt: skip
        if key not in self.tried:
            self.tried[key] = self.laying.fill(now)
        return self.tried[key]

    # -- bounds ---------------------------------

    def _hopeless(self, now: Solution) -> bool:
        """Whether no channels under some settings can replace the best: NCCL would search its budget away."""
        best = self.laying.best
        if now.pattern in _MOST_HEADS:
            return False
        most = min(now.most, self._most_channels(now))
        if most < now.least or not best.channels:
            return most < now.least
        ours, theirs = most * now.intra, best.channels * best.intra
        if ours != theirs:
            return ours < theirs
        # Equal bandwidth wins by fewer hops only, and by none but of the same pattern.
        alike = (now.pattern, now.cross_nic) == (best.pattern, best.cross_nic)
        return not alike or most * self._fewest_hops(now) >= best.hops

    def _settled(self, now: Solution, index: int) -> bool:
        """Whether no settings that are still to come, from this speed on, can replace the best."""
        best = self.laying.best
        patterns = {best.pattern, now.pattern} | ({"TREE"} if now.pattern == "BALANCED_TREE" else set())
        crossings = {int(self.cross == 1), now.cross_nic} | ({self.crossed} if self.cross == 2 else set())
        slower = [gbps for gbps in self.speeds[index + 1 :] if gbps / best.inter > _SLOWEST]
        return all(
            self._hopeless(
                replace(now, pattern=pattern, cross_nic=cross, type_intra=SYS, type_inter=SYS, intra=gbps, inter=gbps)
            )
            for pattern, cross, gbps in product(patterns, crossings, [self.speeds[index], *slower])
        )

    def _fewest_hops(self, now: Solution) -> int:
        """Links that one channel takes at the least."""

        def least(rows: list[list[Path]], farthest: int) -> int:
            return min((len(p.links) for row in rows for p in row if p.links and p.type <= farthest), default=0)

        view = self.view
        inside = self._leaves(now) * least(view.gpu_gpu, now.type_intra)
        if not view.nets:
            return inside
        return inside + least(view.net_gpu, now.type_inter) + least(view.gpu_net, now.type_inter)

    def _leaves(self, now: Solution) -> int:
        """GPUs of a channel that hand on to another of the node."""
        return self.view.gpus - (1 if self.view.nets or now.pattern != "RING" else 0)

    def _most_channels(self, now: Solution) -> int:
        """More channels than this cannot fit: every one leaves a NIC, and every GPU but the last of a chain."""
        leaves, ring = self._leaves(now), now.pattern == "RING"
        key = now.most, leaves, ring, now.intra, now.inter, now.type_intra, now.type_inter
        if key not in self.bounds:
            self.bounds[key] = self._bound_of_channels(now, leaves, ring=ring)
        return self.bounds[key]

    def _bound_of_channels(self, now: Solution, leaves: int, *, ring: bool) -> int:
        view = self.view
        bounds = [now.most]
        if view.nets and now.inter:
            bounds += [sum(int(left / now.inter + 1e-6) for left in cut) for cut in self._cuts(now.type_inter)]
        if view.gpus > 1 and now.intra:
            bounds.append(int(self._out_gbps(now.type_intra) / (leaves * now.intra) + 1e-6))
            least = min(now.intra, now.inter) if view.nets else now.intra
            ports = self._ports(now.type_intra, now.type_inter, ring=ring)
            bounds += [sum(int(left / least + 1e-6) for left in port) for port in ports]
        return min(bounds)

    def _ports(self, farthest: int, to_nets: int, *, ring: bool) -> list[list[float]]:
        """Sets of links (GB/s) of which every channel takes one, for each GPU: a channel passes all of them.

        A ring enters and leaves every GPU. The last one of a tree's chain is not left, and without NICs the first one
        not entered. A GPU that no other reaches, and that reaches no other, leaves no channel.
        """
        key = farthest, to_nets, ring
        if key not in self.ports:
            view, sets = self.view, list[list[float]]()
            for gpu in range(view.gpus):
                into = {row[gpu].links[-1] for row in view.gpu_gpu if row[gpu].links and row[gpu].type <= farthest}
                out = {path.links[0] for path in view.gpu_gpu[gpu] if path.links and path.type <= farthest}
                if not into and not out:
                    sets.append([])
                    continue
                into |= {row[gpu].links[-1] for row in view.net_gpu if row[gpu].links and row[gpu].type <= to_nets}
                out |= {path.links[0] for path in view.gpu_net[gpu] if path.links and path.type <= to_nets}
                taken = [into, out] if ring else [into if view.nets else into | out]
                sets += [[view.left[link] for link in links] for links in taken]
            self.ports[key] = sets
        return self.ports[key]

    def _cuts(self, farthest: int) -> list[list[float]]:
        """Sets of links (GB/s) of which every path from a NIC up to a type takes one: the NICs' own, and the GPUs'."""
        if farthest not in self.cuts:
            view = self.view
            paths = [p.links for row in view.net_gpu for p in row if p.type <= farthest]
            ends = [[links[at] for links in paths] for at in (0, 1, -1) if all(len(links) > 1 for links in paths)]
            self.cuts[farthest] = [[view.left[link] for link in dict.fromkeys(cut)] for cut in ends]
        return self.cuts[farthest]

    def _out_gbps(self, farthest: int) -> float:
        """What all links together carry on which GPUs go to others on paths up to a type."""
        if farthest not in self.outs:
            first = {p.links[0] for row in self.view.gpu_gpu for p in row if p.links and p.type <= farthest}
            self.outs[farthest] = sum(self.view.left[link] for link in first)
        return self.outs[farthest]


def _types(view: NodeView, version: Version) -> tuple[tuple[int, int], tuple[int, int]]:
    """The nearest path types tried, inside the node and to NICs, and the farthest.

    From 2.25 on those of the paths there are, of GPUs to NICs only, up to 2.28 on every GPU. So a tree that comes
    back from a NIC through the host, where PXN leads there, is not found (NVIDIA/nccl issue 1876).
    """
    if version < (2, 25, 0):
        return (LOC if view.gpus == 1 else NVL, PIX), (SYS, SYS)
    between = [p.type for a, row in enumerate(view.gpu_gpu) for b, p in enumerate(row) if a != b]
    nearest, farthest = (min(between), max(between)) if between else (LOC, SYS)
    if not view.nets:
        return (nearest, PIX), (farthest, SYS)
    to_nets = [p.type for row in view.gpu_net for p in row]
    bounded = version < (2, 29, 0) or view.sm >= 90
    return (nearest, min(SYS, *to_nets)), (farthest, max(to_nets) if bounded else SYS)
