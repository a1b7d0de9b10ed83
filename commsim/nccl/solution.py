"""A state of the search for channels: the settings in force and the channels laid so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from commsim.nccl.paths import NVL, PIX

GLOBAL_BUDGET, _BUDGET, _BUDGET_SAME, IN_ORDER_BUDGET = 1 << 19, 1 << 14, 1 << 8, 1 << 10
"""Steps of all searches of a pattern, of one, of one of equal channels, and of one in the order of the PCI bus."""


@dataclass
class Solution:
    """A state of the search: the settings in force and the channels laid so far."""

    pattern: str
    least: int
    most: int
    cross_nic: int = 0
    same: bool = True
    intra: float = 0.0
    inter: float = 0.0
    type_intra: int = NVL
    type_inter: int = PIX
    channels: int = 0
    hops: int = 0
    orders: list[list[int]] = field(default_factory=list)
    nets: list[tuple[int, int]] = field(default_factory=list)

    def copy(self) -> Solution:
        """A state of its own."""
        return replace(self, orders=[list(o) for o in self.orders[: self.channels]], nets=self.nets[: self.channels])

    @property
    def budget(self) -> int:
        """Steps that a search under these settings may take."""
        return _BUDGET_SAME if self.same else _BUDGET
