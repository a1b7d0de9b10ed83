"""On a real GPU: what the rehearsal stands for. Each test needs a CUDA GPU and libnccl, and runs where they are."""

from __future__ import annotations

import csv
import ctypes
import os
from pathlib import Path

import patterns
import pytest
import torch
from ranks import measure

from commsim.measure.gpu import Gpus
from commsim.measure.libnccl import Nccl
from commsim.measure.pattern import TORCH_TYPES, Pattern

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif("COMMSIM_GPU_LAYER" in os.environ, reason="another layer is named"),
]

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather",
    "scatter", "send_recv",
)  # fmt: skip


def _scenario(folder: Path, ranks: int, sizes: str = "1 KiB .. 4 MiB x64") -> Path:
    work = "\n".join(f"  - {{collective: {name}, sizes: {sizes}}}" for name in COLLECTIVES)
    path = folder / "all.yaml"
    path.write_text(
        f"name: all\ntopology: {{preset: loopback, gpus_per_node: {ranks}}}\nlibrary: nccl\nworkload:\n{work}\n"
    )
    return path


@pytest.mark.parametrize("options", [(), ("--graph", "2"), ("--register", "window"), ("--register", "buffer")])
def test_every_collective_of_nccl_is_right(tmp_path: Path, options: tuple[str, ...]) -> None:
    ranks = torch.cuda.device_count()
    scenario, out = _scenario(tmp_path, ranks), tmp_path / "out"
    status, said, fault = measure(
        str(scenario), "--backend", "nccl", "-n", str(ranks), "--out", str(out), *options, timeout=600
    )
    assert status == 0, said + fault
    with (out / "measured.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["collective"] for row in rows} == set(COLLECTIVES)
    assert {row["oop_wrong"] for row in rows} == {"0"}
    assert {row["ip_wrong"] for row in rows} <= {"0", ""}
    assert all(0 < float(row["oop_time_us"]) < 1e6 for row in rows)


@pytest.mark.parametrize("name", TORCH_TYPES)
def test_what_is_written_on_the_gpu_is_what_is_written_on_the_host(name: str) -> None:
    pattern = Pattern("all_reduce", 8, 100_003, TORCH_TYPES[name])
    there = torch.zeros(100_003 * pattern.dtype.itemsize, dtype=torch.uint8, device="cuda").view(pattern.dtype)
    pattern.fill(3, there)
    assert torch.equal(there.cpu().view(torch.uint8), patterns.given(pattern, 3).view(torch.uint8))
    expected = patterns.expected(pattern, 3)
    assert expected is not None
    right = expected.view(torch.uint8).cuda().view(pattern.dtype)
    assert pattern.wrong(3, right) == 0
    right.view(torch.uint8)[17] ^= 0x44
    assert pattern.wrong(3, right) == 1


def test_memory_of_nccl_is_seen_by_torch_and_a_graph_replays_its_calls() -> None:
    layer = Gpus()
    layer.use(0)
    nccl = Nccl(layer.nccl())
    assert nccl.version == layer.nccl_version()
    communicator, stream = nccl.join(nccl.unique_id(), 0, 1), layer.stream()
    pointer = nccl.allocate(8192)
    bytes_there = layer.tensor_at(pointer, 8192, layer.torch_device(0))
    assert bytes_there.data_ptr() == pointer
    numbers = bytes_there.view(torch.float32)
    numbers.zero_()
    numbers[:1024] = 2.0
    layer.synchronize()
    launch = stream.capture(
        lambda: nccl.call("ncclAllReduce", pointer, pointer + 4096, 1024, 7, 0, communicator, stream.pointer)
    )
    assert numbers.sum().item() == 2048  # captured, not done
    launch()
    while not stream.finished():
        assert nccl.async_error(communicator) is None
    assert numbers.sum().item() == 4096  # the sum over one rank is a copy
    del numbers, bytes_there
    nccl.free(pointer)
    nccl.call("ncclCommDestroy", communicator)


def test_a_gpu_says_who_it_is_and_what_it_has() -> None:
    layer = Gpus()
    layer.use(0)
    said = layer.properties(0)
    free, total = layer.memory()
    assert said.sm >= 50
    assert said.name
    assert 0 < free <= total == pytest.approx(said.memory_bytes, rel=0.1)
    nvml = layer.nvml()
    if nvml is not None:
        handle = layer.nvml_handle(0)
        assert handle is not None
        name = nvml.nvmlDeviceGetName(handle)
        assert said.name in (name if isinstance(name, str) else name.decode())


def test_the_pointer_of_a_stream_is_one_of_cuda() -> None:
    stream = Gpus().stream()
    query = ctypes.CDLL("libcuda.so.1").cuStreamQuery
    query.argtypes, query.restype = (ctypes.c_void_p,), ctypes.c_int
    assert query(stream.pointer) == 0  # CUDA_SUCCESS: nothing waits there
    assert stream.finished()
