"""The chunk that NCCL gives an algorithm for a part of a call (src/enqueue.cc, calcCollChunking, 2.22 and later).

A chunk is what one step of an algorithm moves; algorithms without neighbours of equal weight shrink it for small parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import TYPE_CHECKING

from commsim.collectives.semantics import CHAINED
from commsim.nccl.protocols import RING_CHUNK_STEPS, STEPS, Protocol

if TYPE_CHECKING:
    from commsim.nccl.system import System

KIB = 1024


@dataclass(frozen=True)
class Part:
    """The part of a call that a chunk is chosen for: its bytes and the channels that they are meant for."""

    nbytes: int
    channels: int = 1


def step_bytes(protocol: Protocol, buffer_bytes: int) -> int:
    """Payload of one slot: of the stated buffer for Simple, of the protocol's own for LL and LL128."""
    return buffer_bytes // STEPS if protocol.is_simple else protocol.step_bytes


def chunk_bytes(
    system: System, collective: str, algorithm: str, protocol: Protocol, part: Part, buffer_bytes: int
) -> int:
    """Bytes of a chunk; a multiple of the protocol's grain, at least one grain."""
    step = step_bytes(protocol, buffer_bytes)
    chunk = step
    if algorithm == "ring" and protocol.is_simple and collective not in CHAINED:
        chunk = step * RING_CHUNK_STEPS
    elif algorithm == "tree" and protocol.name == "LL128":
        chunk = _tree_ll128(system, part.nbytes, step)
    elif algorithm == "nvls":
        chunk = _nvls(system, part, step)
    elif algorithm == "nvls_tree":
        chunk = _nvls_tree(system, part)
    elif algorithm == "pat":
        rounds = 32 if collective == "all_gather" else 16
        while chunk * part.channels * rounds > part.nbytes and chunk > 64 * KIB:
            chunk //= 2
    elif algorithm == "collnet_direct":
        chunk = _collnet(part.nbytes / max(1, part.channels * heads(system)), step, 2, ((64, 128), (8, 64), (8, 32)))
    elif algorithm == "collnet_chain":
        depth = system.ranks_per_node
        rules = ((64, 128), (8, 64), (1, 32))
        chunk = _collnet(part.nbytes / max(1, part.channels), min(256 * KIB, step), depth, rules)
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
    chunk = min(step, system.nvls_chunk)
    width = part.channels * heads(system)
    for factor, least in ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)):
        if part.nbytes < factor * width * chunk:
            chunk = min(chunk, least)
    return chunk


def _nvls_tree(system: System, part: Part) -> int:
    most = system.nvls_tree_chunk
    if most is None:
        most = 64 * KIB if system.nodes >= 4 else system.nvls_chunk
    chunk = min(system.nvls_chunk, most)
    width = part.channels * heads(system)
    for factor, least in ((32, 256 * KIB), (16, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB)):
        if part.nbytes < factor * width * chunk:
            chunk = min(chunk, least)
    return chunk


def _collnet(share: float, chunk: int, depth: int, rules: tuple[tuple[int, int], ...]) -> int:
    for factor, least in rules:
        while share / chunk < depth * factor and chunk > least * KIB:
            chunk //= 2
    return chunk
