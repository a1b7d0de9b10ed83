"""The parameters of generation: what kernels of serving frameworks reach, and what their hosts take."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

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
