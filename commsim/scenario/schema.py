"""What a scenario file may say: strict pydantic models; cross-field faults sit at the value at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pydantic import Field, model_validator

from commsim.document import refuse
from commsim.document.types import KeyFaults
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
        library, engine, works = self.library.name, self.engine, self.workload
        varies, other_engine = self.variation is not None, engine not in ("auto", "event")
        by_events = "variation" if varies else next((work.noun for work in works if work.by_events), "")
        placing = "found a placement {}, expected it only of collectives with library nccl"
        unplaced = next((f"beside {work.noun}" for work in works if work.kind != "items"), "")
        graph_of_all = "found a placement beside a file of NCCL's graphs, expected one of them"
        only_raw = f"with library {library}, expected it only with library none"
        no_collective = "found measured files without a collective, expected one as well"
        no_parts = "found a graph of whole nodes beside work that runs on parts of them, expected collectives only"
        no_params = f"found params with library {library}, which has no parameters but its links"
        both = "found measured numbers beside params, expected parameters from one of them"
        closed = f"found engine {engine} with library {library}, expected auto: its times are closed forms"
        events = f"found engine {engine} with {{}}, expected auto or event"
        only_nccl = f"found no_rdma with library {library}, expected it only with library nccl, which may take TCP"
        no_rdma = [i for i, fault in enumerate(self.topology.faults or ()) if fault.no_rdma and library != "nccl"]
        refuse(
            *((True, ("topology", "faults", i, "no_rdma"), only_nccl) for i in no_rdma),
            *((True, ("workload", i, *path), text) for i, work in enumerate(works) for path, text in work.faults(self)),
            (self.compare and not any(work.compared for work in works), ("compare",), no_collective),
            *((True, ("variation", *path), text) for path, text in self._variation_faults()),
            (by_events and other_engine, ("engine",), events.format(by_events)),
            (self.library.graph and not all(work.whole_nodes for work in works), ("library", "graph"), no_parts),
            (self.placement and library != "nccl", ("placement",), placing.format(f"with library {library}")),
            (self.placement and library == "nccl" and unplaced, ("placement",), placing.format(unplaced)),
            (self.placement and self.library.graph, ("placement",), graph_of_all),
            (self.params and library in ("none", "synthesized"), ("params",), no_params),
            (self.params and library == "custom_all_reduce", ("params",), f"found params with library {library}"),
            (self.params and self.library.measured, ("library", "measured"), both),
            (library == "gloo" and other_engine, ("engine",), events.format("library gloo")),
            (library in ("custom_all_reduce", "synthesized") and engine != "auto", ("engine",), closed),
            (library == "nccl" and engine == "fold", ("engine",), f"found engine fold {only_raw}"),
            (library != "none" and self.contention == "fair", ("contention",), f"found contention fair {only_raw}"),
        )
        return self

    def _variation_faults(self) -> KeyFaults:
        """What of the variation the library's model does not know."""
        library = self.library.name
        if self.variation is None or library == "none":
            return []
        steps = ("trainings",) if library == "nccl" and not self.variation.stragglers else ()
        other = next((work.noun for work in self.workload if work.kind not in ("items", "jobs", *steps)), "")
        if other:
            text = f"found variation beside {other} with library {library}, expected collectives or jobs only"
            return [
                (
                    (),
                    text
                    + (
                        ""
                        if library != "nccl"
                        else "; a training step knows jitter and node_spread, and `stragglers` of its own"
                    ),
                )
            ]
        if library in ("custom_all_reduce", "synthesized"):
            return [((), f"found variation with library {library}, expected none: its times are those of alike ranks")]
        if library == "nccl":
            return []
        text = f"found {{}} with library {library}, expected it only with library none; {library} knows stragglers "
        text += "with a delay"
        factors = [i for i, straggler in enumerate(self.variation.stragglers) if straggler.factor is not None]
        faults: KeyFaults = [(("stragglers", i, "factor"), text.format("factor")) for i in factors]
        drawn = [key for key in ("jitter", "node_spread") if getattr(self.variation, key) is not None]
        return faults + [((key,), text.format(key)) for key in drawn]
