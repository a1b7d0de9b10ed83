"""The accuracy of the model as text, as a page of the documentation, and as a picture per system."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import yaml

from commsim.accuracy.record import record_path, residual_quantiles, to_record
from commsim.accuracy.validate import Validation
from commsim.nccl.uncertainty import RESIDUALS
from commsim.report.files import write_atomically
from commsim.resources import data_root
from commsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (("mape", "all"), ("mape_small", "<= 32 KiB"), ("mape_mid", "to 16 MiB"), ("mape_large", "> 16 MiB"))
_BASELINES = {
    "alpha_beta": "datasheet line",
    "tuner": "NCCL's tuner",
    "tuner_or_launch": "max(tuner, launch)",
    "three_lines": "three lines fitted to each curve",
}


def summary(found: Mapping[str, Any]) -> str:
    """Medians of every mode by class, the baselines, and the worst ten logs; errors in percent."""
    lines = []
    for name, mode in found["modes"].items():
        scored = sum(1 for r in mode["per_log"] if r["mape"] is not None)
        lines += [f"{name}: {scored} of {len(mode['per_log'])} logs scored; medians over logs | over systems, %"]
        lines += _text_table(mode["medians"]["by_class"])
    lines += ["baselines, medians over logs | over systems, %"]
    for name, part in found["baselines"].items():
        lines += [f"  {_BASELINES[name]}", *_text_table(part["by_class"])]
    lines += [f"worst logs, {found['mode']}"]
    lines += [f"  {row['mape']:7.1f}  {row['slug']}: {row['reason']}" for row in found["worst"]]
    return "\n".join(lines) + "\n"


def _text_table(by_class: Mapping[str, Any]) -> list[str]:
    head = f"  {'':28s}{'logs':>5s}" + "".join(f"{label:>17s}" for _, label in _COLUMNS)
    lines = [head]
    for name, part in by_class.items():
        cells = "".join(
            f"{_percent(part['logs'][key]):>8s} |{_percent(part['systems'][key]):>7s}" for key, _ in _COLUMNS
        )
        lines.append(f"  {name:28s}{part['n_logs']:5d}{cells}")
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def write_report(validation: Validation, found: Mapping[str, Any]) -> list[Path]:
    """Writes the page, the pictures, the recorded figures and the residuals; returns the files."""
    root = data_root()
    pictures = root / "docs" / "images" / "accuracy"
    pictures.mkdir(parents=True, exist_ok=True)
    systems = sorted({e.case.system for e in validation.entries if e.log is not None})
    written = []
    for system in systems:
        text = re.sub(rb"[ \t]+\n", b"\n", _svg(system_figure(validation, system)))
        written.append(write_atomically(pictures / f"{file_name(system)}.svg", text))
    for old in set(pictures.glob("*.svg")) - set(written):
        old.unlink()
    recorded = json.dumps(to_record(found), indent=0, allow_nan=False) + "\n"
    residuals = (
        "# Written by `commsim validate collectives --report`. Quantiles (10 %, 90 %) of measured /\n"
        "# predicted over the sizes of all logs that are not degraded, predicted without their own system.\n"
        + yaml.safe_dump(residual_quantiles(validation), sort_keys=False, width=110, default_flow_style=None)
    )
    return [
        *written,
        write_atomically(root / "docs" / "accuracy.md", page(found, systems)),
        write_atomically(record_path(), recorded),
        write_atomically(RESIDUALS, residuals),
    ]


def file_name(system: str) -> str:
    """A system's name as a file name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", system).strip("-")


