"""Layers whose token mixer is a recurrence over the sequence: linear attention and state-space models.

Both keep per value head a state of `key_dim` x `value_dim`, which every token decays, adds to, and reads: queries and
keys are what Mamba-2 calls C and B, values what it calls x (Dao & Gu 2024, arXiv:2405.21060, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("gated_delta_net", "mamba2")
"""Yang et al. 2024 (arXiv:2412.06464); Dao & Gu 2024."""


@dataclass(frozen=True)
class LinearAttention:
    """The mixers of so many layers; tokens are taken in chunks of `chunk` (flash-linear-attention: 64)."""

    kind: str
    layers: int
    key_heads: int  # of queries and keys each; Mamba-2: groups
    key_dim: int  # Mamba-2: the state's size
    value_heads: int
    value_dim: int
    conv: int = 4  # taps of the short causal convolution
    chunk: int = 64

    @property
    def delta(self) -> bool:
        """Whether a token first takes from the state what its key reads there (the delta rule)."""
        return self.kind == "gated_delta_net"

    @property
    def key_width(self) -> int:
        """Elements of a token's queries, and of its keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Elements of a token's values, of its output gate, and of what the recurrence makes."""
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution."""
        return 2 * self.key_width + self.value_width

    @property
    def input_width(self) -> int:
        """Columns of the input projections: queries, keys, values, output gate, and per head a decay; with the delta
        rule a strength, too."""
        return self.conv_width + self.value_width + self.value_heads * (2 if self.delta else 1)

    def parameters(self, hidden: int) -> int:
        """Weights of a layer's mixer: projections, convolution, per head its decay and step (Mamba-2: and skip), and
        the norm before the output."""
        matrices = hidden * (self.input_width + self.value_width)
        conv = self.conv_width * (self.conv if self.delta else self.conv + 1)
        heads = self.value_heads * (2 if self.delta else 3)
        return matrices + conv + heads + (self.value_dim if self.delta else self.value_width)

    @property
    def scan_flops(self) -> float:
        """FLOPs of a token's recurrence as Megatron-LM counts them (`training.py`, `num_floating_point_operations`):
        four products of a vector and the state with the delta rule, 7 for every element of Mamba-2's state."""
        return (8.0 if self.delta else 7.0) * self.value_width * self.key_dim


NO_LINEAR = LinearAttention("mamba2", 0, 0, 0, 0, 0)
"""For formulas that count linear attention of any model."""
