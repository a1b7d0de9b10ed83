"""Memory that one rank of a communicator takes: buffers of its connections, pools, and NCCL's own structures.

Every term is what NCCL's source allocates (files of 2.26.2 unless a term says another release). What the driver adds
(a context, the code of kernels) is of the process, not of a communicator: `kernel_bytes`.

Up to 2.21 a communicator connects its rings, trees and NVLS when it begins, later ones where the driver maps memory
(cuMem) when a call first takes that algorithm (src/init.cc, ``runtimeConn``). Sends connect at the first one to a peer
(src/enqueue.cc, p2pTaskAppend).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from commsim.nccl.connections import Connections, RankConnections
from commsim.nccl.environment import POINT_TO_POINT, whole
from commsim.nccl.graph import max_channels
from commsim.nccl.protocols import STEPS, heads
from commsim.nccl.version import Version, newest

if TYPE_CHECKING:
    from commsim.nccl.predict import Predictor

INIT, SENDS, WINDOW = "init", "send_recv", "window"
"""When memory is taken: as the communicator begins, at its first sends, as it first registers a window; or at the first
call by an algorithm, by that algorithm's name."""

KERNEL_BYTES: tuple[tuple[Version, dict[int, int]], ...] = (
    ((2, 18, 1), {60: 48_687_620, 70: 58_140_000, 80: 58_355_296, 90: 70_388_496}),
    ((2, 21, 5), {60: 34_975_338, 70: 47_877_154, 80: 47_468_322, 90: 87_282_282}),
    ((2, 26, 2), {60: 34_494_618, 70: 45_626_706, 80: 44_863_186, 90: 101_906_652}),
    (
        (2, 28, 9),
        {60: 35_125_098, 70: 46_395_866, 80: 45_587_162, 90: 102_283_108, 100: 98_964_492, 120: 88_238_220},
    ),
)
"""Bytes of the linked kernels, all of which one GPU loads, by release and compute capability: sections with memory of
the device images in libnccl.so.2 of PyPI's nvidia-nccl-cu12 (2.28.9: of all twelve to sixteen images)."""

_SHARED_STEPS = 16
"""Chunks that a channel has in the pool of sends to other nodes (src/transport/net.cc, NCCL_SHARED_STEPS)."""

_OLD_WORKS = 8
"""Sends or receives of a channel that had buffers of their own up to 2.11 (NCCL_MAX_WORK_ELEMENTS)."""

_DIRECT_RANKS = 8
"""Ranks of a node up to which CollNetDirect is connected (NCCL_MAX_DIRECT_ARITY + 1)."""

_NVLS_SYNC = 2 << 20
"""Beside each buffer of NVLS, of its head and tail, up to 2.21 (src/transport/nvls.cc, NVLS_MEM_ALIGN_SIZE)."""

_NVLS_OF_ALL: tuple[Version, Version] = ((2, 20, 0), (2, 28, 0))
"""From the first to below the second NVLS has peers and credits (up to 2.21 buffers too) for every channel of
collectives, else for its own (src/transport/nvls.cc, ncclNvlsSetup of 2.18.3, 2.19.3, 2.20.3 to 2.27.7 and 2.28.3)."""

_PEER = (((2, 19, 0), 608),)
"""Bytes of a peer's four ncclConnInfo on the device: 384 of 2.18.3, 608 of 2.26.2 (src/include/device.h)."""

_DEVICE_CHANNEL = 400
"""Bytes of a ncclDevChannel of 2.26.2, about; one array of them for a communicator."""

_RANK_MAP_SINCE: Version = (2, 23, 0)
"""From here on the device has the local rank of every rank (src/init.cc, devCommSetup)."""

_SYMMETRIC_BLOCKS, _SYMMETRIC_THREADS = 64, 512
"""Of the kernels on windows (2.28.9 src/include/sym_kernels.h, ncclSymkMaxBlocks and ncclSymkMaxThreads)."""


def kernel_bytes(sm: int, version: Version) -> int:
    """What NCCL's kernels take of a GPU, once for a process: of the last release read, for the nearest older chip."""
    images = newest(version, KERNEL_BYTES[1:], KERNEL_BYTES[0][1])
    return images[max((of for of in images if of <= sm), default=min(images))]


class Held(NamedTuple):
    """What a rank takes of one kind: bytes of its GPU and of its host, and from when on (`INIT` and the like)."""

    kind: str
    when: str
    gpu: int
    host: int


@dataclass(frozen=True)
class CommunicatorMemory:
    """The memory of one rank of a communicator, in the order in which it is taken."""

    rank: int
    ranks: int
    nodes: int
    calls: tuple[tuple[str, str], ...]  # (collective, algorithm), the first of each
    held: tuple[Held, ...]

    @property
    def gpu(self) -> int:
        """Bytes of the GPU in the end."""
        return sum(each.gpu for each in self.held)

    @property
    def host(self) -> int:
        """Bytes of the host in the end."""
        return sum(each.host for each in self.held)

    def gpu_at(self, when: str) -> int:
        """Bytes of the GPU that come then."""
        return sum(each.gpu for each in self.held if each.when == when)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "rank": self.rank,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "calls": [{"collective": collective, "algorithm": algorithm} for collective, algorithm in self.calls],
            "gpu_bytes": self.gpu,
            "host_bytes": self.host,
            "held": [{"kind": h.kind, "when": h.when, "gpu_bytes": h.gpu, "host_bytes": h.host} for h in self.held],
        }


