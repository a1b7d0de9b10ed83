"""What published steps of reinforcement learning depend on that no source prints, each with another value."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from commsim import api
from study.rl import Cells, rows_of, scenario_of

Change = Callable[[dict[str, Any]], None]

ASSUMED: tuple[tuple[str, Change], ...] = (
    ("as it is", lambda rl: None),
    ("answers' `cv` 0.35", lambda rl: rl["answer"].update(cv=0.35)),
    ("answers' `cv` 1.0", lambda rl: rl["answer"].update(cv=1.0)),
    ("answers to a prompt not `alike`", lambda rl: rl["answer"].update(alike=0.0)),
    ("`alike` 0.8", lambda rl: rl["answer"].update(alike=0.8)),
    ("log-probabilities of engines are free", lambda rl: rl["engines"].update(log_probs=False)),
    ("copies to the host are free", lambda rl: rl.update(offload=False)),
)
"""What is changed, and how in the item."""


def _ratio(cells: Cells, change: Change) -> float:
    scenario = scenario_of(cells)
    change(scenario["workload"][0]["rl"])
    return api.run(scenario).rl[0].step.step_s / float(cells["step_s"])


def assumed_lines(ids: Sequence[str]) -> Iterator[str]:
    """A table: the median of predicted over printed, and of the error, with each value."""
    rows = list(rows_of("steps.csv", ids))
    yield f"{len(rows)} steps"
    yield "| with | predicted / printed | error |"
    yield "|---|---|---|"
    for name, change in ASSUMED:
        ratios = [_ratio(cells, change) for cells in rows]
        error = statistics.median(abs(ratio - 1.0) for ratio in ratios)
        yield f"| {name} | {statistics.median(ratios):.2f} | {100 * error:.1f} % |"
