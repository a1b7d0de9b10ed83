"""A model's name and a machine in place of a scenario of ``commsim run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from commsim.cli.options import GenerateOptions
from commsim.errors import CommsimError
from commsim.scenario.asked_generation import AskedGeneration, scenario_of
from commsim.scenario.schema import Scenario

LENGTHS = "1024:1024"


def asked_scenario(name: str, overrides: Sequence[str], options: GenerateOptions) -> Scenario:
    """The scenario of a model's name with ``--on``; other options without it are a fault."""
    asked = asdict(options)
    machine, lengths = asked.pop("on"), asked.pop("generate") or LENGTHS
    if machine is None:
        raise CommsimError(f"found {options.given[0]} without --on, expected a machine for the model {name!r:.80}")
    return scenario_of(AskedGeneration(name, machine, lengths, **asked, overrides=tuple(overrides)))
