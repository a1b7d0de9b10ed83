"""What ``import commsim as cs`` offers: run a scenario, look at its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.cli.find import find_scenario
from commsim.document.types import Document
from commsim.errors import ScenarioError
from commsim.scenario.load import check_document, load_scenarios
from commsim.scenario.result import Result
from commsim.scenario.run import run as run_scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Result", "plot", "run", "run_all"]


def run(scenario: str | Path | Mapping[str, Any], *overrides: str) -> Result:
    """The result of one scenario: a file, the name of a shipped one, or the same keys as a mapping.

    `overrides` are ``key.path=value`` texts as on the command line. Raises ScenarioError (a CommsimError) with every
    fault, also if the file holds several scenarios; `run_all` takes those.

    >>> import commsim as cs
    >>> result = cs.run("allreduce-8-h100", "workload.0.sizes=64 MiB")
    >>> [int(size) for size in result.to_frame()["size_bytes"]]
    [67108864]
    """
    results = run_all(scenario, *overrides)
    if len(results) != 1:
        raise ScenarioError(f"found {len(results)} scenarios in {scenario}, expected one; run_all takes several")
    return results[0]


def run_all(scenario: str | Path | Mapping[str, Any], *overrides: str) -> Sequence[Result]:
    """The results of every scenario of a file, in order."""
    if isinstance(scenario, Mapping):
        from commsim.document import apply_overrides, raise_faults

        document = apply_overrides(Document("", dict(scenario)), overrides)
        made, faults = check_document(document, Path())
        if made is None or faults:
            raise_faults(faults)
        return [run_scenario(made)]
    return [run_scenario(one) for one in load_scenarios(find_scenario(str(scenario)), overrides)]


def plot(result: Result, item: int = 0) -> Figure:
    """The bandwidth of one workload item over its sizes, with the measured curves it was compared with.

    A matplotlib Figure: ``plot(result).savefig("bandwidth.svg")``; notebooks show it.
    """
    from commsim.accuracy.compare import compare
    from commsim.report.plots import plot_bandwidth

    shown = result.items[item]
    comparisons = [compare(p, m) for m, p in zip(shown.measured, shown.at_measured, strict=True)]
    provenance = f"commsim {result.provenance['commsim']}, scenario {result.scenario_hash}"
    return plot_bandwidth([shown.curve()], list(shown.measured), result.name, comparisons, provenance)
