"""The operators of a transformer layer on one rank and one micro-batch: shapes of matrix products, FLOPs, bytes.

Shapes follow Megatron-LM's column- and row-parallel layers (Shoeybi et al. 2019, arXiv:1909.08053): tp cuts the output
width of the first matrix of a pair and the input width of the second. Experts are grouped products, one group per local
expert, after tokens have been exchanged among the ep ranks (GShard, arXiv:2006.16668).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from commsim.training.columns import Number, where
from commsim.training.model import Model
from commsim.training.spec import Steps


@dataclass(frozen=True, eq=False)
class Gemm:
    """`groups` products of (m, k) by (k, n); `wide` ones stay in 16 bit where others are fp8 or fp4.

    ``inner``: no factor is a weight. ``share``: of the layers that have them. ``drawn``: m is a mean over the groups,
    which differ as a router draws them.
    """

    name: str
    m: Number
    n: Number
    k: Number
    groups: Number = 1.0
    wide: bool = False
    inner: bool = False
    share: Number = 1.0
    drawn: Number = False

    def row_tiles(self, rows: int) -> Number:
        """Tiles of so many rows that cover m, over all groups: a group that is drawn wastes half of one."""
        return self.groups * where(self.drawn, np.maximum(self.m / rows + 0.5, 1.0), np.ceil(self.m / rows))


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention core of a rank's heads, forward."""

    pairs: Number  # of a sequence and a head
    queries: Number  # of each
    keys: Number
    span: Number  # keys that a query sees, the mean over all
    widths: Number  # of a query and a value
    nbytes: Number  # of queries, keys, values and output, once each
    head_dim: Number
    share: Number = 1.0  # of the layers that attend; `scores` and `flops` are of the mean layer

    @property
    def scores(self) -> Number:
        """Elements of the score matrices, masked ones too."""
        return self.share * self.pairs * self.queries * self.keys

    @property
    def flops(self) -> Number:
        """Of scores that the mask leaves, and of their weighted sums."""
        return 2.0 * self.share * self.pairs * self.queries * self.span * self.widths


BACKWARD_BYTES = 1.7
"""Traffic of an element-wise operator's backward over its forward: it reads the gradient and the saved input."""

GATED_BYTES, PLAIN_BYTES = 6.0, 4.0
"""Per output of an activation function in 16 bit: two inputs (or one) read, one output written."""

CLAMPED_BYTES, BIAS_BYTES = 54.0, 8.0
"""Per output of GPT-OSS's clamped SwiGLU beyond a fused one's, and per element of the layer's output, in 16 bit, kernel
by kernel as Megatron-Core runs what it does not fuse (`transformer/moe/experts.py`): biases added expert by expert and
put together (16 and 8), two clamps (8), 1.702 x, its sigmoid and their product (14), the gate (10), the routing weights
in fp32 and back (12), less the 6 of a fused one. That it is not fused before the software that captures expert layers
in CUDA graphs is inferred from published times: without, they are a fifth to a third too short at any length."""

ROTARY_BYTES = 5.0
"""Per element of queries, keys and values: read and written in 16 bit (4), and 1 assumed for angles and strides."""

LOSS_BYTES = 24.0
"""Per token and word of the loss, both passes (Megatron-Core `fused_cross_entropy.py`): an fp32 copy (2 + 4), its
maximum (4), exponentials in place and their sum (8), and their gradient in 16 bit (4 + 2)."""

FUSED_NORM_BYTES, PLAIN_NORM_BYTES = 14.0, 22.0
"""Per token and element of a layer's two residual additions with dropout: two inputs, an output and a mask of one byte
each (7); a norm that is not fused with it reads and writes (4)."""


SOFTMAX_ALONE_KERNELS, SOFTMAX_ALONE_BYTES = 4.0, 33.0
"""Beyond Megatron-LM's fused softmax of unfused attention, where it falls back to torch's: a cast to fp32 (6 bytes per
score), scale (8), mask (9), softmax (8) and the cast back (6) in place of one kernel that reads and writes 4."""


