"""What a result of ``library: none`` is and is not, beside what NCCL's model says of the same machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.errors import CommsimError
from commsim.units import format_bytes, gb_per_s, microseconds

if TYPE_CHECKING:
    from commsim.scenario.collective import CollectiveSpec
    from commsim.scenario.item import Row
    from commsim.scenario.work import WorkSite

MOST_RANKS = 8192
"""Up to so many, NCCL's model answers one size in less than a second and is asked."""


def ideal_note(site: WorkSite, work: CollectiveSpec, row: Row) -> str:
    """What the row of the largest size is, how far NCCL's model is from it, and what brings it nearer."""
    channels = "one channel" if row.channels == 1 else f"{row.channels} channels that take one way"
    text = (
        f"library none: {row.algorithm} {work.collective} is an ideal algorithm over {channels}, without protocol, "
        "launch or NCCL's choices"
    )
    theirs = _of_nccl(site, work, row.size_bytes)
    if theirs is None or not theirs.time_s or not row.time_s:
        return text
    ratio = row.time_s / theirs.time_s
    how = f"{ratio:.3g} times as long" if ratio >= 1 else f"{1 / ratio:.3g} times as fast"
    text += (
        f"; at {format_bytes(row.size_bytes)} NCCL's model: {microseconds(theirs.time_s):.5g} us, "
        f"{gb_per_s(theirs.busbw):.4g} GB/s ({theirs.algorithm}, {theirs.protocol}, channels: {theirs.channels}); "
        f"this schedule: {gb_per_s(row.busbw):.4g} GB/s, {how}"
    )
    more = ["channels: N shares it over more, on the same way"] if row.channels == 1 else []
    more += [] if work.algorithm == "auto" else ["algorithm: auto takes the quickest"]
    return "; ".join([text, *more])


def _of_nccl(site: WorkSite, work: CollectiveSpec, size: int) -> Row | None:
    """The row of NCCL's model, left to its own choices; None where it has no answer for the machine or the call."""
    from commsim.scenario.predictors import NcclRows
    from commsim.scenario.setting import Library

    topology = site.topology
    if any(group.gpu.generation == "cpu" for group in topology.groups) or topology.world_size > MOST_RANKS:
        return None
    alone = {"library": Library(), "engine": "auto", "contention": "fifo", "variation": None, "params": None}
    setting = site.setting.model_copy(update=alone)
    asked = work.model_copy(update={"algorithm": None, "channels": None})
    try:
        return NcclRows(setting, topology, asked, site.cache)(size)
    except CommsimError:
        return None
