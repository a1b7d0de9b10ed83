"""What a prediction has to beat: a datasheet line, NCCL's own estimate, and lines fitted to the curve itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from commsim.collectives.semantics import busbw_factor
from commsim.nccl.environment import POINT_TO_POINT
from commsim.nccl.predict import Predictor

Float64 = npt.NDArray[np.float64]

NAMES = ("alpha_beta", "tuner", "tuner_or_launch")
FREE_FIT = "three_lines"

_STEP_INSIDE, _STEP_ACROSS = 2e-6, 5e-6
_FLOOR = {"one_process": 4e-6, "process_per_gpu": 8e-6}  # the first for each GPU of the process
_FLOOR_GROUPED = {"one_process": 6.3e-6, "process_per_gpu": 15e-6}


def baselines(predictor: Predictor, collective: str, nbytes: Sequence[int]) -> dict[str, Float64]:
    """Seconds by the models that need no measurement.

    ``alpha_beta``: 2 us for every ring step inside a node, 5 us across, and the bus traffic at the datasheet rate.
    ``tuner``: the least time of NCCL's own table (for sends and receives, which have none, alpha-beta).
    ``tuner_or_launch``: the same, but at least what the launch costs.
    """
    line = alpha_beta(predictor, collective, nbytes)
    if collective in POINT_TO_POINT or predictor.system.ranks == 1:
        tuner = line
    else:
        best = [predictor.candidates(collective, n) for n in nbytes]
        tuner = np.array([min((c.time_us * 1e-6 for c in row), default=t) for row, t in zip(best, line, strict=True)])
    table = _FLOOR_GROUPED if collective in POINT_TO_POINT else _FLOOR
    launch = predictor.options.launch
    floor = table[launch] * (predictor.topology.ranks_per_node if launch == "one_process" else 1)
    return {"alpha_beta": line, "tuner": tuner, "tuner_or_launch": np.maximum(tuner, floor)}


def alpha_beta(predictor: Predictor, collective: str, nbytes: Sequence[int]) -> Float64:
    """Seconds of a ring (or of the sends) from datasheet rates alone."""
    topology = predictor.topology
    n, nodes, per_node = topology.world_size, topology.nodes, topology.ranks_per_node
    inside = topology.nvlink_links * topology.nvlink_link_bandwidth or float(topology.link_bandwidth.max())
    across = topology.nics_per_node * topology.nic_bandwidth
    rounds = 2 if collective == "all_reduce" else 1
    if collective == "send_recv":
        hops, rounds, across = (0, 1) if nodes > 1 else (1, 0), 1, topology.nic_bandwidth
    else:
        hops = n - nodes, nodes if nodes > 1 else 0
    alpha = rounds * (hops[0] * _STEP_INSIDE + hops[1] * _STEP_ACROSS)
    rate = inside if nodes == 1 else min(inside, across) if per_node > 1 else across
    if collective in POINT_TO_POINT and collective != "send_recv" and nodes > 1:
        rate = across / per_node
    factor = busbw_factor(collective, n) if n > 1 else 1.0
    return alpha + np.asarray(nbytes, np.float64) * factor / max(rate, 1.0)


def three_lines(nbytes: Sequence[int], time_s: Float64) -> Float64:
    """A curve by three straight pieces, each latency + slope, fitted to that very curve: six parameters.

    The breaks and lines are those of least squared relative error; what this leaves over no smooth model explains.
    """
    size, count = np.asarray(nbytes, np.float64), len(nbytes)
    cost = np.full((count + 1, count + 1), np.inf)
    fitted: dict[tuple[int, int], Float64] = {}
    for i in range(count):
        for j in range(i + 1, count + 1):
            line = _line(size[i:j], time_s[i:j])
            fitted[i, j] = line
            cost[i, j] = float(np.sum((line / time_s[i:j] - 1) ** 2))
    best = min(
        ((i, j) for i in range(1, count - 1) for j in range(i + 1, count)),
        key=lambda b: cost[0, b[0]] + cost[b[0], b[1]] + cost[b[1], count],
        default=None,
    )
    if best is None:
        return time_s.copy()
    return np.concatenate([fitted[0, best[0]], fitted[best[0], best[1]], fitted[best[1], count]])


def _line(size: Float64, time_s: Float64) -> Float64:
    weight = 1 / time_s**2
    total, mean = weight.sum(), float(weight @ size) / weight.sum()
    spread = float(weight @ (size - mean) ** 2)
    center = float(weight @ time_s) / total
    slope = float(weight @ ((size - mean) * time_s)) / spread if spread > 0 else 0.0
    return np.asarray(center + max(0.0, slope) * (size - mean))
