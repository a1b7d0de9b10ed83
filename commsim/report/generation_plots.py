"""Generation as pictures: what users get against what a GPU gives, the queue over time, waits, and a token's time.

`GenerationFigures` is what pictures need of an answer, from a run in this process or from a saved one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.report import style
from commsim.scenario.generation_result import CAUSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAUSE_COLOURS = {
    "products": "#0072B2",
    "attention": "#56B4E9",
    "experts": "#009E73",
    "collectives": "#D55E00",
    "dispatch": "#E69F00",
    "elementwise": "#CC79A7",
    "sampling": "#F0E442",
    "host": "#555555",
    "idle": "#DDDDDD",
}
"""Okabe & Ito's (style.py): what is computed in blue and green, what is sent in warm colours."""

MEANING = {
    "products": "matrix products: weights are read for few rows",
    "attention": "over the cache, and of prompts",
    "experts": "grouped products of experts",
    "collectives": "all-reduces of tensor parallelism, gathering logits",
    "dispatch": "tokens to their experts and back",
    "elementwise": "norms, residuals, activations",
    "sampling": "the next token of the logits",
    "host": "what the GPU waits for: scheduler, launches",
    "idle": "nothing to do",
}


@dataclass(frozen=True, eq=False)
class GenerationFigures:
    """One answer: its mean waits, seconds of the mean engine by cause, its timeline, waits by quantile, other loads.

    ``values`` are all of the answer, as in its JSON.
    """

    kind: ClassVar[str] = "generations"

    name: str
    title: str
    said: str
    clients: int
    ttft_s: float
    tpot_s: float
    tokens_per_s_per_gpu: float
    causes: dict[str, float]
    timeline: dict[str, list[float]]
    quantiles: dict[str, list[float]]
    loads: tuple[dict[str, float], ...]
    values: dict[str, Any] = field(default_factory=dict)


def figures_of(record: Mapping[str, Any]) -> GenerationFigures:
    """Those of an answer by its values in JSON."""
    causes = {cause: float(record.get(f"{cause}_s") or 0.0) for cause in (*CAUSES, "idle")}
    return GenerationFigures(
        name=str(record["item"]),
        title=f"{record['item']}: {record['model']} by {record['framework']} on {int(record['gpus'])} GPUs",
        said=str(record["said"]),
        clients=int(record["clients"]),
        ttft_s=float(record["ttft_ms"]) / 1e3,
        tpot_s=float(record["tpot_ms"]) / 1e3,
        tokens_per_s_per_gpu=float(record["tokens_per_s_per_gpu"]),
        causes=causes,
        timeline={str(name): [float(v) for v in column] for name, column in record["timeline"].items()},
        quantiles={str(name): [float(v) for v in column] for name, column in record["quantiles"].items()},
        loads=tuple({str(n): float(v) for n, v in point.items()} for point in record["loads"]),
        values=dict(record),
    )


