"""Bytes that a rehearsed GPU and its NIC have carried, where a real machine shows them: NVML and sysfs."""

from __future__ import annotations

import struct
from pathlib import Path

from rehearsal.settings import Settings

WORD = 4
"""port_xmit_data counts octets divided by 4 (Linux, Documentation/ABI/stable/sysfs-class-infiniband)."""


class Counters:
    """The counters of one GPU of a node and of the NIC beside it; the rank on that GPU alone advances them."""

    def __init__(self, s: Settings, gpu: int) -> None:
        self._settings, self._gpu = s, gpu
        self._nvlink = s.node_folder / f"nvlink{gpu}"
        self._nvlink.parent.mkdir(parents=True, exist_ok=True)
        self._port = s.node_folder / "sys" / "class" / "infiniband" / f"mlx5_{gpu}" / "ports" / "1"
        self._carried = {"nvlink": [0.0, 0.0], "net": list(self._network())}
        if self._nvlink.exists():
            self._carried["nvlink"] = list(self.nvlink())

    def nvlink(self) -> tuple[float, float]:
        """Bytes sent and received over NVLink."""
        data = self._nvlink.read_bytes() if self._nvlink.exists() else b""
        sent, received = struct.unpack("<dd", data or bytes(16))
        return sent, received

    def add(self, wire: str, sent: float, received: float) -> None:
        """Counts bytes on ``nvlink`` or ``net``."""
        carried = self._carried[wire]
        carried[0] += sent
        carried[1] += received
        if wire == "nvlink":
            _write(self._nvlink, struct.pack("<dd", *carried))
        elif self._gpu < self._settings.nics:
            for name, value in zip(("port_xmit_data", "port_rcv_data"), carried, strict=True):
                _write(self._port / "counters" / name, f"{int(value) // WORD}\n".encode())

    def _network(self) -> tuple[float, float]:
        values = []
        for name in ("port_xmit_data", "port_rcv_data"):
            path = self._port / "counters" / name
            values.append(float(path.read_text()) * WORD if path.exists() else 0.0)
        return values[0], values[1]


def lay_out(s: Settings) -> None:
    """The sysfs of this node: one InfiniBand port per NIC."""
    for nic in range(s.nics):
        port = s.node_folder / "sys" / "class" / "infiniband" / f"mlx5_{nic}" / "ports" / "1"
        (port / "counters").mkdir(parents=True, exist_ok=True)
        for name, text in (("state", "4: ACTIVE"), ("link_layer", "InfiniBand"), ("rate", "400 Gb/sec (4X NDR)")):
            if not (port / name).exists():
                _write(port / name, f"{text}\n".encode())
        for name in ("port_xmit_data", "port_rcv_data"):
            if not (port / "counters" / name).exists():
                _write(port / "counters" / name, b"0\n")


def _write(path: Path, data: bytes) -> None:
    import os

    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_bytes(data)
    unfinished.rename(path)
