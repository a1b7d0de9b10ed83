"""The pages of validations: how far off the model is on published curves and training steps, log by log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import commsim
from commsim.report.page import Cell, Facts, Page, Part, Section, Text, picture, plot, table
from commsim.units import format_bytes
from study.collectives_report import BASELINES, COLUMNS, system_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from study.training import TrainingValidation
    from study.validate import Validation

MOST_SYSTEMS = 6
"""Systems whose curves are drawn, the worst first; all logs are in the table."""

MODES = {
    "zero-shot": "with the parameters as shipped",
    "two": "with the first and the last size of the log itself",
    "few": "with three sizes of the log itself",
    "transfer": "with one all_reduce log of the system",
    "shapes": "with the system's logs of other shapes",
    "calibrated": "with every second size of the log",
    "forced": "with the algorithm and protocol that come nearest to the measured time",
    "loso": "every source predicted without any of its own rows",
    "one-row": "every source calibrated with one of its rows, drawn at random and not scored",
}


def collectives_page(validation: Validation, figures: Mapping[str, Any]) -> Page:
    """The page of a validation of collectives; `figures` is its document."""
    mode = figures["mode"]
    logs = figures["per_log"]
    scored = [r for r in logs if r["mape"] is not None]
    healthy = [r for r in scored if r["healthy"] != "no"]
    medians = figures["medians"]["all"]
    baseline = figures["baselines"]["tuner"]["all"]["logs"]["mape"]
    beside = f" NCCL's own tuner estimates: {baseline:.1f} %." if baseline is not None else ""
    sections = [
        Section("By kind of machine", (_medians(figures["medians"]["by_class"]),)),
        Section("By collective", (_medians(figures["medians"]["by_collective"]),)),
        Section("By system", tuple(_systems(validation, figures, healthy))),
        Section("Every log", (_logs(scored),)),
    ]
    if len(figures["modes"]) > 1:
        sections.append(Section("By what was known of the system", (_modes(figures["modes"]),)))
    sections.append(Section("Simpler models on the same logs", (_baselines(figures["baselines"]),)))
    missing = [r for r in logs if r["mape"] is None]
    if missing:
        rows = [(r["slug"], r["system"], r["reason"]) for r in missing]
        sections.append(Section("Not scored", (table(["log", "system", "reason"], rows),)))
    sections.append(Section("How sure this is", tuple(_statement(mode, figures))))
    return Page(
        title="Accuracy of predicted collectives",
        question="How far off are predictions of published nccl-tests logs?",
        answer=(
            f"{_percent(medians['logs']['mape'])} % median error over {medians['n_logs']} logs, "
            f"{_percent(medians['systems']['mape'])} % over {medians['n_systems']} systems, {MODES[mode]}.{beside}",
            *_worst(healthy),
        ),
        sections=tuple(sections),
        provenance=f"{len(logs)} logs read, {len(scored)} scored.",
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _worst(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    worst = max(rows, key=lambda r: r["mape"])
    return [f"The worst log is {worst['slug']} with {worst['mape']:.0f} %: {worst['reason']}."]


def _medians(parts: Mapping[str, Any]) -> Part:
    head = ["", "logs", "systems", *(f"{label}, logs (%)" for _, label in COLUMNS)]
    head += [f"{label}, systems (%)" for _, label in COLUMNS]
    rows = [
        (name, p["n_logs"], p["n_systems"], *(p["logs"][k] for k, _ in COLUMNS), *(p["systems"][k] for k, _ in COLUMNS))
        for name, p in parts.items()
    ]
    return table(
        head, rows, "Medians over logs; over systems of the median over their logs. Logs known degraded left out."
    )


def _modes(modes: Mapping[str, Any]) -> Part:
    rows = [
        (name, MODES[name], m["medians"]["all"]["n_logs"], *(m["medians"]["all"]["logs"][k] for k, _ in COLUMNS))
        for name, m in modes.items()
    ]
    return table(["mode", "what was known", "logs", *(f"{label} (%)" for _, label in COLUMNS)], rows)


def _baselines(baselines: Mapping[str, Any]) -> Part:
    rows = [
        (BASELINES[name], p["all"]["n_logs"], *(p["all"]["logs"][k] for k, _ in COLUMNS))
        for name, p in baselines.items()
    ]
    return table(["model", "logs", *(f"{label} (%)" for _, label in COLUMNS)], rows, "Medians over logs.")


def _systems(validation: Validation, figures: Mapping[str, Any], healthy: Sequence[Mapping[str, Any]]) -> list[Part]:
    parts: list[Part] = []
    if healthy:
        caption = "A dot is a log, the bar the median of its system; the best system at the top."
        parts.append(picture(systems_figure(healthy), caption))
    if "zero-shot" not in figures["modes"]:
        return parts
    median = {s: p["logs"]["mape"] for s, p in figures["medians"]["by_system"].items() if p["logs"]["mape"] is not None}
    for system in sorted(median, key=lambda s: -median[s])[:MOST_SYSTEMS]:
        caption = (
            f"{system}: predicted over measured time, zero-shot; a line is a log, above 1 the prediction is too slow."
        )
        parts.append(picture(system_figure(validation, system), caption))
    if len(median) > MOST_SYSTEMS:
        parts.append(Text(f"The {MOST_SYSTEMS} systems that are predicted worst, of {len(median)}."))
    return parts


def systems_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The error of every log by system, systems in the order of their medians."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row["system"], []).append(row["mape"])
    return _strip(groups, "mean absolute error of a log, %", "Error by system")


def _strip(groups: Mapping[str, Sequence[float]], label: str, title: str) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from commsim.report.style import INK, PREDICTED_COLOURS, RC

    names = sorted(groups, key=lambda n: float(np.median(groups[n])))
    with rc_context(cast("Any", RC)):
        figure = Figure(figsize=(8.4, 0.24 * len(names) + 1.5), layout="constrained")
        axes = figure.subplots()
        for k, name in enumerate(names):
            axes.plot(groups[name], [k] * len(groups[name]), ".", color=PREDICTED_COLOURS[0], alpha=0.5, markersize=7)
            axes.plot([np.median(groups[name])], [k], "|", color=INK, markersize=11, markeredgewidth=2)
        axes.set_yticks(range(len(names)), [f"{n} ({len(groups[n])})" for n in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        axes.set_title(title)
    return figure


def _logs(rows: Sequence[Mapping[str, Any]]) -> Part:
    head = ["log", "system", "collective", "network", "ranks", "sizes", "error (%)", "bias (%)"]
    head += [*(f"{label} (%)" for _, label in COLUMNS[1:]), "largest (%)", "at", "NCCL", "chosen", "why"]
    body = [
        (
            r["slug"], r["system"], r["collective"], r["fabric"].replace("_", " "), r["n_ranks"], r["rows"], r["mape"],
            r["bias_pct"], *(r[k] for k, _ in COLUMNS[1:]), r["worst_pct"],
            Cell(format_bytes(r["worst_bytes"]), float(r["worst_bytes"])), r["version"], r["choice"], r["reason"],
        )
        for r in sorted(rows, key=lambda r: -r["mape"])
    ]  # fmt: skip
    return table(head, body, "The worst first; a click on a head sorts.")


def _statement(mode: str, figures: Mapping[str, Any]) -> list[Part]:
    return [
        Text(
            "The error of a log is the mean of |predicted - measured| / measured over its sizes, on out-of-place "
            "times. "
            "Bias: the median of predicted / measured, less 1: above 0 where predictions are too slow."
        ),
        Text(
            "Logs are what people published: machines that work, mostly of large operators, and few of each kind. A "
            "machine of a kind that is not among them may be further off."
        ),
        Facts(
            (
                ("commsim", commsim.__version__),
                ("mode", f"{mode}: {MODES[mode]}"),
                ("modes scored", ", ".join(figures["modes"])),
            )
        ),
    ]


def terms_page(figures: Mapping[str, Any]) -> Page:
    """The page of what terms are worth; `figures` is its document."""
    from study.terms import heads, rows

    terms = figures["terms"]
    gaining = [name for name, part in terms.items() if (part["fresh"]["gain"] or 0) > 0]
    return Page(
        title="What each term of the model is worth",
        question="Which terms of the model help machines that they were not read off?",
        answer=(f"{len(gaining)} of {len(terms)} terms do; the gain is in points of mean error.",),
        sections=(Section("By term", (table(list(heads()), rows(figures)),)),),
        provenance=f"{max(part['logs'] for part in terms.values())} logs at most are touched by a term.",
    )


def training_page(validation: TrainingValidation, figures: Mapping[str, Any]) -> Page:
    """The page of a validation of training steps; `figures` is its document."""
    from commsim.report.validation_chart import steps_chart
    from study.training_report import sources_figure

    rows = figures["per_row"]
    predicted = [r for r in rows if r["error_pct"] is not None]
    counted = [abs(r["error_pct"]) for r in predicted if not r["reason"]]
    null = figures["null_model"]["per_source"]
    missing: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["predicted_s"] is None:
            missing[row["source"], row["reason"]] = missing.get((row["source"], row["reason"]), 0) + 1
    pictures: tuple[Part, ...] = ()
    caption = f"{MODES[validation.mode].capitalize()}."
    if len(validation.table):
        pictures = (
            picture(sources_figure(validation, validation.typical, "Error of the time per training step"), caption),
            plot(steps_chart(rows, "Time per training step"), caption),
        )
    head = [
        "source",
        "rows",
        "MAPE (%)",
        "median (%)",
        "90 % below (%)",
        "largest (%)",
        "bias (%)",
        "null model: MAPE (%)",
    ]
    body = [
        (name, p["n"], p["mape"], p["median"], p["p90"], p["max"], p["bias"], null.get(name, {}).get("mape"))
        for name, p in figures["per_source"].items()
        if p["n"]
    ]
    sections = [Section("By source", (*pictures, table(head, body)))]
    if "memory" in figures:
        shown = [
            (n, p["n"], p["mape"], p["median"], p["p90"], p["bias"]) for n, p in figures["memory"]["per_source"].items()
        ]
        names = ["source", "rows", "MAPE (%)", "median (%)", "90 % below (%)", "bias (%)"]
        sections.append(Section("Peak memory", (table(names, shown),)))
    listed = sorted(predicted, key=lambda r: -abs(r["error_pct"]))
    every = [(r["id"], r["source"], r["measured_s"], r["predicted_s"], r["error_pct"], r["reason"]) for r in listed]
    columns = ["row", "source", "measured (s)", "predicted (s)", "error (%)", "note"]
    sections.append(Section("Every row", (table(columns, every, "The worst first; a click on a head sorts."),)))
    if missing:
        left = [(source, n, reason) for (source, reason), n in sorted(missing.items())]
        sections.append(Section("Not predicted", (table(["source", "rows", "reason"], left),)))
    sections.append(Section("How sure this is", tuple(_training_statement(validation.mode))))
    middle = f"{np.median(counted):.1f} %" if counted else "unknown"
    return Page(
        title="Accuracy of predicted training steps",
        question="How far off are predictions of published training steps?",
        answer=(
            f"{middle} median error of the {validation.engine.replace('_', ' ')} over {len(counted):,} rows of "
            f"{len(body)} sources, {MODES[validation.mode]}.",
            f"{len(rows) - len(predicted):,} of {len(rows):,} rows say too little to be predicted.",
        ),
        sections=tuple(sections),
        provenance=f"{len(rows):,} rows.",
    )


def _training_statement(mode: str) -> list[Part]:
    return [
        Text(
            "The error of a row is (predicted - measured) / measured of the time per step. What a source does not "
            "print stands as facts in columns of its rows (validation/study/publications.yaml), written with these "
            "rows at hand: the figures are semi-blind. "
            "The null model has seven coefficients on datasheet figures, fitted to "
            "the same rows."
        ),
        Facts((("commsim", commsim.__version__), ("mode", f"{mode}: {MODES[mode]}"))),
    ]
