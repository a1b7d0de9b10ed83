"""The time of what runs on registered windows in place of the tuner's choice: in closed form, or by the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commsim.errors import ScenarioError
from commsim.nccl.copies import copy_calls, copy_time
from commsim.nccl.machine import Machine
from commsim.nccl.nodes import Kind
from commsim.nccl.registered import Instead
from commsim.nccl.symmetric_time import symmetric_time, time_over_nodes
from commsim.nccl.system import System
from commsim.nccl.version import Version


@dataclass(frozen=True)
class WindowCall:
    """A call on registered windows: of which kinds of nodes the communicator is, what is left of their rates."""

    system: System
    machine: Machine
    kinds: Sequence[Kind]
    own: Instead
    collective: str
    nbytes: int
    version: Version
    env: Mapping[str, str]

    @property
    def launches(self) -> int:
        """How many calls the host makes."""
        return copy_calls(self.system, self.collective, self.nbytes) if self.own.choice is None else 1

    def time(self) -> tuple[float, float, str, str]:
        """Seconds on the slowest kind of node, the bandwidth part of them, what limits it, and the engine's level."""
        return max((*self._closed(kind), "closed_form") for kind in self.kinds)

    def _closed(self, kind: Kind) -> tuple[float, float, str]:
        where, choice = (self.system, self.machine, kind.parameters), self.own.choice
        if choice is None:
            return copy_time(*where, self.collective, self.nbytes)
        if choice.kernel.over_nodes:
            return time_over_nodes(*where, choice, self.nbytes, self.version, self.env)
        return symmetric_time(*where, choice, self.collective, self.nbytes)

    def simulated(self) -> tuple[float, float, str, str]:
        """The same, run move by move by the engine; ScenarioError where there are too many.

        What limits it is what the closed form names, for as large a part of the time: links alone are simulated, and
        thread blocks may wait while none is busy.
        """
        return max(self._named(kind, *self._run(kind)) for kind in self.kinds)

    def _named(self, kind: Kind, seconds: float, level: str) -> tuple[float, float, str, str]:
        closed_s, transfer_s, limit = self._closed(kind)
        return seconds, seconds * transfer_s / closed_s, limit, level

    def _run(self, kind: Kind) -> tuple[float, str]:
        from commsim.nccl.copy_event import copy_event_time  # which bring the engine with them
        from commsim.nccl.symmetric_event import event_time

        local = kind.topology.ranks_per_node
        if local * self.system.nodes != self.system.ranks:
            raise ScenarioError(
                f"engine event cannot time {self.collective} by {self.own.name} on nodes with other numbers of ranks; "
                "expected auto or closed_form"
            )
        where = self.system, kind, self.machine
        if self.own.choice is None:
            return copy_event_time(*where, self.collective, self.nbytes)
        return event_time(*where, self.own.choice, self.nbytes, self.version, self.env)
