"""Ops of an engine's Program as they are put together: messages over links, waits, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.collectives.dependencies import from_edges
from commsim.engine.program import Program

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer[Any]]


class ProgramOps:
    """Grows by `add`, which gives the numbers of new ops, and `order`; `program` makes the Program of all of them."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[Int64, Int64, Float64]] = []  # bytes, route and delay of each op
        self._before: list[Int64] = []
        self._after: list[Int64] = []
        self._routes: dict[tuple[int, ...], int] = {(): 0}

    def route(self, links: Sequence[int]) -> int:
        """The number of the route over these links; 0 is the one over none."""
        return self._routes.setdefault(tuple(links), len(self._routes))

    def add(
        self,
        shape: int | tuple[int, ...],
        nbytes: Ints | int = 0,
        route: Ints | int = 0,
        delay_s: Float64 | float = 0.0,
    ) -> Int64:
        """Numbers of so many new ops, in that shape; bytes, routes and delays are broadcast to it."""
        numbers = self.count + np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
        columns = (np.broadcast_to(value, numbers.shape).reshape(-1) for value in (nbytes, route, delay_s))
        size, way, delay = columns
        self._parts.append((size.astype(np.int64), way.astype(np.int64), delay.astype(np.float64)))
        self.count += numbers.size
        return numbers

    def order(self, before: Ints, after: Ints) -> None:
        """ProgramOps `after` begin when those `before` have ended, pair by pair, both broadcast."""
        one, two = np.broadcast_arrays(before, after)
        self._before.append(one.reshape(-1).astype(np.int64))
        self._after.append(two.reshape(-1).astype(np.int64))

    def meet(self, arrived: Int64, hop_s: float) -> Int64:
        """What each member of each group goes on with when the flags of all others have reached it, a hop later.

        `arrived` (..., members, lanes) are ops after which a member sets its flag; lanes meet by themselves.
        """
        flags, met = self.add(arrived.shape, delay_s=hop_s), self.add(arrived.shape)
        self.order(arrived, flags)
        self.order(arrived, met)
        one, other = np.nonzero(~np.eye(arrived.shape[-2], dtype=bool))
        self.order(flags[..., one, :], met[..., other, :])
        return met

    def program(self, bandwidth: Float64) -> Program:
        """The Program on links of these bytes/s, without a latency of their own."""
        nbytes, route, delay = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        succ_ptr, succ_idx = from_edges(self.count, np.concatenate(self._before), np.concatenate(self._after))
        lengths = [len(links) for links in self._routes]
        return Program(
            nbytes=nbytes,
            route=route.astype(np.int32),
            delay_s=delay,
            succ_ptr=succ_ptr,
            succ_idx=succ_idx,
            route_ptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            route_link=np.array([link for links in self._routes for link in links], np.int32),
            link_bandwidth=bandwidth,
            link_latency=np.zeros(bandwidth.size),
        )
