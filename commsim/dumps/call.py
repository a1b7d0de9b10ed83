"""The one form of what a dump holds: calls of one rank, groups of ranks, and counts where there are no calls.

Times are whole nanoseconds of the writer's clock, as the formats have them: a float of seconds since 1970 is too
coarse for a kernel of ten microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Literal

from commsim.collectives.semantics import ITEM_BYTES, NCCL_TESTS, ROOTED
from commsim.dumps.messages import OpenMessage
from commsim.errors import Fault, LogFormatError
from commsim.units import seconds_of_ns

State = Literal["scheduled", "started", "completed", "ended"]
"""``ended``: over, but the format cannot say whether well (gloo's entries of a flight recorder)."""

MOST_CALLS = 100_000
"""Of one file."""

MOST_CALLS_OF_A_JOB = 1_000_000
MOST_GROUPS = 10_000


@dataclass(frozen=True, slots=True)
class RankCall:
    """A collective that one rank entered.

    ``sequence`` counts the collectives of the group. ``nbytes`` is the nccl-tests size, 0 where the dump does not say.
    ``seconds`` is what the dump states as duration, waiting included. ``place``: file and line of the program.
    """

    rank: int
    group: str
    sequence: int
    operation: str
    nbytes: int = 0
    dtype: str = ""
    start_ns: int | None = None
    end_ns: int | None = None
    seconds: float | None = None
    state: State = "completed"
    place: str = ""
    library: str = ""
    """What made the call, such as ``gloo``; empty where the dump does not say, or has NCCL's calls only."""

    @property
    def duration_s(self) -> float | None:
        """Seconds from entering to leaving; None where the dump cannot say."""
        if self.seconds is not None:
            return self.seconds
        if self.start_ns is None or self.end_ns is None:
            return None
        return seconds_of_ns(self.end_ns - self.start_ns)


@dataclass(frozen=True)
class CallGroup:
    """Ranks that call together; ``ranks`` None where no dump lists them."""

    name: str
    title: str = ""
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Count:
    """How many collectives of one kind a rank has launched; ``trouble`` is what the report says is wrong with it."""

    rank: int
    group: str
    operation: str
    launched: int
    process: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class Dump:
    """What one file holds."""

    path: Path
    kind: str
    calls: Sequence[RankCall] = ()
    groups: Sequence[CallGroup] = ()
    counts: Sequence[Count] = ()
    ranks: tuple[int, ...] = ()
    host: str = ""
    notes: tuple[str, ...] = ()
    named_groups: bool = True
    """Whether calls say which group they are of; else all are counted as one group's."""
    starts: Literal["entered", "enqueued"] = "entered"
    """Whether starts are those of the call itself, or of the host that asked a GPU for it."""
    messages: int = 0
    """Sends and receives."""
    open_messages: tuple[OpenMessage, ...] = ()
    """Those that did not end, where the format says so."""


def fault(path: Path, message: str, line: int = 0) -> LogFormatError:
    """A dump that cannot be read, and where."""
    return LogFormatError([Fault(str(path), line, 1 if line else 0, "", message)])


_DTYPES = {
    "float": "float32", "half": "float16", "double": "float64", "byte": "uint8", "char": "int8", "int": "int32",
    "long": "int64", "bool": "uint8", "float8_e4m3fn": "float8_e4m3",
}  # fmt: skip
"""Names of c10::ScalarType that are not those of torch.dtype (c10/core/ScalarType.h), in lower case."""


def dtype_of(name: object) -> tuple[str, int]:
    """(our name, bytes of an element); what is unknown keeps its name and has 0 bytes."""
    text = text_of(name, 40)
    known = _DTYPES.get(text.lower(), text.lower())
    return (known, ITEM_BYTES[known]) if known in ITEM_BYTES else (text, 0)


_OPERATIONS = {
    "allreduce": "all_reduce", "allreducecoalesced": "all_reduce", "allreducesparse": "all_reduce",
    "allgather": "all_gather", "allgatherbase": "all_gather", "allgathersingle": "all_gather",
    "allgatherintotensorcoalesced": "all_gather", "allgathercoalesced": "all_gather", "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter", "reducescatterbase": "reduce_scatter", "reducescattersingle": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter", "reducescattercoalesced": "reduce_scatter",
    "reducescatterv": "reduce_scatter", "broadcast": "broadcast", "broadcastoop": "broadcast", "reduce": "reduce",
    "reduceoop": "reduce", "gather": "gather", "scatter": "scatter", "alltoall": "all_to_all",
    "alltoallv": "all_to_all", "alltoallbase": "all_to_all", "alltoallsingle": "all_to_all",
    "alltoallvsingle": "all_to_all", "barrier": "barrier", "allreducebarrier": "barrier",
}  # fmt: skip
"""What torch 2.13 calls collectives (flight_recorder/components/types.py, ProcessGroupNCCL.cpp)."""


def library_of(name: str) -> str:
    """``gloo`` of ``gloo:all_reduce``; empty where a name has no such part."""
    library, colon, _ = name.partition(":")
    return intern(library) if colon and library.isalpha() and len(library) <= 10 else ""


def is_together(operation: str) -> bool:
    """Whether no rank leaves a collective before all have entered."""
    return operation == "barrier" or (operation in NCCL_TESTS and operation not in ROOTED | {"send_recv"})


def operation_of(name: str) -> str:
    """Our name of a collective; what is none of them keeps its name."""
    bare = name.rsplit(":", 1)[-1].strip()
    return _OPERATIONS.get(bare.lower().replace("_", ""), bare[:60])


def text_of(value: object, most: int = 80) -> str:
    """Text of a name that a stranger wrote: cut, without what would steer a terminal; empty for what is no name."""
    if not isinstance(value, (str, int, float)):
        return ""  # a list may be as deep as its file is long
    text = str(value)[:most]
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def whole(value: object, most: int = 1 << 62) -> int | None:
    """A whole number from 0 to ``most``; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


MOST_SECONDS = 1e7
"""Of a duration: more than a hundred days is no call of a collective."""


def positive(value: object) -> float | None:
    """A finite number from 0 to `MOST_SECONDS`; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= MOST_SECONDS else None
