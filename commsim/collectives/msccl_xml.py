"""Reads the XML of MSCCL algorithms as it stands: elements and attributes with their lines, nothing interpreted.

Every fault up to a limit is reported with its line.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from commsim.errors import Fault, ScheduleError
from commsim.xml_tree import XmlFaultError, XmlHandler, read_events

MOST_BYTES: Final = 64 * 2**20
MOST_FAULTS: Final = 20
MOST_NUMBER: Final = 2**31 - 1

SENDS: Final = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVES: Final = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
LOCAL: Final = frozenset({"cpy", "re", "ra"})
READS: Final = LOCAL | {"s", "rrs", "rrc", "rrcs"}
"""Steps that read the source in memory."""
WRITES: Final = LOCAL | {"r", "rcs", "rrc", "rrcs"}
"""Steps that write the target in memory."""
TYPES: Final = SENDS | RECEIVES | LOCAL | {"nop"}


@dataclass(slots=True)
class MscclStep:
    """One step of a thread block; offsets and ``cnt`` count chunks, ``depid`` is -1 without a dependence."""

    line: int
    s: int
    type: str
    srcbuf: str
    srcoff: int
    dstbuf: str
    dstoff: int
    cnt: int
    depid: int
    deps: int
    hasdep: bool


@dataclass(slots=True)
class ThreadBlock:
    """One thread block: at most one peer to send to and one to receive from (-1: none), steps in order."""

    line: int
    id: int
    send: int
    recv: int
    chan: int
    steps: list[MscclStep] = field(default_factory=list)


@dataclass(slots=True)
class MscclGpu:
    """One rank with the sizes of its buffers in chunks."""

    line: int
    id: int
    chunks: dict[str, int]
    blocks: list[ThreadBlock] = field(default_factory=list)


@dataclass(slots=True)
class Algo:
    """The whole file."""

    line: int
    name: str
    coll: str
    proto: str
    nchannels: int
    nchunksperloop: int
    ngpus: int
    inplace: bool
    outofplace: bool
    min_bytes: int
    max_bytes: int
    root: int | None
    gpus: list[MscclGpu] = field(default_factory=list)


class Faults:
    """Faults of one file as they are found; ``stop`` ends the reading with all of them."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.noted: list[Fault] = []

    def add(self, line: int, message: str, where: str = "") -> None:
        """Note one fault; beyond a limit the reading ends."""
        self.noted.append(Fault(self.file, line, 1, where, message))
        if len(self.noted) >= MOST_FAULTS:
            self.stop("; stopped here")

    def stop(self, more: str = "") -> None:
        """Raise a ScheduleError with every fault so far, if there is any."""
        if self.noted:
            raise ScheduleError("\n".join(str(f) for f in sorted(self.noted)) + more)


def read_algo(source: Path | str, file: str | None = None) -> Algo:
    """The algorithm of a file, or of the text of one; a ScheduleError names every fault with its line."""
    if isinstance(source, str):
        return _read(io.BytesIO(source.encode()), file or "<text>")
    try:
        with source.open("rb") as stream:
            return _read(stream, file or str(source))
    except OSError as fault:
        raise ScheduleError(f"{source}: cannot be read: {fault.strerror or fault}") from None


def _read(stream: BinaryIO, file: str) -> Algo:
    faults = Faults(file)
    handler = _Handler(faults)
    try:
        read_events(stream, handler, MOST_BYTES)
    except XmlFaultError as fault:
        faults.noted.append(Fault(file, fault.line, fault.column, "", str(fault)))
    faults.stop()
    if handler.algo is None:
        raise ScheduleError(f"{file}: holds no <algo>")
    return handler.algo


_INSIDE = {"algo": None, "gpu": "algo", "tb": "gpu", "step": "tb"}


