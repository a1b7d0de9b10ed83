"""Which kernel runs, by the rules of the frameworks' sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from commsim.errors import ScenarioError
from commsim.kernels.choice import FRAMEWORKS, RULE_RELEASES, Framework, KernelCall, choose
from commsim.kernels.costs import KERNELS
from commsim.kernels.device import kernel_device
from commsim.scenario import setting
from commsim.training.accelerator import accelerator

KIB, MIB = 1024, 1024 * 1024


def kernel(framework: Framework, release: str, gpu: str, ranks: int, nbytes: int, **more: Any) -> str:
    numbers = tuple(map(int, release.split(".")))
    device = kernel_device(accelerator(gpu))
    return choose(KernelCall(framework, (numbers[0], numbers[1], numbers[2]), device, ranks, nbytes, **more)).kernel


@pytest.mark.parametrize(
    ("gpu", "ranks", "nbytes", "expected"),
    [
        # csrc/custom_all_reduce.cuh: one shot on two; below 512 KiB on four, below 256 KiB on six and eight
        ("A100", 2, 4 * MIB, "peer.one_shot"),
        ("A100", 4, 512 * KIB - 16, "peer.one_shot"),
        ("A100", 4, 512 * KIB, "peer.two_shot"),
        ("A100", 6, 256 * KIB, "peer.two_shot"),
        ("A100", 8, 256 * KIB - 16, "peer.one_shot"),
        ("A100", 8, 8 * MIB - 16, "peer.two_shot"),
        ("A100", 8, 8 * MIB, "nccl"),
        ("A100", 3, 4096, "nccl"),
        ("A100", 2, 24, "nccl"),  # no multiple of 16 B
        # all_reduce_utils.py: symmetric memory from there on, multicast on six and eight GPUs, of Hopper on four, too
        ("H100", 8, 128 * KIB, "peer.one_shot"),
        ("H100", 8, 256 * KIB, "symmetric.multimem"),
        ("H100", 8, 64 * MIB, "symmetric.multimem"),
        ("H100", 8, 64 * MIB + 16, "nccl"),
        ("H100", 4, 8 * MIB, "symmetric.multimem"),
        ("H100", 2, 8 * MIB, "symmetric.two_shot"),
        ("B200", 4, 2 * MIB - 16, "peer.two_shot"),
        ("B200", 4, 2 * MIB, "symmetric.two_shot"),
        ("B200", 8, 1 * MIB, "symmetric.multimem"),
        ("B300", 2, 4 * MIB - 16, "peer.one_shot"),
        ("GB200", 8, 4096, "nccl"),  # two trays
    ],
)
def test_vllm(gpu: str, ranks: int, nbytes: int, expected: str) -> None:
    assert kernel("vllm", "0.24.0", gpu, ranks, nbytes) == expected


def test_vllm_needs_multicast_and_bfloat16_for_symmetric_memory() -> None:
    assert kernel("vllm", "0.24.0", "H100", 8, 4 * MIB, multicast=False) == "peer.two_shot"
    assert kernel("vllm", "0.24.0", "H100", 8, 8 * MIB, multicast=False) == "nccl"
    assert kernel("vllm", "0.24.0", "H100", 8, 4 * MIB, dtype="float16") == "nccl"
    assert kernel("vllm", "0.24.0", "H100", 8, 128 * KIB, dtype="float16") == "peer.one_shot"


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float64", "float8_e4m3"])
def test_types_that_no_kernel_is_compiled_for_are_nccl_s(framework: Framework, dtype: str) -> None:
    call = KernelCall(framework, RULE_RELEASES[framework][1], kernel_device(accelerator("H100")), 8, 4096)
    assert all(choose(replace(call, dtype=of)).kernel != "nccl" for of in ("bfloat16", "float16", "float32"))
    choice = choose(replace(call, dtype=dtype))
    assert choice.kernel == "nccl"
    assert choice.why == f"its kernels are for bfloat16, float16 and float32, not {dtype}"


def test_sizes_in_words_are_whole_units_or_bytes() -> None:
    call = KernelCall("tensorrt_llm", (1, 0, 0), kernel_device(accelerator("A100")), 8, 2 * MIB)
    assert choose(call).why == "above the kernels' 1 MiB"
    assert choose(replace(call, release=(1, 3, 0), nbytes=8 * MIB)).why == "above the kernels' 8 MB"


def test_vllm_takes_the_largest_size_of_symmetric_memory_since_it_compares_so() -> None:
    assert kernel("vllm", "0.19.0", "H100", 8, 64 * MIB) == "nccl"
    assert kernel("vllm", "0.19.0", "H100", 8, 64 * MIB - 16) == "symmetric.multimem"


@pytest.mark.parametrize(
    ("release", "gpu", "ranks", "nbytes", "expected"),
    [
        ("0.5.10", "H100", 8, 8 * MIB, "peer.two_shot"),
        ("0.5.10", "H100", 8, 8 * MIB + 16, "nccl"),
        ("0.5.10", "H100", 5, 4096, "nccl"),
        # custom_all_reduce_v2.py
        ("0.5.14", "H100", 5, 4096, "push.one_shot"),
        ("0.5.14", "H100", 8, 160 * KIB, "push.one_shot"),
        ("0.5.14", "H100", 8, 160 * KIB + 16, "pull.two_shot"),
        ("0.5.14", "H100", 2, 4 * MIB, "pull.one_shot"),
        ("0.5.14", "B200", 8, 720 * KIB, "push.one_shot"),
        ("0.5.14", "B200", 4, 16 * MIB, "pull.two_shot"),
        ("0.5.14", "B200", 4, 16 * MIB + 16, "nccl"),
    ],
)
def test_sglang(release: str, gpu: str, ranks: int, nbytes: int, expected: str) -> None:
    assert kernel("sglang", release, gpu, ranks, nbytes) == expected


@pytest.mark.parametrize(
    ("release", "gpu", "ranks", "nbytes", "expected"),
    [
        # customAllReduceUtils.h: elements from which two shots are taken, bytes of the workspace
        ("1.3.0", "H100", 2, 8 * MIB, "lamport.one_shot"),
        ("1.3.0", "H100", 2, 16_000_000, "lamport.one_shot"),
        ("1.3.0", "H100", 2, 16 * MIB, "nccl"),
        ("1.3.0", "H100", 4, 1024 * 1024 * 2, "lamport.two_shot"),
        ("1.3.0", "H100", 4, 1024 * 1024 * 2 - 16, "lamport.one_shot"),
        ("1.3.0", "H100", 8, 512 * 512 * 2, "lamport.two_shot"),
        ("1.3.0", "H100", 8, 8 * MIB, "nccl"),  # above 8 MB
        ("1.3.0", "B200", 4, 1024 * 2048 * 2, "lamport.two_shot"),
        ("1.3.0", "B200", 8, 1024 * 1024 * 2 - 16, "lamport.one_shot"),
        ("1.3.0", "B200", 6, 4096, "nccl"),
        ("1.2.0", "H100", 4, 64 * KIB, "lamport.two_shot"),
        # allreduceOp.cpp: over several trays of a rack, 512 KiB of all ranks together
        ("1.3.0", "GB200", 8, 64 * KIB, "multicast.one_shot"),
        ("1.3.0", "GB200", 8, 64 * KIB + 16, "multicast.two_shot"),
        ("1.3.0", "B200", 16, 4096, "nccl"),
    ],
)
def test_tensorrt_llm(release: str, gpu: str, ranks: int, nbytes: int, expected: str) -> None:
    assert kernel("tensorrt_llm", release, gpu, ranks, nbytes) == expected


def test_every_kernel_that_a_rule_names_has_costs() -> None:
    sizes = [16 << k for k in range(24)]
    taken = {
        kernel(framework, ".".join(map(str, release)), gpu, ranks, nbytes)
        for framework in FRAMEWORKS
        for release in RULE_RELEASES[framework]
        for gpu in ("A100", "H100", "B200", "GB200")
        for ranks in (2, 4, 8)
        for nbytes in sizes
    }
    assert taken == {*KERNELS, "nccl"}


def test_a_scenario_knows_the_same_frameworks() -> None:
    assert get_args(setting.Framework) == FRAMEWORKS


def test_gpus_without_rows_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"GPUs of ampere, hopper, blackwell: .* is ada"):
        kernel_device(accelerator("L40S"))
    with pytest.raises(ScenarioError, match="has no NVLink"):
        kernel_device(replace(accelerator("H100"), nvlink_bytes_per_s=0.0))


def test_clocks_are_those_of_the_datasheets() -> None:
    clocks = {gpu: round(kernel_device(accelerator(gpu)).clock_hz / 1e6) for gpu in ("A100", "H100", "B200")}
    assert clocks == {"A100": 1411, "H100": 1983, "B200": 2111}  # MHz at boost: 1410, 1980
