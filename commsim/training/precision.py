"""Number formats of a training step: what is multiplied in which type, and bytes per parameter of every state.

Sources: mixed precision with fp32 master weights, Micikevicius et al. 2018 (arXiv:1710.03740); 16 bytes per parameter
with Adam, Rajbhandari et al. 2020 (arXiv:1910.02054, section 3.1); 18 with fp32 gradients, Megatron-LM
`arguments.py` (`--accumulate-allreduce-grads-in-fp32`); 20 with a second fp32 copy of the gradients, Smith et al. 2022
(arXiv:2201.11990, section 3.1); ``pure-bf16``: weights, gradients and moments in 16 bit, as torchtune's
``dtype: bf16`` trains; 8-bit states, Dettmers et al. 2022 (arXiv:2110.02861); Adafactor, Shazeer & Stern 2018
(arXiv:1804.04235).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commsim.errors import ScenarioError
from commsim.training.accelerator import Accelerator

BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp6": 0.75, "fp4": 0.5}
"""Bytes of an element in memory; tf32 is fp32 with shorter factors."""

OPTIMIZER_BYTES = {
    "adam": 8.0,
    "adamw": 8.0,
    "adam-bf16": 4.0,  # Megatron-LM: --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
    "adam-fp8": 2.0,  # the same with fp8 (`arguments.py` allows fp32, fp16, bf16 and fp8)
    "adam-8bit": 2.0,  # bitsandbytes AdamW8bit
    "paged-adam": 8.0,  # bitsandbytes PagedAdamW
    "paged-adam-8bit": 2.0,  # bitsandbytes PagedAdamW8bit
    "sgd": 0.0,
    "sgd-momentum": 4.0,
    "adafactor": 0.0,
    "muon": 4.0,  # its momentum; embedding and output have the moments of adamw
}
"""Bytes of state per parameter beside the master weight. Adafactor keeps a row and a column per matrix: none per
parameter. The block constants of 8-bit states add 4 bytes per 256 parameters and state, below 2 %."""

_OWN_TYPE = ("adam-bf16", "adam-fp8", "adam-8bit", "paged-adam-8bit")
"""Optimizers whose states have a type of their own; those of the others have the type of the weights they update."""

PAGED = ("paged-adam", "paged-adam-8bit")
"""Optimizers whose states lie in memory that CUDA moves to the host when the GPU is full (unified memory, Dettmers et
al. 2023, arXiv:2305.14314, section 3): they take room only where there is some."""


@dataclass(frozen=True)
class Precision:
    """The types of one step; bytes are per parameter and before any sharding."""

    name: str
    gemm: str  # type of the factors of weight GEMMs
    attention: str  # of the attention core and the output matrix, which stay wider than fp8
    activation: str  # of stored activations
    weight: str  # of the weights that are multiplied
    gradient: str  # in which gradients are kept and reduced
    master: bool  # a fp32 copy of the weights
    extra_gradient_bytes: float = 0.0  # a second copy of the gradients

    @property
    def fp8(self) -> bool:
        """Whether weights are multiplied in 8 or 6 bit, which run at one rate."""
        return self.gemm in ("fp8", "fp6")

    @property
    def fp4(self) -> bool:
        """Whether weights are multiplied in 4 bit."""
        return self.gemm == "fp4"

    @property
    def narrow(self) -> bool:
        """Whether the factors of products are quantised below 16 bit."""
        return self.fp8 or self.fp4

    @property
    def gemm_bytes(self) -> float:
        """Bytes of a factor of a product; block scales count for the rest of a narrower one."""
        return 1.0 if self.narrow else self.weight_bytes

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight as it is multiplied and gathered."""
        return BYTES[self.weight]

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a gradient as it is kept and reduced."""
        return BYTES[self.gradient]

    @property
    def activation_bytes(self) -> float:
        """Bytes of a stored activation."""
        return BYTES[self.activation]

    def optimizer_bytes(self, optimizer: str) -> float:
        """Bytes of the optimizer's states and the master weight."""
        if optimizer not in OPTIMIZER_BYTES:
            raise ScenarioError(f"found the optimizer {optimizer!r}, expected one of {', '.join(OPTIMIZER_BYTES)}")
        states = OPTIMIZER_BYTES[optimizer]
        if not self.master and optimizer not in _OWN_TYPE:
            states *= BYTES[self.weight] / 4.0  # the states have the type of the weights
        return states + (4.0 if self.master else 0.0)

    def resident_bytes(self, optimizer: str) -> float:
        """Of `optimizer_bytes` those that must be on the GPU: paged states may leave it."""
        paged = OPTIMIZER_BYTES[optimizer] if optimizer in PAGED else 0.0
        if optimizer not in _OWN_TYPE and not self.master:
            paged *= BYTES[self.weight] / 4.0
        return self.optimizer_bytes(optimizer) - paged

    def state_bytes(self, optimizer: str = "adam") -> float:
        """Bytes per parameter of weight, gradient, master copy and states: 16, 18, 20 for the mixed formats."""
        return self.weight_bytes + self.gradient_bytes + self.extra_gradient_bytes + self.optimizer_bytes(optimizer)

    def resident_state_bytes(self, optimizer: str) -> float:
        """Of `state_bytes` those that must be on the GPU."""
        return self.state_bytes(optimizer) - self.optimizer_bytes(optimizer) + self.resident_bytes(optimizer)

    def check(self, accelerator: Accelerator) -> None:
        """ScenarioError where the accelerator cannot multiply in these types."""
        for dtype in dict.fromkeys((self.gemm, self.attention)):
            accelerator.peak(dtype)


PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp64", "fp64", "fp64", "fp64", "fp64", "fp64", master=False),
        Precision("fp32", "fp32", "fp32", "fp32", "fp32", "fp32", master=False),
        Precision("tf32", "tf32", "tf32", "fp32", "fp32", "fp32", master=False),
        Precision("fp16-fp32", "fp16", "fp16", "fp16", "fp16", "fp16", master=True),
        Precision("bf16-fp32", "bf16", "bf16", "bf16", "bf16", "bf16", master=True),
        Precision("fp8-bf16-fp32", "fp8", "bf16", "bf16", "bf16", "bf16", master=True),
        Precision("fp4-bf16-fp32", "fp4", "bf16", "bf16", "bf16", "bf16", master=True),
        Precision("pure-fp16", "fp16", "fp16", "fp16", "fp16", "fp16", master=False),
        Precision("pure-bf16", "bf16", "bf16", "bf16", "bf16", "bf16", master=False),
    )
}
"""By name. Mixed formats keep 16-bit gradients (16 bytes per parameter); see `with_gradients` for 18 and 20."""

ALIASES = {
    "fp16": "fp16-fp32",
    "bf16": "bf16-fp32",
    "bfloat16": "bf16-fp32",
    "float16": "fp16-fp32",
    "fp8": "fp8-bf16-fp32",
    "mxfp8": "fp8-bf16-fp32",
    "nvfp4": "fp4-bf16-fp32",
    "fp4": "fp4-bf16-fp32",
}


def precision(name: str) -> Precision:
    """The precision of a name or alias (``bf16`` is ``bf16-fp32``)."""
    key = name.strip().lower()
    formats = PRECISIONS.get(ALIASES.get(key, key))
    if formats is None:
        raise ScenarioError(f"found the precision {name!r}, expected one of {', '.join((*PRECISIONS, *ALIASES))}")
    return formats


def with_gradients(formats: Precision, variant: int) -> Precision:
    """A mixed precision at 16, 18 (fp32 gradients) or 20 (16-bit and fp32 gradients) bytes per parameter with Adam."""
    if not formats.master or variant not in (16, 18, 20):
        raise ScenarioError(
            f"found {variant} bytes per parameter for {formats.name}, expected 16, 18 or 20 of a mixed precision"
        )
    if variant == 16:
        return replace(formats, gradient=formats.weight, extra_gradient_bytes=0.0)
    return replace(formats, gradient="fp32", extra_gradient_bytes=BYTES[formats.weight] if variant == 20 else 0.0)
