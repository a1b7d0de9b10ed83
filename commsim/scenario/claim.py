"""A ``claim:`` item of a scenario: what is often said, where, and the quantity by which commsim looks at it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from commsim.document import refuse
from commsim.document.types import show, suggest
from commsim.scenario.quantities import FUNCTIONS
from commsim.scenario.strict import Strict
from commsim.scenario.training import TrainingSpec


class ClaimSpec(Strict):
    """One statement. ``printed``: a value, or the two ends of a range; ``inputs``: what the quantity is asked for."""

    text: str = Field(min_length=1, description="what is said")
    source: str = Field(min_length=1, description="where")
    quantity: str = Field(
        description="what to compute: a name of `commsim/scenario/quantities.py`, such as `zero_gigabytes`"
    )
    printed: Annotated[tuple[float, ...], Field(min_length=1, max_length=2)] = Field(
        description="the value that is said, or the two ends of a range"
    )
    unit: str = Field(default="", description="of the value")
    tolerance: float = Field(
        default=0.1, ge=0, le=1, description="relative distance up to which it counts as reproduced"
    )
    inputs: dict[str, float | str] = Field(
        default_factory=dict, description="numbers and names that the quantity needs"
    )
    training: TrainingSpec | None = Field(
        default=None, description="the step that it is computed on, where it needs one"
    )

    @model_validator(mode="after")
    def _quantity_exists(self) -> ClaimSpec:
        unknown = f"found the unknown quantity {show(self.quantity)}, {suggest(self.quantity, list(FUNCTIONS))}"
        turned = "found a range whose first end is above its last"
        refuse(
            (self.quantity not in FUNCTIONS, ("quantity",), unknown),
            (sorted(self.printed) != list(self.printed), ("printed",), turned),
        )
        return self
