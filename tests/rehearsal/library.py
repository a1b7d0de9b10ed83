"""libnccl of a rehearsal: the entry points of nccl.h as functions that ctypes calls like those of a shared library.

The arguments stand here once more, after nccl.h of 2.28.9 and independent of the package: a call whose arguments are
others arrives here as nonsense.
"""

from __future__ import annotations

import ctypes
import time
import traceback
import uuid
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.collectives import TYPES, Communicator, Operation
from rehearsal.exchange import Exchange
from rehearsal.logs import write_logs, write_selection

if TYPE_CHECKING:
    from rehearsal.layer import Rehearsal

_OK, _CUDA, _INTERNAL, _ARGUMENT, _USAGE = 0, 1, 3, 4, 5
_ERRORS = (
    "no error",
    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "internal error - please report this issue to the NCCL developers",
    "invalid argument (run with NCCL_DEBUG=WARN for details)",
    "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "remote process exited or there was a network error",
    "NCCL operation in progress",
)


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


_BUFFERS = (c_void_p, c_void_p)
_END = (c_void_p, c_void_p)  # communicator, stream
_ARGUMENTS: dict[str, tuple[tuple[Any, ...], int]] = {
    "ncclGetVersion": ((c_void_p,), 20000),
    "ncclGetUniqueId": ((c_void_p,), 20000),
    "ncclCommInitRank": ((c_void_p, c_int, UniqueId, c_int), 20000),
    "ncclCommInitRankConfig": ((c_void_p, c_int, UniqueId, c_int, c_void_p), 21400),
    "ncclCommSplit": ((c_void_p, c_int, c_int, c_void_p, c_void_p), 21800),
    "ncclCommDestroy": ((c_void_p,), 20000),
    "ncclCommAbort": ((c_void_p,), 20000),
    "ncclCommGetAsyncError": ((c_void_p, c_void_p), 20400),
    "ncclCommRegister": ((c_void_p, c_void_p, c_size_t, c_void_p), 21900),
    "ncclCommDeregister": ((c_void_p, c_void_p), 21900),
    "ncclCommWindowRegister": ((c_void_p, c_void_p, c_size_t, c_void_p, c_int), 22700),
    "ncclCommWindowDeregister": ((c_void_p, c_void_p), 22700),
    "ncclMemAlloc": ((c_void_p, c_size_t), 21900),
    "ncclMemFree": ((c_void_p,), 21900),
    "ncclAllReduce": ((*_BUFFERS, c_size_t, c_int, c_int, *_END), 20000),
    "ncclReduceScatter": ((*_BUFFERS, c_size_t, c_int, c_int, *_END), 20000),
    "ncclReduce": ((*_BUFFERS, c_size_t, c_int, c_int, c_int, *_END), 20000),
    "ncclBroadcast": ((*_BUFFERS, c_size_t, c_int, c_int, *_END), 20200),
    "ncclAllGather": ((*_BUFFERS, c_size_t, c_int, *_END), 20000),
    "ncclAlltoAll": ((*_BUFFERS, c_size_t, c_int, *_END), 22800),
    "ncclGather": ((*_BUFFERS, c_size_t, c_int, c_int, *_END), 22800),
    "ncclScatter": ((*_BUFFERS, c_size_t, c_int, c_int, *_END), 22800),
    "ncclSend": ((c_void_p, c_size_t, c_int, c_int, *_END), 20700),
    "ncclRecv": ((c_void_p, c_size_t, c_int, c_int, *_END), 20700),
    "ncclGroupStart": ((), 20000),
    "ncclGroupEnd": ((), 20000),
}
_TEXTS = {"ncclGetErrorString": ((c_int,), 20000), "ncclGetLastError": ((c_void_p,), 21300)}


class _Function(ctypes._CFuncPtr):  # type: ignore[name-defined,misc]
    """A C function by its address, whose arguments the caller declares, as those of a ctypes.CDLL."""

    _flags_ = ctypes._FUNCFLAG_CDECL  # type: ignore[attr-defined]
    _restype_ = c_int


