"""No prediction is quicker than the lower bound of its machine, whatever NCCL is told to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from commsim.bounds import lower_bound_s
from commsim.errors import TopologyError
from commsim.nccl.environment import FUNCTIONS as CHOSEN
from commsim.nccl.environment import POINT_TO_POINT as SENDS
from commsim.nccl.predict import Options, Prediction, Predictor
from commsim.topology.presets import load_preset, preset_names

VERSION = (2, 26, 2)

SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30, 9 << 28, 8 << 30, 32 << 30]
"""From latency to bandwidth; 2.25 GiB is where trees on meshes were 0.67 of their bound."""

IN_THE_NETWORK = ("nvls", "nvls_tree", "collnet_direct", "collnet_chain")
"""Algorithms whose switches reduce; all others are held to the bound without it, which is the higher one."""


def models(name: str, nodes: Iterable[int]) -> Iterator[Predictor]:
    """A preset of some numbers of nodes, where NCCL runs on them: not on processes without GPUs."""
    for count in nodes:
        try:
            model = Predictor(load_preset(name, nodes=count), Options(VERSION))
        except TopologyError:
            continue
        if model.system.ranks > 1:
            yield model


def predictions(model: Predictor, sizes: Iterable[int]) -> Iterator[tuple[str, Prediction]]:
    """Every collective, by every algorithm and protocol that NCCL has for it; its own choice is among them."""
    free = model.options
    for collective in (*CHOSEN, *SENDS):
        pairs: list[tuple[str | None, str | None]] = [(None, None)]
        if collective in CHOSEN:
            pairs = [(c.algorithm, c.protocol) for c in model.candidates(collective, 1 << 20)]
        for algorithm, protocol in pairs:
            model.options = replace(free, algorithm=algorithm, protocol=protocol)
            yield from ((collective, model.predict(collective, size)) for size in sizes)
    model.options = free


def too_quick(model: Predictor, sizes: Iterable[int]) -> list[str]:
    """The rows under their bound."""
    rows = []
    for collective, got in predictions(model, sizes):
        bound = lower_bound_s(collective, got.nbytes, model.topology, in_network=got.algorithm in IN_THE_NETWORK)
        if got.time_s < bound.seconds:
            what = f"{model.system.nodes} nodes, {collective} {got.nbytes} B, {got.algorithm} {got.protocol}"
            rows.append(f"{what}: {got.time_s:.3e} s, bound {bound.seconds:.3e} s at {bound.bandwidth_at}")
    return rows


@pytest.mark.parametrize("name", ["dgx-1v", "abci-v100", "gb200-nvl4", "gh200x4", "hgx-a100-4", "v100-pcie-8"])
def test_nothing_beats_the_bound_of_a_node_without_switches(name: str) -> None:
    (model,) = models(name, [1])
    assert too_quick(model, [1 << 20, 9 << 28]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_nothing_beats_the_bound(name: str) -> None:
    rows = [row for model in models(name, (1, 2, 4)) for row in too_quick(model, SIZES)]
    assert rows == []