def page(found: Mapping[str, Any], systems: Sequence[str]) -> str:
    """The page docs/accuracy.md."""
    logs = found["modes"]["zero-shot"]["per_log"]
    scored = [r for r in logs if r["mape"] is not None and r["healthy"] != "no"]
    lines = [
        "# Accuracy",
        "",
        "Written by `commsim validate collectives --report`; do not edit by hand. How it is measured, and the rule for "
        "what a log does not say: [Validate](guides/validate.md).",
        "",
        f"{len(logs)} published logs, of which {len(scored)} are scored, not known degraded. The error of a log "
        "is the mean of |predicted - measured| / measured over its sizes; figures are in percent, the median over logs "
        "and, after the stroke, the median over systems of the median over their logs.",
        "",
    ]
    for name, mode in found["modes"].items():
        lines += [f"## {name}", "", *_markdown(mode["medians"]["by_class"]), ""]
    lines += ["## Baselines", "", "On the same logs.", ""]
    for name, part in found["baselines"].items():
        lines += [f"**{_BASELINES[name]}**", "", *_markdown(part["by_class"]), ""]
    lines += [
        "## By collective, zero-shot",
        "",
        *_markdown(found["modes"]["zero-shot"]["medians"]["by_collective"]),
        "",
    ]
    lines += ["## The worst ten, zero-shot", "", "| log | error | |", "|---|--:|---|"]
    lines += [f"| `{r['slug']}` | {r['mape']:.0f} | {r['reason']} |" for r in found["modes"]["zero-shot"]["worst"]]
    lines += ["", "## By system", "", "Predicted time / measured time, zero-shot; a line per log.", ""]
    for system in systems:
        part = found["modes"]["zero-shot"]["medians"]["by_system"].get(system)
        note = (
            f" ({part['n_logs']} logs, median {_percent(part['logs']['mape'])} %)" if part else " (degraded logs only)"
        )
        lines += [f"**{system}**{note}", "", f"![{system}](images/accuracy/{file_name(system)}.svg)", ""]
    missing = [r for r in logs if r["mape"] is None]
    lines += ["## Not scored", "", "| log | reason |", "|---|---|"]
    lines += [f"| `{r['slug']}` | {r['reason'].replace('|', '/')} |" for r in missing]
    return "\n".join(lines) + "\n"


def _markdown(parts: Mapping[str, Any]) -> list[str]:
    lines = [
        "| | logs | systems | " + " | ".join(label for _, label in _COLUMNS) + " |",
        "|---|--:|--:|" + "--:|" * len(_COLUMNS),
    ]
    for name, part in parts.items():
        cells = " | ".join(f"{_percent(part['logs'][k])} / {_percent(part['systems'][k])}" for k, _ in _COLUMNS)
        lines.append(f"| {name} | {part['n_logs']} | {part['n_systems']} | {cells} |")
    return lines


def system_figure(validation: Validation, system: str) -> Figure:
    """Predicted / measured against size for every log of a system, zero-shot."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from commsim.report.style import MEASURED_COLOURS, PREDICTED_COLOURS, RC

    _, seconds = validation.modes["zero-shot"]
    colours = (*PREDICTED_COLOURS, *MEASURED_COLOURS)
    with rc_context(cast("Any", {**RC, "svg.hashsalt": "commsim", "svg.fonttype": "none"})):
        figure = Figure(figsize=(6.4, 2.6), layout="constrained")
        axes = figure.add_subplot()
        names: list[str] = []
        for entry in validation.entries:
            if entry.log is None or entry.case.system != system:
                continue
            log = validation.study.logs[entry.log]
            ratio = seconds[entry.log] / log.time_s
            if entry.case.collective not in names:
                names.append(entry.case.collective)
            axes.plot(
                log.nbytes,
                np.clip(ratio, 0.1, 10),
                color=colours[names.index(entry.case.collective) % len(colours)],
                linestyle=":" if entry.case.healthy == "no" else "-",
                linewidth=1.0,
            )
        axes.set(xscale="log", yscale="log", ylim=(0.1, 10), ylabel="predicted / measured")
        axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10], ["1/10", "1/5", "1/2", "1", "2", "5", "10"])
        axes.minorticks_off()
        ticks = [2**k for k in range(0, 40, 5)]
        low, high = axes.get_xlim()
        axes.set_xticks([t for t in ticks if low <= t <= high], [format_bytes(t) for t in ticks if low <= t <= high])
        axes.axhline(1.0, color="#222222", linewidth=0.8)
        for i, name in enumerate(names):
            axes.plot([], [], color=colours[i % len(colours)], label=name)
        axes.legend(loc="upper right", fontsize=7, ncols=4, frameon=False)
        return figure


def _svg(figure: Figure) -> bytes:
    """The picture with its text as text, which is smaller than its outlines."""
    from matplotlib import rc_context

    from commsim.report.plots import figure_bytes

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "commsim"}):
        return figure_bytes(figure, "svg")
