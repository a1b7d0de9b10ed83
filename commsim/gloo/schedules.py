"""What gloo sends, collective by collective, as torch's ProcessGroupGloo calls it.

Read in facebookincubator/gloo (gloo/allreduce.cc, reduce.cc, broadcast.cc, allgather.cc, alltoall.cc, gather.cc,
scatter.cc; allreduce.h: two segments of at most 1 MiB in flight) and pytorch/pytorch
(torch/csrc/distributed/c10d/ProcessGroupGloo.cpp: reduce_scatter is an all_reduce of a copy, of which every rank keeps
its block). Bytes counted on the loopback interface under torch 2.13 agree with these schedules, and showed what the
source that we read does not say: the all_reduce of that version stops after n - 1 blocks in both passes, while the
first pass of reduce still sends each rank's own block (all but its last two segments) once more. Times of two ranks on
a network of known rate showed that an exchange of large blocks between them takes as long as one block after the other.

There is one ring in each direction: all_reduce and reduce send to rank - 1, all_gather to rank + 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commsim.collectives import registry
from commsim.collectives.rows import assemble, blocks, only, rows
from commsim.collectives.schedule import Buffer, Op, Schedule, then
from commsim.collectives.semantics import REDUCING
from commsim.errors import ScheduleError

Int64 = npt.NDArray[np.int64]

MAX_SEGMENT_BYTES = 1 << 20
"""gloo/allreduce.h and reduce.h, kMaxSegmentSize."""

IN_FLIGHT = 2
"""A rank issues operation i of a ring when its operation i - 2 has been received and sent."""


def gloo_schedule(
    collective: str,
    world_size: int,
    nbytes: int,
    *,
    root: int = 0,
    itemsize: int = 4,
    calling: Int64 | None = None,
) -> Schedule:
    """The schedule that gloo runs for a collective of `nbytes` (the nccl-tests size).

    Of reduce_scatter it is the all_reduce that torch makes of it, and is called so. `calling`: the place of each rank
    in the order in which they come to an all_to_all, by default that of their numbers.

    >>> gloo_schedule("all_reduce", 4, 4096).sent_bytes()
    array([6144, 6144, 6144, 6144])
    """
    if collective == "reduce":
        return _reduce(world_size, nbytes, root, itemsize)
    if collective in REDUCING:
        return _all_reduce(world_size, nbytes, itemsize)
    if collective == "all_gather":
        return _all_gather(world_size, nbytes, itemsize)
    if collective == "broadcast":
        return _broadcast(world_size, nbytes, root, itemsize)
    if collective in ("all_to_all", "all_to_all_v"):
        direct = registry.build(collective, "direct", world_size, nbytes, itemsize=itemsize)
        return _exchange(direct, np.arange(world_size) if calling is None else calling)
    algorithm = {"gather": "flat", "scatter": "flat", "send_recv": "direct"}.get(collective)
    if algorithm is None:
        raise ScheduleError(f"gloo has no {collective}")
    return registry.build(collective, algorithm, world_size, nbytes, root, itemsize=itemsize)


def messages(collective: str, world_size: int, nbytes: int, itemsize: int = 4) -> tuple[int, int]:
    """How many rows `gloo_schedule` has at most, and the bytes of the largest; known without building it.

    >>> messages("all_reduce", 4, 2**40)
    (6291456, 1048576)
    """
    n, block = world_size, -(-nbytes // world_size)
    size, each = _segment(nbytes, n, itemsize)
    return {
        "all_reduce": (2 * (n - 1) * each * n, size),
        "reduce_scatter": (2 * (n - 1) * each * n, size),
        "reduce": ((n + 1) * each * n, max(size, 1)),
        "all_gather": (2 * (n - 1) * n, -(-block // 2) + itemsize),
        "broadcast": (n - 1, nbytes),
        "send_recv": (n, nbytes),
    }.get(collective, (n * n if "all_to_all" in collective else n, block + itemsize))


def segments(nbytes: int, world_size: int, itemsize: int) -> tuple[Int64, int]:
    """Bytes of each segment of the array, the last ones possibly empty, and segments per rank (2 or more)."""
    size, each = _segment(nbytes, world_size, itemsize)
    starts = np.arange(each * world_size, dtype=np.int64) * size
    return np.clip(nbytes - starts, 0, size), each


def _segment(nbytes: int, world_size: int, itemsize: int) -> tuple[int, int]:
    """Bytes of the largest segment, and segments per rank."""
    limit = MAX_SEGMENT_BYTES // itemsize * itemsize
    size = min(-(-nbytes // (2 * world_size)), limit)
    size = max(itemsize, -(-size // itemsize) * itemsize)
    count = max(-(-nbytes // size), 2 * world_size)
    return size, -(-count // world_size)


def _all_reduce(n: int, nbytes: int, itemsize: int) -> Schedule:
    chunk_bytes, each = segments(nbytes, n, itemsize)
    number = np.arange((n - 1) * each)
    first = _pass(n, each, number, ahead=1, op=Op.REDUCE)
    second = _pass(n, each, number, ahead=0, op=Op.COPY, first_step=number.size)
    return _paced(assemble("all_reduce", "gloo_ring", n, [first, second], chunk_bytes), back=1)


def _reduce(n: int, nbytes: int, root: int, itemsize: int) -> Schedule:
    chunk_bytes, each = segments(nbytes, n, itemsize)
    own = (n - 1) * each
    count = max(own, n * each - IN_FLIGHT) if n > 1 else 0
    first = _pass(n, each, np.arange(own), ahead=1, op=Op.REDUCE)
    again = _pass(n, each, np.arange(own, count), ahead=1, op=Op.COPY, to=Buffer.SCRATCH)
    others = np.delete(np.arange(n), root)
    gather = rows(0, others[:, None], root, others[:, None] * each + np.arange(each))
    ring = assemble("reduce", "gloo_ring", n, [first, again], chunk_bytes, root=root)
    return _then_gather(_paced(ring, back=1), assemble("reduce", "gloo_ring", n, [gather], chunk_bytes, root=root))


def _all_gather(n: int, nbytes: int, itemsize: int) -> Schedule:
    block = blocks(nbytes, n, itemsize)
    halves = np.stack([block // 2, block - block // 2], axis=1).reshape(-1)
    number = np.arange((n - 1) * 2)
    rank = np.arange(n)
    chunk = ((rank[None, :] - number[:, None] // 2) % n) * 2 + number[:, None] % 2
    moves = rows(number[:, None], rank[None, :], (rank[None, :] + 1) % n, chunk)
    return _paced(assemble("all_gather", "gloo_ring", n, [moves], halves), back=-1)


def _broadcast(n: int, nbytes: int, root: int, itemsize: int) -> Schedule:
    parts = []
    for bit in range((n - 1).bit_length()):
        place = np.arange(1 << bit)
        step = rows(bit, (place + root) % n, (place + (1 << bit) + root) % n, 0)
        parts.append(only(step, place + (1 << bit) < n))
    return assemble("broadcast", "gloo_binomial", n, parts, blocks(nbytes, 1, itemsize), root=root)


def _exchange(direct: Schedule, calling: Int64) -> Schedule:
    """All blocks at once, but between two ranks one after the other.

    Data goes out when the receiver's notice has come over the connection of the two ranks (gloo/transport/tcp/pair.cc).
    The rank that calls last finds the notice of its peer there, so its data goes out at once and its own notice stands
    behind it. In a loop ranks settle into calling in the order of their numbers where none is slower than others
    (measured: four ranks, 1 MiB).
    """
    src, dst = direct.src.astype(np.int64), direct.dst.astype(np.int64)
    order = np.argsort(calling[src] < calling[dst], kind="stable")
    src, dst = src[order], dst[order]
    answers = calling[src] < calling[dst]  # the sender came first, and its data waits behind that of its peer
    row = {pair: i for i, pair in enumerate(zip(src.tolist(), dst.tolist(), strict=True))}
    edges = [(row[b, a], i) for (a, b), i in row.items() if calling[a] < calling[b]]
    after = np.array(edges, np.int64).reshape(-1, 2)
    return direct.take(order, step=answers.astype(np.int32), after=after, algorithm="gloo_direct")


def _pass(
    n: int,
    each: int,
    number: Int64,
    *,
    ahead: int,
    op: Op,
    first_step: int = 0,
    to: Buffer = Buffer.OUTPUT,
) -> dict[str, Int64]:
    """Operation i of rank p sends segment (p + ahead) * each + i to rank p - 1."""
    rank = np.arange(n)[None, :]
    i = np.asarray(number, np.int64)[:, None]
    segment = ((rank + ahead) * each + i) % (n * each)
    return rows(i + first_step, rank, (rank - 1) % n, segment, op=op, dst_buffer=to)


def _paced(ring: Schedule, back: int) -> Schedule:
    """The ring with gloo's pace: row i of a rank starts when rows i - 2 from and to it have arrived.

    Segments of no bytes are rows too, which cost nothing. `back`: how far the rank is behind that sends to it.
    """
    n = ring.world_size
    row = np.arange(ring.rows, dtype=np.int64)
    following = row + IN_FLIGHT * n
    same = np.stack([row, following], axis=1)
    # Rows of a step stand rank by rank, so the row that came in from rank + back is that many further.
    rank = row % n
    came = np.stack([row - rank + (rank + back) % n, following], axis=1)
    after = np.concatenate([same, came])
    return ring.edit(after=after[(after < ring.rows).all(axis=1)])


def _then_gather(ring: Schedule, gather: Schedule) -> Schedule:
    """The ring and then the gather, whose rows wait for all that their sender took part in."""
    if not ring.rows:
        return gather
    joined = then(ring, gather)
    last = np.full(ring.world_size, -1, np.int64)
    last[ring.dst] = np.arange(ring.rows)  # the last row that arrives at each rank
    wait = last[gather.src]
    edges = np.stack([wait, np.arange(gather.rows) + ring.rows], axis=1)[wait >= 0]
    return joined.edit(after=np.concatenate([joined.after, edges]))
