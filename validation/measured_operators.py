"""Operators that NVIDIA measured one by one, and what `commsim.training.kernels` says of them.

Reads `silicon/` of the shared data beside the checkout, or of COMMSIM_SHARED_DATA.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from commsim.training.accelerator import Accelerator, accelerator
from commsim.training.kernels import (
    AttentionTerms,
    ProductTerms,
    Throughput,
    attention_seconds,
    product_seconds,
)
from commsim.training.operators import Attention, Gemm

Float64 = npt.NDArray[np.float64]
Terms = Mapping[str, float]

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "silicon"

POWER = 0.1
"""Exponent of a board's watts per 16-bit FLOP/s on the share of the peak that its products reach: 0 to 0.2 give the
same errors to half a point. Short kernels are not throttled as training is (`power` of parameters.yaml)."""

TYPES = {
    "bfloat16": ("bf16", 2.0, 2.0),
    "fp8": ("fp8", 1.0, 1.0),
    "fp8_block": ("fp8", 1.0, 1.0),
    "nvfp4": ("fp4", 0.5 + 1 / 16, 0.5 + 1 / 16),
    "w4a8_mxfp4_mxfp8": ("fp8", 0.5 + 1 / 32, 1.0),
    "w4a16_mxfp4": ("bf16", 0.5 + 1 / 32, 2.0),
    "int4_wo": ("bf16", 0.5 + 1 / 64, 2.0),
}
"""By the source's name: the type of the product, bytes of an element of the weights and of the activations, scales
counted."""


def board(system: str) -> Accelerator:
    """The datasheet of a GPU by the source's name of it."""
    return accelerator(system.split("_", maxsplit=1)[0])


@dataclass(frozen=True, eq=False)
class Operator:
    """Rows of one operator: ``seconds``, ``system``, and kernels, from the very one (`kernel0`) to the widest kind.

    ``predictor``: makes of rows what predicts their seconds from terms. ``starts``: of terms; ``off``: where a term
    does nothing.
    """

    name: str
    rows: pd.DataFrame
    predictor: Callable[[pd.DataFrame], Callable[[Terms], Float64]]
    starts: Terms
    off: Terms


def _read(name: str, beside: Path | None) -> pd.DataFrame:
    """A table of the shared data, with the rows that another folder has of it."""
    paths = [SHARED / name, *([beside / name] if beside is not None and (beside / name).exists() else [])]
    return pd.concat([pd.read_csv(path, low_memory=False) for path in paths], ignore_index=True)


def _of_rows(rows: pd.DataFrame, types: list[str]) -> tuple[Float64, Float64, Float64]:
    """Peak in the type at the power of the board, bytes/s of memory, and SMs, of each row."""
    boards = {name: board(name) for name in rows.system.unique()}
    reference = accelerator("H100")

    def peak(a: Accelerator, dtype: str) -> float:
        watts = (a.tdp_w / a.half_peak) / (reference.tdp_w / reference.half_peak)
        return float((a.peak(dtype) if a.supports(dtype) else a.half_peak) * watts**POWER)

    of = [boards[name] for name in rows.system]
    return (
        np.array([peak(a, dtype) for a, dtype in zip(of, types, strict=True)]),
        np.array([a.memory_bytes_per_s for a in of]),
        np.array([float(a.sms) for a in of]),
    )


def _columns(rows: pd.DataFrame, *names: str) -> Iterator[Float64]:
    return (rows[name].to_numpy(np.float64) for name in names)


def _product_terms(t: Terms) -> ProductTerms:
    return ProductTerms(t["side"], t["overhead"], t["tail"], t["split"], t.get("corner", 2.0))


# -- matrix products ---------------------------------


def _product(rows: pd.DataFrame) -> Callable[[Terms], Float64]:
    peak, memory, sms = _of_rows(rows, [TYPES[name][0] for name in rows.gemm_dtype])
    m, n, k = _columns(rows, "m", "n", "k")
    element = rows.gemm_dtype.map({name: width for name, (_, width, _) in TYPES.items()}).to_numpy(np.float64)
    nbytes = (m * k + k * n) * element + 2.0 * m * n
    cast = np.where(element < 2.0, m * k * (2.0 + element), 0.0)

    def seconds(t: Terms) -> Float64:
        gpu = Throughput(t["rate"] * peak, t["memory"] * memory, sms)
        product = product_seconds(Gemm("", m, n, k), nbytes, gpu, _product_terms(t))
        return np.asarray(t["launch"] + product + t["cast"] * cast / memory, np.float64)

    return seconds


