"""``commsim run``: predict what a scenario asks, print the table, write the files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from commsim.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from commsim.accuracy.compare import Comparison
    from commsim.planner.explain import Explanation
    from commsim.scenario.jobs_result import JobsItem
    from commsim.scenario.result import Result
    from commsim.scenario.run import Prepared

T = TypeVar("T")


def run(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or the name of a shipped one (such as 'quickstart').")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes as key.path=value, such as topology.nodes=4.", metavar="[KEY=VALUE]..."),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the files (default: out/<name>); a folder in it for each of several scenarios.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Whether to write files at all.")] = True,
    plot: Annotated[
        bool | None,
        typer.Option(
            "--plot/--no-plot",
            help="Draw bandwidth.png and .svg, of a training step pipeline.png (default: as the scenario says).",
        ),
    ] = None,
    html: Annotated[
        bool | None,
        typer.Option("--html/--no-html", help="Write report.html, one file to mail (default: as the scenario says)."),
    ] = None,
    explain_choice: Annotated[
        bool,
        typer.Option(
            "--explain-choice", help="Print NCCL's graphs, its table of candidates and its choices, as its log does."
        ),
    ] = False,
    explain: Annotated[
        bool | None,
        typer.Option(
            "--explain/--no-explain",
            help="Say what bounds it and, simulated, what each change would give (default: only in report.html).",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Write a training step, or with library none the moves of the largest size, as a Chrome trace.",
            show_default=False,
        ),
    ] = None,
    export_chakra: Annotated[
        Path | None,
        typer.Option(
            "--export-chakra", help="Write the training step as Chakra traces into a folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Predict the time of the collectives in a scenario, and compare with the measured curves it names."""
    from commsim.cli.find import find_scenario
    from commsim.report.crossover import crossover_lines
    from commsim.report.links import use_lines
    from commsim.report.tables import comparison_table, summary_line
    from commsim.scenario.load import load_scenarios
    from commsim.scenario.run import prepare
    from commsim.scenario.run import run as run_scenario

    path = find_scenario(scenario)
    scenarios = [prepare(one) for one in load_scenarios(path, overrides or [])]
    # Nobody reads on (`| head`): files of later scenarios are still written; without files there is no more to do.
    show = say if files else typer.echo
    told = partial(say, err=True) if json_output else show
    if export_chakra is not None:
        from commsim.scenario.chakra_export import export_traces

        for line in export_traces(scenarios[0], export_chakra):
            told(line)
    if trace is not None:  # before all else: what cannot be traced is said before files are written
        for line in write_trace(scenarios[0], trace):
            told(line)
    everything: list[Comparison] = []
    documents: list[dict[str, Any]] = []
    for one in scenarios:
        page = one.scenario.report.html if html is None else html
        reasons: list[Explanation] = []
        with Progress(json_output) as progress:
            result = run_scenario(one, progress)
            if explain or (explain is None and page and files):
                reasons = why(result, progress)
        comparisons = compare_items(result)
        everything += comparisons
        folder = None
        if files:
            folder = out if out is not None and len(scenarios) == 1 else (out or Path("out")) / one.scenario.slug
        written = (
            write_files(
                result,
                comparisons,
                folder,
                plot=one.scenario.report.plot if plot is None else plot,
                html=page,
                reasons=reasons,
            )
            if folder
            else []
        )
        for warning in result.warnings:
            say(f"warning: {warning}", err=True)
        if json_output:
            documents.append(document(result, comparisons, reasons))
            continue
        if explain_choice:
            from commsim.report.choice import explain as choices

            show(choices(one), nl=False)
        show(tables(result), nl=False)
        for item in result.items:
            for line in (*use_lines(item), *crossover_lines(item)):
                show(line)
        for comparison in comparisons:
            show(comparison_table(comparison), nl=False)
        if explain:
            from commsim.report.explain import text

            show(text(result, reasons), nl=False)
        if written:
            show(f"# wrote {', '.join(p.name for p in written)} in {folder}")
    if len(everything) > 1 and not json_output:
        show("# summary")
        for comparison in everything:
            show(f"{summary_line(comparison)}: {comparison.measured.name}")
    if json_output:
        import json

        typer.echo(json.dumps({"results": documents}, indent=2, allow_nan=False))


def write_trace(prepared: Prepared, path: Path) -> list[str]:
    """Writes the Chrome trace of a scenario's moves; returns lines on what it shows."""
    from commsim.files import write_atomically
    from commsim.report.perfetto import chrome_trace
    from commsim.scenario.run import traced

    shown = traced(prepared)
    text = chrome_trace(
        shown.timeline,
        shown.title,
        kind=shown.kind,
        streams=shown.streams,
        counters=shown.counters,
        world_size=shown.world_size,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return [f"# trace of {shown.title} in {path}; open it in https://ui.perfetto.dev"]


class Progress:
    """A progress bar on stderr while sizes are predicted, only on a terminal and only if it takes a while."""

    def __init__(self, quiet: bool) -> None:
        import sys

        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)

    def __enter__(self) -> Any:
        if self._bar is None:
            return None
        self._bar.start()
        return self._track

    def _track(self, sizes: Iterable[T], label: str) -> Iterator[T]:
        yield from self._bar.track(list(sizes), description=label)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def why(result: Result, progress: Any = None) -> list[Explanation]:
    """What bounds every item of a result and what single changes give, under the bar of `Progress` if there is one."""
    from commsim.planner.explain import explain

    return explain(result, (), (lambda changes, title: progress(changes, f"what if: {title}")) if progress else None)


