"""The exceptions of commsim: one tree, every message says what was found, what was expected, and where.

CommsimError
├── UnitError          a quantity without a unit, with an unknown unit, or out of range
├── LocatedError       carries every fault found in one pass, each with its place
│   ├── ScenarioError      a scenario file or override that cannot be read or makes no sense
│   ├── TopologyError      a topology file or description that cannot be built
│   └── LogFormatError     a measured log or table that cannot be read
├── ScheduleError      a schedule that is not what its collective promises
├── CalibrationError   parameters that cannot be determined from the data given
│   └── OutOfReachError    numbers that no parameters near the shipped ones come near
├── MeasurementError   a run on real ranks that cannot start or go on (exit status 1)
└── InfeasibleError    a well-formed question whose answer is "impossible" (exit status 1, not 2)
    └── MemoryLimitError   a question that would take more memory than it may (exit status 2: ask it otherwise)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class CommsimError(Exception):
    """Base of all errors that a user's input can cause."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in a notebook: the message, no frames of the library."""
        return [f"{type(self).__name__}: {self}"]


class CommsimWarning(UserWarning):
    """What a user of the Python functions should know of an answer."""


class UnitError(CommsimError, ValueError):
    """A quantity string that cannot be read."""


@dataclass(frozen=True, order=True)
class Fault:
    """One thing wrong with an input file, at a place a person can open (line and column count from 1)."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place} {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class LocatedError(CommsimError):
    """An error that carries every fault found in one pass."""

    def __init__(self, faults: Sequence[Fault] | str) -> None:
        self.faults: tuple[Fault, ...] = () if isinstance(faults, str) else tuple(faults)
        super().__init__(faults if isinstance(faults, str) else "\n".join(str(f) for f in self.faults))


class ScenarioError(LocatedError):
    """A scenario that cannot be read or makes no sense."""


class TopologyError(LocatedError):
    """A topology that cannot be built."""


class LogFormatError(LocatedError):
    """A measured log or table that cannot be read."""


class ScheduleError(CommsimError):
    """A schedule that is not what its collective promises."""


class CalibrationError(CommsimError):
    """Parameters that cannot be determined from the data given."""


class OutOfReachError(CalibrationError):
    """Known numbers of another machine, call or unit: (collective, bytes, what is wrong) of each."""

    def __init__(self, misses: Sequence[tuple[str, int, str]]) -> None:
        self.misses = tuple(misses)
        super().__init__("\n".join(text for _, _, text in self.misses))


class MeasurementError(CommsimError):
    """A run on real ranks that cannot start or go on."""


class InfeasibleError(CommsimError):
    """A well-formed question without a feasible answer."""


class MemoryLimitError(InfeasibleError):
    """A question that would take more memory than it may; nothing of it has been computed."""
