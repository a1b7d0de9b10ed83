"""What ranks send and expect, beside the reference that the schedules are checked with."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import numpy as np
import patterns
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from commsim.collectives.execute import reference
from commsim.collectives.semantics import ITEM_BYTES
from commsim.measure.pattern import PERIOD, TORCH_TYPES, Pattern

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
    whole = [patterns.tile(pattern, pattern.base(rank), 0, ELEMENTS) for rank in range(n)]
    values, defined = reference(collective, np.stack([w.numpy() for w in whole]), root=root)
    for rank in range(n):
        expected = patterns.expected(pattern, rank)
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
    right = patterns.given(pattern, 0)
    assert pattern.wrong(1, right) == 0
    assert all(pattern.wrong(1, right.roll(shift)) > 1000 for shift in (1, 2, 4, 512, 1020, 1022, 2500))


def test_one_wrong_element_is_one() -> None:
    pattern = Pattern("all_reduce", 3, 100, torch.float32, "avg")
    received = patterns.tile(pattern, pattern.reduced(), 0, 100)
    received[17] += 0.1
    assert pattern.wrong(0, received) == 1


def test_types_have_the_sizes_of_torch() -> None:
    assert {name: torch.empty(0, dtype=dtype).element_size() for name, dtype in TORCH_TYPES.items()} == ITEM_BYTES


@pytest.mark.parametrize("name", TORCH_TYPES)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all_v", "reduce_scatter"])
def test_what_is_written_and_compared_in_chunks_is_the_whole(
    monkeypatch: pytest.MonkeyPatch, collective: str, name: str
) -> None:
    monkeypatch.setattr("commsim.measure.pattern.CHUNK_BYTES", 3000)  # below one period of 4 bytes, above one of 2
    pattern = Pattern(collective, 4, 16 * 700, TORCH_TYPES[name])
    expected = patterns.expected(pattern, 2)
    assert expected is not None
    given = patterns.given(pattern, 2)
    buffer = torch.zeros_like(given.view(torch.uint8)).view(given.dtype)
    pattern.fill(2, buffer)
    assert torch.equal(buffer.view(torch.uint8), given.view(torch.uint8))
    assert pattern.wrong(2, expected) == 0
    raw = expected.clone().view(torch.uint8)
    for element in (0, len(expected) // 2, len(expected) - 1):
        raw[element * expected.element_size() + expected.element_size() - 1] ^= 0x44
    assert pattern.wrong(2, raw.view(expected.dtype)) == 3


def test_a_copy_has_no_tolerance() -> None:
    pattern = Pattern("broadcast", 64, 5000, torch.float8_e5m2)
    received = patterns.given(pattern, 0)
    raw = received.view(torch.uint8)
    raw[17] += 1  # one step of the type, which a sum of 64 ranks would be forgiven
    assert pattern.wrong(1, received) == 1


def test_sums_of_whole_numbers_wrap_as_those_of_the_library() -> None:
    pattern = Pattern("all_reduce", 200, PERIOD, torch.int8)
    received = torch.stack([patterns.tile(pattern, pattern.base(r), 0, PERIOD) for r in range(200)]).sum(
        0, dtype=torch.int8
    )
    assert pattern.wrong(0, received) == 0


class _Held(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of living storages by device, while torch computes with them; answers 0 for numbers asked of
    the device `meta`, which holds no data."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "meta":
            return 0
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self._count(tensor)
        return out

    def _count(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key, kind, nbytes = storage._cdata, tensor.device.type, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now[kind] += nbytes
        self.most[kind] = max(self.most[kind], self.now[kind])

        def gone() -> None:
            self._known.discard(key)
            self.now[kind] -= nbytes

        weakref.finalize(storage, gone)


@pytest.mark.parametrize(
    ("redop", "dtype", "size"), [("sum", torch.float32, 8 << 30), ("avg", torch.bfloat16, 1 << 30)]
)
def test_a_check_of_8_gib_holds_a_few_chunks_on_the_device_and_nothing_of_the_host(
    redop: str, dtype: torch.dtype, size: int
) -> None:
    pattern = Pattern("all_reduce", 8, size // dtype.itemsize, dtype, redop)
    with _Held() as held:
        buffer = torch.empty(pattern.elements, dtype=dtype, device="meta")
        pattern.fill(0, buffer)
        assert pattern.wrong(0, buffer) == 0
    assert size <= held.most["meta"] <= size + (400 << 20)
    assert 0 < held.most["cpu"] <= 1 << 20


def test_a_check_takes_less_than_half_a_buffer() -> None:
    """What a copy in doubles of what is there and of what should be would take: four times a buffer of float32."""
    size = 64 << 20
    pattern = Pattern("all_reduce", 2, size // 4, torch.float32)
    received = patterns.tile(pattern, pattern.reduced(), 0, pattern.elements)
    with _Held() as held:
        assert pattern.wrong(0, received) == 0
    assert held.most["cpu"] - size < size / 2  # the buffer itself is counted as soon as it is looked at


def test_the_count_of_bytes_sees_a_copy() -> None:
    with _Held() as held:
        buffer = torch.empty(1 << 20, dtype=torch.uint8, device="meta")
        again = buffer.double()
        del again
        buffer.add(1)
    assert held.most["meta"] == 9 << 20
