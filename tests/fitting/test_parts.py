"""A predicted time is divided among kinds of physical cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from commsim.fitting.fields import walk
from commsim.fitting.parts import _KINDS, time_parts
from commsim.nccl.parameters import GENERATIONS, NETWORKS, load_parameters
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

BEHIND = {"pass_share", "efficiency.lines", "network.through_host_efficiency"}
"""Shares that lengthen what is counted already."""


def predictor(preset: str, nodes: int, **options: Any) -> Predictor:
    return Predictor(load_preset(preset, nodes=nodes), Options(version=(2, 22, 3), **options))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_parameter_is_of_one_kind(generation: str) -> None:
    for network in NETWORKS:
        for path, _, _ in walk(load_parameters(generation, network)):
            kinds = [kind for kind, paths in _KINDS.items() if any(fnmatchcase(path, p) for p in paths)]
            assert len(kinds) == (path not in BEHIND), (path, kinds)


def shapes() -> Iterator[tuple[str, int, str, int]]:
    for preset, nodes in (("hgx-h100", 1), ("hgx-h100-ndr400", 2), ("dgx-a100-hdr200", 4), ("polaris", 4)):
        for collective in ("all_reduce", "all_gather", "all_to_all"):
            for nbytes in (8, 1 << 16, 1 << 30):
                yield preset, nodes, collective, nbytes


@pytest.mark.parametrize(("preset", "nodes", "collective", "nbytes"), list(shapes()))
def test_the_parts_add_up_and_the_largest_comes_first(preset: str, nodes: int, collective: str, nbytes: int) -> None:
    model = predictor(preset, nodes)
    whole = model.predict(collective, nbytes).time_s
    parts = time_parts(model, collective, nbytes)
    assert sum(parts.values()) == pytest.approx(whole, rel=0.02)
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    assert model.predict(collective, nbytes).time_s == whole  # the model is as it was


@pytest.mark.parametrize(
    ("nodes", "collective", "nbytes", "launch", "largest"),
    [
        (1, "all_gather", 8, "one_process", "launch by the host"),
        (1, "all_reduce", 8, "process_per_gpu", "hops inside a node"),
        (1, "all_reduce", 8 << 30, "process_per_gpu", "bytes over links of a node"),
        (16, "all_reduce", 8, "process_per_gpu", "hops between nodes"),
        (16, "all_to_all", 8 << 30, "process_per_gpu", "bytes between nodes"),
    ],
)
def test_what_holds_a_size_back(nodes: int, collective: str, nbytes: int, launch: str, largest: str) -> None:
    preset = "hgx-h100" if nodes == 1 else "hgx-h100-ndr400"
    assert next(iter(time_parts(predictor(preset, nodes, launch=launch), collective, nbytes))) == largest


def test_a_part_is_what_the_time_falls_by_without_it() -> None:
    model = predictor("hgx-h100", 1)
    whole, parts = model.predict("all_reduce", 8).time_s, time_parts(model, "all_reduce", 8)
    base = model.parameters.base
    free = base.model_copy(update=dict.fromkeys(type(base).model_fields, 0.0))
    model.parameters = model.parameters.model_copy(update={"base": free, "channel_cost": 0.0})
    gone = whole - model.predict("all_reduce", 8).time_s
    assert parts["start and end of the kernel"] == pytest.approx(gone, rel=0.05)


def test_none_are_told_where_they_do_not_add_up() -> None:
    """A tree of 64 nodes, in which a little more time puts messages in another order."""
    model = predictor("hgx-h100-ndr400", 64)
    model.options = replace(model.options, tree_pieces=4)
    whole = {n: model.predict("all_reduce", n).time_s for n in (1 << 21, 1 << 22, 1 << 23)}
    for nbytes, seconds in whole.items():
        parts = time_parts(model, "all_reduce", nbytes)
        assert not parts or sum(parts.values()) == pytest.approx(seconds, rel=0.05)
