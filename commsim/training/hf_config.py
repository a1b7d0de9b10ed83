"""Models from a Hugging Face ``config.json``: the fields by which the families differ, and what they take for granted.

Defaults are those of the `transformers` configuration classes (v4.57) of each model_type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commsim.document import compose_documents, raise_faults, read_text
from commsim.document.types import Document
from commsim.errors import Fault, ScenarioError
from commsim.training.linear_attention import LinearAttention
from commsim.training.model import Mla, Model, Moe


@dataclass(frozen=True)
class _Family:
    """What a model_type implies without saying so."""

    gated: bool = True
    tied: bool = False
    bias: str = "none"
    norm: str = "rmsnorm"
    positions: str = "computed"
    kind: str = "decoder"
    shared_experts: int = 0
    global_every: int = 0  # every so manieth layer attends to all tokens, the others to a window; 0: all layers to all
    sinks: bool = False
    attention_gate: bool = False


_NEVER = 2**31

_GPT2 = _Family(gated=False, tied=True, bias="all", norm="layernorm", positions="learned")
_LLAMA = _Family()
_FAMILIES = (
    {
        "gpt2": _GPT2,
        "opt": _GPT2,
        "gpt_bigcode": _GPT2,
        "gpt_neo": _GPT2,
        "bert": replace(_GPT2, kind="encoder"),
        "roberta": replace(_GPT2, kind="encoder"),
        "bloom": _Family(gated=False, tied=True, bias="all", norm="layernorm"),
        "gpt_neox": _Family(gated=False, bias="all", norm="layernorm"),
        "gptj": _Family(gated=False, bias="all", norm="layernorm"),
        "falcon": _Family(gated=False, tied=True, norm="layernorm"),
        "mpt": _Family(gated=False, tied=True, norm="layernorm"),
        "phi": _Family(gated=False, bias="all", norm="layernorm"),
        "starcoder2": _Family(gated=False, tied=True, bias="all", norm="layernorm", global_every=_NEVER),
        "nemotron": _Family(gated=False, norm="layernorm"),
        "qwen2": _Family(bias="qkv"),
        "qwen2_moe": _Family(bias="qkv"),
        "gemma": _Family(tied=True),
        "gemma2": _Family(tied=True, global_every=2),
        "gemma3_text": _Family(tied=True, global_every=6),
        "cohere": _Family(tied=True, norm="layernorm"),
        "gpt_oss": _Family(bias="all", global_every=2, sinks=True),
        "glm4_moe": _Family(bias="qkv"),
        "nemotron_h": _Family(gated=False),
        "llama4_text": _Family(shared_experts=1, global_every=4),
        "mistral": _Family(global_every=_NEVER),
        "mixtral": _Family(global_every=_NEVER),
        "phi3": _Family(global_every=_NEVER),
    }
    | dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _Family(attention_gate=True))
    | dict.fromkeys(
        (
            "llama",
            "qwen3",
            "qwen3_moe",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "minimax_m2",
            "kimi_k2",
            "olmo2",
            "internlm2",
            "smollm3",
        ),
        _LLAMA,
    )
)

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "dense_ffn": ("intermediate_size_mlp",),
    "ffn_hidden": ("intermediate_size", "n_inner", "ffn_dim"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "vocab": ("vocab_size",),
    "seq_len": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok", "experts_per_token"),
    "expert_ffn": ("moe_intermediate_size", "intermediate_size"),
    "shared_experts": ("n_shared_experts",),
    "shared_ffn": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "dense_layers": ("first_k_dense_replace",),
    "groups": ("n_group",),
    "node_limit": ("topk_group",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "window": ("sliding_window",),
    "chosen_tokens": ("index_topk",),
    "chunk": ("attention_chunk_size",),
    "global_every": ("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"),
    "window_from": ("max_window_layers",),
    "full_attention_every": ("full_attention_interval",),
    "key_heads": ("linear_num_key_heads", "n_groups"),
    "key_dim": ("linear_key_head_dim", "ssm_state_size"),
    "value_heads": ("linear_num_value_heads", "mamba_num_heads"),
    "value_dim": ("linear_value_head_dim", "mamba_head_dim"),
    "conv": ("linear_conv_kernel_dim", "conv_kernel"),
    "scan_chunk": ("chunk_size",),
    "moe_step": ("interleave_moe_layer_step",),
}

_PATTERN = "hybrid_override_pattern"
"""Nemotron-H: a letter for every block, M for Mamba-2, * for attention, - for an MLP, E for experts."""

_LANGUAGE = "text_config"

_MOST = 2**31


def read_hf_config(path: Path) -> Model:
    """The model of a ``config.json``; every fault of the file at its line."""
    text = read_text(path)
    documents, faults = compose_documents(text, str(path))  # JSON is YAML with few exceptions, and so it has places
    if not documents:
        raise_faults(faults, ScenarioError)
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        raise_faults(
            [Fault(str(path), 1, 1, "", "found no JSON object, expected a model's config.json")], ScenarioError
        )
    return _FieldReader(documents[0], path).model()


class _FieldReader:
    """Fields of a document under their several names; faults are gathered."""

    def __init__(self, document: Document, path: Path) -> None:
        self.document, self.path = document, path
        # Models that also see have the fields of their language model in a mapping of their own.
        nested = document.data.get(_LANGUAGE)
        self.at = (_LANGUAGE,) if isinstance(nested, dict) else ()
        self.keys: dict[str, Any] = nested if isinstance(nested, dict) else document.data
        self.faults: list[Fault] = []

    def fault(self, key: str, text: str) -> None:
        """Notes what is wrong with the value of a key."""
        self.faults.append(self.document.fault((*self.at, key), text))

    def number(self, field: str, default: int | None = None) -> int:
        """A whole number under any of the field's names; where it is missing or null, the default or a fault."""
        for key in _NAMES[field]:
            value = self.keys.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
                self.fault(key, f"found {value!r:.60}, expected a whole number")
                return 1
            return value
        if default is None:
            names = " or ".join(repr(n) for n in _NAMES[field])
            self.faults.append(self.document.fault(self.at, f"found no key {names}, expected it with a whole number"))
            return 1
        return default

    def model(self) -> Model:
        """The model, or all faults."""
        kind = self.keys.get("model_type")
        family = _FAMILIES.get(kind) if isinstance(kind, str) else None
        if family is None:
            known = ", ".join(sorted(_FAMILIES))
            self.fault("model_type", f"found {kind!r:.60}, expected one of {known}")
            family = _LLAMA
        hidden, heads = self.number("hidden"), self.number("heads")
        tied = self.keys.get("tie_word_embeddings", family.tied)
        if not isinstance(tied, bool):
            self.fault("tie_word_embeddings", f"found {tied!r:.60}, expected true or false")
        single = (
            kind == "falcon" and self.keys.get("multi_query", True) and not self.keys.get("new_decoder_architecture")
        )
        single = single or (kind == "gpt_bigcode" and self.keys.get("multi_query", True))
        mla, blocks = self._mla(), self._blocks()
        fields: dict[str, Any] = {
            "layers": self.number("layers"),
            "hidden": hidden,
            "ffn_hidden": self.number("dense_ffn", 0)
            or self.number("ffn_hidden", 4 * hidden if not family.gated else None),
            "heads": heads,
            "kv_heads": self.number("kv_heads", 1 if single else heads),
            "head_dim": mla.v_head_dim if mla else self.number("head_dim", max(hidden // max(heads, 1), 1)),
            "vocab": self.number("vocab"),
            "seq_len": self.number("seq_len", 2048),
            "context": self.number("seq_len", 0),
        }
        mixers = self._mixers(fields["layers"], blocks)
        fields["layers"] -= blocks.count("M") + blocks.count("*")
        moe = self._moe(fields["ffn_hidden"], fields["layers"], family, blocks.count("-"))
        windows = self._windows(family, fields["layers"])
        left_out = "; ".join(self._left_out())
        if self.faults:
            raise_faults(self.faults, ScenarioError)
        try:
            return Model(
                self.path.parent.name or self.path.stem,
                **fields,
                gated_mlp=family.gated,
                tied_embeddings=tied,
                bias=family.bias,
                norm=family.norm,
                positions=family.positions,
                kind=family.kind,
                moe=moe,
                mla=mla,
                **windows,
                **mixers,
                attention_gate=bool(self.keys.get("attn_output_gate", family.attention_gate)),
                left_out=left_out,
                source=str(self.path),
            )
        except ScenarioError as exc:
            raise_faults([self.document.fault((), str(exc))], ScenarioError)

    def _blocks(self) -> str:
        """The pattern of a hybrid of blocks, or nothing: every MLP makes a layer, with its share of the mixers."""
        pattern = self.keys.get(_PATTERN)
        if pattern is None:
            return ""
        known = isinstance(pattern, str) and set(pattern) <= set("M*-E") and {"-", "E"} & set(pattern)
        if not isinstance(pattern, str) or not known or len(pattern) != self.number("layers"):
            self.fault(_PATTERN, f"found {pattern!r:.60}, expected a letter of M, *, - and E per layer, with - or E")
            return ""
        if max(pattern.count("M"), pattern.count("*")) > pattern.count("-") + pattern.count("E"):
            self.fault(_PATTERN, f"found {pattern!r:.60}, expected as many MLPs as blocks of a mixer, or more")
        if self.keys.get("moe_latent_size"):
            self.fault("moe_latent_size", "found experts in a latent space, expected ones as wide as the model")
        return pattern

    def _mixers(self, layers: int, blocks: str) -> dict[str, Any]:
        """Linear attention, where ``layer_types``, the interval of full attention or the pattern of blocks has it."""
        types = self.keys.get("layer_types")
        if isinstance(types, list):
            count = types.count("linear_attention")
        elif self.keys.get("linear_num_value_heads"):
            count = layers - layers // max(1, self.number("full_attention_every", 4))
        else:
            count = blocks.count("M")
        attending = {"attention_layers": blocks.count("*")} if blocks else {}
        if not count:
            return attending
        kind, chunk = ("mamba2", self.number("scan_chunk", 256)) if blocks else ("gated_delta_net", 64)
        shape = {name: self.number(name) for name in ("key_heads", "key_dim", "value_heads", "value_dim")}
        return attending | {"linear": LinearAttention(kind, count, **shape, conv=self.number("conv", 4), chunk=chunk)}

    def _windows(self, family: _Family, layers: int) -> dict[str, Any]:
        """Which layers attend to a window or a chunk: those that ``layer_types`` names, or as the family's class has it
        (Qwen's only with ``use_sliding_window``, from ``max_window_layers`` on)."""
        window, chunk = self.number("window", 0), self.number("chunk", 0)
        types = self.keys.get("layer_types")
        if isinstance(types, list) and len(types) == layers:
            near = sum(kind in ("sliding_attention", "chunked_attention") for kind in types)
        elif family.global_every:
            near = layers - layers // max(1, self.number("global_every", family.global_every))
        else:
            near = max(0, layers - self.number("window_from", 0)) if self.keys.get("use_sliding_window") else 0
        if types is not None and not (isinstance(types, list) and len(types) == layers):
            self.fault("layer_types", f"found {types!r:.60}, expected a list of {layers} types")
        if not near or not (chunk or window):
            return {}
        return {"window": chunk or window, "window_layers": near, "chunked": chunk > 0, "sinks": family.sinks}

    def _left_out(self) -> Iterator[str]:
        """What of the architecture a Model cannot hold."""
        chosen = self.number("chosen_tokens", 0)
        if chosen:
            yield f"the choice of {chosen:,} tokens to attend to: attention counts as that to all tokens"
        if self.number("moe_step", 1) > 1:
            yield "that layers with and without experts alternate: the first are taken to have none"
        if self.keys.get(_PATTERN):
            yield "norms and exchanges of tensor parallelism of blocks beyond one mixer for every MLP"
        if self.at:
            yield "what is no language model"

    def _moe(self, ffn_hidden: int, layers: int, family: _Family, plain: int) -> Moe | None:
        experts = self.number("experts", 0)
        if not experts:
            return None
        expert_ffn = self.number("expert_ffn", ffn_hidden)
        shared = self.number("shared_experts", family.shared_experts)
        return Moe(
            experts,
            self.number("top_k"),
            expert_ffn,
            shared,
            self.number("shared_ffn", shared * expert_ffn),
            self.number("dense_layers", plain or layers - layers // max(1, self.number("moe_step", 1))),
            self.number("node_limit", 0) if self.number("groups", 1) > 1 else 0,
        )

    def _mla(self) -> Mla | None:
        if not self.number("kv_lora_rank", 0):
            return None
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return Mla(self.number("q_lora_rank", 0), *(self.number(n) for n in names))
