"""Seconds of kernels: sums by hand, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from commsim.kernels.choice import KernelCall
from commsim.kernels.costs import KERNELS, LATENCIES, PEER_WAVE, TWO_DIES, copies, joined, seconds, wait_seconds
from commsim.kernels.device import KernelDevice, kernel_device
from commsim.kernels.predict import beyond_rules, host_seconds, kernel_parameters, kernel_time, kernel_values
from commsim.training.accelerator import accelerator

MIB = 1024 * 1024
H100, B200, A100 = (kernel_device(accelerator(name)) for name in ("H100", "B200", "A100"))
ONES = {p.name: 1.0 for p in kernel_parameters()}


def call(nbytes: int = MIB, device: KernelDevice = H100, ranks: int = 8) -> KernelCall:
    return KernelCall("vllm", (0, 24, 0), device, ranks, nbytes)


def test_every_cost_has_a_parameter_and_every_parameter_a_use() -> None:
    used = {name for costs in KERNELS.values() for name in costs(H100, 4, 2.0 * PEER_WAVE)} | {*copies(H100, 1.0, 1.0)}
    other = {TWO_DIES, "host.call", "host.push", "host.amd", "host.arm", "band.low", "band.high"}
    assert used | other == {p.name for p in kernel_parameters()}
    assert used >= LATENCIES
    assert all(len(p.source) > 20 and p.start > 0 and p.value > 0 for p in kernel_parameters())


def test_a_byte_is_loaded_from_every_peer_in_one_shot_and_a_share_of_it_twice_in_two() -> None:
    nbytes = 80_000.0  # within the first wave of loads
    assert KERNELS["peer.one_shot"](H100, 8, nbytes)["peer.wave"] == pytest.approx(7 * nbytes / 450e9)
    assert KERNELS["peer.two_shot"](H100, 8, nbytes)["peer.wave"] == pytest.approx(2 * 7 / 8 * nbytes / 450e9)
    assert KERNELS["push.one_shot"](H100, 8, nbytes)["push.bytes"] == pytest.approx(7 * nbytes / 450e9)
    assert KERNELS["symmetric.multimem"](H100, 8, nbytes)["symmetric.multimem_bytes"] == pytest.approx(
        9 / 8 * nbytes / 450e9
    )


def test_beyond_the_first_wave_36_sms_load_by_their_clock() -> None:
    costs = KERNELS["peer.one_shot"](A100, 4, PEER_WAVE + 36_000.0)
    assert costs["peer.wave"] == pytest.approx(3 * PEER_WAVE / 300e9)
    assert costs["peer.sm"] == pytest.approx(3 * 36_000 / 36 / 1.4106e9, rel=1e-3)


def test_latencies_count_in_clocks_and_are_longer_on_two_dies() -> None:
    v = ONES | {TWO_DIES: 2.0}
    assert wait_seconds({"peer.base": 3.0}, H100, v) == pytest.approx(3.0)
    assert wait_seconds({"peer.base": 3.0}, A100, v) == pytest.approx(3.0 * H100.clock_hz / A100.clock_hz)
    assert wait_seconds({"peer.base": 3.0}, B200, v) == pytest.approx(6.0 * H100.clock_hz / B200.clock_hz)
    assert seconds({"peer.base": 1.0, "peer.wave": 0.5}, H100, v) == pytest.approx(1.5)


def test_costs_of_two_things_add_up() -> None:
    assert joined({"a": 1.0, "b": 2.0}, {"b": 3.0}) == {"a": 1.0, "b": 5.0}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("device", [A100, H100, B200])
def test_more_bytes_take_longer_and_more_nvlink_less(kernel: str, device: KernelDevice) -> None:
    times = [kernel_time(call(1 << k, device), kernel, cuda_graph=True).time_s for k in range(4, 28)]
    assert all(a < b for a, b in pairwise(times))
    wide = replace(device, nvlink_bytes_per_s=2 * device.nvlink_bytes_per_s)
    faster = kernel_time(call(1 << 24, wide), kernel, cuda_graph=True).time_s
    assert 0.5 * times[20] < faster < times[20]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_stands_on_the_latency_of_its_machine_and_scales_with_it(kernel: str) -> None:
    v = kernel_values()
    doubled = {name: 2.0 * value if name != TWO_DIES else value for name, value in v.items()}
    one, two = (kernel_time(call(), kernel, cuda_graph=True, v=values).time_s for values in (v, doubled))
    assert two == pytest.approx(2.0 * one)


def test_from_python_the_longer_of_host_and_gpu_counts_and_both_where_somebody_waits() -> None:
    small, large = (kernel_time(call(n), "peer.two_shot", cuda_graph=False) for n in (4096, 64 * MIB))
    assert small.time_s == small.launch_s == host_seconds(call(), kernel_values()) > small.kernel_s
    assert large.time_s == large.kernel_s > large.launch_s
    waited = kernel_time(call(4096), "peer.two_shot", cuda_graph=False, single=True)
    assert waited.time_s == pytest.approx(waited.kernel_s + waited.launch_s)
    graph = kernel_time(call(4096), "peer.two_shot", cuda_graph=True, single=True)
    assert graph.launch_s == 0.0
    assert graph.kernel_s < small.kernel_s  # which copies into the registered buffer


def test_ncclcalls_from_python_hold_no_copy() -> None:
    time = kernel_time(call(), "nccl", cuda_graph=False, nccl_s=1e-3)
    assert time.time_s == time.kernel_s == 1e-3


def test_slower_hosts_take_longer_to_call() -> None:
    v = kernel_values()
    intel, amd = (host_seconds(call(device=device), v) for device in (H100, A100))
    assert amd == pytest.approx(v["host.amd"] * intel)
    newest = KernelCall("sglang", (0, 5, 14), H100, 8, 4096)
    assert host_seconds(newest, v) == v["host.push"]


@pytest.mark.parametrize(
    ("release", "words"), [((0, 24, 0), ""), ((0, 9, 1), "0.9.1 is older"), ((0, 30, 0), "0.30.0 is newer")]
)
def test_releases_that_were_not_measured_are_said_to_be(release: tuple[int, int, int], words: str) -> None:
    assert words in beyond_rules("vllm", release)
    assert bool(words) == bool(beyond_rules("vllm", release))
