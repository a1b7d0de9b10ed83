"""What one device computes; the CPU of this machine, which is slow and shared, so only orders of magnitude."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commsim.measure import compute_rates as module
from commsim.measure.compute_rates import Rate, compute_rates, parameter_yaml, rates_csv
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
