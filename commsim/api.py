"""What ``import commsim as cs`` offers: the questions of the command line, with answers as objects."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from commsim.document.types import Document, show
from commsim.errors import CommsimError, CommsimWarning, ScenarioError
from commsim.nccl.job_notes import NO_VERSION
from commsim.report.answered import Answered
from commsim.report.answers import Compared, Swept
from commsim.report.explained import Explained
from commsim.report.machines import Machines
from commsim.report.planned import Planned
from commsim.report.ran import Ran
from commsim.scenario.arguments import Size, file_path, override_texts, scenario_name, whole_number
from commsim.scenario.arguments import sizes as sizes_of
from commsim.scenario.cost_question import AnyMachine, AskedCall
from commsim.scenario.cost_source import GroupRanks, shared_table
from commsim.scenario.cost_source import cost_table as table_of
from commsim.scenario.cost_table import CostTable
from commsim.scenario.keywords import Keywords, PlanKeywords, question_in_keywords
from commsim.scenario.load import check_document, find_scenario, load_scenarios
from commsim.scenario.result import Result
from commsim.scenario.run import run as run_scenario
from commsim.scenario.schema import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.explorer.inline import InlineExplorer
    from commsim.report.serving_plan import ServingPlan

__all__ = [
    "Compared",
    "CostTable",
    "Explained",
    "Machines",
    "Planned",
    "Ran",
    "Result",
    "Swept",
    "compare",
    "cost",
    "cost_table",
    "explain",
    "explore",
    "plan",
    "plot",
    "run",
    "run_all",
    "serve",
    "sweep",
    "topologies",
    "write_report",
]


def run(scenario: str | Path | Mapping[str, Any], *overrides: str, **question: Unpack[Keywords]) -> Ran:
    """The result of one scenario: a file, the name of a shipped one, or the same keys as a mapping.

    With `on` it is a question in one line, of a collective or a model and a machine: the keywords are the long options
    of `commsim run`, ``nodes``, ``minbytes``, ``tp`` ..., and so is the answer. `overrides` are ``key.path=value``
    texts as on the command line. Raises ScenarioError (a CommsimError) with every fault, also if the file holds several
    scenarios; `run_all` takes those. What one should know of the answer comes as a Python warning too (CommsimWarning);
    what is assumed, such as a version of NCCL, stands in `warnings` alone.

    >>> import commsim as cs
    >>> result = cs.run("allreduce-8-h100", "workload.0.sizes=64 MiB")
    >>> [int(size) for size in result.to_frame()["size_bytes"]]
    [67108864]
    >>> cs.run("all_reduce", on="hgx-h100-ndr400", nodes=4, minbytes="1G", maxbytes="1G").name
    'all_reduce on 4 x hgx-h100-ndr400'
    """
    results = _run(_asked(scenario, overrides, question, "cs.run"))
    if len(results) != 1:
        raise ScenarioError(f"found {len(results)} scenarios in {scenario}, expected one; run_all takes several")
    return results[0]


def run_all(scenario: str | Path | Mapping[str, Any], *overrides: str) -> Sequence[Ran]:
    """The results of every scenario of a file, in order."""
    return _run(_asked(scenario, overrides, {}, "cs.run"))


def explain(
    scenario: Result | str | Path | Mapping[str, Any],
    *overrides: str,
    sizes: Size | Iterable[Size] | None = None,
    what_if: bool = True,
    **question: Unpack[Keywords],
) -> Explained:
    """What bounds a run, and what each single change would give: every one is simulated, unless `what_if` is False.

    Takes a result of `run`, or what `run` takes. `sizes` of a collective, one or several: by default its smallest and
    its largest. Raises CommsimError as `run` does.
    """
    from commsim.planner.explain import explain as explained

    wanted = sizes_of("sizes", sizes)
    if isinstance(scenario, Result):
        if overrides or question:
            raise ScenarioError("found changes beside a result, expected them beside a scenario or a question")
        result, command = Ran.of(scenario), "commsim run FILE"
    else:
        asked = _asked(scenario, overrides, question, "cs.explain")
        if len(asked) != 1:
            raise ScenarioError(f"found {len(asked)} scenarios in {scenario}, expected one")
        result, command = _run(asked)[0], asked[0].command
    return Explained(result, explained(result, wanted, what_if=what_if), command)


@dataclass(frozen=True)
class _Asked:
    """A scenario, the command that asks it, and what was assumed of a question in one line."""

    scenario: Scenario
    command: str
    assumed: tuple[str, ...] = ()


def _asked(
    scenario: str | Path | Mapping[str, Any], overrides: Sequence[str], question: Mapping[str, Any], function: str
) -> list[_Asked]:
    """What a call asks; what changes nothing of a question is told to whoever called `function`."""
    overrides = override_texts(overrides)
    if any(value is not None for value in question.values()):
        from commsim.scenario.asked import without_effect
        from commsim.scenario.question import assumed, checked, document_of
        from commsim.scenario.question_command import command_of

        one = question_in_keywords(scenario, question, overrides)
        document = document_of(one)
        made, filled = checked(document), assumed(document)
        for text in without_effect(one):
            warnings.warn(text, CommsimWarning, stacklevel=3)
        said = (f"taken where nothing is said: {filled}",) if filled else ()
        return [_Asked(made, command_of(one), said)]
    if isinstance(scenario, Mapping):
        from commsim.document import apply_overrides, raise_faults

        of_mapping, faults = check_document(apply_overrides(Document("", dict(scenario)), overrides), Path())
        if of_mapping is None or faults:
            raise_faults(faults)
        scenarios = [of_mapping]
    else:
        scenarios = load_scenarios(find_scenario(scenario_name(scenario), function), overrides)
    named = "FILE" if isinstance(scenario, Mapping) else str(scenario)
    return [_Asked(one, shlex.join(["commsim", "run", named, *overrides])) for one in scenarios]


def _run(asked: Sequence[_Asked]) -> list[Ran]:
    """The answers, warnings told to whoever called the function of the API that calls this."""
    answers = [Ran.of(run_scenario(one.scenario)) for one in asked]
    for text in dict.fromkeys(text for answer in answers for text in answer.warnings if text != NO_VERSION):
        warnings.warn(text, CommsimWarning, stacklevel=3)
    return [replace(a, warnings=(*one.assumed, *a.warnings)) for one, a in zip(asked, answers, strict=True)]


def explore(scenario: str | Path | Mapping[str, Any] | None = None, *overrides: str) -> InlineExplorer:
    """The page of `commsim explore` in a frame of the notebook; it shows a scenario first, as `run` takes it.

    Its server runs on this machine until `close` is called or the notebook ends; a browser elsewhere does not reach it.
    Raises CommsimError where the extra `ui` is not installed, or the scenario cannot be explored.
    """
    from commsim.explorer.inline import InlineExplorer

    return InlineExplorer(scenario, override_texts(overrides))


def topologies() -> Machines:
    """The machines that are described already, by name: `run` and `cost` take them as ``preset``.

    >>> import commsim as cs
    >>> frame = cs.topologies().to_frame()
    >>> frame[frame.name == "hgx-h100-ndr400"].gpu.item()
    'H100 SXM5'
    """
    return Machines.shipped()


def compare(
    prediction: Result | str | Path,
    *measured: str | Path,
    what_if: bool = True,
    on: str | None = None,
    nodes: int | None = None,
) -> Compared:
    """Whether measured curves are as they should be: a result or a scenario against logs, tables or run folders.

    A scenario is predicted at the measured sizes. Logs alone say what is predicted, on the machine that they leave or
    that is named by `on`: a preset, or a file of a topology; `nodes` where they do not say how many. With `what_if`,
    causes are looked for where a curve is not as expected, by simulating them. Raises LogFormatError where a file
    cannot be read or fits no prediction, or where logs leave several machines.
    """
    from commsim.accuracy.from_log import likely_ranks
    from commsim.accuracy.judge import CurveSource, beyond_fit, contradicted, judged, pairs, sort_files
    from commsim.accuracy.judge_logs import judge_logs
    from commsim.measure.parsers import read_measured

    files = [file_path("measured", file) for file in measured]
    machine = None if on is None else str(file_path("on", on))
    if isinstance(prediction, Result):
        sources = [CurveSource(Path(prediction.name), Path(), None, prediction.scenario)]
        curves = [curve for file in files for curve in read_measured(file)]
    else:
        place = file_path("prediction", prediction)
        place = place if place.exists() else find_scenario(str(prediction))
        sources, curves = sort_files([place, *files], likely_ranks(machine, nodes))
    if sources:
        paired = pairs(sources, curves)
        of = [(source, v.comparison.measured) for source, v in paired]
        against = [line for pair in of for line in contradicted(*pair)]
        said = tuple(dict.fromkeys([*against, *(line for pair in of for line in beyond_fit(*pair))]))
    else:
        paired, said = judge_logs(curves, machine, lambda question: None, nodes)
    return Compared(tuple(judged(source, verdict, what_if) for source, verdict in paired), said)


def cost(
    collective: str,
    nbytes: float | str,
    ranks: GroupRanks,
    machine: AnyMachine,
    *,
    dtype: str | None = None,
    redop: str | None = None,
    mode: str | None = None,
    library: str | Mapping[str, Any] | None = None,
) -> float:
    """Seconds of one call of a collective: what `run` predicts, read off a table that is kept, so that asking is quick.

    `nbytes` is the nccl-tests size: of all_gather, reduce_scatter, gather and scatter the array of all ranks together.
    `ranks` is how many, the first of the machine, or a list of which, in their order; None: all. `machine` is the name
    of a preset, a file of a topology or of one scenario, or the name of a shipped one, what such a file holds as a
    mapping, or a Topology; one that does not say how many nodes it has gets as many as the ranks need. `dtype`
    (float32), `redop` (sum), `library` and `mode` are as in a scenario: one that is the machine is asked as it is, its
    item of the collective too, but for what is given here.
    Settings without effect and what else the model warns of come as Python warnings, once; that a version of NCCL is
    assumed is said by `cost_table` alone. Raises CommsimError with what was found and expected.

    >>> import commsim as cs
    >>> one, two = (cs.cost("all_reduce", "64 MiB", ranks, "hgx-h100-ndr400") for ranks in (8, 16))
    >>> 100e-6 < one < two < 1e-3
    True
    """
    return shared_table(collective, ranks, machine, dtype, redop, mode, library)(nbytes)


def cost_table(
    collective: str,
    ranks: GroupRanks,
    machine: AnyMachine,
    *,
    dtype: str | None = None,
    redop: str | None = None,
    mode: str | None = None,
    library: str | Mapping[str, Any] | None = None,
) -> CostTable:
    """The table that `cost` reads, to be called with bytes, pickled, or written for other programs.

    ``to_json`` and ``to_csv`` write all its knots, ``CostTable.from_json`` reads them. `warnings` says what the user
    should know of the sizes asked for so far.

    >>> import commsim as cs
    >>> table = cs.cost_table("send_recv", ranks=16, machine="hgx-h100-ndr400")
    >>> table(64 * 2**20) == table("64 MiB") == cs.cost("send_recv", 64 * 2**20, 16, "hgx-h100-ndr400")
    True
    """
    return table_of(AskedCall(collective, dtype, redop, mode, library), ranks, machine, warn=True)


def plan(file: str | Path, *overrides: str, simulate: bool = True, **question: Unpack[PlanKeywords]) -> Planned:
    """The best ways to cut a model over one of several machines, of a plan file or the name of a shipped one.

    With `on`, of a model on a machine, as `commsim plan MODEL --on MACHINE`: the keywords are its long options.
    Every configuration is ranked in closed form; the best are simulated unless `simulate` is False.
    """
    from time import process_time

    from commsim.planner import plan as planner
    from commsim.planner.around import neighbours, sensitivity
    from commsim.planner.asked_plan import asked_plan
    from commsim.planner.clusters import machines as machines_of
    from commsim.planner.question import read_plan
    from commsim.scenario.load import plain_yaml

    words = override_texts(overrides)
    if any(value is not None for value in question.values()):
        path = Path()
        asked, document = asked_plan(question_in_keywords(file, question, known=PlanKeywords), words)
    else:
        path = find_scenario(scenario_name(file), "cs.plan")
        asked, document = read_plan(path, words)
    spec = asked.plan
    machines = machines_of(spec, document, path.parent)
    answer = planner.PlanAnswer()
    begun = process_time()
    planner.rank(spec, machines, answer)
    seconds = process_time() - begun
    chosen = planner.shortlist(spec, machines, answer)
    if simulate:
        planner.simulate(spec, chosen, answer)
    else:
        planner.ranked_choices(spec, chosen, answer)
    best = answer.best
    around, changes = neighbours(spec, best), sensitivity(best)
    scenario = plain_yaml(planner.scenario_of(best, spec, asked.name))
    return Planned(asked.name, answer, scenario, seconds, around, changes)


def serve(file: str | Path, *overrides: str) -> ServingPlan:
    """The best ways to serve a model, of a plan file of the key ``serve`` or the name of a shipped one.

    Every cut is simulated at more and more requests at once.
    """
    from time import process_time

    from commsim.planner import serving
    from commsim.planner.serving_question import read_serving
    from commsim.report.serving_plan import ServingPlan
    from commsim.scenario.load import plain_yaml

    words = override_texts(overrides)
    path, answer, begun = find_scenario(scenario_name(file)), serving.ServingAnswer(), process_time()
    question, document = read_serving(path, words)
    spec = question.serve
    serving.search(spec, serving.machines_of(spec, document, path.parent), answer)
    scenario = plain_yaml(serving.scenario_of(answer.ranked[0], spec, question.name))
    return ServingPlan(question.name, spec, answer, scenario, process_time() - begun)


def sweep(file: str | Path, *overrides: str, workers: int = 1, **question: Unpack[Keywords]) -> Swept:
    """A scenario over grids of values, of a sweep file or the name of a shipped one, held in memory.

    An override whose value is a range or a list is a path: ``"topology.nodes=1..64 x2"``. With `on`, it is of a
    question in one line, as `run` takes it. With several `workers`, processes are started: call it under
    ``if __name__ == "__main__":`` then. The command line keeps a journal and goes on where it was; this does not.
    """
    from commsim.planner.sweep import asked_sweep, idle_reasons, read_sweep
    from commsim.planner.workers import run_local
    from commsim.report.sweep_plot import unchanged_paths

    words, processes = override_texts(overrides), whole_number("workers", workers)
    if any(value is not None for value in question.values()):
        from commsim.scenario.asked import without_effect

        one = question_in_keywords(file, question, words)
        asked = asked_sweep(one)
        for text in without_effect(one):
            warnings.warn(text, CommsimWarning, stacklevel=2)
        base = f"# taken where nothing is said: {asked.assumed}\n{asked.text}" if asked.assumed else asked.text
    else:
        path = find_scenario(scenario_name(file), "cs.sweep")
        asked, base = read_sweep(path, words), path.read_text(encoding="utf-8")
    answers = [answer for some in run_local(asked, list(asked.points()), processes) for answer in some]
    answers.sort(key=lambda answer: answer.number)
    points = tuple(vars(a) for a in answers)
    return Swept(asked.name, points, base, idle_reasons(asked, unchanged_paths(points)), overrides)


def plot(
    answer: Result | Compared | Explained | Planned | ServingPlan | Swept, kind: str = "", item: int = 0, path: str = ""
) -> Figure:
    """A picture of an answer: `kind` as ``commsim plot`` lists them, by default the first that it can show.

    `item` is the place of a workload item, from 0; `path` that of a sweep. A matplotlib Figure:
    ``plot(result).savefig("bandwidth.svg")``; notebooks show it. Raises CommsimError, naming the kinds that there are.
    """
    return _answered(answer).plot(kind, whole_number("item", item, 0), path)


def write_report(answer: Result | Compared | Explained | Planned | ServingPlan | Swept, file: str | Path) -> Path:
    """Writes an answer as one HTML file that loads nothing; returns its path."""
    from commsim.files import write_atomically
    from commsim.report.page import html

    place, page = file_path("file", file), _answered(answer).page()
    return write_atomically(place, html(page))


def _answered(answer: object) -> Answered:
    """An answer with sentences, a page and pictures; CommsimError for anything else."""
    if isinstance(answer, Result):
        return Ran.of(answer)
    if not isinstance(answer, Answered):
        given = "what run, explain, compare, plan, serve or sweep returned"
        raise CommsimError(f"answer: found {show(answer)}, expected {given}")
    return answer
