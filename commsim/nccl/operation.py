"""What a call does to its elements, and which algorithms NCCL leaves it for that.

After src/enqueue.cc (the cost table of a call, and how an operation becomes one of the device) and `ncclNvlsSupported`
of src/include/device.h (before 2.19 NCCL_NVLS_SUPPORTS of collectives.h), read at every release from 2.8.3 to 2.30.7.
all_gather and broadcast move bytes whatever their type, though some releases ask for the type all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from commsim.collectives.semantics import REDUCING
from commsim.nccl.channels import MOST_NVLS_HEADS
from commsim.nccl.system import System
from commsim.nccl.version import Version, format_version

OTHER_DTYPE_NAMES = {
    "char": "int8",
    "int": "int32",
    "half": "float16",
    "fp16": "float16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
}
"""Types as nccl-tests and others print them."""

FP8 = ("float8_e4m3", "float8_e5m2")
_MINMAX_TYPES = ("int32", "uint32", "int64", "uint64", "float16", "bfloat16")
_SUM_TYPES = (*_MINMAX_TYPES, "float32", "float64")
_INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
_SCALING = ("avg", "mulsum")

_FP8_SINCE: Version = (2, 24, 0)
_BF16_SINCE: Version = (2, 10, 0)
_AVG_SINCE: Version = (2, 10, 0)
_LOSSY_RANKS = 8
_LOSSY = 1024.0


@dataclass(frozen=True)
class Operation:
    """Type of the elements, and the reduction where the collective has one."""

    dtype: str = "float32"
    redop: str = "sum"  # | prod | max | min | avg, and of nccl-tests mulsum, which scales by a number of the caller's

    @classmethod
    def named(cls, dtype: str, redop: str) -> Operation:
        """From the words of a log; a blank, ``none`` or unknown word stands for float32 or sum.

        >>> Operation.named("half", "avg")
        Operation(dtype='float16', redop='avg')
        """
        word = OTHER_DTYPE_NAMES.get(dtype.lower(), dtype.lower())
        known = word in (*_INTEGERS, *_SUM_TYPES, *FP8)
        return cls(word if known else cls.dtype, redop if redop in ("prod", "max", "min", *_SCALING) else cls.redop)

    def __str__(self) -> str:
        return f"{self.redop} of {self.dtype}"

    @property
    def one(self) -> str:
        """With its article: ``an avg of bfloat16``."""
        return f"{'an' if self.redop == 'avg' else 'a'} {self}"

    @property
    def on_device(self) -> str:
        """The operation that NCCL's kernels know: an average is a PreMulSum, of whole numbers a SumPostDiv."""
        if self.redop in _SCALING:
            return "SumPostDiv" if self.redop == "avg" and self.dtype in _INTEGERS else "PreMulSum"
        return {"sum": "Sum", "prod": "Prod"}.get(self.redop, "MinMax")

    def alike(self, other: Operation) -> bool:
        """Whether NCCL's choice is the same for both, whatever the release."""
        return self._kind == other._kind

    @property
    def _kind(self) -> tuple[bool, ...]:
        return self.by_nvswitch, self.by_sharp, self.redop in _SCALING, self.dtype in FP8

    @property
    def by_nvswitch(self) -> bool:
        """Whether NVSwitches can do it: `ncclNvlsSupported`, alike in all releases from 2.17 on."""
        types = {"Sum": _SUM_TYPES, "MinMax": _MINMAX_TYPES}
        return self.dtype in types.get(self.on_device, ())

    @property
    def by_sharp(self) -> bool:
        """Whether switches of the network can, for which NCCL asks the plugin; an average is a sum to it.

        The types and operations of nccl-rdma-sharp-plugins src/sharp_plugin.c, those of SHARPv3 among them.
        """
        return self.redop != "prod" and self.dtype not in FP8


SUM = Operation()


def unknown_to(version: Version, sm: int | None, collective: str, operation: Operation) -> str:
    """Why a release refuses a call (src/nccl.h.in, and taskAppend of src/enqueue.cc); blank where it does not.

    Data that is only moved may be of any type: programs hand it over as bytes. A GPU that is not known (`sm` None)
    may have them all.
    """
    if collective not in REDUCING:
        return ""
    since = {**dict.fromkeys(FP8, _FP8_SINCE), "bfloat16": _BF16_SINCE}.get(operation.dtype)
    if since is not None and version < since:
        return f"NCCL {format_version(version)} has no {operation.dtype}, which came with {since[0]}.{since[1]}"
    if operation.redop in _SCALING and version < _AVG_SINCE:
        return (
            f"NCCL {format_version(version)} has no {operation.redop}, which came with {_AVG_SINCE[0]}.{_AVG_SINCE[1]}"
        )
    if operation.dtype in FP8 and sm is not None and sm < 90:
        return f"NCCL reduces {operation.dtype} from compute capability 9.0 on, and this GPU has {sm / 10:.1f}"
    return ""


def passed_over(system: System, collective: str, algorithm: str, version: Version, operation: Operation) -> str:
    """Why NCCL leaves an algorithm of the communicator out of a call's cost table; blank where it stays."""
    if algorithm in ("nvls", "nvls_tree"):
        return _without_nvswitch(system, collective, algorithm, version, operation)
    if algorithm.startswith("collnet") and collective in REDUCING and not operation.by_sharp:
        return f"no switch of the network does {operation.one}"
    scales = operation.on_device in ("PreMulSum", "SumPostDiv")
    if algorithm == "pat" and collective == "reduce_scatter" and scales:
        return f"PAT does not scale, and {operation.one} is a {operation.on_device}"
    return ""


def _without_nvswitch(
    system: System, collective: str, algorithm: str, version: Version, operation: Operation
) -> str:  # fmt: skip
    # NCCL checks this from 2.26 on; before, such a call had more ranks than its switch has heads for.
    if collective != "all_reduce" and system.ranks_per_node > MOST_NVLS_HEADS:
        return f"more ranks of a node than the {MOST_NVLS_HEADS} that an NVSwitch serves"
    across = system.nodes > 1
    if collective != "all_reduce" and across and (2, 19, 0) <= version < (2, 27, 0):
        return f"{collective} by NVLS is for one node until 2.27"
    if _asks_for_type(collective, version):
        asked = operation
        if collective == "all_gather":  # which is a sum to NCCL, and to 2.17 one of bytes
            asked = Operation(operation.dtype if version >= (2, 18, 0) else "int8")
        if not asked.by_nvswitch:
            return f"no NVSwitch does {asked.one}" + (f" ({asked.on_device})" if asked.redop in _SCALING else "")
    if algorithm == "nvls" and across and collective in REDUCING and not operation.by_sharp:
        return f"no switch of the network does {operation.one}"
    return ""


def _asks_for_type(collective: str, version: Version) -> bool:
    """Whether NVLS hangs on the type: of all_gather only in 2.17 and in 2.20 to 2.21."""
    return collective in REDUCING or version < (2, 19, 0) or (2, 20, 0) <= version < (2, 22, 0)


def ring_factor(system: System, collective: str, version: Version, operation: Operation) -> float:
    """What NCCL multiplies a ring's time with: so much for fp8 above eight ranks that any other algorithm is chosen.

    Many additions in a row lose digits that fp8 does not have to spare (from 2.24).
    """
    lossy = operation.dtype in FP8 and collective in REDUCING and system.ranks > _LOSSY_RANKS
    return _LOSSY if lossy and version >= _FP8_SINCE else 1.0
