"""Bytes that the kernel counted on the connections of this process."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from commsim.measure.traffic import tcp_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")


def test_payload_is_counted_once_at_either_end() -> None:
    before = tcp_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            near.sendall(b"x" * 100_000)
            got = 0
            while got < 100_000:
                got += len(far.recv(65536))
            after, without = tcp_bytes(), tcp_bytes(but_port=server.getsockname()[1])
    assert before is not None
    assert after is not None
    assert (after - before).sent == 100_000  # both ends are of this process
    assert (after - before).received == 100_000
    assert without == before


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the number matters, not the paths
    tcp_bytes()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
