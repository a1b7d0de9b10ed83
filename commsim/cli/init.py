"""``commsim init``: questions, and the scenario that the answers make, with comments."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.ask import asked, whole
from commsim.cli.options import changes, complete_machines, complete_subjects
from commsim.cli.say import aside
from commsim.errors import CommsimError

if TYPE_CHECKING:
    from commsim.scenario.asked import OneLine

Given = str | None


def init(
    file: Annotated[Path, typer.Argument(help="The scenario to write.")] = Path("scenario.yaml"),
    overrides: Annotated[list[str] | None, changes("Further changes as key.path=value.")] = None,
    subject: Annotated[
        Given, typer.Option(autocompletion=complete_subjects, help="A collective, or a model (all_reduce).")
    ] = None,
    on: Annotated[
        Given,
        typer.Option("--on", metavar="MACHINE", autocompletion=complete_machines, help="A preset or a topology file."),
    ] = None,
    nodes: Annotated[Given, typer.Option("--nodes", "-n", help="Of the machine.")] = None,
    first: Annotated[Given, typer.Option("--minbytes", "-b", help="First size of a collective (8).")] = None,
    last: Annotated[Given, typer.Option("--maxbytes", "-e", help="Last size (8G).")] = None,
    factor: Annotated[Given, typer.Option("--stepfactor", "-f", help="From size to size (2).")] = None,
    what: Annotated[Given, typer.Option(help="Of a model: training or generation (training).")] = None,
    tp: Annotated[
        Given, typer.Option(help="Of a model: tensor parallel ranks (8, or as many as divide its heads).")
    ] = None,
    pp: Annotated[Given, typer.Option(help="Of a model: pipeline stages (1).")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the defaults without asking.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Ask what is to be predicted, and write it as a scenario with comments, which `commsim run` takes.

    Every answer may be given as an option, or piped in, a line each.
    """
    from commsim.files import write_atomically
    from commsim.scenario.asked import OneLine, collective_named, kind_of
    from commsim.scenario.question import mapping_of, scenario_of
    from commsim.scenario.run import prepare
    from commsim.units import nccl_bytes

    refuse_existing(file, force)
    name = asked("Which collective or model", "all_reduce", _subject, given=subject, yes=yes, option="--subject")
    machine = asked("On which machine (preset or file)", "hgx-h100-ndr400", _machine, given=on, yes=yes, option="--on")
    question = OneLine(name, machine, overrides=tuple(overrides or ()))
    if collective_named(name):
        question = replace(
            question,
            nodes=asked("How many nodes", "2", whole, given=nodes, yes=yes, option="--nodes"),
            minbytes=asked(
                "First size, as of nccl-tests -b", "8", nccl_bytes, given=first, yes=yes, option="--minbytes"
            ),
            maxbytes=asked("Last size, -e", "8G", nccl_bytes, given=last, yes=yes, option="--maxbytes"),
            stepfactor=asked("Factor from size to size, -f", "2", whole, given=factor, yes=yes, option="--stepfactor"),
        )
    else:
        kind = asked("Training or generation", "training", _kind, given=what, yes=yes, option="--what")
        question = replace(
            question,
            tp=asked("Tensor parallel ranks", str(_usual_tp(question)), whole, given=tp, yes=yes, option="--tp"),
            pp=asked("Pipeline stages", "1", whole, given=pp, yes=yes, option="--pp"),
            generate="1024:1024" if kind == "generation" else None,
        )
        needed = scenario_of(question).topology.nodes
        question = replace(
            question, nodes=asked("How many nodes", str(needed), whole, given=nodes, yes=yes, option="--nodes")
        )
    prepare(scenario_of(question))  # whose faults are told before anything is written
    data = mapping_of(question)
    _relative_to(data, file.parent, kind_of(question))
    write_atomically(file, _text(question, data, file))
    aside(f"# wrote {file}; commsim run {file} predicts it")


