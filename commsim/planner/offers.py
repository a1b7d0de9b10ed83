"""What frameworks have of what a plan searches: schedules, recomputation and ZeRO stages of a release, with sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from commsim.document import read_documents
from commsim.training.memory import Framework

OFFERS = Path(__file__).with_name("offers.yaml")

_AXES = {"schedule": "schedules", "recompute": "recompute", "zero_stage": "zero_stages"}


@dataclass(frozen=True)
class Offer:
    """A release: the memory model it has, what it has of three axes, and where that stands."""

    memory: Framework
    release: str
    schedules: tuple[str, ...]
    recompute: tuple[str, ...]
    zero_stages: tuple[int, ...]
    sharded_pipelines: bool
    sources: tuple[str, ...]

    def of(self, axis: str) -> tuple[Any, ...] | None:
        """The values of an axis; None of one that the release does not restrict."""
        return getattr(self, _AXES[axis]) if axis in _AXES else None

    def restricted(self, axes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        """Axes with only the values that the release has."""
        return {
            name: values if (own := self.of(name)) is None else tuple(v for v in values if v in own)
            for name, values in axes.items()
        }


@lru_cache(maxsize=1)
def offers() -> Mapping[str, Offer]:
    """By the name of the framework, what its release offers."""
    entries: dict[str, dict[str, Any]] = read_documents(OFFERS)[0].data
    lists: dict[str, dict[str, Any]] = {
        name: {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()} for name, entry in entries.items()
    }
    return {name: Offer(**entry) for name, entry in lists.items()}


def beyond(name: str, search: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """A sentence for every axis whose named values the framework does not have all of; it is searched as named."""
    offer = offers().get(name)
    out = []
    for axis, values in search.items():
        own = offer.of(axis) if offer is not None else None
        missing = [str(v) for v in values if own is not None and v not in own]
        if missing and offer is not None and own is not None:
            has = ", ".join(map(str, own))
            out.append(f"{offer.release} has no {axis} {', '.join(missing)}, only {has} ({offer.sources[0]})")
    return out
