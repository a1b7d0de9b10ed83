"""Writes the measured figures and the picture of the README: `python validation/readme.py` (or `make readme`).

The table stands between two markers and holds what `commsim run scenarios/quickstart.yaml` prints; the picture shows
the same three machines. `tests/test_readme.py` fails when they are out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from commsim.accuracy.compare import BAND_LABELS, BANDS, Comparison, compare
from commsim.files import write_atomically
from commsim.report.plots import figure_bytes, plot_comparisons
from commsim.scenario.item import Item
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

ROOT = Path(__file__).resolve().parent.parent
SCENARIO = ROOT / "scenarios" / "quickstart.yaml"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "quickstart.png"

_BLOCK = re.compile(r"(<!-- begin: accuracy -->\n).*?(<!-- end: accuracy -->)", re.DOTALL)


def answers() -> list[tuple[Item, list[Comparison]]]:
    """The quick start's items with their comparisons."""
    results = [run(scenario) for scenario in load_scenarios(SCENARIO)]
    return [
        (item, [compare(p, m) for p, m in zip(item.at_measured, item.measured, strict=True)])
        for result in results
        for item in result.items
    ]


def table(answered: list[tuple[Item, list[Comparison]]]) -> str:
    """The Markdown table of MAPE in percent, overall and by size band."""
    names = [name for name, _, _ in BANDS]
    lines = [
        "| measured curve | sizes | all | " + " | ".join(BAND_LABELS[n] for n in names) + " |",
        "|---|--:|--:|" + "--:|" * len(names),
    ]
    for _, comparisons in answered:
        for c in comparisons:
            cells = [c.mape, *(c.band_mape(n) for n in names)]
            shown = " | ".join("-" if v is None else f"{100 * v:.1f} %" for v in cells)
            lines.append(f"| `{c.measured.name}` | {c.n} | {shown} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, rows: str) -> str:
    """The README with the table between its markers."""
    return _BLOCK.sub(lambda m: m[1] + rows + m[2], text)


def main() -> int:
    """Write README.md and the picture."""
    answered = answers()
    write_atomically(README, with_table(README.read_text(encoding="utf-8"), table(answered)))
    title = "AllReduce on eight GPUs of one node, predicted and measured"
    figure = plot_comparisons([c for _, comparisons in answered for c in comparisons], title)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(PICTURE, figure_bytes(figure, "png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
