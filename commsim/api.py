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


def plot(result: Result, kind: str = "bandwidth", item: int = 0) -> Figure:
    """One picture of a result: ``bandwidth``, ``accuracy``, ``crossover``, ``links``, or of a training step
    ``breakdown``, ``memory``, ``pipeline``; a CommsimError names those that it can show.

    `item` counts what can be drawn so from 0. A matplotlib Figure: ``plot(result).savefig("bandwidth.svg")``; notebooks
    show it. Bandwidths stand beside the measured curves that they were compared with, where there are any.
    """
    from commsim.report.kinds import Wish, kinds_of, pictures
    from commsim.report.saved import saved_of

    saved = saved_of(result)
    compared = kind == "bandwidth" and "accuracy" in kinds_of(saved) and bool(result.items[item].measured)
    one = sum(bool(other.measured) for other in result.items[:item]) if compared else item
    return pictures(saved, "accuracy" if compared else kind, Wish(item=one + 1))[0][1]
