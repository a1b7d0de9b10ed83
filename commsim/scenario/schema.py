"""What a scenario file may say: strict pydantic models; cross-field faults sit at the value at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pydantic import Field, model_validator

from commsim.document import located
from commsim.document.types import KeyPath
from commsim.scenario.setting import Setting
from commsim.scenario.workload.registry import AnyWork

if TYPE_CHECKING:
    from commsim.scenario.workload.collective import CollectiveWork
    from commsim.scenario.workload.training import TrainingWork


class Scenario(Setting):
    """A topology and a workload, with how to predict it and what to compare it with."""

    workload: tuple[AnyWork, ...] = Field(min_length=1, description="what is predicted, one table or answer per entry")

    @property
    def collectives(self) -> tuple[CollectiveWork, ...]:
        """The workload items of one collective each."""
        return tuple(cast("CollectiveWork", work) for work in self.workload if work.kind == "items")

    @property
    def trainings(self) -> tuple[TrainingWork, ...]:
        """The workload items that are training steps."""
        return tuple(cast("TrainingWork", work) for work in self.workload if work.kind == "trainings")

    def __eq__(self, other: object) -> bool:
        """Equal if they say the same, wherever they were read from."""
        return isinstance(other, Scenario) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.name)

    @model_validator(mode="after")
    def _items_fit(self) -> Scenario:
        library = self.library.name
        faults: list[tuple[KeyPath, str]] = [
            (("workload", i, *path), text) for i, work in enumerate(self.workload) for path, text in work.faults(self)
        ]
        if self.compare and not any(work.compared for work in self.workload):
            faults.append((("compare",), "found measured files without a collective, expected one as well"))
        if self.variation is not None and library != "none":
            faults.append(
                (("variation",), f"found variation with library {library}, expected it only with library none")
            )
        events = next((work.noun for work in self.workload if work.by_events), None)
        if (self.variation is not None or events) and self.engine not in ("auto", "event"):
            what = "variation" if self.variation is not None else events
            faults.append((("engine",), f"found engine {self.engine} with {what}, expected auto or event"))
        if self.library.graph is not None and not all(work.whole_nodes for work in self.workload):
            text = "found a graph of whole nodes beside work that runs on parts of them, expected collectives only"
            faults.append((("library", "graph"), text))
        if library == "none" and self.params is not None:
            faults.append((("params",), "found params with library none, which has no parameters but its links"))
        if library == "gloo" and self.engine not in ("auto", "event"):
            text = f"found engine {self.engine} with library gloo, expected auto or event"
            faults.append((("engine",), text))
        elif library != "none":
            for key, value in (("engine", "fold"), ("contention", "fair")):
                if getattr(self, key) == value:
                    text = f"found {key} {value} with library {library}, expected it only with library none"
                    faults.append(((key,), text))
        if faults:
            raise located(*faults)
        return self
