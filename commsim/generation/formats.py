"""Number formats of a served model: in which type its products are, and what weights, inputs and the cache weigh."""

from __future__ import annotations

from dataclasses import dataclass, replace

from commsim.errors import ScenarioError
from commsim.training.accelerator import Accelerator
from commsim.training.columns import Number


@dataclass(frozen=True)
class Format:
    """A way to multiply by a weight: type of the product, bytes of an element of the weight and of the input, scales
    counted; `kernel`: whose terms the kernels have."""

    name: str
    product: str
    weight_bytes: Number
    input_bytes: Number
    kernel: str

    @property
    def casts(self) -> bool:
        """Whether inputs are made narrower before a product."""
        return bool(self.input_bytes < 2.0)


FORMATS = {
    f.name: f
    for f in (
        Format("bf16", "bf16", 2.0, 2.0, "bf16"),
        Format("fp8", "fp8", 1.0, 1.0, "fp8"),
        Format("fp8_block", "fp8", 1.0 + 4.0 / 128**2, 1.0 + 4.0 / 128, "fp8_block"),  # DeepSeek-V3, section 3.3.2
        Format("nvfp4", "fp4", 0.5 + 1 / 16, 0.5 + 1 / 16, "nvfp4"),
        Format("mxfp4", "fp8", 0.5 + 1 / 32, 1.0 + 1 / 32, "nvfp4"),  # gpt-oss with inputs of 8 bit
        Format("mxfp4_wide", "bf16", 0.5 + 1 / 32, 2.0, "int4"),  # with inputs of 16 bit
        Format("int8", "fp8", 1.0, 1.0, "fp8"),  # runs at the rate of fp8 where there is one
        Format("int4", "bf16", 0.5 + 1 / 64, 2.0, "int4"),
    )
}
"""By name: weights and inputs as kernels of vLLM, SGLang and TensorRT-LLM take them."""

ALIASES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp16": "bf16",
    "fp4": "nvfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "w4a16_mxfp4": "mxfp4_wide",
    "int4_wo": "int4",
    "w4a16": "int4",
    "int8_wo": "int8",
    "sq": "int8",
    "fp8_static": "fp8",
    "fp8_ootb": "fp8",
}
"""Other names of the same."""

CACHE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5 + 1 / 16}
"""Of an element of the cache of keys and values."""


def format_of(name: str) -> Format:
    """The format of a name or alias; ScenarioError with the names where it is unknown."""
    key = name.strip().lower()
    one = FORMATS.get(ALIASES.get(key, key))
    if one is None:
        raise ScenarioError(f"found the format {name!r:.60}, expected one of {', '.join((*FORMATS, *ALIASES))}")
    return one


@dataclass(frozen=True)
class Formats:
    """The formats of one replica; `cache`: of `CACHE_BYTES`."""

    weights: Format = FORMATS["bf16"]
    experts: Format = FORMATS["bf16"]
    cache: str = "bf16"

    def __post_init__(self) -> None:
        if self.cache not in CACHE_BYTES:
            raise ScenarioError(f"found a cache in {self.cache!r:.60}, expected one of {', '.join(CACHE_BYTES)}")

    @property
    def cache_bytes(self) -> float:
        """Bytes of an element of the cache."""
        return CACHE_BYTES[self.cache]


def formats(weights: str, experts: str = "", cache: str = "") -> Formats:
    """By names; experts are as the weights and the cache is in 16 bit where nothing is said of them."""
    return Formats(format_of(weights), format_of(experts or weights), cache or "bf16")


def narrow(kind: Format, gpu: Accelerator) -> bool:
    """Whether a GPU lacks the units of a format; 8-bit integers have units of their own from Turing on."""
    return kind.product != "bf16" and kind.name != "int8" and not gpu.supports(kind.product)


def as_run(kind: Format, gpu: Accelerator) -> Format:
    """The format as kernels run it on a GPU: without units for it weights alone are narrow, as those of 4 bit beside
    16-bit inputs are (Marlin in vLLM and SGLang), and nothing is cast before a product."""
    return replace(kind, product="bf16", input_bytes=2.0, kernel="int4") if narrow(kind, gpu) else kind


def peak_of(gpu: Accelerator, kind: Format) -> float:
    """FLOP/s of the products of a format: 16-bit ones where the GPU has no narrower (weights are then widened)."""
    wide = gpu.half_peak
    if kind.product == "bf16":
        return wide
    if gpu.supports(kind.product):
        return gpu.peak(kind.product)
    return gpu.peak("fp8") if gpu.supports("fp8") else wide
