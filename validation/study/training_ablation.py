"""What every term of the step model is worth: the errors when it is taken out and everything is fitted again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from study.training import per_group
from study.training_fit import Fit, Removal, training_part
from study.training_rows import MeasuredRows

_NEVER = 1e-9
_ROWS = 40
"""Rows of a source that a fit of an ablation looks at."""

REMOVALS = (
    Removal("nothing"),
    Removal(
        "attention core",
        {f"attention.{g}": 1e4 for g in ("volta", "ampere", "hopper", "blackwell")}
        | {"score_bytes": _NEVER, "batched": 1e6, "attention_half": _NEVER},
    ),
    Removal("shape of products", {"k_overhead": _NEVER, "misaligned": 1.0}, columns={"accelerator.sms": 1e-3}),
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

Progress = Callable[[Iterable[Removal], str, int], Iterable[Removal]]


def ablation(table: MeasuredRows, progress: Progress) -> dict[str, dict[str, Any]]:
    """`per_group` figures without each term, by the term's name; rows without their source, as always."""
    train = training_part(table, _ROWS)
    part = table.take(_some(table))
    figures = {}
    for removal in progress(REMOVALS, "ablation", len(REMOVALS)):
        figures[removal.name] = per_group(part, Fit(train, removal).seconds(part))
    return figures


def _some(table: MeasuredRows) -> Any:
    import numpy as np

    index = []
    for name in sorted(set(table.source)):
        mine = np.flatnonzero(table.source == name)
        index.append(mine[:: max(len(mine) // 200, 1)])
    return np.sort(np.concatenate(index))
