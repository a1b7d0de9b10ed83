"""Splits of GPUs between engines and trainer as a table, sentences and plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commsim.report.tables import aligned
from commsim.units import format_time

if TYPE_CHECKING:
    from commsim.planner.rl_split import RlSplit, Splits

MOST_ROWS = 20


def split_rows(splits: Splits) -> list[dict[str, Any]]:
    """A row of plain values for every split that works, the quickest first."""
    return [_row(split) for split in splits.ranked]


def _row(split: RlSplit) -> dict[str, Any]:
    item, spec = split.item, split.spec
    return {
        "engine_gpus": spec.engines.gpus or 0,
        "engine_tp": spec.engines.tp,
        "behind": spec.behind,
        "step_s": item.step_s,
        "rollout_s": item.step.seconds("rollout"),
        "learning_s": item.step.seconds("scoring") + item.step.seconds("update"),
        "weights_s": item.step.seconds("sync") + item.step.seconds("transfer"),
        "tokens_per_s_per_gpu": item.tokens_per_s_per_gpu,
        "trainer": item.trainer,
        "words": split.words,
    }


def split_table(splits: Splits) -> str:
    """The quickest splits for a terminal, best first."""
    header = ["#", "step", "rollout", "scoring and update", "weights", "tokens/s/GPU", "split"]
    rows = [
        [
            f"  {number}",
            *(format_time(row[key]) for key in ("step_s", "rollout_s", "learning_s", "weights_s")),
            f"{row['tokens_per_s_per_gpu']:,.1f}",
            row["words"],
        ]
        for number, row in enumerate(split_rows(splits)[:MOST_ROWS], 1)
    ]
    return "\n".join(aligned([header, *rows], (0, 6))) + "\n"


def split_sentences(splits: Splits) -> Iterator[str]:
    """What is best, against the best on-policy one, and what binds it."""
    best = splits.best
    yield f"Best: {best.words}, {format_time(best.item.step_s)} a step."
    rollout, learning = (
        best.item.step.seconds("rollout"),
        best.item.step.seconds("scoring") + best.item.step.seconds("update"),
    )
    if best.spec.behind:
        waits, share = ("engines", learning - rollout) if learning > rollout else ("trainer", rollout - learning)
        yield f"The {waits} wait{'s' if waits == 'trainer' else ''} {format_time(share)} of it for the other side."
        on_policy = next((split for split in splits.ranked if not split.spec.behind), None)
        if on_policy is not None:
            more = on_policy.item.step_s / best.item.step_s
            yield f"On-policy the best is {on_policy.words}: {more:.2f} times as long."
    else:
        tail = format_time(best.item.tail_s)
        yield f"The rollout takes {rollout / best.item.step_s:.0%} of the step, the tail of it {tail}."
    if splits.refused:
        yield f"{len(splits.refused)} splits do not work, such as {splits.refused[0][0]}: {splits.refused[0][1]}."
