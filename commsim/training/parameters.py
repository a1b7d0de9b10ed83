"""The parameters of a step's closed form: values that ship, where a fit begins and how far it may go."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from commsim.document import raise_faults, read_documents
from commsim.errors import Fault, ScenarioError
from commsim.training.compute import Values

PATH = Path(__file__).with_name("parameters.yaml")

_ON = "calibrated_on"
"""The key of a file under which the generation of the GPU stands whose steps it was calibrated with."""


@dataclass(frozen=True)
class Parameter:
    """One entry of `parameters.yaml`; times in seconds, shares and factors without unit."""

    name: str
    start: float
    spread: float  # standard deviation of ln(value / start) before any fit; 0: not fitted
    value: float
    source: str


@lru_cache(maxsize=2)
def parameters(path: Path = PATH) -> tuple[Parameter, ...]:
    """All parameters, in the order of the file."""
    entries: dict[str, dict[str, Any]] = read_documents(path)[0].data
    return tuple(
        Parameter(name, float(e["start"]), float(e["spread"]), float(e["value"]), e["source"])
        for name, e in entries.items()
    )


@lru_cache(maxsize=1)
def shipped_values() -> Values:
    """By name, what ships."""
    return MappingProxyType({p.name: p.value for p in parameters()})


def read_values(path: Path) -> Values:
    """The shipped values with those of a file in their place: ``name: number`` per line, times in seconds.

    Such a file holds what was measured on a machine, or what `values_text` wrote. Every fault of it at its line.
    """
    document = read_documents(path)[0]
    known = {p.name for p in parameters()}
    faults: list[Fault] = []
    values = dict(shipped_values())
    if not isinstance(document.data, dict):
        raise_faults([document.fault((), "found no mapping, expected lines such as 'gemm.hopper: 0.7'")], ScenarioError)
    for name, value in document.data.items():
        if name == _ON and isinstance(value, str):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "expected a name of parameters.yaml"
            faults.append(document.fault((name,), f"found the unknown key {name!r:.60}, {hint}", at_key=True))
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
            faults.append(document.fault((name,), f"found {value!r:.60}, expected a number above 0"))
        else:
            values[name] = float(value)
    if faults:
        raise_faults(faults, ScenarioError)
    return MappingProxyType(values)


def calibrated_on(path: Path) -> str:
    """The generation of the GPU whose steps a file of `read_values` was calibrated with; empty if it does not say."""
    return str(read_documents(path)[0].data.get(_ON, ""))


def values_text(values: Mapping[str, float], source: str, generation: str = "") -> str:
    """What differs from the shipped values as a file that `read_values` reads; `source` says where it comes from.

    `generation`: of the GPU whose steps say so.
    """
    lines = [f"# {line}" for line in source.splitlines()]
    if generation:
        lines.append(f"{_ON}: {generation}")
    for name, value in values.items():
        if value != shipped_values()[name]:
            text = f"{value:.5g}"
            mantissa, e, exponent = text.partition("e")
            lines.append(f"{name}: {mantissa if '.' in mantissa or not e else mantissa + '.0'}{e}{exponent}")
    return "\n".join(lines) + "\n"
