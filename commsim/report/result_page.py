"""The page of a run: what was predicted, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commsim.report.explain import answer as explained
from commsim.report.explain import why_sections
from commsim.report.page import Code, Facts, Page, Part, Section
from commsim.report.view import Shown

if TYPE_CHECKING:
    from commsim.accuracy.compare import Comparison
    from commsim.planner.explain import Explanation
    from commsim.scenario.result import Result


def result_page(result: Result, comparisons: Sequence[Comparison], reasons: Sequence[Explanation] = ()) -> Page:
    """The page of a result, its comparisons with measured curves, and what bounds it and would help."""
    shown = Shown(result, comparisons)
    runs = shown.runs()
    return Page(
        title=result.name,
        question=runs[0][0].question,
        answer=(*explained(reasons), *(line for view, answers in runs for line in view.sentences(shown, answers))),
        sections=(
            *(section for view, answers in runs for section in view.sections(shown, answers)),
            *why_sections(reasons),
            Section("How sure this is", tuple(_sureness(shown))),
            Section("Scenario", (Code(result.resolved),)),
            Section("Where the figures come from", (Facts(_provenance(result)),)),
        ),
        warnings=result.warnings,
        provenance=f"Scenario {result.scenario_hash}.",
    )


def _sureness(shown: Shown) -> list[Part]:
    """What is known of the error of each kind; what several say alike is said once."""
    parts: list[Part] = []
    for view, answers in shown.kinds():
        parts += [part for part in view.sureness(shown, answers) if part not in parts]
    return parts


def _provenance(result: Result) -> tuple[tuple[str, str], ...]:
    parameters = dict.fromkeys(answer.parameters for answer in result.answers if answer.parameters)
    return (
        ("commsim", result.provenance["commsim"]),
        ("scenario", f"{result.provenance.get('source') or 'made in code'}, hash {result.scenario_hash}"),
        ("topology", f"{result.topology['name']}, {result.topology['ranks']} ranks"),
        *(("parameters", text) for text in parameters),
    )