def communicator_memory(
    model: Predictor, calls: Sequence[tuple[str, str]] = (), rank: int | None = None
) -> CommunicatorMemory:
    """The memory of a rank of a model's communicator after calls of (collective, algorithm), in this order.

    Without a rank, of the one whose GPU has most. Of a communicator of many nodes a smaller one stands for it; nodes of
    several kinds are each taken as if all were.
    """
    most: CommunicatorMemory | None = None
    windows = model.options.registered == "window"
    calls = tuple(dict.fromkeys(calls))
    for kind in range(len(model.nodes.kinds)):
        of = Connections(model, kind)
        for number in of.telling if rank is None else (rank,):
            held = tuple(each for each in _held(of, number, calls, windows) if each.gpu or each.host)
            got = CommunicatorMemory(number, of.system.ranks, of.system.nodes, calls, held)
            if most is None or got.gpu > most.gpu:
                most = got
    assert most is not None
    return most


def _held(of: Connections, rank: int, calls: Sequence[tuple[str, str]], windows: bool) -> Iterator[Held]:
    own = RankConnections(rank, of)
    yield Held("structures", INIT, _structures(of), _fifo(of))
    if of.nvls and of.version >= (2, 22, 0):
        yield Held("NVLS credits", INIT, of.size.big(_set_up(of) * 2 * 64 * heads(of.system)), 0)
    eager = [] if of.size.at_use else _at_init(of)
    for algorithm in eager:
        yield from _algorithm(own, algorithm, INIT)
    if not of.size.at_use and of.version >= (2, 12, 0):
        yield Held("pool of sends", INIT, of.pools * _pool(of), 0)
    if windows and of.version >= (2, 27, 0) and of.size.mapped:
        yield Held("symmetric memory", WINDOW, _symmetric(of), 0)
    begun, peers = set(eager), tuple[set[int], set[int]]((set(), set()))
    for collective, algorithm in calls:
        if collective in POINT_TO_POINT:
            yield from _sends(of, rank, collective, peers)
        elif algorithm not in begun:
            begun.add(algorithm)
            yield from _algorithm(own, algorithm, algorithm)


def _at_init(of: Connections) -> list[str]:
    """The algorithms that a communicator connects as it begins (src/init.cc, initTransportsRank)."""
    if of.system.ranks == 1:
        return []
    names = ["ring", "tree"]
    names += ["pat"] if of.version >= (2, 23, 0) and of.local == 1 else []
    names += ["nvls"] if of.nvls else []
    names += ["nvls_tree"] if of.nvls and of.system.nodes > 1 else []
    if of.system.collnet:
        names += ["collnet_chain", *(["collnet_direct"] if of.local <= _DIRECT_RANKS else [])]
    return names


def _algorithm(own: RankConnections, algorithm: str, when: str) -> Iterator[Held]:
    """What the first call by an algorithm connects."""
    of, rank = own.of, own.number
    if algorithm.startswith("nvls") and of.nvls:
        if "nvls" not in own.begun:
            own.begun.add("nvls")
            yield Held("NVLS buffers", when, _nvls(of), 0)
        if algorithm == "nvls_tree" or (of.version < (2, 22, 0) and of.system.nodes > 1):
            yield Held("NVLSTree connections", when, *own.connect(of.nvls_tree(rank)))
    elif algorithm == "ring":
        yield Held("ring connections", when, *own.connect(of.ring(rank)))
    elif algorithm == "tree":
        yield Held("tree connections", when, *own.connect(of.tree(rank)))
    elif algorithm == "pat":
        yield Held("PAT connections", when, *own.connect(of.pat(rank)))
    elif algorithm.startswith("collnet") and of.system.collnet:
        direct = algorithm == "collnet_direct"
        gpu, host = own.connect(of.collnet(rank, direct=direct))
        yield Held("CollNet connections", when, gpu, host)
        if "collnet" not in own.begun and rank % of.local < of.system.collnet_heads:
            own.begun.add("collnet")
            pool = 2 * of.channels * of.size.simple  # src/transport/coll_net.cc, sharedBuffersInit
            yield Held("CollNet pool", when, *((pool, 0) if of.direct else (0, pool)))


