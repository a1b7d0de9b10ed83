"""The answer to a plan as text, JSON and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commsim.planner.around import Neighbour, Sensitivity
from commsim.planner.plan import Configuration, PlanAnswer
from commsim.planner.published import kind_of
from commsim.planner.space import REASONS
from commsim.planner.ties import above_published, favours, spread, tflops_per_gpu, tie_margin, tied
from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series, Shade, apart
from commsim.report.chart_figure import draw
from commsim.report.tables import aligned
from commsim.units import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MESH = (
    ("tp", "tp"), ("pp", "pp"), ("virtual_stages", "v"), ("cp", "cp"), ("ep", "ep"), ("dp", "dp"),
    ("zero_stage", "zero"), ("micro_batch_size", "mb"),
)  # fmt: skip


def headline(choice: Configuration) -> list[str]:
    """The answer in a few sentences."""
    step, gpus = choice.step, choice.step.world_size
    how = "simulated" if choice.simulated else "closed form"
    low, high = spread(choice).band_s(choice.seconds)
    lines = [
        f"{step.model.name} on {choice.machine.title} ({gpus:,} GPUs): {_seconds(choice.seconds)} a step ({how}), "
        f"{100 * choice.mfu:.1f} % MFU, {choice.tokens_per_s / gpus:,.0f} tokens/s per GPU.",
        f"8 in 10 published steps of other sources took {_seconds(low)} to {_seconds(high)} where that was predicted.",
        f"With {cut(choice.mesh()) or 'one GPU per copy'}, micro-batch {step.micro_batch_size}, {step.schedule}, "
        f"recompute {step.recompute}, ZeRO {step.zero_stage}"
        f"{', sequence parallel' if step.sequence_parallel else ''}: "
        f"{choice.memory.peak / GIB:.1f} of {choice.memory.capacity / GIB:.1f} GiB.",
        f"A program can allocate {step.accelerator.room_words}.",
        _beside_published(choice),
    ]
    if choice.cost is not None:
        money = f", ${choice.cost.usd:,.0f} ({choice.cost.tokens_per_usd:,.0f} tokens per $)" if choice.cost.usd else ""
        lines.append(f"The tokens take {choice.cost.days:,.1f} days, {choice.cost.gpu_hours:,.0f} GPU-hours{money}.")
    if choice.outlook is not None:
        o = choice.outlook
        lines.append(
            f"A failure every {o.mtbf_s / 3600:,.1f} h; checkpoints of {_seconds(o.checkpoint_s)} every "
            f"{o.interval_s / 60:,.0f} min keep {100 * o.goodput:.1f} % of the time."
        )
    return lines


def _beside_published(choice: Configuration) -> str:
    """The rate of a choice beside the best that was published of its kind."""
    best, ratio = above_published(choice)
    accelerator, models, products = kind_of(choice.step)
    kind = f"{'models of experts' if models == 'experts' else 'dense models'} in {products} on {accelerator}"
    rate = f"{tflops_per_gpu(choice):.0f} TFLOP/s per GPU"
    if best is None:
        return f"{rate}; of {kind} no step was published."
    published = f"the most published of {kind} is {best.words}"
    if ratio <= 1.0:
        return f"{rate}; {published}."
    band = "within" if ratio <= spread(choice).high else "outside"
    return f"{rate} is {100 * (ratio - 1):.0f} % above everything published, {band} the band: {published}."


def ties(answer: PlanAnswer) -> list[str]:
    """A sentence on the choices that are ties with the best one, and those with something in their favour."""
    best, *others = answer.choices
    same = [(i, c) for i, c in enumerate(others, 2) if tied(c, best)]
    if not same:
        return []
    margin = 100 * (spread(best).margin - 1)
    lines = [
        f"{len(same)} of the {len(others)} others {'is a tie' if len(same) == 1 else 'are ties'} with the best: two "
        f"layouts of one machine and model differ where their times do by more than {margin:.0f} %."
    ]
    named = [f"{i} ({', '.join(words)})" for i, c in same if (words := favours(c, best))]
    return lines + ([f"In favour of ties: {'; '.join(named[:5])}."] if named else [])


def cut(mesh: dict[str, Any]) -> str:
    """The axes along which a model is cut: ``tp 8, pp 4, v 2``."""
    return ", ".join(f"{name} {mesh[key]}" for key, name in _MESH[:6] if mesh.get(key, 1) > 1)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"


def between(low: float, high: float) -> str:
    """A band in seconds."""
    digits = 1 if low >= 10 else 2 if low >= 1 else 3
    return f"{low:.{digits}f} .. {high:.{digits}f}"


def counted(answer: PlanAnswer, seconds: float) -> list[str]:
    """What was walked, and what could not run."""
    total = sum((Counter(ranking.counts) for ranking in answer.rankings.values()), Counter[str]())
    walked = sum(total.values())
    rate = f", {walked / seconds:,.0f}/s" if seconds > 0 else ""
    lines = [f"{walked:,} configurations in {seconds:.1f} s{rate}: {total[REASONS[0]]:,} can run"]
    lines += [f"{total[reason]:>14,}  {reason}" for reason in REASONS[1:] if total[reason]]
    return lines


def lost(choice: Configuration, winner: Configuration) -> str:
    """Where a choice loses its time against the winner, per token: the two largest terms."""
    scale = winner.ranked.tokens / choice.ranked.tokens
    if choice.simulated != winner.simulated:
        return ""
    names = {**choice.causes, **winner.causes}
    terms = {name: scale * choice.causes.get(name, 0.0) - winner.causes.get(name, 0.0) for name in names}
    largest = sorted((t for t in terms.items() if t[1] > 0.005 * winner.seconds), key=lambda t: -t[1])[:2]
    return ", ".join(f"{name} {100 * value / winner.seconds:+.0f} %" for name, value in largest)


def _money(c: Configuration) -> dict[str, float | None]:
    """What days and dollars come from; None where the question does not give what a figure needs."""
    cost, view = c.cost, c.outlook
    paid = cost if cost is not None and cost.usd else None
    return {
        "gpu_hours": cost.gpu_hours if cost else None,
        "fabric_usd": paid.fabric_usd if paid else None,
        "tokens_per_usd": paid.tokens_per_usd if paid else None,
        "days_without_failures": cost.ideal_seconds / 86_400 if cost else None,
        "hours_between_failures": view.mtbf_s / 3600 if view else None,
        "checkpoint_s": view.checkpoint_s if view else None,
        "checkpoint_every_s": view.interval_s if view else None,
        "goodput_percent": 100 * view.goodput if view else None,
    }


def money_facts(c: Configuration) -> tuple[tuple[str, str], ...]:
    """Cost and failures of a choice, a figure a line."""
    facts = []
    if (cost := c.cost) is not None:
        fabric = f", of which NICs and switches ${cost.fabric_usd:,.0f}" if cost.fabric_usd else ""
        facts += [
            ("days", f"{cost.days:,.2f}; {cost.ideal_seconds / 86_400:,.2f} without failures"),
            ("GPU-hours", f"{cost.gpu_hours:,.0f}"),
            ("cost", f"${cost.usd:,.0f}{fabric}" if cost.usd else "no price was given"),
        ]
        if cost.usd:
            facts.append(("tokens per $", f"{cost.tokens_per_usd:,.0f}"))
    if c.outlook is not None:
        o = c.outlook
        facts += [
            ("a failure every", f"{o.mtbf_s / 3600:,.1f} h"),
            ("a checkpoint takes", f"{_seconds(o.checkpoint_s)}, bound by {o.bound}"),
            ("a checkpoint every", f"{o.interval_s / 60:,.1f} min (Daly 2006, equation 37)"),
            ("goodput", f"{100 * o.goodput:.1f} % of the ideal rate (equation 20)"),
        ]
    return tuple(facts)


def rows(answer: PlanAnswer) -> list[dict[str, Any]]:
    """The choices as plain values, best first; times per step of the winner's tokens."""
    if not answer.choices:
        return []
    winner, pareto = answer.choices[0], {id(c) for c in answer.pareto()}
    return [
        {
            "rank": i + 1,
            "cluster": c.machine.title,
            "gpus": c.step.world_size,
            "step_s": c.seconds,
            **dict(zip(("step_low_s", "step_high_s"), spread(c).band_s(c.seconds), strict=True)),
            "tokens": c.ranked.tokens,
            "slower_percent": 100 * (c.seconds / c.ranked.tokens / (winner.seconds / winner.ranked.tokens) - 1),
            "tie": i > 0 and tied(c, winner),
            "tie_margin": tie_margin(c, winner),
            "favours": ", ".join(favours(c, winner)) if i else "",
            "mfu_percent": 100 * c.mfu,
            "tflops_per_gpu": tflops_per_gpu(c),
            "memory_GiB": c.memory.peak / GIB,
            "days": c.cost.days if c.cost else None,
            "usd": c.cost.usd if c.cost and c.cost.usd else None,
            **_money(c),
            "pareto": id(c) in pareto,
            "simulated": c.simulated,
            "loses": lost(c, winner) if i else "",
            **{k: v for k, v in c.mesh().items() if k != "seq_len" or len(c.machine.space.axes["seq_len"]) > 1},
            "closed_form_s": c.ranked.seconds,
            "causes_s": c.causes,
        }
        for i, c in enumerate(answer.choices)
    ]


