"""What `commsim.nccl.laying` knows of a node, as the tables of the compiled loop (`commsim.nccl.laying_loop`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.nccl.laying import IN_ORDER_BUDGET
from commsim.nccl.laying_loop import Choices, Found, Rules, Ways, lay
from commsim.nccl.paths import DIS, Path

if TYPE_CHECKING:
    from commsim.nccl.laying import Laying

Int64 = npt.NDArray[np.int64]


class Tables:
    """The tables of one node, for searches under any settings."""

    def __init__(self, laying: Laying) -> None:
        self.laying, view = laying, laying.view
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
        """The links of a path, whether Intel's root takes more of them, and whether they are reads that a write costs."""
        view, row = self.laying.view, list[tuple[int, bool, bool]]()
        for link in path.links:
            intel = path.through_intel and view.is_pci[link]
            row.append((link, intel, False))
            if to_gpu and view.into_old_gpu[link]:
                row.append((view.reverse[link], intel, True))
        return row

    def fill(self) -> bool:
        """Lays channels under the settings in force; whether that gave a better solution, which is then the best."""
        laying, now, best = self.laying, self.laying.now, self.laying.best
        alike = (now.pattern, now.cross_nic) == (best.pattern, best.cross_nic)
        found = Found(
            np.array([now.intra, best.channels * best.intra]),
            np.array([best.hops, int(alike), 0, 0]),
            np.zeros((now.most, self.gpus), np.int64),
            np.zeros((now.most, 2), np.int64),
        )
        left, net_left = np.array(laying.left, np.int64), np.array(laying.net_left)
        time = np.array([now.budget, 0])
        lay(self._rules(), self._ways(), self._choices(), left, net_left, time, found)
        laying.spend(int(found.numbers[3]), int(time[0]))
        channels = int(found.numbers[2])
        if channels:
            now.channels, now.hops = channels, int(found.numbers[0])
            now.orders = found.orders[:channels].tolist()
            now.nets = [(a, b) for a, b in found.nets[:channels].tolist()]
            laying.best = now.copy()
            now.channels = now.hops = 0
        return channels > 0

    def _rules(self) -> Rules:
        now, view = self.laying.now, self.laying.view
        return Rules(
            gpus=self.gpus,
            nets=self.nets,
            least=now.least,
            most=now.most,
            ring=now.pattern == "RING",
            balanced=now.pattern == "BALANCED_TREE",
            tree=now.pattern == "TREE",
            crossed=self.laying.crossed(),
            kept_nic=now.cross_nic == 0,
            same=now.same,
            nvswitch=view.nvswitch,
            replays=not self.laying.new_order_only,
            turned=not self.laying.local_first,
            gbps=int(now.inter),
            in_order=IN_ORDER_BUDGET,
        )

    def _ways(self) -> Ways:
        now = self.laying.now
        out = now.inter / 2 if now.pattern == "BALANCED_TREE" else now.inter
        cost = np.stack([self._cost(now.intra), self._cost(now.inter), self._cost(out)])
        n, m = self.gpus, self.nets
        inner, to_net, from_net = np.split(self._type, [n * n, n * n + n * m])
        inner, to_net, from_net = inner.reshape(n, n), to_net.reshape(n, m), from_net.reshape(m, n)
        fits = [
            self._fits(inner, inner.T, now.type_intra),
            self._fits(to_net, from_net.T, now.type_inter),
            self._fits(from_net, to_net.T, now.type_inter),
        ]
        return Ways(self._ptr, self._link, cost, self._hops, np.concatenate([each.ravel() for each in fits]))

    def _fits(self, types: Int64, back: Int64, limit: int) -> npt.NDArray[np.bool_]:
        near = (types <= limit) & (types < DIS)
        return near & (back <= limit) if "TREE" in self.laying.now.pattern else near

    def _cost(self, gbps: float) -> Int64:
        """What a channel of a speed takes of the links of all paths, MB/s, rounded as NCCL does."""
        if gbps not in self._costs:
            cost = 1000 * np.where(self._intel, gbps * 6 / 5, gbps)
            self._costs[gbps] = np.rint(np.where(self._reads, cost / 8, cost)).astype(np.int64)
        return self._costs[gbps]

    def _choices(self) -> Choices:
        laying, n, m = self.laying, self.gpus, self.nets
        nets = np.full((n + 1, m), -1, np.int64)
        for gpu in range(-1, n):
            some = laying.nets_of(gpu) if m else []
            nets[gpu + 1, : len(some)] = some
        enter = np.full((m, n), -1, np.int64)
        for net in range(m):
            if laying.local_first:
                some = laying.entries(net, int(laying.now.inter))
                enter[net, : len(some)] = some
            else:
                some = laying.entries(net, int(laying.now.inter), turned=False)
                enter[net, some] = some
        key = laying.now.pattern
        if key not in self._ahead:
            self._ahead[key] = self._followers()
        return Choices(nets, enter, *self._ahead[key], self._port)

    def _followers(self) -> tuple[Int64, Int64, Int64]:
        """Of each GPU those that can follow, towards no NIC and each, with what their order hangs on."""
        laying, n = self.laying, self.gpus
        ahead, wide, inside = (np.full((self.nets + 1, n, n), -1, np.int64) for _ in range(3))
        known: dict[tuple[int, int], int] = {}
        for gpu in range(n):
            if laying.view.nvswitch:
                some = laying.neighbours(gpu)
                ahead[0, gpu, : len(some)] = some
                continue
            for net in range(-1, self.nets):
                for k, (there, way, width) in enumerate(laying.followers(gpu, net)):
                    ahead[net + 1, gpu, k], wide[net + 1, gpu, k] = there, width
                    inside[net + 1, gpu, k] = known.setdefault(way, len(known))
        return ahead, wide, inside
