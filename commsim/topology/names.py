"""The names of a topology's vertices, made when they are asked for: of 65,536 nodes they would be a third of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from commsim.topology.kinds import Int32, Int64

_DEVICE = re.compile(r"node(0|[1-9][0-9]{0,8})\.(.+)")


@dataclass(frozen=True, eq=False)
class VertexNames(Sequence[str]):
    """``node3.gpu0`` for the devices of nodes, which those of one group have in common, and the names of switches.

    `first` (nodes + 1,) is the first vertex of each node, and of the switches; `devices` are those of each group.
    """

    first: Int64
    group: Int32
    devices: tuple[tuple[str, ...], ...]
    switches: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.first[-1]) + len(self.switches)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        vertex = int(at) + (len(self) if at < 0 else 0)
        if not 0 <= vertex < len(self):
            raise IndexError(f"vertex {at} of {len(self)}")
        if vertex >= self.first[-1]:
            return self.switches[vertex - int(self.first[-1])]
        node = int(np.searchsorted(self.first, vertex, side="right")) - 1
        return f"node{node}.{self.devices[int(self.group[node])][vertex - int(self.first[node])]}"

    def __iter__(self) -> Iterator[str]:
        for node, group in enumerate(self.group.tolist()):
            prefix = f"node{node}."
            for device in self.devices[group]:
                yield prefix + device
        yield from self.switches

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._place(name) is not None

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """The vertex of a name; ValueError where there is none from `start` on, before `stop`."""
        place = self._place(name)
        if place is None or not start <= place < (len(self) if stop is None else stop):
            raise ValueError(f"no vertex {name}")
        return place

    def _place(self, name: str) -> int | None:
        match = _DEVICE.fullmatch(name)
        if match is None or int(match[1]) >= self.group.size:
            return self._switch.get(name)
        node, devices = int(match[1]), self._device[int(self.group[int(match[1])])]
        return None if match[2] not in devices else int(self.first[node]) + devices[match[2]]

    @cached_property
    def _switch(self) -> dict[str, int]:
        return {name: int(self.first[-1]) + i for i, name in enumerate(self.switches)}

    @cached_property
    def _device(self) -> tuple[dict[str, int], ...]:
        return tuple({name: i for i, name in enumerate(devices)} for devices in self.devices)
