"""How many bytes a topology holds."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from sys import getsizeof
from typing import Any

import numpy as np

from commsim.topology.columns import TopologyColumns


def held_bytes(topology: TopologyColumns) -> int:
    """Bytes of the arrays and names of a topology and its route tables; an array held twice counts once."""
    arrays: dict[int, int] = {}
    _collect(topology, arrays)
    names = topology.vertex_name
    return sum(arrays.values()) + getsizeof(names) + sum(map(getsizeof, names))


def _collect(value: Any, arrays: dict[int, int]) -> None:
    if isinstance(value, np.ndarray):
        arrays[id(value)] = value.nbytes
    elif isinstance(value, tuple) and not (value and isinstance(value[0], str)):
        for item in value:
            _collect(item, arrays)
    elif is_dataclass(value):
        for part in fields(value):
            _collect(getattr(value, part.name), arrays)
