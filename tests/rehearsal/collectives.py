"""What NCCL's calls do to data, computed from what all ranks give, and what they cost and count."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rehearsal.exchange import Exchange
from rehearsal.law import Work, seconds, sent_to
from rehearsal.settings import Failure

if TYPE_CHECKING:
    from rehearsal.layer import Rehearsal
    from rehearsal.streams import Batch

TYPES = (
    torch.int8, torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.float16, torch.float32,
    torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
"""By ncclDataType_t of nccl.h."""

OPERATIONS = ("sum", "prod", "max", "min", "avg")
"""By ncclRedOp_t."""


@dataclass
class Communicator:
    """A communicator as one rank has it: `ranks` are those of the run, in the communicator's order."""

    exchange: Exchange
    ranks: list[int]
    failed: int = 0  # what ncclCommGetAsyncError answers
    parts: int = 0  # splits so far

    @property
    def rank(self) -> int:
        return self.exchange.rank

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass
class Operation:
    """One collective, or one group of sends and receives as (peer, address, bytes)."""

    layer: Rehearsal
    communicator: Communicator
    kind: str
    count: int = 0
    dtype: int = 0
    redop: int = 0
    root: int = 0
    send: int = 0
    receive: int = 0
    sends: list[tuple[int, int, int]] = field(default_factory=list)
    receives: list[tuple[int, int, int]] = field(default_factory=list)

    def same_as(self, other: Operation) -> bool:
        """Whether another operation is this one on another part of the buffers."""
        return self.communicator is other.communicator and self._signature() == other._signature()

    def _signature(self) -> tuple[Any, ...]:
        peers = [[(peer, nbytes) for peer, _, nbytes in side] for side in (self.sends, self.receives)]
        return self.kind, self.count, self.dtype, self.redop, self.root, peers

    @property
    def block(self) -> int:
        """Bytes of `count` elements."""
        return self.count * int(TYPES[self.dtype].itemsize)

    def work(self) -> Work:
        """What the law and the counters know of it."""
        if self.kind == "group":
            largest = max((sum(n for *_, n in side) for side in (self.sends, self.receives)), default=0)
            return Work("group", largest, sends=tuple((peer, nbytes) for peer, _, nbytes in self.sends))
        whole = self.kind in ("all_reduce", "reduce", "broadcast")
        return Work(self.kind, self.block * (1 if whole else self.communicator.size), self.root)

    def given(self) -> int:
        """Bytes that this rank gives the others."""
        if self.kind in ("reduce_scatter", "all_to_all"):
            return self.block * self.communicator.size
        if self.kind == "scatter":
            return self.block * self.communicator.size if self.communicator.rank == self.root else 0
        if self.kind == "broadcast" and self.communicator.rank != self.root:
            return 0
        return self.block

    def progress(self, batch: Batch, free_s: float) -> float | None:
        """When the batch ends on the virtual clock, None as long as other ranks have not come."""
        exchange = self.communicator.exchange
        if not batch.posted:
            failure = self.layer.failure(self)
            if failure is not None and not self._survives(failure):
                return None
            said = {"what": self._common(), "first": max(batch.first_s, free_s), "last": batch.last_s}
            exchange.post(said | {"sends": [[peer, n] for peer, _, n in self.sends]}, self._data())
            batch.posted = True
        if self.communicator.failed or not exchange.all_posted():
            return None
        words = [exchange.words(rank) for rank in range(self.communicator.size)]
        if any(each["what"] != words[0]["what"] for each in words):
            raise RuntimeError(f"the ranks of a rehearsal called different things: {[w['what'] for w in words]}")
        self._receive(words)
        if any(f.kind == "wrong" and f.rank == self.layer.settings.rank for f in self.layer.due(self)):
            _bytes(self.receive or self.receives[0][1], 1)[0] ^= 0x44
        self._count_bytes(batch.count)
        time_s = seconds(self.layer.settings, self._shared_work(words), self.communicator.ranks)
        first, last = (max(each[name] for each in words) for name in ("first", "last"))
        return float(max(first + batch.count * time_s, last + time_s))

    def _survives(self, failure: Failure) -> bool:
        """Lets a failure happen; False where the call never ends."""
        if failure.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if failure.kind == "async":
            self.communicator.failed = 6  # ncclRemoteError
            self.layer.last_error = "NET/IB : Got completion from peer with status=12 opcode=0 len=0 vendor err 129"
        if failure.kind == "throttle" and self.layer.rehearsed_nvml is not None:
            self.layer.rehearsed_nvml.throttled = True
        return failure.kind not in ("hang", "async")

    def _common(self) -> list[Any]:
        """What all ranks must have called alike."""
        return [self.kind, self.count, self.dtype, self.redop, self.root]

    def _shared_work(self, words: list[dict[str, Any]]) -> Work:
        if self.kind != "group":
            return self.work()
        return Work("group", max(sum(n for _, n in each["sends"]) for each in words))

    def _data(self) -> Any:
        if self.kind == "group":
            return b"".join(bytes(_bytes(address, n)) for _, address, n in self.sends)
        return _bytes(self.send, self.given()) if self.given() else b""

    def _receive(self, words: list[dict[str, Any]]) -> None:
        """Writes what this rank receives."""
        read, n, block, rank = self._read, self.communicator.size, self.block, self.communicator.rank
        if self.kind in ("all_reduce", "reduce", "reduce_scatter"):
            if self.kind == "reduce" and rank != self.root:
                return
            first = rank * block if self.kind == "reduce_scatter" else 0
            self._write(self.receive, self._reduced([read(peer, first, block) for peer in range(n)]))
        elif self.kind == "broadcast":
            self._write(self.receive, read(self.root, 0, block))
        elif self.kind == "scatter":
            self._write(self.receive, read(self.root, rank * block, block))
        elif self.kind in ("all_gather", "gather"):
            for peer in range(n) if self.kind == "all_gather" or rank == self.root else ():
                self._write(self.receive + peer * block, read(peer, 0, block))
        elif self.kind == "all_to_all":
            for peer in range(n):
                self._write(self.receive + peer * block, read(peer, rank * block, block))
        else:
            taken: dict[int, int] = {}
            for peer, address, nbytes in self.receives:
                number = taken.get(peer, 0)
                taken[peer] = number + 1
                self._write(address, read(peer, *_where(words[peer]["sends"], rank, number, nbytes)))

    def _read(self, peer: int, first: int, nbytes: int) -> Any:
        return torch.from_numpy(self.communicator.exchange.data(peer, first, nbytes))

    def _write(self, address: int, values: Any) -> None:
        data = values.contiguous().view(torch.uint8).numpy()
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def _reduced(self, parts: list[Any]) -> Any:
        dtype, redop = TYPES[self.dtype], OPERATIONS[self.redop]
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        carrier = {torch.uint32: torch.int32, torch.uint64: torch.int64}.get(dtype, dtype)
        every = torch.stack([part.view(carrier).to(wide) for part in parts])
        if redop in ("max", "min"):
            out = getattr(every, f"a{redop}")(dim=0)
        elif redop == "prod":
            out = every.prod(dim=0)
        else:
            out = every.sum(dim=0)
            if redop == "avg":
                out = out / len(parts) if dtype.is_floating_point else out // len(parts)
        return out.to(carrier)

    def _count_bytes(self, calls: int) -> None:
        communicator, s = self.communicator, self.layer.settings
        node = s.node_of(communicator.ranks[communicator.rank])
        carried = {"nvlink": [0.0, 0.0], "net": [0.0, 0.0]}
        for peer, nbytes in sent_to(self.work(), communicator.rank, communicator.size).items():
            carried["nvlink" if s.node_of(communicator.ranks[peer]) == node else "net"][0] += nbytes * calls
        for peer in range(communicator.size) if self.kind != "group" else ():
            arriving = sent_to(self.work(), peer, communicator.size).get(communicator.rank, 0.0)
            carried["nvlink" if s.node_of(communicator.ranks[peer]) == node else "net"][1] += arriving * calls
        for peer, _, nbytes in self.receives:
            if peer != communicator.rank:
                carried["nvlink" if s.node_of(communicator.ranks[peer]) == node else "net"][1] += nbytes * calls
        for wire, (sent, received) in carried.items():
            if sent or received:
                self.layer.counters.add(wire, sent, received)


def _where(sends: list[list[int]], rank: int, number: int, nbytes: int) -> tuple[int, int]:
    """Offset and bytes of the how-many-th message to a rank among those that a peer has sent."""
    offset = 0
    for peer, length in sends:
        if peer == rank:
            if number == 0:
                if length != nbytes:
                    raise RuntimeError(f"a rank of a rehearsal sends {length} B and its peer expects {nbytes} B")
                return offset, length
            number -= 1
        offset += length
    raise RuntimeError("a rank of a rehearsal expects a message that its peer does not send")


def _bytes(address: int, nbytes: int) -> Any:
    return (ctypes.c_uint8 * nbytes).from_address(address)
