"""The numbers that ranks send, and what each must hold afterwards, computed without any communication.

Rank r fills its array with a pattern of period 1021 that depends on r, of small whole numbers: sums are exact (in
8-bit floats of up to 8 ranks, in bfloat16 of up to 85), a shift by less than 1021 elements shows, and the expected
result of any size is a short table, tiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from commsim.collectives.schedule import split_evenly

PERIOD = 1021

_NARROW = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2})

TORCH_TYPES: dict[str, torch.dtype] = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "uint32": torch.uint32,
    "int64": torch.int64,
    "uint64": torch.uint64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


@dataclass(frozen=True)
class Pattern:
    """What the ranks of one collective send and expect; `elements` counts those of the whole array."""

    collective: str
    world_size: int
    elements: int
    dtype: torch.dtype
    redop: str = "sum"
    root: int = 0

    def base(self, rank: int) -> Any:
        """One period of the array of a rank, (1021,), as float64."""
        i = torch.arange(PERIOD, dtype=torch.int64)
        if self.redop == "prod":
            return (1 + ((i + rank) % max(self.world_size, 2) == 0)).double()
        highest = 2 if self.dtype in _NARROW else 4
        return ((i * i + i * (rank + 3)) % PERIOD % highest).double()  # squares: no shift maps them onto themselves

    def reduced(self) -> Any:
        """One period of the reduction over all ranks, (1021,), as float64."""
        every = torch.stack([self.base(rank) for rank in range(self.world_size)])
        if self.redop in ("min", "max"):
            return getattr(every, f"a{self.redop}")(dim=0)
        if self.redop == "prod":
            return every.prod(dim=0)
        total = every.sum(dim=0)
        return total / self.world_size if self.redop == "avg" else total

    def input(self, rank: int) -> Any:
        """The part of the array that a rank contributes, in the order in which it lies in its send buffer."""
        first, last = 0, self.elements
        if self.collective in ("all_gather", "gather"):
            first, last = self.block(rank)
        elif self.collective == "all_to_all_v":
            bounds = self.pair_bounds()
            first, last = bounds[rank * self.world_size], bounds[(rank + 1) * self.world_size]
        return self.tile(self.base(rank), first, last)

    def expected(self, rank: int) -> Any | None:
        """What the receive buffer of a rank must hold, or None where the collective promises nothing to it."""
        name, n = self.collective, self.world_size
        whole = (0, self.elements)
        if name in ("reduce", "gather") and rank != self.root:
            return None
        if name in ("all_reduce", "reduce"):
            return self.tile(self.reduced(), *whole)
        if name == "reduce_scatter":
            return self.tile(self.reduced(), *self.block(rank))
        if name == "broadcast":
            return self.tile(self.base(self.root), *whole)
        if name == "scatter":
            return self.tile(self.base(self.root), *self.block(rank))
        if name == "send_recv":
            return self.tile(self.base((rank - 1) % n), *whole)
        if name in ("all_gather", "gather"):
            return torch.cat([self.tile(self.base(owner), *self.block(owner)) for owner in range(n)])
        if name == "all_to_all":
            return torch.cat([self.tile(self.base(sender), *self.block(rank)) for sender in range(n)])
        if name == "all_to_all_v":
            bounds = self.pair_bounds()
            at = [sender * n + rank for sender in range(n)]
            return torch.cat([self.tile(self.base(i // n), bounds[i], bounds[i + 1]) for i in at])
        raise KeyError(name)

    def block(self, rank: int) -> tuple[int, int]:
        """First and last (exclusive) element of the block of a rank; blocks are equal."""
        length = self.elements // self.world_size
        return rank * length, (rank + 1) * length

    def pair_bounds(self) -> list[int]:
        """First element of the block from each rank to each rank, and the end; blocks differ by one at most."""
        return [0, *split_evenly(self.elements, self.world_size**2).cumsum().tolist()]

    def pair_counts(self) -> list[list[int]]:
        """Elements from each rank to each rank."""
        counts = [b - a for a, b in pairwise(self.pair_bounds())]
        return [counts[i : i + self.world_size] for i in range(0, len(counts), self.world_size)]

    def tile(self, base: Any, first: int, last: int) -> Any:
        """The elements first..last of the array whose period is `base`."""
        values = base.to(self.dtype).roll(-(first % PERIOD))
        return values.repeat(-(-(last - first) // PERIOD) or 1)[: last - first]

    def wrong(self, rank: int, received: Any) -> int:
        """Number of elements of a receive buffer that are not what they must be."""
        expected = self.expected(rank)
        if expected is None:
            return 0
        got, want = received.cpu().to(torch.float64), expected.to(torch.float64)
        if not self.dtype.is_floating_point:
            slack = 1.0 if self.redop == "avg" else 0.0  # an average rounds, one way or the other
        else:
            # n additions round once each where the sum leaves the whole numbers that the type has.
            eps = float(torch.finfo(self.dtype).eps)
            exact = self.redop != "avg" and float(self.reduced().max()) <= 2 / eps
            slack = 0.0 if exact else eps * self.world_size
        return int((~((got - want).abs() <= slack * want.abs().clamp(min=1.0))).sum())
