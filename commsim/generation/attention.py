"""Seconds of attention and of linear attention of a rank in one step, all layers together."""

from __future__ import annotations

from commsim.generation.batch import Batch
from commsim.generation.decode_attention import DecodeAttention, decode_kernel_seconds
from commsim.generation.layers import Layers
from commsim.generation.replica import Replica
from commsim.generation.terms import NOTHING, Kernels, KernelSeconds, short_peak
from commsim.training.compute import Values
from commsim.training.kernels import AttentionTerms, Throughput, attention_seconds
from commsim.training.operators import Attention

LATENT_RATE = 0.67
"""Share of the 16-bit peak that decoding latent attention reaches, whose tiles are full of query heads: 660 TFLOP/s of
989 on H800 (deepseek-ai/FlashMLA, README.md). The kernels measured one by one have none of it."""

STATE_BYTES = 4.0
"""Of an element of a linear attention's state, in fp32 (vLLM, `mamba_utils.py`; SGLang, `mamba_ssm_dtype`)."""


def attention_family(framework: str, generation: str) -> str:
    """Whose attention kernels a framework runs: FlashAttention's before Blackwell, TensorRT-LLM's on it."""
    if generation == "blackwell":
        return "trtllm"
    return "xqa" if framework == "tensorrt_llm" else "flash"


def decode_seconds(r: Replica, layers: Layers, sequences: float, cached: float, kernels: Kernels) -> KernelSeconds:
    """Of the sequences of a rank that decode a token: layers with and without a window."""
    if sequences <= 0 or not layers.attending:
        return NOTHING
    seconds, whole = NOTHING, layers.attending - layers.windowed
    for count, keys in ((whole, cached + 1.0), (layers.windowed, min(cached + 1.0, r.model.window))):
        if count:
            seconds += _decode(r, sequences, keys, kernels) * count
    return seconds


def _decode(r: Replica, sequences: float, keys: float, kernels: Kernels) -> KernelSeconds:
    gpu, model, width = r.gpu, r.model, r.formats.cache_bytes
    if model.mla is None:
        a = DecodeAttention(
            pairs=sequences * r.kv_heads,
            queries=r.heads / r.kv_heads,
            keys=keys,
            widths=2.0 * model.head_dim,
            key_bytes=2.0 * model.head_dim * width,
        )
    else:
        latent = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
        a = DecodeAttention(sequences, r.heads, keys, latent + model.mla.kv_lora_rank, latent * width)
    terms = kernels.of("decode", attention_family(r.engine.framework, gpu.generation), _cache_kind(r))
    if model.mla is not None:
        terms = {**terms, "rate": LATENT_RATE}
    work = decode_kernel_seconds(a, short_peak(gpu, gpu.half_peak), gpu.memory_bytes_per_s, gpu.sms, terms)
    return KernelSeconds(float(work), terms["launch"])


def _cache_kind(r: Replica) -> str:
    return "bf16" if r.formats.cache == "bf16" else "fp8"


def prompt_seconds(r: Replica, layers: Layers, batch: Batch, share: float, kernels: Kernels) -> KernelSeconds:
    """Of the chunks of prompts; ``share``: of the batch that a rank's group has."""
    if not batch.prompt_tokens or not layers.attending:
        return NOTHING
    chunk = batch.prompt_tokens / batch.prompt_sequences
    whole = layers.attending - layers.windowed
    seconds = NOTHING
    for count, window in ((whole, 0), (layers.windowed, r.model.window)):
        if count:
            seconds += _prompt(r, batch.prompt_sequences * share, chunk, batch.prompt_cached, window, kernels) * count
    return seconds


def _prompt(r: Replica, sequences: float, chunk: float, cached: float, window: int, kernels: Kernels) -> KernelSeconds:
    gpu, model = r.gpu, r.model
    keys = cached + chunk
    span = cached + (chunk + 1.0) / 2.0
    if window:
        span, keys = min(span, window), min(keys, window + chunk)
    kv_heads = r.kv_heads if model.mla is None else r.heads
    query = sequences * chunk * r.heads * model.qk_head_dim
    key = sequences * keys * kv_heads * (model.qk_head_dim + model.v_head_dim)
    core = Attention(
        pairs=sequences * r.heads,
        queries=chunk,
        keys=keys,
        span=span,
        widths=model.qk_head_dim + model.v_head_dim,
        nbytes=4.0 * query + 2.0 * key,
        head_dim=model.qk_head_dim,
    )
    t = kernels.of("context", attention_family(r.engine.framework, gpu.generation), "bf16")
    rates = Throughput(t["rate"] * short_peak(gpu, gpu.half_peak), t["memory"] * gpu.memory_bytes_per_s, gpu.sms)
    terms = AttentionTerms(t["softmax"], t["start"], t["tail"])
    prepared = 4.0 * query + (2.0 + r.formats.cache_bytes) * key * chunk / keys
    work = attention_seconds(core, rates, terms) + t["prepare"] * prepared / gpu.memory_bytes_per_s
    return KernelSeconds(float(work), t["launch"])


def recurrent_seconds(r: Replica, layers: Layers, sequences: float, prompt_tokens: float, v: Values) -> float:
    """Of linear attention: a token reads and writes its sequence's states; prompts scan in chunks.

    A scan's products are those of `commsim.training.operators.linear_gemms`; beside them it moves queries, keys, values
    and what is made of them, and per chunk the states.
    """
    if not layers.recurrent:
        return 0.0
    mix, gpu = r.model.recurrent, r.gpu
    rate = v["recurrence.memory"] * gpu.memory_bytes_per_s
    state = STATE_BYTES * mix.value_width * mix.key_dim / r.tp
    seconds = 2.0 * sequences * state / rate
    if prompt_tokens > 0:
        moved = prompt_tokens / r.tp * 4.0 * (3.0 * mix.conv_width + 3.0 * mix.value_width)
        chunks = 2.0 * prompt_tokens / max(mix.chunk, 1) * state
        flops = mix.scan_flops / r.tp * prompt_tokens
        seconds += (moved + chunks) / rate + flops / (v["recurrence.rate"] * short_peak(gpu, gpu.half_peak))
    return layers.recurrent * seconds
