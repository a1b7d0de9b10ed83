"""The options of ``commsim run`` by which a model's name stands in place of a scenario, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.errors import CommsimError, ScenarioError
from commsim.scenario.load import find_scenario, load_scenarios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commsim.scenario.schema import Scenario


@dataclass(frozen=True)
class GenerateOptions:
    """A machine and requests for a model that is named in place of a scenario."""

    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="MACHINE",
            help="A preset or topology file on which the model that stands in place of a scenario answers requests.",
        ),
    ] = None
    generate: Annotated[
        str | None,
        typer.Option(metavar="IN:OUT", help="With --on: tokens in and out (default: 1024:1024)."),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="With --on: requests that each replica has at once (default: 1, unless --rate)."),
    ] = None
    rate: Annotated[float | None, typer.Option(help="With --on: requests a second, in place of --batch.")] = None
    requests: Annotated[
        int | None, typer.Option(min=1, help="With --on: how many (default: ten for each at once, or 1000).")
    ] = None
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, help="With --on: nodes (default: as one replica needs).")
    ] = None
    tp: Annotated[int | None, typer.Option(min=1, help="With --on: tensor parallel ranks (default: 1).")] = None
    pp: Annotated[int | None, typer.Option(min=1, help="With --on: pipeline stages (default: 1).")] = None
    ep: Annotated[int | None, typer.Option(min=1, help="With --on: expert parallel ranks (default: 1).")] = None
    attention_dp: Annotated[
        int | None, typer.Option(min=1, help="With --on: groups with sequences of their own in attention (default: 1).")
    ] = None
    framework: Annotated[
        str | None, typer.Option(help="With --on: vllm, sglang, tensorrt_llm or hf (default: vllm).")
    ] = None
    precision: Annotated[
        str | None, typer.Option(help="With --on: bf16, fp8, fp8_block, nvfp4, int4 ... (default: bf16).")
    ] = None


def scenarios_of(name: str, overrides: Sequence[str], options: GenerateOptions) -> list[Scenario]:
    """The scenarios of a file or a shipped name; with ``--on`` that of a model's name."""
    if options.on is None:
        given = [f.name for f in fields(options) if getattr(options, f.name) is not None]
        if given:
            option = given[0].replace("_", "-")
            raise CommsimError(f"found --{option} without --on, expected a machine for the model {name!r:.80}")
        return load_scenarios(_found(name), overrides)
    from commsim.scenario.asked_generation import AskedGeneration, scenario_of

    asked = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in ("on", "generate")}
    lengths = options.generate or "1024:1024"
    return [scenario_of(AskedGeneration(name, options.on, lengths, **asked, overrides=tuple(overrides)))]


def _found(name: str) -> Path:
    """The path of a scenario; the fault of a model's name says how it is run."""
    try:
        return find_scenario(name)
    except ScenarioError:
        from commsim.training.model import model

        try:
            model(name)
        except CommsimError:
            pass
        else:
            raise ScenarioError(
                f"found the model {name!r}, expected a scenario, or a machine beside it, such as "
                f"commsim run {name} --on hgx-h100-ndr400 --tp 8"
            ) from None
        raise
