"""Bytes that this process has really sent and received, counted by the kernel below the library.

TCP: every socket of the process is asked for its TCP_INFO, which counts payload: what the library wrote, its own
message headers among it, but no TCP, IP or Ethernet headers and no retransmission. Both gloo and NCCL's socket
transport keep their connections in the process that owns the rank, so no other counter is needed and no root.
NVLink: the data counters of the device through NVML, where there is one.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

# Offsets in struct tcp_info (Linux include/uapi/linux/tcp.h): bytes_received since 4.1, the other two since 4.19.
_RECEIVED, _SENT, _RETRANSMITTED, _LENGTH = 128, 200, 208, 216
_ESTABLISHED = 1


@dataclass(frozen=True)
class Bytes:
    """Payload bytes that left and reached a process."""

    sent: int = 0
    received: int = 0

    def __sub__(self, other: Bytes) -> Bytes:
        return Bytes(self.sent - other.sent, self.received - other.received)


def tcp_bytes(but_port: int | None = None) -> Bytes | None:
    """What all established TCP sockets of this process have carried; None where the kernel does not tell.

    Sockets with `but_port` at either end are left out: those of the rendezvous store.
    """
    total = Bytes()
    try:
        names = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:
        return None
    for descriptor in names:
        found = _socket_bytes(descriptor, but_port)
        if found is None:
            return None
        total = Bytes(total.sent + found.sent, total.received + found.received)
    return total


def _socket_bytes(descriptor: int, but_port: int | None) -> Bytes | None:
    """What one descriptor has carried: nothing if it is no TCP connection, None if the kernel is too old."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return Bytes()
        copy = os.dup(descriptor)
    except OSError:  # closed meanwhile
        return Bytes()
    try:
        own = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return Bytes()
    try:
        with own:
            if own.family not in (socket.AF_INET, socket.AF_INET6) or own.type != socket.SOCK_STREAM:
                return Bytes()
            info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
            if info[0] != _ESTABLISHED:
                return Bytes()
            if but_port in (own.getsockname()[1], own.getpeername()[1]):
                return Bytes()
    except OSError:
        return Bytes()
    if len(info) < _LENGTH:
        return None
    sent, again = (struct.unpack_from("=Q", info, at)[0] for at in (_SENT, _RETRANSMITTED))
    return Bytes(sent - again, struct.unpack_from("=Q", info, _RECEIVED)[0])


def nvlink_bytes(device: int) -> Bytes | None:
    """Data bytes of all NVLinks of a GPU; None without NVML, without NVLink, or where it does not count.

    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX (nvml.h: 138, 139) in KiB, scope: all links (id 0xffffffff).
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        fields = pynvml.nvmlDeviceGetFieldValues(handle, [(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)])
    except pynvml.NVMLError:
        return None
    if any(field.nvmlReturn != 0 for field in fields):
        return None
    sent, received = (int(field.value.ullVal) * 1024 for field in fields)
    return Bytes(sent, received)
