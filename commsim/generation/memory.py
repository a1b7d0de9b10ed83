"""Memory of a replica: weights, cache, and how many sequences have room."""

from __future__ import annotations

from dataclasses import dataclass

from commsim.generation.attention import STATE_BYTES
from commsim.generation.replica import Replica
from commsim.units import GIGA

USABLE = 0.9
"""Share of a GPU's memory that engines take (vLLM, `--gpu-memory-utilization`; SGLang and TensorRT-LLM alike)."""

WORKSPACE_BYTES = 3.0 * GIGA
"""Of activations, CUDA graphs, buffers of collectives: 2 to 4 GB are reported at start by vLLM for 8B to 70B models."""


@dataclass(frozen=True)
class ReplicaMemory:
    """Bytes on one GPU of a replica; ``cache_bytes_per_token`` and ``state_bytes``: of one sequence of a dp group."""

    weights_bytes: float
    cache_bytes_per_token: float
    state_bytes: float
    room_bytes: float  # that engines take of the GPU
    window: int
    windowed_share: float  # of the cache's bytes per token, those of layers with a window
    groups: int

    @property
    def cache_room_bytes(self) -> float:
        """What is left for the cache; 0 where the weights do not fit."""
        return max(self.room_bytes - self.weights_bytes - WORKSPACE_BYTES, 0.0)

    @property
    def fits(self) -> bool:
        """Whether the weights leave any room."""
        return self.cache_room_bytes > 0

    def sequence_bytes(self, context: float) -> float:
        """Of a sequence of so many tokens."""
        near = min(context, self.window) if self.window else context
        per_token = self.cache_bytes_per_token
        share = self.windowed_share
        return self.state_bytes + per_token * ((1.0 - share) * context + share * near)

    def most_sequences(self, context: float) -> int:
        """Sequences of so many tokens that the whole replica holds."""
        one = self.sequence_bytes(context)
        return int(self.cache_room_bytes / one) * self.groups if one > 0 else 2**31

    @property
    def most_tokens(self) -> int:
        """Tokens of long sequences that the whole replica holds."""
        per_token = self.cache_bytes_per_token
        return int(self.cache_room_bytes / per_token) * self.groups if per_token > 0 else 2**31


def replica_memory(r: Replica) -> ReplicaMemory:
    """The memory of the fullest GPU.

    >>> from commsim.training.accelerator import accelerator
    >>> from commsim.training.model import model
    >>> from commsim.units import GIGA
    >>> m = replica_memory(Replica(model("llama-3-8b"), accelerator("H100")))
    >>> round(m.weights_bytes / GIGA, 1), round(m.cache_bytes_per_token), m.most_sequences(8192)
    (16.1, 131072, 53)
    """
    model, pp = r.model, r.pp
    attention = model.layers * model.mixer_parameters / r.tp
    if model.mla is not None:
        mla = model.mla
        down = model.hidden * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim)
        attention += model.layers * down * (1.0 - 1.0 / r.tp)  # held by every rank
    dense = (model.layers - model.moe_layers) * model.mlp_parameters / r.tp
    dense += model.moe_layers * (model.shared_expert_parameters / r.tp + model.router_parameters)
    experts = model.moe_layers * model.routed_parameters / (r.moe_tp * r.moe_ep)
    words = (model.embedding_parameters + model.output_parameters) / r.tp
    weights = (attention + dense) / pp * r.formats.weights.weight_bytes
    weights += experts / pp * r.formats.experts.weight_bytes + words * 2.0
    width = (
        2.0 * r.kv_heads * model.head_dim
        if model.mla is None
        else float(model.mla.kv_lora_rank + model.mla.qk_rope_head_dim)
    )
    per_token = width * r.formats.cache_bytes * model.attending_layers / pp
    mix = model.recurrent
    state = mix.layers / pp * (mix.value_width * mix.key_dim * STATE_BYTES + mix.conv_width * mix.conv * 2.0) / r.tp
    share = model.window_layers / model.attending_layers if model.attending_layers else 0.0
    return ReplicaMemory(weights, per_token, state, USABLE * r.gpu.memory_bytes, model.window, share, r.attention_dp)
