"""The parameters of generation: what kernels of serving frameworks reach, and what their hosts take."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from commsim.training.accelerator import Accelerator
from commsim.training.compute import Values
from commsim.training.parameters import Parameter, parameters

PATH = Path(__file__).with_name("parameters.yaml")


def generation_parameters() -> tuple[Parameter, ...]:
    """All parameters of generation, in the order of the file."""
    return parameters(PATH)


@lru_cache(maxsize=1)
def generation_values() -> Values:
    """By name, what ships."""
    return MappingProxyType({p.name: p.value for p in generation_parameters()})


REFERENCE_W_PER_FLOP = 700.0 / 989e12
POWER = 0.1


def short_peak(gpu: Accelerator, peak: float) -> float:
    """FLOP/s of short kernels: boards with more watts per 16-bit FLOP/s reach more of their peak (an exponent of 0.1,
    `validation/measured_operators.py`)."""
    return float(peak * (gpu.tdp_w / gpu.half_peak / REFERENCE_W_PER_FLOP) ** POWER)
