"""The Timeline of one size of a collective without a library: what `commsim run --trace` writes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.engine.evaluate import evaluate
from commsim.engine.timeline import timeline
from commsim.engine.variation import repeated
from commsim.errors import ScenarioError
from commsim.scenario.raw import RawRows
from commsim.scenario.workload.work import Traced, WorkSite
from commsim.units import format_bytes

if TYPE_CHECKING:
    from commsim.scenario.collective import CollectiveSpec


def traced(site: WorkSite, work: CollectiveSpec) -> Traced:
    """The moves of the item's largest size, simulated by events; of several runs the first.

    A ScenarioError when it has no sizes.
    """
    setting, topology = site.setting, site.topology
    if not work.sizes:
        raise ScenarioError([site.fault((), "found no sizes, expected some to trace the largest")])
    rows, size = RawRows(setting, topology, work), max(work.sizes)
    algorithm = rows(size).algorithm
    schedule = rows.schedule(algorithm, size)
    if setting.variation is None:
        outcome = evaluate(schedule, topology, "event", contention=setting.contention)
    else:
        (outcome,) = repeated(schedule, topology, setting.variation.variation, setting.contention, [0])
    title = f"{setting.name}: {algorithm} {work.collective} of {format_bytes(size)} on {topology.world_size} ranks"
    return Traced(timeline(schedule, outcome), title, world_size=topology.world_size)