def _sends(of: Connections, rank: int, collective: str, known: tuple[set[int], set[int]]) -> Iterator[Held]:
    """What the first sends to, and receives from, ranks that had none yet connect."""
    wanted = _peers(collective, rank, of.system.ranks)
    first_remote = not any(_remote(of, rank, other) for side in known for other in side)
    gpu = host = 0
    remote = 0
    for have, others, sends in zip(known, wanted, (True, False), strict=True):
        fresh = others - have
        have.update(fresh)
        for other in fresh:
            if _remote(of, rank, other):
                remote += 1
                continue
            each = of.buffers(rank, other, sends)
            gpu, host = gpu + of.per_peer * each[0], host + of.per_peer * each[1]
    yield Held("connections of sends", SENDS, gpu, host)
    if not remote:
        return
    yield Held("connections of sends to other nodes", SENDS, 0, remote * of.per_peer * of.no_buffers)
    if first_remote:
        pool, early = _pool(of), of.version >= (2, 12, 0) and not of.size.at_use
        if of.version < (2, 12, 0):
            both = 2 * of.p2p * _OLD_WORKS * of.size.simple // 4
            yield Held("pool of sends", SENDS, *((both, 0) if of.direct else (0, both)))
        elif of.direct:
            yield Held("pool of sends", SENDS, pool * ((0 if early else of.pools) + 1), 0)
        else:
            yield Held("pool of sends", SENDS, 0, 2 * pool)


def _remote(of: Connections, rank: int, other: int) -> bool:
    return rank // of.local != other // of.local


def _peers(collective: str, rank: int, ranks: int) -> tuple[set[int], set[int]]:
    """Ranks that one sends to and receives from; rank 0 is the root."""
    others = set(range(ranks)) - {rank}
    root, first = (others, set[int]()), {0} - {rank}
    if collective == "send_recv":
        return {(rank + 1) % ranks} - {rank}, {(rank - 1) % ranks} - {rank}
    if collective == "scatter":
        return root if rank == 0 else (set(), first)
    if collective == "gather":
        return (set(), others) if rank == 0 else (first, set())
    if collective == "hypercube":
        near = {rank ^ (1 << k) for k in range((ranks - 1).bit_length())} & others
        return near, near
    return others, others


# -- sizes of what is not a connection ---------------------------------


def _pool(of: Connections) -> int:
    """Bytes of the pool of sends (or receives) to other nodes (src/transport/net.cc; 2.12.12: a slice each)."""
    if of.version < (2, 14, 0):
        return of.size.big(of.p2p * (_SHARED_STEPS // STEPS) * of.size.simple // 4)
    return of.size.big(of.p2p * _SHARED_STEPS * of.size.p2p_chunk)


def _set_up(of: Connections) -> int:
    """Channels that have what NVLS sets up."""
    return of.channels if _NVLS_OF_ALL[0] <= of.version < _NVLS_OF_ALL[1] else of.nvls


def _nvls(of: Connections) -> int:
    """Bytes of the buffers of NVLS: two of each channel and head (src/transport/nvls.cc, ncclNvlsBufferSetup)."""
    blocks = (_set_up(of) if of.version < (2, 22, 0) else of.nvls) * 2 * heads(of.system)
    if of.version < (2, 21, 0):
        return of.size.big(blocks * (of.size.simple + _NVLS_SYNC))
    chunk = STEPS * of.system.nvls_chunk
    return of.size.big(blocks * (chunk + (_NVLS_SYNC if of.version < (2, 22, 0) else 0)))


def _symmetric(of: Connections) -> int:
    """Bytes of the buffers that kernels on windows have for LL (2.27.3 src/include/symmetric.h, ncclSymDevBase::size;
    2.28.9 src/sym_kernels.cc, ncclSymkInitOnce)."""
    ranks, blocks = of.local, _SYMMETRIC_BLOCKS
    if of.version < (2, 28, 0):
        epoch = 2 * max(_SYMMETRIC_THREADS * ranks * 8, _SYMMETRIC_THREADS * 64)
        return of.size.big(blocks * (2 * epoch + 4 * ranks))
    return of.size.big(blocks * (1 + 2 * ranks * _SYMMETRIC_THREADS) * 16)


def _structures(of: Connections) -> int:
    """Bytes of a communicator's arrays on its GPU (src/channel.cc, src/init.cc, devCommSetup)."""
    ranks, every = of.system.ranks, max(of.channels, of.p2p)
    peer = newest(of.version, _PEER, 384)
    arrays = [(every, ranks * peer), (every, 4 * ranks), (1, _DEVICE_CHANNEL * max_channels(of.version))]
    if of.version >= (2, 18, 0):  # pointers to what communicators may share
        arrays.append((every, 8 * (ranks + 1 + of.local)))
    if of.version >= _RANK_MAP_SINCE:
        arrays.append((1, 4 * ranks))
    if of.nvls:
        arrays.append((_set_up(of), of.local * peer))
    if of.system.collnet:
        arrays.append((of.channels, peer))
    return of.size.arrays(arrays)


def _fifo(of: Connections) -> int:
    """Bytes of the queue of work in the memory of the host (src/init.cc; up to 2.13 src/channel.cc)."""
    if of.version >= (2, 22, 0):
        return whole(of.env, "NCCL_WORK_FIFO_BYTES") or 1 << 20
    if of.version >= (2, 14, 0):
        return 512 * (whole(of.env, "NCCL_WORK_FIFO_DEPTH") or 64 << 10)
    return 512 * 2048 * max(of.channels, of.p2p)
