"""NCCL's three wire protocols, and the chunks that algorithms cut a call into.

A connection holds ``STEPS`` slots. LL sends 4 bytes of flag with every 4 bytes of data, LL128 8 bytes of flag in every
128-byte line, Simple none; Simple pays with a memory fence and a counter update per slice (NCCL 2.30.7 src/init.cc,
src/include/device.h). A chunk is what one step of an algorithm moves (src/enqueue.cc, calcCollChunking, 2.22 and
later); algorithms without neighbours of equal weight shrink it for small parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

from commsim.collectives.semantics import CHAINED
from commsim.nccl.system import System
from commsim.nccl.version import NEWEST, Version

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

KIB = 1024

_WHOLE_TREE_CHUNKS_SINCE: Version = (2, 20, 0)
"""Before, a tree's chunks of Simple were cut until enough of them filled the way up (src/enqueue.cc)."""


@dataclass(frozen=True)
class Part:
    """The part of a call that a chunk is chosen for: its bytes and the channels that they are meant for."""

    nbytes: int
    channels: int = 1


def step_bytes(protocol: Protocol, buffer_bytes: int) -> int:
    """Payload of one slot: of the stated buffer for Simple, of the protocol's own for LL and LL128."""
    return buffer_bytes // STEPS if protocol.is_simple else protocol.step_bytes


def chunk_bytes(
    system: System,
    collective: str,
    algorithm: str,
    protocol: Protocol,
    part: Part,
    buffer_bytes: int,
    version: Version = NEWEST,
) -> int:
    """Bytes of a chunk; a multiple of the protocol's grain, at least one grain."""
    step = step_bytes(protocol, buffer_bytes)
    chunk = step
    if algorithm == "ring" and protocol.is_simple and collective not in CHAINED:
        chunk = step * RING_CHUNK_STEPS
    elif algorithm == "tree" and protocol.name == "LL128":
        chunk = _tree_ll128(system, part.nbytes, step)
    elif algorithm == "tree" and protocol.is_simple and version < _WHOLE_TREE_CHUNKS_SINCE:
        depth = system.ranks_per_node - 1 + floor(log2(system.nodes))  # src/graph/connect.cc
        chunk = _cut_by_depth(part.nbytes / part.channels, step, depth, ((8, 128), (4, 64), (1, 32)))
    elif algorithm == "nvls":
        chunk = _nvls(system, part, step)
    elif algorithm == "nvls_tree":
        chunk = _nvls_tree(system, part)
    elif algorithm == "pat":
        rounds = 32 if collective == "all_gather" else 16
        while chunk * part.channels * rounds > part.nbytes and chunk > 64 * KIB:
            chunk //= 2
    elif algorithm == "collnet_direct":
        share = part.nbytes / max(1, part.channels * heads(system))
        chunk = _cut_by_depth(share, step, 2, ((64, 128), (8, 64), (8, 32)))
    elif algorithm == "collnet_chain":
        depth = system.ranks_per_node
        rules = ((64, 128), (8, 64), (1, 32))
        chunk = _cut_by_depth(part.nbytes / max(1, part.channels), min(256 * KIB, step), depth, rules)
    return max(protocol.grain_bytes, chunk // protocol.grain_bytes * protocol.grain_bytes)


def loops(system: System, algorithm: str, nbytes: int, chunk: int) -> int:
    """How often a channel of `nbytes` goes through the steps of an algorithm: rings move a chunk per rank each time."""
    each = {"ring": system.ranks, "nvls": heads(system), "nvls_tree": heads(system), "collnet_direct": heads(system)}
    return max(1, -(-nbytes // (each.get(algorithm, 1) * chunk)))


def heads(system: System) -> int:
    """GPUs of a node that each reduce and spread a part of NVLS: as many as NVLS has channels in the search."""
    return system.nvls.channels if system.nvls is not None else max(1, system.ranks_per_node)


def _tree_ll128(system: System, nbytes: int, chunk: int) -> int:
    ppn = system.ranks_per_node
    hops = 1 + floor(log2(system.nodes)) + 0.1 * ppn
    while nbytes / chunk < hops * 64 / ppn and chunk > 128 * KIB:
        chunk //= 2
    while nbytes / chunk < hops * 16 / ppn and chunk > 32 * KIB:
        chunk //= 2
    return chunk


def _nvls(system: System, part: Part, step: int) -> int:
    return _cut(system, part, min(step, system.nvls_chunk), ((64, 64), (8, 32), (2, 16)))


def _nvls_tree(system: System, part: Part) -> int:
    most = system.nvls_tree_chunk
    if most is None:
        most = 64 * KIB if system.nodes >= 4 else system.nvls_chunk
    return _cut(system, part, min(system.nvls_chunk, most), ((32, 256), (16, 128), (4, 64), (1, 32)))


def _cut(system: System, part: Part, chunk: int, rules: tuple[tuple[int, int], ...]) -> int:
    """A chunk of NVLS, of at most so many KiB where a part holds fewer than so many of them for each head."""
    for factor, most in rules:
        if part.nbytes < factor * part.channels * heads(system) * chunk:
            chunk = min(chunk, most * KIB)
    return chunk


def _cut_by_depth(share: float, chunk: int, depth: int, rules: tuple[tuple[int, int], ...]) -> int:
    """A chunk halved while a share holds fewer than so many times the depth of them, down to so many KiB."""
    for factor, least in rules:
        while share / chunk < depth * factor and chunk > least * KIB:
            chunk //= 2
    return chunk
