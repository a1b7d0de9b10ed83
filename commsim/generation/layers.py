"""The products of a rank in one step, layer by layer: shapes by the rules of Megatron-LM's parallel layers, as vLLM,
SGLang and TensorRT-LLM cut them (`commsim.training.operators` has those of training)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from commsim.generation.formats import FORMATS
from commsim.generation.products import Product
from commsim.generation.replica import Replica

WIDE = FORMATS["bf16"]


@dataclass(frozen=True)
class Layers:
    """How many layers of each kind a stage has, on average."""

    replica: Replica

    @cached_property
    def attending(self) -> float:
        """Layers with attention."""
        return self.replica.model.attending_layers / self.replica.pp

    @cached_property
    def windowed(self) -> float:
        """Of those, layers that attend to a window."""
        return self.replica.model.window_layers / self.replica.pp

    @cached_property
    def recurrent(self) -> float:
        """Layers with linear attention."""
        return self.replica.model.recurrent.layers / self.replica.pp

    @cached_property
    def experts(self) -> float:
        """Layers of experts."""
        return self.replica.model.moe_layers / self.replica.pp

    @cached_property
    def dense(self) -> float:
        """Layers with an ordinary MLP."""
        return (self.replica.model.layers - self.replica.model.moe_layers) / self.replica.pp

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts


def step_products(r: Replica, layers: Layers, decoding: float, prompts: float) -> Iterator[Product]:
    """Products of a rank whose group has so many tokens that decode, and of prompts."""
    yield from _attention_products(r, layers, decoding, prompts)
    yield from _recurrent_products(r, layers, decoding + prompts)
    yield from _mlp_products(r, layers, decoding + prompts)


def _attention_products(r: Replica, layers: Layers, decoding: float, prompts: float) -> Iterator[Product]:
    model, kind, tokens = r.model, r.formats.weights, decoding + prompts
    count, h = layers.attending, model.hidden
    if not count:
        return
    if model.mla is None:
        gate = 2.0 if model.attention_gate else 1.0
        width = r.heads * model.head_dim * gate + 2.0 * r.kv_heads * model.head_dim
        yield Product("qkv", tokens, width, h, kind, count=count)
        yield Product("projection", tokens, h, r.heads * model.head_dim, kind, count=count)
        return
    mla = model.mla
    yield Product(
        "latent_down", tokens, mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim, h, kind, count=count
    )
    yield Product("query_up", tokens, r.heads * model.qk_head_dim, mla.q_lora_rank or h, kind, count=count)
    # Decoding multiplies queries and outputs by the halves of kv_up instead of every cached token (DeepSeek-V2, 2.1.2).
    yield Product("absorb_keys", decoding, mla.kv_lora_rank, mla.qk_nope_head_dim, WIDE, r.heads, count)
    yield Product("absorb_values", decoding, mla.v_head_dim, mla.kv_lora_rank, WIDE, r.heads, count)
    up = r.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield Product("kv_up", prompts, up, mla.kv_lora_rank, kind, count=count)
    yield Product("projection", tokens, h, r.heads * mla.v_head_dim, kind, count=count)


def _recurrent_products(r: Replica, layers: Layers, tokens: float) -> Iterator[Product]:
    count, mix, h = layers.recurrent, r.model.recurrent, r.model.hidden
    if count:
        yield Product("linear_in", tokens, mix.input_width / r.tp, h, r.formats.weights, count=count)
        yield Product("linear_out", tokens, h, mix.value_width / r.tp, r.formats.weights, count=count)


def _mlp_products(r: Replica, layers: Layers, tokens: float) -> Iterator[Product]:
    model, kind, h = r.model, r.formats.weights, r.model.hidden
    if layers.dense:
        width = model.ffn_hidden / r.tp
        yield Product("mlp_up", tokens, width * model.up_matrices, h, kind, count=layers.dense)
        yield Product("mlp_down", tokens, h, width, kind, count=layers.dense)
    if layers.experts and model.moe is not None:
        yield Product("router", tokens, model.moe.experts, h, WIDE, count=layers.experts)
        if model.moe.shared_ffn:
            width = model.moe.shared_ffn / r.tp
            yield Product("shared_up", tokens, width * model.up_matrices, h, kind, count=layers.experts)
            yield Product("shared_down", tokens, h, width, kind, count=layers.experts)


def logits_product(r: Replica, rows: float) -> Product:
    """Of the tokens that are followed by a new one."""
    return Product("logits", rows, r.model.vocab / r.tp, r.model.hidden, WIDE)
