"""The search for channels: NCCL's depth-first search over link capacities (src/graph/search.cc, 2.22 and later).

A channel is an order of the GPUs of a node (and the NICs at which it enters and leaves) that every link on its way
still has the bandwidth for. The search starts fast and strict and relaxes both until it has found the most bandwidth.
It takes the steps NCCL takes, in its order and within its budgets, so that it also stops where NCCL stops.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commsim.nccl.channels import MOST_NVLS_HEADS
from commsim.nccl.paths import DIS, LOC, NO_PATH, NVL, PIX, PXN, SYS, Path
from commsim.nccl.system import speeds
from commsim.nccl.version import Version
from commsim.nccl.view import NodeView, farthest, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SLOWEST = 0.49
"""Of the best one's speed: slower channels are not tried once there are some."""

_MOST_STEPS = 1 << 18
"""Of all searches for one pattern together, once there is a solution; NCCL allows twice as many."""

_GLOBAL_BUDGET, _BUDGET, _BUDGET_SAME, _BUDGET_IN_ORDER = 1 << 19, 1 << 14, 1 << 8, 1 << 10
_MOST_HEADS = {"NVLS": MOST_NVLS_HEADS, "COLLNET_DIRECT": 8}
"""Heads of a pattern, whatever the number of GPUs: NCCL_MAX_DIRECT_ARITY + 1 for CollNetDirect."""

SIMPLE_ORDER_GBPS = 0.1
"""What NCCL counts for the simple order of the GPUs, which it takes where a search ends with nothing."""

_TREES = ("TREE", "BALANCED_TREE", "SPLIT_TREE")
_IN_ORDER, _REPLAY = 1, 2

_CROSSING_SINCE: Version = (2, 23, 0)
"""From then on only rings that cross NICs do so in pairs of channels, each the way of the other; trees as they like."""

_BOUNDED_SINCE: Version = (2, 25, 0)
_UNBOUNDED_SINCE: Version = (2, 29, 0)
_SPLIT_SINCE: Version = (2, 26, 0)

_LOCAL_GPUS_SINCE: Version = (2, 27, 0)
_LOCAL_GPU_FIRST_SINCE: Version = (2, 27, 5)
"""How a version picks the GPU at which a channel enters from a NIC (ncclTopoSearchRecNet)."""


@dataclass
class Found:
    """A state of the search: the settings in force and the channels laid so far."""

    pattern: str
    least: int
    most: int
    cross_nic: int = 0
    same: bool = True
    intra: float = 0.0
    inter: float = 0.0
    type_intra: int = NVL
    type_inter: int = PIX
    channels: int = 0
    hops: int = 0
    orders: list[list[int]] = field(default_factory=list)
    nets: list[tuple[int, int]] = field(default_factory=list)

    def copy(self) -> Found:
        """A state of its own."""
        count = self.channels
        return Found(
            self.pattern, self.least, self.most, self.cross_nic, self.same, self.intra, self.inter, self.type_intra,
            self.type_inter, count, self.hops, [list(o) for o in self.orders[:count]], self.nets[:count],
        )  # fmt: skip


def search(
    view: NodeView, pattern: str, version: Version, *, least: int, most: int, cross_nic: int = 2
) -> Found:  # fmt: skip
    """The channels of a pattern (RING, BALANCED_TREE, TREE, NVLS, COLLNET_DIRECT); none where nothing fits.

    `cross_nic` is NCCL_CROSS_NIC: 0 never, 1 always, 2 where it gains.
    """
    with _deep_enough(view, most):
        return _Search(view, version, cross_nic).run(pattern, least, most)


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

    def __init__(self, search: _Search) -> None:
        self.search = search
        self.least = self.most = _GLOBAL_BUDGET
        self.skipped: list[Found] = []

    def spend(self, steps: int) -> None:
        """For one search."""
        self.least -= steps
        self.most -= steps

    def back(self, steps: int) -> None:
        """What it left."""
        self.spend(-steps)

    def unknown(self, settings: Found) -> None:
        """What it left, were it run."""
        self.skipped.append(settings.copy())
        self.most += _BUDGET_SAME if settings.same else _BUDGET

    def over(self) -> bool:
        """Whether all is spent."""
        while self.least < 0 <= self.most:
            settings = self.skipped.pop()
            kept, self.search.now = self.search.now, settings
            left = self.search._try()
            self.search.now = kept
            self.least += left
            self.most += left - (_BUDGET_SAME if settings.same else _BUDGET)
        return self.most < 0


