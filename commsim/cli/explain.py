"""``commsim explain``: what bounds a saved result or a scenario, and what the next best change would give."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.options import AskedOptions, Memory, OnlyJson, changes, complete_subjects, spread
from commsim.cli.run import why
from commsim.cli.say import print_json, tracking
from commsim.errors import CommsimError
from commsim.scenario.load import find_scenario
from commsim.scenario.workload.collective import CollectiveWork

if TYPE_CHECKING:
    from commsim.scenario.result import Result
    from commsim.scenario.run import Prepared


@spread
def explain(
    result: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_subjects,
            help="A folder that commsim run or plan wrote, a scenario file, a shipped one's name, or with --on a "
            "collective or a model.",
        ),
    ],
    overrides: Annotated[list[str] | None, changes("Changes as key.path=value, such as topology.nodes=4.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="Message size to explain, such as 1M or 1MiB (default: smallest and largest)."),
    ] = None,
    what_if: Annotated[bool, typer.Option(help="Simulate single changes, or only say what bounds it.")] = True,
    memory: Memory = None,
    json_output: OnlyJson = False,
    *,
    question: AskedOptions,
) -> None:
    """Say in plain sentences what bounds a run, and what each single change would give: every one is simulated."""
    del memory
    from commsim.document.overrides import overridden
    from commsim.report.explain import text, to_dict
    from commsim.scenario.arguments import sizes as sizes_of
    from commsim.scenario.load import load_scenarios
    from commsim.scenario.predictors import Cache
    from commsim.scenario.run import prepare, run

    sizes = sizes_of("--size", size)
    saved: Path | None = None
    if question.given:
        from commsim.cli.asked import asked_question, asked_scenario
        from commsim.scenario.question_command import command_of

        one_line = asked_question(result, overrides or [], question)
        asked, command = [asked_scenario(one_line, partial(typer.echo, err=json_output))], command_of(one_line)
    else:
        path = _scenario_of(result)
        named = str(path) if Path(result).exists() else result
        command = shlex.join(["commsim", "run", named, *(overrides or [])])
        asked, saved = load_scenarios(path, overrides or []), path.parent / "result.json"
        works = [(i, work) for i, work in enumerate(asked[0].workload) if isinstance(work, CollectiveWork)]
        if size and len(works) == 1 and not set(sizes) <= set(works[0][1].sizes or ()):
            command = overridden(command, shlex.quote(f"workload.{works[0][0]}.sizes=[{', '.join(size)}]"))
    cache = Cache()
    ready = [prepare(one, cache) for one in asked]
    documents = []
    for one in ready:
        with tracking(json_output) as progress:
            predicted = run(_at_ends(one) if json_output and not (saved and saved.is_file()) else one, progress, cache)
            reasons = why(predicted, progress, sizes, what_if, cache)
        for warning in dict.fromkeys(_unseen(one)):
            typer.echo(f"warning: {warning}", err=True)
        if saved is not None and not overrides and (warning := _difference(predicted, saved)):
            typer.echo(f"warning: {warning}", err=True)
        if json_output:
            documents.append({"name": predicted.name, "explanations": [to_dict(reason) for reason in reasons]})
        else:
            typer.echo(text(predicted, reasons, command), nl=False)
    if json_output:
        print_json({"results": documents})


def _unseen(ready: Prepared) -> list[str]:
    """What of a scenario its fitted parameters have not seen."""
    from commsim.scenario.seen import beyond_fit

    works = ready.scenario.collectives
    return [line for work in works for line in beyond_fit(ready.scenario, work.collective, ready.topology)]


def _scenario_of(name: str) -> Path:
    """The scenario of a result's folder or file; a scenario is its own."""
    path = Path(name)
    folder = path if path.is_dir() else path.parent if path.name in ("result.json", "plan.json") else None
    if folder is None:
        return find_scenario(name)
    for file in ("scenario.yaml", "best.yaml"):
        if (folder / file).is_file():
            return folder / file
    raise CommsimError(f"{folder}: found neither scenario.yaml nor best.yaml, expected a folder of commsim run or plan")


def _at_ends(ready: Prepared) -> Prepared:
    """The scenario with collectives of their smallest and largest size alone: what is explained without being asked."""
    ends = [
        work.model_copy(update={"sizes": (min(work.sizes), max(work.sizes))})
        if isinstance(work, CollectiveWork) and work.sizes
        else work
        for work in ready.scenario.workload
    ]
    return replace(ready, scenario=ready.scenario.model_copy(update={"workload": tuple(ends)}))


def _difference(result: Result, saved: Path) -> str:
    """A sentence if the saved times are not those of today's model, else none."""
    if not saved.is_file():
        return ""
    try:
        held = json.loads(saved.read_text(encoding="utf-8"))
        before = _times(held)
        by = held["provenance"]["commsim"]
    except (ValueError, KeyError, TypeError, OSError, UnicodeDecodeError):
        return f"{saved} cannot be read; what is explained is the scenario beside it"
    now = _times(result.to_dict())
    off = max((abs(b / a - 1) for a, b in zip(before, now, strict=False) if a), default=0.0)
    if len(before) != len(now) or off > 1e-6:
        return (
            f"{saved} was predicted by commsim {by} and differs by up to {100 * off:.2g} % from this version, "
            "whose times are explained"
        )
    return ""


def _times(document: dict[str, Any]) -> list[float]:
    """The times of all rows and answers of a result's document, each in its unit."""
    from commsim.scenario.workload.registry import KINDS

    answers = [answer for kind in KINDS for answer in document.get(kind, ())]
    rows = [row for answer in answers for row in answer.get("rows", [answer])]
    return [row[name] for row in rows for name in ("time_us", "step_s", "together_us") if name in row]
