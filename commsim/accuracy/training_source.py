"""What a table of training steps does not say of the software that ran them, and how it counts FLOPs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """How to read blank columns of one source's rows; the defaults are vendor-tuned software of today."""

    name: str
    stack: str = "tuned"
    attention: str = "vendor"
    flash: bool = True
    zero: int = 1
    sp: bool = True  # sequence parallelism where tp > 1
    overlap: frozenset[str] = frozenset(("dp", "pp"))
    recompute: str = "none"
    selective: str = "selective"  # what the source's word "selective" means
    chunks: str | tuple[tuple[int, int], ...] = "one"
    vocab: int = 51200
    gated_mlp: bool = False  # whatever the width of the MLP says
    multi_token_prediction: bool = False  # its module of DeepSeek-V3 is one more layer, unless notes name it left out
    convention: str = "causal"  # of printed TFLOP/s: hardware | causal | full | six
    fp32_gradients: bool = True
    imbalance: float = 1.0  # busiest expert over the mean
    expert_tp: bool = False  # experts are cut by tp as well
    graphs_from: tuple[int, int] = (99, 0)  # container from which expert layers run under CUDA graphs
    compiled_where: str = "compile|paxml|maxtext"  # words in notes, table or precision
    unfused_where: str = "$^"


def unknown_source(text: str) -> Source:
    """The defaults, under the first words of what a row names as its source."""
    return Source(" ".join(text.split()[:3])[:40] or "unnamed")
