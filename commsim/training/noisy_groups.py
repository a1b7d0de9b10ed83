"""Calls of NCCL on groups of ranks whose messages are late by a draw each: what a training step takes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from commsim.engine.variation import Variation
from commsim.errors import ScenarioError
from commsim.nccl.noise import noise_of
from commsim.nccl.predict import Options, Prediction
from commsim.training.nccl_groups import Alike, NcclGroups

if TYPE_CHECKING:
    from commsim.nccl.parameters import Parameters
    from commsim.topology.graph import Topology

_RUNS = (16, 4, 1)
"""Runs of which the mean is taken, fewer where so many have too many messages."""


class NoisyGroups(NcclGroups):
    """`NcclGroups` whose calls take the mean over runs with the jitter of a variation.

    Of groups that call at the same time the slowest of each run counts. A step has some hundreds of calls, so that it
    takes the sum of their means.
    """

    def __init__(
        self,
        topology: Topology,
        options: Options,
        parameters: Parameters | None,
        latency: float,
        variation: Variation,
    ) -> None:
        super().__init__(topology, options, parameters, latency)
        self._variation = replace(variation, node_spread=0.0, stragglers=())
        self._noisy: dict[tuple[str, int, bytes, int], Prediction] = {}

    def _predicted(self, call: tuple[str, int], some: Alike) -> Prediction:
        key = *call, some.pace, len(some.ranks)
        if key not in self._noisy:
            got, model = super()._predicted(call, some), self._model(some)
            for runs in _RUNS:
                try:
                    later = noise_of(model, replace(self._variation, repeats=runs), call[0], got)
                    break
                except ScenarioError:
                    if runs == _RUNS[-1]:
                        raise
            seconds = model.with_launch(got.kernel_s + _mean_of_latest(later, len(some.ranks)), got.launch_s)
            self._noisy[key] = replace(got, time_s=max(got.time_s, seconds))
        return self._noisy[key]


def _mean_of_latest(later: np.ndarray, groups: int) -> float:
    """The mean of the latest of so many groups, each of which draws one of the runs.

    >>> _mean_of_latest(np.array([1.0, 3.0]), 1), _mean_of_latest(np.array([1.0, 3.0]), 2)
    (2.0, 2.5)
    """
    below = (np.arange(later.size + 1) / later.size) ** groups
    return float((np.sort(later) * np.diff(below)).sum())
