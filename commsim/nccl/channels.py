"""How many channels a call uses and how many bytes each carries (NCCL src/enqueue.cc; 2.21 to 2.30.7)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from commsim.collectives.semantics import RING_PASSES
from commsim.nccl.environment import whole
from commsim.nccl.protocols import LL, Protocol
from commsim.nccl.version import NEWEST, Version, newest

CONTINUOUS_SINCE: Version = (2, 22, 0)
"""From 2.22 channels are cut at byte cells and carry at least so much traffic each (`_LEAST_TRAFFIC`)."""

MOST_NVLS_HEADS = 32
"""NCCL_MAX_NVLS_ARITY of src/include/device.h (8 before 2.21, when no NVLink domain had more GPUs)."""

_LEAST_TRAFFIC = (((2, 23, 0), 16 << 10), ((2, 29, 0), 32 << 10))
"""Bytes of traffic under which no channel falls, by the version since when (MinTrafficPerChannel); first 512."""

_CELLS_SINCE: Version = (2, 23, 0)
"""From then on a channel's part is cut at that traffic, before at 16 bytes."""

_LL_COUNTS_SINCE: Version = (2, 26, 0)
"""From then on a byte of LL counts as four."""


@dataclass(frozen=True)
class Split:
    """A call spread over channels: `channels` in use, the fullest of which carries `channel_bytes`."""

    channels: int
    channel_bytes: int
    threads: int


def _round_up(value: float, grain: int) -> int:
    return ceil(value / grain) * grain


def shrink(
    channels: int, nbytes: int, algorithm: str, protocol: Protocol, ranks: int, max_threads: int | None = None
) -> tuple[int, int]:
    """Channels and threads per block after NCCL took some away from a small message (enqueue.cc, topoGetAlgoInfo).

    `max_threads` is what a block may have at most (`commsim.nccl.tuner.max_threads`). PAT and NVLS keep their channels.
    """
    if algorithm in ("pat", "nvls", "nvls_tree"):
        return channels, 640
    threads = protocol.max_threads if max_threads is None else max_threads
    threshold = protocol.thread_threshold * (ranks if algorithm == "ring" and protocol is LL else 1)
    if algorithm.startswith("collnet"):
        threshold = 512
    while nbytes < channels * threads * threshold and channels >= 2:
        channels -= 1
    while nbytes < channels * threads * threshold and threads % 128 == 0 and threads > 96:
        threads //= 2
    return channels, (640 if algorithm == "tree" else threads)


def split(
    channels: int,
    nbytes: int,
    algorithm: str,
    protocol: Protocol,
    ranks: int,
    version: Version,
    moved: tuple[int, int] | None = None,
    *,
    max_threads: int | None = None,
) -> Split:
    """How `nbytes` are spread over at most `channels` channels.

    `moved` is what `traffic` says of the call; None: 2 bytes per byte, of which a rank holds `nbytes`.
    """
    channels, threads = shrink(channels, nbytes, algorithm, protocol, ranks, max_threads)
    if nbytes == 0:
        return Split(1, 0, threads)
    if version < CONTINUOUS_SINCE:
        return Split(channels, ceil(nbytes / channels), threads)
    factor, held = moved or (2, nbytes)
    held = max(1, held)
    weight = factor * (4 if protocol is LL and version >= _LL_COUNTS_SINCE else 1)
    least = newest(version, _LEAST_TRAFFIC, 512)
    per_channel = max(least, _round_up(held * weight / channels, 16))
    cell = _round_up(least / weight, 16) if version >= _CELLS_SINCE else 16
    cells = ceil(held / cell)
    cells_per_channel = min(cells, ceil(per_channel / (cell * weight)))
    used = ceil(cells / cells_per_channel)
    return Split(used, min(nbytes, ceil(min(held, cells_per_channel * cell) * nbytes / held)), threads)


def traffic(collective: str, nbytes: int, ranks: int) -> tuple[int, int]:
    """(bytes moved per byte held, bytes that one rank holds) of a call of `nbytes` (enqueue.cc, scheduleCollTasks)."""
    if collective in RING_PASSES:
        return ranks, -(-nbytes // ranks)
    return (2 if collective == "all_reduce" else 1), nbytes


def nvls_channels(sm: int, nodes: int, version: Version, env: dict[str, str]) -> int:
    """Channels of NVLS and NVLSTree, which are counted apart and by CTAs only (src/transport/nvls.cc, ncclNvlsInit)."""
    channels = 16
    if sm >= 100 and version >= (2, 25, 0):
        channels = 24 if nodes == 1 and version >= (2, 27, 0) else 32
    most, least = whole(env, "NCCL_MAX_CTAS"), whole(env, "NCCL_MIN_CTAS")
    return max(least or 1, min(most or channels, channels))


_P2P_PER_BATCH = 8
"""Sends or receives that one batch of a channel holds (src/include/device.h, NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""


def p2p_channels(
    coll_channels: int, nodes: int, ranks: int, nvlinks: int, nics: int, nic_gbps: float, version: Version
) -> tuple[int, int]:
    """(channels of sends and receives, those of one peer): src/graph/paths.cc, ncclTopoComputeP2pChannels.

    `nvlinks` joins the two GPUs of a pair (0 over PCIe), `nics` are those nearest to one GPU, `nic_gbps` what one of
    them carries (GB/s). The peer with the fewest channels counts. Up to 2.28 a peer on another node has two channels,
    from 2.19 only one where all ranks together would need over four times as many as there are; from 2.29 on it has
    one per 14 GB/s.
    """
    total = _power_of_two(coll_channels)
    peer = 2 * nvlinks or 2
    if ranks == nodes:
        peer = total  # nobody inside the node to count
    if nodes > 1:
        if version >= (2, 29, 0):
            network = max(nics, ceil(int(nics * nic_gbps) / 14))
        else:
            network = max(nics, 1 if version >= (2, 19, 0) and 2 * ranks > 4 * total else 2)
        peer = min(peer, network)
    peer = _power_of_two(peer)
    if nodes > 1 and version >= (2, 29, 0):
        while peer > 1 and peer * ceil(ranks / _P2P_PER_BATCH) > total:
            peer //= 2
    return total, min(peer, total)


def p2p_start(per_peer: int, channels: int, ranks: int) -> int:
    """Channels with which a send starts: halved while all peers together would need more than there are."""
    while per_peer > 1 and per_peer * ranks > channels:
        per_peer //= 2
    return per_peer


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


@dataclass(frozen=True)
class Call:
    """One collective call after NCCL's choice."""

    collective: str
    nbytes: int
    algorithm: str
    protocol: Protocol
    split: Split
    buffer_bytes: int
    exact: bool = False  # `nbytes` are those of a real call, not what a benchmark rounds
    version: Version = NEWEST
    registered: bool = False  # NVLS works on the arrays of the call