_LEFT = ("", "cluster", "recompute", "schedule", "precision", "against the best", "sp", "of 8 in 10", "slower")

_SPARE = ("of 8 in 10", "MFU", "days", "batch", "against the best", "precision")
"""Columns that a narrow terminal does without, in this order; what tells choices apart stays."""

_ALIKE = ("tp", "pp", "v", "cp", "ep", "dp", "zero", "mb", "sp", "recompute", "schedule", "precision", "batch")
"""Columns that stand once above the table where all rows are alike."""


def table(answer: PlanAnswer) -> str:
    """The choices as a table for a terminal; ends with a newline."""
    listed = rows(answer)
    columns = {
        "": [f"{r['rank']}{'*' if r['pareto'] else ' '}" for r in listed],
        "cluster": [r["cluster"] for r in listed],
        "step s": [f"{r['step_s']:.3f}" for r in listed],
        "of 8 in 10": [between(r["step_low_s"], r["step_high_s"]) for r in listed],
        "slower": [f"{r['slower_percent']:+.1f} %{' tie' if r['tie'] else ''}" for r in listed],
        "MFU": [f"{r['mfu_percent']:.1f} %" for r in listed],
        "GiB": [f"{r['memory_GiB']:.1f}" for r in listed],
        **{name: [str(r[key]) for r in listed] for key, name in _MESH},
        "sp": ["yes" if r["sequence_parallel"] else "no" for r in listed],
        **{key: [r[key] for r in listed] for key in ("recompute", "schedule", "precision")},
        "batch": [f"{r['global_batch_size']:,}" for r in listed],
        "days": [f"{r['days'] or 0:,.1f}" for r in listed],
        "$": [f"{r['usd'] or 0:,.0f}" for r in listed],
        "against the best": [r["favours"] if r["tie"] else r["loses"] for r in listed],
    }
    asked = {
        "cluster": len(set(columns["cluster"])) > 1,
        # Of one machine days and dollars go with the time, and the answer above says those of the best.
        "days": any(r["days"] for r in listed) and len(set(columns["cluster"])) > 1,
        "$": any(r["usd"] for r in listed) and len(set(columns["cluster"])) > 1,
    }
    alike = [name for name in _ALIKE if len(listed) > 1 and len(set(columns[name])) == 1]
    above = [f"# all: {', '.join(f'{name} {columns[name][0]}' for name in alike)}"] if alike else []
    shown = [name for name in columns if asked.get(name, True) and name not in alike]
    lines = zip(*((name, *columns[name]) for name in shown), strict=True)
    spare = [shown.index(name) for name in _SPARE if name in shown]
    body = aligned(list(lines), [i for i, name in enumerate(shown) if name in _LEFT], spare=spare)
    return "\n".join([*above, *body]) + "\n"


