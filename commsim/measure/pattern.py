"""The numbers that ranks send, and what each must hold afterwards, computed without any communication.

Rank r fills its array with small whole numbers of period 1021 that depend on r. Sums are exact (in 8-bit floats of up
to 8 ranks, in bfloat16 of up to 85). A shift by less than 1021 elements shows. The expected result is a short table.
Writing and comparing happen on the buffer's device, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from commsim.collectives.schedule import split_evenly
from commsim.collectives.semantics import GATHERING, ITEM_BYTES, REDUCING, ROOTED, SCATTERING, TO_ROOT
from commsim.measure.tasks import Task

PERIOD = 1021

CHUNK_BYTES = 16 << 20
"""Bytes of the tile that is written and compared at once."""

_NARROW = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2})

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of the same width that torch copies and compares on every device, as it does not uint32 or 8-bit floats."""

TORCH_TYPES: dict[str, torch.dtype] = {
    name: getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(name, name)) for name in ITEM_BYTES
}


@dataclass(frozen=True)
class Stretch:
    """Elements first..last (exclusive) of the array whose period is `base`, a (1021,) of float64."""

    base: Any
    first: int
    last: int


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

    def given(self, rank: int) -> Stretch:
        """The part of the array that a rank contributes, in the order in which it lies in its send buffer."""
        first, last = 0, self.elements
        if self.collective in GATHERING:
            first, last = self.block(rank)
        elif self.collective == "all_to_all_v":
            bounds = self.pair_bounds()
            first, last = bounds[rank * self.world_size], bounds[(rank + 1) * self.world_size]
        return Stretch(self.base(rank), first, last)

    def wanted(self, rank: int) -> list[Stretch] | None:
        """What the receive buffer of a rank must hold, piece by piece; None where nothing is promised to it."""
        name, n = self.collective, self.world_size
        whole = (0, self.elements)
        if name in TO_ROOT and rank != self.root:
            return None
        if name in REDUCING:
            return [Stretch(self.reduced(), *(self.block(rank) if name in SCATTERING else whole))]
        if name in ROOTED - TO_ROOT:
            return [Stretch(self.base(self.root), *(self.block(rank) if name in SCATTERING else whole))]
        if name == "send_recv":
            return [Stretch(self.base((rank - 1) % n), *whole)]
        if name in GATHERING:
            return [Stretch(self.base(owner), *self.block(owner)) for owner in range(n)]
        if name == "all_to_all":
            return [Stretch(self.base(sender), *self.block(rank)) for sender in range(n)]
        if name == "all_to_all_v":
            bounds = self.pair_bounds()
            return [Stretch(self.base(i // n), bounds[i], bounds[i + 1]) for i in range(rank, n * n, n)]
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

    def fill(self, rank: int, buffer: Any) -> None:
        """Writes what a rank contributes into its send buffer, where that lies; an empty one stays empty."""
        part, length = self.given(rank), buffer.numel()
        self.write(Stretch(part.base, part.first, min(part.last, part.first + length)), buffer)

    def write(self, part: Stretch, buffer: Any) -> None:
        """Writes a stretch of the pattern to the begin of a buffer, where that lies."""
        for chunk, tile in self._tiles(buffer, part):
            chunk.copy_(tile)

    def wrong(self, rank: int, received: Any) -> int:
        """Number of elements of a receive buffer that are not what they must be, compared where the buffer lies."""
        parts, at = self.wanted(rank) or [], 0
        total = torch.zeros((), dtype=torch.int64, device=received.device)
        for part in parts:
            total += self.differing(part, received[at:])
            at += part.last - part.first
        return int(total)

    def differing(self, part: Stretch, buffer: Any) -> Any:
        """Number of elements at the begin of a buffer that are not those of a stretch, as a tensor beside it."""
        total = torch.zeros((), dtype=torch.int64, device=buffer.device)
        for chunk, tile in self._tiles(buffer, part):
            if self.slack:
                actual, want = self._wide(chunk), self._wide(tile)
                total += (~((actual - want).abs() <= self.slack * want.abs().clamp(min=1.0))).sum()
            else:
                total += (chunk != tile).sum()
        return total

    @cached_property
    def slack(self) -> float:
        """How far a right result may lie from the expected one, as a share of it (of 1, where it is below 1)."""
        if self.collective not in REDUCING:
            return 0.0
        if not self.dtype.is_floating_point:
            return 1.0 if self.redop == "avg" else 0.0  # an average rounds, one way or the other
        # n additions round once each where the sum leaves the whole numbers that the type has.
        eps = float(torch.finfo(self.dtype).eps)
        exact = self.redop != "avg" and float(self.reduced().max()) <= 2 / eps
        return 0.0 if exact else eps * self.world_size

    def _tiles(self, buffer: Any, part: Stretch) -> Iterator[tuple[Any, Any]]:
        """Every chunk at the begin of a buffer, with the tile of the stretch that belongs there."""
        length = part.last - part.first
        if length <= 0:
            return
        whole = _carried(buffer)
        values = self._typed(part.base).roll(-(part.first % PERIOD)).to(whole.device)
        width = 8 if self.slack else whole.element_size()  # with a tolerance, it is doubles that are compared
        periods = max(1, min(CHUNK_BYTES // (PERIOD * width), -(-length // PERIOD)))
        tile = values.repeat(periods)  # whole periods: every chunk begins at the same phase
        for at in range(0, length, len(tile)):
            chunk = whole[at : min(at + len(tile), length)]
            yield chunk, tile[: len(chunk)]

    def _wide(self, carried: Any) -> Any:
        """Carried numbers as float64; by way of float32 where that holds them, as GPUs convert 8-bit floats to it."""
        values = carried.view(self.dtype)
        return values.double() if self.dtype.itemsize > 2 else values.float().double()

    def _typed(self, base: Any) -> Any:
        """A table of float64 in the type of the collective, as the carrier of its width; whole numbers wrap."""
        values = base if self.dtype.is_floating_point else base.to(torch.int64)
        if self.dtype in (torch.uint32, torch.uint64):
            return values.to(_CARRIERS[self.dtype.itemsize])
        return _carried(values.to(self.dtype))


def pattern_of(task: Task, size: int, world_size: int) -> Pattern:
    """The pattern of a task at a size in bytes of the whole array."""
    redop = task.redop if task.reduces else "sum"
    elements, dtype = size // task.item_bytes, TORCH_TYPES[task.dtype]
    return Pattern(task.collective, world_size, elements, dtype, redop, task.root)


def _carried(tensor: Any) -> Any:
    """The same memory as the carrier type of its width."""
    return tensor.view(_CARRIERS[tensor.element_size()])
