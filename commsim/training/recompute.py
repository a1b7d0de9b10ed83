"""What the modules of selective recomputation cost: the share of a forward's products and of its other kernels."""

from __future__ import annotations

import numpy as np

from commsim.training.columns import Number, holds, where
from commsim.training.operators import FUSED_NORM_BYTES, PLAIN_NORM_BYTES, Layer, dense_layer, moe_layer
from commsim.training.spec import MODULES, Steps

PRODUCTS = {
    "mla_up_proj": ("query_up", "kv_up"),
    "mlp": ("mlp_up", "mlp_down"),
    "moe": ("router", "experts_up", "experts_down", "shared_up", "shared_down"),
    "shared_experts": ("shared_up", "shared_down"),
}
"""Products that a module makes again, by the names of `commsim.training.operators`."""

KERNELS = {
    "mla_up_proj": ("rotary",),
    "mlp": ("activation",),
    "moe_act": ("activation",),
    "moe": ("activation", "permute", "router"),
}
"""The same for element-wise kernels. The exchanges that ``moe`` repeats are not counted."""

_DENSE_ONLY, _EXPERTS_ONLY = ("mlp",), ("moe_act", "moe", "shared_experts")

NORM_BYTES_AGAIN = 8.0
"""Per token and element of two norms without their residual additions: each reads and writes 16 bit."""


def module_shares(step: Steps) -> tuple[Number, Number]:
    """(of the products, of the other kernels) of a forward over all layers, what the step's modules make again."""
    present = {m: holds(step.recompute_modules, m) for m in MODULES if m != "core_attn"}
    if not any(np.any(there) for there in present.values()):
        return 0.0, 0.0
    experts = step.model.moe_layers
    kinds = (
        (dense_layer(step), step.model.layers - experts, _EXPERTS_ONLY),
        (moe_layer(step), experts, _DENSE_ONLY),
    )
    products: Number = 0.0
    kernels: Number = 0.0
    for layer, count, others in kinds:
        here = {m: there for m, there in present.items() if m not in others}
        products = products + count * sum(_made(PRODUCTS, name, here) * n for name, n in _flops(layer).items())
        kernels = kernels + count * sum(_made(KERNELS, name, here) * n for name, n in layer.elementwise.items())
        norm = where(step.flash_attention, FUSED_NORM_BYTES, PLAIN_NORM_BYTES)
        kernels = kernels + count * here["layernorm"] * layer.elementwise["norms"] * NORM_BYTES_AGAIN / norm
    all_products = sum(count * sum(_flops(layer).values()) for layer, count, _ in kinds)
    all_kernels = sum(count * sum(layer.elementwise.values()) for layer, count, _ in kinds)
    return products / all_products, kernels / all_kernels


def _made(table: dict[str, tuple[str, ...]], name: str, present: dict[str, Number]) -> Number:
    """Whether one of the modules makes what is called so again."""
    made: Number = False
    for module, there in present.items():
        if name in table.get(module, ()):
            made = made | there
    return made


def _flops(layer: Layer) -> dict[str, Number]:
    """Half of every product's FLOPs by its name."""
    return {g.name: g.m * g.n * g.k * g.groups * g.share for g in layer.gemms}
