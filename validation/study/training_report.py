"""The accuracy of training steps as text, as a page of the documentation and as pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from commsim.files import write_atomically
from commsim.units import GIGA
from study.paths import DOCS
from study.training import DRAWS, TrainingValidation, one_row_over_sources, per_group, with_one_row
from study.training_ablation import Progress, ablation
from study.training_record import bars, record_path
from study.training_rows import MeasuredRows, apart, errors, group_of
from study.words import words_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ENGINES = {"simulation": "simulation", "closed_form": "closed form"}
_MODES = {"loso": "without the row's source", "one-row": "with one row of its source, drawn at random"}


def summary(validation: TrainingValidation, figures: Mapping[str, Any]) -> str:
    """Errors by group of rows beside the null model's, and the reasons of rows that are not predicted."""
    null = figures["null_model"]["per_source"]
    predicted = sum(1 for r in figures["per_row"] if r["predicted_s"] is not None)
    lines = [
        f"{predicted} of {len(figures['per_row'])} rows predicted by the {_ENGINES[validation.engine]}, "
        f"{_MODES[validation.mode]}; errors in percent",
        f"{'':24s}{'rows':>5s}{'MAPE':>7s}{'median':>8s}{'p90':>7s}{'bias':>7s}{'null MAPE':>11s}{'median':>8s}",
    ]
    for name, part in figures["per_source"].items():
        if part["n"]:
            lines.append(
                f"{name:24s}{part['n']:5d}{part['mape']:7.1f}{part['median']:8.1f}{part['p90']:7.1f}{part['bias']:+7.1f}"
                f"{null[name]['mape']:11.1f}{null[name]['median']:8.1f}"
            )
        if "apart" in part:
            lines.append(f"{name + ', apart':24s}{part['apart']['n']:5d}{part['apart']['mape']:7.1f}")
    if "memory" in figures:
        lines.append(f"{'memory':24s}{'rows':>5s}{'MAPE':>7s}{'median':>8s}{'p90':>7s}{'bias':>7s}")
        for name, part in figures["memory"]["per_source"].items():
            cells = f"{part['mape']:7.1f}{part['median']:8.1f}{part['p90']:7.1f}{part['bias']:+7.1f}"
            lines.append(f"{name:24s}{part['n']:5d}{cells}")
    reasons: dict[str, int] = {}
    for row in figures["per_row"]:
        if row["predicted_s"] is None:
            reasons[f"{row['source']}: {row['reason']}"] = reasons.get(f"{row['source']}: {row['reason']}", 0) + 1
    lines += [over_groups(validation.table, figures["per_source"], validation.typical)]
    if one_row := figures.get("one_row"):
        lines += [f"{known_row(one_row)}."]
    if validation.engine == "simulation":
        lines += [f"{difference(validation)}."]
    lines += [f"not predicted, {n} of {reason}" for reason, n in sorted(reasons.items())[:40]]
    return "\n".join(lines) + "\n"


def write_report(validation: TrainingValidation, progress: Progress, workers: int = 1) -> list[Path]:
    """Writes the page, its pictures and the record; returns the files."""
    loso = validation.first
    known = with_one_row(validation.table, loso, validation.fit)
    of_closed = with_one_row(validation.table, validation.closed, validation.fit)
    engines = {
        "simulation": _figures(validation, loso, known),
        "closed_form": _figures(validation, validation.closed, of_closed),
    }
    null = per_group(validation.table, validation.null)
    terms = ablation(validation.table, progress, workers)
    record = {"engines": engines, "null": null, "ablation": terms}
    pictures = DOCS / "images" / "accuracy-training"
    pictures.mkdir(parents=True, exist_ok=True)
    written = [
        write_atomically(pictures / "sources.svg", _svg(sources_figure(validation, loso))),
        write_atomically(pictures / "measured.svg", _svg(measured_figure(validation, loso))),
    ]
    one_row = one_row_over_sources(validation.table, loso, known)
    return [
        *written,
        write_atomically(DOCS / "accuracy-training.md", page(validation, engines, null, terms, one_row)),
        write_atomically(record_path(), json.dumps(record, indent=0, allow_nan=False) + "\n"),
    ]


def _figures(validation: TrainingValidation, loso: Any, known: Any) -> dict[str, Any]:
    return {"loso": per_group(validation.table, loso), "one-row": per_group(validation.table, known)}


def known_row(sources: Mapping[str, Any]) -> str:
    """A sentence on what one known row brings: the median over sources, and those that it makes worse in the median
    draw."""
    if not sources:
        return "no source has five rows"
    unknown, one = (np.median([s[key] for s in sources.values()]) for key in ("unknown", "one_row"))
    worse = {name: s["worse"] for name, s in sources.items() if s["worse"] > 0}
    most = max(worse, key=lambda name: worse[name], default="")
    text = (
        f"one row known, {DRAWS} random draws: median over {len(sources)} sources {unknown:.1f} -> {one:.1f} %, "
        f"{len(worse)} of them worse than unknown"
    )
    return text + (f", most {most} by {worse[most]:.1f} points" if most else "")


