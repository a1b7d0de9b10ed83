"""Steps of reinforcement learning as text, CSV, pictures and sections of a page, and read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commsim.report.page import Code, Part, Section, Text, plot, table
from commsim.report.rl_plots import MEANING, plot_rl_step, plot_rollout, rl_step_chart, rollout_chart
from commsim.report.tables import aligned, records_csv
from commsim.report.view import PictureKind, Shown, View
from commsim.scenario.rl_result import STAGES, RlItem
from commsim.units import GIB, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def who(item: RlItem) -> str:
    """``grpo of llama3.1-8b: 16 engines (vllm) by turns with a trainer (pp2 dp8)``."""
    engines = f"{item.engines} engine{'s' if item.engines != 1 else ''} ({item.engine})"
    if item.engine_gpus:
        apart = "one step ahead of" if item.step.behind else "beside"
        return (
            f"{item.algorithm} of {item.model}: {engines} on {item.engine_gpus} GPUs {apart} a trainer ({item.trainer})"
        )
    return f"{item.algorithm} of {item.model}: {engines} by turns with a trainer ({item.trainer})"


def rl_table(item: RlItem, heading: Iterable[str] = ()) -> str:
    """The answer for a terminal; lines that start with ``#`` are no figures."""
    lines = [f"# {text}".rstrip() for text in (*heading, who(item))]
    lines += [
        f"# {item.sequences:,} answers, {item.mean:,.0f} tokens in the mean and {item.longest:,} at most, "
        f"{item.updates} update{'s' if item.updates != 1 else ''}",
        "#",
        f"  step               {format_time(item.step_s):>12}",
        f"  tokens/s/GPU       {item.tokens_per_s_per_gpu:>12.1f}",
    ]
    if item.hours is not None:
        price = "" if item.usd is None else f"  ({item.usd:,.0f} USD)"
        lines.append(f"  {item.steps:,} steps".ljust(21) + f"{item.hours:>10.2f} h{price}")
    lines += ["#", "# phases, each by itself; what the step is longer for it"]
    shown = item.step.shown()
    rows = [
        [
            f"  {p.name}",
            format_time(p.seconds),
            f"{shown.get(p.name, 0.0) / item.step_s:.1%}",
            p.place,
            MEANING[p.stage],
        ]
        for p in item.step.phases
    ]
    lines += aligned(rows, (0, 3, 4))
    lines += [
        "#",
        f"  half of the answers   {format_time(item.half_s):>10}",
        f"  nine tenths           {format_time(item.most_s):>10}",
        f"  the tail              {format_time(item.tail_s):>10}  (less than a tenth of the answers is under way)",
        "#",
        "# engines: " + ", ".join(f"{name} {share:.0%}" for name, share in _busiest(item)),
        f"# memory of a GPU: {item.trainer_memory_bytes / GIB:.1f} GiB in an update, "
        f"{item.engine_memory_bytes / GIB:.1f} GiB of an engine's weights, of {item.capacity_bytes / GIB:.1f} GiB",
    ]
    return "\n".join(lines) + "\n"


def _busiest(item: RlItem) -> list[tuple[str, float]]:
    ordered = sorted(item.engine_parts.items(), key=lambda part: -part[1])
    return [(name, share) for name, share in ordered if share >= 0.005]


def _sections(item: RlItem, alone: bool) -> list[Section]:
    before = "" if alone else f"{item.name}: "
    shown = item.step.shown()
    phases = [
        (p.name, p.place, p.seconds, 100 * shown.get(p.name, 0.0) / item.step_s, MEANING[p.stage])
        for p in item.step.phases
    ]
    columns = ["phase", "GPUs of", "seconds by itself", "share of the step (%)", "what"]
    return [
        Section(
            f"{before}Where the time goes",
            (plot(rl_step_chart(item), "Who works when over a step."), table(columns, phases)),
        ),
        Section(
            f"{before}The rollout",
            (
                plot(rollout_chart(item), "How many answers are under way; shaded: the tail."),
                table(["cause", "share of the engines' time (%)"], [(n, 100 * s) for n, s in _busiest(item)]),
            ),
        ),
        Section(f"{before}All figures", (Code(rl_table(item)),)),
    ]


class RlView(View[RlItem]):
    """Steps of reinforcement learning."""

    question: ClassVar[str] = "What does a step of reinforcement learning cost?"
    kinds: ClassVar[dict[str, PictureKind]] = {
        "rl-step": PictureKind.of_each("who works when over a step", lambda saved: saved.of_kind("rl"), plot_rl_step),
        "rollout": PictureKind.of_each(
            "how the answers of a rollout end", lambda saved: saved.of_kind("rl"), plot_rollout
        ),
    }

    def table(self, shown: Shown, answer: RlItem) -> str:
        return rl_table(answer, [shown.heading, shown.machine, ""])

    def csv(self, shown: Shown, answers: Sequence[RlItem]) -> dict[str, str]:
        """Figures, and the phases of every step."""
        phases = [
            {"item": item.name, "phase": s.phase.name, "stage": s.phase.stage, "gpus_of": s.phase.place,
             "start_s": s.start_s, "end_s": s.end_s}
            for item in answers
            for s in item.step.spans
        ]  # fmt: skip
        return {"rl.csv": records_csv([item.record() for item in answers]), "phases.csv": records_csv(phases)}

    def draw(self, shown: Shown, answer: RlItem) -> dict[str, Figure]:
        return {
            "rl-step": plot_rl_step(answer, shown.provenance),
            "rollout": plot_rollout(answer, shown.provenance),
        }

    def sentences(self, shown: Shown, answers: Sequence[RlItem]) -> list[str]:
        lines = []
        for item in answers:
            share = {stage: item.step.seconds(stage) for stage in STAGES}
            longest = max(share, key=lambda stage: share[stage])
            lines += [
                f"{item.name}: {format_time(item.step_s)} a step on {item.gpus:,} GPUs, "
                f"{item.tokens_per_s_per_gpu:,.0f} tokens/s per GPU.",
                f"The longest part is the {longest}, {format_time(share[longest])}; "
                f"the last tenth of the answers takes {format_time(item.tail_s)}.",
            ]
            if item.hours is not None:
                price = "" if item.usd is None else f", ${item.usd:,.0f}"
                lines.append(f"{item.steps:,} steps take {item.hours:,.1f} hours{price}.")
        return lines

    def sections(self, shown: Shown, answers: Sequence[RlItem]) -> list[Section]:
        alone = len(shown.of_kind("rl")) == 1
        return [section for item in answers for section in _sections(item, alone)]

    def sureness(self, shown: Shown, answers: Sequence[RlItem]) -> list[Part]:
        text = (
            "How far off predicted steps are, over published ones: page Accuracy of reinforcement learning "
            "(docs/accuracy-rl.md), counted by python validation/rl.py."
        )
        return [Text(text)]

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[RlItem]:
        return [RlItem.read(record) for record in records]


VIEW = RlView()
