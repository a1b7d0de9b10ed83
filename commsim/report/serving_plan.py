"""The answer to a plan of serving: the best choice in sentences, a table, a picture of the front, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commsim.planner.serving import ServingAnswer, ServingChoice
from commsim.planner.serving_question import ServingSpec
from commsim.report import style
from commsim.report.answered import OnePicture
from commsim.report.chart import Axis, Chart, Mark, Panel, Series
from commsim.report.chart_figure import draw
from commsim.report.generation_words import each_words, user_words
from commsim.report.page import Code, Page, Section, Text, plot, table
from commsim.report.tables import aligned
from commsim.units import format_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_FRONTS = 8
"""Fronts of single cuts in a picture, beside that of all."""


@dataclass(frozen=True, eq=False, repr=False)
class ServingPlan(OnePicture):
    """An answer with its question; `scenario` is the file of the best choice as YAML."""

    name: str
    spec: ServingSpec
    found: ServingAnswer
    scenario: str
    seconds: float

    @property
    def best(self) -> ServingChoice:
        """The first of the ranking."""
        return self.found.ranked[0]

    @property
    def answer(self) -> tuple[str, ...]:
        """The best choice in a few sentences."""
        one, asked = self.best, self.spec.generation
        assert asked.prompt is not None
        assert asked.answer is not None
        lines = [
            f"{asked.model} in {one.spec.precision} on {one.machine} ({one.gpus:,} GPUs): {one.replicas} x "
            f"{mesh_words(one)}, {one.batch:,} requests at once on each.",
            f"{one.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, {user_words(one.tokens_per_s_per_user)} tokens/s per "
            f"user: {each_words(one.tpot_s)} per output token, {format_time(one.ttft_s)} to the first one.",
        ]
        if one.usd_per_million:
            lines.append(f"A million tokens of answers cost ${one.usd_per_million:,.2f}.")
        if not one.meets:
            lines.insert(0, f"No choice has {self._bounds()}; the quickest for users is shown.")
        elif self._bounds():
            lines.append(f"It is the most that a GPU gives with {self._bounds()}.")
        return tuple(lines)

    def _bounds(self) -> str:
        said = []
        if self.spec.most_tpot is not None:
            said.append(f"at most {format_time(self.spec.most_tpot)} per output token")
        if self.spec.most_ttft is not None:
            said.append(f"at most {format_time(self.spec.most_ttft)} to the first token")
        return " and ".join(said)

    def title(self, choice: ServingChoice) -> str:
        """The cut of a choice, with what of machine, precision and framework differs between choices."""
        kinds = {(c.machine, c.spec.precision, c.spec.framework) for c in self.found.choices}
        machines, precisions, frameworks = (len(set(column)) for column in zip(*kinds, strict=True))
        words = [mesh_words(choice)]
        words += [choice.spec.precision] if precisions > 1 else []
        words += [choice.spec.framework] if frameworks > 1 else []
        return f"{choice.machine}: {', '.join(words)}" if machines > 1 else ", ".join(words)

    @property
    def listed(self) -> list[ServingChoice]:
        """The best choices, one for each cut."""
        seen: dict[str, ServingChoice] = {}
        for choice in self.found.ranked:
            seen.setdefault(self.title(choice), choice)
        return list(seen.values())[: self.spec.best]

    def rows(self) -> list[dict[str, Any]]:
        """All choices as plain values, best first; times in milliseconds."""
        front = set(map(id, self.found.front))
        return [
            {
                "rank": i,
                "machine": c.machine,
                "gpus": c.gpus,
                "replicas": c.replicas,
                **{name: getattr(c.spec.mesh, name) for name in ("tp", "pp", "attention_dp", "ep")},
                "precision": c.spec.precision,
                "framework": c.spec.framework,
                "batch": c.batch,
                "ttft_ms": 1e3 * c.ttft_s,
                "tpot_ms": 1e3 * c.tpot_s,
                "tokens_per_s_per_user": c.tokens_per_s_per_user,
                "tokens_per_s_per_gpu": c.tokens_per_s_per_gpu,
                "cache_share": c.cache_share,
                "weights_share": c.weights_share,
                "usd_per_million_tokens": c.usd_per_million,
                "meets": c.meets,
                "front": id(c) in front,
            }
            for i, c in enumerate(self.found.ranked, 1)
        ]

    def to_frame(self) -> pd.DataFrame:
        """A row for every load of every cut, best first."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def table(self) -> str:
        """The best choice of every cut, for a terminal."""
        head = ["# cut", "at once", "first token", "per token", "tokens/s/user", "tokens/s/GPU", "cache", ""]
        rows = [
            [f"  {self.title(c)}", f"{c.batch}", format_time(c.ttft_s), each_words(c.tpot_s),
             user_words(c.tokens_per_s_per_user), f"{c.tokens_per_s_per_gpu:.1f}", f"{c.cache_share:.0%}",
             "" if c.meets else "late"]
            for c in self.listed
        ]  # fmt: skip
        return "\n".join(aligned([head, *rows], spare=[6, 2, 3, 1])) + "\n"

    def counted(self) -> list[str]:
        """What was tried and what could not run."""
        lines = [f"# {len(self.found.choices)} loads simulated in {self.seconds:.1f} s"]
        lines += [f"#   {n} cuts left out: {reason}" for reason, n in self.found.left_out.most_common()]
        return lines

    def draw(self) -> Figure:
        """Tokens a second of a GPU against those of a user."""
        return plot_front(self)

    def page(self) -> Page:
        """The page that `commsim plan --html` writes."""
        rows = self.rows()
        heads = list(rows[0])
        shown = [[row[name] for name in heads] for row in rows]
        sureness = (
            "How far off predicted waits are, over published runs: page Accuracy of generation "
            "(docs/accuracy-generation.md)."
        )
        return Page(
            title=self.name,
            question="How should this model be served?",
            answer=self.answer,
            sections=(
                Section("Users against GPUs", (plot(front_chart(self), "Tokens/s of a GPU against those of a user."),)),
                Section("All choices", (table([name.replace("_", " ") for name in heads], shown),)),
                Section("What was looked at", (Code("\n".join(self.counted())),)),
                *([Section("The best one as a scenario", (Code(self.scenario),))] if self.best.meets else []),
                Section("How sure this is", (Text(sureness),)),
            ),
        )


