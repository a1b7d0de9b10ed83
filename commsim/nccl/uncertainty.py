"""How far predictions of a kind were off: the band around a time, and when nothing of the kind was ever measured.

`residuals.yaml` holds quantiles of measured / predicted over all measured curves, predicted as shipped, by GPU
generation, kind of link and size band (`commsim validate collectives --report` writes it). About eight of ten
measurements of a machine that was not among them lie inside (docs/accuracy.md counts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from commsim.document import read_documents, validate
from commsim.nccl.machine import Machine
from commsim.nccl.parameters import Frozen
from commsim.nccl.system import System
from commsim.units import format_size

RESIDUALS = Path(__file__).parent / "residuals.yaml"

SIZE_BANDS: tuple[tuple[str, int], ...] = (("small", 32 * 2**10), ("mid", 16 * 2**20), ("large", 2**62))
"""Name and largest size of a band."""

LEAST = 3
"""Fewer systems than this say little of a kind; all generations on the link serve, or all links of its sort."""

ANY = "any"
"""Generation of a kind that holds all of them."""

INSIDE, VERBS, OTHER = "inside a node", "InfiniBand and RoCE", "other networks"


def of_sort(link: str) -> str:
    """The sort of a kind of link: inside a node, InfiniBand verbs, or a network's own plugin and sockets."""
    if link.startswith("nvlink") or link in ("pcie", "none"):
        return INSIDE
    return VERBS if link in ("infiniband", "roce") else OTHER


class Quantiles(Frozen):
    """Measured / predicted: the lower and the upper quantile over `n` sizes of some systems."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)
    n: int = Field(ge=1)
    systems: int = Field(ge=1)


class MeasuredKind(Frozen):
    """What was measured of a generation (or of all: `ANY`) on a kind of link, and the quantiles by size band."""

    generation: str
    link: str
    smallest: int
    largest: int
    most_nodes: int
    bands: dict[str, Quantiles]


class Residuals(Frozen):
    """All kinds."""

    kinds: list[MeasuredKind]


@dataclass(frozen=True)
class Spread:
    """Factors on a predicted time that hold eight of ten measurements of the kind; a warning where there are none."""

    low: float
    high: float
    warning: str = ""


def link_kind(system: System, machine: Machine, network: str) -> str:
    """Kind of link of a communicator: what joins its nodes, or the GPUs of its only node ("pcie" by the host, too)."""
    inside = "pcie" if machine.intra_kind == "host" else machine.intra_kind
    return network if system.nodes > 1 else inside


@lru_cache(maxsize=1)
def residuals() -> Residuals:
    """The shipped residuals; no kinds where the file does not exist yet."""
    if not RESIDUALS.is_file():
        return Residuals(kinds=[])
    return validate(Residuals, read_documents(RESIDUALS)[0])


def band_of(nbytes: int) -> str:
    """The size band of a call."""
    return next(name for name, up_to in SIZE_BANDS if nbytes <= up_to)


def spread(
    generation: str, link: str, nbytes: int, nodes: int, kinds: Sequence[MeasuredKind] | None = None
) -> Spread | None:
    """The band of a prediction, by the shipped kinds or by some others; None where nothing like it was measured."""
    known = {(k.generation, k.link): k for k in (residuals().kinds if kinds is None else kinds)}
    band = band_of(nbytes)
    own = known.get((generation, link))
    warning, here = "", f"{generation} over {link}"
    if own is None or band not in own.bands:
        warning = f"outside what was measured: no curve of {here} in this size range"
    elif nbytes > own.largest or nbytes < own.smallest:
        warning = f"outside what was measured: {here} from {format_size(own.smallest)} to {format_size(own.largest)}"
    elif nodes > own.most_nodes:
        warning = f"outside what was measured: {here} on up to {own.most_nodes} nodes"
    wider = [known.get(key) for key in ((generation, link), (ANY, link), (ANY, of_sort(link)))]
    measured = [k.bands[band] for k in wider if k is not None and band in k.bands]
    if not measured:
        return None
    best = next((q for q in measured if q.systems >= LEAST), measured[-1])
    return Spread(min(1.0, best.low), max(1.0, best.high), warning)
