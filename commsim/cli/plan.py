"""``commsim plan``: the best configuration of a training step on one of several machines, and why it is that."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.asked import tokens_of
from commsim.cli.options import OnlyJson, PlanOptions, changes, complete_subjects, spread
from commsim.cli.plan_split import asks_split, plan_split
from commsim.cli.say import aside, say, stages_bar
from commsim.errors import ScenarioError
from commsim.files import slug, write_atomically
from commsim.scenario.load import find_scenario

if TYPE_CHECKING:
    from commsim.document import Document
    from commsim.planner.clusters import ClusterSpace
    from commsim.planner.plan import Configuration
    from commsim.planner.question import PlanFile, PlanSpec
    from commsim.report.planned import Planned


@spread
def plan(
    file: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_subjects,
            help="A plan file, or a scenario of rl; or a shipped one's name; with --on a model.",
        ),
    ],
    overrides: Annotated[list[str] | None, changes("Changes as key.path=value, such as plan.best=5.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the files (default: out/<name>).")] = None,
    simulate: Annotated[bool, typer.Option(help="Simulate the best ones, or take the closed form's word.")] = True,
    near: Annotated[
        str | None,
        typer.Option(
            metavar="LAYOUT",
            help="Instead: the best single changes of a layout, such as tp=8,pp=16,recompute=full, or of a scenario.",
        ),
    ] = None,
    html: Annotated[bool, typer.Option(help="Write report.html, one file to mail.")] = False,
    files: Annotated[bool, typer.Option(help="Whether to write files at all.")] = True,
    json_output: OnlyJson = False,
    *,
    asked: PlanOptions,
) -> None:
    """Search every way to cut a model over a machine, for training or for serving, and say what is best and why.

    Of a scenario with an rl item: every split of GPUs between the engines that generate and the trainer.
    """
    from commsim.planner.serving_question import is_serving

    path = Path() if asked.given else find_scenario(file, "plan")
    if not asked.given and is_serving(path):
        from commsim.cli.serve_plan import plan_serving

        plan_serving(path, overrides or [], out, html=html, files=files, json_output=json_output)
        return
    if not asked.given and asks_split(path):
        plan_split(path, overrides or [], out, files, json_output)
        return
    from commsim.planner.around import neighbours, sensitivity
    from commsim.planner.clusters import machines
    from commsim.planner.offers import beyond
    from commsim.planner.plan import PlanAnswer, rank, ranked_choices, shortlist
    from commsim.planner.plan import simulate as simulate_best
    from commsim.planner.question import read_plan
    from commsim.report.plan_tables import counted, table
    from commsim.report.planned import Planned
    from commsim.scenario.fit import known_of
    from commsim.scenario.setting import idle_warnings

    if asked.given:
        question, document = _asked(file, overrides or [], asked, quiet=json_output)
    else:
        question, document = read_plan(path, overrides or [])
    spec = question.plan
    clusters = machines(spec, document, path.parent)
    for cluster in clusters:
        for warning in idle_warnings(cluster.setting, cluster.topology):
            say(f"warning: {warning}", err=True)
    if near is not None:
        _near(question.name, spec, clusters, near, json_output)
        return
    answer = PlanAnswer()
    interrupted = False
    begun = time.process_time()
    ranked_in = 0.0
    with stages_bar(json_output) as show:
        try:
            rank(spec, clusters, answer, show)
            ranked_in = time.process_time() - begun
            chosen = shortlist(spec, clusters, answer)
            if simulate:
                simulate_best(spec, chosen, answer, show)
            else:
                ranked_choices(spec, chosen, answer)
        except KeyboardInterrupt:
            interrupted = True
            if not answer.choices:
                for ranking in answer.rankings.values():
                    ranking.best.sort(key=lambda r: r.seconds_per_token)
                seen = [cluster for cluster in clusters if cluster.title in answer.rankings]
                ranked_choices(spec, shortlist(spec, seen, answer), answer)
    ranked_in = ranked_in or time.process_time() - begun
    best = answer.best
    for warning in beyond(spec.framework, spec.named_axes):
        say(f"warning: {warning}", err=True)
    if best.step.model.caveat:
        say(f"warning: {best.step.model.caveat}", err=True)
    folder = (out or Path("out") / slug(question.name, "plan")) if files else None
    scenario = _scenario(best, spec, question.name, folder) if folder else ""
    planned = Planned(question.name, answer, scenario, ranked_in, neighbours(spec, best), sensitivity(best))
    written = _write(planned, folder, html) if folder else []
    if json_output:
        typer.echo(_json(planned))
    else:
        for cluster in clusters:
            if cluster.cluster.library.measured:
                typer.echo(f"# {cluster.title}: {known_of(cluster.setting).words()}")
        for line in planned.answer:
            typer.echo(line)
        typer.echo("")
        typer.echo(table(answer), nl=False)
        typer.echo("* no other is quicker, leaner, smaller and cheaper\n")
        for line in (*planned.reasons, "", *counted(answer, ranked_in)):
            typer.echo(line)
        if written:
            aside(f"# wrote {', '.join(p.name for p in written)} in {folder}")
    if interrupted:
        typer.echo("commsim: interrupted; this is the best so far", err=True)
        raise typer.Exit(130)


def _asked(model: str, overrides: list[str], options: PlanOptions, *, quiet: bool) -> tuple[PlanFile, Document]:
    """The plan of a question in one line; what was filled in is shown."""
    from commsim.planner.asked_plan import asked_plan
    from commsim.scenario.asked import OneLine

    if options.on is None:
        raise ScenarioError(f"found no --on, expected a machine for {model!r:.80}, such as --on hgx-h100-ndr400")
    words = vars(options) | {"tokens": tokens_of(options.tokens)}
    question, document = asked_plan(OneLine(model, **words), overrides)
    if not quiet and options.batch is None:
        say(f"# taken where nothing is said: a batch of {question.plan.global_batch_size[0]:,} sequences")
    return question, document


def _near(name: str, spec: PlanSpec, clusters: list[ClusterSpace], text: str, json_output: bool) -> None:
    """Prints the layout and its single changes on the only machine of the question."""
    from commsim.planner.near import layout_of
    from commsim.planner.near import near as near_of
    from commsim.planner.offers import beyond
    from commsim.report.near_tables import near_document, near_lines

    if len(clusters) != 1:
        raise ScenarioError(f"--near: found {len(clusters)} clusters, expected one machine that the layout runs on")
    layout = layout_of(text)
    for warning in beyond(spec.framework, spec.named_axes | {axis: (value,) for axis, value in layout.items()}):
        say(f"warning: {warning}", err=True)
    with stages_bar(json_output) as show:
        answer = near_of(spec, clusters[0], layout, show)
    if json_output:
        typer.echo(json.dumps(near_document(answer, name), indent=2, allow_nan=False))
        return
    for line in near_lines(answer):
        typer.echo(line)


def _json(planned: Planned) -> str:
    from commsim.report.plan_tables import headline, rows

    document = {
        "schema_version": 1,
        "name": planned.name,
        "complete": planned.found.complete,
        "answer": headline(planned.best),
        "ranking_seconds": round(planned.seconds, 3),
        "counts": {title: dict(ranking.counts) for title, ranking in planned.found.rankings.items()},
        "choices": rows(planned.found),
        "neighbours": [vars(n) for n in planned.neighbours],
        "sensitivity": [vars(s) for s in planned.sensitivity],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _write(planned: Planned, folder: Path, html: bool) -> list[Path]:
    """Writes plan.json, the winner's scenario and the picture; returns the paths."""
    from commsim.cli.pictures import write_both
    from commsim.report.plan_tables import plot_choices, rows

    best = f"# The best configuration of {planned.name}: commsim run simulates it\n{planned.scenario}"
    written = [
        write_atomically(folder / "plan.json", _json(planned) + "\n"),
        write_atomically(folder / "best.yaml", best),
        *write_both(folder / "choices", plot_choices(rows(planned.found), planned.name)),
    ]
    if html:
        from commsim.report.page import html as page_text

        written.append(write_atomically(folder / "report.html", page_text(planned.page())))
    return written


def _scenario(best: Configuration, spec: PlanSpec, name: str, folder: Path) -> str:
    """The file of the best configuration, for a place in the folder."""
    from commsim.planner.plan import scenario_of
    from commsim.scenario.load import plain_yaml

    document = scenario_of(best, spec, name)
    on = document.get("library", {}).get("measured_on", {})
    for topology in (document["topology"], on.get("topology", {})):
        if "path" in topology:
            topology["path"] = os.path.relpath(topology["path"], folder)
    return plain_yaml(document)
