"""The verdict on a claim: what is computed against what is printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commsim.scenario.claim import ClaimSpec

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class ClaimItem:
    """One claim; the verdict is ``reproduced``, ``holds under the assumption that`` or ``not reproduced, because``."""

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


def run_claim(scenario: Scenario, topology: Topology, claim: ClaimSpec) -> ClaimItem:
    """Computes a claim's quantity and compares, within its tolerance."""
    from commsim.scenario.quantities import FUNCTIONS

    found = FUNCTIONS[claim.quantity](claim, scenario, topology)
    low, high = claim.printed[0] * (1 - claim.tolerance), claim.printed[-1] * (1 + claim.tolerance)
    if low <= found.value <= high:
        verdict = f"holds under the assumption that {found.assumption}" if found.assumption else "reproduced"
    else:
        verdict = f"not reproduced, because {found.because or 'the formula gives another value'}"
    return ClaimItem(claim.text, claim.source, claim.printed, claim.unit, found.value, verdict)
