"""The Program: a Schedule bound to links, as the arrays that every evaluator reads."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Schedule
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.placement import routes
from commsim.errors import ScheduleError
from commsim.topology.graph import Topology

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

HOP_BITS = 16
"""Bits of an event's key for the hop; 47 are left for the op."""
MAX_HOPS = 1 << HOP_BITS
"""Links of one route at most."""

_KINDS = {"Int64": np.int64, "Int32": np.int32, "Float64": np.float64}
"""Kind of number by the annotation of a column."""


@dataclass(frozen=True, eq=False)
class Program:
    """M messages ("ops") on R routes over L links, with the order between them.

    Op ``i`` carries ``nbytes[i]`` over the links ``route_link[route_ptr[r]:route_ptr[r + 1]]`` of its route
    ``r = route[i]``. It is ready when its ``indeg[i]`` predecessors have ended, and its head reaches the
    first link ``delay_s[i]`` later; with an empty route it ends then. Its successors are
    ``succ_idx[succ_ptr[i]:succ_ptr[i + 1]]``. Bandwidth in bytes/s, latency in s. A local copy engine, a
    thread block or a proxy is a link like any other. The last ``joins`` ops carry nothing on an empty route and stand
    for "all of these before all of those".

    All of this is checked here, once, since the compiled loops check nothing; ScheduleError names the first fault.
    """

    nbytes: Int64
    route: Int32
    delay_s: Float64
    succ_ptr: Int64
    succ_idx: Int32
    route_ptr: Int64
    route_link: Int32
    link_bandwidth: Float64
    link_latency: Float64
    joins: int = 0
    indeg: Int32 = field(init=False)

    def __post_init__(self) -> None:
        for column in fields(self):
            if column.init and (kind := _KINDS.get(str(column.type))):
                values = np.ascontiguousarray(getattr(self, column.name))
                if values.ndim != 1 or not np.can_cast(values.dtype, kind, "same_kind"):
                    raise ScheduleError(
                        f"{column.name}: found {values.dtype} of shape {values.shape}, expected a 1-D array"
                    )
                object.__setattr__(self, column.name, values.astype(kind, copy=False))
        _check(self)
        object.__setattr__(self, "indeg", np.bincount(self.succ_idx, minlength=self.rows).astype(np.int32))

    @property
    def rows(self) -> int:
        """Number of ops."""
        return int(self.nbytes.size)

    @property
    def links(self) -> int:
        """Number of links."""
        return int(self.link_bandwidth.size)

    def hops(self) -> Int64:
        """Number of links on the way of each op, (M,)."""
        return cast(Int64, np.diff(self.route_ptr)[self.route])

    def link_bytes(self) -> Int64:
        """Bytes that each link carries, (L,), exact."""
        return bytes_of_links(self, np.ones(self.route_link.size, np.int64))


def _require_range(name: str, values: npt.NDArray[Any], low: float, high: float, expected: str) -> None:
    # min and max first: no temporary array in the usual case. A NaN fails both comparisons.
    if values.size and not (values.min() >= low and values.max() <= high):
        at = int(np.argmin((values >= low) & (values <= high)))
        raise ScheduleError(f"{name}[{at}] is {values[at]}, expected {expected}")


def _require_csr(name: str, ptr: Int64, nnz: int, rows: int) -> None:
    if ptr.size != rows + 1 or ptr[0] != 0 or ptr[-1] != nnz:
        raise ScheduleError(f"{name} must have {rows + 1} entries from 0 to {nnz}, found {ptr.size} entries")
    if (ptr[1:] < ptr[:-1]).any():
        raise ScheduleError(f"{name} decreases at entry {int(np.argmax(ptr[1:] < ptr[:-1])) + 1}")


def _check(p: Program) -> None:
    rows = p.rows
    for name in ("route", "delay_s"):
        if getattr(p, name).size != rows:
            raise ScheduleError(f"{name} has {getattr(p, name).size} entries, expected one per op, {rows}")
    if p.link_latency.size != p.links:
        raise ScheduleError(f"found {p.link_latency.size} latencies for {p.links} links")
    largest = np.finfo(np.float64).max
    _require_range("nbytes", p.nbytes, 0, 2**62, "0 bytes or more")
    _require_range("delay_s", p.delay_s, 0, largest, "a finite time of 0 s or more")
    _require_range("link_latency", p.link_latency, 0, largest, "a finite time of 0 s or more")
    _require_range("link_bandwidth", p.link_bandwidth, 1e-300, largest, "a finite bandwidth above 0 bytes/s")
    if p.route_ptr.size < 1:
        raise ScheduleError("route_ptr is empty, expected at least its leading 0")
    routes = p.route_ptr.size - 1
    _require_csr("route_ptr", p.route_ptr, p.route_link.size, routes)
    _require_range("route", p.route, 0, routes - 1, f"one of {routes} routes")
    _require_range("route_link", p.route_link, 0, p.links - 1, f"one of {p.links} links")
    _require_range("hops", np.diff(p.route_ptr), 0, MAX_HOPS, f"at most {MAX_HOPS} links on a route")
    _require_csr("succ_ptr", p.succ_ptr, p.succ_idx.size, rows)
    _require_range("succ_idx", p.succ_idx, 0, rows - 1, f"one of {rows} ops")


