"""Folding by colours: messages that no comparison can tell apart take equal times under fair sharing, so one stands
for all of them.

Colours begin with what a message, a connection and a link are (bytes, routes, speeds) and are refined by what surrounds
them until no class splits. They are 64-bit hashes, so the partition is proven *equitable* by counting: every message of
a class waits for the same classes; every connection of a class crosses the same classes of links and carries one
message of each of its classes; every link of a class is crossed by equally many connections of each class.

Max-min fair rates are unique. Rates that are equal within the classes and fair in the quotient are fair in the whole.
So by induction over the events all times are equal within a class. FIFO links do not fold so: there, who of two equals
comes first matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.engine.fair import routes_of_connections, simulate_fair
from commsim.engine.program import Int32, Int64, Program, count_up, places_along, pointers
from commsim.engine.simulate import Outcome

Hash = npt.NDArray[np.uint64]

_MOST_ROUNDS = 64


@dataclass(frozen=True, eq=False)
class Quotient:
    """A program of one op per class: ``op_class`` (M,) of each op, ``link_class`` (L,) of each link.

    ``weight`` aligns with ``program.route_link``: how many connections of the class one link of that class carries.
    """

    program: Program
    weight: Int64
    op_class: Int64
    link_class: Int64


def simulate_folded(program: Program, connection: Int32 | None = None, *, least_gain: float = 2.0) -> Outcome | str:
    """The Outcome under fair sharing by folding, or why it is not worth it (fewer than ``least_gain`` ops a class)."""
    quotient = refine(program, connection)
    if isinstance(quotient, str):
        return quotient
    if quotient.program.rows * least_gain > program.rows:
        return f"{program.rows} messages fall into {quotient.program.rows} classes, which gains nothing"
    part = simulate_fair(quotient.program, weight=quotient.weight)
    link_bytes = program.link_bytes()
    return Outcome(
        program,
        part.ready_s[quotient.op_class],
        part.start_s[quotient.op_class],
        part.end_s[quotient.op_class],
        link_bytes,
        link_bytes / program.link_bandwidth,
        level="fold",
        method=f"{quotient.program.rows} classes of messages, {int(quotient.link_class.max()) + 1} of links",
        contention="fair",
    )


def refine(program: Program, connection: Int32 | None = None) -> Quotient | str:
    """The quotient by the coarsest colours found, proven equitable, or what stands in the way."""
    p = program
    if not p.rows or not p.hops().all():
        return "there is a message without a link"
    dense, route = routes_of_connections(p, connection)
    conn = dense.astype(np.int64)
    length = np.diff(p.route_ptr)[route]
    links = p.route_link[places_along(p.route_ptr, route)].astype(np.int64)
    slots = _Slots(np.repeat(np.arange(route.size), length), count_up(length), links)
    # A class is numbered by its lowest op, so that ops of one connection keep their order.
    op, line, link = map(_by_first, _colours(p, conn, slots))
    fault = _inequitable(p, conn, slots, op, line, link)
    if fault:
        return f"colours do not prove symmetry: {fault}"
    return _quotient(p, conn, slots, op, line, link)


@dataclass(frozen=True, eq=False)
class _Slots:
    """Links of connections, side by side: slot k is hop ``hop[k]`` of connection ``of[k]`` over link ``link[k]``."""

    of: Int64
    hop: Int64
    link: Int64


def _mix(*parts: npt.NDArray[np.generic] | int) -> Hash:
    """Columns to one well-mixed word each (the finaliser of splitmix64, Steele, Lea, Flood 2014)."""
    total = np.zeros(1, np.uint64)
    for part in parts:
        bits = np.asarray(part)
        bits = bits.view(np.uint64) if bits.dtype in {np.dtype(np.float64), np.dtype(np.int64)} else bits
        total = total * np.uint64(0x9E3779B97F4A7C15) + bits.astype(np.uint64) + np.uint64(0x632BE59BD9B4E019)
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total = total ^ (total >> np.uint64(31))
    return total


def _sums(values: Hash, group: Int64, groups: int) -> Hash:
    """Sum of the values of each group, modulo 2**64: the same in any order."""
    out = np.zeros(groups, np.uint64)
    np.add.at(out, group, values)
    return out


def _colours(p: Program, conn: Int64, slots: _Slots) -> tuple[Hash, Hash, Hash]:
    """Colours of ops, connections and links that no further round splits."""
    lines = int(conn.max()) + 1
    order = np.argsort(conn, kind="stable")
    count = np.bincount(conn, minlength=lines)
    place = np.empty(p.rows, np.int64)
    place[order] = count_up(count)
    op, link = _mix(p.nbytes, p.delay_s, place), _mix(p.link_bandwidth, p.link_latency)
    line = np.zeros(lines, np.uint64)
    before = np.repeat(np.arange(p.rows), np.diff(p.succ_ptr))
    classes = 0
    for _ in range(_MOST_ROUNDS):
        way = _sums(_mix(link[slots.link], slots.hop), slots.of, lines)
        line = _mix(line, way, _sums(_mix(op), conn, lines))
        op = _mix(op, line[conn], _sums(_mix(op[before]), p.succ_idx.astype(np.int64), p.rows))
        link = _mix(link, _sums(_mix(line[slots.of]), slots.link, p.links))
        split = sum(np.unique(colour).size for colour in (op, line, link))
        if split == classes:
            break
        classes = split
    return op, line, link


def _by_first(colour: Hash) -> tuple[Int64, Int64]:
    """Class of each entry, numbered by first appearance, and the first entry of each class."""
    _, first, number = np.unique(colour, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    return rank[number.reshape(-1)], first[order]


_Classes = tuple[Int64, Int64]
"""Class of each entry, first entry of each class."""


def _inequitable(p: Program, conn: Int64, slots: _Slots, op: _Classes, line: _Classes, link: _Classes) -> str:
    """Why the partition is not equitable, by counting; empty if it is."""
    (op_class, first_op), (line_class, first_line), (link_class, first_link) = op, line, link
    size, lines = np.bincount(op_class), np.bincount(line_class)
    for name in ("nbytes", "delay_s"):
        column = getattr(p, name)
        if (column != column[first_op][op_class]).any():
            return f"{name} differ in a class"
    if (line_class[conn] != line_class[conn[first_op]][op_class]).any():
        return "a class lies on different classes of connections"
    if np.unique(conn * size.size + op_class).size != p.rows or (size != lines[line_class[conn[first_op]]]).any():
        return "a connection does not carry one message of each of its classes"
    before = np.repeat(op_class, np.diff(p.succ_ptr))
    waits = np.unique(p.succ_idx.astype(np.int64) * size.size + before)
    pair, times = np.unique(op_class[waits // size.size] * size.size + waits % size.size, return_counts=True)
    if (times != size[pair // size.size]).any():
        return "messages of a class wait for different classes"
    for column in (p.link_bandwidth, p.link_latency):
        if (column != column[first_link][link_class]).any():
            return "links of a class differ in speed"
    width = int(slots.hop.max()) + 1
    ways = np.full((conn.max() + 1, width), -1, np.int64)
    ways[slots.of, slots.hop] = link_class[slots.link]
    if (ways != ways[first_line][line_class]).any():
        return "connections of a class cross different classes of links"
    key, times = np.unique(slots.link * lines.size + line_class[slots.of], return_counts=True)
    links = np.bincount(link_class)
    group = link_class[key // lines.size] * lines.size + key % lines.size
    seen, start, number = np.unique(group, return_index=True, return_inverse=True)
    if (times != times[start][number.reshape(-1)]).any() or (
        np.bincount(number.reshape(-1)) != links[seen // lines.size]
    ).any():
        return "links of a class are crossed by different numbers of connections"
    return ""


def _quotient(p: Program, conn: Int64, slots: _Slots, op: _Classes, line: _Classes, link: _Classes) -> Quotient:
    (op_class, first_op), (line_class, first_line), (link_class, first_link) = op, line, link
    classes, lines = first_op.size, first_line.size
    # One slot per class of connections and class of links, with the number of its connections on one such link.
    crossed = np.unique(slots.link * lines + line_class[slots.of], return_counts=True)
    key = (crossed[0] % lines) * first_link.size + link_class[crossed[0] // lines]
    way, start = np.unique(key, return_index=True)
    of, over, weight = way // first_link.size, way % first_link.size, crossed[1][start]
    # A route that crosses a class twice has one slot there; a link of its own pays the latency that is missing.
    latency = np.bincount(slots.of, p.link_latency[slots.link], line_class.size)[first_line]
    paid = np.bincount(of, p.link_latency[first_link][over], lines)
    cap = np.full(lines, np.inf)
    np.minimum.at(cap, of, p.link_bandwidth[first_link][over])
    of = np.concatenate([of, np.arange(lines)])
    order = np.argsort(of, kind="stable")
    over = np.concatenate([over, first_link.size + np.arange(lines)])[order]
    before = np.repeat(op_class, np.diff(p.succ_ptr))
    edges = np.unique(before * classes + op_class[p.succ_idx])
    return Quotient(
        program=Program(
            nbytes=p.nbytes[first_op],
            route=line_class[conn[first_op]].astype(np.int32),
            delay_s=p.delay_s[first_op],
            succ_ptr=pointers(np.bincount(edges // classes, minlength=classes)),
            succ_idx=(edges % classes).astype(np.int32),
            route_ptr=pointers(np.bincount(of, minlength=lines)),
            route_link=over.astype(np.int32),
            link_bandwidth=np.concatenate([p.link_bandwidth[first_link], cap]),
            link_latency=np.concatenate([p.link_latency[first_link], np.maximum(latency - paid, 0.0)]),
        ),
        weight=np.concatenate([weight, np.ones(lines, np.int64)])[order],
        op_class=op_class,
        link_class=link_class,
    )
