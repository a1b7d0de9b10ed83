"""What the study of degraded machines prints, and its page in the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from commsim.files import write_atomically
from study.paths import DOCS
from study.words import words_of

PAGE = DOCS / "accuracy-degraded.md"


def summary(figures: Mapping[str, Any]) -> str:
    """A line for every pair, the systems with their median errors, and what stands for all."""
    head = ("pair", "measured", "predicted", "error %", "direction", "healthy", "degraded")
    table = [head, *(_cells(row) for row in _predicted(figures))]
    width = [max(len(row[c]) for row in table) for c in range(len(head))]
    lines = ["time degraded / time healthy; then predicted / measured time of either side"]
    lines += ["  ".join([row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]) for row in table]
    lines += [f"not predicted: {row['pair']} (measured {row['measured_ratio']:.2f}): {row['reason']}" for row in
              figures["pairs"] if row["predicted_ratio"] is None]  # fmt: skip
    lines += [f"{name:28s} {error:5.1f} %" for name, error in figures["by_system"].items()]
    return "\n".join([*lines, f"{_all(figures)}."]) + "\n"


def page(figures: Mapping[str, Any]) -> str:
    """The page docs/accuracy-degraded.md."""
    lines = [
        "# Degraded machines",
        "",
        "Written by `commsim validate degraded --report`; do not edit by hand. What the columns of a pair mean: "
        "[Validate](guides/validate.md#degraded-machines).",
        "",
        words_of("accuracy-degraded"),
        "",
        "A pair is two published measurements of one machine: healthy, and degraded by a stated cause. Its ratio is "
        "time degraded / time healthy, the median over the common sizes of 1 MiB and more; where a source prints a "
        "figure only, that of its bus bandwidths. The error is |predicted ratio / measured ratio - 1|. Both sides are "
        "predicted from the same description, in which the cause alone is changed. Nothing was fitted to the ratios, "
        "but curves of `validation/measured` were in view when parameters were chosen: those of Polaris, Alps, the "
        "A100 PCIe pair and the H100; and, for the rate at which a processor copies, those of the T4. Two curves are "
        "predicted as a pair only where one publication has both, of one day.",
        "",
        f"{_all(figures)}.",
        "",
        "| pair | cause | sizes | measured | predicted | error | direction | healthy | degraded | |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|---|",
    ]
    for row in _predicted(figures):
        name, *rest = _cells(row)
        body = f"| `{name}` | {row['cause']} | {row['sizes']} | {' | '.join(rest)}"
        lines.append(f"{body} | [source]({row['source_url']}) |")
    lines += [
        "",
        "*healthy*, *degraded*: predicted / measured time of either side, above 1 too slow: which of the two misses. "
        "What is known of the misses stands in `validation/evidence.md`.",
        "",
        "| machine | median error |",
        "|---|--:|",
        *(f"| {name} | {error:.1f} |" for name, error in sorted(figures["by_system"].items(), key=lambda e: e[1])),
        "",
        "## What cannot be predicted",
        "",
        "| pair | cause | measured | why | |",
        "|---|---|--:|---|---|",
        *(
            f"| `{row['pair']}` | {row['cause']} | {row['measured_ratio']:.2f} | {row['reason']} "
            f"| [source]({row['source_url']}) |"
            for row in figures["pairs"]
            if row["predicted_ratio"] is None
        ),
    ]
    return "\n".join(lines) + "\n"


def write_report(figures: Mapping[str, Any]) -> list[Path]:
    """Writes the page."""
    return [write_atomically(PAGE, page(figures))]


def _predicted(figures: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (row for row in figures["pairs"] if row["predicted_ratio"] is not None)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["pair"],
        f"{row['measured_ratio']:.2f}",
        f"{row['predicted_ratio']:.2f}",
        f"{row['error_pct']:.1f}",
        row["direction"],
        f"{row['healthy_predicted_to_measured']:.2f}",
        f"{row['degraded_predicted_to_measured']:.2f}",
    )


def _all(figures: Mapping[str, Any]) -> str:
    n = figures["n_predicted"]
    if not n:
        return "No pair could be predicted"
    return (
        f"{n} of {len(figures['pairs'])} pairs predicted, on {len(figures['by_system'])} machines: the median over "
        f"machines of the error of the ratio is {figures['median_error_pct']:.1f} %, the direction right in "
        f"{figures['n_right']} of {n}"
    )