def plot_load(item: GenerationFigures, provenance: str = "") -> Figure:
    """Tokens a second of a GPU against those of a user, and what users wait for against the load."""
    loads = item.loads
    with style.drawing(9.6, 4.2, provenance, nrows=1, ncols=2) as (figure, (left, right)):
        figure.suptitle(item.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        user, gpu = ([point[f"tokens_per_s_per_{who}"] for point in loads] for who in ("user", "gpu"))
        colour = style.PREDICTED_COLOURS[0]
        left.plot(user, gpu, marker="o", color=colour)
        last = np.inf
        for i in reversed(range(len(loads))):  # those that lie too close to be read apart have one number
            if last - gpu[i] > 0.045 * max(gpu):
                last = gpu[i]
                words = f"{int(loads[i]['clients']):,}"
                left.annotate(
                    words, (user[i], gpu[i]), (5, 5), textcoords="offset points", fontsize=8, color=style.MUTED
                )
        if item.tpot_s:
            left.plot([1 / item.tpot_s], [item.tokens_per_s_per_gpu], marker="D", markersize=9, linestyle="none",
                      markerfacecolor="none", color=style.INK, label="as asked")  # fmt: skip
            left.legend(loc="upper right")
        left.set_xlabel("tokens/s of a user")
        left.set_ylabel("tokens/s of a GPU")
        left.set_title("At so many clients")
        left.set_xlim(left=0)
        left.set_ylim(bottom=0)
        clients = [point["clients"] for point in loads]
        right.plot(clients, [1e3 * point["ttft_s"] for point in loads], marker="o", color=style.MEASURED_COLOURS[0],
                   label="time to first token")  # fmt: skip
        right.plot(clients, [1e3 * point["tpot_s"] for point in loads], marker="s", color=colour,
                   label="time per output token")  # fmt: skip
        right.set_xscale("log", base=2)
        right.set_yscale("log")
        _plain(right, "x")
        _plain(right, "y")
        right.set_xlabel("clients", loc="left")
        right.set_ylabel("mean (ms)")
        right.set_title("What users wait for")
        right.legend(loc="upper left")
    return figure


def _plain(axes: Axes, which: str) -> None:
    """Numbers as they are on a log axis, few of them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def plot_queue(item: GenerationFigures, provenance: str = "") -> Figure:
    """Over the run: sequences that decode and requests that wait, tokens of prompts read, and how full the cache is."""
    t = item.timeline
    ends = np.array(t["end_s"])
    edges = np.concatenate([[0.0], ends])
    rows = (
        ("requests", (("decode", "sequences", 0), ("wait for a place", "waiting", 1)), 1.0),
        ("prompts\n(thousand tokens/s)", (("read", "prompt_tokens_per_s", 2),), 1e3),
        ("cache (%)", (("full", "cache_share", 3),), 0.01),
    )
    colours = (CAUSE_COLOURS["products"], CAUSE_COLOURS["collectives"], CAUSE_COLOURS["experts"], style.MUTED)
    with style.drawing(9.6, 5.4, provenance, nrows=3, ncols=1, sharex=True) as (figure, axes):
        figure.suptitle(f"{item.title}\n{item.said}", x=0.01, ha="left", fontsize=11)
        for one, (label, lines, unit) in zip(axes, rows, strict=True):
            for words, name, which in lines:
                values = np.array(t[name]) / unit
                one.stairs(values, edges, color=colours[which], label=words, fill=name == "cache_share", linewidth=1.4)
            one.set_ylabel(label)
            one.set_ylim(bottom=0)
            if len(lines) > 1:
                one.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=len(lines))
        axes[-1].set_xlabel("time (s)")
        axes[-1].set_xlim(0, float(ends[-1]))
    return figure


def plot_waits(item: GenerationFigures, provenance: str = "") -> Figure:
    """Which share of requests waits how long: for its first token, per token after it, for its last one."""
    kinds = (("ttft_s", "time to first token (ms)", 1e3), ("tpot_s", "time per output token (ms)", 1e3),
             ("latency_s", "time to last token (s)", 1.0))  # fmt: skip
    with style.drawing(9.6, 3.4, provenance, nrows=1, ncols=3, sharey=True) as (figure, axes):
        figure.suptitle(f"{item.title}\n{item.said}", x=0.01, ha="left", fontsize=11)
        for one, (name, label, unit) in zip(axes, kinds, strict=True):
            values = np.array(item.quantiles[name]) * unit
            if values.size:
                one.plot(values, np.linspace(0, 100, values.size), color=style.PREDICTED_COLOURS[0])
                one.axvline(float(np.median(values)), color=style.BOUND, linewidth=1, linestyle=":")
            one.set_xlabel(label, loc="left")  # its right end is signed
            one.set_xlim(left=0)
        axes[0].set_ylabel("requests (%)")
        axes[0].set_ylim(0, 100)
    return figure


def plot_token(item: GenerationFigures, provenance: str = "") -> Figure:
    """Where the time of engines goes, as one bar of the shares of a run."""
    total = sum(item.causes.values()) or 1.0
    shown = {cause: seconds / total for cause, seconds in item.causes.items() if seconds > 5e-4 * total}
    with style.drawing(9.6, 2.6, provenance) as (figure, axes):
        left = 0.0
        for cause, share in shown.items():
            axes.barh([0], [100 * share], left=100 * left, color=CAUSE_COLOURS[cause], edgecolor="white", label=cause)
            if share > 0.04:
                ink = style.INK if cause in ("sampling", "idle", "attention", "dispatch") else "white"
                axes.text(100 * (left + share / 2), 0, f"{100 * share:.0f}", ha="center", va="center", color=ink)
            left += share
        axes.set_title(item.title)
        axes.set_xlabel("share of the mean engine's time (%)")
        axes.set_yticks([])
        axes.set_xlim(0, 100)
        axes.grid(visible=False)
        if shown:
            axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.35), ncols=5)
    return figure
