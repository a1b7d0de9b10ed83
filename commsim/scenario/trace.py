"""The Timeline of one size of a scenario without a library: what `commsim run --trace` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.engine.evaluate import evaluate
from commsim.engine.timeline import Timeline, timeline
from commsim.engine.variation import repeated
from commsim.errors import ScenarioError
from commsim.scenario.raw import RawRows
from commsim.units import format_bytes

if TYPE_CHECKING:
    from commsim.scenario.run import Prepared


def traced(prepared: Prepared) -> tuple[Timeline, str]:
    """The timeline and its title: of the first workload's largest size, simulated by events; of several runs the first.

    A ScenarioError when the scenario has a library, whose protocol is timed without rows, or no sizes.
    """
    scenario, topology = prepared.scenario, prepared.topology
    if scenario.library.name != "none":
        name = scenario.library.name
        message = f"found the library {name}, expected none for a trace of moves (library=none)"
        raise ScenarioError([scenario.document.fault(("library",), message)])
    if not scenario.collectives:
        raise ScenarioError([scenario.document.fault(("workload", 0), "found jobs, expected a collective to trace")])
    work = scenario.collectives[0]
    if not work.sizes:
        raise ScenarioError(
            [scenario.document.fault(("workload", 0), "found no sizes, expected some to trace the largest")]
        )
    rows, size = RawRows(scenario, topology, work), max(work.sizes)
    algorithm = rows(size).algorithm
    schedule = rows.schedule(algorithm, size)
    if scenario.variation is None:
        outcome = evaluate(schedule, topology, "event", contention=scenario.contention)
    else:
        (outcome,) = repeated(schedule, topology, scenario.variation.variation, scenario.contention, [0])
    title = f"{scenario.name}: {algorithm} {work.collective} of {format_bytes(size)} on {topology.world_size} ranks"
    return timeline(schedule, outcome), title
