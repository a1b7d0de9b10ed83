"""The accuracy of the model as text, as a page of the documentation, and as a picture per system."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import yaml

from commsim.files import write_atomically
from commsim.nccl.uncertainty import RESIDUALS
from commsim.units import format_bytes
from study.modes import BESIDE
from study.paths import DOCS
from study.record import record_path, to_record
from study.residuals import coverage, points, residual_record
from study.validate import Validation
from study.words import words_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (("mape", "all"), ("mape_small", "<= 32 KiB"), ("mape_mid", "to 16 MiB"), ("mape_large", "> 16 MiB"))
BASELINES = {
    "alpha_beta": "datasheet line",
    "tuner": "NCCL's tuner",
    "tuner_or_launch": "max(tuner, launch)",
    "three_lines": "three lines fitted to all sizes of each curve",
}

_BANDS = {key.removeprefix("mape_"): label for key, label in COLUMNS}

_MOST_REASONS = 10


def summary(figures: Mapping[str, Any]) -> str:
    """Medians of every mode by class, baselines, the worst ten logs and why logs are not scored; errors in percent."""
    lines: list[str] = []
    for name, mode in figures["modes"].items():
        scored = sum(1 for r in mode["per_log"] if r["mape"] is not None)
        head = f"{name}: {scored} of {len(mode['per_log'])} logs scored"
        degraded = sum(1 for r in mode["per_log"] if r["mape"] is not None and r["healthy"] == "no")
        head += f", {degraded} known degraded and in no median" if degraded else ""
        lines += [f"{head}; medians over logs | over systems, %" if scored else head]
        lines += _text_table(mode["medians"]["by_class"])
        if scored:
            for label, medians in _beside(mode):
                lines += [f"  {label}", *_text_table(medians)]
            lines += [f"  {line}" for line in _harm(mode)]
    baselines = [(BASELINES[name], _text_table(part["by_class"])) for name, part in figures["baselines"].items()]
    if any(table for _, table in baselines):
        lines += ["baselines, medians over logs | over systems, %"]
    for label, table in baselines:
        lines += [f"  {label}", *table] if table else []
    if figures["worst"]:
        lines += [f"worst logs, {figures['mode']}"]
        lines += [f"  {row['mape']:7.1f}  {row['slug']}: {row['reason']}" for row in figures["worst"]]
    rest = [row for row in figures["per_log"] if row["mape"] is None]
    if rest:
        lines += [f"not scored, {figures['mode']}"]
        lines += [f"  {row['slug']}: {row['reason']}" for row in rest[:_MOST_REASONS]]
    if len(rest) > _MOST_REASONS:
        lines += [f"  and {len(rest) - _MOST_REASONS} more (--json names all)"]
    return "\n".join(lines) + "\n"


def _text_table(by_class: Mapping[str, Any]) -> list[str]:
    """A line for each class that has logs; nothing where none has."""
    parts = {name: part for name, part in by_class.items() if part["n_logs"]}
    lines = [f"  {'':28s}{'logs':>5s}" + "".join(f"{label:>17s}" for _, label in COLUMNS)] if parts else []
    for name, part in parts.items():
        cells = "".join(
            f"{_percent(part['logs'][key]):>8s} |{_percent(part['systems'][key]):>7s}" for key, _ in COLUMNS
        )
        lines.append(f"  {name:28s}{part['n_logs']:5d}{cells}")
    return lines


def _beside(mode: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(label, medians by class) of what stands beside a mode, on the same logs."""
    for name, part in mode.get("beside", {}).items():
        yield BESIDE[name], part["theirs"]["by_class"]
        if part["ours"]["all"]["n_logs"] != mode["medians"]["all"]["n_logs"]:
            yield "the mode itself on the same logs", part["ours"]["by_class"]


_WORSE = 3.0
"""Points from which on a log is named that is worse with what a mode has seen than as shipped."""


