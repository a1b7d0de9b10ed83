"""Generation as pictures: what users get against what a GPU gives, the queue over time, waits, and a token's time.

`GenerationFigures` is what pictures need of an answer, from a run in this process or from a saved one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series, Span, apart
from commsim.report.chart_figure import draw
from commsim.scenario.generation_result import CAUSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


_CLIENTS = Axis("clients", "log", base=2, switch=True)


def load_charts(item: GenerationFigures) -> tuple[Chart, Chart]:
    """Tokens a second of a GPU against those of a user, and what users wait for against the load."""
    loads = item.loads
    user, gpu, clients, first, each = (
        tuple(point[name] for point in loads)
        for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu", "clients", "ttft_s", "tpot_s")
    )
    words = tuple(f"{int(n):,} clients" for n in clients)
    curve = Series("at other loads", user, gpu, style.PREDICTED_COLOURS[1], notes=words)
    named = replace(curve, labels=tuple(f"{int(n):,}" for n in clients))
    places = [replace(named, labels=apart(named, 0.08 * max(user), 0.06 * max(gpu)))]
    if item.tpot_s:
        at = (1 / item.tpot_s,), (item.tokens_per_s_per_gpu,)
        places.append(Series("as asked", *at, style.INK, "points", notes=(f"{item.clients:,} clients",)))
    y = Axis("tokens/s of a GPU", low=0.0)
    front = Chart(f"{item.title}: at so many clients", Axis("tokens/s of a user", low=0.0), (Panel(y, tuple(places)),))
    waits = (
        Series("time to first token", clients, first, style.MEASURED_COLOURS[0]),
        Series("time per output token", clients, each, style.PREDICTED_COLOURS[0]),
    )
    panel = Panel(Axis("mean", "log", "s", switch=True), waits)
    return front, Chart("What users wait for", _CLIENTS, (panel,))


def plot_load(item: GenerationFigures, provenance: str = "") -> Figure:
    """The figure of `load_charts`."""
    front, waits = load_charts(item)
    return draw(replace(front, title="At so many clients"), waits, provenance=provenance, width=9.6, title=item.title)


def queue_chart(item: GenerationFigures) -> Chart:
    """Over the run: sequences that decode and requests that wait, tokens of prompts read, and how full the cache is."""
    t = item.timeline
    edges = (0.0, *t["end_s"])

    def steps(words: str, name: str, unit: float, colour: str) -> Series:
        values = [value / unit for value in t[name]]
        return Series(words, edges, (*values, values[-1]), colour, "steps")

    decode = steps("sequences that decode", "sequences", 1.0, style.ENGINE["products"])
    waiting = steps("requests that wait for a place", "waiting", 1.0, style.ENGINE["collectives"])
    prompts = steps("prompts read", "prompt_tokens_per_s", 1e3, style.ENGINE["experts"])
    cache = steps("cache that is full", "cache_share", 0.01, style.MUTED)
    return Chart(
        f"{item.title}: {item.said}",
        Axis("time", unit="s", low=0.0, high=edges[-1]),
        (
            Panel(Axis("requests", low=0.0), (decode, waiting), height=0.7),
            Panel(Axis("prompts (thousand tokens/s)", low=0.0), (prompts,), height=0.5),
            Panel(Axis("cache (%)", low=0.0, high=105.0), (cache,), height=0.5),
        ),
    )


def plot_queue(item: GenerationFigures, provenance: str = "") -> Figure:
    """The figure of `queue_chart`."""
    return draw(queue_chart(item), provenance=provenance, width=9.6)


_QUANTILES = (
    ("ttft_s", "time to first token", style.MEASURED_COLOURS[0]),
    ("tpot_s", "time per output token", style.PREDICTED_COLOURS[0]),
    ("latency_s", "time to last token", style.MEASURED_COLOURS[1]),
)


def waits_chart(item: GenerationFigures) -> Chart:
    """Which share of requests waits how long: for its first token, per token after it, for its last one."""
    series = []
    for name, words, colour in _QUANTILES:
        values = [value for value in item.quantiles[name] if value > 0]
        if values:
            shares = np.linspace(0, 100, len(values)).tolist()
            series.append(Series(words, tuple(values), tuple(shares), colour, "steps"))
    panel = Panel(Axis("requests that wait no longer (%)", low=0.0, high=100.0), tuple(series))
    return Chart(f"{item.title}: {item.said}", Axis("time", "log", "s", switch=True), (panel,))


def plot_waits(item: GenerationFigures, provenance: str = "") -> Figure:
    """The figure of `waits_chart`."""
    return draw(waits_chart(item), provenance=provenance)


def token_chart(item: GenerationFigures) -> Chart:
    """Where the time of engines goes, as one bar of the shares of a run."""
    total = sum(item.causes.values()) or 1.0
    shown = {cause: 100 * seconds / total for cause, seconds in item.causes.items() if seconds > 5e-4 * total}
    spans, end = [], 0.0
    for cause, share in shown.items():
        spans.append(Span(0, end, end + share, f"{share:.0f}", style.ENGINE[cause], f"{cause}: {MEANING[cause]}"))
        end += share
    return Chart(
        item.title,
        Axis("share of the mean engine's time (%)", low=0.0, high=100.0),
        rows=("time",),
        spans=tuple(spans),
        key=tuple((cause, style.ENGINE[cause]) for cause in shown),
    )


def plot_token(item: GenerationFigures, provenance: str = "") -> Figure:
    """The figure of `token_chart`."""
    return draw(token_chart(item), provenance=provenance, width=9.6)
