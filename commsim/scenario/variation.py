"""What a scenario may say about variation: jitter, stragglers, a seed, and how often a run is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from commsim.document import refuse
from commsim.document.types import KeyFaults
from commsim.fields import Seconds
from commsim.scenario.strict import Ranks, Strict

if TYPE_CHECKING:
    from commsim.engine.variation import Variation

DEFAULT_REPEATS = 100
"""Runs when something is drawn: the fewest of which the 99th percentile is not simply the largest."""


def _share(value: Any) -> Any:
    """``2 %`` as 0.02; anything else as it is."""
    if isinstance(value, str) and value.rstrip().endswith("%"):
        try:
            return float(value.rstrip().removesuffix("%")) / 100
        except ValueError:
            return value
    return value


NodeSpread = Annotated[
    float,
    BeforeValidator(_share, json_schema_input_type=str | float),
    Field(gt=0, le=1, allow_inf_nan=False),
]


class JitterSpec(Strict):
    """A random delay of every message."""

    mean: Seconds = Field(description="of the delay")
    distribution: Literal["exponential", "uniform", "lognormal"] = Field(
        default="exponential", description="of the delay; uniform: from 0 to twice the mean"
    )
    sigma: Annotated[float, Field(gt=0, le=5, allow_inf_nan=False)] | None = Field(
        default=None, description="of the lognormal; left out: 1"
    )

    @model_validator(mode="after")
    def _sigma_of_lognormal(self) -> JitterSpec:
        lone = f"found sigma with {self.distribution}, expected it only with lognormal"
        refuse(
            (self.mean <= 0, ("mean",), "found 0 s, expected a mean above zero"),
            (self.sigma is not None and self.distribution != "lognormal", ("sigma",), lone),
        )
        return self


class StragglerSpec(Strict):
    """Ranks that are slow by a factor or come late by a delay."""

    ranks: Ranks = Field(description="which, as in `jobs`")
    factor: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)] | None = Field(
        default=None, description="the links at their GPUs take so many times as long for a byte"
    )
    delay: Seconds | None = Field(default=None, description="they come so late; nothing is sent by or to them before")

    @model_validator(mode="after")
    def _some_way(self) -> StragglerSpec:
        if self.factor is None and self.delay is None:
            raise ValueError("found neither factor nor delay, expected one of them or both")
        return self


class VariationSpec(Strict):
    """What differs from run to run and from rank to rank."""

    seed: Annotated[int, Field(strict=True, ge=0, le=2**32)] = Field(default=0, description="of the random draws")
    repeats: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = Field(
        default=None, description="runs, each with draws of its own; left out: 100 where anything is drawn, else 1"
    )
    jitter: JitterSpec | None = Field(default=None, description="a random delay of every message")
    node_spread: NodeSpread | None = Field(
        default=None,
        description=(
            "standard deviation of what a node takes, such as `2 %`: each node of each run is slower by a draw; one "
            "that would be quicker gains nothing"
        ),
    )
    stragglers: Annotated[tuple[StragglerSpec, ...], Field(max_length=4096)] = Field(
        default=(), description="slow or late ranks"
    )

    @model_validator(mode="after")
    def _something_varies(self) -> VariationSpec:
        equal = f"found {self.repeats} repeats without jitter or node_spread, which would be equal"
        nothing = "found neither jitter, node_spread nor stragglers, expected one of them or more"
        first: dict[int, int] = {}
        twice: KeyFaults = []
        for i, straggler in enumerate(self.stragglers):
            again = next((rank for rank in straggler.ranks if rank in first), None)
            if again is not None:
                text = f"found rank {again} again (first at straggler {first[again]}), expected each rank once"
                twice.append((("stragglers", i, "ranks"), text))
            first |= dict.fromkeys(straggler.ranks, i + 1)
        none = self.jitter is None and self.node_spread is None
        refuse(
            (none and not self.stragglers, (), nothing),
            (none and (self.repeats or 1) > 1, ("repeats",), equal),
            *((True, path, text) for path, text in twice),
        )
        return self

    def place_faults(self, world_size: int) -> KeyFaults:
        """Stragglers that are not on a machine of as many ranks."""
        return [
            (("stragglers", i, "ranks"), f"found rank {wrong}, expected one of the ranks 0..{world_size - 1}")
            for i, straggler in enumerate(self.stragglers)
            for wrong in [r for r in straggler.ranks if r >= world_size][:1]
        ]

    @property
    def variation(self) -> Variation:
        """For the engine."""
        from commsim.engine.variation import Jitter, Straggler, Variation

        jitter = None
        if self.jitter is not None:
            jitter = Jitter(self.jitter.mean, self.jitter.distribution, self.jitter.sigma or 1.0)
        return Variation(
            seed=self.seed,
            repeats=self.repeats or (1 if jitter is None and not self.node_spread else DEFAULT_REPEATS),
            jitter=jitter,
            node_spread=self.node_spread or 0.0,
            stragglers=tuple(Straggler(s.ranks, s.factor or 1.0, s.delay or 0.0) for s in self.stragglers),
        )
