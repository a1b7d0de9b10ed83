"""Claims: what is said, by whom, what comes out, and the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from commsim.report.page import Facts, Part, Section, Text
from commsim.report.view import Shown, View
from commsim.scenario.workload.claim import ClaimItem


def claim_table(item: ClaimItem, heading: Iterable[str] = ()) -> str:
    """Five lines per claim; ends with a newline."""
    printed = " to ".join(f"{v:.6g}" for v in item.printed)
    rows = [
        ("claim", item.text),
        ("source", item.source),
        ("printed", f"{printed} {item.unit}".strip()),
        ("computed", f"{item.value:.6g} {item.unit}".strip()),
        ("verdict", item.verdict),
    ]
    lines = [f"# {text}".rstrip() for text in heading]
    for name, text in rows:
        first, *more = textwrap.wrap(text, 105) or [""]
        lines += [f"  {name:<9} {first}", *(" " * 12 + line for line in more)]
    return "\n".join(lines) + "\n"


def claims_sections(items: Sequence[ClaimItem]) -> list[Section]:
    """What is said, by whom, what comes out, and the verdict."""
    parts: list[Part] = []
    for item in items:
        facts = (
            ("source", item.source),
            ("printed", f"{' to '.join(f'{v:.6g}' for v in item.printed)} {item.unit}".strip()),
            ("computed", f"{item.value:.6g} {item.unit}".strip()),
            ("verdict", item.verdict),
        )
        parts += [Text(item.text), Facts(facts)]
    return [Section("Claims", tuple(parts))]


class ClaimsView(View[ClaimItem]):
    """Claims and their verdicts."""

    question: ClassVar[str] = "Is it so?"

    def table(self, shown: Shown, answer: ClaimItem) -> str:
        """Five lines."""
        return claim_table(answer, [shown.heading])

    def sentences(self, shown: Shown, answers: Sequence[ClaimItem]) -> list[str]:
        """How many hold."""
        return [f"{sum(item.holds for item in answers)} of {len(answers)} claims hold."]

    def sections(self, shown: Shown, answers: Sequence[ClaimItem]) -> list[Section]:
        """One section of all."""
        return claims_sections(answers)

    def sureness(self, shown: Shown, answers: Sequence[ClaimItem]) -> list[Part]:
        """What a verdict is."""
        return [Text("A verdict is the computed value against the printed one, within the claim's tolerance.")]

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[ClaimItem]:
        """All of each claim."""
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
