"""Transformer architectures: what an operator's shape and the number of parameters follow from."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from commsim.document import read_documents
from commsim.errors import ScenarioError
from commsim.training.linear_attention import KINDS, NO_LINEAR, LinearAttention
from commsim.training.names import beyond, model_key, size_key


@dataclass(frozen=True)
class Moe:
    """Layers of experts: every token goes to `top_k` of `experts`, and to all `shared_experts`."""

    experts: int
    top_k: int
    expert_ffn: int
    shared_experts: int = 0
    shared_ffn: int = 0  # width of all shared experts together
    dense_layers: int = 0  # leading layers with an ordinary MLP
    node_limit: int = 0  # nodes that the router sends a token to at most (DeepSeek-V3, section 2.1.2); 0: any number


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): queries, keys and values through low ranks."""

    q_lora_rank: int  # 0: queries are projected directly
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class Model:
    """A transformer; names as in `models.yaml`, sizes in elements."""

    name: str
    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    seq_len: int  # that it was trained with; also the number of learned positions
    gated_mlp: bool = False
    tied_embeddings: bool = False
    bias: str = "none"  # all | qkv | none
    norm: str = "layernorm"  # layernorm | rmsnorm
    positions: str = "computed"  # learned | computed
    kind: str = "decoder"  # decoder | encoder
    moe: Moe | None = None
    mla: Mla | None = None
    window: int = 0  # tokens that layers with a window attend to, 0 where there are none
    window_layers: int = 0
    chunked: bool = False  # windows stand still: a token attends to those of its chunk
    sinks: bool = False  # learned attention sinks
    linear: LinearAttention | None = None
    attention_layers: int | None = None  # None: those that have no linear attention
    attention_gate: bool = False  # attention's output is multiplied by a projection of its input
    published: float | None = None  # billions of parameters, as the source prints them
    left_out: str = ""  # what of the architecture these fields do not hold, so that times do not either
    source: str = ""
    context: int = field(default=0, compare=False)  # tokens of a sequence that it was made for; 0: not known

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise ScenarioError(f"model {self.name}: " + "; ".join(faults))

    def _faults(self) -> Any:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "seq_len"):
            if getattr(self, name) < 1:
                yield f"{name} = {getattr(self, name)}, expected at least 1"
        if self.kv_heads > 0 and self.heads % self.kv_heads:
            yield f"heads = {self.heads}, expected a multiple of kv_heads = {self.kv_heads}"
        if self.moe is None and self.ffn_hidden < 1:
            yield f"ffn_hidden = {self.ffn_hidden}, expected at least 1"
        if self.moe is not None and not 1 <= self.moe.top_k <= self.moe.experts:
            yield f"top_k = {self.moe.top_k}, expected 1 to {self.moe.experts} (experts)"
        if self.moe is not None and not 0 <= self.moe.dense_layers <= self.layers:
            yield f"dense_layers = {self.moe.dense_layers}, expected 0 to {self.layers} (layers)"
        if not 0 <= self.window_layers <= self.layers or (self.window_layers > 0) != (self.window > 0):
            yield f"window_layers = {self.window_layers}, expected 1 to {self.layers} with a window, and 0 without"
        if self.linear is not None and self.linear.kind not in KINDS:
            yield f"linear.kind = {self.linear.kind!r}, expected one of {', '.join(KINDS)}"
        if self.linear is not None and self.linear.value_heads % max(self.linear.key_heads, 1):
            yield f"linear.value_heads = {self.linear.value_heads}, expected a multiple of {self.linear.key_heads}"
        if not 0 <= max(self.attending_layers, self.recurrent.layers) <= self.layers or self.attending_layers < 0:
            yield f"linear.layers = {self.recurrent.layers}, expected up to {self.layers}, and the others to attend"
        for name, expected in _CHOICES.items():
            if getattr(self, name) not in expected:
                yield f"{name} = {getattr(self, name)!r}, expected one of {', '.join(expected)}"

    @property
    def caveat(self) -> str:
        """What of the architecture no time and no memory holds, as a sentence; empty where nothing is left out."""
        return f"{self.name} without {self.left_out}" if self.left_out else ""

    @property
    def causal(self) -> bool:
        """Whether a token attends to those before it only."""
        return self.kind == "decoder"

    @property
    def q_width(self) -> int:
        """Elements of all query heads of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads (or all value heads) of a token."""
        return self.kv_heads * self.head_dim

    @property
    def qk_head_dim(self) -> int:
        """Elements of a head's query, and of its key."""
        return self.head_dim if self.mla is None else self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim

    @property
    def v_head_dim(self) -> int:
        """Elements of a head's value."""
        return self.head_dim if self.mla is None else self.mla.v_head_dim

    @property
    def value_width(self) -> int:
        """Elements of a token's attention output, before its projection."""
        return self.heads * self.v_head_dim

    @property
    def up_matrices(self) -> int:
        """Matrices of the first half of an MLP: a gate doubles them."""
        return 2 if self.gated_mlp else 1

    @property
    def routing(self) -> Moe:
        """`moe`, or one expert without weights: for formulas that count experts of any model."""
        return self.moe or Moe(1, 1, 0)

    @property
    def latent(self) -> Mla:
        """`mla`, or ranks of 0: for formulas that count latent attention of any model."""
        return self.mla or Mla(0, 0, 0, 0, 0)

    @property
    def recurrent(self) -> LinearAttention:
        """`linear`, or heads of 0: for formulas that count linear attention of any model."""
        return self.linear or NO_LINEAR

    @property
    def linear_share(self) -> float:
        """Mixers of linear attention over layers."""
        return self.recurrent.layers / self.layers

    @property
    def attending_layers(self) -> int:
        """Layers with attention; some may have linear attention as well, where one MLP follows both."""
        return self.layers - self.recurrent.layers if self.attention_layers is None else self.attention_layers

    @property
    def attending_share(self) -> float:
        """Attentions over layers."""
        return self.attending_layers / self.layers

    @property
    def mixer_parameters(self) -> float:
        """Weights of the mean layer's attention and linear attention."""
        linear = self.recurrent.layers * self.recurrent.parameters(self.hidden)
        return (self.attending_layers * self.attention_parameters + linear) / self.layers

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.moe is None else self.layers - self.moe.dense_layers

    def is_moe_layer(self, layer: int) -> bool:
        """Whether the MLP of a layer (from 0) is one of experts."""
        return self.moe is not None and layer >= self.moe.dense_layers

    @property
    def attention_parameters(self) -> int:
        """Weights and biases of the projections of an attention."""
        h = self.hidden
        if self.mla is not None:
            m = self.mla
            qk = self.heads * self.qk_head_dim
            query = h * m.q_lora_rank + m.q_lora_rank * (1 + qk) if m.q_lora_rank else h * qk
            down = h * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank
            up = m.kv_lora_rank * self.heads * (m.qk_nope_head_dim + m.v_head_dim)
            return query + down + up + self.value_width * h
        qkv = self.q_width + 2 * self.kv_width
        bias = {"all": qkv + h, "qkv": qkv, "none": 0}[self.bias]
        return h * qkv + self.q_width * h * (2 if self.attention_gate else 1) + bias

    def _mlp(self, width: int) -> int:
        matrices = self.up_matrices + 1
        bias = width * (matrices - 1) + self.hidden if self.bias == "all" else 0
        return matrices * self.hidden * width + bias

    @property
    def mlp_parameters(self) -> int:
        """Weights of the MLP of a layer without experts."""
        return self._mlp(self.ffn_hidden)

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert; 0 for a dense model."""
        return 0 if self.moe is None else self._mlp(self.moe.expert_ffn)

    @property
    def shared_expert_parameters(self) -> int:
        """Weights of a layer's shared experts."""
        return self._mlp(self.moe.shared_ffn) if self.moe is not None and self.moe.shared_ffn else 0

    @property
    def router_parameters(self) -> int:
        """Weights of a layer's router."""
        return 0 if self.moe is None else self.hidden * self.moe.experts

    @property
    def norm_parameters(self) -> int:
        """Weights of one normalisation."""
        return self.hidden * (2 if self.norm == "layernorm" and self.bias != "none" else 1)

    @property
    def dense_layer_parameters(self) -> float:
        """Weights of the mean layer with an ordinary MLP."""
        return self.mixer_parameters + self.mlp_parameters + 2 * self.norm_parameters

    @property
    def unrouted_parameters(self) -> float:
        """Weights of the mean layer with experts, without the routed ones."""
        shared = self.shared_expert_parameters + self.router_parameters
        return self.mixer_parameters + shared + 2 * self.norm_parameters

    @property
    def routed_parameters(self) -> int:
        """Weights of a layer's routed experts, all together."""
        return 0 if self.moe is None else self.moe.experts * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Weights of the word embedding and of learned positions."""
        return (self.vocab + (self.seq_len if self.positions == "learned" else 0)) * self.hidden

    @property
    def output_parameters(self) -> int:
        """Weights of the output matrix: 0 where it is the embedding."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    def parameters(self) -> int:
        """All weights."""
        inside = (self.layers - self.moe_layers) * self.dense_layer_parameters
        inside += self.moe_layers * (self.unrouted_parameters + self.routed_parameters)
        return round(inside) + self.embedding_parameters + self.output_parameters + self.norm_parameters

    def active_parameters(self) -> int:
        """Weights that a token meets: of the experts only `top_k`."""
        idle = (self.routing.experts - self.routing.top_k) * self.expert_parameters
        return self.parameters() - self.moe_layers * idle