class _Handler(XmlHandler):
    """Builds the Algo from parser events; ``open`` are the names of the elements around the current place."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults
        self.algo: Algo | None = None
        self.open: list[str] = []

    def startElement(self, name: str, attrs: Any) -> None:
        line = self.line
        around = self.open[-1] if self.open else None
        if name not in _INSIDE:
            self.faults.add(line, f"found <{name[:40]}>, expected one of {', '.join(f'<{n}>' for n in _INSIDE)}")
            self.faults.stop()
        if around != _INSIDE[name]:
            self.faults.add(line, f"found <{name}> inside {f'<{around}>' if around else 'nothing'}")
            self.faults.stop()
        self.open.append(name)
        getattr(self, f"_{name}")(line, _Attributes(self.faults, line, name, attrs))

    def endElement(self, name: str) -> None:
        del name
        self.open.pop()

    def _algo(self, line: int, given: _Attributes) -> None:
        self.algo = Algo(
            line,
            given.text("name", "msccl"),
            given.text("coll"),
            given.text("proto", "Simple"),
            given.number("nchannels", 1, 2**16),
            given.number("nchunksperloop", 1, 2**24),
            given.number("ngpus", 1, 2**20),
            given.flag("inplace"),
            given.flag("outofplace"),
            given.number("minBytes", 0, 2**62, 0),
            given.number("maxBytes", 0, 2**62, 0),
            given.number("root", 0, MOST_NUMBER) if given.has("root") else None,
        )

    def _gpu(self, line: int, given: _Attributes) -> None:
        assert self.algo is not None
        number = given.number("id", 0, MOST_NUMBER)
        sizes = {b: given.number(f"{b}_chunks", 0, MOST_NUMBER) for b in "ios"}
        self.algo.gpus.append(MscclGpu(line, number, sizes))

    def _tb(self, line: int, given: _Attributes) -> None:
        assert self.algo is not None
        numbers = (given.number("id", 0, MOST_NUMBER), given.number("send", -1), given.number("recv", -1))
        self.algo.gpus[-1].blocks.append(ThreadBlock(line, *numbers, given.number("chan", 0, 2**16)))

    def _step(self, line: int, given: _Attributes) -> None:
        assert self.algo is not None
        kind = given.one_of("type", TYPES)
        idle = kind == "nop"  # a nop moves nothing: its buffers and offsets mean nothing
        step = MscclStep(
            line,
            given.number("s", 0),
            kind,
            "" if idle else given.one_of("srcbuf", "ios"),
            -1 if idle else given.number("srcoff", -1),
            "" if idle else given.one_of("dstbuf", "ios"),
            -1 if idle else given.number("dstoff", -1),
            0 if idle else given.number("cnt", 1),
            given.number("depid", -1),
            given.number("deps", -1),
            given.flag("hasdep"),
        )
        self.algo.gpus[-1].blocks[-1].steps.append(step)


class _Attributes:
    """The attributes of one element, read with a fault for each one that is missing or makes no sense."""

    def __init__(self, faults: Faults, line: int, element: str, given: Any) -> None:
        self.faults, self.line, self.element, self.given = faults, line, element, given

    def has(self, name: str) -> bool:
        return name in self.given

    def text(self, name: str, default: str | None = None) -> str:
        value = self.given.get(name, default)
        if value is None:
            self._fault(f"has no {name}")
            return ""
        return str(value)[:200]

    def number(self, name: str, least: int, most: int = MOST_NUMBER, default: int | None = None) -> int:
        value = self.given.get(name)
        if value is None:
            if default is None:
                self._fault(f"has no {name}, expected a number")
            return least if default is None else default
        digits = value.strip()
        # str.isdecimal takes other scripts' digits too, and int() refuses texts of thousands of digits.
        known = len(digits) <= 20 and digits.isascii() and digits.removeprefix("-").isdecimal()
        if not known or not least <= int(digits) <= most:
            self._fault(f"has {name}={value[:40]!r}, expected a number from {least} to {most}")
            return least
        return int(digits)

    def flag(self, name: str) -> bool:
        return self.number(name, 0, 1, 0) == 1

    def one_of(self, name: str, known: frozenset[str] | str) -> str:
        value = self.text(name)
        if self.has(name) and value not in known:
            self._fault(f"has {name}={value[:40]!r}, expected one of {', '.join(sorted(known))}")
        return value if value in known else min(known)

    def _fault(self, message: str) -> None:
        self.faults.add(self.line, f"<{self.element}> {message}")
