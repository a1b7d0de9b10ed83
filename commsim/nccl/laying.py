"""Channels laid one after another under given settings of a search (src/graph/search.cc, ncclTopoSearchRec).

A channel takes bandwidth of each link on its way and gives it back when all that could follow has been tried.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from commsim.nccl.paths import DIS, Path
from commsim.nccl.system import GLOBAL_BUDGET, IN_ORDER_BUDGET, Solution
from commsim.nccl.version import Version
from commsim.nccl.view import Candidates, NodeView

if TYPE_CHECKING:
    from commsim.nccl.laying_tables import Tables

_MOST_STEPS = 1 << 18
"""Of all searches for one pattern together, once there is a solution, by 8 GPUs; NCCL allows twice as many."""

_WORTH_LOADING, _WORTH_COMPILING = 1 << 16, 1 << 18
"""Steps of searches for a pattern, half a second and two, after which numba is loaded for those to come, and the loop
compiled where no earlier run did."""

_IN_ORDER, _REPLAY = 1, 2

_CROSSING_SINCE: Version = (2, 23, 0)
"""From then on only rings that cross NICs do so in pairs of channels, each the way of the other; trees as they like."""


class _Way(NamedTuple):
    """How a channel goes on: after which GPUs it leaves for a NIC and for its first GPU (-1: not), and in which order.

    `time` holds the steps that are left to it, -1 once all channels asked for are laid.
    """

    to_net: int
    to_first: int
    order: int
    time: list[int]


def crossing(version: Version) -> int:
    """How channels cross NICs: 1 all in pairs, 2 only rings."""
    return 2 if version >= _CROSSING_SINCE else 1


class Laying:
    """Lays channels in a node: `best` is the solution that none has beaten, `steps` those left to all searches."""

    def __init__(self, view: NodeView, version: Version, best: Solution) -> None:
        self.view, self.version = view, version
        self.now = self.best = best
        self.steps = self._most = _MOST_STEPS * 8 // view.gpus if view.gpus > 8 else 2 * GLOBAL_BUDGET
        self._used = [0] * view.gpus  # by the channels of these bits
        self._time = [0]
        self._left = [round(1000 * gbps) for gbps in view.left]  # MB/s, as NCCL rounds what is left
        self._net_left = list(view.net_left)
        self.candidates = Candidates(view, version)
        self._cost: dict[tuple[int, float], tuple[tuple[int, int], ...]] = {}
        self._inside: list[list[tuple[tuple[tuple[int, int], ...], int]]] = []
        self._tables: Tables | None = None

    def fill(self, now: Solution) -> int:
        """Lays channels under the settings of `now`; what is left of its budget, -1 where it laid all it could."""
        self.now, self._time = now, [now.budget]
        now.channels = now.hops = 0
        now.orders, now.nets = [], []
        if self._compiled(now):
            return self._time[0]
        self._inside = self._ways_inside()
        self._channel()
        return self._time[0]

    def _compiled(self, now: Solution) -> bool:
        """Lays the channels by the compiled loop, where that is worth its loading or compiling."""
        if now.same or now.pattern not in ("RING", "TREE", "BALANCED_TREE"):
            return False
        if self._tables is None:
            taken = self._most - self.steps
            if "numba" not in sys.modules and taken < _WORTH_LOADING:
                return False
            from commsim.nccl.laying_loop import is_kept

            if taken < _WORTH_COMPILING and not is_kept():
                return False
            from commsim.nccl.laying_tables import Tables

            self._tables = Tables(self.candidates, self._left, self._net_left)
        laid = self._tables.fill(now, self.best, crossed=self._crossed())
        self.steps -= laid.steps
        self._time = [laid.time_left]
        self.best = laid.better or self.best
        return True

    def _take(self, path: Path, gbps: float, *, to_gpu: bool = False) -> bool:
        """Takes bandwidth of every link of a path, or of none; `to_gpu`: of one that begins at a NIC or a switch."""
        left, costs = self._left, self._cost.get((id(path), gbps)) or self._costs(path, gbps, to_gpu)
        for link, cost in costs:  # no path takes a link twice
            if left[link] < cost:
                return False
        for link, cost in costs:
            left[link] -= cost
        self.now.hops += len(path.links)
        return True

    def _return(self, path: Path, gbps: float) -> None:
        """Gives back what was taken of every link of a path."""
        left = self._left
        for link, cost in self._cost[id(path), gbps]:
            left[link] += cost
        self.now.hops -= len(path.links)

    def _costs(self, path: Path, gbps: float, to_gpu: bool) -> tuple[tuple[int, int], ...]:
        """What a channel takes of the links of a path: (link, MB/s)."""
        view, costs = self.view, list[tuple[int, int]]()
        for link in path.links:
            cost = gbps * 6 / 5 if path.through_intel and view.is_pci[link] else gbps
            costs.append((link, round(1000 * cost)))
            if to_gpu and view.into_old_gpu[link]:  # writes into a GPU before Ampere cost reads
                costs.append((view.reverse[link], round(1000 * cost / 8)))
        self._cost[id(path), gbps] = tuple(costs)
        return self._cost[id(path), gbps]

    def _fits(self, path: Path, back: Path | None, limit: int) -> bool:
        """Whether a path, and of a tree the way back too, is no farther than a type; what is not joined never is."""
        return (
            path.type <= limit
            and path.type < DIS
            and (back is None or "TREE" not in self.now.pattern or back.type <= limit)
        )

    def _channel(self) -> None:
        """Lays one more channel in every way, and so on below it."""
        view, now = self.view, self.now
        if len(now.orders) <= now.channels:
            now.orders.append([0] * view.gpus)
            now.nets.append((-1, -1))
        around = view.gpus - 1 if now.pattern == "RING" else -1
        if view.nets:
            self._from_nets(max(around, 0))
            return

        def start(gpu: int, order: int = 0) -> None:
            flag = 1 << now.channels
            self._used[gpu] ^= flag
            self._at(gpu, 0, _Way(-1, around, order, self._time))
            self._used[gpu] ^= flag

        if now.pattern == "NVLS":
            start(now.channels)
            return
        if now.channels == 0:
            start(0, _IN_ORDER)
        else:
            start(now.orders[now.channels - 1][0], _REPLAY)
        if not now.same or now.channels == 0:
            for gpu in range(view.gpus):
                if self._time[0] > 0:
                    start(gpu)

    def _go(self, path: Path, back: Path | None, intra: bool, gpu: int, step: int, way: _Way) -> None:
        """To a GPU inside the node or from a NIC, where the way there has what a channel takes."""
        now = self.now
        gbps = now.intra if intra else now.inter
        if not self._fits(path, back, now.type_intra if intra else now.type_inter):
            return
        if self._take(path, gbps, to_gpu=not intra):
            flag = 1 << now.channels
            self._used[gpu] ^= flag
            self._at(gpu, step, way)
            self._used[gpu] ^= flag
            self._return(path, gbps)

    def _at(self, gpu: int, step: int, way: _Way) -> None:
        """At a GPU of the channel: on to the NIC, the next GPU, or back to the first."""
        if way.time[0] <= 0:
            return
        way.time[0] -= 1
        self.steps -= 1
        view, now = self.view, self.now
        if step == view.gpus:
            self._complete(way.time)
            return
        now.orders[now.channels][step] = gpu
        if step == way.to_net:
            self._to_net(gpu, step, way)
        elif now.pattern == "NVLS":
            self._through_switch(gpu, way)
        elif now.pattern == "COLLNET_DIRECT":
            self._to_all(gpu, way)
        elif step < view.gpus - 1:
            self._onward(gpu, step, way)
        elif step == way.to_first:
            first, way = now.orders[now.channels][0], way._replace(to_first=-1)
            path = view.gpu_gpu[gpu][first]
            if first == gpu:
                self._at(gpu, step + 1, way)
            elif self._fits(path, view.gpu_gpu[first][gpu], now.type_intra) and self._take(path, now.intra):
                self._at(first, step + 1, way)
                self._return(path, now.intra)
        else:
            self._at(gpu, view.gpus, way)

    def _onward(self, gpu: int, step: int, way: _Way) -> None:
        """To the GPUs that can follow: what `_go` does, at one go, as a search spends its time here."""
        now, left, used, ways = self.now, self._left, self._used, self._inside[gpu]
        flag = 1 << now.channels
        for there in self._next(gpu, step, way):
            costs, hops = ways[there]
            for link, cost in costs:
                if left[link] < cost:
                    break
            else:
                if not hops:
                    continue
                for link, cost in costs:
                    left[link] -= cost
                now.hops += hops
                used[there] ^= flag
                self._at(there, step + 1, way)
                used[there] ^= flag
                now.hops -= hops
                for link, cost in costs:
                    left[link] += cost

    def _ways_inside(self) -> list[list[tuple[tuple[tuple[int, int], ...], int]]]:
        """What a channel takes of the links from each GPU to each, and how many they are; 0 where it may not go."""
        view, now = self.view, self.now
        rows = []
        for gpu, paths in enumerate(view.gpu_gpu):
            fit = [self._fits(path, view.gpu_gpu[there][gpu], now.type_intra) for there, path in enumerate(paths)]
            rows.append(
                [
                    (self._costs(path, now.intra, to_gpu=False), len(path.links)) if fits else ((), 0)
                    for path, fits in zip(paths, fit, strict=True)
                ]
            )
        return rows

    def _complete(self, time: list[int]) -> None:
        now = self.now
        now.channels += 1
        if self._better():
            self.best = now.copy()
            if now.channels == now.most:
                time[0] = self._time[0] = -1
        if now.channels < now.most:
            budget, self._time = self._time, time
            self._channel()
            self._time = budget
        now.channels -= 1

    def _better(self) -> bool:
        now, best = self.now, self.best
        if now.channels < now.least:
            return False
        if now.pattern == "NVLS":
            more = best.channels < now.channels <= self.view.gpus
            return more or now.channels * now.inter > best.channels * best.inter
        ours, theirs = now.channels * now.intra, best.channels * best.intra
        alike = (now.pattern, now.cross_nic) == (best.pattern, best.cross_nic)
        return ours > theirs or (ours == theirs and alike and now.hops < best.hops)

    def _next(self, gpu: int, step: int, way: _Way) -> list[int]:
        """The GPUs to go on to, most promising first."""
        now = self.now
        if way.order == _IN_ORDER:
            return [step + 1]
        if way.order == _REPLAY:
            return [now.orders[now.channels - 1][step + 1]]
        flag = 1 << now.channels
        if self.view.nvswitch:
            return [there for there in self.candidates.neighbours(gpu, now.pattern) if not self._used[there] & flag]
        net = now.nets[now.channels][0] if way.to_net != -1 else -1
        ahead = [one for one in self.candidates.followers(gpu, net) if not self._used[one[0]] & flag]
        if net >= 0:
            ahead.sort(key=lambda one: (one[2], -self._port(one[0])))
        if way.to_net not in (-1, step + 1) and all(one[1] == ahead[0][1] for one in ahead):
            ahead.reverse()
        return [one[0] for one in ahead]

    def _port(self, gpu: int) -> int:
        """What the PCIe port of a GPU has left, in whole GB/s."""
        return min((self._left[link] // 1000 for link in self.view.gpu_ports[gpu]), default=-1)

    def _from_nets(self, to_net: int) -> None:
        now = self.now
        nets = self.candidates.nets(-1, now.type_inter)
        heads_only = now.pattern in ("NVLS", "COLLNET_DIRECT")
        gbps = int(now.inter)  # of the port in whole GB/s; the link behind it counts exactly
        paired = self._paired()
        for i in range(len(nets)):
            net = nets[(now.channels + i) % len(nets)]
            # The order of the PCI bus is tried from every NIC, whatever is left of the budget.
            if self._net_left[net] < gbps or (self._time[0] <= 0 and (now.channels or self.view.nvswitch)):
                continue
            if paired and net != now.nets[now.channels - 1][1]:
                continue
            now.nets[now.channels] = (net, now.nets[now.channels][1])
            self._net_left[net] -= gbps
            enough = self._head(net, to_net, len(nets)) if heads_only else self._enter(net, to_net, gbps)
            self._net_left[net] += gbps
            if enough:
                return

    def _paired(self) -> bool:
        """Whether this channel, an odd one, goes the way of the one before, the other way round."""
        return bool(self.now.channels & 1 and self._crossed())

    def _crossed(self) -> bool:
        """Whether channels go in pairs."""
        now = self.now
        return now.cross_nic == 2 and now.pattern == "RING" if crossing(self.version) == 2 else now.cross_nic > 0

    def _head(self, net: int, to_net: int, nets: int) -> bool:
        """To the GPU beside a NIC, all that reductions in a switch look for; whether it was tried."""
        now, gpu = self.now, self.candidates.local_gpu[net]
        if now.channels >= nets or gpu is None or any(now.orders[c][0] == gpu for c in range(now.channels)):
            return False
        self._go(self.view.net_gpu[net][gpu], None, False, gpu, 0, _Way(to_net, -1, 0, self._time))
        return True

    def _enter(self, net: int, to_net: int, gbps: int) -> bool:
        """From a NIC to each GPU at which a channel may enter; False: other NICs are tried as well."""
        view, now = self.view, self.now

        def start(gpu: int, order: int, time: list[int]) -> None:
            way = _Way(to_net, -1, order, time)
            self._go(view.net_gpu[net][gpu], view.gpu_net[gpu][net], False, gpu, 0, way)

        if now.channels > 0 and (now.same or not self.candidates.new_orders_only):
            start(now.orders[now.channels - 1][0], _REPLAY, self._time)
        if now.channels and now.same:
            return False
        if now.channels == 0 and not view.nvswitch:
            own = [IN_ORDER_BUDGET]
            start(0, _IN_ORDER, own)
            if own[0] == -1:
                self._time[0] = -1
        for gpu in self.candidates.entries(net, gbps, now.channels):
            if self._time[0] > 0:
                start(gpu, 0, self._time)
        return False

    def _to_net(self, gpu: int, step: int, way: _Way) -> None:
        """From a GPU to the NICs by which the channel may leave."""
        view, now = self.view, self.now
        entered, left = now.nets[now.channels]
        balanced = now.pattern == "BALANCED_TREE"
        gbps = now.inter / 2 if balanced else now.inter
        only = set[int]()  # the NICs that each of some rules leaves
        if now.pattern == "TREE" or now.cross_nic == 0:
            only.add(entered)
        if self._paired():
            only.add(now.nets[now.channels - 1][0])
        if balanced and step > 0:
            only.add(left)
        if len(only) > 1:
            return
        for net in only or self.candidates.nets(gpu, now.type_inter):
            if way.time[0] <= 0:
                return
            path = view.gpu_net[gpu][net]
            if self._fits(path, view.net_gpu[net][gpu], now.type_inter) and self._take(path, gbps):
                now.nets[now.channels] = (entered, net)
                to_net = 1 if balanced and step == 0 else -1
                self._at(gpu, step, _Way(to_net, way.to_first, way.order, way.time))
                self._return(path, gbps)

    def _through_switch(self, head: int, way: _Way) -> None:
        """NVLS: every GPU sends its share to the switch and gets it back; the head twice."""
        paths = [*enumerate(self.view.switch_gpu), *enumerate(self.view.gpu_switch)]
        self._by_all([(path, self.now.intra * (2 if gpu == head else 1)) for gpu, path in paths], head, way)

    def _to_all(self, head: int, way: _Way) -> None:
        """CollNetDirect: the head exchanges its share with every other GPU."""
        view = self.view
        gbps = self.now.intra / (view.gpus - 1)
        others = [g for g in range(view.gpus) if g != head]
        there, back = [view.gpu_gpu[head][g] for g in others], [view.gpu_gpu[g][head] for g in others]
        self._by_all([(path, gbps) for path in there + back], head, way)

    def _by_all(self, shares: list[tuple[Path, float]], head: int, way: _Way) -> None:
        """Ends a channel that needs bandwidth (GB/s) of several paths at once, where all have it."""
        taken = []
        for path, gbps in shares:
            if path.type > self.now.type_intra or not self._take(path, gbps):
                break
            taken.append((path, gbps))
        if len(taken) == len(shares):
            self._at(head, self.view.gpus, way)
        for path, gbps in reversed(taken):
            self._return(path, gbps)