def mesh_words(choice: ServingChoice) -> str:
    """``tp 4``, ``tp 1, attention_dp 8, ep 8``."""
    mesh = choice.spec.mesh
    others = [f"{name} {getattr(mesh, name)}" for name in ("pp", "attention_dp", "ep") if getattr(mesh, name) > 1]
    return ", ".join([f"tp {mesh.tp}", *others])


BEST_OF_ALL = "the best of all"


def front_chart(plan: ServingPlan) -> Chart:
    """Tokens a second of a GPU against those of a user: of every cut a line over its loads, the front of all marked."""
    by_cut: dict[str, list[ServingChoice]] = {}
    for choice in plan.found.choices:
        by_cut.setdefault(plan.title(choice), []).append(choice)
    shown = [plan.title(choice) for choice in plan.listed][:MOST_FRONTS]
    colours = style.line_colours(shown, style.PREDICTED_COLOURS + style.MEASURED_COLOURS)
    series = [
        _line(title, sorted(by_cut[title], key=lambda c: c.batch), colour)
        for title, colour in zip(shown, colours, strict=True)
    ]
    front = replace(_line(BEST_OF_ALL, plan.found.front, style.INK), look="points")
    best = _line("chosen", [plan.best], style.MEASURED_COLOURS[0])
    series += [front, replace(best, look="points", labels=(f"chosen: {plan.best.batch} at once",))]
    accepted = [] if plan.spec.most_tpot is None else [Mark(1 / plan.spec.most_tpot, "what users accept")]
    panel = Panel(Axis("tokens/s of a GPU", switch=True), tuple(series), tuple(accepted), height=1.4)
    return Chart(plan.name, Axis("tokens/s of a user", low=0.0, switch=True), (panel,))


def _line(title: str, choices: Sequence[ServingChoice], colour: str) -> Series:
    x, y = ([getattr(c, f"tokens_per_s_per_{who}") for c in choices] for who in ("user", "gpu"))
    return Series(title, tuple(x), tuple(y), colour, notes=tuple(f"{c.batch} at once" for c in choices))


def plot_front(plan: ServingPlan, provenance: str = "") -> Figure:
    """The figure of `front_chart`."""
    return draw(front_chart(plan), provenance=provenance, width=9.6)
