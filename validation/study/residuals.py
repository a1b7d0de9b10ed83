"""Bands of predictions from what measurements left over, and how many measurements of other systems they hold.

The band of a kind (GPU generation, link, size band) lies between two quantiles of measured / predicted over its
systems, each of equal weight, and in it its logs; a system of fewer than `FULL` sizes in the band weighs less. A
quantile over few systems says little of the next one, so that the share left out on each side is
``0.1 (k - 2) / (k + 2)`` for `k` systems: with three the band reaches to 2 %, with many to 10 %. `coverage` counts, for
every system, what lies inside the bands of all the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.nccl.uncertainty import (
    ANY,
    INSIDE,
    OTHER,
    SIZE_BANDS,
    VERBS,
    MeasuredKind,
    Quantiles,
    band_of,
    of_sort,
    spread,
)
from study.validate import Validation

_SIDE = 0.1

FULL = 5
"""Sizes from which on a system counts whole in a band: one whose curves only just reach into it says little of it. With
four or less one size of one system, a hiccup, makes the band of small sizes over clouds 48 wide, with five two."""


@dataclass(frozen=True)
class Residual:
    """One measured size: its kind, its log and system, and measured / predicted."""

    generation: str
    link: str
    band: str
    system: str
    log: int
    nodes: int
    nbytes: int
    ratio: float


def points(validation: Validation, mode: str = "zero-shot") -> list[Residual]:
    """Every scored size of every log that is not degraded."""
    residuals = []
    for number, each in enumerate(validation.scored(mode)):
        log, facts = each.log, each.facts
        assert log is not None
        ratio = (log.time_s / each.outcomes[mode].seconds).tolist()
        residuals += [
            Residual(facts.generation, facts.link, band_of(n), each.case.system, number, each.case.nodes, n, r)
            for n, r in zip(log.nbytes, ratio, strict=True)
        ]
    return residuals


def kinds(residuals: Sequence[Residual]) -> list[MeasuredKind]:
    """The kinds of some points: each generation on each link, each link, and links inside and between nodes."""
    out = []
    sorts: list[Callable[[Residual], tuple[str, str]]] = [
        lambda p: (p.generation, p.link),
        lambda p: (ANY, p.link),
        lambda p: (ANY, of_sort(p.link)),
    ]
    for sort in sorts:
        groups: dict[tuple[str, str], list[Residual]] = {}
        for p in residuals:
            groups.setdefault(sort(p), []).append(p)
        out += [_kind(generation, link, groups[generation, link]) for generation, link in sorted(groups)]
    return out


def _kind(generation: str, link: str, residuals: Sequence[Residual]) -> MeasuredKind:
    bands = {name: [p for p in residuals if p.band == name] for name, _ in SIZE_BANDS}
    return MeasuredKind(
        generation=generation,
        link=link,
        smallest=min(p.nbytes for p in residuals),
        largest=max(p.nbytes for p in residuals),
        most_nodes=max(p.nodes for p in residuals),
        bands={name: _quantiles(part) for name, part in bands.items() if part},
    )


def _quantiles(residuals: Sequence[Residual]) -> Quantiles:
    of_log, of_system = Counter(p.log for p in residuals), Counter(p.system for p in residuals)
    logs = Counter(system for system, _ in {(p.system, p.log) for p in residuals})
    part = {system: min(1.0, count / FULL) for system, count in of_system.items()}
    ratio = np.array([p.ratio for p in residuals])
    weight = np.array([part[p.system] / (of_log[p.log] * logs[p.system]) for p in residuals])
    systems = sum(part.values())
    side = _SIDE * max(0, systems - 2) / (systems + 2)
    order = np.argsort(ratio)
    total = np.cumsum(weight[order]) / weight.sum()
    low, high = (float(ratio[order][min(int(np.searchsorted(total, q)), ratio.size - 1)]) for q in (side, 1 - side))
    return Quantiles(low=round(low, 3), high=round(high, 3), n=ratio.size, systems=len(part))


def residual_record(validation: Validation) -> dict[str, Any]:
    """What `commsim.nccl.uncertainty` reads."""
    return {"kinds": [kind.model_dump() for kind in kinds(points(validation))]}


def coverage(residuals: Sequence[Residual]) -> dict[tuple[str, str], dict[str, float]]:
    """By sort of link and size band: share of sizes inside the bands of the other systems, median width, systems.

    Systems weigh alike, and in them their sizes. The width is high / low of the band.
    """
    inside: dict[tuple[str, str], dict[str, list[bool]]] = {}
    widths: dict[tuple[str, str], list[float]] = {}
    for system in sorted({p.system for p in residuals}):
        others = kinds([p for p in residuals if p.system != system])
        for p in (p for p in residuals if p.system == system):
            band = spread(p.generation, p.link, p.nbytes, p.nodes, others)
            if band is None:
                continue
            cell = of_sort(p.link), p.band
            inside.setdefault(cell, {}).setdefault(system, []).append(band.low <= p.ratio <= band.high)
            widths.setdefault(cell, []).append(band.high / band.low)
    order = [(sort, band) for sort in (INSIDE, VERBS, OTHER) for band, _ in SIZE_BANDS]
    return {cell: _summary(inside[cell], widths[cell]) for cell in order if cell in inside}


def _summary(inside: Mapping[str, Sequence[bool]], widths: Iterable[float]) -> dict[str, float]:
    share = float(np.mean([np.mean(held) for held in inside.values()]))
    return {"inside": share, "width": float(np.median(list(widths))), "systems": len(inside)}
