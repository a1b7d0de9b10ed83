"""NCCL's three wire protocols and its transfer granularities (NCCL 2.30.7 src/init.cc, src/include/device.h).

A connection holds ``STEPS`` slots. LL sends 4 bytes of flag with every 4 bytes of data, LL128 8 bytes of flag in every
128-byte line, Simple none; Simple pays with a memory fence and a counter update per slice instead.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
"""Threads that run together."""

STEPS = 8
"""Slots per connection and protocol (NCCL_STEPS)."""

DEFAULT_BUFFER_BYTES = 4 << 20
"""Simple's buffer per connection (NCCL_BUFFSIZE)."""


@dataclass(frozen=True)
class Protocol:
    """One protocol: what it adds on the wire and in which portions a thread block handles it."""

    name: str
    wire_factor: float  # bytes on the link per payload byte
    step_bytes: int  # payload of one slot
    grain_bytes: int  # chunks are multiples of this
    max_threads: int  # per thread block
    thread_threshold: int  # bytes per thread under which NCCL takes a channel away (Ring LL: times N)
    thread_bytes: int  # payload that one thread handles in a pass of its block

    @property
    def is_simple(self) -> bool:
        """Whether data is handed over by slices with a fence rather than by flags inside the data."""
        return self.name == "Simple"

    def pass_bytes(self, threads: int) -> int:
        """Payload that a block of so many threads handles in one pass."""
        return threads * self.thread_bytes


# thread_bytes: LL 8 B of data in a line of 16 (prims_ll.h), LL128 eight words of which 15 of 16 are data
# (prims_ll128.h), Simple one load of 16 B.
LL = Protocol("LL", 2.0, 32_768, 16, 512, 8, 8)
LL128 = Protocol("LL128", 128 / 120, 576_000, 1_920, 640, 8, 60)
SIMPLE = Protocol("Simple", 1.0, DEFAULT_BUFFER_BYTES // STEPS, 512, 512, 64, 16)

PROTOCOLS = {p.name: p for p in (LL, LL128, SIMPLE)}

RING_CHUNK_STEPS = 4
RING_SLICE_STEPS = 2
"""Ring Simple moves chunks of 4 steps in slices of 2 (src/include/collectives.h)."""

MIN_SLICE_BYTES = SIMPLE.step_bytes // 32
"""Simple slices are not cut below this (prims_simple.h, genericOp)."""