class _Search:
    def __init__(self, view: NodeView, version: Version, cross_nic: int) -> None:
        self.v, self.version, self.may_cross = view, version, cross_nic
        self.now = Found("RING", 1, 1)
        self.best = Found("RING", 1, 1)
        self.used = [0] * view.gpus
        self.time = [0]
        self.order_of_nets: dict[tuple[int, int], list[int]] = {}
        self.steps = _MOST_STEPS * 8 // max(8, view.gpus) if view.gpus > 8 else 2 * _GLOBAL_BUDGET
        self.tried: dict[tuple[object, ...], int] = {}
        self.gpu_types = sorted({p.type for row in view.gpu_gpu for p in row})
        self.net_types = sorted({p.type for rows in (view.gpu_net, view.net_gpu) for row in rows for p in row})
        self.local_gpu = [view.local_gpu(n) for n in range(view.nets)]
        self.left = [round(1000 * gbps) for gbps in view.left]  # MB/s, as NCCL rounds what is left
        self.net_left = list(view.net_left)
        self.costs: dict[tuple[int, float], tuple[tuple[int, int], ...]] = {}
        self.cuts: dict[int, list[list[float]]] = {}
        self.ahead: dict[tuple[int, int], list[tuple[int, tuple[int, int], int]]] = {}
        self.outs: dict[int, float] = {}

    # -- settings ---------------------------------

    def run(self, pattern: str, least: int, most: int) -> Found:
        view, gpus = self.v, self.v.gpus
        switches = ("NVLS", "COLLNET_DIRECT")
        if pattern == "NVLS" and (not view.nvswitch or view.sm < 90):
            return Found(pattern, least, most)
        if pattern in switches:
            most = min(_MOST_HEADS[pattern], gpus)
        crosses = view.nets > 1 and pattern in ("RING", "BALANCED_TREE", "SPLIT_TREE")
        cross = self.may_cross if crosses else 0
        if gpus == 1 and pattern != "RING":
            pattern = "TREE"
        if pattern == "NVLS" and not view.nets:
            least = most
        if pattern == "RING" and self.version >= _SPLIT_SINCE and view.split_nvlink() and most >= 2:
            least = max(least, 2)  # the tree between two groups of GPUs needs two channels, and has as many as the ring
        self._types()
        self.best = Found(
            pattern, least, most, int(cross == 1), pattern != "NVLS", 0.0, 0.0, self.nearest[0], self.nearest[1]
        )
        self._first_pass(pattern, cross, pattern != "NVLS")
        self._duplicate()
        self._second_pass()
        if not self.best.channels and pattern not in switches:
            crossing, order, gbps = self.best.cross_nic, list(range(gpus)), SIMPLE_ORDER_GBPS
            self.best = Found(pattern, 1, most, crossing, True, gbps, gbps, SYS, SYS, 1, 0, [order], [(0, 0)])
        return self.best

    def _types(self) -> None:
        """The nearest and farthest path types tried, inside the node and to NICs.

        From 2.25 on those of the paths there are, of GPUs to NICs only, up to 2.28 on every GPU. So a tree that comes
        back from a NIC through the host, where PXN leads there, is not found (NVIDIA/nccl issue 1876).
        """
        view = self.v
        self.nearest, self.farthest = (LOC if view.gpus == 1 else NVL, PIX), (SYS, SYS)
        if self.version < _BOUNDED_SINCE:
            return
        intra, inter = (view.nearest_gpu_type(), view.worst_gpu_type()), (PIX, SYS)
        if view.gpus == 1:
            intra = (LOC, SYS)
        if view.nets:
            inter = (min(SYS, nearest(view.gpu_net)), farthest(view.gpu_net))
            if self.version >= _UNBOUNDED_SINCE and view.sm < 90:
                inter = (inter[0], SYS)
        self.nearest, self.farthest = (intra[0], inter[0]), (intra[1], inter[1])

    def _after(self, kind: int) -> int:
        """The next path type that the version knows."""
        return next((k for k in self.v.types if k > kind), DIS)

    def _first_pass(self, pattern: str, cross: int, try_same: bool) -> None:
        """Strict and fast first; relaxed step by step until there is a solution that slower ones cannot beat."""
        view, best = self.v, self.best
        table = speeds(view.sm, bool(view.nets), self.version)
        total = view.total_gbps
        if view.gpus > 1 and pattern != "RING":
            total *= view.gpus / (view.gpus - 1)
        index = 0
        while index < len(table) - 1 and (table[index] > view.max_gbps or table[index] * best.least > total):
            index += 1
        now = self.now = best.copy()
        now.intra = now.inter = table[index]
        budget = _Budget(self)
        free = 2 if self.version >= _CROSSING_SINCE else 1
        while True:
            hopeless = self._hopeless()
            budget.spend(_BUDGET_SAME if now.same else _BUDGET)
            time = 0 if hopeless else self._try()
            best = self.best
            if time == -1 or best.channels * best.inter >= view.total_gbps or (self.steps <= 0 and best.channels):
                return
            if best.channels and self._settled(table, index, cross, free):
                return
            if now.same and try_same and not (view.amd and now.type_intra == SYS):
                now.same = False
                continue
            if hopeless:
                budget.unknown(now)
            else:
                budget.back(time)
            now.same = try_same
            if best.channels and budget.over():
                return
            if view.sm >= 90 and now.pattern == "BALANCED_TREE":
                now.pattern = "TREE"
                continue
            now.pattern = pattern
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
            if cross == 2 and not now.cross_nic and (free == 1 or pattern in ("RING", "BALANCED_TREE")):
                now.cross_nic = free
                continue
            now.cross_nic = int(cross == 1)
            if index < len(table) - 1 and (not best.channels or table[index + 1] / best.inter > _SLOWEST):
                index += 1
                now.inter = now.intra = table[index]
                continue
            return

    def _duplicate(self) -> None:
        """Two half-speed channels for each fast one."""
        best = self.best
        if not best.channels or best.pattern == "NVLS" or best.intra < 25.0:
            return
        if self.v.sm > 80 and best.intra < 50.0 and best.channels > 4:
            return
        doubled = min(best.channels * 2, best.most)
        ratio = -(-doubled // best.channels)
        best.orders += [list(o) for o in best.orders[: doubled - best.channels]]
        best.nets += best.nets[: doubled - best.channels]
        best.channels, best.intra, best.inter = doubled, best.intra / ratio, best.inter / ratio

    def _second_pass(self) -> None:
        """Whether the same number of channels also fits at a higher speed: trees inside a node, NVLS outside."""
        if not self.best.channels:
            return
        table = speeds(self.v.sm, bool(self.v.nets), self.version)
        index = 0
        while index < len(table) - 1 and table[index] > self.best.inter:
            index += 1
        now = self.now = self.best.copy()
        now.intra = now.inter = table[index]
        now.least = self.best.channels
        time = -1
        while time != 0 and index > 0:
            best = self.best
            if best.pattern == "RING":
                index -= 1
                now.intra = now.inter = table[index]
            elif best.pattern == "NVLS" and now.inter == best.inter and now.inter < 2 * now.intra:
                index -= 1
                now.least = now.most = best.channels
                now.inter = table[index]
            elif best.pattern != "NVLS" and now.intra == best.intra and now.intra < 2 * now.inter:
                index -= 1
                now.intra = table[index]
            else:
                return
            time = 0 if self._hopeless() else self._try()

    def _try(self) -> int:
        """One search with the settings in force; what is left of its budget, -1 where it found all it could."""
        self.time = [_BUDGET_SAME if self.now.same else _BUDGET]
        now = self.now
        # A farther limit that no path has changes nothing: the same search would end in the same way.
        key = (
            now.pattern, now.cross_nic, now.same, now.intra, now.inter, now.least, now.most,
            bisect_right(self.gpu_types, now.type_intra), bisect_right(self.net_types, now.type_inter),
        )  # fmt: skip
        if key not in self.tried:
            now.channels, now.hops = 0, 0
            now.orders, now.nets = [], []
            self._channel()
            self.tried[key] = self.time[0]
        return self.tried[key]

    def _hopeless(self) -> bool:
        """Whether no channels under these settings can replace the best: NCCL would search its budget away."""
        now, best = self.now, self.best
        if now.pattern in ("NVLS", "COLLNET_DIRECT"):
            return False
        most = min(now.most, self._most_channels())
        if most < now.least or not best.channels:
            return most < now.least
        ours, theirs = most * now.intra, best.channels * best.intra
        if ours != theirs:
            return ours < theirs
        # Equal bandwidth wins by fewer hops only, and by none but of the same pattern.
        alike = (now.pattern, now.cross_nic) == (best.pattern, best.cross_nic)
        return not alike or most * self._fewest_hops() >= best.hops

    def _settled(self, table: tuple[float, ...], index: int, cross: int, free: int) -> bool:
        """Whether no settings that are still to come can replace the best."""
        kept = self.now
        patterns = {self.best.pattern, kept.pattern} | ({"TREE"} if kept.pattern == "BALANCED_TREE" else set())
        crossings = {int(cross == 1), kept.cross_nic} | ({free} if cross == 2 else set())
        last = index
        while last + 1 < len(table) and table[last + 1] / self.best.inter > _SLOWEST:
            last += 1
        try:
            for pattern in patterns:
                for crossing in crossings:
                    for gbps in table[index : last + 1]:
                        self.now = replace(
                            kept, pattern=pattern, cross_nic=crossing, type_intra=SYS, type_inter=SYS, intra=gbps,
                            inter=gbps, orders=[], nets=[],
                        )  # fmt: skip
                        if not self._hopeless():
                            return False
        finally:
            self.now = kept
        return True

    def _fewest_hops(self) -> int:
        """Links that one channel takes at the least."""

        def least(rows: list[list[Path]], farthest: int) -> int:
            return min((len(p.links) for row in rows for p in row if p.links and p.type <= farthest), default=0)

        view, now = self.v, self.now
        steps = view.gpus - (1 if view.nets or now.pattern != "RING" else 0)
        inside = steps * least(view.gpu_gpu, now.type_intra)
        if not view.nets:
            return inside
        return inside + least(view.net_gpu, now.type_inter) + least(view.gpu_net, now.type_inter)

    def _most_channels(self) -> int:
        """More channels than this cannot fit: every one leaves a NIC, and every GPU but the last of a chain."""
        now, view = self.now, self.v
        bounds = [now.most]
        if view.nets and now.inter:
            bounds += [sum(int(left / now.inter + 1e-6) for left in cut) for cut in self._cuts(now.type_inter)]
        if view.gpus > 1 and now.intra:
            leaves = view.gpus - (1 if view.nets or now.pattern != "RING" else 0)
            bounds.append(int(self._out_gbps(now.type_intra) / (leaves * now.intra) + 1e-6))
        return min(bounds)

    def _cuts(self, farthest: int) -> list[list[float]]:
        """Sets of links (GB/s) of which every path from a NIC up to a type takes one: the NICs' own, and the GPUs'."""
        if farthest not in self.cuts:
            view = self.v
            paths = [p.links for row in view.net_gpu for p in row if p.type <= farthest]
            ends = [[links[at] for links in paths] for at in (0, 1, -1) if all(len(links) > 1 for links in paths)]
            self.cuts[farthest] = [[view.left[link] for link in dict.fromkeys(cut)] for cut in ends]
        return self.cuts[farthest]

    def _out_gbps(self, farthest: int) -> float:
        """What all links together carry on which GPUs go to others on paths up to a type."""
        if farthest not in self.outs:
            first = {p.links[0] for row in self.v.gpu_gpu for p in row if p.links and p.type <= farthest}
            self.outs[farthest] = sum(self.v.left[link] for link in first)
        return self.outs[farthest]

    # -- links ---------------------------------

    def _take(self, path: Path, gbps: float, *, to_gpu: bool = False) -> bool:
        """Takes bandwidth of every link of a path, or of none; `to_gpu`: of one that begins at a NIC or a switch."""
        left, costs = self.left, self._costs(path, gbps, to_gpu)
        for position, (link, cost) in enumerate(costs):
            if left[link] < cost:
                for done, given in costs[:position]:
                    left[done] += given
                return False
            left[link] -= cost
        self.now.hops += len(path.links)
        return True

    def _return(self, path: Path, gbps: float, *, to_gpu: bool = False) -> None:
        left = self.left
        for link, cost in self._costs(path, gbps, to_gpu):
            left[link] += cost
        self.now.hops -= len(path.links)

    def _costs(self, path: Path, gbps: float, to_gpu: bool) -> tuple[tuple[int, int], ...]:
        """What a channel takes of the links of a path: (link, MB/s)."""
        key = (id(path), gbps)
        found = self.costs.get(key)
        if found is None:
            view, costs = self.v, list[tuple[int, int]]()
            for link in path.links:
                cost = gbps * 6 / 5 if path.through_intel and view.is_pci[link] else gbps
                costs.append((link, round(1000 * cost)))
                if to_gpu and view.into_old_gpu[link]:  # writes into a GPU before Ampere cost reads
                    costs.append((view.reverse[link], round(1000 * cost / 8)))
            found = self.costs[key] = tuple(costs)
        return found

    def _fits(self, path: Path, back: Path | None, limit: int) -> bool:
        if path.type > limit:
            return False
        return self.now.pattern not in _TREES or back is None or back.type <= limit

    # -- channels ---------------------------------

    def _channel(self) -> None:
        """Lays one more channel in every way, and so on below it."""
        view, now = self.v, self.now
        last = view.gpus - 1
        if view.nets:
            self._from_nets({"RING": last, "SPLIT_TREE": 1}.get(now.pattern, 0))
            return
        to_first = last if now.pattern == "RING" else -1
        if now.pattern == "NVLS":
            self._first_gpu(now.channels, -1, -1, 0, self.time)
            return
        if now.channels == 0:
            self._first_gpu(0, -1, to_first, _IN_ORDER, self.time)
        else:
            self._first_gpu(now.orders[now.channels - 1][0], -1, to_first, _REPLAY, self.time)
        if not now.same or now.channels == 0:
            for gpu in range(view.gpus):
                if self.time[0] > 0:
                    self._first_gpu(gpu, -1, to_first, 0, self.time)

    def _first_gpu(self, gpu: int, to_net: int, to_first: int, forced: int, time: list[int]) -> None:
        flag = 1 << self.now.channels
        self.used[gpu] ^= flag
        self._at(gpu, 0, to_net, to_first, forced, time)
        self.used[gpu] ^= flag

    def _go(
        self, path: Path, back: Path | None, intra: bool, gpu: int, step: int, to_net: int, to_first: int,
        forced: int, time: list[int],
    ) -> None:  # fmt: skip
        now = self.now
        gbps = now.intra if intra else now.inter
        if not self._fits(path, back, now.type_intra if intra else now.type_inter):
            return
        if self._take(path, gbps, to_gpu=not intra):
            flag = 1 << now.channels
            self.used[gpu] ^= flag
            self._at(gpu, step, to_net, to_first, forced, time)
            self.used[gpu] ^= flag
            self._return(path, gbps, to_gpu=not intra)

    def _at(self, gpu: int, step: int, to_net: int, to_first: int, forced: int, time: list[int]) -> None:
        """At a GPU of the channel: on to the NIC, the next GPU, or back to the first."""
        if time[0] <= 0:
            return
        time[0] -= 1
        self.steps -= 1
        view, now = self.v, self.now
        if step == view.gpus:
            self._complete(time)
            return
        while len(now.orders) <= now.channels:
            now.orders.append([0] * view.gpus)
            now.nets.append((-1, -1))
        now.orders[now.channels][step] = gpu
        if step == to_net:
            self._to_net(gpu, step, to_first, forced, time)
        elif now.pattern == "NVLS":
            self._through_switch(gpu, time)
        elif now.pattern == "COLLNET_DIRECT":
            self._to_all(gpu, time)
        elif step < view.gpus - 1:
            for there in self._next(gpu, step, to_net, forced):
                self._go(
                    view.gpu_gpu[gpu][there], view.gpu_gpu[there][gpu], True, there, step + 1, to_net, to_first,
                    forced, time,
                )  # fmt: skip
        elif step == to_first:
            first = now.orders[now.channels][0]
            path = view.gpu_gpu[gpu][first]
            if first == gpu:
                self._at(gpu, step + 1, to_net, -1, forced, time)
            elif self._fits(path, view.gpu_gpu[first][gpu], now.type_intra) and self._take(path, now.intra):
                self._at(first, step + 1, to_net, -1, forced, time)
                self._return(path, now.intra)
        else:
            self._at(gpu, view.gpus, -1, -1, forced, time)

    def _complete(self, time: list[int]) -> None:
        now = self.now
        now.channels += 1
        if self._better():
            self.best = now.copy()
            if now.channels == now.most:
                time[0] = self.time[0] = -1
        if now.channels < now.most:
            budget, self.time = self.time, time
            self._channel()
            self.time = budget
        now.channels -= 1

    def _better(self) -> bool:
        now, best = self.now, self.best
        if now.channels < now.least:
            return False
        if now.pattern == "NVLS":
            more = best.channels < now.channels <= self.v.gpus
            return more or now.channels * now.inter > best.channels * best.inter
        ours, theirs = now.channels * now.intra, best.channels * best.intra
        if ours != theirs:
            return ours > theirs
        return now.pattern == best.pattern and now.cross_nic == best.cross_nic and now.hops < best.hops

    # -- next GPU ---------------------------------

    def _next(self, gpu: int, step: int, to_net: int, forced: int) -> list[int]:
        """The GPUs to go on to, most promising first."""
        view, now = self.v, self.now
        if forced == _IN_ORDER:
            return [step + 1]
        if forced == _REPLAY:
            return [now.orders[now.channels - 1][step + 1]]
        flag = 1 << now.channels
        if view.nvswitch:
            return self._neighbours(gpu, flag)
        net = now.nets[now.channels][0] if to_net != -1 else -1
        ahead = [one for one in self._ahead(gpu, net) if not self.used[one[0]] & flag]
        if net >= 0:
            port = self._port
            ahead.sort(key=lambda one: (one[2], -port(one[0])))
        if to_net not in (-1, step + 1) and all(one[1] == ahead[0][1] for one in ahead):
            ahead.reverse()
        return [one[0] for one in ahead]

    def _ahead(self, gpu: int, net: int) -> list[tuple[int, tuple[int, int], int]]:
        """All GPUs that can follow one: (GPU, its score inside the node, its score to a NIC), by all but the second."""
        if (gpu, net) not in self.ahead:
            view, scores = self.v, []
            for i in range(1, view.gpus):
                there = (gpu + i) % view.gpus
                path, towards = view.gpu_gpu[gpu][there], view.net_gpu[net][there] if net >= 0 else NO_PATH
                if path.links:
                    inside = (-int(path.gbps), len(path.links))
                    scores.append((-int(towards.gbps), len(towards.links), inside, i, there))
            self.ahead[gpu, net] = [(there, inside, wide) for wide, _, inside, _, there in sorted(scores)]
        return self.ahead[gpu, net]

    def _port(self, gpu: int) -> int:
        """What the PCIe port of a GPU has left, in whole GB/s."""
        return min(self.left[link] for link in self.v.gpu_ports[gpu]) // 1000 if self.v.gpu_ports[gpu] else -1

    def _neighbours(self, gpu: int, flag: int) -> list[int]:
        """Behind an NVSwitch only the next and the previous GPU are tried, as it prefers few peers."""
        count = self.v.gpus
        before, after = (gpu - 1) % count, (gpu + 1) % count
        preferred = {"RING": (after, before), "TREE": (after,), "COLLNET_DIRECT": (after,)}.get(
            self.now.pattern, (before, after)
        )
        chosen: list[int] = []
        for there in dict.fromkeys(preferred):
            if there != gpu and not self.used[there] & flag and self.v.gpu_gpu[gpu][there].links:
                chosen.insert(0, there)
        return chosen

    # -- NICs ---------------------------------

    def _nets(self, gpu: int) -> list[int]:
        """The NICs to try, nearest first; `gpu` -1 looks from all GPUs."""
        key = (gpu, self.now.type_inter)
        if key not in self.order_of_nets:
            view = self.v
            gpus = range(view.gpus) if gpu == -1 else [gpu]
            found: list[int] = []
            for g in gpus:
                own: list[int] = []
                for channel in range(64):
                    net = view.local_net(g, channel)
                    if net is None or (own and net == own[0]):
                        break
                    own.append(net)
                found += [n for n in dict.fromkeys(own) if n not in found]
            for kind in range(self.now.type_inter + 1):
                for g in gpus:
                    for n, path in enumerate(view.gpu_net[g]):
                        if path.type == kind and n not in found:
                            found.append(n)
            self.order_of_nets[key] = found
        return self.order_of_nets[key]

    def _from_nets(self, to_net: int) -> None:
        view, now = self.v, self.now
        nets = self._nets(-1)
        heads_only = now.pattern in ("NVLS", "COLLNET_DIRECT")
        gbps = int(now.inter)  # of the port in whole GB/s; the link behind it counts exactly
        paired = now.cross_nic and now.channels & 1 and self._paired()
        for i in range(len(nets)):
            net = nets[(now.channels + i) % len(nets)]
            # The order of the PCI bus is tried from every NIC, whatever is left of the budget.
            if self.net_left[net] < gbps or (self.time[0] <= 0 and (now.channels or view.nvswitch)):
                continue
            if paired and net != now.nets[now.channels - 1][1]:
                continue
            while len(now.nets) <= now.channels:
                now.nets.append((-1, -1))
                now.orders.append([0] * view.gpus)
            now.nets[now.channels] = (net, now.nets[now.channels][1])
            self.net_left[net] -= gbps
            if heads_only:
                found = self._head(net, to_net, len(nets))
            else:
                found = False
                self._gpus_of(net, to_net, gbps)
            self.net_left[net] += gbps
            if found:
                return

    def _paired(self) -> bool:
        """Whether an odd channel goes the way of the one before, the other way round."""
        now = self.now
        return now.cross_nic == 2 and now.pattern == "RING" if self.version >= _CROSSING_SINCE else bool(now.cross_nic)

    def _head(self, net: int, to_net: int, nets: int) -> bool:
        """Reductions in a switch only look for the GPU beside each NIC; whether one was tried."""
        view, now = self.v, self.now
        if now.channels >= nets:
            return False
        gpu = self.local_gpu[net]
        if gpu is None or any(now.orders[c][0] == gpu for c in range(now.channels)):
            return False
        self._go(view.net_gpu[net][gpu], None, False, gpu, 0, to_net, -1, 0, self.time)
        return True

    def _gpus_of(self, net: int, to_net: int, gbps: int) -> None:
        view, now = self.v, self.now

        def start(gpu: int, forced: int, time: list[int]) -> None:
            self._go(view.net_gpu[net][gpu], view.gpu_net[gpu][net], False, gpu, 0, to_net, -1, forced, time)

        once = self.version >= _LOCAL_GPU_FIRST_SINCE  # an order is either that of the channel before, or a new one
        if now.channels > 0 and (now.same or not once):
            start(now.orders[now.channels - 1][0], _REPLAY, self.time)
        if now.channels and now.same:
            return
        if now.channels == 0 and not view.nvswitch:
            own = [_BUDGET_IN_ORDER]
            start(0, _IN_ORDER, own)
            if own[0] == -1:
                self.time[0] = -1
        for gpu in self._entries(net, gbps):
            if self.time[0] > 0:
                start(gpu, 0, self.time)

    def _entries(self, net: int, gbps: int) -> list[int]:
        """The GPUs at which a channel may enter from a NIC."""
        view, paths = self.v, self.v.net_gpu[net]
        if self.version >= _LOCAL_GPUS_SINCE:
            near = view.nearest(paths)
            own = self.local_gpu[net]
            if self.version < _LOCAL_GPU_FIRST_SINCE or own is None:
                return near
            return [own, *(g for g in near if g != own)]
        widest = max(p.gbps for p in paths)
        hops = min(len(p.links) for p in paths if p.gbps == widest)
        turned = ((self.now.channels + i) % view.gpus for i in range(view.gpus))
        return [g for g in turned if (paths[g].gbps, len(paths[g].links)) == (widest, hops)] if widest >= gbps else []

    def _to_net(self, gpu: int, step: int, to_first: int, forced: int, time: list[int]) -> None:
        view, now = self.v, self.now
        entered, left = now.nets[now.channels]
        balanced = now.pattern == "BALANCED_TREE"
        gbps = now.inter / 2 if balanced else now.inter
        paired = now.cross_nic and now.channels & 1 and self._paired()
        for net in self._nets(gpu):
            if time[0] <= 0:
                return
            if now.pattern == "TREE" and net != entered:
                continue
            if now.cross_nic == 0 and net != entered:
                continue
            if paired and net != now.nets[now.channels - 1][0]:
                continue
            if balanced and step > 0 and net != left:
                continue
            path = view.gpu_net[gpu][net]
            if not self._fits(path, view.net_gpu[net][gpu], now.type_inter):
                continue
            if self._take(path, gbps):
                now.nets[now.channels] = (entered, net)
                self._at(gpu, step, 1 if balanced and step == 0 else -1, to_first, forced, time)
                self._return(path, gbps)

    # -- reductions in switches ---------------------------------

    def _through_switch(self, head: int, time: list[int]) -> None:
        """NVLS: every GPU sends its share to the switch and gets it back; the head twice."""
        view, now = self.v, self.now
        taken: list[tuple[Path, float]] = []
        fits = True
        for paths in (view.switch_gpu, view.gpu_switch):
            for gpu, path in enumerate(paths):
                gbps = now.intra * (2 if gpu == head else 1)
                if not fits or path.type > now.type_intra or not self._take(path, gbps):
                    fits = False
                    break
                taken.append((path, gbps))
        if fits:
            self._at(head, view.gpus, -1, -1, 0, time)
        for path, gbps in reversed(taken):
            self._return(path, gbps)

    def _to_all(self, head: int, time: list[int]) -> None:
        """CollNetDirect: the head exchanges its share with every other GPU."""
        view, now = self.v, self.now
        gbps = now.intra / max(1, view.gpus - 1)
        others = [g for g in range(view.gpus) if g != head]
        pairs = [view.gpu_gpu[head][g] for g in others] + [view.gpu_gpu[g][head] for g in others]
        taken = []
        for path in pairs:
            if path.type > now.type_intra or not self._take(path, gbps):
                break
            taken.append(path)
        if len(taken) == len(pairs):
            self._at(head, view.gpus, -1, -1, 0, time)
        for path in reversed(taken):
            self._return(path, gbps)
