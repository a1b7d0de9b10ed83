"""No random machine is quicker than its bound, nor with a fault than without: `nccl.random_machines` hunts for one."""

from __future__ import annotations

from importlib import import_module
from itertools import count, islice
from typing import Any

import pytest

hunt = import_module("nccl.random_machines")  # by its place under tests/, as the command has it

_FEW = 12
"""Ranks of the machines of the quick hunt."""


def small_cases(number: int) -> list[tuple[int, Any]]:
    """The first seeds whose machines have few ranks, and their cases."""
    cases = ((seed, hunt.draw(seed)) for seed in count())
    return list(islice(((seed, case) for seed, case in cases if case.healthy.world_size <= _FEW), number))


@pytest.mark.slow
def test_sixty_small_machines_keep_the_laws() -> None:
    cases = small_cases(60)
    assert {seed: wrong for seed, case in cases if (wrong := hunt.faults_of(case))} == {}
    # The hunt has something to find: machines with faults, of several kinds, of every sort of collective.
    assert sum(bool(case.faults) and case.faulty is not None for _, case in cases) > 30
    assert sum(len(case.healthy.groups) > 1 for _, case in cases) > 5
    assert sum(case.ranks is not None for _, case in cases) > 5
    assert len({case.collective for _, case in cases}) == 9


@pytest.mark.slow
def test_more_machines_keep_the_laws() -> None:
    assert {seed: wrong for seed in range(50) if (wrong := hunt.faults_of(hunt.draw(seed)))} == {}


def test_the_same_seed_gives_the_same_machine_and_the_same_time() -> None:
    for seed in (3, 11):
        one, other = hunt.draw(seed), hunt.draw(seed)
        assert (one.spec, one.faults, one.collective, one.nbytes) == (
            other.spec,
            other.faults,
            other.collective,
            other.nbytes,
        )
        models = [hunt.model_of(case, case.healthy) for case in (one, other)]
        assert models[0].predict(one.collective, one.nbytes) == models[1].predict(one.collective, one.nbytes)
        assert hunt.chosen(models[0]) == hunt.chosen(models[1])


_ROUTERS = {"kind": "torus", "network": "roce", "dimensions": 2, "link_bandwidth": "50 GB/s"}
_WRONG_ONCE: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]], tuple[int, ...], str, int]] = {
    "a scatter to slow nodes of many GPUs": (
        [
            {"preset": "hgx-b200-ndr400", "nodes": 5, "gpus_per_node": 2},
            {"preset": "hgx-h100-ndr400", "nodes": 5, "gpus_per_node": 2},
            {"preset": "dgx-1v-edr100", "nodes": 5},
        ],
        {"kind": "dragonfly", "network": "roce", "nodes_per_leaf": 2, "leaves_per_group": 2},
        [
            {"link": ("node11.gpu0", "node11.pcie0"), "bandwidth_factor": 0.1},
            {"switch": "group3.switch1", "bandwidth_factor": 0.01},
            {"link": ("node4.pcie0", "node4.nic0"), "bandwidth_factor": 0.1},
        ],
        (2, 21, 5),
        "scatter",
        64 << 20,
    ),
    "the same beside dead NICs": (
        [{"preset": "hgx-h100-4-ndr400", "nodes": 4, "gpus_per_node": 2}, {"preset": "dgx-1v-edr100", "nodes": 5}],
        _ROUTERS,
        [
            {"switch": "router1.1", "bandwidth_factor": 0.1},
            {"link": ("node3.cpu1", "node3.nic2"), "failed": True},
            {"nic": (2, 0), "failed": True},
            {"nic": (5, 2), "failed": True},
        ],
        (2, 21, 5),
        "scatter",
        64 << 20,
    ),
    "a broadcast by seven of eight slow NICs": (
        [{"preset": "dgx-a100-hdr200", "nodes": 5}],
        {"kind": "single_switch", "network": "roce"},
        [
            {"link": ("node0.pcie1", "node0.gpu3"), "failed": True},
            {"link": ("switch", "node1.nic7"), "bandwidth_factor": 0.01},
            {"node": 1, "bandwidth_factor": 0.1},
        ],
        (2, 23, 4),
        "broadcast",
        4 << 30,
    ),
    "a ring over a torus that a slower link made quicker": (
        [{"preset": "gh200x4-ndr200", "nodes": 3, "gpus_per_node": 1}],
        _ROUTERS,
        [{"link": ("router1.0", "router0.0"), "bandwidth_factor": 0.9}],
        (2, 23, 4),
        "reduce_scatter",
        32 << 20,
    ),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] if "GPUs" in what else []) for what in _WRONG_ONCE]
)
def test_machines_that_were_wrong_once(what: str) -> None:
    groups, fabric, faults, version, collective, nbytes = _WRONG_ONCE[what]
    assert hunt.faults_of(hunt.case_of({"groups": groups, "fabric": fabric}, faults, version, collective, nbytes)) == []