def products(beside: Path | None = None) -> Operator:
    """Single products. Narrow ones quantise their input first: `cast` is that traffic over the least."""
    rows = _read("gemm.csv", beside)
    kind = rows.gemm_dtype + " " + rows.framework
    very = kind + " " + rows.version + " " + rows.kernel_source
    rows = rows.assign(
        seconds=rows.latency * 1e-3,
        kernel0=very,
        kernel1=kind + " " + rows.kernel_source.where(rows.gemm_dtype != "bfloat16", ""),
        kernel2=kind,
        kernel3=rows.gemm_dtype,
    )
    starts = {
        "launch": 3e-6, "rate": 0.75, "memory": 0.85, "side": 50.0, "overhead": 30.0, "split": 4e-6, "tail": 0.3,
        "corner": 2.0, "cast": 1.0,
    }  # fmt: skip
    off = {"launch": 1e-9, "side": 1.0, "overhead": 1e-6, "split": 1.0, "tail": 1e-9, "corner": 50.0, "cast": 1e-9}
    return Operator("products", rows, _product, starts, off)


# -- attention over a prompt ---------------------------------


def _attention(rows: pd.DataFrame) -> Callable[[Terms], Float64]:
    peak, memory, sms = _of_rows(rows, ["fp8" if narrow else "bf16" for narrow in rows.narrow])
    batch, length, heads, shared, width, window = _columns(
        rows, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window"
    )
    packed = rows.kind.to_numpy() == "flash"  # FlashAttention packs the queries that share keys into a tile
    pairs = batch * np.where(packed, shared, heads)
    seen = np.minimum(np.where(window > 0, window, np.inf), length)
    span = seen - seen * (seen - 1.0) / (2.0 * length)
    query, key = batch * length * heads * width, 2.0 * batch * length * shared * width
    cached = np.where(rows.kv_cache_dtype == "fp8", 1.0, 2.0)
    core = Attention(pairs, length * batch * heads / pairs, length, span, 2.0 * width, 4.0 * query + 2.0 * key, width)
    prepared = 4.0 * query + (2.0 + cached) * key

    def seconds(t: Terms) -> Float64:
        gpu = Throughput(t["rate"] * peak, 0.8 * memory, sms)
        kernel = attention_seconds(core, gpu, AttentionTerms(t["softmax"], t["start"], t["tail"]))
        return np.asarray(t["launch"] + kernel + t["prepare"] * prepared / memory, np.float64)

    return seconds


def attention(beside: Path | None = None) -> Operator:
    """Causal attention over prompts. `prepare`: reading and writing queries, keys and values before it (rotary
    embedding, cache) over the least."""
    rows = _read("attention_context.csv", beside)
    source, cache_fp8 = rows.kernel_source, rows.kv_cache_dtype == "fp8"
    kind = np.select(
        [source.str.contains("triton"), source.str.contains("decode"), source.str.contains("flash_att|fa3")],
        ["triton", "decode", "flash"],
        "vendor",
    )
    rows = rows.assign(kind=kind, window=rows.window_size.fillna(0.0), seconds=rows.latency * 1e-3)
    # vLLM multiplies in the type of the cache.
    rows["narrow"] = (rows.attn_dtype == "fp8") | ((rows.framework == "VLLM") & cache_fp8 & (kind != "triton"))
    narrow = rows.narrow.map({True: " fp8", False: " bf16"})
    rows = rows.assign(
        kernel0=rows.framework + " " + rows.version + " " + source + narrow + cache_fp8.map({True: " +", False: ""}),
        kernel1=rows.framework + " " + rows.kind + narrow,
        kernel2=rows.kind + narrow,
        kernel3=rows.kind,
    )
    starts = {
        "launch": 9e-6, "rate": 0.8, "softmax": 36e-12, "start": 1e-6, "tail": 0.5, "prepare": 0.5,
    }  # fmt: skip
    off = {"launch": 1e-9, "softmax": 1e-15, "start": 1e-12, "tail": 1e-9, "prepare": 1e-9}
    return Operator("attention", rows, _attention, starts, off)


