"""NCCL's three wire protocols and its transfer granularities (NCCL 2.30.7 src/init.cc, src/include/device.h).

A connection holds ``STEPS`` slots. LL sends 4 bytes of flag with every 4 bytes of data, LL128 8 bytes of flag in every
128-byte line, Simple none; Simple pays with a memory fence and a counter update per slice instead.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    unit_bytes: int  # payload of one hand-over: LL and LL128 one pass of a warp, Simple one pass of the block

    @property
    def is_simple(self) -> bool:
        """Whether data is handed over by slices with a fence rather than by flags inside the data."""
        return self.name == "Simple"


# unit_bytes: flags lie inside the data, so LL and LL128 hand over warp by warp: 32 lanes x 8 B (prims_ll.h), 1,920 B
# (prims_ll128.h: 32 lanes x 8 words x 8 B x 15/16 data). Simple fences the block as a whole: 512 threads x 16 B.
LL = Protocol("LL", 2.0, 32_768, 16, 512, 8, 32 * 8)
LL128 = Protocol("LL128", 128 / 120, 576_000, 1_920, 640, 8, 1_920)
SIMPLE = Protocol("Simple", 1.0, DEFAULT_BUFFER_BYTES // STEPS, 512, 512, 64, 512 * 16)

PROTOCOLS = {p.name: p for p in (LL, LL128, SIMPLE)}

RING_CHUNK_STEPS = 4
RING_SLICE_STEPS = 2
"""Ring Simple moves chunks of 4 steps in slices of 2 (src/include/collectives.h)."""

MIN_SLICE_BYTES = SIMPLE.step_bytes // 32
"""Simple slices are not cut below this (prims_simple.h, genericOp)."""
