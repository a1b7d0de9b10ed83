"""What one device computes; the CPU of this machine, which is slow and shared, so only orders of magnitude."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commsim.measure import compute_rates as module
from commsim.measure.compute_rates import Rate, compute_rates, parameter_yaml, processor_yaml, rates_csv
from commsim.training.accelerator import read_processor
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
    assert float(rows[0]["per_second"]) == pytest.approx(2 * 128**3 / rates[0].seconds, rel=1e-3)


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