# -- layers of experts ---------------------------------


@cache
def busiest(routing: str, experts: int, top_k: int, tokens: int, ranks: int) -> tuple[float, float]:
    """Rows of the busiest rank, and its experts that have any: means of 12 draws.

    The source's power law draws the load of an expert with a density of x^-a between 1 and 0.8 of all tokens, between
    0.01 and 2 where there are fewer rows than experts.
    """
    rows, local = tokens * top_k, experts // ranks
    if routing == "balanced":
        return rows / ranks, min(float(local), np.ceil(rows / ranks))
    a, random = 1.0 - float(routing.rsplit("_", 1)[1]), np.random.default_rng(0)
    low, high = (1.0, 0.8 * tokens) if rows > experts else (0.01, 2.0)
    drawn = ((high**a - low**a) * random.random((12, experts)) + low**a) ** (1.0 / a)
    load = np.minimum(np.round(drawn / drawn.sum(axis=1, keepdims=True) * rows), tokens).reshape(12, ranks, local)
    most = load[np.arange(12), load.sum(axis=2).argmax(axis=1)]
    return float(most.sum(axis=1).mean()), float((most > 0).sum(axis=1).mean())


def _experts(rows: pd.DataFrame) -> Callable[[Terms], Float64]:
    peak, memory, sms = _of_rows(rows, [TYPES[name][0] for name in rows.moe_dtype])
    hidden, tokens, loads, touched = _columns(rows, "hidden_size", "num_tokens", "loads", "touched")
    inner = rows.inter_size.to_numpy(np.float64) / rows.moe_tp_size.to_numpy(np.float64)
    up = inner * np.where(rows.kernel_source.str.contains("nongated"), 1.0, 2.0)
    weight = rows.moe_dtype.map({name: width for name, (_, width, _) in TYPES.items()}).to_numpy(np.float64)
    element = rows.moe_dtype.map({name: width for name, (_, _, width) in TYPES.items()}).to_numpy(np.float64)
    drawn = (rows.distribution != "balanced").to_numpy()
    moved = 2.0 * (loads + tokens) * hidden

    def product(n: Float64, k: Float64, gpu: Throughput, terms: ProductTerms) -> Float64:
        nbytes = touched * n * k * weight + loads * (k * element + 2.0 * n)
        g = Gemm("", loads / touched, n, k, touched, drawn=drawn)
        return np.asarray(product_seconds(g, nbytes, gpu, terms), np.float64)

    def seconds(t: Terms) -> Float64:
        gpu = Throughput(t["rate"] * peak, t["memory"] * memory, sms)
        terms = _product_terms(t)
        both = product(up, hidden, gpu, terms) + product(hidden, inner, gpu, terms)
        return np.asarray(t["launch"] + both + t["permute"] * moved / memory, np.float64)

    return seconds


def experts(beside: Path | None = None) -> Operator:
    """Two grouped products, and the permutations around them: `permute` passes over the rows and the tokens."""
    rows = _read("moe.csv", beside)
    of = rows[["distribution", "num_experts", "topk", "num_tokens", "moe_ep_size"]]
    loads = np.array([busiest(*key) for key in of.itertuples(index=False, name=None)])
    kind = rows.moe_dtype + " " + rows.framework
    rows = rows.assign(
        loads=loads[:, 0],
        touched=loads[:, 1],
        seconds=rows.latency * 1e-3,
        kernel0=rows.moe_dtype + " " + rows.kernel_source + " " + rows.version,
        kernel1=rows.moe_dtype + " " + rows.kernel_source,
        kernel2=kind,
        kernel3=rows.moe_dtype,
    )
    starts = {
        "launch": 20e-6, "rate": 0.7, "memory": 0.8, "side": 50.0, "overhead": 50.0, "split": 1e-3, "tail": 0.3,
        "permute": 3.0,
    }  # fmt: skip
    off = {"launch": 1e-9, "side": 1.0, "overhead": 1e-6, "tail": 1e-9, "permute": 1e-9}
    return Operator("expert layers", rows, _experts, starts, off)
