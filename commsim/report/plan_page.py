"""The page of a plan: the best configuration, the others and why they lose."""

from __future__ import annotations

from collections.abc import Sequence

from commsim.planner.plan import Neighbour, PlanAnswer, Sensitivity
from commsim.report.page import Code, Facts, Page, Section, Text, picture, table
from commsim.report.plan_tables import counted, headline, money_facts, plot_choices, reasons, rows

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


def plan_page(
    answer: PlanAnswer,
    name: str,
    scenario: str,
    seconds: float,
    around: Sequence[Neighbour],
    changes: Sequence[Sensitivity],
) -> Page:
    """The page of an answer; `scenario` is the file of the winner."""
    listed = rows(answer)
    causes = list(dict.fromkeys(cause for r in listed for cause in r["causes_s"]))
    shown = [key for key in listed[0] if key not in HIDDEN and any(r[key] not in (None, "") for r in listed)]
    heads = [HEADS.get(key, key.replace("_", " ")) for key in shown]
    choices = table(heads, [[r[key] for key in shown] for r in listed])
    money = money_facts(answer.best)
    seconds_of = [[r["rank"], *(r["causes_s"].get(c) for c in causes)] for r in listed]
    by_cause = table(["rank", *(f"{c} (s)" for c in causes)], seconds_of)
    sureness = (
        "Step times come from the model that docs/accuracy-training.md scores on published runs which it was not "
        "fitted to; memory from the same step model."
    )
    simulated = Facts((("simulated", f"{sum(c.simulated for c in answer.choices)} of {len(answer.choices)}"),))
    return Page(
        title=name,
        question="Which configuration trains this model fastest?",
        answer=tuple(headline(answer.best)),
        sections=(
            Section("Choices", (picture(plot_choices(listed, name), "Time against memory."), choices)),
            Section("Where the time goes", (by_cause,)),
            *([Section("Cost and failures of the best one", (Facts(money),))] if money else []),
            Section("What binds the best one", tuple(Text(line) for line in reasons(around, changes))),
            Section("What was looked at", (Code("\n".join(counted(answer, seconds))),)),
            Section("The best one as a scenario", (Code(scenario),)),
            Section("How sure this is", (Text(sureness), simulated)),
        ),
    )
