"""``commsim run``: predict what a scenario asks, print the table, write the files."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.options import AskedOptions, Memory, OnlyJson, RawBytes, changes, complete_subjects, spread
from commsim.cli.say import aside, print_json, say, tracking
from commsim.scenario.load import find_scenario, load_scenarios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commsim.accuracy.compare import Comparison
    from commsim.planner.explain import Explanation
    from commsim.scenario.predictors import Cache
    from commsim.scenario.result import Result


@spread
def run(
    scenario: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_subjects,
            help="A scenario file, the name of a shipped one (such as 'quickstart'), or with --on a "
            "collective or a model.",
        ),
    ],
    overrides: Annotated[list[str] | None, changes("Changes as key.path=value, such as topology.nodes=4.")] = None,
    json_output: OnlyJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the files (default: out/<name>); a folder in it for each of several scenarios.",
        ),
    ] = None,
    files: Annotated[bool, typer.Option(help="Whether to write files at all.")] = True,
    plot: Annotated[
        bool | None,
        typer.Option(
            help="Draw bandwidth.png and .svg, of a training step pipeline.png, of requests queue.png, load.png and "
            "others (default: as the scenario says)."
        ),
    ] = None,
    html: Annotated[
        bool | None, typer.Option(help="Write report.html, one file to mail (default: as the scenario says).")
    ] = None,
    explain_choice: Annotated[
        bool,
        typer.Option(
            "--explain-choice", help="Print NCCL's graphs, its table of candidates and its choices, as its log does."
        ),
    ] = False,
    communicator_memory: Annotated[
        bool,
        typer.Option(
            "--communicator-memory",
            help="Print the GPU memory that NCCL's communicators take: at init, and at the first call of each kind.",
        ),
    ] = False,
    explain: Annotated[
        bool | None,
        typer.Option(
            help="Say what bounds it and, simulated, what each change would give (default: only in report.html)."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a training step, the steps of engines that answer requests, or with library none the moves of "
            "the largest size, as a Chrome trace."
        ),
    ] = None,
    export_chakra: Annotated[
        Path | None, typer.Option(help="Write the training step as Chakra traces into a folder.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Print all tables, also of several scenarios that are compared (quickstart)."),
    ] = False,
    raw: RawBytes = False,
    memory: Memory = None,
    *,
    question: AskedOptions,
) -> None:
    """Predict what a scenario asks and compare with the curves it names; with --on, a collective or a model."""
    del memory
    from commsim.report.run_files import compared, document, held_run, tables, write_files, write_trace
    from commsim.scenario.run import prepare
    from commsim.scenario.run import run as run_scenario

    # Nobody reads on (`| head`): files of later scenarios are still written; without files there is no more to do.
    show = say if files else typer.echo
    note = partial(say, err=True) if json_output else show
    if question.given:
        from commsim.cli.asked import asked_question, asked_scenario
        from commsim.scenario.question_command import command_of

        one_line = asked_question(scenario, overrides or [], question)
        asked, command = [asked_scenario(one_line, note)], command_of(one_line)
    else:
        command = shlex.join(["commsim", "run", scenario, *(overrides or [])])
        asked = load_scenarios(find_scenario(scenario), overrides or [])
    scenarios = [prepare(one) for one in asked]
    if export_chakra is not None:
        from commsim.scenario.chakra_export import export_traces

        for line in export_traces(scenarios[0], export_chakra):
            note(line)
    if trace is not None:  # before all else: what cannot be traced is said before files are written
        for line in write_trace(scenarios[0], trace):
            note(line)
    whole = full or raw or explain or explain_choice or communicator_memory or json_output
    brief = not whole and len(scenarios) > 1 and all(one.scenario.compare for one in scenarios)
    folders: list[str] = []
    everything: list[Comparison] = []
    fits = True
    documents: list[dict[str, Any]] = []
    for one in scenarios:
        page = one.scenario.report.html if html is None else html
        reasons: list[Explanation] = []
        with tracking(json_output) as progress:
            result = run_scenario(one, progress)
            if explain or (explain is None and page and files):
                reasons = why(result, progress)
        shown = compared(result, raw=raw)
        everything += shown.comparisons
        folder = None
        written = []
        if files:
            folder = out if out is not None and len(scenarios) == 1 else (out or Path("out")) / one.scenario.slug
            drawn = one.scenario.report.plot if plot is None else plot
            if other := held_run(folder, result.scenario_hash):
                say(
                    f"note: {folder} held another run, {other}: its files are replaced (-o FOLDER keeps both)", err=True
                )
            written = write_files(shown, folder, plot=drawn, html=page, reasons=reasons)
        for warning in result.warnings:
            say(f"warning: {warning}", err=True)
        fits &= all(item.memory.fits for item in result.trainings)
        held = None
        if communicator_memory:
            from commsim.scenario.communicators import communicators_of_scenario

            held = communicators_of_scenario(one, result)
        if json_output:
            documents.append(document(shown, reasons) | ({} if held is None else {"memory": held.to_dict()}))
            continue
        if brief:
            from commsim.report.brief import brief_lines

            for line in brief_lines(shown):
                show(line)
            folders += [str(folder)] if folder is not None else []
            continue
        if explain_choice:
            from commsim.report.choice import explain as choices

            show(choices(one), nl=False)
        show(tables(shown), nl=False)
        if held is not None:
            from commsim.report.communicators import communicator_lines

            show(communicator_lines(held), nl=False)
        for comparison in shown.comparisons:
            from commsim.report.verdict import comparison_table

            show(comparison_table(comparison, raw=raw), nl=False)
        if explain:
            from commsim.report.explain import text

            show(text(result, reasons, command), nl=False)
        if written:
            aside(f"# wrote {', '.join(p.name for p in written)} in {folder}")
    if brief:
        if folders:
            aside(f"# tables, pictures and resolved scenarios: {len(folders)} folders in {Path(folders[0]).parent}")
        aside(f"# all tables here: commsim run {scenario} --full")
        aside("# your own: commsim run all_reduce --on hgx-h100-ndr400 -n 4, or commsim init")
    elif len(everything) > 1 and not json_output:
        from commsim.report.verdict import summary_line

        show("# summary")
        for comparison in everything:
            show(f"{summary_line(comparison)}: {comparison.measured.name}")
    if json_output:
        print_json({"results": documents})
    if not fits:  # a step that cannot run has no time
        raise typer.Exit(1)


def why(
    result: Result, progress: Any, sizes: Sequence[int] = (), what_if: bool = True, cache: Cache | None = None
) -> list[Explanation]:
    """What bounds every item of a result and what single changes give, under the bar of `tracking` if there is one."""
    from commsim.planner.explain import explain

    bar = (lambda changes, title: progress(changes, f"what if: {title}")) if progress else None
    return explain(result, sizes, bar, what_if=what_if, cache=cache)
