"""``commsim plan`` of a scenario with an ``rl:`` item: the best split of GPUs between engines and trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from commsim.cli.say import aside, terminal_bar
from commsim.errors import ScenarioError
from commsim.files import slug, write_atomically

if TYPE_CHECKING:
    from commsim.planner.rl_split import Splits
    from commsim.scenario.schema import Scenario
    from commsim.scenario.workload.rl import RlWork


def asks_split(path: Path) -> bool:
    """Whether a file is a scenario whose workload has an ``rl:`` item."""
    from commsim.document import read_documents

    data = read_documents(path)[0].data
    work = data.get("workload") if isinstance(data, dict) and "plan" not in data else None
    return isinstance(work, list) and any(isinstance(item, dict) and "rl" in item for item in work)


def plan_split(path: Path, overrides: Sequence[str], out: Path | None, files: bool, json_output: bool) -> None:
    """Run every split, print the best, and write its scenario."""
    from commsim.planner.rl_split import rank_splits
    from commsim.report.rl_plan import split_rows, split_sentences, split_table
    from commsim.scenario.load import load_scenarios
    from commsim.scenario.run import prepare

    scenarios = load_scenarios(path, overrides)
    if len(scenarios) != 1 or len(scenarios[0].workload) != 1:
        raise ScenarioError(f"{path}: found several items, expected one rl item to split GPUs for")
    scenario = scenarios[0]
    spec = cast("RlWork", scenario.workload[0]).rl
    topology = prepare(scenario).topology
    with terminal_bar(json_output, counted=True) as bar:
        task: Any = None

        def show(stage: str, done: int, of: int) -> None:
            nonlocal task
            if bar is not None:
                task = bar.add_task(stage, total=of) if task is None else task
                bar.update(task, completed=done)

        splits = rank_splits(scenario, topology, spec, show)
    best = splits.best
    folder = (out or Path("out") / slug(scenario.name, "plan")) if files else None
    written = _write(scenario, splits, folder) if folder is not None else []
    if json_output:
        refused = [{"words": words, "reason": reason} for words, reason in splits.refused]
        document = {"name": scenario.name, "best": best.words, "splits": split_rows(splits), "refused": refused}
        typer.echo(json.dumps(document, indent=2))
        return
    for line in split_sentences(splits):
        typer.echo(line)
    typer.echo("")
    typer.echo(split_table(splits), nl=False)
    if written:
        aside(f"# wrote {', '.join(p.name for p in written)} in {folder}")


def _write(scenario: Scenario, splits: Splits, folder: Path) -> list[Path]:
    """The best split as a scenario that `commsim run` takes, and all splits as CSV."""
    from commsim.report.rl_plan import split_rows
    from commsim.report.tables import records_csv
    from commsim.scenario.load import resolved_yaml

    best = splits.best
    work = cast("RlWork", scenario.workload[0]).model_copy(update={"rl": best.spec})
    folder.mkdir(parents=True, exist_ok=True)
    chosen = scenario.model_copy(update={"workload": (work,)})
    texts = {"scenario.yaml": resolved_yaml(chosen, folder), "splits.csv": records_csv(split_rows(splits))}
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]