def document(result: Result, comparisons: Sequence[Comparison], reasons: Sequence[Explanation] = ()) -> dict[str, Any]:
    """The JSON document of a result: what `--json` prints and result.json holds."""
    from commsim.report.explain import to_dict

    found = result.to_dict() | {"comparisons": [c.summary() for c in comparisons]}
    return found | {"explanations": [to_dict(reason) for reason in reasons]} if reasons else found


def compare_items(result: Result) -> list[Comparison]:
    """Every measured curve of a result against the prediction at its sizes."""
    from commsim.accuracy.compare import compare

    return [
        compare(predicted, measured)
        for item in result.items
        for measured, predicted in zip(item.measured, item.at_measured, strict=True)
    ]


def tables(result: Result) -> str:
    """The nccl-tests-shaped tables of a result, under a heading that says what was predicted and how."""
    from commsim.report.tables import result_table

    t = result.topology
    text = []
    for item in result.items:
        heading = [
            f"commsim {result.provenance['commsim']}: {result.name} (scenario {result.scenario_hash})",
            f"{item.collective} on {_machine_words(t)}, library {item.library}, {item.mode.replace('_', ' ')}, "
            f"{_levels(item.rows)}",
            "",
        ]
        text.append(result_table(item, heading))
    if result.jobs:
        from commsim.report.jobs import jobs_table

        text += [jobs_table(item, _jobs_heading(result, item)) for item in result.jobs]
    if result.trainings:
        from commsim.report.training import training_table

        head = f"commsim {result.provenance['commsim']}: {result.name} (scenario {result.scenario_hash})"
        text += [training_table(item, [head, _machine_words(result.topology), ""]) for item in result.trainings]
    if result.claims:
        from commsim.report.claims import claim_table

        head = f"commsim {result.provenance['commsim']}: {result.name} (scenario {result.scenario_hash})"
        text += [claim_table(item, [head]) for item in result.claims]
    if result.traces:
        from commsim.report.chakra import trace_table

        head = f"commsim {result.provenance['commsim']}: {result.name} (scenario {result.scenario_hash})"
        text += [trace_table(item, [head, _machine_words(result.topology)]) for item in result.traces]
    return "\n".join(text)


def _machine_words(t: dict[str, Any]) -> str:
    """``16 x H100 SXM5: 2 nodes of 8 (NAME)``; of different nodes every kind."""
    gpus, each, counts = t["gpu"], t["ranks_per_node"], t["nodes_of_kind"]
    kinds = len(counts)
    models = gpus if isinstance(gpus, list) else [gpus] * kinds
    sizes = each if isinstance(each, list) else [each] * kinds
    if len(set(models)) == len(set(sizes)) == 1:
        return (
            f"{t['ranks']} x {models[0]}: {t['nodes']} node{'s' if t['nodes'] != 1 else ''} of {sizes[0]} ({t['name']})"
        )
    parts = [
        f"{count} node{'s' if count != 1 else ''} of {size} x {model}"
        for count, size, model in zip(counts, sizes, models, strict=True)
    ]
    return f"{t['ranks']} ranks: {', '.join(parts)} ({t['name']})"


def _jobs_heading(result: Result, item: JobsItem) -> list[str]:
    flows = f" and {item.flows} background flow{'s' if item.flows != 1 else ''}" if item.flows else ""
    links = "FIFO links" if item.contention == "fifo" else "fair sharing"
    times = f", medians of {item.repeats} runs" if item.repeats > 1 else ""
    return [
        f"commsim {result.provenance['commsim']}: {result.name} (scenario {result.scenario_hash})",
        f"{len(item.rows)} job{'s' if len(item.rows) != 1 else ''}{flows} on {item.world_size} ranks "
        f"({result.topology['name']}), {links}{times}; slowdown: time together over time alone",
        "",
    ]


def _levels(rows: Any) -> str:
    levels = list(dict.fromkeys(row.level for row in rows))
    return f"engine {', '.join(levels)}" if levels else "no sizes"


