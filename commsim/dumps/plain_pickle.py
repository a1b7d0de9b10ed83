"""Pickles of strangers as plain data: dict, list, tuple, str, bytes, numbers, None, bool; nothing else is ever made.

It is a machine of its own over the opcodes that `pickletools` decodes, not Python's unpickler: an opcode that looks up
a name, calls, or builds an object is refused by its name and place before anything happens.
"""

from __future__ import annotations

import io
import pickletools
import warnings
from collections.abc import Callable
from typing import Any

MOST_BYTES = 64 << 20
MOST_OPCODES = 3_000_000
MOST_STACK = 1_000_000
MOST_INTEGER_BYTES = 16


class PickleFaultError(Exception):
    """What of a pickle is refused or broken, and at which byte."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(f"byte {offset}: {message}")


_VALUES = frozenset(
    [
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
        "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    ]
)  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NAMES = ("GLOBAL", "STACK_GLOBAL", "INST")


class _Mark:
    """Where a run of values begins on the stack."""


_MARK = _Mark()


def load_plain(data: bytes) -> Any:
    """The value of a pickle; PickleFaultError names the byte of what is refused or broken."""
    if len(data) > MOST_BYTES:
        raise PickleFaultError(MOST_BYTES, f"found more than {MOST_BYTES >> 20} MiB")
    machine = _PickleMachine()
    offset = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # of escapes that Python does not know
            for count, (opcode, argument, at) in enumerate(pickletools.genops(io.BytesIO(data))):
                offset = at or 0
                if count > MOST_OPCODES:
                    raise PickleFaultError(offset, f"found more than {MOST_OPCODES:,} opcodes")
                if opcode.name == "STOP":
                    return machine.stop()
                machine.run(opcode.name, argument, offset)
    except PickleFaultError:
        raise
    except (ValueError, IndexError, TypeError, KeyError, OverflowError, MemoryError, DeprecationWarning) as error:
        raise PickleFaultError(offset, f"found no sound pickle: {str(error)[:100]}") from None
    raise PickleFaultError(len(data), "the file ends within the pickle")


class _PickleMachine:
    """The stack and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._moves: dict[str, Callable[[], object]] = {
            "MARK": lambda: self.stack.append(_MARK),
            "EMPTY_DICT": lambda: self.stack.append({}),
            "EMPTY_LIST": lambda: self.stack.append([]),
            "EMPTY_TUPLE": lambda: self.stack.append(()),
            "APPEND": lambda: self._extend([self._pop()]),
            "APPENDS": lambda: self._extend(self._marked()),
            "SETITEM": lambda: self._set(self._several(2)),
            "SETITEMS": lambda: self._set(self._marked()),
            "TUPLE": lambda: self.stack.append(tuple(self._marked())),
            "TUPLE1": lambda: self.stack.append(tuple(self._several(1))),
            "TUPLE2": lambda: self.stack.append(tuple(self._several(2))),
            "TUPLE3": lambda: self.stack.append(tuple(self._several(3))),
            "LIST": lambda: self.stack.append(self._marked()),
            "DICT": self._dict,
            "POP": self.stack.pop,
            "POP_MARK": self._marked,
            "DUP": lambda: self.stack.append(self.stack[-1]),
            "MEMOIZE": lambda: self._remember(len(self.memo)),
            "PROTO": lambda: None,
            "FRAME": lambda: None,
        }

    def run(self, name: str, argument: Any, offset: int) -> None:
        """Do what one opcode says."""
        if name in _VALUES:
            if isinstance(argument, int) and argument.bit_length() > 8 * MOST_INTEGER_BYTES:
                raise PickleFaultError(offset, f"found an integer of {argument.bit_length():,} bits")
            self.stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._remember(int(argument))
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memo[int(argument)])
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in self._moves:
            self._moves[name]()
        else:
            raise PickleFaultError(offset, self._refusal(name, argument))
        if len(self.stack) > MOST_STACK:
            raise PickleFaultError(offset, f"found more than {MOST_STACK:,} values on the stack")

    def stop(self) -> Any:
        """The one value that is left."""
        value = self._pop()
        if self.stack:
            raise ValueError("values are left over")
        return value

    def _refusal(self, name: str, argument: Any) -> str:
        """The words for an opcode that makes more than plain data, and for what it names."""
        named = argument if name != "STACK_GLOBAL" else " ".join(str(v) for v in self.stack[-2:] if isinstance(v, str))
        of = f" {str(named)[:80]!r}" if name in _NAMES else ""
        return f"found the opcode {name}{of}, which makes more than plain data; nothing of the file was executed"

    def _pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value belongs")
        return value

    def _several(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _marked(self) -> list[Any]:
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError("items for what is no list")
        target.extend(values)

    def _dict(self) -> None:
        values = self._marked()
        self.stack.append({})
        self._set(values)

    def _set(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(values) % 2:
            raise ValueError("pairs for what is no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (str, bytes, int, float, bool, type(None))):  # hashing a tuple goes into its depth
                raise ValueError("a key that is no text and no number")
            target[key] = value

    def _remember(self, place: int) -> None:
        if self.stack[-1] is _MARK:
            raise ValueError("a mark where a value belongs")
        self.memo[place] = self.stack[-1]
