"""The fields of the channel model that a calibration may move, and a Parameters from their values.

A field is a pair (scope, path): ``("ampere", "base.LL")``, ``("slingshot", "network.message_cost")``; the launch
belongs to the host and has the scope ``"launch"`` for all generations. `priors.yaml` lists the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from commsim.document import read_documents
from commsim.nccl.parameters import GENERATIONS, NETWORKS, Parameters, load_parameters
from commsim.units import parse_time

Field = tuple[str, str]
Float64 = npt.NDArray[np.float64]

PRIORS = Path(__file__).parent / "priors.yaml"

_SHARED = 0.5
"""Share of the variance that fields of one group have in common."""


@dataclass(frozen=True, eq=False)
class FieldSpace:
    """The fields in a fixed order: shipped value, whether a field is a time (else a rate), the prior."""

    fields: tuple[Field, ...]
    shipped: Float64
    is_time: npt.NDArray[np.bool_]
    covariance: Float64  # (fields, fields) of ln(value / shipped)
    index: dict[Field, int]

    def values(self, x: Float64) -> dict[Field, float]:
        """The value of every field at ln(value / shipped) = x; a share is never above 1."""
        value = self.shipped * np.exp(x)
        return dict(zip(self.fields, np.where(self._share, np.minimum(value, 1.0), value).tolist(), strict=True))

    @cached_property
    def _share(self) -> npt.NDArray[np.bool_]:
        return np.array([is_share(path) for _, path in self.fields])

    @property
    def sign(self) -> Float64:
        """+1 for times, -1 for rates: the time a field stands for goes as exp(sign * x)."""
        return np.where(self.is_time, 1.0, -1.0)


def is_share(path: str) -> bool:
    """Whether a number is a share of something: of the rate that a link has, of a pass."""
    return "efficiency" in path or path.endswith("share") or path == "goodput"


def walk(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, float, bool]]:
    """(path, value, is a time) of every number of a model, times told by their field type."""
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from walk(value, f"{prefix}{name}.")
        elif isinstance(value, float):
            is_time = any(getattr(m, "func", None) is parse_time for m in info.metadata)
            yield f"{prefix}{name}", value, is_time


def replaced(model: Any, values: Mapping[str, float]) -> Any:
    """A copy of a model with other numbers at some paths."""
    own: dict[str, Any] = {}
    below: dict[str, dict[str, float]] = {}
    for path, value in values.items():
        head, dot, rest = path.partition(".")
        if dot:
            below.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    own |= {name: replaced(getattr(model, name), more) for name, more in below.items()}
    return model.model_copy(update=own)


def scope_of(path: str, generation: str, network: str) -> str:
    """Whose value a path is: the host's, the network's or the GPU generation's."""
    return {"launch": "launch", "network": network}.get(path.partition(".")[0], generation)


def parameters_at(generation: str, network: str, values: Mapping[Field, float]) -> Parameters:
    """The Parameters of a generation on a network with the given field values."""
    shipped = load_parameters(generation, network)
    paths = {
        path: values[f] for path, _, _ in walk(shipped) if (f := (scope_of(path, generation, network), path)) in values
    }
    return replaced(shipped, paths)  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def space() -> FieldSpace:
    """All fields of all generations and networks."""
    listed: Any = read_documents(PRIORS)[0].data
    entries: dict[Field, tuple[float, bool, float, str]] = {}
    for generation in GENERATIONS:
        for network in NETWORKS:
            for path, value, is_time in walk(load_parameters(generation, network)):
                rule = next((listed[p] for p in listed if fnmatchcase(path, p)), None)
                if rule is not None and value > 0:
                    scope = scope_of(path, generation, network)
                    group = f"{scope}.{rule.get('group', path)}"
                    entries.setdefault((scope, path), (value, is_time, float(rule["width"]), group))
    shipped, times, widths, groups = zip(*entries.values(), strict=True)
    width = np.array(widths)
    same = np.array([[a == b for b in groups] for a in groups])
    covariance = np.where(same, _SHARED, 0.0) * np.outer(width, width)
    covariance[np.diag_indices(len(entries))] = width**2
    index = {field: i for i, field in enumerate(entries)}
    return FieldSpace(tuple(entries), np.array(shipped), np.array(times), covariance, index)
