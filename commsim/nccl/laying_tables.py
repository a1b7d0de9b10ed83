"""What `commsim.nccl.laying` knows of a node, as the tables of the compiled loop (`commsim.nccl.laying_loop`)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsim.nccl.laying_loop import Choices, Found, PathTable, Rules, lay
from commsim.nccl.paths import DIS, Path
from commsim.nccl.system import IN_ORDER_BUDGET, Solution
from commsim.nccl.view import Candidates

Int64 = npt.NDArray[np.int64]


class Searched(NamedTuple):
    """What a search came to: the steps that it took, what it left of its own, and a better solution if it has one."""

    steps: int
    time_left: int
    better: Solution | None


class Tables:
    """The tables of one node, for searches under any settings; `left` and `net_left` as `Laying` counts them."""

    def __init__(self, candidates: Candidates, left: list[int], net_left: list[float]) -> None:
        self.candidates, self._left, self._net_left = candidates, left, net_left
        self.view = view = candidates.view
        self.gpus, self.nets = view.gpus, view.nets
        inner = [path for row in view.gpu_gpu for path in row]
        self.paths = [*inner, *(p for row in view.gpu_net for p in row), *(p for row in view.net_gpu for p in row)]
        first_in = len(self.paths) - view.gpus * view.nets
        rows = [self._row(path, to_gpu=i >= first_in) for i, path in enumerate(self.paths)]
        self._ptr = np.cumsum([0, *map(len, rows)])
        flat = [one for row in rows for one in row]
        self._link = np.array([link for link, _, _ in flat], np.int64)
        self._intel = np.array([intel for _, intel, _ in flat], bool)
        self._reads = np.array([reads for _, _, reads in flat], bool)
        self._hops = np.array([len(path.links) for path in self.paths], np.int64)
        self._type = np.array([path.type for path in self.paths], np.int64)
        self._costs: dict[float, Int64] = {}
        self._ahead: dict[str, tuple[Int64, Int64, Int64]] = {}
        self._port = np.array([ports or (-1, -1) for ports in view.gpu_ports], np.int64).reshape(-1, 2)

    def _row(self, path: Path, *, to_gpu: bool) -> list[tuple[int, bool, bool]]:
        """The links of a path, whether Intel's root takes more of each, and whether for a write's reads."""
        view, row = self.view, list[tuple[int, bool, bool]]()
        for link in path.links:
            intel = path.through_intel and view.is_pci[link]
            row.append((link, intel, False))
            if to_gpu and view.into_old_gpu[link]:
                row.append((view.reverse[link], intel, True))
        return row

    def fill(self, now: Solution, best: Solution, *, crossed: bool) -> Searched:
        """Lays channels under the settings of `now`; `crossed`: in pairs, each the way of the other."""
        found = Found(
            np.array([now.intra, best.channels * best.intra]),
            np.array([best.hops, (now.pattern, now.cross_nic) == (best.pattern, best.cross_nic), 0, 0], np.int64),
            np.zeros((now.most, self.gpus), np.int64),
            np.zeros((now.most, 2), np.int64),
        )
        time = np.array([now.budget, 0])
        left = np.array(self._left, np.int64), np.array(self._net_left, np.float64)
        lay(self._rules(now, crossed=crossed), self._ways(now), self._choices(now), *left, time, found)
        hops, _, channels, steps = found.numbers.tolist()
        better = None
        if channels:
            orders, nets = found.orders[:channels].tolist(), [(a, b) for a, b in found.nets[:channels].tolist()]
            better = replace(now, channels=channels, hops=hops, orders=orders, nets=nets)
        return Searched(steps, int(time[0]), better)

    def _rules(self, now: Solution, *, crossed: bool) -> Rules:
        return Rules(
            gpus=self.gpus,
            nets=self.nets,
            least=now.least,
            most=now.most,
            ring=now.pattern == "RING",
            balanced=now.pattern == "BALANCED_TREE",
            tree=now.pattern == "TREE",
            crossed=crossed,
            kept_nic=now.cross_nic == 0,
            same=now.same,
            nvswitch=self.view.nvswitch,
            replays=not self.candidates.new_orders_only,
            turned=self.candidates.turned,
            gbps=int(now.inter),
            in_order=IN_ORDER_BUDGET,
        )

    def _ways(self, now: Solution) -> PathTable:
        out = now.inter / 2 if now.pattern == "BALANCED_TREE" else now.inter
        cost = np.stack([self._cost(now.intra), self._cost(now.inter), self._cost(out)])
        n, m = self.gpus, self.nets
        inner, to_net, from_net = np.split(self._type, [n * n, n * n + n * m])
        inner, to_net, from_net = inner.reshape(n, n), to_net.reshape(n, m), from_net.reshape(m, n)
        limits = (
            (inner, inner.T, now.type_intra),
            (to_net, from_net.T, now.type_inter),
            (from_net, to_net.T, now.type_inter),
        )
        there_and_back = "TREE" in now.pattern
        fits = [
            ((there <= limit) & (there < DIS) & ((back <= limit) | (not there_and_back))).ravel()
            for there, back, limit in limits
        ]
        return PathTable(self._ptr, self._link, cost, self._hops, np.concatenate(fits))

    def _cost(self, gbps: float) -> Int64:
        """What a channel of a speed takes of the links of all paths, MB/s, rounded as NCCL does."""
        if gbps not in self._costs:
            cost = 1000 * np.where(self._intel, gbps * 6 / 5, gbps)
            self._costs[gbps] = np.rint(np.where(self._reads, cost / 8, cost)).astype(np.int64)
        return self._costs[gbps]

    def _choices(self, now: Solution) -> Choices:
        n, m, candidates = self.gpus, self.nets, self.candidates
        nets = np.full((n + 1, m), -1, np.int64)
        enter = np.full((m, n), -1, np.int64)
        for gpu in range(-1, n if m else -1):
            some = candidates.nets(gpu, now.type_inter)
            nets[gpu + 1, : len(some)] = some
        for net in range(m):
            some = candidates.entries(net, int(now.inter), 0)
            # Those that turn stand in their own places, so that the loop can begin at any.
            enter[net, some if candidates.turned else range(len(some))] = some
        if now.pattern not in self._ahead:
            self._ahead[now.pattern] = self._followers(now.pattern)
        return Choices(nets, enter, *self._ahead[now.pattern], self._port)

    def _followers(self, pattern: str) -> tuple[Int64, Int64, Int64]:
        """Of each GPU those that can follow, towards no NIC and each, with what their order hangs on."""
        n, candidates = self.gpus, self.candidates
        ahead, wide, inside = (np.full((self.nets + 1, n, n), -1, np.int64) for _ in range(3))
        known: dict[tuple[int, int], int] = {}
        for gpu in range(n):
            if self.view.nvswitch:
                some = candidates.neighbours(gpu, pattern)
                ahead[0, gpu, : len(some)] = some
                continue
            for net in range(-1, self.nets):
                for k, (there, way, width) in enumerate(candidates.followers(gpu, net)):
                    ahead[net + 1, gpu, k], wide[net + 1, gpu, k] = there, width
                    inside[net + 1, gpu, k] = known.setdefault(way, len(known))
        return ahead, wide, inside
