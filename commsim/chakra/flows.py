"""Transfers of a trace that share links with others: each goes on as fast as these let it.

As in a training step (`commsim.training.flows`), a transfer alone takes what the library's model says; what it puts on
links is that of the largest one of its kind, scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commsim.chakra.program import Key, TraceOperation, TraceProgram
from commsim.engine.memory import require_memory
from commsim.engine.sharing import CallTraffic, LinkLoad, Sharing
from commsim.training.communicators import SEND, GroupCalls

_STEP = 0.01
"""Relative step in which the paces of transfers are told apart."""

_BYTES_PER_LINK = 130
"""Peak bytes of a link of one call: its load, and the columns that are sorted; measured at two million, rounded up."""


class SharedLinks:
    """The transfers of a program as calls of a `Sharing`; those between the same ranks at the same pace are one.

    InfeasibleError where their links take more memory than there is.
    """

    def __init__(self, program: TraceProgram, calls: GroupCalls, places: Sequence[int]) -> None:
        at = np.asarray(places, np.int64)
        transfers = [(key, op) for op in program.operations if (key := _key(program, op)) is not None]
        largest: dict[tuple[Key, str], int] = {}
        for key, op in transfers:
            largest[key, op.name] = max(op.nbytes, largest.get((key, op.name), 0))
        loads: dict[tuple[Key, str], LinkLoad] = {}
        self._numbers: dict[tuple[Key, str, int], int] = {}
        made, entries = list[CallTraffic](), 0
        for key, op in transfers:
            number = key, op.name, _pace(op)
            if number in self._numbers:
                continue
            kind = key, op.name
            if kind not in loads:
                name = SEND if key[0] == "send" else op.name
                loads[kind] = calls.load(name, largest[kind], at[list(key[1])][None])
            entries += loads[kind].link.size
            advice = "contention: false leaves it out"
            require_memory(entries * _BYTES_PER_LINK, entries, subject="what the trace puts on links", advice=advice)
            self._numbers[number] = len(made)
            made.append(CallTraffic(0.0, op.seconds, loads[kind].times(op.nbytes / largest[kind])))
        self.sharing = Sharing(made)
        self.contended = any(map(self.sharing.meets, range(len(made))))

    def number(self, key: Key, operation: TraceOperation) -> int:
        """The number of an operation's call, -1 where it takes no time or has no peer."""
        return self._numbers.get((key, operation.name, _pace(operation)), -1) if _moves(key, operation) else -1


def _pace(operation: TraceOperation) -> int:
    """Bytes/s of an operation in steps of 1 %: calls that differ by less are one."""
    return round(math.log(operation.nbytes / operation.seconds) / _STEP)


def _moves(key: Key, operation: TraceOperation) -> bool:
    """Whether an operation takes time to move bytes to another rank."""
    return len(key[1]) > 1 and operation.seconds > 0 and operation.nbytes > 0


def _key(program: TraceProgram, operation: TraceOperation) -> Key | None:
    """What a transfer is on; None for what is none, or moves nothing."""
    key = program.keys[operation.line] if operation.line >= 0 else None
    return key if key is not None and _moves(key, operation) else None
