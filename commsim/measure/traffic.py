"""Bytes that left a rank by whatever its library sends through: sockets, NVLink, InfiniBand or RoCE.

Over TCP the kernel counts them below the library: TCP_INFO of every socket of the process counts payload. The library's
message headers are in it, other headers and retransmissions are not. gloo and NCCL's socket transport keep their
connections in the process of the rank.

A count is told only where every way that the rank's bytes can take is counted. What nothing counts stays unknown:
copies over PCIe, through the memory of the host, or within a GPU, and networks with counters of their own.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from commsim.collectives.semantics import CHAINED, bandwidth_bytes
from commsim.measure.gpu import Gpus
from commsim.units import format_bytes

# Offsets in struct tcp_info (Linux include/uapi/linux/tcp.h): bytes_received since 4.1, the other two since 4.19.
_RECEIVED, _SENT, _RETRANSMITTED, _LENGTH = 128, 200, 208, 216
_ESTABLISHED = 1

_DATA_SENT, _DATA_RECEIVED = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX of nvml.h, in KiB
_ALL_LINKS = 0xFFFFFFFF  # the scope that adds them up
_LINK_SENT, _LINK_RECEIVED = 202, 204  # NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES: NVLink 5, link by link
_MOST_LINKS = 18
_KIB = 1024

_WORD = 4  # port_xmit_data and port_rcv_data count words of four octets (InfiniBand's PortXmitData)
_STUCK = 0xFFFFFFFF  # where a counter of 32 bits stops


@dataclass(frozen=True)
class Bytes:
    """Payload bytes that left and reached a process; `grain` is the unit of the coarsest counter among them."""

    sent: int = 0
    received: int = 0
    grain: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.sent + other.sent, self.received + other.received, max(self.grain, other.grain))

    def __sub__(self, other: Bytes) -> Bytes:
        return Bytes(self.sent - other.sent, self.received - other.received, max(self.grain, other.grain))

    def too_few(self) -> bool:
        """Whether the counter's own unit is above 1 % of what it counted."""
        return self.sent < 100 * self.grain


def tcp_bytes(but_port: int | None = None) -> Bytes | None:
    """What all established TCP sockets of this process have carried; None where the kernel does not tell.

    Sockets with `but_port` at either end are left out: those of the rendezvous store.
    """
    total = Bytes()
    try:
        for own in _connections():
            with own:
                if but_port in (own.getsockname()[1], own.getpeername()[1]):
                    continue
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
            if len(info) < _LENGTH:
                return None  # an old kernel
            sent, again, received = (struct.unpack_from("=Q", info, at)[0] for at in (_SENT, _RETRANSMITTED, _RECEIVED))
            total = Bytes(total.sent + sent - again, total.received + received)
    except OSError:
        return None
    return total


def hang_up(port: int) -> None:
    """Ends every connection of this process to a port, so that whoever waits for an answer there waits no longer."""
    with suppress(OSError):
        for own in _connections():
            with own:
                if own.getpeername()[1] == port:
                    own.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[socket.socket]:
    """A copy of every established TCP socket of this process, for the caller to close."""
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - read before and after each row
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            copy = os.dup(number)
        except OSError:  # closed meanwhile
            continue
        own = socket.socket(fileno=copy)
        try:
            inet = own.family in (socket.AF_INET, socket.AF_INET6) and own.type == socket.SOCK_STREAM
            wanted = inet and own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
            if wanted:
                own.getpeername()  # gone meanwhile?
        except OSError:
            wanted = False
        if wanted:
            yield own
        else:
            own.close()