def over_groups(table: MeasuredRows, groups: Mapping[str, Any], predicted: Any) -> str:
    """A sentence: the median of the groups' medians, the share of groups up to 10 %, the rows of experts."""
    medians = np.array([part["median"] for part in groups.values() if part["n"]])
    of_experts = [
        abs(float(e))
        for row, e in zip(table.rows, errors(table, predicted), strict=True)
        if row.step is not None and row.step.model.moe is not None and not apart(row)
    ]
    if not len(medians):
        return "no group of rows is predicted"
    share = 100 * np.mean(medians <= 10)
    text = f"median over {len(medians)} groups {np.median(medians):.1f} %, {share:.0f} % of them up to 10 %"
    return text + (f"; rows of experts: median {np.median(of_experts):.1f} %" if of_experts else "")


def difference(validation: TrainingValidation) -> str:
    """A sentence on the simulation beside the closed form, over the rows that are not apart."""
    apart_by = _apart_by(validation)
    if not len(apart_by):
        return "no row has both a simulation and a closed form"
    size = np.abs(apart_by)
    return (
        f"simulation beside closed form: median difference {np.median(size):.1f} %, 95th percentile "
        f"{np.percentile(size, 95):.1f} %, over {len(size)} rows"
    )


def _apart_by(validation: TrainingValidation) -> Any:
    counted = np.array([not apart(row) for row in validation.table.rows], bool)
    return 100.0 * (validation.first / validation.closed - 1.0)[counted]


def _differences(validation: TrainingValidation, least: float = 8.0) -> list[str]:
    """The rows whose simulation and closed form are further apart, with the part of the step that makes it."""
    lines = [
        "| rows | n | simulation over closed form (%) | simulation: error (%) | closed form: error (%) | why |",
        "|---|--:|--:|--:|--:|---|",
    ]
    table = validation.table
    by = 100.0 * (validation.first / validation.closed - 1.0)
    ours, theirs = errors(table, validation.first), errors(table, validation.closed)
    reasons: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(table.rows):
        if abs(by[i]) > least and not apart(row):
            reasons.setdefault((group_of(row), why(row.step)), []).append(i)
    for (name, reason), index in sorted(reasons.items()):
        cells = (np.median(by[index]), np.median(ours[index]), np.median(theirs[index]))
        lines.append(f"| {name} | {len(index)} | " + " | ".join(f"{c:+.1f}" for c in cells) + f" | {reason} |")
    return lines


def why(step: Any) -> str:
    """What the simulation knows of such a step that the closed form does not."""
    if step.ep > step.nvlink_domain:
        return "experts exchange over NICs: NCCL's sends against a copy for each node"
    if step.cp > 1 and step.cp * step.tp > step.nvlink_domain:
        return "ring attention between nodes: NCCL's sends use one or two channels"
    if step.tp > step.nvlink_domain:
        return "tensor parallelism between nodes: all channels of NCCL use all NICs"
    if step.zero_stage == 3:
        return "ZeRO-3 over many nodes: NCCL's latency for each layer"
    if step.pp > 1:
        return "the pipeline: messages, uneven stages and gradients at its ends"
    return "gradients and parameters, bucket by bucket"


