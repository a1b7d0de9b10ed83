"""What every term of the step model is worth: the errors when it is taken out and everything is fitted again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from commsim.processes import Pool
from study.training import per_group
from study.training_fit import Fit, Removal, training_part
from study.training_record import bars
from study.training_rows import MeasuredRows, group_of

Figures = dict[str, Any]

_NEVER = 1e-9
_ROWS = 40
"""Rows of a source that a fit of an ablation looks at."""

REMOVALS = (
    Removal("nothing"),
    Removal(
        "attention core",
        {f"attention.{g}": 1e4 for g in ("volta", "ampere", "hopper", "blackwell")}
        | {"score_bytes": _NEVER, "batched": 1e6, "softmax": 1e-20, "attention_start": 1e-20},
    ),
    Removal(
        "shape of products",
        {"k_overhead": _NEVER, "misaligned": 1.0, "softmax": 1e-20, "attention_start": 1e-20},
        columns={"accelerator.sms": 1e-3},
    ),
    Removal("element-wise operators", {"elementwise": _NEVER}),
    Removal("logits", columns={"model.vocab": 1e-3}),
    Removal("host", {"host": 1e-15}),
    Removal("power", {"power": _NEVER}),
    Removal("software class", {"stack_eager": 1.0, "elementwise_eager": 1.0, "elementwise_compiled": 1.0}),
    Removal("recomputation", columns={"recompute": "none"}),
    Removal("tensor-parallel traffic", parts=frozenset(("tp",))),
    Removal("its overlap", columns={"overlap_tp": False}),
    Removal("expert-parallel traffic", parts=frozenset(("ep",))),
    Removal("context-parallel traffic", parts=frozenset(("cp",))),
    Removal("pipeline messages", parts=frozenset(("pp",))),
    Removal("bubble", parts=frozenset(("bubble",))),
    Removal("data-parallel traffic", parts=frozenset(("dp",))),
    Removal("optimizer and constant", parts=frozenset(("optimizer", "constant"))),
)

Progress = Callable[[Iterable[Figures], str, int], Iterable[Figures]]


def ablation(table: MeasuredRows, progress: Progress, workers: int = 1) -> dict[str, dict[str, Any]]:
    """`per_group` figures without each term, by the term's name, of the groups that have a bar; rows without their
    source, as always."""
    train, part = training_part(table, _ROWS), table.take(_some(table))
    _begin(train, part)  # for one worker, which is this process
    with Pool(workers, _begin, (train, part)) as pool:
        figures = progress(pool.map(_without, REMOVALS), "ablation", len(REMOVALS))
        return {removal.name: of for removal, of in zip(REMOVALS, figures, strict=True)}


_tables: list[MeasuredRows] = []
"""Of a process: what it fits to, and what it scores."""


def _begin(*tables: MeasuredRows) -> None:
    _tables[:] = tables


def _without(removal: Removal) -> Figures:
    train, part = _tables
    return per_group(part, Fit(train, removal).seconds(part))


def _some(table: MeasuredRows) -> Any:
    held = np.array(["bar" in bars().get(group_of(row), {}) for row in table.rows])
    index = []
    for name in sorted(set(table.source)):
        mine = np.flatnonzero((table.source == name) & held)
        index.append(mine[:: max(len(mine) // 200, 1)])
    return np.sort(np.concatenate(index))
