"""Small programs for the tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from commsim.collectives.schedule import Schedule
from commsim.engine.program import Program


def program(
    nbytes: Sequence[int],
    routes: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]] = (),
    *,
    bandwidth: Sequence[float],
    latency: Sequence[float],
    delay_s: Sequence[float] | None = None,
) -> Program:
    """A Program from a list of links per op and a list of (before, after) pairs."""
    rows = len(nbytes)
    pairs = np.array(sorted(set(edges)), np.int64).reshape(-1, 2)
    return Program(
        nbytes=np.array(nbytes, np.int64),
        route=np.arange(rows, dtype=np.int32),
        delay_s=np.zeros(rows) if delay_s is None else np.array(delay_s, np.float64),
        succ_ptr=np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=rows))]).astype(np.int64),
        succ_idx=pairs[:, 1].astype(np.int32),
        route_ptr=np.concatenate([[0], np.cumsum([len(r) for r in routes])]).astype(np.int64),
        route_link=np.array([link for r in routes for link in r], np.int32),
        link_bandwidth=np.array(bandwidth, np.float64),
        link_latency=np.array(latency, np.float64),
    )


def on_switch(
    schedule: Schedule,
    *,
    bandwidth: float = 50e9,
    latency_s: float = 0.5e-6,
    nbytes: Sequence[int] | None = None,
) -> Program:
    """A schedule on a non-blocking switch: rank r has link r into it and link N + r out of it."""
    n, rows = schedule.endpoints, schedule.rows
    ptr, idx = schedule.dependencies()
    up, down = np.divmod(np.arange(n * n), n)
    return Program(
        nbytes=schedule.payload_bytes() if nbytes is None else np.array(nbytes, np.int64),
        route=(schedule.src * n + schedule.dst).astype(np.int32),
        delay_s=np.zeros(rows),
        succ_ptr=ptr,
        succ_idx=idx,
        route_ptr=np.arange(n * n + 1, dtype=np.int64) * 2,
        route_link=np.stack([up, n + down], axis=1).ravel().astype(np.int32),
        link_bandwidth=np.full(2 * n, bandwidth),
        link_latency=np.full(2 * n, latency_s),
    )


def all_to_all(n: int, nbytes: npt.ArrayLike, *, bandwidth: float = 50e9, latency_s: float = 0.5e-6) -> Program:
    """Every rank to every other at once on a non-blocking switch; ``nbytes`` for all or per op, by rounds."""
    turn, rank = np.divmod(np.arange(n * (n - 1)), n)
    rows = rank.size
    return Program(
        nbytes=np.broadcast_to(np.asarray(nbytes, np.int64), (rows,)),
        route=np.arange(rows, dtype=np.int32),
        delay_s=np.zeros(rows),
        succ_ptr=np.zeros(rows + 1, np.int64),
        succ_idx=np.zeros(0, np.int32),
        route_ptr=np.arange(rows + 1, dtype=np.int64) * 2,
        route_link=np.stack([rank, n + (rank + turn + 1) % n], axis=1).ravel().astype(np.int32),
        link_bandwidth=np.full(2 * n, bandwidth),
        link_latency=np.full(2 * n, latency_s),
    )


@st.composite
def random_programs(draw: st.DrawFn, most_ops: int = 40) -> Program:
    """Random sizes, delays, routes of 0 to 4 links over few links, and order; no two times are alike but by design."""
    seed = draw(st.integers(0, 2**32 - 1))
    rows, links = draw(st.integers(1, most_ops)), draw(st.integers(1, 6))
    topological = draw(st.booleans())
    rng = np.random.default_rng(seed)
    number = np.arange(rows) if topological else rng.permutation(rows)
    edges = [
        (int(number[a]), int(number[b]))
        for b in range(rows)
        for a in rng.choice(b, min(b, int(rng.integers(0, 3))), replace=False)
    ]
    routes = [list(rng.permutation(links)[: rng.integers(0, 5)]) for _ in range(rows)]
    return program(
        [int(v) for v in rng.integers(0, 10**6, rows)],
        routes,
        edges,
        bandwidth=list(rng.uniform(1e9, 1e10, links)),
        latency=list(rng.uniform(1e-7, 1e-5, links)),
        delay_s=list(rng.uniform(1e-9, 1e-5, rows)),
    )
