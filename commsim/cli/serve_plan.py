"""``commsim plan`` of a file of the key ``serve``: the best cut of a model that answers requests, and its load."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from commsim.cli.pictures import write_both
from commsim.cli.say import aside, print_json, stages_bar
from commsim.files import slug, write_atomically
from commsim.planner.serving import ServingAnswer, machines_of, scenario_of, search
from commsim.planner.serving_question import read_serving
from commsim.report.page import html as page_text
from commsim.report.serving_plan import ServingPlan, plot_front
from commsim.scenario.load import plain_yaml


def plan_serving(
    path: Path, overrides: Sequence[str], out: Path | None, *, html: bool, files: bool, json_output: bool
) -> None:
    """Searches, prints the answer and writes its files; interrupted, those found so far."""
    question, document = read_serving(path, overrides)
    spec = question.serve
    machines = machines_of(spec, document, path.parent)
    answer, begun, interrupted = ServingAnswer(), time.process_time(), False
    with stages_bar(json_output) as show:
        try:
            search(spec, machines, answer, show)
        except KeyboardInterrupt:
            interrupted = True
            if not answer.choices:
                raise
    seconds = time.process_time() - begun
    folder = (out or Path("out") / slug(question.name, "plan")) if files else None
    best = scenario_of(answer.ranked[0], spec, question.name)
    for topology in [best["topology"]] if folder is not None else []:
        if "path" in topology:
            topology["path"] = os.path.relpath(path.parent / topology["path"], folder)
    planned = ServingPlan(question.name, spec, answer, plain_yaml(best), seconds)
    written = _write(planned, folder, html) if folder is not None else []
    if json_output:
        print_json(_document(planned))
    else:
        for line in planned.answer:
            typer.echo(line)
        typer.echo(f"\n{planned.table()}")
        for line in planned.counted():
            typer.echo(line)
        if written:
            aside(f"# wrote {', '.join(p.name for p in written)} in {folder}")
    if interrupted:
        typer.echo("commsim: interrupted; this is the best so far", err=True)
        raise typer.Exit(130)
    if not planned.best.meets:  # what was looked at is shown, but it is no answer
        raise typer.Exit(1)


def _document(planned: ServingPlan) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": planned.name,
        "answer": list(planned.answer),
        "seconds": round(planned.seconds, 3),
        "left_out": dict(planned.found.left_out),
        "loads": planned.rows(),
    }


def _write(planned: ServingPlan, folder: Path, html: bool) -> list[Path]:
    """Writes serving.json, the best scenario where it meets the bounds, the picture and the page; returns the paths."""
    import json

    scenario = folder / "best.yaml"
    best = f"# The best way of {planned.name}: commsim run simulates it with all replicas\n{planned.scenario}"
    written = [
        write_atomically(folder / "serving.json", json.dumps(_document(planned), indent=2, allow_nan=False) + "\n"),
        *([write_atomically(scenario, best)] if planned.best.meets else []),
        *write_both(folder / "front", plot_front(planned)),
    ]
    if not planned.best.meets:
        scenario.unlink(missing_ok=True)  # that of a question before
    if html:
        written.append(write_atomically(folder / "report.html", page_text(planned.page())))
    return written
