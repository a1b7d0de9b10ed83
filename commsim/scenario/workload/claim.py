"""A claim: what is often said, where, and what is computed against what is printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from commsim.scenario.answer import Answer
from commsim.scenario.claim import ClaimSpec
from commsim.scenario.quantities import FUNCTIONS, ClaimCase
from commsim.scenario.work import WorkItem, WorkSite


@dataclass(frozen=True)
class ClaimItem(Answer):
    """One claim; the verdict is ``reproduced``, ``holds under the assumption that`` or ``not reproduced, because``."""

    kind: ClassVar[str] = "claims"

    text: str
    source: str
    printed: tuple[float, ...]
    unit: str
    value: float
    verdict: str

    @property
    def holds(self) -> bool:
        """Whether the computed value lies where the printed one says."""
        return not self.verdict.startswith("not")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "claim": self.text,
            "source": self.source,
            "printed": list(self.printed),
            "computed": self.value,
            "unit": self.unit,
            "verdict": self.verdict,
        }

    @property
    def unlisted(self) -> int:
        """Claims are no rows of `records`."""
        return 1


class ClaimWork(WorkItem):
    """A workload item that is a claim."""

    kind: ClassVar[str] = "claims"
    noun: ClassVar[str] = "a claim"
    libraries: ClassVar[tuple[str, ...]] = ("nccl",)

    claim: ClaimSpec = Field(description="a statement that is looked at")

    def run(self, site: WorkSite) -> tuple[ClaimItem, list[str]]:
        """The claim's quantity, compared within its tolerance."""
        claim = self.claim
        asked = claim.quantity, claim.inputs, claim.training, claim.printed[-1], claim.unit
        finding = FUNCTIONS[claim.quantity](ClaimCase(*asked, site.setting, site.topology))
        low, high = claim.printed[0] * (1 - claim.tolerance), claim.printed[-1] * (1 + claim.tolerance)
        if low <= finding.value <= high:
            verdict = f"holds under the assumption that {finding.assumption}" if finding.assumption else "reproduced"
        else:
            verdict = f"not reproduced, because {finding.because or 'the formula gives another value'}"
        item = ClaimItem(claim.text, claim.source, claim.printed, claim.unit, finding.value, verdict)
        return item, []
