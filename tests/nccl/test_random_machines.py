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


def test_sixty_small_machines_keep_the_laws() -> None:
    cases = small_cases(60)
    assert {seed: wrong for seed, case in cases if (wrong := hunt.faults_of(case))} == {}
    # The hunt has something to find: machines with faults, of several kinds, of every sort of collective.
    assert sum(bool(case.faults) and case.faulty is not None for _, case in cases) > 30
    assert sum(len(case.healthy.groups) > 1 for _, case in cases) > 5
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


@pytest.mark.parametrize("seed", [5284, 6370, 6380])
def test_machines_that_were_wrong_once(seed: int) -> None:
    """Scatters to slow nodes of many GPUs, under their bound; a ring over a torus that a slower link made quicker."""
    assert hunt.faults_of(hunt.draw(seed)) == []
