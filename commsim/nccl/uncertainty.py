"""How far predictions of a kind were off: the band around a time, and when nothing of the kind was ever measured.

`residuals.yaml` holds quantiles of measured / predicted over all measured curves, predicted without their own system
(`commsim validate collectives --report` writes it), by GPU generation, kind of link and size band.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from commsim.document import read_documents, validate

if TYPE_CHECKING:
    from commsim.nccl.graph import System
    from commsim.nccl.lower import Machine

RESIDUALS = Path(__file__).parent / "residuals.yaml"

SIZE_BANDS: tuple[tuple[str, int], ...] = (("small", 32 * 2**10), ("mid", 16 * 2**20), ("large", 2**62))
"""Name and largest size of a band."""

LEAST = 20
"""Fewer measured sizes than this say nothing of a kind; the kinds of all generations together serve."""


class Quantiles(BaseModel):
    """Measured / predicted: the 10 % and 90 % quantiles over `n` sizes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: float = Field(gt=0)
    high: float = Field(gt=0)
    n: int = Field(ge=1)


class Kind(BaseModel):
    """What was measured of a generation on a kind of link, and the quantiles by size band."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    generation: str
    link: str
    smallest: int
    largest: int
    most_nodes: int
    bands: dict[str, Quantiles]


class Residuals(BaseModel):
    """All kinds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kinds: list[Kind]


@dataclass(frozen=True)
class Spread:
    """Factors on a predicted time that hold eight of ten measurements of the kind; a warning where there are none."""

    low: float
    high: float
    warning: str = ""


def link_kind(system: System, machine: Machine, network: str) -> str:
    """Kind of link of a communicator: what joins its nodes, or the GPUs of its only node."""
    return network if system.nodes > 1 else machine.intra_kind


@lru_cache(maxsize=1)
def residuals() -> Residuals:
    """The shipped residuals; no kinds where the file does not exist yet."""
    if not RESIDUALS.is_file():
        return Residuals(kinds=[])
    return validate(Residuals, read_documents(RESIDUALS)[0])


def band_of(nbytes: int) -> str:
    """The size band of a call."""
    return next(name for name, up_to in SIZE_BANDS if nbytes <= up_to)


def spread(generation: str, link: str, nbytes: int, nodes: int) -> Spread | None:
    """The band of a prediction; None where not even the link was measured in that size band."""
    kinds = [k for k in residuals().kinds if k.link == link]
    own = next((k for k in kinds if k.generation == generation), None)
    band = band_of(nbytes)
    found = own.bands.get(band) if own else None
    what = f"{generation} over {link}"
    warning = ""
    if own is None or found is None:
        warning = f"outside what was measured: no curve of {what} in this size range"
    elif nbytes > own.largest or nbytes < own.smallest:
        warning = f"outside what was measured: {what} from {own.smallest} to {own.largest} B"
    elif nodes > own.most_nodes:
        warning = f"outside what was measured: {what} on up to {own.most_nodes} nodes"
    if found is None or found.n < LEAST:
        others = [k.bands[band] for k in kinds if band in k.bands]
        if not others:
            return None
        found = Quantiles(low=min(q.low for q in others), high=max(q.high for q in others), n=sum(q.n for q in others))
    return Spread(min(1.0, found.low), max(1.0, found.high), warning)
