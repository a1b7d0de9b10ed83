"""The front of a planner's search: the machine of the page, half of it and twice of it, every cut of the model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.document import validate
from commsim.document.types import Document
from commsim.errors import ScenarioError
from commsim.explorer.state import State
from commsim.planner.clusters import machines
from commsim.planner.plan import PlanAnswer, rank, scenario_of, shortlist, simulate
from commsim.planner.question import PlanFile
from commsim.report.plan_tables import choices_chart, counted, headline, rows, ties

if TYPE_CHECKING:
    from commsim.explorer.answers import Say
    from commsim.scenario.predictors import Cache

BEST = 6
"""Configurations that are simulated, and the best of each machine."""

COLUMNS = ("rank", "nodes", "step (s)", "slower", "MFU", "memory (GiB)", "tp", "pp", "v", "cp", "ep", "dp",
           "micro-batch", "ZeRO", "recompute", "schedule", "unbeaten")  # fmt: skip
_ALIKE = COLUMNS[COLUMNS.index("tp") :]
"""Columns that stand once above the table where all rows are alike."""


def plan_answer(
    state: State, base_dir: Path, cache: Cache, say: Say, more: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Points, table and sentences; each row has the state that shows its step."""
    del cache, more
    document = Document("", question(state))
    spec = validate(PlanFile, document).plan
    try:
        clusters = machines(spec, document, base_dir)
    except ScenarioError as error:
        if "different kinds" in str(error) and state["faults"]:
            raise ScenarioError(
                "found a fault that makes one node differ, expected nodes that are alike: "
                "mend it, or give the place a part of its rate, to plan"
            ) from None
        raise
    answer, begun = PlanAnswer(), time.process_time()
    rank(spec, clusters, answer, say)
    ranked_s = time.process_time() - begun
    simulate(spec, shortlist(spec, clusters, answer), answer, say)
    best = answer.best
    listed = rows(answer)
    cells = [_cells(row) for row in listed]
    alike = [i for i, name in enumerate(COLUMNS) if name in _ALIKE and len({row[i] for row in cells}) == 1]
    shown = [i for i in range(len(COLUMNS)) if i not in alike or len(cells) == 1]
    return {
        "sentences": _sentences(answer, document.data["plan"]["clusters"], _nodes(state)),
        "alike": ", ".join(f"{COLUMNS[i]} {cells[0][i]}" for i in alike) if len(cells) > 1 else "",
        "counted": counted(answer, ranked_s),
        "chart": choices_chart(listed, f"{spec.model}: time against memory").to_dict(),
        "columns": [COLUMNS[i] for i in shown],
        "rows": [[row[i] for i in shown] for row in cells],
        "points": [
            {"memory": row["memory_GiB"], "cost": 1e6 * row["step_s"] / row["tokens"], "state": _state_of(choice, spec)}
            for row, choice in zip(listed, answer.choices, strict=True)
        ],
        "warnings": [best.step.model.caveat] if best.step.model.caveat else [],
    }


def _nodes(state: State) -> int | None:
    """How many nodes are asked."""
    return int(state["nodes"]) if state["nodes"].isdigit() else None


def _sentences(answer: PlanAnswer, clusters: list[dict[str, Any]], nodes: int | None) -> list[str]:
    """The best of the machine that was asked, then what half or twice of it would do better."""
    best = answer.best
    own = [c for c in answer.choices if c.machine.cluster.topology.nodes == nodes]
    if len(clusters) < 2 or not own or own[0] is best:
        return [*headline(best), *ties(answer)]
    first, *others = headline(own[0])
    other = headline(best)[0]
    return [first, *others, f"Quicker, on another number of nodes: {other}"]


def question(state: State) -> dict[str, Any]:
    """The plan file as plain values: machine, model, batch and length of the state; all else is searched."""
    asked = state.document("training")
    training, topology = asked["workload"][0]["training"], asked["topology"]
    nodes = topology.get("nodes", 1)
    several = sorted({max(1, nodes // 2), nodes, 2 * nodes}) if isinstance(nodes, int) else [nodes]
    library = {"library": asked["library"]} if "library" in asked else {}
    plan: dict[str, Any] = {
        "model": training.get("model", ""),
        "clusters": [{"topology": topology | {"nodes": n}} | library for n in several],
        "global_batch_size": training.get("global_batch_size", 0),
        "best": BEST,
    }
    if faults := topology.get("faults"):  # a place of the largest machine need not be in the smaller one
        plan["clusters"] = [{"topology": topology | {"faults": faults}} | library]
    plan |= {key: training[key] for key in ("seq_len", "precision") if key in training}
    return {"name": f"Plan for {asked['name']}", "plan": plan}


def _state_of(choice: Any, spec: Any) -> dict[str, str]:
    """The state that shows the step of a choice."""
    return dict(State.of_document(scenario_of(choice, spec, "")).values)


def _cells(row: Mapping[str, Any]) -> list[str]:
    """As `commsim plan` prints them."""
    return [
        str(row["rank"]), str(row["cluster"]).split(" x ")[0], f"{row['step_s']:.3f}",
        f"{row['slower_percent']:+.1f} %", f"{row['mfu_percent']:.1f} %", f"{row['memory_GiB']:.1f}",
        *(str(row[key]) for key in ("tp", "pp", "virtual_stages", "cp", "ep", "dp", "micro_batch_size", "zero_stage",
                                    "recompute", "schedule")),
        "yes" if row["pareto"] else "no",
    ]  # fmt: skip