class Counters:
    """Counts what one rank has sent and received so far; `ways` names what is counted, nothing where it is unknown."""

    def __init__(
        self, gpu: Gpus | None, index: int, hosts: list[str], rank: int, env: Mapping[str, str], but_port: int
    ) -> None:
        """`hosts`: that of every rank. Sockets with `but_port` at either end are left out."""
        self._gpu, self._index, self._but_port = gpu, index, but_port
        self._on_host = hosts.count(hosts[rank])
        self.ways = ["sockets"] if gpu is None else self._ways(gpu, hosts, env)

    def _ways(self, gpu: Gpus, hosts: list[str], env: Mapping[str, str]) -> list[str]:
        by_network = env.get("NCCL_P2P_DISABLE", "0") == "1" and env.get("NCCL_SHM_DISABLE", "0") == "1"
        inside = self._on_host > 1 and not by_network
        across = len(set(hosts)) > 1 or (self._on_host > 1 and by_network)
        ways = []
        if inside:
            if nvlink_bytes(gpu, self._index) is None:
                return []
            ways.append("nvlink")
        if across:
            sockets = env.get("NCCL_NET", "") == "Socket" or env.get("NCCL_IB_DISABLE", "0") == "1"
            if not sockets and any((gpu.sysfs / "class/infiniband").glob("*")):
                if adapter_bytes(gpu.sysfs) is None:
                    return []
                ways.append("adapters")
            ways.append("sockets")
        return ways

    def __call__(self) -> Bytes | None:
        """All bytes so far; of the adapters of a host, each of its ranks is taken to have used an equal share."""
        counts = [self._of(way) for way in self.ways]
        known = [count for count in counts if count is not None]
        return sum(known, Bytes()) if counts and len(known) == len(counts) else None

    def _of(self, way: str) -> Bytes | None:
        if way == "sockets" or self._gpu is None:
            return tcp_bytes(but_port=self._but_port)
        if way == "nvlink":
            return nvlink_bytes(self._gpu, self._index)
        host = adapter_bytes(self._gpu.sysfs)
        return None if host is None else Bytes(host.sent // self._on_host, host.received // self._on_host)


def nvlink_bytes(gpu: Gpus, index: int) -> Bytes | None:
    """Data bytes of all NVLinks of a GPU, without headers; None without NVML, without NVLink, or if it does not count.

    The GPU is one of this process, whatever CUDA_VISIBLE_DEVICES leaves out. Counted in KiB until NVLink 5.
    """
    nvml, handle = gpu.nvml(), gpu.nvml_handle(index)
    if nvml is None or handle is None:
        return None
    both = _field_values(nvml, handle, [(_DATA_SENT, _ALL_LINKS), (_DATA_RECEIVED, _ALL_LINKS)])
    if None not in both:
        sent, received = (int(value) * _KIB for value in both)  # type: ignore[arg-type]
        return Bytes(sent, received, grain=_KIB)
    totals = []
    for field in (_LINK_SENT, _LINK_RECEIVED):
        known = [v for v in _field_values(nvml, handle, [(field, n) for n in range(_MOST_LINKS)]) if v is not None]
        totals += [sum(known)] * bool(known)
    return Bytes(*totals) if len(totals) == 2 else None


def _field_values(nvml: Any, handle: Any, fields: list[tuple[int, int]]) -> list[int | None]:
    """The values of NVML fields, each (id, scope); None for one that this GPU does not have."""
    try:
        answers = nvml.nvmlDeviceGetFieldValues(handle, fields)
    except nvml.NVMLError:
        return [None] * len(fields)
    return [int(answer.value.ullVal) if answer.nvmlReturn == 0 else None for answer in answers]


@lru_cache(maxsize=8)
def _ports(sysfs: Path) -> list[tuple[str, str, str]]:
    """The files of state, words sent and words received of the adapters' ports; a driver makes them at the start.

    As text and looked for once: they are read before and after every row.
    """
    ports = map(str, sorted((sysfs / "class/infiniband").glob("*/ports/*")))
    return [(f"{p}/state", f"{p}/counters/port_xmit_data", f"{p}/counters/port_rcv_data") for p in ports]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:  # noqa: PTH123
        return stream.read()


def adapter_bytes(sysfs: Path) -> Bytes | None:
    """Bytes of all active ports of the host's adapters, headers among them; None if a port does not count."""
    sent = received = 0
    counted = False
    try:
        for state, *counters in _ports(sysfs):
            if "ACTIVE" not in _read(state):
                continue
            words = [int(_read(name)) for name in counters]
            if _STUCK in words:
                return None
            sent, received, counted = sent + words[0] * _WORD, received + words[1] * _WORD, True
    except (OSError, ValueError):
        return None
    return Bytes(sent, received) if counted else None


def expected_sent(collective: str, size: int, rank: int, n: int, root: int = 0) -> float | None:
    """Bytes that a rank sends in one call by the least that any algorithm without switches that add sends.

    The ring's, for what has a ring; None where it depends on the rank's place in the ring, which only NCCL knows
    (broadcast, reduce). `size` is that of nccl-tests.
    """
    if n > 1 and collective in CHAINED:
        return None
    if collective == "gather":
        return 0.0 if rank == root else size / n
    if collective == "scatter" and rank != root:
        return 0.0
    return bandwidth_bytes(collective, n, size)


class SentShares:
    """What the ranks sent of what they should have sent, of the largest row of each collective or algorithm."""

    def __init__(self) -> None:
        self._largest: dict[str, tuple[int, float]] = {}

    def add(self, name: str, size: int, row: dict[str, Any]) -> None:
        """Takes up a row, which may say nothing of its traffic."""
        if "sent_bytes" not in row or "expected_sent_bytes" not in row:
            return
        sent, expected = (sum(map(float, row[column].split())) for column in ("sent_bytes", "expected_sent_bytes"))
        if expected and size >= self._largest.get(name, (0, 0.0))[0]:
            self._largest[name] = size, sent / expected

    def shares(self) -> dict[str, float]:
        """The share of each name, 1 where the ranks sent what they should."""
        return {name: round(share, 5) for name, (_, share) in self._largest.items()}

    def lines(self, ways: Sequence[str]) -> list[str]:
        """The shares in words, with how they were counted."""
        return [
            f"# {name} of {format_bytes(size)}: sent {share:.4f} of what the ring sends ({' and '.join(ways)})"
            for name, (size, share) in self._largest.items()
        ]