def _harm(mode: Mapping[str, Any]) -> Iterator[str]:
    """What a mode's fit does to other collectives than the one it has seen, and the logs that it makes worse."""
    shipped = mode.get("beside", {}).get("shipped")
    if shipped is None:
        return
    if mode["mode"] == "transfer":
        before = {row["slug"]: row["mape"] for row in shipped["per_log"]}
        others = [row for row in mode["per_log"] if row["slug"] in before and row["collective"] != "all_reduce"]
        if others:
            now = float(np.median([row["mape"] for row in others]))
            then = float(np.median([before[row["slug"]] for row in others]))
            yield f"Other collectives than all_reduce: {now:.1f} % over {len(others)} logs, {then:.1f} % as shipped."
    worse = {slug: by for slug, by in mode["worse"].items() if by > _WORSE}
    named = ", ".join(f"{slug} +{by:.0f}" for slug, by in list(worse.items())[:_MOST_REASONS])
    count = shipped["ours"]["all"]["n_logs"]
    yield f"Worse than as shipped by more than {_WORSE:.0f} points: {len(worse)} of {count} logs" + (
        f" ({named}{', ...' if len(worse) > _MOST_REASONS else ''})." if worse else "."
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def write_report(validation: Validation, figures: Mapping[str, Any]) -> list[Path]:
    """Writes the page, the pictures, the recorded figures and the residuals; returns the files."""
    pictures = DOCS / "images" / "accuracy"
    pictures.mkdir(parents=True, exist_ok=True)
    systems = sorted({each.case.system for each in validation.listed if each.log is not None})
    written = [
        write_atomically(pictures / f"{file_name(system)}.svg", _svg(system_figure(validation, system)))
        for system in systems
    ]
    for old in set(pictures.glob("*.svg")) - set(written):
        old.unlink()
    recorded = json.dumps(to_record(figures), indent=0, allow_nan=False) + "\n"
    residuals = (
        "# Written by `commsim validate collectives --report`. Quantiles of measured / predicted over systems, whose\n"
        "# logs are predicted without them (validation/study/residuals.py).\n"
        + yaml.safe_dump(residual_record(validation), sort_keys=False, width=110, default_flow_style=None)
    )
    return [
        *written,
        write_atomically(DOCS / "accuracy.md", page(figures, systems, coverage(points(validation)))),
        write_atomically(record_path(), recorded),
        write_atomically(RESIDUALS, residuals),
    ]


def file_name(system: str) -> str:
    """A system's name as a file name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", system).strip("-")


def page(
    figures: Mapping[str, Any], systems: Sequence[str], held: Mapping[tuple[str, str], Mapping[str, float]]
) -> str:
    """The page docs/accuracy.md; `held` is the coverage of the bands."""
    logs = figures["modes"]["zero-shot"]["per_log"]
    scored = [r for r in logs if r["mape"] is not None and r["healthy"] != "no"]
    lines = [
        "# Accuracy",
        "",
        "Written by `commsim validate collectives --report`; do not edit by hand. How it is measured, and the rule for "
        "what a log does not say: [Validate](guides/validate.md). What each term of the model is worth on machines "
        "that it was not read off: [Terms](accuracy-terms.md). What stated faults cost: "
        "[Degraded machines](accuracy-degraded.md).",
        "",
        words_of("accuracy"),
        "",
        f"{len(logs)} published logs, of which {len(scored)} are scored, not known degraded. The error of a log "
        "is the mean of |predicted - measured| / measured over its sizes; figures are in percent, the median over logs "
        "and, after the stroke, the median over systems of the median over their logs.",
        "",
    ]
    for name, mode in figures["modes"].items():
        lines += [f"## {name}", "", *markdown_table(mode["medians"]["by_class"]), ""]
        for label, table in _beside(mode):
            lines += [f"{label[0].upper()}{label[1:]}:", "", *markdown_table(table), ""]
        for line in _harm(mode):
            lines += [line, ""]
    lines += ["## Baselines", "", "On the same logs.", ""]
    for name, part in figures["baselines"].items():
        lines += [f"**{BASELINES[name]}**", "", *markdown_table(part["by_class"]), ""]
    lines += [
        "## By collective, zero-shot",
        "",
        *markdown_table(figures["modes"]["zero-shot"]["medians"]["by_collective"]),
        "",
    ]
    lines += [
        "## Bands of predictions",
        "",
        "How many measurements of a system lie inside the bands that the other systems give (eight of ten are aimed "
        "at), and the median width of the bands: upper end / lower end.",
        "",
        "| link | sizes | systems | inside | width |",
        "|---|---|--:|--:|--:|",
        *(
            f"| {sort} | {_BANDS[band]} | {h['systems']:.0f} | {100 * h['inside']:.0f} % | {h['width']:.2g} |"
            for (sort, band), h in held.items()
        ),
        "",
    ]
    lines += ["## The worst ten, zero-shot", "", "| log | error | |", "|---|--:|---|"]
    lines += [f"| `{r['slug']}` | {r['mape']:.0f} | {r['reason']} |" for r in figures["modes"]["zero-shot"]["worst"]]
    lines += [
        "",
        "## By system",
        "",
        "Predicted time / measured time, zero-shot; a line per log, clipped at a factor of ten; above 1 the prediction "
        "is too slow. A name of three parts is publisher, machine and network, where no case names the system.",
        "",
    ]
    for system in systems:
        part = figures["modes"]["zero-shot"]["medians"]["by_system"].get(system)
        note = (
            f" ({part['n_logs']} {'log' if part['n_logs'] == 1 else 'logs'}, median {_percent(part['logs']['mape'])} %)"
            if part
            else " (degraded logs only)"
        )
        lines += [f"**{system}**{note}", "", f"![{system}](images/accuracy/{file_name(system)}.svg)", ""]
    missing = [r for r in logs if r["mape"] is None]
    lines += ["## Not scored", "", "| log | reason |", "|---|---|"]
    lines += [f"| `{r['slug']}` | {r['reason'].replace('|', '/')} |" for r in missing]
    return "\n".join(lines) + "\n"


def markdown_table(parts: Mapping[str, Any]) -> list[str]:
    """Medians of a document by class, collective or system, as the lines of a table in Markdown."""
    lines = [
        "| | logs | systems | " + " | ".join(label for _, label in COLUMNS) + " |",
        "|---|--:|--:|" + "--:|" * len(COLUMNS),
    ]
    for name, part in parts.items():
        cells = " | ".join(f"{_percent(part['logs'][k])} / {_percent(part['systems'][k])}" for k, _ in COLUMNS)
        lines.append(f"| {name} | {part['n_logs']} | {part['n_systems']} | {cells} |")
    return lines


def system_figure(validation: Validation, system: str) -> Figure:
    """Predicted / measured against size for every log of a system, zero-shot."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from commsim.report.style import INK, MEASURED_COLOURS, PREDICTED_COLOURS, RC, size_ticks

    drawn = [each for each in validation.listed if each.log is not None and each.case.system == system]
    names = sorted({each.case.collective for each in drawn})
    colours = dict(zip(names, (*PREDICTED_COLOURS, *MEASURED_COLOURS), strict=False))
    degraded = any(each.degraded for each in drawn)
    with rc_context(cast("Any", RC)):
        figure = Figure(figsize=(6.4, 2.9), layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(1.0, color=INK, linewidth=1.0)
        for each in drawn:
            assert each.log is not None
            some = _thinned(each.log.size.size)
            axes.plot(
                each.log.size[some],
                np.clip(each.outcomes["zero-shot"].seconds / each.log.time_s, 0.1, 10)[some],
                color=colours[each.case.collective],
                linestyle=":" if each.degraded else "-",
                linewidth=1.1,
                marker="." if len(some) < _SHORT else "",
            )
        axes.set(xscale="log", yscale="log", ylim=(0.1, 10), xlabel="size", ylabel="predicted / measured time")
        axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10], ["1/10", "1/5", "1/2", "1", "2", "5", "10"])
        ticks = size_ticks(*axes.get_xlim(), at_most=9)
        axes.set_xticks(ticks, [format_bytes(t) for t in ticks])
        axes.minorticks_off()
        for name in names:
            axes.plot([], [], color=colours[name], label=name)
        if degraded:
            axes.plot([], [], color=INK, linestyle=":", label="known degraded")
        figure.legend(loc="outside upper left", ncols=5, fontsize=8)
        return figure


_MOST_POINTS, _SHORT = 48, 8
"""Sizes of a curve that are drawn, and the fewest that need no mark at each."""


def _thinned(count: int) -> npt.NDArray[np.int64]:
    """Indices of at most `_MOST_POINTS` of a curve's sizes, evenly, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).round().astype(np.int64))


def _svg(figure: Figure) -> bytes:
    """The picture, small: text as text, tenths of a point, one line per element."""
    from matplotlib import rc_context

    from commsim.report.plots import figure_bytes

    with rc_context({"svg.fonttype": "none"}):
        svg = figure_bytes(figure, "svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<\?xml.*?\?>|<!DOCTYPE[^>]*>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'=("[^"]*")', lambda m: "=" + re.sub(r"\s+", " ", m[1]), svg)
    svg = re.sub(r"-?\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r' id="(?:figure|axes|patch|text|line2d|xtick|ytick|matplotlib|legend)[\w.]*"', "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    return re.sub(r"\s*\n\s*", "\n", svg).strip().encode() + b"\n"
