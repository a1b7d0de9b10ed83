"""What one device computes; the CPU of this machine, which is slow and shared, so only orders of magnitude."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_gpus import FakeGpus

from commsim.measure import compute_rates as module
from commsim.measure.compute_rates import (
    Rate,
    compute_rates,
    parameter_yaml,
    processor_yaml,
    random_operand,
    rates_csv,
)
from commsim.training.accelerator import accelerator_of_board, read_processor
from commsim.training.parameters import read_values

RATES = [
    Rate("matmul", "8192x8192x8192", "bfloat16", 2.0 * 8192**3, 0.0016, 0.0016),
    Rate("attention", "2x32x4096x128", "bfloat16", 4e12, 0.01, 0.01),
    Rate("copy", "512", "uint8", 2e9, 0.001, 0.001),
    Rate("launch", "1000", "float32", 1000, 0.005, 0.005),
]


def test_rates_of_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS", ((128, 128, 128), (1, 1, 1)))
    monkeypatch.setattr(module, "ATTENTIONS", ((1, 2, 64, 16), (1, 1, 1, 1)))
    monkeypatch.setattr(module, "COPY_BYTES", (1 << 16, 1))
    rates = compute_rates(torch.device("cpu"), repeats=3)
    assert {r.kind for r in rates} == {"matmul", "attention", "attention_backward", "copy", "launch"}
    assert all(0 < r.least_s <= r.seconds < 10 for r in rates)
    rows = list(csv.DictReader(io.StringIO(rates_csv(rates))))
    assert [row["kind"] for row in rows] == [r.kind for r in rates]
    product = next(i for i, rate in enumerate(rates) if rate.kind == "matmul")
    assert float(rows[product]["per_second"]) == pytest.approx(2 * 128**3 / rates[product].seconds, rel=1e-3)


def test_a_shape_that_would_take_too_long_is_left_out_and_time_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS", ((64, 64, 64), (128, 128, 128), (1, 1, 1)))
    monkeypatch.setattr(module, "ATTENTIONS", ((1, 1, 1, 1),))
    monkeypatch.setattr(module, "COPY_BYTES", (1 << 16, 1))
    monkeypatch.setattr(module, "LONGEST_S", 0.0)
    shapes = [r.shape for r in compute_rates(torch.device("cpu"), repeats=1) if r.kind == "matmul"]
    assert set(shapes) == {"64x64x64"}  # the second one is longer than nothing
    assert len(compute_rates(torch.device("cpu"), repeats=1, until_s=0.0)) == 1


def test_the_training_model_reads_the_parameters(tmp_path: Path) -> None:
    text = parameter_yaml(RATES, "NVIDIA H100 80GB HBM3")
    assert text is not None
    (tmp_path / "compute.yaml").write_text(text)
    values = read_values(tmp_path / "compute.yaml")
    assert values["gemm.hopper"] == pytest.approx(2 * 8192**3 / 0.0016 / 989.4e12, rel=0.01)
    assert values["host"] == pytest.approx(5e-6)


def test_an_unknown_gpu_has_no_shares() -> None:
    assert parameter_yaml(RATES, "Some Chip") is None


def test_a_rate_is_amount_over_seconds() -> None:
    assert replace(RATES[2], seconds=0.5).per_second == 4e9


def test_a_processor_file_holds_the_best_product_and_the_largest_copy(tmp_path: Path) -> None:
    rates = [
        Rate("matmul", "512x512x512", "float32", 2e9, 0.02, 0.02),
        Rate("matmul", "1024x1024x1024", "float32", 2e9, 0.01, 0.01),
        Rate("matmul", "512x512x512", "bfloat16", 2e9, 0.04, 0.04),
        Rate("copy", "1048576", "uint8", 2e6, 1e-4, 1e-4),
        Rate("copy", "67108864", "uint8", 2e8, 2e-2, 2e-2),
    ]
    (tmp_path / "processor.yaml").write_text(processor_yaml(rates, "Some CPU: 2 GHz #1", 8 << 30, 1))
    found = read_processor(tmp_path / "processor.yaml", processes=4, cores=8)
    assert (found.name, found.peak("fp32"), found.peak("bf16")) == ("Some CPU: 2 GHz #1", 2e11, 5e10)
    assert (found.memory_bytes_per_s, found.memory_bytes) == (1e10, 2 << 30)


def test_operands_are_no_equal_numbers() -> None:
    """A tensor core of an H100 takes less power for them, and clocks higher."""
    values = random_operand((64, 64), torch.bfloat16, torch.device("cpu"))
    assert values.float().std() == pytest.approx(1, rel=0.1)
    assert len(values.unique()) > 500
    assert torch.equal(values, random_operand((64, 64), torch.bfloat16, torch.device("cpu")))


def test_every_product_multiplies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS", ((16, 16, 16), (1, 1, 1)))
    monkeypatch.setattr(module, "ATTENTIONS", ((1, 1, 16, 8), (1, 1, 1, 1)))
    monkeypatch.setattr(module, "COPY_BYTES", (1 << 10, 1))
    factors: list[torch.Tensor] = []
    multiply = torch.mm

    def mm(a: torch.Tensor, b: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:
        factors.extend((a, b))
        return multiply(a, b, **rest)

    monkeypatch.setattr(torch, "mm", mm)
    compute_rates(torch.device("cpu"), repeats=1)
    assert factors
    assert all(factor.float().std() > 0.5 for factor in factors)


@pytest.mark.parametrize(
    ("gpu", "memory_gib", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", 79.2, "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", 93.1, "H100-NVL-94GB"),
        ("NVIDIA H200", 139.8, "H200-SXM5-141GB"),
        ("NVIDIA H200 NVL", 139.8, None),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100-SXM4-80GB"),
        ("NVIDIA A100-PCIE-40GB", 39.4, "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", 79.2, "A100-PCIe-80GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4.75, None),
        ("Tesla V100-SXM2-16GB", 15.8, "V100-SXM2-16GB"),
        ("Tesla V100-SXM2-32GB", 31.7, "V100-SXM2-32GB"),
        ("NVIDIA GH200 480GB", 95.0, "GH200-96GB"),
        ("NVIDIA B200", 178.4, "B200-SXM-180GB"),
        ("NVIDIA L40S", 44.4, "L40S-48GB"),
        ("NVIDIA GeForce RTX 4090", 23.6, "RTX-4090-24GB"),
        ("NVIDIA T1000", 4.0, None),
    ],
)
def test_boards_are_told_apart(gpu: str, memory_gib: float, preset: str | None) -> None:
    """By the names that drivers give them (nvidia-smi), and their memory."""
    board = accelerator_of_board(gpu, round(memory_gib * 2**30))
    assert (board.name if board else None) == preset


def test_a_pcie_board_has_shares_of_its_own_peak() -> None:
    text = parameter_yaml(RATES, "NVIDIA H100 PCIe", 79 << 30)
    assert text is not None
    assert "H100-PCIe-80GB" in text
    share = float(text.split("gemm.hopper: ")[1].split()[0])
    assert share == pytest.approx(2 * 8192**3 / 0.0016 / 756e12, rel=0.01)


def test_a_v100_is_rated_in_its_own_type(tmp_path: Path) -> None:
    """It has no units for bfloat16: nothing is measured in it, and shares are of float16."""
    half = [replace(rate, dtype="float16" if rate.dtype == "bfloat16" else rate.dtype) for rate in RATES]
    text = parameter_yaml(half, "Tesla V100-SXM2-16GB", 16 << 30)
    assert text is not None
    (tmp_path / "compute.yaml").write_text(text)
    assert read_values(tmp_path / "compute.yaml")["gemm.volta"] == pytest.approx(
        2 * 8192**3 / 0.0016 / 125e12, rel=0.01
    )
    assert [name for name, _, _ in module._types(FakeGpus(1, sm=70), 0)] == ["float32", "float16"]
    assert [name for name, _, _ in module._types(FakeGpus(1, sm=90), 0)] == ["float32", "bfloat16", "float16", "tf32"]


def test_a_board_is_told_by_its_name_alone() -> None:
    """The PCIe board of the H100 has a peak of 756 TFLOP/s (datasheet), the module 989."""
    shares = [
        float(text.split("gemm.hopper: ")[1].split()[0])
        for text in (parameter_yaml(RATES, "NVIDIA H100 PCIe"), parameter_yaml(RATES, "NVIDIA H100 80GB HBM3"))
        if text is not None
    ]
    assert shares[0] / shares[1] == pytest.approx(989 / 756, rel=0.01)


def test_a_v100_does_not_fail_after_the_measurement() -> None:
    """It has no bfloat16; the name alone says which board it is."""
    measured = [*RATES, *(replace(rate, dtype="float16") for rate in RATES if rate.dtype == "bfloat16")]
    text = parameter_yaml(measured, "Tesla V100-SXM2-16GB")
    assert text is not None
    assert "gemm.volta: " in text
