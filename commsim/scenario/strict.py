"""The base of every block of a scenario file, and the ranks that several of them name."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from commsim.scenario.ranks import format_ranks, parse_ranks

__all__ = ["Ranks", "Strict"]

Ranks = Annotated[
    tuple[int, ...],
    BeforeValidator(parse_ranks, json_schema_input_type=int | str | list[int | str]),
    PlainSerializer(format_ranks, return_type=list[int | str]),
]


class Strict(BaseModel):
    """Unknown keys are faults; instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
