"""`commsim.nccl.laying` for rings and trees as one compiled loop: the same steps in the same order, without recursion.

A frame of the stack is a place where the search has a choice; it holds what its last move took, to give that back.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsim.engine.loops.compiled import compiled, inlined

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]

IN_ORDER, REPLAY = 1, 2
_CHANNEL, _ENTER, _NEXT, _NET, _FIRST = range(5)
_NONE = -1


class PathTable(NamedTuple):
    """Paths as rows of links: those from GPU to GPU, from GPUs to NICs, from NICs to GPUs, numbered in this order.

    `cost`: what a channel takes of each link of them, (3, links): inside the node, from a NIC, to a NIC. `fits`:
    whether a channel may go so.
    """

    ptr: Int64
    link: Int64
    cost: Int64
    hops: Int64
    fits: Bool


class Choices(NamedTuple):
    """What a search tries at each place, most promising first; -1 ends a row.

    ``nets`` (1 + GPUs, NICs): from all GPUs and from each; ``enter`` (NICs, GPUs); ``ahead`` (1 + NICs, GPUs, GPUs):
    towards no NIC and towards each, with the width to the NIC and a number for the way inside; ``port`` (GPUs, 2).
    """

    nets: Int64
    enter: Int64
    ahead: Int64
    wide: Int64
    inside: Int64
    port: Int64


class Rules(NamedTuple):
    """The settings in force, of a version."""

    gpus: int
    nets: int
    least: int
    most: int
    ring: bool
    balanced: bool
    tree: bool
    crossed: bool  # odd channels go the way of the one before
    kept_nic: bool  # a channel leaves by the NIC at which it entered
    same: bool
    nvswitch: bool
    replays: bool  # the order of the channel before is tried, whether or not all are to be the same
    turned: bool  # the first GPU tried is another for each channel
    gbps: int
    in_order: int  # steps of the order of the PCI bus


class Found(NamedTuple):
    """What is to be beaten, and what beats it: Gb/s, hops, whether equal speed counts; channels laid, 0 for none."""

    speed: Float64
    numbers: Int64  # hops to beat; whether it is alike; channels of the new best; steps taken
    orders: Int64
    nets: Int64


@inlined
def _takes(ways: PathTable, left: Int64, path: int, rate: int) -> bool:
    """Takes bandwidth of every link of a path, or of none."""
    for i in range(ways.ptr[path], ways.ptr[path + 1]):
        if left[ways.link[i]] < ways.cost[rate, i]:
            return False
    for i in range(ways.ptr[path], ways.ptr[path + 1]):
        left[ways.link[i]] -= ways.cost[rate, i]
    return True


@inlined
def _gives(ways: PathTable, left: Int64, path: int, rate: int) -> None:
    for i in range(ways.ptr[path], ways.ptr[path + 1]):
        left[ways.link[i]] += ways.cost[rate, i]


@inlined
def _port(choices: Choices, left: Int64, gpu: int) -> int:
    """What the PCIe port of a GPU has left, in whole GB/s."""
    if choices.port[gpu, 0] < 0:
        return -1
    least: int = min(left[choices.port[gpu, 0]], left[choices.port[gpu, 1]]) // 1000
    return least


@inlined
def _ahead(
    rules: Rules, choices: Choices, left: Int64, row: Int64, used: Bool, gpu: int, net: int, last: bool
) -> None:  # fmt: skip
    """Writes the GPUs to go on to; `last`: the channel does not leave for a NIC after the next one."""
    count = 0
    for k in range(rules.gpus):
        there = choices.ahead[net + 1, gpu, k]
        if there < 0:
            break
        if not used[there]:
            row[count] = k
            count += 1
    if net >= 0:
        for i in range(1, count):
            k, j = row[i], i
            wide, port = choices.wide[net + 1, gpu, k], _port(choices, left, choices.ahead[net + 1, gpu, k])
            while j > 0:
                before = row[j - 1]
                other = choices.wide[net + 1, gpu, before]
                if other < wide:
                    break
                if other == wide and _port(choices, left, choices.ahead[net + 1, gpu, before]) >= port:
                    break
                row[j] = before
                j -= 1
            row[j] = k
    alike = last
    for i in range(1, count):
        if choices.inside[net + 1, gpu, row[i]] != choices.inside[net + 1, gpu, row[0]]:
            alike = False
    if alike:
        for i in range(count // 2):
            row[i], row[count - 1 - i] = row[count - 1 - i], row[i]
    for i in range(count):
        row[i] = choices.ahead[net + 1, gpu, row[i]]
    row[count] = _NONE


def is_kept() -> bool:
    """Whether an earlier run compiled the loop, which takes seconds; to load it takes a tenth of one."""
    folder = lay.stats.cache_path
    return folder is not None and any(Path(folder).glob(f"laying_loop.{lay.py_func.__qualname__}-*.nbi"))


@compiled
def lay(
    rules: Rules, ways: PathTable, choices: Choices, left: Int64, net_left: Float64, time: Int64, found: Found
) -> None:  # fmt: skip
    """Lays channels in every way; `time` (2,): the steps left to the search and to that in the order of the bus."""
    n, m = rules.gpus, rules.nets
    deep = (n + 6) * (rules.most + 1)
    # Of each frame: kind, cursor, GPU, step, where it leaves for a NIC and for its first GPU, order, whose time, path
    # and rate taken, GPU marked.
    frame = np.empty((deep, 11), np.int64)
    rows = np.empty((deep, max(n, m) + 1), np.int64)
    orders, nets = np.zeros((rules.most, n), np.int64), np.full((rules.most, 2), -1, np.int64)
    used = np.zeros((rules.most + 1, n), np.bool_)
    channels, hops, clock = 0, 0, 0
    to_net, to_first = (n - 1 if rules.ring else 0) if m else -1, n - 1 if rules.ring and not m else -1
    gpu = step = order = whose = 0
    leave = back = -1
    f = 0
    frame[0] = -1
    frame[0, 0], frame[0, 1], frame[0, 7] = _CHANNEL if m else _ENTER, 0, 0
    while f >= 0:
        at = frame[f]
        kind, cursor = at[0], at[1]
        if at[8] >= 0:
            _gives(ways, left, at[8], at[9])
            hops -= ways.hops[at[8]]
            at[8] = -1
        if at[10] >= 0:
            used[channels, at[10]] = False
            at[10] = -1
        arrives = False
        if kind == _CHANNEL:
            if cursor > 0 and at[2] >= 0:
                net_left[at[2]] += rules.gbps
                at[2] = -1
            many = 0
            while many < m and choices.nets[0, many] >= 0:
                many += 1
            if cursor < many:
                at[1] = cursor + 1
                net = choices.nets[0, (channels + cursor) % many]
                if net_left[net] < rules.gbps or (time[clock] <= 0 and (channels > 0 or rules.nvswitch)):
                    continue
                if rules.crossed and channels & 1 and net != nets[channels - 1, 1]:
                    continue
                nets[channels, 0] = net
                net_left[net] -= rules.gbps
                at[2] = net
                f += 1
                frame[f] = -1
                frame[f, 0], frame[f, 1], frame[f, 2] = _ENTER, 0, net
                continue
        elif kind == _ENTER:
            # Cursor 0: the order of the channel before, 1: that of the bus, from 2 on: each GPU.
            net = at[2]
            start = -1
            if cursor == 0:
                at[1] = 1
                if channels > 0 and (rules.same or rules.replays or m == 0):
                    start, order, whose = orders[channels - 1, 0], REPLAY, clock
            elif cursor == 1:
                at[1] = 2
                if channels > 0 and rules.same:
                    at[1] = n + 2
                elif channels == 0 and m == 0:
                    start, order, whose = 0, IN_ORDER, clock
                elif channels == 0 and not rules.nvswitch:
                    time[1] = rules.in_order
                    start, order, whose = 0, IN_ORDER, 1
            elif cursor < n + 2:
                if cursor == 2 and m > 0 and channels == 0 and not rules.nvswitch and time[1] == -1:
                    time[0] = -1
                at[1] = cursor + 1
                place = (channels + cursor - 2) % n if rules.turned else cursor - 2
                start = choices.enter[net, place] if m else cursor - 2
                order, whose = 0, clock
                if time[clock] <= 0:
                    start = -1
            else:
                at[1] = n + 3
            if at[1] <= n + 2 or start >= 0:
                if start < 0:
                    continue
                path = n * n + n * m + net * n + start
                if m == 0 or (ways.fits[path] and _takes(ways, left, path, 1)):
                    if m > 0:
                        at[8], at[9] = path, 1
                        hops += ways.hops[path]
                    used[channels, start] = True
                    at[10] = start
                    arrives, gpu, step = True, start, 0
                    leave, back = to_net, to_first
                else:
                    continue
        elif kind == _NEXT:
            there = rows[f, cursor]
            if there >= 0:
                at[1] = cursor + 1
                path = at[2] * n + there
                if not ways.fits[path] or ways.hops[path] == 0 or not _takes(ways, left, path, 0):
                    continue
                at[8], at[9], at[10] = path, 0, there
                hops += ways.hops[path]
                used[channels, there] = True
                arrives, gpu, step = True, there, at[3] + 1
                leave, back, order, whose = at[4], at[5], at[6], at[7]
        elif kind == _NET:
            net = rows[f, cursor]
            if net >= 0 and time[at[7]] > 0:
                at[1] = cursor + 1
                path = n * n + at[2] * m + net
                if not ways.fits[path] or not _takes(ways, left, path, 2):
                    continue
                at[8], at[9] = path, 2
                hops += ways.hops[path]
                nets[channels, 1] = net
                arrives, gpu, step = True, at[2], at[3]
                leave = 1 if rules.balanced and step == 0 else -1
                back, order, whose = at[5], at[6], at[7]
        elif cursor == 0:  # back to the first GPU
            at[1] = 1
            first, path = orders[channels, 0], at[2] * n + orders[channels, 0]
            if first != at[2]:
                if not ways.fits[path] or not _takes(ways, left, path, 0):
                    continue
                at[8], at[9] = path, 0
                hops += ways.hops[path]
            arrives, gpu, step = True, first, at[3] + 1
            leave, back, order, whose = at[4], -1, at[6], at[7]
        if not arrives:
            f -= 1
            if (kind == _CHANNEL and f >= 0) or (kind == _ENTER and m == 0 and f >= 0):
                channels -= 1
                clock = frame[f + 1, 3]
            continue
        while True:
            if time[whose] <= 0:
                break
            time[whose] -= 1
            found.numbers[3] += 1
            if step == n:
                channels += 1
                ours, theirs = channels * found.speed[0], found.speed[1]
                alike = ours == theirs and found.numbers[1] == 1 and hops < found.numbers[0]
                if channels >= rules.least and (ours > theirs or alike):
                    found.speed[1] = ours
                    found.numbers[0], found.numbers[1], found.numbers[2] = hops, 1, channels
                    found.orders[:channels] = orders[:channels]
                    found.nets[:channels] = nets[:channels]
                    if channels == rules.most:
                        time[whose] = time[clock] = -1
                if channels == rules.most:
                    channels -= 1
                    break
                f += 1
                frame[f] = -1
                frame[f, 0], frame[f, 1], frame[f, 3] = _CHANNEL if m else _ENTER, 0, clock
                clock = whose
                break
            orders[channels, step] = gpu
            if step == leave:
                f += 1
                frame[f] = -1
                frame[f, 0], frame[f, 1] = _NET, 0
                only, clash = -1, False
                if rules.tree or rules.kept_nic:
                    only = nets[channels, 0]
                if rules.crossed and channels & 1:
                    clash = only >= 0 and only != nets[channels - 1, 0]
                    only = nets[channels - 1, 0]
                if rules.balanced and step > 0:
                    clash = clash or (only >= 0 and only != nets[channels, 1])
                    only = nets[channels, 1]
                if clash:
                    rows[f, 0] = _NONE
                elif only >= 0:
                    rows[f, 0], rows[f, 1] = only, _NONE
                else:
                    rows[f, :m] = choices.nets[gpu + 1]
                    rows[f, m] = _NONE
            elif step < n - 1:
                f += 1
                frame[f] = -1
                frame[f, 0], frame[f, 1] = _NEXT, 0
                if order == IN_ORDER:
                    rows[f, 0], rows[f, 1] = step + 1, _NONE
                elif order == REPLAY:
                    rows[f, 0], rows[f, 1] = orders[channels - 1, step + 1], _NONE
                else:
                    towards = nets[channels, 0] if leave != -1 and not rules.nvswitch else -1
                    last = leave not in (-1, step + 1) and not rules.nvswitch
                    _ahead(rules, choices, left, rows[f], used[channels], gpu, towards, last)
            elif step == back:
                f += 1
                frame[f] = -1
                frame[f, 0], frame[f, 1] = _FIRST, 0
            else:
                step = n
                continue
            frame[f, 2], frame[f, 3], frame[f, 4], frame[f, 5] = gpu, step, leave, back
            frame[f, 6], frame[f, 7] = order, whose
            break
