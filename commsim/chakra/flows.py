"""Transfers of a trace that share links with others: each goes on as fast as these let it.

As in a training step (`commsim.training.flows`), a transfer alone takes what the library's model says; what it puts on
links is that of the largest one of its kind, scaled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commsim.chakra.program import Key, TraceOperation, TraceProgram
from commsim.engine.sharing import CallTraffic, LinkLoad, Sharing
from commsim.training.communicators import SEND, GroupCalls


class SharedLinks:
    """The transfers of a program as calls of a `Sharing`; equal ones between the same ranks are one."""

    def __init__(self, program: TraceProgram, calls: GroupCalls, places: Sequence[int]) -> None:
        at = np.asarray(places, np.int64)
        transfers = [(key, op) for op in program.operations if (key := _key(program, op)) is not None]
        largest: dict[tuple[Key, str], int] = {}
        for key, op in transfers:
            largest[key, op.name] = max(op.nbytes, largest.get((key, op.name), 0))
        loads: dict[tuple[Key, str], LinkLoad] = {}
        self._numbers: dict[tuple[Key, str, int, float], int] = {}
        made = list[CallTraffic]()
        for key, op in transfers:
            number = (key, op.name, op.nbytes, op.seconds)
            if number in self._numbers:
                continue
            kind = key, op.name
            if kind not in loads:
                name = SEND if key[0] == "send" else op.name
                loads[kind] = calls.load(name, largest[kind], at[list(key[1])][None])
            self._numbers[number] = len(made)
            made.append(CallTraffic(0.0, op.seconds, loads[kind].times(op.nbytes / largest[kind])))
        self.sharing = Sharing(made)
        self.contended = any(map(self.sharing.meets, range(len(made))))

    def number(self, key: Key, operation: TraceOperation) -> int:
        """The number of an operation's call, -1 where it takes no time or has no peer."""
        return self._numbers.get((key, operation.name, operation.nbytes, operation.seconds), -1)


def _key(program: TraceProgram, operation: TraceOperation) -> Key | None:
    """What a transfer is on; None for what is none, or moves nothing."""
    key = program.keys[operation.line] if operation.line >= 0 else None
    if key is None or len(key[1]) < 2 or operation.seconds <= 0 or operation.nbytes <= 0:
        return None
    return key