def write_files(
    result: Result,
    comparisons: list[Comparison],
    folder: Path,
    *,
    plot: bool = False,
    html: bool = False,
    reasons: Sequence[Explanation] = (),
) -> list[Path]:
    """Writes result.csv, result.json, scenario.yaml, comparison.csv, the pictures and report.html; returns their paths.

    Every file is written under a temporary name and renamed, so none is ever half there.
    """
    import json

    from commsim.files import write_atomically
    from commsim.report.tables import comparison_csv, result_csv
    from commsim.scenario.load import resolved_yaml

    folder.mkdir(parents=True, exist_ok=True)
    written = [write_atomically(folder / "result.csv", result_csv(result.items))] if result.items else []
    written += [
        write_atomically(
            folder / "result.json",
            json.dumps(document(result, comparisons, reasons), indent=2, allow_nan=False) + "\n",
        ),
        write_atomically(
            folder / "scenario.yaml",
            f"# Resolved scenario {result.scenario_hash}, commsim {result.provenance['commsim']}\n"
            + resolved_yaml(result.scenario, folder),
        ),
    ]
    if any(item.use for item in result.items):
        from commsim.report.links import links_csv

        written.append(write_atomically(folder / "links.csv", links_csv(result.items)))
    if result.jobs:
        from commsim.report.jobs import jobs_csv

        written.append(write_atomically(folder / "jobs.csv", jobs_csv(result.jobs)))
    if result.trainings:
        from commsim.report.training import memory_csv, timeline_csv, training_csv

        written.append(write_atomically(folder / "training.csv", training_csv(result.trainings)))
        written.append(write_atomically(folder / "memory.csv", memory_csv(result.trainings)))
        written.append(write_atomically(folder / "timeline.csv", timeline_csv(result.trainings)))
    if result.traces:
        from commsim.report.chakra import calls_csv, ranks_csv

        written.append(write_atomically(folder / "trace_ranks.csv", ranks_csv(result.traces)))
        written.append(write_atomically(folder / "trace_calls.csv", calls_csv(result.traces)))
    if comparisons:
        written.append(write_atomically(folder / "comparison.csv", comparison_csv(comparisons)))
    if plot:
        written += draw(result, comparisons, folder)
    if html:
        from commsim.report.page import html as page_text
        from commsim.report.result_page import result_page

        written.append(write_atomically(folder / "report.html", page_text(result_page(result, comparisons, reasons))))
    # What an earlier run left under our names would be read as this run's.
    for pattern in _OUR_FILES:
        for stale in set(folder.glob(pattern)) - set(written):
            stale.unlink()
    return written


_OUR_FILES = (
    "result.csv",
    "comparison.csv",
    "jobs.csv",
    "training.csv",
    "memory.csv",
    "timeline.csv",
    "trace_ranks.csv",
    "trace_calls.csv",
    "report.html",
    "links.csv",
    "bandwidth*.png",
    "bandwidth*.svg",
    "crossover*.png",
    "crossover*.svg",
    "pipeline.png",
    "pipeline.svg",
    "pipeline-*.png",
    "pipeline-*.svg",
    "ranks.png",
    "ranks.svg",
    "ranks-*.png",
    "ranks-*.svg",
)


def draw(result: Result, comparisons: list[Comparison], folder: Path) -> list[Path]:
    """Writes the bandwidth curves as PNG and SVG, one pair of files per item."""
    from commsim.files import write_atomically
    from commsim.report.crossover import plot_crossover
    from commsim.report.plots import figure_bytes, plot_bandwidth

    written = []
    for i, item in enumerate(result.items):
        mine = [c for c in comparisons if any(c.measured is m for m in item.measured)]
        provenance = f"commsim {result.provenance['commsim']}, scenario {result.scenario_hash}"
        figure = plot_bandwidth([item.curve()], list(item.measured), result.name, mine, provenance)
        figures = {"bandwidth": figure}
        if any(row.candidates for row in item.rows):
            figures["crossover"] = plot_crossover(item, result.name, provenance)
        for name, picture in figures.items():
            file = name if len(result.items) == 1 else f"{name}-{i + 1}"
            written += [
                write_atomically(folder / f"{file}.{form}", figure_bytes(picture, form)) for form in ("png", "svg")
            ]
    for i, training in enumerate(result.trainings):
        from commsim.report.gantt import plot_pipeline
        from commsim.report.steps import figures_of

        provenance = f"commsim {result.provenance['commsim']}, scenario {result.scenario_hash}"
        picture = plot_pipeline(figures_of(training), provenance)
        file = "pipeline" if len(result.trainings) == 1 else f"pipeline-{i + 1}"
        written += [write_atomically(folder / f"{file}.{form}", figure_bytes(picture, form)) for form in ("png", "svg")]
    for i, replayed in enumerate(result.traces):
        from commsim.report.chakra_plot import plot_ranks

        picture = plot_ranks(replayed, f"commsim {result.provenance['commsim']}, scenario {result.scenario_hash}")
        file = "ranks" if len(result.traces) == 1 else f"ranks-{i + 1}"
        written += [write_atomically(folder / f"{file}.{form}", figure_bytes(picture, form)) for form in ("png", "svg")]
    return written