class Library:
    """What ctypes.CDLL gives of libnccl.so.2: attributes that are C functions, those that its version has."""

    def __init__(self, layer: Rehearsal) -> None:
        self._layer = layer
        self._alive: list[Any] = []  # callbacks and texts that C still points to
        self._communicators: dict[int, Communicator] = {}
        self._memory: dict[int, tuple[Any, int]] = {}
        self._registered: dict[int, tuple[int, int]] = {}
        self._group: list[Operation] | None = None
        self._depth = 0
        self._numbers = iter(range(0x1000, 1 << 30, 0x10))

    def __getattr__(self, name: str) -> Any:
        arguments, since = (_ARGUMENTS | _TEXTS).get(name, ((), 1 << 30))
        if name.startswith("_") or since > self._layer.settings.version:
            raise AttributeError(f"/rehearsal/libnccl.so.2: undefined symbol: {name}")
        method = getattr(self, f"_{name}")
        result = c_void_p if name in _TEXTS else c_int
        callback = ctypes.CFUNCTYPE(result, *arguments)(self._guarded(method))
        function = _Function(ctypes.cast(callback, c_void_p).value)
        function.__name__ = name
        self._alive.append(callback)
        setattr(self, name, function)
        return function

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except Exception:
                self._layer.last_error = traceback.format_exc(limit=2).strip().splitlines()[-1]
                return _INTERNAL

        return call

    def _text(self, text: str) -> int:
        buffer = ctypes.create_string_buffer(text.encode())
        self._alive.append(buffer)
        return ctypes.addressof(buffer)

    def _ncclGetErrorString(self, code: int) -> int:
        return self._text(_ERRORS[code] if code < len(_ERRORS) else "unknown result code")

    def _ncclGetLastError(self, communicator: int | None) -> int:
        del communicator
        return self._text(self._layer.last_error)

    def _ncclGetVersion(self, version: int) -> int:
        c_int.from_address(version).value = self._layer.settings.version
        return _OK

    def _ncclGetUniqueId(self, given: int) -> int:
        ctypes.memmove(given, uuid.uuid4().hex.encode().ljust(128, b"\0"), 128)
        return _OK

    def _ncclCommInitRank(self, made: int, size: int, given: UniqueId, rank: int) -> int:
        if not 0 <= rank < size or not given.internal:
            self._layer.last_error = f"Invalid rank requested : {rank}/{size}"
            return _ARGUMENT
        folder = Path(self._layer.settings.folder) / f"comm-{given.internal.decode()}"
        exchange = Exchange(folder, rank, size)
        run_ranks = self._gather(exchange, {"rank": self._layer.settings.rank})
        communicator = Communicator(exchange, [each["rank"] for each in run_ranks])
        c_void_p.from_address(made).value = self._keep(communicator)
        write_logs(self._layer.settings, communicator)
        return _OK

    def _ncclCommInitRankConfig(self, made: int, size: int, given: UniqueId, rank: int, config: int) -> int:
        nbytes = c_size_t.from_address(config).value
        magic, version = (c_uint.from_address(config + 8 + 4 * i).value for i in range(2))
        newest = 80 if self._layer.settings.version >= 22800 else 48
        if magic != 0xCAFEBEEF or not 24 <= nbytes <= newest or version > self._layer.settings.version:
            self._layer.last_error = "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER"
            return _ARGUMENT
        blocking, cga, least, most = (c_int.from_address(config + 16 + 4 * i).value for i in range(4))
        if blocking not in (0, 1, -(2**31)) or any(v != -(2**31) for v in (cga, least, most)):
            self._layer.last_error = f"Invalid config blocking attribute value {blocking}"
            return _ARGUMENT
        return self._ncclCommInitRank(made, size, given, rank)

    def _gather(self, exchange: Exchange, said: dict[str, Any]) -> list[dict[str, Any]]:
        exchange.post(said)
        while not exchange.all_posted():
            time.sleep(1e-3)
        return [exchange.words(rank) for rank in range(exchange.size)]

    def _keep(self, communicator: Communicator) -> int:
        number = next(self._numbers)
        self._communicators[number] = communicator
        return number

    def _ncclCommSplit(self, handle: int, color: int, key: int, made: int, config: int | None) -> int:
        del config
        parent = self._communicators[handle]
        said = {"color": color, "key": key, "rank": self._layer.settings.rank}
        every = self._gather(parent.exchange, said)
        mine = sorted((each["key"], old, each["rank"]) for old, each in enumerate(every) if each["color"] == color)
        parent.parts += 1
        folder = parent.exchange.folder / f"part{parent.parts}-{color}"
        ranks = [rank for *_, rank in mine]
        exchange = Exchange(folder, [old for _, old, _ in mine].index(parent.rank), len(ranks))
        c_void_p.from_address(made).value = self._keep(Communicator(exchange, ranks))
        return _OK

    def _ncclCommDestroy(self, handle: int) -> int:
        if self._registered:
            self._layer.last_error = "a buffer of the communicator is registered still"
            return _USAGE
        del self._communicators[handle]
        return _OK

    def _ncclCommAbort(self, handle: int) -> int:
        self._communicators.pop(handle, None)
        return _OK

    def _ncclCommGetAsyncError(self, handle: int, code: int) -> int:
        c_int.from_address(code).value = self._communicators[handle].failed
        return _OK

    def _ncclMemAlloc(self, pointer: int, nbytes: int) -> int:
        free, _ = self._layer.memory()
        above = self._layer.settings.oom_above
        if nbytes > free or (above and nbytes > above):
            self._layer.last_error = "Cuda failure 2 'out of memory'"
            return _CUDA
        memory = self._layer.map_memory(nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._memory[address] = (memory, nbytes)
        self._layer.used_bytes += nbytes
        self._layer.most_used_bytes = max(self._layer.most_used_bytes, self._layer.used_bytes)
        c_void_p.from_address(pointer).value = address
        return _OK

    def _ncclMemFree(self, pointer: int) -> int:
        if any(first == pointer for first, _ in self._registered.values()):
            self._layer.last_error = "memory is freed that is registered still"
            return _USAGE
        _, nbytes = self._memory.pop(pointer)
        self._layer.used_bytes -= nbytes
        return _OK

    def _ncclCommRegister(self, handle: int, pointer: int, nbytes: int, made: int) -> int:
        if handle not in self._communicators or not self._holds(pointer, nbytes):
            return _ARGUMENT
        number = next(self._numbers)
        self._registered[number] = (pointer, nbytes)
        c_void_p.from_address(made).value = number
        return _OK

    def _ncclCommDeregister(self, handle: int, registered: int) -> int:
        del handle, self._registered[registered]
        return _OK

    def _ncclCommWindowRegister(self, handle: int, pointer: int, nbytes: int, made: int, flags: int) -> int:
        every = self._gather(self._communicators[handle].exchange, {"nbytes": nbytes, "flags": flags})
        if any(each != every[0] for each in every) or flags != 1:
            self._layer.last_error = "windows of different sizes"
            return _ARGUMENT
        if not self._layer.settings.symmetric:
            c_void_p.from_address(made).value = None
            return _OK
        return self._ncclCommRegister(handle, pointer, nbytes, made)

    def _ncclCommWindowDeregister(self, handle: int, window: int) -> int:
        return self._ncclCommDeregister(handle, window)

    def _holds(self, pointer: int, nbytes: int) -> bool:
        """Whether an address lies, with so many bytes, in memory of the GPU."""
        return any(at <= pointer and pointer + nbytes <= at + size for at, (_, size) in self._memory.items())

    def _put(self, operation: Operation, stream: int | None, *ranges: tuple[int, int]) -> int:
        """Puts an operation on its stream, or keeps it for the end of the group."""
        for address, nbytes in ranges:
            if nbytes and not self._holds(address or 0, nbytes) and self._layer.settings.version >= 21900:
                self._layer.last_error = f"{operation.kind}: {nbytes} B at {address} are no memory of the GPU"
                return _ARGUMENT
        if any(f.kind == "refuse" for f in self._layer.due(operation)):
            self._layer.last_error = f"{operation.kind} : refused"
            return _ARGUMENT
        if self._group is not None:
            operation.__dict__["stream"] = stream
            self._group.append(operation)
            return _OK
        write_selection(self._layer.settings, operation)
        self._layer.stream_at(stream).put(operation)
        return _OK

    def _collective(self, kind: str, send: Any, receive: Any, count: int, dtype: int, handle: int, stream: Any,
                    redop: int = 0, root: int = 0) -> int:  # fmt: skip
        communicator = self._communicators.get(handle)
        if communicator is None or not 0 <= dtype < len(TYPES) or not 0 <= redop < 5:
            self._layer.last_error = f"{kind} : invalid argument"
            return _ARGUMENT
        if not 0 <= root < communicator.size:
            self._layer.last_error = (
                f"{kind} : invalid root {root} (root should be in the 0..{communicator.size} range)"
            )
            return _ARGUMENT
        operation = Operation(
            self._layer, communicator, kind, count, dtype, redop, root, send=send or 0, receive=receive or 0
        )
        arriving = operation.block * (communicator.size if kind in ("all_gather", "all_to_all") else 1)
        if kind == "gather":
            arriving = operation.block * communicator.size if communicator.rank == root else 0
        return self._put(operation, stream, (send, operation.given()), (receive, arriving))

    def _ncclAllReduce(self, send: int, receive: int, count: int, dtype: int, op: int, comm: int, stream: int) -> int:
        return self._collective("all_reduce", send, receive, count, dtype, comm, stream, redop=op)

    def _ncclReduceScatter(self, send: int, receive: int, count: int, dtype: int, op: int, comm: int, s: int) -> int:
        return self._collective("reduce_scatter", send, receive, count, dtype, comm, s, redop=op)

    def _ncclReduce(
        self, send: int, receive: int, count: int, dtype: int, op: int, root: int, comm: int, s: int
    ) -> int:
        return self._collective("reduce", send, receive, count, dtype, comm, s, redop=op, root=root)

    def _ncclBroadcast(self, send: int, receive: int, count: int, dtype: int, root: int, comm: int, s: int) -> int:
        return self._collective("broadcast", send, receive, count, dtype, comm, s, root=root)

    def _ncclAllGather(self, send: int, receive: int, count: int, dtype: int, comm: int, stream: int) -> int:
        return self._collective("all_gather", send, receive, count, dtype, comm, stream)

    def _ncclAlltoAll(self, send: int, receive: int, count: int, dtype: int, comm: int, stream: int) -> int:
        return self._collective("all_to_all", send, receive, count, dtype, comm, stream)

    def _ncclGather(self, send: int, receive: int, count: int, dtype: int, root: int, comm: int, s: int) -> int:
        return self._collective("gather", send, receive, count, dtype, comm, s, root=root)

    def _ncclScatter(self, send: int, receive: int, count: int, dtype: int, root: int, comm: int, s: int) -> int:
        return self._collective("scatter", send, receive, count, dtype, comm, s, root=root)

    def _ncclSend(self, send: int, count: int, dtype: int, peer: int, comm: int, stream: int) -> int:
        return self._message("sends", send, count, dtype, peer, comm, stream)

    def _ncclRecv(self, receive: int, count: int, dtype: int, peer: int, comm: int, stream: int) -> int:
        return self._message("receives", receive, count, dtype, peer, comm, stream)

    def _message(self, side: str, address: int, count: int, dtype: int, peer: int, comm: int, stream: int) -> int:
        if self._group is None:
            self._layer.last_error = "a rehearsal knows sends and receives in groups only"
            return _USAGE
        nbytes = count * TYPES[dtype].itemsize
        operation = Operation(self._layer, self._communicators[comm], "group")
        getattr(operation, side).append((peer, address or 0, nbytes))
        return self._put(operation, stream, (address, nbytes))

    def _ncclGroupStart(self) -> int:
        self._depth += 1
        if self._group is None:
            self._group = []
        return _OK

    def _ncclGroupEnd(self) -> int:
        if self._group is None:
            return _USAGE
        self._depth -= 1
        if self._depth:
            return _OK
        calls, self._group = self._group, None
        if not calls:
            return _OK
        whole = calls[0]
        for call in calls[1:]:
            whole.sends += call.sends
            whole.receives += call.receives
        self._layer.stream_at(whole.__dict__["stream"]).put(whole)
        return _OK
