"""Kernels of serving frameworks that NVIDIA measured one by one, and what `commsim.generation` says of them.

Reads `silicon/` of the shared data, as `measured_operators` does, whose drawing of routers and datasheets it shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from measured_operators import SHARED, TYPES, board, busiest

from commsim.generation.decode_attention import DecodeAttention, decode_kernel_seconds
from commsim.generation.experts import ExpertRows, layer_seconds
from commsim.generation.formats import Format
from commsim.generation.products import Product, kernel_seconds
from commsim.generation.terms import Terms, short_peak
from commsim.training.kernels import AttentionTerms, Throughput, attention_seconds
from commsim.training.operators import Attention

Float64 = npt.NDArray[np.float64]

FRAMEWORKS = {"VLLM": "vllm", "SGLang": "sglang", "TRTLLM": "tensorrt_llm"}

FORMATS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "w4a16_mxfp4": "int4",
    "int4_wo": "int4",
}
"""Kinds of kernels by the source's name of the format."""

BOUNDS = {
    "launch": (1e-7, 1e-4), "rate": (0.02, 1.2), "memory": (0.2, 1.05), "side": (1.0, 200.0), "overhead": (1.0, 5e3),
    "split": (1e-7, 1.0), "tail": (1e-3, 0.99), "corner": (1.0, 16.0), "cast": (0.1, 20.0), "permute": (0.1, 40.0),
    "expert": (1e-10, 1e-6), "start": (1e-8, 2e-5), "sm": (1.0, 8.0), "combine": (1e-8, 2e-5), "softmax": (1e-13, 1e-9),
    "prepare": (0.1, 20.0),
}  # fmt: skip
"""Of terms: what they can mean."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """Rows of one operator with `seconds`, `system` and `kernel` (family and format); what predicts them from terms.

    ``grid``: terms that a fit tries one by one, whose effect has steps.
    """

    name: str
    rows: pd.DataFrame
    predictor: Callable[[pd.DataFrame], Callable[[Terms], Float64]]
    starts: Mapping[str, float]
    grid: Mapping[str, tuple[float, ...]]


def _peaks(rows: pd.DataFrame, types: list[str]) -> tuple[Float64, Float64, Float64]:
    """Peak of short kernels in the type, bytes/s of memory, and SMs, of each row."""
    of = [board(name) for name in rows.system]
    peaks = [short_peak(a, a.peak(t) if a.supports(t) else a.half_peak) for a, t in zip(of, types, strict=True)]
    return np.array(peaks), np.array([a.memory_bytes_per_s for a in of]), np.array([float(a.sms) for a in of])


def _widths(names: pd.Series) -> Format:
    """A format whose widths are columns."""
    weight = names.map({n: w for n, (_, w, _) in TYPES.items()}).to_numpy(np.float64)
    inputs = names.map({n: w for n, (_, _, w) in TYPES.items()}).to_numpy(np.float64)
    return Format("", "", weight, inputs, "")


def _column(rows: pd.DataFrame, name: str) -> Float64:
    return rows[name].to_numpy(np.float64)


def products() -> Kernel:
    """Matrix products by framework and format."""
    rows = pd.read_csv(SHARED / "gemm.csv", low_memory=False)
    # vLLM's blocks of fp8 were measured with the call from Python; SGLang's kernels are the same.
    rows = rows[~((rows.framework == "VLLM") & (rows.gemm_dtype == "fp8_block"))]
    kernel = rows.framework.map(FRAMEWORKS) + "." + rows.gemm_dtype.map(FORMATS)
    starts = {
        "launch": 4e-6, "rate": 0.75, "memory": 0.85, "side": 50.0, "overhead": 150.0, "split": 4e-6, "tail": 0.6,
        "corner": 2.0, "cast": 1.5,
    }  # fmt: skip
    return Kernel("product", rows.assign(seconds=rows.latency * 1e-3, kernel=kernel), _product, starts, {})


def _product(rows: pd.DataFrame) -> Callable[[Terms], Float64]:
    peak, memory, sms = _peaks(rows, [TYPES[name][0] for name in rows.gemm_dtype])
    p = Product("", _column(rows, "m"), _column(rows, "n"), _column(rows, "k"), _widths(rows.gemm_dtype))
    return lambda t: np.asarray(t["launch"] + kernel_seconds(p, peak, memory, sms, t), np.float64)


def experts() -> Kernel:
    """Layers of experts by family of kernels and format; of tokens that a step can have."""
    rows = pd.read_csv(SHARED / "moe.csv", low_memory=False)
    source = rows.kernel_source
    kinds = ("marlin", "trtllm|min_latency", "deepgemm", "cutlass|torch_flow", "triton|fused_moe|mxfp4_moe")
    families = np.select(
        [source.str.contains(kind) for kind in kinds], ["marlin", "trtllm", "deepgemm", "cutlass", "triton"], ""
    )
    of = rows[["distribution", "num_experts", "topk", "num_tokens", "moe_ep_size"]]
    loads = np.array([busiest(*key) for key in of.itertuples(index=False, name=None)])
    local = (rows.num_experts // rows.moe_ep_size).to_numpy(np.float64)
    even = local * (1.0 - (1.0 - rows.topk / rows.num_experts) ** rows.num_tokens)
    # Kernels that route by themselves draw evenly what the source calls balanced.
    drawn = (rows.distribution == "balanced") & (families == "trtllm")
    touched = np.where(drawn, np.clip(even, 1.0, loads[:, 1]), loads[:, 1])
    rows = rows.assign(
        loads=loads[:, 0],
        touched=touched,
        seconds=rows.latency * 1e-3,
        kernel=families + "." + rows.moe_dtype.map(FORMATS),
    )
    starts = {
        "launch": 25e-6, "rate": 0.6, "memory": 0.85, "side": 50.0, "overhead": 300.0, "tail": 0.2, "permute": 5.0,
        "expert": 1e-8,
    }  # fmt: skip
    return Kernel("experts", rows[rows.num_tokens <= 16384], _experts, starts, {})


def _experts(rows: pd.DataFrame) -> Callable[[Terms], Float64]:
    peak, memory, sms = _peaks(rows, [TYPES[name][0] for name in rows.moe_dtype])
    e = ExpertRows(
        tokens=_column(rows, "num_tokens"),
        rows=_column(rows, "loads"),
        touched=_column(rows, "touched"),
        hidden=_column(rows, "hidden_size"),
        inner=_column(rows, "inter_size") / _column(rows, "moe_tp_size"),
        matrices=np.where(rows.kernel_source.str.contains("nongated"), 1.0, 2.0),
        drawn=(rows.distribution != "balanced").to_numpy(),
    )
    kind = _widths(rows.moe_dtype)
    return lambda t: np.asarray(t["launch"] + layer_seconds(e, kind, peak, memory, sms, t), np.float64)


def _attention_family(rows: pd.DataFrame) -> npt.NDArray[np.str_]:
    """FlashAttention, TensorRT-LLM's kernels of Blackwell and before it (xqa), and the others."""
    source = rows.kernel_source
    kinds = (source.str.contains("triton"), source.str.contains("flash_att|fa3|fa4"), rows.framework == "TRTLLM")
    newer = rows.system.map({name: board(name).generation for name in rows.system.unique()}) == "blackwell"
    return np.select(
        [kinds[0], kinds[1], kinds[2] & ~newer, newer], ["triton", "flash", "xqa", "trtllm"], "triton"
    ).astype(str)


