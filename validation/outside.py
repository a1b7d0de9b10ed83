"""Writes docs/accuracy-outside.md: the model against curves that no fit has seen; `make accuracy-outside`.

`validation/outside` holds them. Each is predicted from the columns of its index row.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from commsim.files import write_atomically
from study.collectives_report import markdown_table
from study.record import document
from study.validate import validate
from study.words import words_of

ROOT = Path(__file__).resolve().parent.parent
CURVES = ROOT / "validation" / "outside"
PAGE = ROOT / "docs" / "accuracy-outside.md"
MODES = ("zero-shot", "two", "few")


def measured() -> dict[str, Any]:
    """The document of a validation of these curves in both modes."""
    return document(validate([CURVES], MODES), MODES[0])


def page(figures: dict[str, Any]) -> str:
    """The page of the documentation."""
    zero, two, few = (figures["modes"][mode] for mode in MODES)
    scored = [row for row in zero["per_log"] if row["mape"] is not None]
    healthy = sum(row["healthy"] != "no" for row in scored)
    source = {
        row["slug"]: row["source_url"]
        for index in sorted(CURVES.glob("INDEX_*.csv"))
        for row in csv.DictReader(index.read_text(encoding="utf-8").splitlines())
    }
    known = {row["slug"]: row["mape"] for row in few["per_log"]}
    lines = [
        "# Curves that no fit has seen",
        "",
        "Written by `make accuracy-outside`; do not edit by hand. The parameters were chosen with the curves of "
        "[Accuracy](accuracy.md) in view. These are others, published elsewhere, and predicted from the columns of "
        "their index rows ([Validate](guides/validate.md)). What these curves showed of the rule and of the model was "
        "mended, so that one that nobody here has looked at may come out a little worse.",
        "",
        words_of("accuracy-outside"),
        "",
        f"{len(zero['per_log'])} published curves, of which {healthy} are scored, not known degraded. Errors in "
        "percent: the median over logs and, after the stroke, over systems.",
        "",
        "## Zero-shot",
        "",
        *markdown_table(zero["medians"]["by_class"]),
        "",
        "## The first and the last size of each curve known",
        "",
        *markdown_table(two["medians"]["by_class"]),
        "",
        "## Three sizes of each curve known",
        "",
        *markdown_table(few["medians"]["by_class"]),
        "",
        "No model: the straight line through these sizes:",
        "",
        *markdown_table(few["beside"]["line"]["theirs"]["by_class"]),
        "",
        "## NCCL's own tuner on the same curves",
        "",
        *markdown_table(figures["baselines"]["tuner"]["by_class"]),
        "",
        "## Every curve",
        "",
        "| curve | ranks, nodes | healthy | zero-shot | three sizes | |",
        "|---|--:|---|--:|--:|---|",
    ]
    for row in sorted(zero["per_log"], key=lambda row: (row["fabric"] or "", row["slug"])):
        cells = ("-" if e is None else f"{e:.1f}" for e in (row["mape"], known[row["slug"]]))
        lines.append(
            f"| `{row['slug']}` | {row['n_ranks']}, {row['n_nodes']} | {row['healthy']} | {' | '.join(cells)} "
            f"| [source]({source[row['slug']]}) |"
        )
    missing = [row for row in zero["per_log"] if row["mape"] is None]
    lines += ["", *(f"`{row['slug']}` is not scored: {row['reason']}." for row in missing)] if missing else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(f"wrote {write_atomically(PAGE, page(measured())).relative_to(ROOT)}")