def _usual_tp(question: OneLine) -> int:
    """Tensor parallel ranks that the model and a node of the machine allow."""
    from commsim.scenario.asked_model import usual_tp
    from commsim.scenario.question import mapping_of
    from commsim.topology.presets import load_topology
    from commsim.topology.spec import TopologySpec

    machine = load_topology(TopologySpec.model_validate(mapping_of(question)["topology"]), Path(), joined=False)
    return usual_tp(question.subject, machine.ranks_per_node)


def refuse_existing(file: Path, force: bool) -> None:
    """CommsimError where a file would be overwritten unasked, or is none of YAML."""
    if file.suffix not in (".yaml", ".yml"):
        raise CommsimError(f"{file}: found the ending {file.suffix!r}, expected .yaml")
    if (file.exists() or file.is_symlink()) and not force:
        raise CommsimError(f"{file}: found it there already, expected another name, or --force to overwrite it")


def _subject(text: str) -> str:
    """A collective or a model, as the scenario has it."""
    from commsim.scenario.question import subject_of

    subject_of(text)
    return text


def _machine(text: str) -> str:
    from commsim.scenario.question import machine_file
    from commsim.topology.presets import preset_names

    return text if text in preset_names() else str(machine_file(text))


def _kind(text: str) -> str:
    if text not in ("training", "generation"):
        raise CommsimError(f"found {text[:40]!r}, expected training or generation")
    return text


def _relative_to(data: dict[str, Any], folder: Path, kind: str) -> None:
    """Names the files of a scenario from its own folder."""
    topology, item = data["topology"], {} if kind == "collective" else data["workload"][0][kind]
    if "path" in topology:
        topology["path"] = Path(os.path.relpath(topology["path"], folder)).as_posix()
    if str(item.get("model", "")).endswith(".json"):
        item["model"] = Path(os.path.relpath(item["model"], folder)).as_posix()


_COMMENTS = {
    "preset": "`commsim topo list` shows others; or path: FILE, which `commsim topo new` writes",
    "path": "`commsim topo check` judges it",
    "nodes": "of the machine",
    "sizes": "as nccl-tests counts them; a size, a list, or a range",
    "global_batch_size": "sequences of one step",
    "micro_batch_size": "sequences of one pass",
    "zero_stage": "0 nothing is sharded, 1 the optimizer, 2 gradients, 3 parameters",
    "sequence_parallel": "norms and residuals are cut over tp",
    "prompt": "tokens of a request",
    "answer": "tokens that it gets",
    "batch": "requests at once for each replica; or rate: requests a second",
}
_OF_LIBRARY = (
    "# version: 2.26.2    # as yours prints it: constants and rules differ by version",
    "# env: {NCCL_ALGO: Ring}",
)
_OF_ITEM = {
    "collective": ("  # dtype: bfloat16",),
    "training": ("    # recompute: selective", "    # pipeline_schedule: interleaved_1f1b"),
    "generation": ("    # framework: vllm",),
}
_END = ("# compare: [my-nccl-tests.log]    # measured curves, for a verdict", "# report: {plot: true, html: true}")


def _text(question: OneLine, data: dict[str, Any], file: Path) -> str:
    """The scenario with a comment at what one may want to change."""
    from commsim.scenario.asked import kind_of
    from commsim.scenario.load import plain_yaml
    from commsim.scenario.question_command import command_of

    kind = kind_of(question)
    lines = [f"# Predict it: commsim run {file}", f"# The same in one line: {command_of(question)}"]
    for line in plain_yaml(data).splitlines():
        if line == "workload:":
            lines += [f"  {text}" for text in _OF_LIBRARY if data["library"]["name"] == "nccl"]
        comment = _COMMENTS.get(line.strip().removeprefix("- ").partition(":")[0])
        lines.append(f"{line:<34}  # {comment}" if comment else line)
    lines += [*_OF_ITEM[kind], *(_END if kind == "collective" else _END[1:])]
    return "\n".join(lines) + "\n"