def reasons(around: Sequence[Neighbour], changes: Sequence[Sensitivity]) -> list[str]:
    """What binds the winner: single changes that would be quicker but do not fit, and what the machine's parts do."""
    barred = [n for n in around if n.reason and n.ratio < 0.999]
    lines = [f"{n.axis} {n.value} would take {100 * (1 - n.ratio):.1f} % less, but {n.reason}" for n in barred[:5]]
    if not barred:
        lines.append("no single change that is barred by memory would be quicker")
    lines += [f"{s.what}: {100 * s.change:+.1f} % time" for s in sorted(changes, key=lambda s: s.change)]
    return lines


FRONT = "no other is quicker, leaner, smaller and cheaper"


def choices_chart(listed: Sequence[dict[str, Any]], title: str) -> Chart:
    """Seconds per million tokens against memory of every choice, as points; those of the Pareto front are named.

    ``listed`` are `rows`, best first, as plan.json holds them.
    """
    clusters = list(dict.fromkeys(r["cluster"] for r in listed))
    colours = style.colours(style.PREDICTED_COLOURS + style.MEASURED_COLOURS, len(clusters))
    series = [
        _places(cluster, [r for r in listed if r["cluster"] == cluster], colour)
        for cluster, colour in zip(clusters, colours, strict=True)
    ]
    front = [r for r in listed if r["pareto"]]  # best first, whose name stands in any case
    costs, memory = [_cost(r) for r in listed], [float(r["memory_GiB"]) for r in listed]
    low, high = min(costs), max(costs)
    named = replace(_places(FRONT, front, style.INK), labels=tuple(map(_cut_words, front)))
    clear = apart(named, 0.3 * (max(memory) - min(memory)), 0.05 * (high - low), series)
    series.append(replace(named, labels=clear))
    best, shades = listed[0], []
    if margin := best.get("tie_margin"):  # none in files that were written before it was kept
        y = _cost(best)
        shades = [Shade(y, margin * y, "#EBEBEB", f"ties with the best: up to {100 * (margin - 1):.0f} % slower")]
    room = 0.12 * (high - low or high)
    y_axis = Axis("seconds per million tokens", low=max(0.0, low - room), high=high + room)
    panel = Panel(y_axis, tuple(series), height=1.3, shades=tuple(shades))
    return Chart(title, Axis("memory of the fullest GPU (GiB)"), (panel,))


def _cost(row: dict[str, Any]) -> float:
    """Seconds per million tokens."""
    return 1e6 * float(row["step_s"]) / float(row["tokens"])


def _cut_words(row: dict[str, Any]) -> str:
    mesh = f"tp {row['tp']}, pp {row['pp']}, dp {row['dp']}"
    own = {"v": row.get("virtual_stages", 1), "cp": row.get("cp", 1), "mb": row.get("micro_batch_size", 1)}
    more = [f"{name} {value}" for name, value in own.items() if value != 1]
    more += [f"recompute {row['recompute']}"] if row.get("recompute", "none") != "none" else []
    return ", ".join([mesh, *more])


def _places(name: str, some: Sequence[dict[str, Any]], colour: str) -> Series:
    notes = tuple(f"rank {r['rank']}: {_cut_words(r)}" if "rank" in r else _cut_words(r) for r in some)
    x, y = tuple(float(r["memory_GiB"]) for r in some), tuple(map(_cost, some))
    return Series(name, x, y, colour, "points", notes=notes)


def plot_choices(listed: Sequence[dict[str, Any]], title: str, provenance: str = "") -> Figure:
    """The figure of `choices_chart`."""
    return draw(choices_chart(listed, title), provenance=provenance)
