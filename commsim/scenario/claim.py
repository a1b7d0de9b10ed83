"""A ``claim:`` item of a scenario: what is often said, where, and the quantity by which commsim looks at it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from commsim.document import located
from commsim.document.types import KeyPath, show, suggest
from commsim.scenario.strict import Strict
from commsim.scenario.training import TrainingSpec

QUANTITIES = (
    "activation_growth",
    "bubble",
    "bytes_per_parameter",
    "ddp_bytes_per_rank",
    "finetune_gigabytes",
    "lora_saving",
    "model_states",
    "optimizer_share",
    "order_ratio",
    "recompute_cost",
    "ring_time_ratio",
    "ring_traffic_ratio",
    "rlhf_hours",
    "rlhf_usd",
    "server_ratio",
    "single_gpu_days",
    "split_width",
    "training_days",
    "zero_gigabytes",
    "zero_saving",
    "zero_traffic",
)
"""What can be computed; each has a function of its name in `commsim.scenario.quantities`."""


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
        faults: list[tuple[KeyPath, str]] = []
        if self.quantity not in QUANTITIES:
            text = f"found the unknown quantity {show(self.quantity)}, {suggest(self.quantity, QUANTITIES)}"
            faults.append((("quantity",), text))
        if sorted(self.printed) != list(self.printed):
            faults.append((("printed",), "found a range whose first end is above its last"))
        if faults:
            raise located(*faults)
        return self
