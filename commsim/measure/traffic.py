"""Bytes that this process has really sent and received over TCP, counted by the kernel below the library.

TCP_INFO of every socket of the process counts payload: the library's message headers are in it, other headers and
retransmissions are not. gloo and NCCL's socket transport keep their connections in the process of the rank. Other ways
are in `link_counters`.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

# Offsets in struct tcp_info (Linux include/uapi/linux/tcp.h): bytes_received since 4.1, the other two since 4.19.
_RECEIVED, _SENT, _RETRANSMITTED, _LENGTH = 128, 200, 208, 216
_ESTABLISHED = 1


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
