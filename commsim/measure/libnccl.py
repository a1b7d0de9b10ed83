"""libnccl as Python calls it: the entry points of nccl.h through ctypes, with NCCL's own words for what goes wrong.

Types, enumerations and layouts are those of src/nccl.h.in, NCCL 2.7 to 2.30: an entry point that a version lacks is
missing here too, and none has changed its arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

from commsim.errors import MeasurementError
from commsim.measure.gpu import version_of

SUCCESS, UNHANDLED_CUDA, REMOTE_ERROR, IN_PROGRESS = 0, 1, 6, 7  # ncclResult_t

DATATYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float8_e4m3": 10,
    "float8_e5m2": 11,
}
"""ncclDataType_t; bfloat16 since 2.10, 8-bit floats since 2.24."""

REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""ncclRedOp_t; avg since 2.10."""

WINDOW_SYMMETRIC = 1
"""NCCL_WIN_COLL_SYMMETRIC: the buffer lies at the same offset of every rank's window (2.27)."""

_UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT
_MAGIC = 0xCAFEBEEF
_UNIQUE_ID_BYTES = 128


class UniqueId(ctypes.Structure):
    """ncclUniqueId: what every rank must have been given to join one communicator; passed by value."""

    _fields_ = (("internal", ctypes.c_byte * _UNIQUE_ID_BYTES),)


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.17 (ncclConfig_v21700, up to `split_share`) and of 2.28 (ncclConfig_v22800, all of it).

    A library reads `size` bytes and takes what a later one has added as undefined (parseCommConfig in src/init.cc).
    """

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cga_cluster_size", c_int),
        ("min_ctas", c_int),
        ("max_ctas", c_int),
        ("net_name", c_char_p),
        ("split_share", c_int),
        ("traffic_class", c_int),
        ("comm_name", c_char_p),
        ("collnet_enable", c_int),
        ("cta_policy", c_int),
        ("shrink_share", c_int),
        ("nvls_ctas", c_int),
        ("channels_per_net_peer", c_int),
        ("nvlink_centric_sched", c_int),
    )


def config_for(version: tuple[int, ...]) -> Config:
    """What a communicator of nccl-tests is made with (initComms in src/common.cu, 2.19.6), for a library's version."""
    config = Config(magic=_MAGIC, blocking=1)
    for name, kind in Config._fields_[4:]:
        if kind is c_int:
            setattr(config, name, _UNDEFINED)
    if version >= (2, 28):
        config.size, config.version = ctypes.sizeof(Config), 22800
        config.nvlink_centric_sched = 1
    else:
        config.size, config.version = Config.traffic_class.offset, 21700
        config.size += -config.size % ctypes.alignment(Config)
    return config


_COLLECTIVE = (c_size_t, c_int, c_void_p, c_void_p)  # count, type, communicator, stream
_REDUCING = (c_size_t, c_int, c_int, c_void_p, c_void_p)  # count, type, operation, communicator, stream
_ROOTED = (c_size_t, c_int, c_int, c_void_p, c_void_p)  # count, type, root, communicator, stream
_BUFFERS = (c_void_p, c_void_p)  # what is sent, what is received

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, UniqueId, c_int),
    "ncclCommInitRankConfig": (POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)),  # 2.14
    "ncclCommSplit": (c_void_p, c_int, c_int, POINTER(c_void_p), POINTER(Config)),  # 2.18
    "ncclCommDestroy": (c_void_p,),
    "ncclCommAbort": (c_void_p,),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclCommRegister": (c_void_p, c_void_p, c_size_t, POINTER(c_void_p)),  # 2.19
    "ncclCommDeregister": (c_void_p, c_void_p),
    "ncclCommWindowRegister": (c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int),  # 2.27
    "ncclCommWindowDeregister": (c_void_p, c_void_p),
    "ncclMemAlloc": (POINTER(c_void_p), c_size_t),  # 2.19
    "ncclMemFree": (c_void_p,),
    "ncclAllReduce": (*_BUFFERS, *_REDUCING),
    "ncclReduceScatter": (*_BUFFERS, *_REDUCING),
    "ncclReduce": (*_BUFFERS, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p),  # count, type, operation, root
    "ncclBroadcast": (*_BUFFERS, *_ROOTED),
    "ncclAllGather": (*_BUFFERS, *_COLLECTIVE),
    "ncclAlltoAll": (*_BUFFERS, *_COLLECTIVE),  # 2.28
    "ncclGather": (*_BUFFERS, *_ROOTED),  # 2.28
    "ncclScatter": (*_BUFFERS, *_ROOTED),  # 2.28
    "ncclSend": (c_void_p, *_ROOTED),  # peer in the place of a root; 2.7
    "ncclRecv": (c_void_p, *_ROOTED),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
