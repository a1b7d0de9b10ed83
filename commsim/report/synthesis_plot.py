"""A picture of schedules over sizes: times over the limit, beside NCCL's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commsim.report import style
from commsim.report.synthesis import Beside
from commsim.synthesis.search import Synthesis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_front(many: Sequence[tuple[Synthesis, Beside]]) -> Figure:
    """Time over the limit against size: the synthesized schedules, NCCL, and what a library would make of ours."""
    first = many[0][0].question
    sizes = [one.question.size for one, _ in many]
    lines: list[tuple[str, list[float | None], str, str]] = [
        ("synthesized, on ideal links", [one.ratio for one, _ in many], style.PREDICTED_COLOURS[0], "o"),
        (
            "as a library would run it",
            [None if b.library is None else b.library.seconds / one.limit_s for one, b in many],
            style.PREDICTED_COLOURS[2],
            "^",
        ),
        (
            "NCCL",
            [None if b.nccl_s is None else b.nccl_s / one.limit_s for one, b in many],
            style.PREDICTED_COLOURS[1],
            "s",
        ),
    ]
    with style.drawing(7.0, 4.0) as (figure, axes):
        for label, ratios, colour, marker in lines:
            known = [(size, ratio) for size, ratio in zip(sizes, ratios, strict=True) if ratio is not None]
            if known:
                axes.plot(*zip(*known, strict=True), color=colour, marker=marker, markersize=4, label=label)
        axes.axhline(1.0, color=style.BOUND, linewidth=1.0, linestyle="--", label="limit")
        axes.set_yscale("log")
        style.size_axis(axes, min(sizes), max(sizes))
        axes.set_xlabel("size")
        axes.set_ylabel("time over the limit")
        axes.set_title(f"{first.collective} on {first.network.name}, {first.network.n} ranks")
        axes.legend()
    return figure