def bytes_of_links(p: Program, weight: Int64) -> Int64:
    """Bytes that each link carries, (L,), if ``weight`` (as long as ``route_link``) messages stand for each."""
    per_route = np.zeros(p.route_ptr.size - 1, np.int64)
    np.add.at(per_route, p.route, p.nbytes)
    total = np.zeros(p.links, np.int64)
    np.add.at(total, p.route_link, np.repeat(per_route, np.diff(p.route_ptr)) * weight)
    return total


def count_up(length: Int64) -> Int64:
    """0, 1, ... up to each length, one after the other.

    >>> count_up(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)


def pointers(counts: npt.NDArray[np.integer[Any]] | list[int]) -> Int64:
    """Where runs of so many entries begin, and the last one ends, as in a table in CSR form.

    >>> pointers([2, 0, 3])
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def places_along(ptr: Int64, route: Int32 | Int64) -> Int64:
    """Where the links of some routes stand in a route table that begins them at ``ptr``, one route after the other."""
    length = np.diff(ptr)[route]
    return np.repeat(ptr[route], length) + count_up(length)


def require_ranks(world_size: int, topology: Topology) -> None:
    """Raise a ScheduleError when the topology has fewer ranks."""
    if world_size > topology.world_size:
        raise ScheduleError(
            f"the schedule has {world_size} ranks, the topology {topology.name} only {topology.world_size}"
        )


def dense_ids(keys: Int64, size: int) -> tuple[Int64, Int32]:
    """Distinct keys in rising order and, per key, its place among them; keys lie in 0..size-1.

    A table of all possible keys is several times quicker than sorting, as long as it is not much larger than
    the data.
    """
    if size > max(8 * keys.size, 1 << 22):
        distinct, place = np.unique(keys, return_inverse=True)
        return distinct, place.reshape(-1).astype(np.int32)
    table = np.zeros(size, np.int32)
    table[keys] = 1
    distinct = np.flatnonzero(table)
    table[distinct] = np.arange(distinct.size, dtype=np.int32)
    return distinct, table[keys]


def build_program(schedule: Schedule, topology: Topology, *, joins: bool = False) -> Program:
    """The Program of a schedule on the topology's own routes; op ``i`` is row ``i``.

    A row carries its ``wire_bytes``, or its payload when the schedule is not lowered. A row within one endpoint uses no
    link; endpoints that are no ranks are placed by `commsim.engine.placement`. With ``joins`` ops without bytes follow
    the rows, in place of edges from many rows to many (see `derive`).
    """
    require_ranks(schedule.world_size, topology)
    derived = schedule.known_dependencies is None
    require_memory(estimate_bytes(schedule.rows, derived=derived), schedule.rows)
    nbytes = schedule.payload_bytes() if schedule.wire_bytes is None else schedule.wire_bytes
    ptr, links, route = routes_of_rows(schedule, topology)
    succ_ptr, succ_idx = schedule.dependencies(joins=joins)
    ops = succ_ptr.size - 1
    if ops > schedule.rows:
        nbytes = np.pad(nbytes, (0, ops - schedule.rows))
        ptr = np.append(ptr, ptr[-1])
        route = np.pad(route, (0, ops - schedule.rows), constant_values=ptr.size - 2)
    return Program(
        nbytes=nbytes,
        route=route,
        delay_s=np.zeros(ops),
        succ_ptr=succ_ptr,
        succ_idx=succ_idx,
        route_ptr=ptr,
        route_link=links,
        link_bandwidth=topology.link_bandwidth,
        link_latency=topology.link_latency,
        joins=ops - schedule.rows,
    )


def routes_of_rows(schedule: Schedule, topology: Topology) -> tuple[Int64, Int32, Int32]:
    """Route table (ptr, link) with an empty route at its end, and the route of each row."""
    n = schedule.endpoints
    pair, of_row = dense_ids(schedule.src.astype(np.int64) * n + schedule.dst, n * n)
    src, dst, flowlet = pair // n, pair % n, np.zeros(pair.size, np.int64)
    if topology.draws_flowlets:
        drawn = flowlets_of(of_row, schedule, topology.flowlet_bytes)
        both, row = np.unique(np.stack([of_row, drawn]), axis=1, return_inverse=True)
        pair, flowlet, of_row = pair[both[0]], both[1], row.reshape(-1).astype(np.int32)
        src, dst = pair // n, pair % n
    away = src != dst
    ptr, links, index = routes(schedule, topology, src[away], dst[away], flowlet[away])
    route = np.full(pair.size, ptr.size - 1, np.int32)
    route[away] = index
    return np.append(ptr, ptr[-1]), links, route[of_row]


def flowlets_of(pair: Int32, schedule: Schedule, size: int) -> Int64:
    """Of each row the number of its flowlet among those of its pair, (rows,).

    A message is never cut: it belongs to the flowlet into which its first byte falls, by `size` bytes each. A pair's
    messages go in the order of steps, then of rows.
    """
    nbytes = schedule.payload_bytes() if schedule.wire_bytes is None else schedule.wire_bytes
    order = np.lexsort((np.arange(pair.size), schedule.step, pair))
    before = np.cumsum(nbytes[order]) - nbytes[order]
    first = np.flatnonzero(np.diff(pair[order], prepend=-1))
    before -= np.repeat(before[first], np.diff(np.append(first, pair.size)))
    out = np.empty(pair.size, np.int64)
    out[order] = before // size
    return out