def page(
    validation: TrainingValidation,
    engines: Mapping[str, Any],
    null: Mapping[str, Any],
    terms: Mapping[str, Any],
    one_row: Mapping[str, Any],
) -> str:
    """The page docs/accuracy-training.md."""
    missing = [row for row in validation.rows if row.step is None]
    modes, closed = engines["simulation"], engines["closed_form"]["loso"]
    lines = [
        "# Accuracy of training steps",
        "",
        "Written by `commsim validate training --report`; do not edit by hand. The model: "
        "[How a training step is modelled](background/training.md).",
        "",
        words_of("accuracy-training"),
        "",
        f"{len(validation.rows)} published rows, of which {len(validation.table)} are complete enough to predict. The "
        "error of a row is (predicted - measured) / measured of the time per step, in percent. *Leaving the source "
        "out*: everything fitted was fitted without any row of the scored source. *One row*: then calibrated with "
        f"one row of the source as `commsim calibrate` does, the median of {DRAWS} rows drawn at random; the known row "
        "is not scored, nor are rows of another generation of GPU. What a source does not print are facts in the rows' "
        "columns (framework, release, FLOP convention ...; `validation/study/publications.yaml`); they, the terms and "
        "their starting values were written with these rows at hand, so figures are semi-blind. The null model has "
        "seven coefficients on "
        "datasheet figures, fitted to the same rows, leaving the source out. The study is a throw-away "
        "closed form of 150 lines that this model was to surpass.",
        "",
        "Figures are those of the simulation, with which `commsim run` and the best of `commsim plan` answer; each row "
        "on the preset of its GPUs with the row's network. The closed form ranks plans, and the parameters are fitted "
        "with it.",
        "",
        f"* Simulation: {over_groups(validation.table, modes['loso'], validation.first)}.",
        f"* Closed form: {over_groups(validation.table, closed, validation.closed)}.",
        f"* {difference(validation).capitalize()}.",
        "* How often the band of a time and the order of two layouts are right: [Accuracy of decisions]"
        "(accuracy-decisions.md).",
        "",
        "![Errors by source](images/accuracy-training/sources.svg)",
        "",
        "## By source",
        "",
        "| rows | n | MAPE | median | bias | one row: MAPE | median | closed form: MAPE | median | null: MAPE | median "
        "| study: MAPE | median | bar |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, part in modes["loso"].items():
        if part["n"]:
            lines.append(_source_line(name, part, modes["one-row"].get(name, {}), closed[name], null[name]))
    aside = [
        f"{name} ({p['apart']['n']} rows, median {p['apart']['median']:.0f} %)"
        for name, p in modes["loso"].items()
        if "apart" in p
    ]
    lines += [
        "",
        f"**{known_row(one_row).capitalize()}.**",
        "",
        f"Reported apart, with the reason in the column `apart`: {', '.join(aside)}.",
        "",
        "![Predicted against measured](images/accuracy-training/measured.svg)",
        "",
        "## By size of the model and by accelerator, leaving the source out",
        "",
        *_by(validation, "model size", _size),
        "",
        *_by(validation, "accelerator", lambda row: row.step.accelerator.name if row.step else ""),
        "",
        "## Simulation beside closed form",
        "",
        "Rows that are more than 8 % apart, by what makes the difference.",
        "",
        *_differences(validation),
        "",
        "## What every term is worth",
        "",
        "MAPE of the closed form by source with a term taken out and everything fitted again (at most 200 rows of a "
        "source are scored, "
        "40 fitted); fits hide a weak term behind the others.",
        "",
        *_ablation_table(terms),
        "",
        "## Others",
        "",
        *[f"* {name}: {b['others']}" for name, b in bars().items() if "others" in b],
        "",
        "## Not predicted",
        "",
        "| source | rows | reason |",
        "|---|--:|---|",
    ]
    reasons: dict[tuple[str, str], int] = {}
    for row in missing:
        reasons[row.source, row.reason] = reasons.get((row.source, row.reason), 0) + 1
    lines += [f"| {source} | {n} | {reason.replace('|', '/')} |" for (source, reason), n in sorted(reasons.items())]
    return "\n".join(lines) + "\n"


def _source_line(
    name: str, part: Mapping[str, Any], one: Mapping[str, Any], closed: Mapping[str, Any], null: Mapping[str, Any]
) -> str:
    bar = bars().get(name, {})
    verdict = ""
    if "bar" in bar:
        mode = bar.get("mode", "loso")
        value = (one if mode == "one-row" else part).get(bar["statistic"])
        aim = f"{bar['statistic']} <= {bar['bar']}{' with one row' if mode == 'one-row' else ''}"
        verdict = f"{aim}: {'met' if value is not None and value <= bar['bar'] else 'missed'}"
    cells = [
        f"{part['n']}",
        *(_number(part.get(k)) for k in ("mape", "median")),
        f"{part['bias']:+.1f}",
        *(_number(one.get(k)) for k in ("mape", "median")),
        *(_number(closed.get(k)) for k in ("mape", "median")),
        *(_number(null.get(k)) for k in ("mape", "median")),
        _number(bar.get("study_mape")),
        _number(bar.get("study_median")),
        verdict,
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _size(row: Any) -> str:
    billions = row.step.model.parameters() / GIGA
    for low, high in ((0, 1), (1, 10), (10, 50), (50, 200), (200, inf)):
        if billions < high:
            return f"{low} to {high:g} billion" if high < inf else f"over {low} billion"
    return ""


def _by(validation: TrainingValidation, title: str, key: Any) -> list[str]:
    error = np.abs(errors(validation.table, validation.first))
    groups: dict[str, list[float]] = {}
    for row, e in zip(validation.table.rows, error, strict=True):
        if not apart(row):
            groups.setdefault(key(row), []).append(float(e))
    lines = [f"| {title} | rows | MAPE | median | p90 |", "|---|--:|--:|--:|--:|"]
    for name, values in sorted(groups.items()):
        cells = (np.mean(values), np.median(values), np.quantile(values, 0.9))
        lines.append(f"| {name} | {len(values)} | " + " | ".join(f"{v:.1f}" for v in cells) + " |")
    return lines


def _ablation_table(terms: Mapping[str, Any]) -> list[str]:
    names = [n for n in bars() if "bar" in bars()[n]]
    lines = ["| without | " + " | ".join(names) + " | mean |", "|---|" + "--:|" * (len(names) + 1)]
    for term, groups in terms.items():
        values = [groups.get(n, {}).get("mape") for n in names]
        mean = np.mean([v for v in values if v is not None])
        lines.append(f"| {term} | " + " | ".join(_number(v) for v in values) + f" | {mean:.1f} |")
    return lines


def _svg(figure: Figure) -> bytes:
    from commsim.report.plots import figure_bytes

    return re.sub(rb"[ \t]+\n", b"\n", figure_bytes(figure, "svg"))


def sources_figure(
    validation: TrainingValidation,
    predicted: Any,
    title: str = "Time per training step, without the rows of the source",
) -> Figure:
    """The signed errors of every group of rows: a dot per row, a bar from the first to the third quartile."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from commsim.report.style import BOUND, INK, PREDICTED_COLOURS, RC

    error = errors(validation.table, predicted)
    null = errors(validation.table, validation.null)
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(validation.table.rows):
        if not apart(row):
            groups.setdefault(group_of(row), []).append(i)
    names = sorted((n for n in groups if len(groups[n]) > 1), key=lambda n: float(np.median(np.abs(error[groups[n]]))))
    with rc_context(cast("Any", RC)):
        figure = Figure(figsize=(8.6, 0.3 * len(names) + 1.4), layout="constrained")
        axes = figure.subplots()
        random = np.random.default_rng(0)
        for k, name in enumerate(names):
            index = groups[name] if len(groups[name]) <= 150 else groups[name][:: len(groups[name]) // 150]
            spread = 0.28 * (random.random(len(index)) - 0.5)
            axes.scatter(np.clip(error[index], -60, 60), k + spread, s=7, color=PREDICTED_COLOURS[0], alpha=0.35, lw=0)
            low, mid, high = np.quantile(error[groups[name]], (0.25, 0.5, 0.75))
            axes.plot([low, high], [k, k], color=INK, lw=2.4, solid_capstyle="butt")
            axes.plot([mid], [k], "o", color=INK, ms=4.5)
            axes.plot([np.clip(np.median(null[groups[name]]), -60, 60)], [k], "x", color=BOUND, ms=5)
        axes.axvline(0, color=INK, lw=0.8)
        axes.axvspan(-8, 8, color=PREDICTED_COLOURS[0], alpha=0.07, lw=0)
        axes.set_yticks(range(len(names)), [f"{n} ({len(groups[n])})" for n in names])
        axes.set_ylim(len(names) - 0.4, -0.8)
        axes.set_xlim(-62, 62)
        axes.set_xlabel(
            "(predicted - measured) / measured, %: dot a row, bar its quartiles, cross the null model's median"
        )
        axes.set_title(title)
    return figure


def measured_figure(
    validation: TrainingValidation, predicted: Any, title: str = "Predicted without the row's source"
) -> Figure:
    """Predicted against measured seconds per step, both logarithmic."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from commsim.report.style import INK, MEASURED_COLOURS, PREDICTED_COLOURS, RC

    keep = np.array([not apart(row) for row in validation.table.rows])
    moe = np.array([bool(row.step and row.step.model.moe) for row in validation.table.rows])
    single = validation.table.source == "vtrain_single"
    with rc_context(cast("Any", RC)):
        figure = Figure(figsize=(6.4, 5.6), layout="constrained")
        axes = figure.subplots()
        parts = (
            (single, "vTrain single node", "#B5B5B5"),
            (~single & ~moe, "dense models", PREDICTED_COLOURS[0]),
            (moe, "models of experts", MEASURED_COLOURS[0]),
        )
        for mask, label, colour in parts:
            axes.scatter(
                validation.table.measured[keep & mask],
                predicted[keep & mask],
                s=10,
                alpha=0.5,
                lw=0,
                color=colour,
                label=label,
            )
        ends = np.array([validation.table.measured.min() * 0.8, validation.table.measured.max() * 1.25])
        axes.plot(ends, ends, color=INK, lw=0.9)
        axes.fill_between(ends, ends * 0.8, ends * 1.25, color=INK, alpha=0.06, lw=0)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set_xlabel("measured time per step, s")
        axes.set_ylabel("predicted, s (band: 25 %)")
        axes.set_title(title)
        axes.legend(loc="upper left")
    return figure
