"""What ranks send and expect, beside the reference that the schedules are checked with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from commsim.collectives.execute import reference
from commsim.measure.pattern import PERIOD, TORCH_TYPES, Pattern
from commsim.measure.run import ITEM_BYTES

ELEMENTS = 2448  # more than two periods, divisible by 1..4 squared


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "collective",
    [
        "all_reduce", "reduce", "reduce_scatter", "broadcast", "scatter", "all_gather", "gather", "all_to_all",
        "all_to_all_v", "send_recv",
    ],
)  # fmt: skip
def test_expected_is_the_reference(collective: str, n: int) -> None:
    root = n - 1 if collective in ("reduce", "broadcast", "scatter", "gather") else 0
    pattern = Pattern(collective, n, ELEMENTS, torch.int32, root=root)
    whole = [pattern.tile(pattern.base(rank), 0, ELEMENTS) for rank in range(n)]
    values, defined = reference(collective, np.stack([w.numpy() for w in whole]), root=root)
    for rank in range(n):
        expected = pattern.expected(rank)
        wanted = values[rank][defined[rank]]
        assert (np.array([]) if expected is None else expected.numpy()).tolist() == wanted.tolist()


@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("name", [n for n in TORCH_TYPES if "uint32" not in n and "uint64" not in n])
def test_reductions_are_exact_in_every_type(name: str, redop: str) -> None:
    dtype = TORCH_TYPES[name]
    pattern = Pattern("all_reduce", 8, PERIOD, dtype, redop)
    exact = pattern.reduced()
    if not dtype.is_floating_point and redop == "avg":
        return
    assert torch.equal(exact.to(dtype).double(), exact) or redop == "avg"


def test_a_shift_is_seen() -> None:
    pattern = Pattern("broadcast", 2, 5000, torch.float32)
    right = pattern.input(0)
    assert pattern.wrong(1, right) == 0
    assert all(pattern.wrong(1, right.roll(shift)) > 1000 for shift in (1, 2, 4, 512, 1020, 1022, 2500))


def test_one_wrong_element_is_one() -> None:
    pattern = Pattern("all_reduce", 3, 100, torch.float32, "avg")
    received = pattern.tile(pattern.reduced(), 0, 100)
    received[17] += 0.1
    assert pattern.wrong(0, received) == 1


def test_types_have_the_sizes_of_torch() -> None:
    assert {name: torch.empty(0, dtype=dtype).element_size() for name, dtype in TORCH_TYPES.items()} == ITEM_BYTES
