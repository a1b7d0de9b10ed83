"""Claims: what is said, by whom, what comes out, and the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from commsim.report.page import Facts, Part, Section, Text
from commsim.report.tables import width
from commsim.report.view import Shown, View
from commsim.scenario.workload.claim import ClaimItem


def _facts(item: ClaimItem) -> tuple[tuple[str, str], ...]:
    """By whom it is said, what is printed, what comes out, and the verdict."""
    printed = " to ".join(f"{v:.6g}" for v in item.printed)
    return (
        ("source", item.source),
        ("printed", f"{printed} {item.unit}".strip()),
        ("computed", f"{item.value:.6g} {item.unit}".strip()),
        ("verdict", item.verdict),
    )


class ClaimsView(View[ClaimItem]):
    """Claims and their verdicts."""

    question: ClassVar[str] = "Is it so?"

    def table(self, shown: Shown, answer: ClaimItem) -> str:
        lines = [f"# {shown.heading}"]
        for name, text in (("claim", answer.text), *_facts(answer)):
            first, *more = textwrap.wrap(text, width() - 12) or [""]
            lines += [f"  {name:<9} {first}", *(" " * 12 + line for line in more)]
        return "\n".join(lines) + "\n"

    def sentences(self, shown: Shown, answers: Sequence[ClaimItem]) -> list[str]:
        return [f"{sum(item.holds for item in answers)} of {len(answers)} claims hold."]

    def sections(self, shown: Shown, answers: Sequence[ClaimItem]) -> list[Section]:
        return [Section("Claims", tuple(part for item in answers for part in (Text(item.text), Facts(_facts(item)))))]

    def sureness(self, shown: Shown, answers: Sequence[ClaimItem]) -> list[Part]:
        return [Text("A verdict is the computed value against the printed one, within the claim's tolerance.")]

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[ClaimItem]:
        return [
            ClaimItem(
                text=str(record["claim"]),
                source=str(record["source"]),
                printed=tuple(map(float, record["printed"])),
                unit=str(record["unit"]),
                value=float(record["computed"]),
                verdict=str(record["verdict"]),
            )
            for record in records
        ]


VIEW = ClaimsView()
