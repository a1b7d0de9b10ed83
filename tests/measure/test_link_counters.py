"""Bytes by NVLink and by adapters, as NVML and the kernel count them, and where nothing may be said."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpus import FakeGpus, FakeNvml, adapter

from commsim.collectives.registry import build
from commsim.measure.timing import sent_per_call
from commsim.measure.traffic import Bytes, Counters, adapter_bytes, expected_sent, nvlink_bytes

ALL = 0xFFFFFFFF


def test_nvlink_is_counted_in_kib_on_the_gpu_of_the_rank() -> None:
    """NVML numbers all GPUs of the machine, whatever CUDA_VISIBLE_DEVICES leaves out: by UUID there is no doubt."""
    nvml = FakeNvml({("GPU-1", 138, ALL): 5, ("GPU-1", 139, ALL): 7, ("GPU-0", 138, ALL): 0, ("GPU-0", 139, ALL): 0})
    assert nvlink_bytes(FakeGpus(2, nvml), 1) == Bytes(5120, 7168, grain=1024)


def test_nvlink_5_is_counted_link_by_link() -> None:
    nvml = FakeNvml({("GPU-0", field, link): field + link for field in (202, 204) for link in range(18)})
    assert nvlink_bytes(FakeGpus(1, nvml), 0) == Bytes(18 * 202 + 153, 18 * 204 + 153)


def test_no_nvml_and_no_nvlink_is_no_count() -> None:
    assert nvlink_bytes(FakeGpus(1), 0) is None
    assert nvlink_bytes(FakeGpus(1, FakeNvml({})), 0) is None


def test_adapters_count_words_of_four_bytes(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", 100, 50)
    adapter(tmp_path, "mlx5_1", 1, 2)
    adapter(tmp_path, "mlx5_2", 9, 9, state="1: DOWN")
    assert adapter_bytes(tmp_path) == Bytes(404, 208)
    adapter(tmp_path, "mlx5_0", 0xFFFFFFFF, 50)  # 32 bits, stuck
    assert adapter_bytes(tmp_path) is None


def nvlinked(kib: int = 0) -> FakeNvml:
    return FakeNvml({(f"GPU-{i}", field, ALL): kib for i in range(8) for field in (138, 139)})


@pytest.mark.parametrize(
    ("hosts", "nvml", "has_adapter", "env", "ways"),
    [
        ("aa", nvlinked(), True, {}, ["nvlink"]),
        ("aa", None, True, {}, []),  # PCIe, or the host's memory
        ("aabb", nvlinked(), True, {}, ["nvlink", "adapters", "sockets"]),
        ("aabb", nvlinked(), False, {}, ["nvlink", "sockets"]),
        ("aabb", nvlinked(), True, {"NCCL_NET": "Socket"}, ["nvlink", "sockets"]),
        ("aabb", nvlinked(), True, {"NCCL_IB_DISABLE": "1"}, ["nvlink", "sockets"]),
        ("aabb", None, True, {}, []),  # half of it is not counted
        ("ab", None, True, {}, ["adapters", "sockets"]),
        ("aa", None, False, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, ["sockets"]),
    ],
)
def test_what_is_told_is_counted_whole(
    tmp_path: Path, hosts: str, nvml: FakeNvml | None, has_adapter: bool, env: dict[str, str], ways: list[str]
) -> None:
    if has_adapter:
        adapter(tmp_path, "mlx5_0", 0, 0)
    counters = Counters(FakeGpus(2, nvml, tmp_path), 0, list(hosts), 0, env, 29500)
    assert counters.ways == ways
    assert (counters() is None) == (not ways)


def test_an_adapter_that_does_not_count_in_words_leaves_it_open(tmp_path: Path) -> None:
    (tmp_path / "class/infiniband/rdmap0s6/ports/1").mkdir(parents=True)  # EFA's has counters of its own
    (tmp_path / "class/infiniband/rdmap0s6/ports/1/state").write_text("4: ACTIVE\n")
    assert Counters(FakeGpus(1, None, tmp_path), 0, ["a", "b"], 0, {}, 29500).ways == []


def test_a_ring_over_two_hosts_is_seen_whole(tmp_path: Path) -> None:
    """Four ranks on two hosts send 3/2 S each: two of the four links of the ring are between the hosts."""
    size, calls, (n, here) = 1 << 20, 10, (4, 2)
    each = 2 * (n - 1) * size // n
    nvml = nvlinked()
    adapter(tmp_path, "mlx5_0", 0, 0)
    gpus = FakeGpus(2, nvml, tmp_path)
    ranks = [Counters(gpus, rank, ["a", "a", "b", "b"], rank, {}, 29500) for rank in range(here)]
    before = [counters() for counters in ranks]
    nvml.counters["GPU-0", 138, ALL] = calls * each // 1024  # rank 0 to rank 1 by NVLink; rank 1 to the other host
    adapter(tmp_path, "mlx5_0", calls * each // 4, calls * each // 4)
    sent = [sent_per_call(b, b, counters(), calls, 0) for b, counters in zip(before, ranks, strict=True)]
    assert None not in sent
    assert sum(s for s in sent if s is not None) == 2 * each
    assert sent[0] == each + each / 2  # an equal share of the adapters


def test_a_count_as_coarse_as_what_it_counts_is_none() -> None:
    """Twenty calls of 1 KiB among kibibytes: one more or less would be 5 %."""
    zero = Bytes(grain=1024)
    assert sent_per_call(zero, zero, Bytes(20 * 1024, 0, 1024), 20, 1) is None
    assert sent_per_call(zero, zero, Bytes(200 * 1024, 0, 1024), 20, 1) == 10 * 1024
    assert sent_per_call(Bytes(), Bytes(), Bytes(20), 20, 1) == 1


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_expected_bytes_are_those_of_the_schedule(collective: str, n: int) -> None:
    size = 840 * 64
    name = "direct" if collective == "all_to_all" else "ring"
    sent = build(collective, name, n, size).sent_bytes().tolist()
    assert [expected_sent(collective, size, rank, n) for rank in range(n)] == pytest.approx(sent)


def test_expected_bytes_with_a_root() -> None:
    assert [expected_sent("gather", 400, rank, 4, 1) for rank in range(4)] == [100, 0, 100, 100]
    assert [expected_sent("scatter", 400, rank, 4, 1) for rank in range(4)] == [0, 300, 0, 0]
    assert expected_sent("broadcast", 400, 0, 4) is None  # as the ring lies
    assert expected_sent("all_reduce", 400, 0, 1) == 0