def decode() -> Kernel:
    """Attention of one token per sequence over its cache, by family and type of the cache."""
    rows = pd.read_csv(SHARED / "attention_generation.csv", low_memory=False)
    cache = rows.kv_cache_dtype.map({"bfloat16": "bf16", "fp8": "fp8"})
    rows = rows.assign(seconds=rows.latency * 1e-3, kernel=_attention_family(rows) + "." + cache, cached=cache)
    starts = {
        "launch": 8e-6, "rate": 0.25, "memory": 0.9, "start": 1.5e-6, "sm": 2.0, "split_keys": 256.0, "combine": 1e-6,
    }  # fmt: skip
    grid = {"split_keys": (64.0, 128.0, 256.0, 512.0, 1024.0)}
    return Kernel("decode", rows[~rows.kernel.str.startswith("triton")], _decode, starts, grid)


def _decode(rows: pd.DataFrame) -> Callable[[Terms], Float64]:
    peak, memory, sms = _peaks(rows, ["bf16"] * len(rows))
    heads, shared, width = (_column(rows, name) for name in ("num_heads", "num_key_value_heads", "head_dim"))
    window = rows.window_size.fillna(0.0).to_numpy(np.float64)
    length = _column(rows, "step") + 1.0
    keys = np.where(window > 0, np.minimum(window, length), length)
    bytes_of = np.where(rows.cached == "fp8", 1.0, 2.0)
    a = DecodeAttention(_column(rows, "batch_size") * shared, heads / shared, keys, 2.0 * width, 2.0 * width * bytes_of)
    return lambda t: np.asarray(t["launch"] + decode_kernel_seconds(a, peak, memory, sms, t), np.float64)


def context() -> Kernel:
    """Causal attention over prompts, by family; `prepare`: reading and writing queries, keys and values before it."""
    rows = pd.read_csv(SHARED / "attention_context.csv", low_memory=False)
    rows = rows.assign(seconds=rows.latency * 1e-3, family=_attention_family(rows))
    narrow = (rows.attn_dtype == "fp8") | ((rows.framework == "VLLM") & (rows.kv_cache_dtype == "fp8"))
    family = np.where(rows.family == "xqa", "flash", rows.family)
    rows = rows.assign(kernel=family + np.where(narrow, ".fp8", ".bf16"), narrow=narrow)
    starts = {
        "launch": 9e-6, "rate": 0.65, "memory": 0.8, "softmax": 1e-11, "start": 2e-6, "tail": 0.5, "prepare": 1.0,
    }  # fmt: skip
    return Kernel("context", rows[~rows.kernel.str.startswith("triton")], _context, starts, {})


def _context(rows: pd.DataFrame) -> Callable[[Terms], Float64]:
    peak, memory, sms = _peaks(rows, ["fp8" if narrow else "bf16" for narrow in rows.narrow])
    batch, length, heads, shared, width = (
        _column(rows, name) for name in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    )
    window = rows.window_size.fillna(0.0).to_numpy(np.float64)
    seen = np.minimum(np.where(window > 0, window, np.inf), length)
    span = seen - seen * (seen - 1.0) / (2.0 * length)
    query, key = batch * length * heads * width, 2.0 * batch * length * shared * width
    cached = np.where(rows.kv_cache_dtype == "fp8", 1.0, 2.0)
    core = Attention(batch * heads, length, length, span, 2.0 * width, 4.0 * query + 2.0 * key, width)
    prepared = 4.0 * query + (2.0 + cached) * key

    def seconds(t: Terms) -> Float64:
        gpu = Throughput(t["rate"] * peak, t["memory"] * memory, sms)
        kernel = attention_seconds(core, gpu, AttentionTerms(t["softmax"], t["start"], t["tail"]))
        return np.asarray(t["launch"] + kernel + t["prepare"] * prepared / memory, np.float64)

    return seconds


OPERATORS = (products, experts, decode, context)