_CHOICES = {
    "bias": ("all", "qkv", "none"),
    "norm": ("layernorm", "rmsnorm"),
    "positions": ("learned", "computed"),
    "kind": ("decoder", "encoder"),
}

_PRESETS = Path(__file__).with_name("models.yaml")


def build_model(name: str, entry: dict[str, Any]) -> Model:
    """A Model from the fields of a mapping, such as an entry of `models.yaml`."""
    fields = {k: v for k, v in entry.items() if k != "aliases"}
    parts = (("moe", Moe), ("mla", Mla), ("linear", LinearAttention))
    return Model(name, **fields | {part: kind(**fields[part]) for part, kind in parts if fields.get(part)})


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = read_documents(_PRESETS)[0].data
    return entries


def model_names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(_entries())


@lru_cache(maxsize=1)
def _by_key() -> dict[str, str]:
    """Preset by the key of its name or of an alias, or of its size alone."""
    aliases = {model_key(a): n for n, e in _entries().items() for a in e.get("aliases", ())}
    return {size_key(n): n for n in _entries()} | aliases | {model_key(n): n for n in _entries()}


@lru_cache(maxsize=256)
def model(name: str) -> Model:
    """The preset of a name as people write it; ScenarioError with the nearest names where it is unknown.

    >>> model("Llama-3 70B").name, model("Qwen3 MoE 30B").name
    ('llama3-70b', 'qwen3-30b-a3b')
    """
    key = model_key(name)
    preset = _by_key().get(key)
    if preset is None:
        if why := beyond(key):
            raise ScenarioError(f"found the model {name!r}, which cannot be described: {why}, not modelled here")
        near = difflib.get_close_matches(key, list(_by_key()), n=3, cutoff=0.5)
        hint = " or ".join(dict.fromkeys(_by_key()[k] for k in near)) or ", ".join(list(_entries())[:6]) + " ..."
        raise ScenarioError(f"found the model {name!r}, expected a preset such as {hint}, or a config.json")
    return build_model(preset, _entries()[preset])
