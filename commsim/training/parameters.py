"""The parameters of a step's closed form: values that ship, where a fit begins and how far it may go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from commsim.document import read_documents
from commsim.training.compute import Values

PATH = Path(__file__).with_name("parameters.yaml")


@dataclass(frozen=True)
class Parameter:
    """One entry of `parameters.yaml`; times in seconds, shares and factors without unit."""

    name: str
    start: float
    spread: float  # standard deviation of ln(value / start) before any fit; 0: not fitted
    value: float
    source: str


@lru_cache(maxsize=1)
def parameters() -> tuple[Parameter, ...]:
    """All parameters, in the order of the file."""
    entries: dict[str, dict[str, Any]] = read_documents(PATH)[0].data
    return tuple(
        Parameter(name, float(e["start"]), float(e["spread"]), float(e["value"]), e["source"])
        for name, e in entries.items()
    )


@lru_cache(maxsize=1)
def shipped_values() -> Values:
    """By name, what ships."""
    return MappingProxyType({p.name: p.value for p in parameters()})
