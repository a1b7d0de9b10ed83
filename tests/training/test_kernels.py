"""Single kernels by their shape: by hand, laws, and those that were measured one by one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.training.kernels import (
    AttentionTerms,
    ProductTerms,
    Throughput,
    attention_seconds,
    product_seconds,
)
from commsim.training.operators import Attention, Gemm

GPU = Throughput(1e15, 1e30, 132)
PLAIN = ProductTerms(side=64.0, overhead=0.0)


@pytest.mark.parametrize(("rows", "cols", "speed"), [(256, 128, 1), (128, 128, 1), (64, 64, 1 / 2)])
def test_a_product_of_as_many_tiles_as_multiprocessors_is_one_wave_of_them(rows: int, cols: int, speed: float) -> None:
    taken = product_seconds(Gemm("", 132.0 * rows, float(cols), 4096.0), 0.0, GPU, PLAIN)
    assert taken == pytest.approx(2.0 * 132 * rows * cols * 4096 / (1e15 * speed))


def test_one_row_more_opens_another_wave_of_which_a_tail_is_not_lost() -> None:
    g = Gemm("", 256.0 * 132 + 1, 128.0, 4096.0)
    wave = 2.0 * 132 * 256 * 128 * 4096 / 1e15
    half = wave / 2  # of tiles of 128 by 128: two waves and one of a single tile
    assert product_seconds(g, 0.0, GPU, PLAIN) == pytest.approx(3 * half)
    assert product_seconds(g, 0.0, GPU, replace(PLAIN, tail=1.0)) == pytest.approx(2 * half * 265 / 264)


def test_a_small_product_of_a_long_k_is_split_over_idle_multiprocessors() -> None:
    g = Gemm("", 64.0, 64.0, 66 * 1024.0)
    whole = product_seconds(g, 0.0, GPU, PLAIN)
    assert whole == pytest.approx(2 * 64 * 64 * 2 * 132 * g.k / 1e15)
    assert product_seconds(g, 0.0, GPU, replace(PLAIN, split=1e-6)) == pytest.approx(1e-6 + whole / 132)


def test_half_of_the_shorter_of_products_and_traffic_is_hidden() -> None:
    gpu = replace(GPU, bytes_per_s=1e12)
    wave = 2.0 * 132 * 256 * 128 * 4096 / 1e15
    taken = product_seconds(Gemm("", 132.0 * 256, 128.0, 4096.0), 1e12 * wave, gpu, replace(PLAIN, launch=1.0))
    assert taken == pytest.approx(1.0 + wave * 2**0.5)


def test_drawn_groups_waste_half_a_tile_each() -> None:
    g = Gemm("", 640.0, 128.0, 4096.0, groups=8, drawn=True)
    assert (g.row_tiles(256), g.row_tiles(64)) == (8 * 3.0, 8 * 10.5)
    assert replace(g, m=3.0).row_tiles(256) == 8
    assert replace(g, drawn=False).row_tiles(256) == 8 * 3


def test_attention_of_one_tile_is_its_keys() -> None:
    one = Attention(1.0, 128.0, 128.0, 64.5, 256.0, 0.0, 128.0)
    terms = AttentionTerms(softmax=1e-10, start=1e-6, launch=1e-3)
    key = 128 * (2 * 256 * 132 / 1e15 + 1e-10)
    work = (1e-6 + 128 * key) * (1 + 0.5) / 132  # a tile's share of all SMs is less than the tile
    assert attention_seconds(one, GPU, terms) == pytest.approx(1e-3 + max(work, 1e-6 + 128 * key))


PRODUCTS = st.builds(
    Gemm,
    st.just(""),
    *(st.integers(1, 20_000).map(float) for _ in range(3)),
    groups=st.integers(1, 64).map(float),
    drawn=st.booleans(),
)


@given(g=PRODUCTS, name=st.sampled_from(["m", "n", "k", "groups"]), tail=st.sampled_from([0.0, 0.5]))
def test_more_to_multiply_never_takes_less(g: Gemm, name: str, tail: float) -> None:
    terms = ProductTerms(50.0, 30.0, tail)
    less, more = (product_seconds(one, 0.0, GPU, terms) for one in (g, replace(g, **{name: getattr(g, name) + 1})))
    assert more >= less * (1 - 1e-9)


@given(g=PRODUCTS)
def test_no_product_is_faster_than_its_flops_or_its_bytes(g: Gemm) -> None:
    gpu = Throughput(1e15, 1e12, 132)
    taken = product_seconds(g, 1e9, gpu, ProductTerms(32.0, 0.0, 0.9, 0.0))
    assert taken >= max(2 * g.m * g.n * g.k * (1 if g.drawn else g.groups) / 1e15, 1e-3) * (1 - 1e-9)


def test_kernels_of_a_table_are_those_of_its_rows() -> None:
    m = np.array([1.0, 300.0, 8192.0, 64.0])
    terms = ProductTerms(50.0, 30.0, 0.3, 4e-6)
    table = product_seconds(Gemm("", m, 4096.0, 20_000.0), 1e6, replace(GPU, bytes_per_s=1e12), terms)
    alone = [product_seconds(Gemm("", x, 4096.0, 20_000.0), 1e6, replace(GPU, bytes_per_s=1e12), terms) for x in m]
    assert table == pytest.approx(alone)


VALIDATION = Path(__file__).resolve().parents[2] / "validation"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "own", "left_out"), [("products", 0.07, 0.12), ("attention", 0.08, 0.15)])
def test_measured_kernels(name: str, own: float, left_out: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Median errors with terms of the same GPU, and of the others: the bars of the project's evidence."""
    monkeypatch.setattr(sys, "path", [str(VALIDATION), *sys.path])
    import fit_operators
    import measured_operators

    if not measured_operators.SHARED.is_dir():
        pytest.skip("no shared data beside the checkout")
    rows = fit_operators.scored(getattr(measured_operators, name)())
    assert (rows.own.median() <= own, rows.left_out.median() <= left_out) == (True, True)
