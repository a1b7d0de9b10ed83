"""The answer to a plan as a notebook takes it: sentences, a table, a page, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commsim.planner.around import Neighbour, Sensitivity
from commsim.planner.plan import Configuration, PlanAnswer
from commsim.report.answered import Answered
from commsim.report.page import Code, Facts, Page, Section, Text, plot, table
from commsim.report.plan_tables import choices_chart, counted, headline, money_facts, reasons, rows, ties
from commsim.report.saved import Saved

if TYPE_CHECKING:
    import pandas as pd

HIDDEN = {
    "causes_s", "simulated", "tokens", "fabric_usd", "days_without_failures", "checkpoint_s", "checkpoint_every_s",
}  # fmt: skip
HEADS = {
    "step_s": "step (s)",
    "slower_percent": "slower (%)",
    "mfu_percent": "MFU (%)",
    "memory_GiB": "memory (GiB)",
    "usd": "cost ($)",
    "gpu_hours": "GPU-hours",
    "tokens_per_usd": "tokens per $",
    "hours_between_failures": "hours between failures",
    "goodput_percent": "goodput (%)",
    "pareto": "unbeaten",
    "closed_form_s": "closed form (s)",
}
"""What a column is called on the page; others are called by their key."""


@dataclass(frozen=True, eq=False, repr=False)
class Planned(Answered):
    """The configurations of a plan, best first, and what binds the best one; `scenario` is its file as YAML."""

    name: str
    found: PlanAnswer
    scenario: str
    seconds: float
    neighbours: Sequence[Neighbour] = ()
    sensitivity: Sequence[Sensitivity] = ()

    @property
    def best(self) -> Configuration:
        """The quickest configuration per token."""
        return self.found.best

    @property
    def answer(self) -> tuple[str, ...]:
        """The best configuration: its step, its cut, its memory, and what the tokens take and cost."""
        return tuple(headline(self.best))

    @property
    def reasons(self) -> tuple[str, ...]:
        """What ties with the best one, what binds it, and what a tenth more of each part of the machine would give."""
        return (*ties(self.found), *reasons(self.neighbours, self.sensitivity))

    def to_frame(self) -> pd.DataFrame:
        """A row for every choice, best first; the seconds of every cause as columns of their own."""
        import pandas as pd

        return pd.DataFrame([r | {f"{k}_s": s for k, s in r.pop("causes_s").items()} for r in rows(self.found)])

    def saved(self) -> Saved:
        """For pictures."""
        return Saved(self.name, "plan", Path(), choices=tuple(rows(self.found)))

    def page(self) -> Page:
        """The page that `commsim plan --html` writes: the best configuration, the others and why they lose."""
        listed, choices = rows(self.found), self.found.choices
        causes = list(dict.fromkeys(cause for r in listed for cause in r["causes_s"]))
        shown = [key for key in listed[0] if key not in HIDDEN and any(r[key] not in (None, "") for r in listed)]
        heads = [HEADS.get(key, key.replace("_", " ")) for key in shown]
        every = table(heads, [[r[key] for key in shown] for r in listed])
        money = money_facts(self.best)
        seconds_of = [[r["rank"], *(r["causes_s"].get(c) for c in causes)] for r in listed]
        by_cause = table(["rank", *(f"{c} (s)" for c in causes)], seconds_of)
        sureness = (
            "Step times come from the model that docs/accuracy-training.md scores on published runs which it was not "
            "fitted to, bands and ties from docs/accuracy-decisions.md; memory from the same step model."
        )
        simulated = Facts((("simulated", f"{sum(c.simulated for c in choices)} of {len(choices)}"),))
        return Page(
            title=self.name,
            question="Which configuration trains this model fastest?",
            answer=self.answer,
            sections=(
                Section("Choices", (plot(choices_chart(listed, self.name), "Time against memory."), every)),
                Section("Where the time goes", (by_cause,)),
                *([Section("Cost and failures of the best one", (Facts(money),))] if money else []),
                Section("What binds the best one", tuple(Text(line) for line in self.reasons)),
                Section("What was looked at", (Code("\n".join(counted(self.found, self.seconds))),)),
                Section("The best one as a scenario", (Code(self.scenario),)),
                Section("How sure this is", (Text(sureness), simulated)),
            ),
        )
