"""Max-min fair sharing written out plainly: rates anew by progressive filling at every event, nothing kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commsim.engine.program import Program


def max_min(routes: list[list[int]], bandwidth: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The max-min fair rates of flows over these links."""
    rates, open_flows = np.zeros(len(routes)), set(range(len(routes)))
    left = bandwidth.astype(np.float64).copy()
    while open_flows:
        users = np.zeros(bandwidth.size)
        for f in open_flows:
            users[routes[f]] += 1
        share = np.divide(left, users, out=np.full(bandwidth.size, np.inf), where=users > 0)
        link = int(np.argmin(share))
        for f in [f for f in open_flows if link in routes[f]]:
            rates[f] = share[link]
            left[routes[f]] -= share[link]
            open_flows.remove(f)
        left = np.maximum(left, 0.0)
    return rates


@dataclass
class Run:
    """Times per op, (M,), and what every interval looked like: (seconds, flows' routes, their rates)."""

    end_s: npt.NDArray[np.float64]
    intervals: list[tuple[float, list[list[int]], npt.NDArray[np.float64]]] = field(default_factory=list)


def simulate_fair(program: Program, connection: npt.NDArray[np.int32] | None = None) -> Run:
    """The fair semantics: a queue per connection, its head holds all links of its route until it has finished."""
    p = program
    conn = (p.route if connection is None else connection).tolist()
    waiting = p.indeg.tolist()
    ready = np.zeros(p.rows)
    start = {op: float(p.delay_s[op]) for op in range(p.rows) if waiting[op] == 0}
    queue: dict[int, list[int]] = {}
    rest: dict[int, float] = {}
    run, now = Run(np.zeros(p.rows)), 0.0

    def way(op: int) -> list[int]:
        return [int(v) for v in p.route_link[p.route_ptr[p.route[op]] : p.route_ptr[p.route[op] + 1]]]

    def end(op: int, time_s: float) -> None:
        run.end_s[op] = time_s
        for s in p.succ_idx[p.succ_ptr[op] : p.succ_ptr[op + 1]].tolist():
            ready[s] = max(ready[s], time_s)
            waiting[s] -= 1
            if waiting[s] == 0:
                start[s] = float(ready[s] + p.delay_s[s])

    while start or rest:
        flows = list(rest)
        rates = max_min([way(op) for op in flows], p.link_bandwidth)
        finish = {op: now + rest[op] / rate for op, rate in zip(flows, rates, strict=True)}
        then = min([*start.values(), *finish.values()])
        run.intervals.append((then - now, [way(op) for op in flows], rates))
        for op, rate in zip(flows, rates, strict=True):
            rest[op] = max(0.0, rest[op] - rate * (then - now))
        now = then
        for op in [op for op in flows if finish[op] <= now * (1 + 1e-13)]:
            del rest[op]
            end(op, now + float(p.link_latency[way(op)].sum()))
            queue[conn[op]].remove(op)
            if queue[conn[op]]:
                rest[queue[conn[op]][0]] = float(p.nbytes[queue[conn[op]][0]])
        for op in sorted(op for op, at in start.items() if at <= now * (1 + 1e-13)):
            del start[op]
            if not way(op):
                end(op, now)
                continue
            line = queue.setdefault(conn[op], [])
            line.append(op)
            if len(line) == 1:
                rest[op] = float(p.nbytes[op])
    return run
