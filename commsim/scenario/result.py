"""What a run answers: the answers to the items of its workload, and where it all came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commsim.scenario.workload.registry import KINDS

if TYPE_CHECKING:
    import pandas as pd

    from commsim.scenario.answer import Answer
    from commsim.scenario.chakra_result import TraceItem
    from commsim.scenario.item import Item
    from commsim.scenario.jobs_result import JobsItem
    from commsim.scenario.rl_result import RlItem
    from commsim.scenario.schema import Scenario
    from commsim.scenario.training_result import TrainingItem
    from commsim.scenario.workload.claim import ClaimItem

JSON_SCHEMA_VERSION = 1

_PRINTED = (
    "collective", "n_ranks", "size_bytes", "time_us", "algbw_GBps", "busbw_GBps", "algorithm", "protocol", "channels",
    "bottleneck", "model", "gpus", "tp", "pp", "cp", "dp", "ep", "step_s", "mfu", "peak_memory_GiB", "fits",
)  # fmt: skip
"""The columns of a printed result, as a line of a terminal has room for; `to_frame` has all."""


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The answer to one scenario; it prints as a table.

    `answers` are those to the entries of the workload, in the order of the file, each with its rows (`records`) and
    all its values (`to_dict`); `resolved` is the scenario as YAML with everything written out, and `scenario_hash` that
    of its content. `items`, `jobs`, `trainings`, `rl`, `claims` and `traces` are the answers of one kind.
    """

    scenario: Scenario
    scenario_hash: str
    resolved: str
    topology: dict[str, Any]
    answers: tuple[Answer, ...]
    warnings: tuple[str, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def items(self) -> tuple[Item, ...]:
        """The collectives."""
        return self._of("items")

    @property
    def jobs(self) -> tuple[JobsItem, ...]:
        """The jobs beside each other."""
        return self._of("jobs")

    @property
    def trainings(self) -> tuple[TrainingItem, ...]:
        """The training steps."""
        return self._of("trainings")

    @property
    def rl(self) -> tuple[RlItem, ...]:
        """The steps of reinforcement learning."""
        return self._of("rl")

    @property
    def claims(self) -> tuple[ClaimItem, ...]:
        """The claims."""
        return self._of("claims")

    @property
    def traces(self) -> tuple[TraceItem, ...]:
        """The replayed traces."""
        return self._of("traces")

    def _of(self, kind: str) -> tuple[Any, ...]:
        return tuple(answer for answer in self.answers if answer.kind == kind)

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.scenario.name

    def records(self) -> list[dict[str, Any]]:
        """All rows as plain values, in the order of the file: one per size of a collective, per step or trace."""
        return [record for answer in self.answers for record in answer.records()]

    def to_frame(self) -> pd.DataFrame:
        """All rows as a data frame, units in the column names."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def to_dict(self) -> dict[str, Any]:
        """The whole result as JSON-ready values."""
        return {
            "schema_version": JSON_SCHEMA_VERSION,
            "name": self.name,
            "scenario_hash": self.scenario_hash,
            "provenance": self.provenance,
            "topology": self.topology,
            "warnings": list(self.warnings),
            **self._lists(),
        }

    def _lists(self) -> dict[str, Any]:
        """A list for each kind of workload; ``order`` says how they alternate, if there are several."""
        lists: dict[str, Any] = {kind: [a.to_dict() for a in self.answers if a.kind == kind] for kind in KINDS}
        kinds = [answer.kind for answer in self.answers]
        return lists | ({"order": kinds} if len(set(kinds)) > 1 else {})

    def full_columns(self) -> pd.DataFrame:
        """The rows without the columns that hold nothing."""
        frame = self.to_frame()
        return frame[[name for name in frame if not frame[name].isin(["", None]).all()]].dropna(axis=1, how="all")

    def __repr__(self) -> str:
        """The name, the warnings and the main columns of the rows; of what has no rows, how much there is."""
        frame = self.full_columns()
        shown = frame[[name for name in frame.columns if name in _PRINTED] or list(frame.columns)]
        rows = [shown.to_string(index=False, max_rows=60, float_format=lambda v: f"{v:.4g}")] if len(shown) else []
        others: dict[str, int] = {}
        for answer in self.answers:
            others[answer.kind] = others.get(answer.kind, 0) + answer.unlisted
        rows += [f"{count} {kind}: to_dict() has them" for kind, count in others.items() if count]
        return "\n".join([self.name, *self.warnings, *rows])
