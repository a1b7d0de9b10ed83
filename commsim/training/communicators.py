"""Seconds of a collective on a group of ranks: the one way in which a training step asks for communication time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.gloo.predict import GlooPredictor
from commsim.nccl.predict import Options, Predictor

if TYPE_CHECKING:
    from commsim.gloo.parameters import GlooParameters
    from commsim.nccl.parameters import Parameters
    from commsim.nccl.version import Version
    from commsim.topology.graph import Topology

Ranks = npt.NDArray[np.int64]

CommTime = Callable[[str, float, Ranks], float]
"""(collective, nbytes, ranks) -> seconds of one call that somebody waits for; nbytes as in nccl-tests."""

_MOST_TREE_NODES = 16
"""Up to so many nodes NCCL's trees are simulated event by event; on more an all_reduce is timed as a ring."""


class GroupTimes:
    """`CommTime` by a library's model: a group is a communicator on as many nodes, with as many GPUs of each.

    ``predictor(nodes, gpus_per_node, ring)`` is the library's model of such a part of the machine; with ``ring`` its
    trees would take too long to simulate. A group that has a part of a node's GPUs has that part of its NICs, since the
    groups of the other GPUs use theirs at the same time. Every (collective, size, shape) is timed once.
    """

    def __init__(self, ranks_per_node: int, predictor: Callable[[int, int, bool], Any]) -> None:
        self.ranks_per_node, self._predictor = ranks_per_node, predictor
        self._known: dict[tuple[str, int, int, int], float] = {}
        self._predictors: dict[tuple[int, int, bool], Any] = {}
        self.warnings: list[str] = []

    def __call__(self, collective: str, nbytes: float, ranks: Ranks) -> float:
        """Seconds of one call; 0 for a group of one."""
        if len(ranks) < 2 or nbytes <= 0:
            return 0.0
        nodes, per_node = shape(ranks, self.ranks_per_node)
        key = (collective, max(1, round(nbytes)), nodes, per_node)
        if key not in self._known:
            group = (nodes, per_node, collective == "all_reduce" and nodes > _MOST_TREE_NODES)
            if group not in self._predictors:
                made = self._predictors[group] = self._predictor(*group)
                self.warnings += [w for w in getattr(made, "warnings", ()) if w not in self.warnings]
            self._known[key] = self._predictors[group].predict(collective, key[1]).time_s
        return self._known[key]


def nccl_times(
    ranks_per_node: int,
    part: Callable[[int, int], Topology],
    version: Version | None = None,
    env: dict[str, str] | None = None,
    latency: float = 1.0,
    parameters: Parameters | None = None,
) -> GroupTimes:
    """By the NCCL model; hops take ``latency`` times as long as the parameters say, by default the shipped ones.

    ``part(nodes, gpus_per_node)`` builds that part of the machine.
    """

    def predictor(nodes: int, per_node: int, ring: bool) -> Predictor:
        # Gradients and activations are summed: a sum of bfloat16 chooses as that of float32, which Options has.
        options = Options(version=version, env=env or {}, mode="single", algorithm="ring" if ring else None)
        made = Predictor(part(nodes, per_node), options, parameters)
        return made if latency == 1.0 else Predictor(made.topology, options, made.parameters.scaled(latency))

    return GroupTimes(ranks_per_node, predictor)


def gloo_times(
    ranks_per_node: int,
    part: Callable[[int, int], Topology],
    parameters: GlooParameters | None = None,
    *,
    one_host: bool = False,
) -> GroupTimes:
    """By the gloo model; `one_host`: all nodes share one computer's cores."""

    def predictor(nodes: int, per_node: int, ring: bool) -> GlooPredictor:
        return GlooPredictor(part(nodes, per_node), parameters, one_host=one_host, mode="single")

    return GroupTimes(ranks_per_node, predictor)


def shape(ranks: Ranks, ranks_per_node: int) -> tuple[int, int]:
    """(nodes, ranks of the group on the node that has most of them)."""
    _, counts = np.unique(np.asarray(ranks) // ranks_per_node, return_counts=True)
    return int(counts.size), int(counts.max())