"""Arguments by entry point; every one of them returns an ncclResult_t."""


class NcclFaultError(MeasurementError):
    """Something that NCCL does not do; whoever knows adds what was being measured."""


@dataclass(eq=False)
class NcclError(NcclFaultError):
    """A call of NCCL that failed: which, NCCL's number for it, and NCCL's own words."""

    call: str
    code: int
    words: str

    def __str__(self) -> str:
        return f"{self.call}: {self.words}"


class Nccl:
    """The entry points of a loaded libnccl; `call` raises NcclError where one does not return ncclSuccess."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._error_string = library.ncclGetErrorString
        self._error_string.argtypes, self._error_string.restype = (c_int,), c_char_p
        self._last_error = getattr(library, "ncclGetLastError", None)  # 2.13
        if self._last_error is not None:
            self._last_error.argtypes, self._last_error.restype = (c_void_p,), c_char_p
        code = c_int()
        self.call("ncclGetVersion", byref(code))
        self.version = version_of(code.value)

    def has(self, name: str) -> bool:
        """Whether this library exports an entry point."""
        return hasattr(self._library, name)

    def function(self, name: str) -> Any:
        """An entry point to be called with Python's numbers and ctypes' pointers; the caller looks at what it returns.

        Raises MeasurementError where this version of NCCL has none.
        """
        if not self.has(name):
            raise MeasurementError(f"NCCL {'.'.join(map(str, self.version))} has no {name}")
        function = getattr(self._library, name)  # the same object each time
        function.argtypes, function.restype = SIGNATURES[name], c_int
        return function

    def call(self, name: str, *arguments: Any, communicator: int | None = None) -> None:
        """Calls an entry point; raises NcclError where it fails."""
        code = self.function(name)(*arguments)
        if code != SUCCESS:
            raise self.error(name, code, communicator)

    def error(self, name: str, code: int, communicator: int | None = None) -> NcclError:
        """What NCCL says of a result: the meaning of its number, and the last warning where it has given one."""
        words = (self._error_string(code) or b"").decode(errors="replace")
        last = (self._last_error(communicator) or b"") if self._last_error is not None else b""
        warning = last.decode(errors="replace").strip()
        short = words.split(" (run with")[0].split(" - please")[0]
        return NcclError(name, code, f"{short}: {warning}" if warning else short)

    def unique_id(self) -> bytes:
        """What the other ranks need to join a communicator of this rank, 128 bytes."""
        given = UniqueId()
        self.call("ncclGetUniqueId", byref(given))
        return bytes(given.internal)

    def join(self, unique_id: bytes, rank: int, world_size: int) -> int:
        """A communicator of all ranks that were given the same id; waits until all have come."""
        given = UniqueId.from_buffer_copy(unique_id)
        if self.has("ncclCommInitRankConfig"):
            config = byref(config_for(self.version))
            return self._made(lambda new: self.call("ncclCommInitRankConfig", new, world_size, given, rank, config))
        return self._made(lambda new: self.call("ncclCommInitRank", new, world_size, given, rank))

    def split(self, communicator: int, color: int, key: int) -> int:
        """The communicator of the ranks that named the same color, in the order of their keys."""
        return self._made(
            lambda new: self.call("ncclCommSplit", communicator, color, key, new, None, communicator=communicator)
        )

    def async_error(self, communicator: int) -> NcclError | None:
        """What has gone wrong on a communicator after a call returned; None if nothing."""
        code = c_int()
        self.call("ncclCommGetAsyncError", communicator, byref(code), communicator=communicator)
        if code.value in (SUCCESS, IN_PROGRESS):
            return None
        return self.error("NCCL", code.value, communicator)

    def allocate(self, nbytes: int) -> int:
        """The address of memory that NCCL can register; raises NcclError where there is not enough."""
        return self._made(lambda new: self.call("ncclMemAlloc", new, nbytes))

    def free(self, pointer: int) -> None:
        """Gives memory of `allocate` back."""
        self.call("ncclMemFree", pointer)

    def register(self, communicator: int, pointer: int, nbytes: int, *, window: bool) -> int:
        """The handle of a buffer that NCCL may read and write without a copy; 0 where NCCL makes no use of it.

        `window`: a symmetric one, which all ranks make together.
        """
        name, flags = ("ncclCommWindowRegister", (WINDOW_SYMMETRIC,)) if window else ("ncclCommRegister", ())
        return self._made(
            lambda new: self.call(name, communicator, pointer, nbytes, new, *flags, communicator=communicator)
        )

    @staticmethod
    def _made(make: Callable[[Any], None]) -> int:
        """The pointer that a call writes to the place it is given; 0 where it writes none."""
        handle = c_void_p()
        make(byref(handle))
        return int(handle.value or 0)