def softmax_alone(step: Steps) -> Number:
    """Whether Megatron-LM's softmax of unfused attention is torch's: where the heads of a micro-batch on a rank are no
    multiple of 4 (`fused_softmax.py`, `is_kernel_available`: a block of threads takes four)."""
    return (step.flash_attention == 0) & (step.micro_batch_size * step.model.heads / step.tp % 4 != 0)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer: operators and the number of kernels that the host launches for its forward pass.

    ``elementwise``: bytes forward of operators whose time is their memory traffic (backward `BACKWARD_BYTES` times).
    """

    gemms: tuple[Gemm, ...]
    attention: Attention
    elementwise: dict[str, Number]
    kernels: Number


def attention_gemms(step: Steps) -> tuple[Gemm, ...]:
    """Projections before and after the attention core, and of linear attention; those of latent attention are empty
    where there is none."""
    model, latent, tp, t = step.model, step.model.latent, step.tp, step.rank_tokens
    low = latent.kv_lora_rank > 0
    qk = model.heads * model.qk_head_dim
    down = latent.q_lora_rank + latent.kv_lora_rank + latent.qk_rope_head_dim
    up = model.heads * (latent.qk_nope_head_dim + model.v_head_dim)
    query = model.value_width * where(model.attention_gate, 2, 1)
    gemms = (
        Gemm("qkv", t, where(low, 0, query + 2 * model.kv_width) / tp, model.hidden),
        Gemm("latent_down", t, where(low, down, 0), model.hidden),
        Gemm("query_up", t, where(low, qk, 0) / tp, where(latent.q_lora_rank > 0, latent.q_lora_rank, model.hidden)),
        Gemm("kv_up", t, where(low, up, 0) / tp, latent.kv_lora_rank),
        Gemm("projection", t, model.hidden, model.value_width / tp),
    )
    if not np.any(model.linear_share > 0):
        return gemms
    return (*(replace(g, share=model.attending_share) for g in gemms), *linear_gemms(step))


def linear_gemms(step: Steps) -> tuple[Gemm, ...]:
    """Projections of linear attention and, chunk by chunk and head by head, the products of its scan.

    Scores of queries by keys and their values, the state that a chunk adds to and what it reads of it (Dao & Gu 2024,
    section 6; scores once per group of heads); the delta rule also has scores of keys by keys, which the inverse of its
    triangle turns into keys and values, and what these read of the state (Yang et al. 2024, equations 8 to 10).
    """
    model, mix, tp, t = step.model, step.model.recurrent, step.tp, step.rank_tokens
    chunk = np.maximum(mix.chunk, 1)
    heads = mix.value_heads / tp * t / chunk
    twice = where(mix.delta, 2.0, 1.0)
    per_group = mix.key_heads / np.maximum(mix.value_heads, 1)
    inside = (
        ("scan_scores", chunk, chunk, mix.key_dim, heads * where(mix.delta, 2.0, per_group)),
        ("scan_keys", chunk, mix.key_dim, chunk, heads * where(mix.delta, 1.0, 0.0)),
        ("scan_values", chunk, mix.value_dim, chunk, heads * twice),
        ("scan_reads", chunk, mix.value_dim, mix.key_dim, heads * twice),
        ("scan_adds", mix.key_dim, mix.value_dim, chunk, heads),
    )
    share = model.linear_share
    return (
        Gemm("linear_in", t, mix.input_width / tp, model.hidden, share=share),
        *(Gemm(name, m, n, k, groups, True, True, share) for name, m, n, k, groups in inside),
        Gemm("linear_out", t, model.hidden, mix.value_width / tp, share=share),
    )


def attended_span(model: Model, length: Number, causal: Number) -> Number:
    """Tokens that one of a sequence attends to, the mean over sequence and layers; ``causal``: to none after it.

    Of a sliding window w, whose start is short, w - w (w - 1) / (2 length); in chunks as in sequences so long.
    """
    whole = where(causal, (length + 1) / 2, length)
    if not np.any(model.window_layers > 0):
        return whole
    width = where(model.window > 0, np.minimum(model.window, length), length)
    slid = width - where(causal, width * (width - 1) / (2 * length), 0.0)
    near = where(model.chunked, where(causal, (width + 1) / 2, width), slid)
    share = model.window_layers / np.maximum(model.attending_layers, 1)
    return (1 - share) * whole + share * near


def attention_core(step: Steps) -> Attention:
    """Scores and weighted sum, 4 s^2 h FLOPs per sequence; a causal mask halves them where the kernel skips tiles, and
    packed documents leave those of their own."""
    model, t, fused = step.model, step.rank_tokens, step.flash_attention
    keys = where(fused, step.attended_len, step.seq_len)
    queries = keys / step.cp
    span = where(fused, attended_span(model, keys, model.causal), keys)
    pairs = t / queries * model.heads / step.tp * where(fused, step.busiest_attention, 1.0)
    nbytes = 2.0 * t * (2 * model.value_width + 2 * model.kv_width) / step.tp
    widths = model.qk_head_dim + model.v_head_dim
    return Attention(pairs, queries, keys, span, widths, nbytes, model.qk_head_dim, model.attending_share)


def _elementwise(step: Steps, activated: Number, quantised: Number) -> dict[str, Number]:
    """Bytes of what every layer has: norms with their residual additions, the activation function of so many elements,
    rotary embedding, and casts of so many inputs of narrow products (read 16 bit, write 8 bit and its transpose)."""
    norm = where(step.flash_attention, FUSED_NORM_BYTES, PLAIN_NORM_BYTES)
    made = {
        "norms": step.rank_tokens * step.model.hidden * norm / step.sequence_cut,
        "activation": activated * where(step.model.gated_mlp, GATED_BYTES, PLAIN_BYTES),
        "rotary": step.rank_tokens * _qkv_width(step) / step.tp * ROTARY_BYTES * step.model.attending_share,
        "casts": quantised * where(step.precision.narrow, 3.0, 0.0),
    }
    if np.any(step.model.linear_share > 0):
        made["scan"] = step.rank_tokens / step.tp * step.model.linear_share * _scan_bytes(step)
    return made


def _scan_bytes(step: Steps) -> Number:
    """Bytes per token of a linear attention's convolution (16 bit read and written), of its queries' and keys' norms
    with the delta rule, and of its gated norm: what the scan made and the gate read, one written."""
    mix = step.model.recurrent
    return 4.0 * mix.conv_width + where(mix.delta, 8.0, 0.0) * mix.key_width + 6.0 * mix.value_width


def _qkv_width(step: Steps) -> Number:
    return step.model.value_width + 2 * step.model.kv_width


def dense_layer(step: Steps) -> Layer:
    """A layer with an ordinary MLP."""
    model, tp, t = step.model, step.tp, step.rank_tokens
    gemms = (
        *attention_gemms(step),
        Gemm("mlp_up", t, model.ffn_hidden * model.up_matrices / tp, model.hidden),
        Gemm("mlp_down", t, model.hidden, model.ffn_hidden / tp),
    )
    quantised = t * (_qkv_width(step) + model.value_width) / tp + t * model.ffn_hidden / tp * 2 + 2 * t * model.hidden
    elementwise = _elementwise(step, t * model.ffn_hidden / tp, quantised)
    return Layer(gemms, attention_core(step), elementwise, _kernels(step))


def moe_layer(step: Steps) -> Layer:
    """A layer of experts: router, permutation, grouped products over the local experts, shared experts."""
    model, moe, tp, t = step.model, step.model.routing, step.tp, step.rank_tokens
    mine = t / tp * step.expert_tp  # tokens that enter the experts' group: sequence parallelism cuts by tp
    rows = mine * moe.top_k  # copies that a rank sends, and on average receives
    local = moe.experts / step.ep
    per_expert = rows * step.imbalance / local
    routed = t / step.sequence_cut
    drawn = step.imbalance > 1.0
    gemms = (
        *attention_gemms(step),
        Gemm("router", routed, moe.experts, model.hidden, wide=True),
        Gemm(
            "experts_up",
            per_expert,
            moe.expert_ffn * model.up_matrices / step.expert_tp,
            model.hidden,
            local,
            drawn=drawn,
        ),
        Gemm("experts_down", per_expert, model.hidden, moe.expert_ffn / step.expert_tp, local, drawn=drawn),
        Gemm("shared_up", t, moe.shared_ffn * model.up_matrices / tp, model.hidden),
        Gemm("shared_down", t, model.hidden, moe.shared_ffn / tp),
    )
    quantised = (
        t * (_qkv_width(step) + model.value_width) / tp + rows * (moe.expert_ffn + model.hidden) + t * model.hidden
    )
    activated = rows * moe.expert_ffn / step.expert_tp + t * moe.shared_ffn / tp
    plain = where(model.sinks & (step.cuda_graphs == 0) & (step.stack == "tuned"), 1.0, 0.0)
    elementwise = _elementwise(step, activated, quantised) | {
        # Gather the copies, scatter them to their experts, back, and the weighted sum: each reads and writes 16 bit.
        "permute": rows * model.hidden * 2.0 * (2 + 2 + 2 + 2),
        "router": routed * moe.experts * 4.0 * 6,
    }
    if np.any(model.sinks):
        clamped = rows * moe.expert_ffn / step.expert_tp * CLAMPED_BYTES + rows * model.hidden * BIAS_BYTES
        elementwise["clamp"] = plain * clamped
    # A grouped product launches per local expert; narrow formats also quantise each expert's input, in one kernel with
    # its transpose; a clamped activation is a dozen kernels, and its biases are added expert by expert.
    per_local = (where(step.precision.narrow, 4.0, 2.0) + plain * 2.0) * np.minimum(local, 64.0)
    return Layer(gemms, attention_core(step), elementwise, _kernels(step) + 30.0 + per_local + plain * 12.0)


def logits(step: Steps) -> tuple[Gemm, Number]:
    """Output matrix of the last stage, and bytes of its cross entropy, cut by tp."""
    words = step.model.vocab / step.tp
    gemm = Gemm("logits", step.rank_tokens, words, step.model.hidden, wide=True)
    return gemm, step.rank_tokens * words * LOSS_BYTES


def _kernels(step: Steps) -> Number:
    """Kernels of a dense layer's forward pass: 16 fused, 24 with an unfused attention, 4 more with tp.

    In place of attention's one kernel a scan has a convolution and five (mamba_ssm, `ssd_combined.py`), the delta rule
    also two norms and one more (flash-linear-attention, `gated_delta_rule/chunk.py`).
    """
    alone = where(softmax_alone(step), SOFTMAX_ALONE_KERNELS, 0.0)
    scans = step.model.linear_share * where(step.model.recurrent.delta, 8.0, 5.0)
    return where(step.flash_attention, 16.0, 24.0) + where(step.tp > 1, 4.0, 0.0) + alone + scans
